"""The share of values below each: exact for few, in steps for many."""

from __future__ import annotations

import numpy as np
import pytest

from headwater.select.ranks import STEPS, by_rank, rank_within_classes


def test_equal_values_have_equal_shares() -> None:
    values = np.array([3, 1, 1, 2], np.float32)
    assert by_rank(values, "below").tolist() == [0.75, 0, 0, 0.5]
    assert by_rank(values, "up_to").tolist() == [1, 0.5, 0.5, 0.75]


def test_what_is_not_finite_has_none_and_does_not_count() -> None:
    found = by_rank(np.array([np.nan, 1, np.inf, 2], np.float32), "up_to")
    assert np.isnan(found).tolist() == [True, False, True, False]
    assert found[[1, 3]].tolist() == [0.5, 1]
    assert np.isnan(by_rank(np.full(3, np.nan, np.float32), "below")).all()
    assert len(by_rank(np.empty(0, np.float32), "below")) == 0


@pytest.mark.parametrize("count", [STEPS - 1, STEPS, 5 * STEPS + 3])
def test_many_are_within_a_step(count: int) -> None:
    values = np.random.default_rng(0).permutation(count).astype(np.float32)
    for side, exact in (("below", values / count), ("up_to", (values + 1) / count)):
        found = by_rank(values, side)  # type: ignore[arg-type]
        assert np.abs(found - exact).max() <= 1 / STEPS + 1e-6
    assert by_rank(values, "up_to").max() == 1
    assert by_rank(values, "up_to").min() > 0


def test_a_function_of_the_share() -> None:
    found = by_rank(np.array([5, 7, 6], np.float32), "up_to", lambda shares: 3 * shares)
    assert found.tolist() == [1, 3, 2]


def test_ranks_within_classes() -> None:
    values, labels = np.array([9, 1, 2, 5, np.nan], np.float32), np.array([4, 4, 8, 8, 8])
    np.testing.assert_array_equal(rank_within_classes(values, labels), np.float32([0.5, 0, 0, 0.5, np.nan]))
