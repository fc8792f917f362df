"""Features that are here are known to be here, and only those, whatever happened to the files."""

from __future__ import annotations

import resource
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from headwater.errors import ModelError
from headwater.tune.features import FeatureFile
from headwater.tune.runs import Lot, Runs

WIDTH = 6
RUNS = Runs.divide(300, 2, validation=0.1, variants=1, seed=0)


def values_of(lot: Lot) -> np.ndarray:
    rng = np.random.default_rng(lot.number)
    return rng.standard_normal((len(lot.places), WIDTH)).astype(np.float16)


def opened(folder: Path, width: int = WIDTH) -> closing[FeatureFile]:
    return closing(FeatureFile(folder, RUNS.lots, width=width))


def fill(folder: Path, count: int) -> None:
    with opened(folder) as file:
        for lot in RUNS.lots[file.here : count]:
            file.put(lot, values_of(lot))


def here(folder: Path, width: int = WIDTH) -> int:
    with opened(folder, width) as file:
        return file.here


def test_what_was_put_comes_back(tmp_path: Path) -> None:
    fill(tmp_path, len(RUNS.lots))
    expected = np.concatenate([values_of(lot) for lot in RUNS.lots])
    rows = np.array([299, 0, 17])
    with opened(tmp_path) as file:
        assert (file.here, file.rows_here, file.rows) == (len(RUNS.lots), 300, 300)
        assert np.array_equal(file.take(rows), expected[rows])


def test_it_goes_on_after_what_is_here(tmp_path: Path) -> None:
    assert here(tmp_path) == 0
    fill(tmp_path, 3)
    assert here(tmp_path) == 3
    fill(tmp_path, 5)
    assert here(tmp_path) == 5


def test_a_log_that_was_cut_off_tells_of_fewer(tmp_path: Path) -> None:
    fill(tmp_path, 4)
    log = tmp_path / "features.log"
    log.write_bytes(log.read_bytes()[:-3])
    assert here(tmp_path) == 3
    assert len(log.read_bytes()) == 24


def test_rows_that_are_not_what_was_logged_are_fetched_again(tmp_path: Path) -> None:
    fill(tmp_path, 4)
    with (tmp_path / "features.f16").open("r+b") as file:
        file.seek(2 * WIDTH * RUNS.lots[2].first)
        file.write(b"\xff\xff")
    assert here(tmp_path) == 2


def test_files_of_another_size_are_begun_anew(tmp_path: Path) -> None:
    fill(tmp_path, 4)
    assert here(tmp_path, WIDTH + 1) == 0


def test_a_sample_that_failed_is_not_sound(tmp_path: Path) -> None:
    values = values_of(RUNS.lots[0])
    values[5] = np.nan
    with opened(tmp_path) as file:
        file.put(RUNS.lots[0], values)
        assert np.flatnonzero(~file.sound(np.arange(64))).tolist() == [5]
    with opened(tmp_path) as file:
        assert np.flatnonzero(~file.sound(np.arange(64))).tolist() == [5]
        assert not file.sound(np.arange(64, 300)).any(), "not here yet"


def test_which_rows_are_sound_is_known_without_the_file(tmp_path: Path) -> None:
    """Each epoch asks for all of its rows: that must not read a file that may not fit into memory."""
    fill(tmp_path, 3)
    with opened(tmp_path) as file:
        with (tmp_path / "features.f16").open("r+b") as values:
            values.write(b"\xff" * (2 * WIDTH * 300))  # NaN everywhere
        assert np.isnan(file.take(np.arange(300))).all()
        assert file.sound(np.arange(RUNS.lots[2].rows.stop)).all()


def test_too_little_room_is_said_before_anything_is_fetched(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(ModelError, match=r"cannot keep 3,600 bytes of features in .*make room"):
            FeatureFile(tmp_path, RUNS.lots, width=WIDTH)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
