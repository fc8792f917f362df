"""Another share every epoch, and all of it in a round."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from columns import make_samples
from headwater.errors import WrongUse
from headwater.select.fresh import Fresh


def epochs(share: float, count: int, labels: object = 0, *, seed: int = 0, number: int) -> list[list[int]]:
    samples = make_samples(count, labels=labels, seed=seed)
    made = [Fresh(share).choose(replace(samples, epoch=epoch)) for epoch in range(number)]
    return [choice.places.tolist() for choice in made]


@pytest.mark.parametrize("share", [0.5, 0.25, 0.3, 0.7, 0.9, 1 / 3])
def test_every_round_sees_everything(share: float) -> None:
    turns, labels = math.ceil(1 / share - 1e-9), [0] * 20 + [1] * 3 + [2]
    found = epochs(share, 24, labels, number=3 * turns)
    for begin in range(0, len(found), turns):
        assert sorted({place for places in found[begin : begin + turns] for place in places}) == list(
            range(24)
        )
    assert {len(places) for places in found} == {sum(math.ceil(n * share - 1e-9) for n in (20, 3, 1))}


def test_where_the_share_divides_the_data_nothing_comes_twice_in_a_round() -> None:
    found = epochs(0.25, 40, [0] * 20 + [1] * 20, number=4)
    assert sorted(place for places in found for place in places) == list(range(40))
    assert all(sum(place < 20 for place in places) == 5 for places in found)


def test_rounds_and_seeds_divide_the_data_otherwise() -> None:
    found = epochs(0.5, 100, number=4)
    assert found[0] != found[2]
    assert sorted(found[0] + found[1]) == sorted(found[2] + found[3])
    assert epochs(0.5, 100, seed=1, number=1) != found[:1]


def test_all_samples_come_equally_often_in_the_long_run() -> None:
    visits = np.bincount(np.concatenate(epochs(0.3, 50, number=800)), minlength=50)
    assert visits.sum() == 800 * 15
    assert np.ptp(visits) < 60  # of 240; each round has at least one visit


def test_the_whole_share_is_everything() -> None:
    assert epochs(1.0, 9, number=2) == [list(range(9))] * 2


def test_a_share_of_nothing_is_refused() -> None:
    with pytest.raises(WrongUse, match="share is 0"):
        Fresh(0)
