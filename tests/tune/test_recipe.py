"""The learning rate of each epoch of each run, and recipes that cannot be."""

from __future__ import annotations

from typing import Any

import pytest

from headwater.errors import WrongUse
from headwater.tune.recipe import Recipe


def test_one_run_follows_the_schedule_in_five_equal_parts() -> None:
    rates = [Recipe(epochs=10).rate(0, epoch, runs=1) for epoch in range(10)]
    assert rates == [1, 1, 0.8, 0.8, 0.5, 0.5, 0.3, 0.3, 0.1, 0.1]


def test_short_runs_go_through_what_fits() -> None:
    assert [Recipe(epochs=2).rate(0, epoch, runs=1) for epoch in range(2)] == [1, 0.5]
    assert Recipe(epochs=1).rate(0, 0, runs=1) == 1


def test_later_runs_are_guarded() -> None:
    assert [Recipe().rate(run, 0, runs=4) for run in range(4)] == [1, 0.875, 0.75, 0.625]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"epochs": 0}, "epochs is 0"),
        ({"runs": 0}, "runs is 0; it must be at least 1, or None"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"variants": 0}, "variants is 0"),
        ({"learning_rate": 0.0}, "learning_rate=0.0 must be above 0"),
        ({"momentum": 1.0}, "momentum=1.0 at least 0 and below 1"),
        ({"l2": -1.0}, "l2=-1.0 at least 0"),
        ({"validation": 1.0}, "validation is 1.0"),
        ({"cut": ""}, "cut is empty; it may be 'features', 'images', the name of a cut, or None"),
    ],
)
def test_wrong_recipes_are_named(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(WrongUse, match=says):
        Recipe(**wrong)
