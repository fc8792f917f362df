from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from headwater.models.ranking import best
from headwater.models.runtime import decide

LOGITS = arrays(
    np.float32, st.tuples(st.integers(1, 5), st.integers(1, 9)), elements=st.floats(-30, 30, width=32)
)


@given(LOGITS, st.integers(1, 12))
def test_the_first_is_the_label_and_the_others_follow(logits: np.ndarray, count: int) -> None:
    found = decide(logits)
    places, scores = best(logits, found.scores, count)
    assert places.shape == scores.shape == (len(logits), min(count, logits.shape[1]))
    np.testing.assert_array_equal(places[:, 0], found.labels)
    np.testing.assert_array_equal(scores[:, 0], found.scores)
    assert (np.diff(scores, axis=1) <= 0).all()
    assert all(len(set(row)) == len(row) for row in places.tolist())


@given(LOGITS)
def test_all_shares_are_one_together(logits: np.ndarray) -> None:
    _, scores = best(logits, decide(logits).scores, logits.shape[1])
    np.testing.assert_allclose(scores.sum(axis=1), 1.0, rtol=1e-4)


def test_large_logits_do_not_overflow() -> None:
    logits = np.array([[3e30, 1.0, -3e30]], np.float32)
    places, scores = best(logits, decide(logits).scores, 2)
    assert places.tolist() == [[0, 1]]
    assert scores[0].tolist() == pytest.approx([1.0, 0.0])


def test_no_rows() -> None:
    places, scores = best(np.empty((0, 4), np.float32), np.empty(0, np.float32), 2)
    assert places.shape == scores.shape == (0, 2)
