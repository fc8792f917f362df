"""What a sample was worth."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from headwater.errors import WrongUse
from headwater.train.replay.batches import FullBatch
from headwater.train.replay.features import Features
from headwater.train.replay.journal import Journal
from headwater.train.replay.retraining import retrain
from headwater.train.replay.valuation import value_samples
from replays import CLASSES, COUNT, SPARE, first_rows, make_features, record

EVERY = make_features(spare=SPARE)


def test_values_are_those_of_training_again_without_each(tmp_path: Path) -> None:
    data, judge = first_rows(EVERY), EVERY.pick(np.arange(COUNT, COUNT + SPARE))
    record(tmp_path / "a", data)
    journal = Journal(tmp_path / "a", data)
    found = value_samples(journal, data.ids[:8], judge=judge, tolerance=0.02)

    def loss(weights: np.ndarray) -> float:
        return journal.objective.value(weights, judge.parts(slice(0, SPARE))) / SPARE

    again = [retrain(journal, [each], method="exact").weights for each in data.ids[:8]]
    expected = np.array([loss(each) - loss(journal.weights) for each in again])
    assert np.abs(found.values - expected).max() < 0.05 * np.abs(expected).max()
    assert (found.errors < 0.05).all()
    assert found.ids.tolist() == data.ids[:8].tolist()


def test_wrong_labels_are_among_the_worst(tmp_path: Path) -> None:
    data, judge = first_rows(EVERY, 120), EVERY.pick(np.arange(120, COUNT))
    wrong = np.arange(0, 40, 5)
    targets = data.targets.copy()
    targets[wrong] = (targets[wrong] + 2) % CLASSES
    spoiled = Features(data.ids, data.values, targets)
    record(tmp_path / "a", spoiled, FullBatch(120, 60))
    found = value_samples(Journal(tmp_path / "a", spoiled), data.ids[:40], judge=judge)
    hits = np.isin(found.worst(8), data.ids[wrong]).sum()
    assert hits >= 5
    assert found.values[np.isin(found.ids, data.ids[wrong])].mean() < found.values.mean()


def test_a_judge_that_was_trained_on_is_refused(tmp_path: Path) -> None:
    data = first_rows(EVERY)
    record(tmp_path / "a", data)
    journal = Journal(tmp_path / "a", data)
    with pytest.raises(WrongUse, match="1 rows of the judge were trained on, such as that of id"):
        value_samples(journal, data.ids[:1], judge=EVERY.pick(np.arange(COUNT - 1, COUNT + SPARE)))


def test_a_judge_of_other_samples_may_have_ids_that_the_run_has(tmp_path: Path) -> None:
    data = first_rows(EVERY)
    record(tmp_path / "a", data)
    spare = EVERY.pick(np.arange(COUNT, COUNT + SPARE))
    judge = Features(data.ids[:SPARE], spare.values, spare.targets)
    journal = Journal(tmp_path / "a", data)
    found, same = (value_samples(journal, data.ids[:1], judge=each).values for each in (judge, spare))
    np.testing.assert_array_equal(found, same)


def test_a_judge_of_other_features_is_refused(tmp_path: Path) -> None:
    data = first_rows(EVERY)
    record(tmp_path / "a", data)
    narrow = Features(data.ids, data.values[:, :3], data.targets)
    with pytest.raises(Exception, match="bring the features"):
        value_samples(Journal(tmp_path / "a", data), data.ids[:1], judge=narrow)
