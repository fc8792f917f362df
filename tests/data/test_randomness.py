"""Draws depend on seed, epoch, step, sample and draw, and on nothing else."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.data.randomness import Draws, derive_key, mix, mix_int

IDS = np.arange(200_000, dtype=np.int64) * 7919


def draws(ids: np.ndarray = IDS, *, seed: int = 1, epoch: int = 2, step: int = 3) -> Draws:
    return Draws.of(ids, seed=seed, epoch=epoch, step=step)


@given(st.integers(0, 2**64 - 1))
def test_the_two_forms_of_the_hash_agree(word: int) -> None:
    assert int(mix(np.array([word], np.uint64))[0]) == mix_int(word)


@given(st.lists(st.integers(0, 199_999), min_size=1, max_size=50), st.integers(0, 20))
def test_any_subset_draws_the_same(places: list[int], draw: int) -> None:
    assert np.array_equal(draws(IDS[places]).bits(draw), draws().bits(draw)[places])


def test_golden_values() -> None:
    """The bits of a draw are part of every saved run: they may never change."""
    few = draws(IDS[:4])
    content = few.bits(0).tobytes() + few.uniform(1).tobytes() + few.log_uniform(2, 0.75, 4 / 3).tobytes()
    content += few.integers(3, 0, 1000).tobytes()
    assert hashlib.blake2b(content, digest_size=8).hexdigest() == "90464e2c515fd403"


def test_parts_of_the_key_are_independent() -> None:
    base = draws().uniform(0)
    others = [
        draws().uniform(1),
        draws(seed=2).uniform(0),
        draws(epoch=3).uniform(0),
        draws(step=4).uniform(0),
        np.roll(base, 1),
    ]
    bound = 4.5 / len(IDS) ** 0.5
    assert all(abs(np.corrcoef(base, other)[0, 1]) < bound for other in others)


def test_uniform_is_uniform() -> None:
    counts = np.histogram(draws().uniform(5), bins=64, range=(0, 1))[0]
    expected = len(IDS) / 64
    assert ((counts - expected) ** 2 / expected).sum() / 63 < 1.7
    low_high = draws().uniform(6, -2.0, 3.0)
    assert low_high.min() >= -2
    assert low_high.max() < 3


def test_integers_stay_in_their_range_and_reach_its_ends() -> None:
    high = np.full(len(IDS), 7)
    drawn = draws().integers(0, np.full(len(IDS), 3), high)
    assert set(np.unique(drawn)) == {3, 4, 5, 6}
    assert draws().integers(1, 5, 6).tolist() == [5] * len(IDS)


def test_log_uniform_is_uniform_in_the_logarithm() -> None:
    logs = np.log(draws().log_uniform(0, 0.75, 4 / 3))
    ends = np.log(0.75), np.log(4 / 3)
    assert logs.min() >= ends[0] - 1e-12
    assert logs.max() < ends[1] + 1e-12
    counts = np.histogram(logs, bins=32, range=ends)[0]
    expected = len(IDS) / 32
    assert ((counts - expected) ** 2 / expected).sum() / 31 < 1.8


def test_order_of_key_parts_matters() -> None:
    assert derive_key(1, 2) != derive_key(2, 1)
    assert derive_key(-1) == derive_key(2**64 - 1)


@pytest.mark.parametrize("draw", [0, 1, 99])
def test_negative_seeds_are_allowed(draw: int) -> None:
    assert not np.array_equal(draws(seed=-5).bits(draw), draws(seed=5).bits(draw))
