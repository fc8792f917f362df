"""Features come in order, a failing sample costs only itself, and what goes wrong reaches whoever waits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

import headwater as hw
from exports import exported_plain
from headwater.data.pipeline import Pipeline
from headwater.data.steps import catalogue
from headwater.engine.inference import FeatureBatch
from headwater.errors import Unreachable
from headwater.models.registry import Registry
from headwater.models.runtime import Engine
from headwater.tune.features import FeatureFile
from headwater.tune.inflow import Inflow, Steps, Unwatched, Watch, to_rows
from headwater.tune.runs import Places, Runs
from headwater.tune.sources import Here
from tunings import Interrupted, StopAt, make_picture, write_colours

STEPS = Pipeline.from_spec(exported_plain().model.steps, catalogue())
WIDTH = 24


def flow_in(data: hw.Dataset, runs: Runs, folder: Path, *, watch: Watch | None = None) -> Inflow:
    """All features of the data, into a file in the folder."""
    source = Here(data, exported_plain().model, seed=0)
    with closing(FeatureFile(folder, runs.lots, width=WIDTH)) as file:
        told = watch or Unwatched()
        with Inflow(source, data, file=file, steps=Steps(STEPS, STEPS), watch=told) as inflow:
            inflow.wait(len(runs.lots))
    return inflow


def test_rows_are_what_the_engine_makes_of_each_picture(tmp_path: Path, colours: Path) -> None:
    data = hw.open(colours)
    runs = Runs.divide(len(data), 2, validation=0.2, variants=1, seed=3)
    watch = StopAt()
    flow_in(data, runs, tmp_path, watch=watch)
    rows = np.fromfile(tmp_path / "features.f16", np.float16).reshape(-1, WIDTH)
    loader = hw.DataLoader(data, STEPS.samplewise, batch_size=len(data), num_workers=0)
    pixels = next(iter(loader)).inputs.permute(0, 2, 3, 1).numpy()
    expected = Engine(exported_plain().model).features(np.ascontiguousarray(pixels))
    order = np.concatenate([lot.places for lot in runs.lots])
    np.testing.assert_allclose(rows, expected[order], atol=2e-3, rtol=2e-3)
    assert watch.told[-1] == ("features", 180, 180)
    assert watch.stores == {}, "no store has sent anything"


def test_a_damaged_file_costs_its_own_row_only(tmp_path: Path) -> None:
    folder = write_colours(tmp_path / "data", 30)
    (folder / "red" / "0003.png").write_bytes(make_picture((1, 2, 3), 0)[:500])
    data = hw.open(folder)
    runs = Runs.divide(len(data), 1, validation=0.0, variants=1, seed=3)
    inflow = flow_in(data, runs, tmp_path)
    rows = np.fromfile(tmp_path / "features.f16", np.float16).reshape(-1, WIDTH)
    (lost,) = np.nonzero(np.isnan(rows).any(axis=1))
    places = np.concatenate([lot.places for lot in runs.lots])
    assert [data.index.key(int(places[row])) for row in lost] == ["red/0003.png"]
    assert np.isnan(rows[lost]).all()
    assert list(inflow.errors) == ["red/0003.png"]


class _Lost:
    """A source whose store goes away after one batch."""

    bytes_moved = 0

    def run(self, positions: Places, ids: Places, *, steps: Pipeline, variant: int) -> Iterator[FeatureBatch]:
        yield FeatureBatch(positions[:64], ids[:64], np.zeros((64, WIDTH), np.float16))
        raise Unreachable("the store does not answer")

    def close(self) -> None:
        return None


def test_a_store_that_goes_away_is_an_error_for_who_waits(tmp_path: Path, colours: Path) -> None:
    data = hw.open(colours)
    runs = Runs.divide(len(data), 1, validation=0.0, variants=1, seed=3)
    with closing(FeatureFile(tmp_path, runs.lots, width=WIDTH)) as file:
        steps = Steps(STEPS, STEPS)
        with Inflow(_Lost(), data, file=file, steps=steps, watch=Unwatched()) as inflow:
            inflow.wait(1)
            with pytest.raises(Unreachable, match="does not answer"):
                inflow.wait(2)


def test_an_error_of_the_watch_is_one_too(tmp_path: Path, colours: Path) -> None:
    data = hw.open(colours)
    runs = Runs.divide(len(data), 1, validation=0.0, variants=1, seed=3)
    with pytest.raises(Interrupted):
        flow_in(data, runs, tmp_path, watch=StopAt(2))


def test_leaving_early_ends_the_thread(tmp_path: Path, colours: Path, registry: Registry) -> None:
    data = hw.open(colours)
    runs = Runs.divide(len(data), 1, validation=0.0, variants=1, seed=3)
    source = Here(data, exported_plain().model, seed=0)
    with closing(FeatureFile(tmp_path, runs.lots, width=WIDTH)) as file:
        with Inflow(source, data, file=file, steps=Steps(STEPS, STEPS), watch=Unwatched()) as inflow:
            inflow.wait(1)
        assert not inflow._thread.is_alive()


def test_rows_are_found_by_id() -> None:
    batch = FeatureBatch(np.array([0, 1]), np.array([70, 20]), np.array([[7, 7], [2, 2]], np.float16))
    rows = to_rows(np.array([20, 50, 70]), batch)
    np.testing.assert_array_equal(rows, [[2, 2], [np.nan, np.nan], [7, 7]])
