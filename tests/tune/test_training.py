"""Which samples an epoch of a run goes through."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from headwater.errors import ModelError
from headwater.tune.features import FeatureFile
from headwater.tune.recipe import Recipe
from headwater.tune.runs import Runs
from headwater.tune.training import Training

SAMPLES, RUNS, EPOCHS = 301, 3, 6

Make = Callable[[float], Training]


@pytest.fixture
def make_training(tmp_path: Path) -> Iterator[Make]:
    """Every sample has this feature, and its own class, so that the classes of a batch tell who is in it."""
    runs = Runs.divide(SAMPLES, RUNS, validation=0.0, variants=1, seed=5)
    file = FeatureFile(tmp_path, runs.lots, width=1)

    def make(feature: float) -> Training:
        for lot in runs.lots:
            file.put(lot, np.full((len(lot.places), 1), feature, np.float16))
        recipe = Recipe(epochs=EPOCHS, runs=RUNS, batch_size=32, seed=5)
        return Training(runs, file, np.arange(SAMPLES), recipe, tmp_path / "state")

    yield make
    file.close()


def seen(training: Training, run: int, epoch: int) -> list[int]:
    return [int(label) for _, labels in training._batches(run, epoch) for label in labels]


@pytest.mark.parametrize("run", range(RUNS))
def test_a_run_goes_evenly_through_all_that_have_come(make_training: Make, run: int) -> None:
    training = make_training(0.0)
    come = np.sort(np.concatenate(training.runs.trained[: run + 1])).tolist()
    for turn in range(EPOCHS // (run + 1)):
        parts = [seen(training, run, turn * (run + 1) + part) for part in range(run + 1)]
        assert sorted(itertools.chain(*parts)) == come
        assert all(abs(len(part) - len(come) / (run + 1)) < 1 for part in parts)


def test_where_few_have_features_every_epoch_has_a_sample(make_training: Make) -> None:
    training = make_training(0.0)
    training.file._sound[:] = False
    training.file._sound[7] = True
    assert {len(seen(training, RUNS - 1, epoch)) for epoch in range(EPOCHS)} == {1}


def test_an_epoch_is_in_another_order_than_the_one_before(make_training: Make) -> None:
    training = make_training(0.0)
    assert seen(training, 0, 0) == seen(training, 0, 0) != seen(training, 0, 1)


def test_without_any_features_there_is_no_run(make_training: Make) -> None:
    with pytest.raises(ModelError, match="has features"):
        seen(make_training(np.nan), 0, 0)
