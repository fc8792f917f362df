"""What is worth holding: what is visited, what is hard, and one of a group for all of it."""

from __future__ import annotations

import numpy as np

from columns import make_samples
from headwater.select.holding import worth_holding
from headwater.select.selection import Selection


def chosen(*places: int) -> Selection:
    return Selection("any", 0, np.array(places), np.ones(len(places), np.float32), "these")


def test_what_is_visited_is_worth_more() -> None:
    worth = worth_holding(make_samples(4), chosen(1, 3))
    assert worth[1] == worth[3] > worth[0] == worth[2] > 0


def test_what_is_hard_is_worth_more_and_what_is_unknown_is_between() -> None:
    samples = make_samples(3, smoothed=np.array([0.1, np.nan, 4.0], np.float32))
    easy, unknown, hard = worth_holding(samples, chosen(0, 1, 2))
    assert easy < unknown
    assert easy < hard


def test_one_of_a_group_is_worth_all_of_it_in_every_epoch() -> None:
    group = np.array([-1, 0, 0, 0], np.int32)
    found = [
        worth_holding(make_samples(4, group=group, epoch=epoch), chosen(0, 1, 2, 3), stand_ins=True)
        for epoch in range(3)
    ]
    assert all(np.array_equal(found[0], other) for other in found)
    alone, *members = found[0]
    assert sorted(members)[-1] == 3 * alone
    assert sorted(members)[1] < alone
