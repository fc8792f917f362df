"""A budget's defaults follow from its cores and memory, and numbers that cannot work are refused."""

from __future__ import annotations

import pytest

from headwater.engine.budget import Budget
from headwater.engine.crew import available_cores
from headwater.errors import WrongUse


def test_defaults_follow_the_machine() -> None:
    budget = Budget()
    assert budget.cores == available_cores()
    assert budget.requests == 2 * available_cores() + 2
    assert (budget.memory, budget.request_bytes, budget.request_samples) == (1 << 30, 64 << 20, 16_384)


def test_defaults_follow_what_is_given() -> None:
    assert Budget(cores=2.5).requests == 8
    assert Budget(memory=1 << 20).request_bytes == 1 << 18
    assert Budget(cores=1, requests=3).requests == 3
    assert Budget(memory=1).request_bytes == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"cores": 0},
        {"cores": -1.0},
        {"cores": float("nan")},
        {"cores": float("inf")},
        {"memory": 0},
        {"requests": 0},
        {"request_bytes": 0},
        {"request_samples": 0},
        {"memory": 100, "request_bytes": 101},
    ],
)
def test_numbers_that_leave_nothing_to_work_with_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(WrongUse, match=next(iter(wrong))):
        Budget(**wrong)  # type: ignore[arg-type]
