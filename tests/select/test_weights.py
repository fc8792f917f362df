"""What samples count: the mean is 1 and the clip holds, whatever it is."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from columns import seeds
from headwater.errors import WrongUse
from headwater.select.weights import CLIP, balance, effective_size

any_weights = st.lists(st.floats(0, 1e300), min_size=1, max_size=60).filter(any)


@given(weights=any_weights, clip=st.floats(1.01, 50))
@settings(max_examples=300, deadline=None)
def test_the_mean_is_1_and_none_is_above_the_clip(weights: list[float], clip: float) -> None:
    found = balance(np.array(weights), clip=clip)
    assert found.dtype == np.float32
    assert found.mean(dtype=np.float64) == pytest.approx(1, abs=1e-5)
    assert 0 <= found.min() <= found.max() <= clip * (1 + 1e-6)


@given(seed=seeds)
@settings(max_examples=100, deadline=None)
def test_order_is_kept_and_those_below_the_clip_stay_in_proportion(seed: int) -> None:
    rng = np.random.default_rng(seed)
    weights = rng.lognormal(0, 4, 40)
    found = balance(weights).astype(np.float64)
    assert (np.diff(found[np.argsort(weights)]) >= 0).all()
    free = found < CLIP * (1 - 1e-6)
    assert np.ptp(found[free] / weights[free]) <= 1e-5 * (found[free] / weights[free]).max()


def test_weights_that_span_many_magnitudes_keep_to_the_clip_too() -> None:
    # what is cut off lifts the next few over the clip, again and again
    found = balance(10.0 ** np.arange(0, 300, 0.3))
    assert found.max() == CLIP
    assert found.mean(dtype=np.float64) == pytest.approx(1)
    assert np.count_nonzero(found == CLIP) >= 198


def test_what_counts_nothing_takes_what_no_other_may() -> None:
    assert balance(np.array([1.0] + 9 * [0.0])).tolist() == pytest.approx([5.0] + 9 * [5 / 9])
    assert balance(np.array([1.0, 0, 1, 0])).tolist() == [2, 0, 2, 0]
    assert balance(np.array([1.0, 1e-311]), clip=1.5).tolist() == [1.5, 0.5]


def test_equal_weights_are_left_alone() -> None:
    assert balance(np.full(1000, 0.1)).tolist() == [1.0] * 1000


def test_nothing_to_weigh() -> None:
    assert balance(np.empty(0)).tolist() == []


@pytest.mark.parametrize("wrong", [[1, np.nan], [1, np.inf], [1, -1], [0, 0]])
def test_impossible_weights_are_refused(wrong: list[float]) -> None:
    with pytest.raises(WrongUse, match="finite, at least 0"):
        balance(np.array(wrong))


def test_a_clip_that_leaves_nothing_is_refused() -> None:
    with pytest.raises(WrongUse, match="above 1"):
        balance(np.ones(3), clip=1)


def test_effective_size() -> None:
    assert effective_size(np.ones(7)) == pytest.approx(7)
    assert effective_size(np.array([4.0, 0, 0])) == pytest.approx(1)
    assert effective_size(np.array([1.0, 3])) == pytest.approx(16 / 10)
    assert effective_size(np.empty(0)) == 0
