"""Similarities of vectors and of given tables."""

from __future__ import annotations

import numpy as np
import pytest

from coresets import distances, random_table, random_vectors
from headwater.select.objectives.alike import Alike

ROWS = np.array([[0, 3, 5, 6], [2, 1, 7, 4]])


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("shift", [0.0, 1000.0])
def test_minus_the_distance_however_far_from_the_origin(keep: bool, shift: float) -> None:
    vectors = random_vectors(np.random.default_rng(0), 8) + np.float32(shift)
    alike = Alike.of(vectors, ROWS, keep=keep)
    whole = distances(vectors)
    wanted = -np.stack([whole[np.ix_(row, row)] for row in ROWS], axis=1)
    assert alike.block(0, 4) == pytest.approx(wanted, abs=2e-3)
    assert alike.block(2, 9) == pytest.approx(wanted[2:], abs=2e-3)
    places = np.array([[3, 0], [1, 1], [0, 2]])
    assert alike.at(places) == pytest.approx(wanted[places, [0, 1]], abs=2e-3)
    assert (alike.least < alike.block(0, 4).min(axis=(0, 2))[:, None]).all()


@pytest.mark.parametrize("keep", [False, True])
def test_a_sample_is_at_no_distance_from_itself(keep: bool) -> None:
    alike = Alike.of(random_vectors(np.random.default_rng(0), 8) * np.float32(100), ROWS, keep=keep)
    block = alike.block(0, 4)
    assert not block[np.arange(4), :, np.arange(4)].any()
    assert not alike.own.any()


def test_the_least_is_below_what_two_opposite_samples_have() -> None:
    line = np.array([[-3.0, 1.0], [3.0, -1.0]], np.float32)
    alike = Alike.of(line, np.array([[0, 1]]))
    assert alike.least[0, 0] < alike.block(0, 2)[0, 0, 1] == pytest.approx(-2 * np.sqrt(10), rel=1e-6)


def test_a_given_table_is_cut_to_the_problems() -> None:
    table = random_table(np.random.default_rng(0), 8)
    alike = Alike.given(table, ROWS)
    for problem, row in enumerate(ROWS):
        assert alike.block(0, 4)[:, problem].tolist() == table[np.ix_(row, row)].tolist()
        assert alike.own[problem].tolist() == table[row, row].tolist()


def test_a_whole_table_is_not_copied() -> None:
    table = random_table(np.random.default_rng(0), 8)
    alike = Alike.given(table, np.arange(8)[None])
    assert np.shares_memory(alike.block(0, 8), table)
    turned = np.arange(8)[::-1]
    assert Alike.given(table, turned[None]).block(0, 8)[:, 0].tolist() == table[::-1, ::-1].tolist()
