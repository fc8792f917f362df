"""Scores of IOWA: surprise alone, or with margin and the cost of loading."""

from __future__ import annotations

import numpy as np
import pytest

from columns import make_samples, random_samples
from headwater.select.importance import find_importance

ALL = np.arange(4)


def test_surprise_is_monotone_and_the_published_score_is_not() -> None:
    samples = make_samples(4, probability=[0.9, 0.01, 0.5, 0.3])
    ours, published = (find_importance(samples, ALL, published=flag) for flag in (False, True))
    assert np.argsort(ours).tolist() == [0, 2, 3, 1]
    # -p log2 p: 0.137, 0.066, 0.5, 0.521, so the sample that is most wrong counts least
    assert np.argsort(published).tolist() == [1, 0, 2, 3]


def test_where_training_does_not_wait_loading_and_margin_do_not_count() -> None:
    facts = {"margin": [0, 1, 0, 1], "seconds": [9, 1, 1, 1], "bytes": [9, 1, 1, 1]}
    for stalled in (0.0, 0.1):
        samples = make_samples(4, probability=[0.9, 0.01, 0.5, 0.3], stalled=stalled, **facts)
        assert find_importance(samples, ALL, published=False).tolist() == [0, 0.75, 0.25, 0.5]


@pytest.mark.parametrize("stalled", [0.2, 1.0, 7.0])
def test_the_three_ranks_by_how_much_training_waits(stalled: float) -> None:
    samples = make_samples(
        4,
        probability=[0.9, 0.01, 0.5, 0.3],
        margin=[0.8, -0.9, 0.1, -0.2],
        seconds=[1, 2, 3, 4],
        bytes=[100, 200, 300, 400],
        stalled=stalled,
    )
    weight = min(stalled, 1)
    wanted = (2 * np.array([0, 0.75, 0.25, 0.5]) + weight * np.array([0.75, 0.5, 0.25, 0])) / (2 + weight)
    assert find_importance(samples, ALL, published=False).tolist() == pytest.approx(wanted.tolist())


def test_seconds_and_bytes_count_half_and_half_once_scaled() -> None:
    same = {"probability": [0.5] * 4, "margin": [0] * 4, "stalled": 1.0}
    both = make_samples(4, seconds=[0, 1, 0.2, 0.9], bytes=[1e6, 0, 0.7e6, 0.05e6], **same)
    # 0.5, 0.5, 0.45, 0.475
    assert np.argsort(find_importance(both, ALL, published=False), kind="stable").tolist() == [0, 1, 3, 2]
    one = make_samples(4, seconds=[4, 3, 2, 1], **same)
    assert np.argsort(find_importance(one, ALL, published=False)).tolist() == [0, 1, 2, 3]


def test_what_is_unknown_neither_helps_nor_hurts() -> None:
    samples = make_samples(
        4, probability=[0.9, 0.01, 0.5, np.nan], margin=[0.8, np.nan, 0.1, 0.5], stalled=1.0
    )
    found = find_importance(samples, ALL, published=False)
    # margins: those of 0.8 and 0.1 are ranked among three; the unknown one has the rank of its surprise
    assert found[:3].tolist() == pytest.approx(
        [(0 + 0 + 0.5) / 3, (4 / 3 + 0.5) / 3, (1 / 3 + 2 / 3 + 0.5) / 3]
    )
    assert np.isnan(found[3])


def test_ranks_are_within_the_class_so_that_none_is_favoured() -> None:
    samples = random_samples(np.random.default_rng(0), 4000, stalled=1.0)
    found = find_importance(samples, np.arange(4000), published=False)
    means = [found[samples.labels == label].mean() for label in samples.classes]
    assert np.ptp(means) < 0.02
