"""How far masks are apart."""

from __future__ import annotations

import numpy as np
import pytest

from headwater.plan.prune import Channels
from headwater.plan.prune.distances import all_distances, by_chance, distance, width_distance
from headwater.plan.prune.masks import mask_at


@pytest.mark.parametrize("ratio", [0.3, 0.5, 0.9, 0.95])
def test_masks_by_chance_are_as_far_apart_as_is_said(ratio: float) -> None:
    channels, rng = Channels(("all",), (20_000,)), np.random.default_rng(0)
    one, other = (mask_at(channels, rng.random(20_000), ratio).keep for _ in range(2))
    assert distance(one, other) == pytest.approx(by_chance(ratio), rel=0.05)


def test_all_distances_are_those_of_pairs() -> None:
    masks = [np.random.default_rng(seed).random(37) < 0.4 for seed in range(6)]
    wanted = [[distance(one, other) for other in masks] for one in masks]
    assert all_distances(masks) == pytest.approx(np.array(wanted))


def test_widths_can_agree_where_channels_do_not() -> None:
    channels = Channels(("one", "two"), (2, 4))
    one, other = np.array([1, 0, 1, 1, 0, 0], bool), np.array([0, 1, 0, 0, 1, 1], bool)
    assert distance(one, other) == 1
    assert width_distance(channels, one, other) == 0
    assert width_distance(channels, one, np.array([1, 0, 1, 0, 0, 0], bool)) == pytest.approx((0 + 1 / 3) / 2)
