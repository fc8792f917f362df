"""What ways make of files, by a line that is learned."""

from __future__ import annotations

import numpy as np
import pytest

from headwater.engine.cache.lengths import Lengths
from headwater.plan.offload import Offload

FILES = np.arange(1000, 41_000, 1000)
WAY = Offload(2, "jxl1")


def test_files_are_as_long_as_they_are_and_ways_unknown_at_first() -> None:
    lengths = Lengths()
    assert lengths.predict(Offload(0), np.array([5, 0])).tolist()[:1] == [5.0]
    assert np.isnan(lengths.predict(Offload(0), np.array([0]))).all()
    lengths.learn(WAY, FILES[:7], FILES[:7])
    assert np.isnan(lengths.predict(WAY, FILES)).all(), "too few to tell"
    lengths.learn(WAY, FILES[7:8], FILES[7:8])
    assert not np.isnan(lengths.predict(WAY, FILES)).any()
    assert np.isnan(lengths.predict(Offload(2), FILES)).all(), "each way by itself"


@pytest.mark.parametrize(("fixed", "slope"), [(0, 0.4), (150_528, 0.0), (2000, 0.25)])
def test_what_grows_with_the_file_and_what_does_not(fixed: int, slope: float) -> None:
    lengths = Lengths()
    for part in np.array_split(np.random.default_rng(0).permutation(FILES), 5):
        lengths.learn(WAY, part, (fixed + slope * part).astype(np.int64))
    np.testing.assert_allclose(lengths.predict(WAY, FILES), fixed + slope * FILES, rtol=0.01)
    assert np.isnan(lengths.predict(WAY, np.array([0]))).all()


def test_files_of_one_length() -> None:
    lengths = Lengths()
    lengths.learn(WAY, np.full(9, 500), np.full(9, 60))
    assert lengths.predict(WAY, np.array([500, 900])).tolist() == [60.0, 60.0]
