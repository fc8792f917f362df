"""What feedback changes in a plan: when fetches begin, how much room is left, which ways are open."""

from __future__ import annotations

import pytest
import torch

from headwater.plan.memory import WAYS, AccessRecord, Rates, TensorRecord
from headwater.train.memory.guide import Guide
from headwater.train.memory.iteration import Entry, Iteration

COUNT, SIZE = 8, 1000
RATES = Rates(write=10_000.0, read=10_000.0)
ENTRIES: list[Entry] = [(SIZE, (SIZE // 4,), torch.float32, place) for place in range(COUNT)]


@pytest.fixture
def guide() -> Guide:
    """Eight tensors in a row, room for five; each can be made again, for more than a transfer takes."""
    tensors = tuple(
        TensorRecord(SIZE, (place,), (2 * COUNT - 1 - place,), (place - 1,) if place else None, 2.0)
        for place in range(COUNT)
    )
    record = AccessRecord(tensors, tuple(float(access) for access in range(2 * COUNT)))
    return Guide(ENTRIES, record, 5 * SIZE, RATES, frozenset(WAYS))


def trigger_of(guide: Guide, number: int) -> int:
    return next(trigger for trigger, one in guide.triggers if one == number)


def test_a_late_fetch_begins_earlier_the_next_time(guide: Guide) -> None:
    number = guide.triggers[-1][1]
    before = trigger_of(guide, number)
    iteration = Iteration()
    iteration.late[number] = 2.5
    guide.learn(iteration, RATES, frozenset(WAYS))
    assert (before, trigger_of(guide, number)) == (14, 12), "2.5 s earlier, where an access takes one"


def test_what_had_to_leave_without_a_plan_is_left_free(guide: Guide) -> None:
    out = guide.plan.bytes_of("swap")
    iteration = Iteration()
    iteration.counts.evicted = SIZE
    guide.learn(iteration, RATES, frozenset(WAYS))
    assert guide.plan.bytes_of("swap") >= out + SIZE
    assert guide.plan.peak <= 4 * SIZE


def test_rates_that_changed_much_make_another_plan_and_others_do_not(guide: Guide) -> None:
    before = guide.plan
    guide.learn(Iteration(), Rates(11_000.0, 9_000.0), frozenset(WAYS))
    assert guide.plan is before
    guide.learn(Iteration(), Rates(10.0, 10.0), frozenset(WAYS))
    assert guide.plan.bytes_of("recompute") > 0


def test_a_way_that_was_closed_is_taken_no_more(guide: Guide) -> None:
    guide.learn(Iteration(), RATES, frozenset(("keep", "recompute")))
    assert guide.plan.bytes_of("swap") == 0
    assert guide.plan.bytes_of("recompute") > 0
    assert not guide.triggers
