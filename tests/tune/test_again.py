"""A head that was fine-tuned with a journal, again without some samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import headwater as hw
from headwater import transforms as T
from headwater.errors import JournalRefused, ModelNotFound, WrongUse
from headwater.models.registry import Registry
from headwater.train.replay.features import Features
from headwater.train.replay.journal import Journal
from headwater.train.replay.reading import JournalFile
from headwater.train.replay.retraining import retrain
from headwater.tune.again import HeadAgain
from headwater.tune.journals import journal_path
from headwater.tune.recipe import Recipe
from headwater.tune.tuner import Tuner
from tunings import Interrupted, StopAt, write_colours

RECIPE = Recipe(epochs=3, runs=2, batch_size=32, seed=7)


def make_tuner(colours: Path, registry: Registry, recipe: Recipe = RECIPE, **changes: Any) -> Tuner:
    return Tuner(hw.open(colours), "plain", registry=registry, recipe=recipe, **changes)


def fit(colours: Path, registry: Registry, recipe: Recipe = RECIPE, **changes: Any) -> HeadAgain:
    make_tuner(colours, registry, recipe, **changes).fit("colours", journal=True)
    return HeadAgain(hw.open(colours), "colours", registry=registry)


def test_a_journal_makes_no_difference_to_the_version(colours: Path, registry: Registry) -> None:
    plain = make_tuner(colours, registry).fit("colours").version
    assert not journal_path(registry, plain.digest).exists()
    noted = make_tuner(colours, registry).fit("colours", journal=True).version
    assert noted.digest == plain.digest
    assert JournalFile(journal_path(registry, plain.digest)).seal.error == 0


def test_it_tells_what_every_step_saw(colours: Path, registry: Registry) -> None:
    """The run is had again from the journal and the features alone, step by step."""
    again = fit(colours, registry)
    journal = Journal(again.path, again.features())
    motion, visits = journal.motion_at(0), journal.roster.visits(_no_change())
    for visit, moment in zip(visits, journal.file.moments(0), strict=True):
        mean = journal.objective.gradient(motion.place, journal.data.parts(visit.members)) / visit.size
        assert np.linalg.norm(mean - moment.gradient) < 1e-2 * np.linalg.norm(mean)
        motion.step(mean, moment.rates)
    assert np.linalg.norm(motion.place - journal.weights) < 1e-3 * np.linalg.norm(journal.weights)


def _no_change() -> Any:
    from headwater.train.replay.visits import Change

    return Change()


@pytest.mark.parametrize("method", ["replay", "exact"])
def test_samples_are_taken_out_of_a_head(method: str, colours: Path, registry: Registry) -> None:
    again = fit(colours, registry)
    gone = again.ids[[3, 50, 90]]
    new = again.without(gone, method=method, tolerance=0.1, limit=0.9)
    assert new.retrained.method == method
    assert new.retrained.change > 0
    version = again.keep(new, made={"by": "retrain", "from": again.version.digest})
    assert version.parent == again.version.parent
    assert (version.made["by"], version.made["data"]) == ("retrain", again.version.made["data"])
    assert registry.current("colours") == again.version, "it is not in force yet"
    changed = {name for name, facts in version.tensors.items() if again.version.tensors[name] != facts}
    assert changed == {"head/weight", "head/bias"}
    registry.switch("colours", version.digest)
    next_one = HeadAgain(hw.open(colours), "colours", registry=registry)
    assert not np.isin(gone, next_one.ids).any()
    for each in gone:
        assert int(each).to_bytes(8, "little") not in next_one.path.read_bytes()
    assert next_one.without(next_one.ids[:2], tolerance=0.1, limit=0.9).retrained.change > 0


def test_replay_is_near_training_again(colours: Path, registry: Registry) -> None:
    again = fit(colours, registry, Recipe(epochs=12, runs=1, batch_size=64, seed=7, learning_rate=1.0))
    features, gone = again.features(), again.ids[[3, 50, 90]]
    exact = again.without(gone, features=features, method="exact").retrained
    found = again.without(gone, features=features, tolerance=0.05, limit=0.9).retrained
    nothing = np.linalg.norm(exact.weights - Journal(again.path, features).weights)
    assert np.linalg.norm(found.weights - exact.weights) < 0.2 * nothing


def test_variants_of_a_sample_go_together(colours: Path, registry: Registry) -> None:
    augment = [T.RandomResizedCrop(32), T.RandomHorizontalFlip()]
    again = fit(colours, registry, Recipe(epochs=3, runs=2, batch_size=32, variants=2), augment=augment)
    journal = Journal(again.path, again.features())
    assert len(journal.slots_of(again.ids[:1])) == 2
    assert again.without(again.ids[:1], method="exact").retrained.change > 0


def test_samples_without_features_are_left_out_and_may_go(tmp_path: Path, registry: Registry) -> None:
    root = write_colours(tmp_path / "colours", count=30)
    broken = root / "red" / "0003.png"
    broken.write_bytes(broken.read_bytes()[:60])
    recipe = Recipe(epochs=2, runs=2, batch_size=16, seed=7, validation=0.0)
    again = fit(root, registry, recipe)
    data = hw.open(root)
    (lost,) = (data.ids[place] for place in range(len(data)) if data[place].key == "red/0003.png")
    journal = Journal(again.path, again.features())
    assert lost in again.ids
    assert lost not in journal.ids
    new = again.without([lost])
    assert new.retrained.change == 0
    version = again.keep(new, made={"by": "retrain"})
    assert int(lost).to_bytes(8, "little") not in journal_path(registry, version.digest).read_bytes()


def test_interrupted_and_gone_on_the_journal_is_the_same(colours: Path, registry: Registry) -> None:
    whole = make_tuner(colours, registry).fit("colours", journal=True).version
    path = journal_path(registry, whole.digest)
    expected = path.read_bytes()
    path.unlink()
    for last in range(5, 40, 3):
        try:
            make_tuner(colours, registry).fit("colours", journal=True, watch=StopAt(last))
            break
        except Interrupted:
            continue
    assert path.read_bytes() == expected


def test_gone_on_with_a_journal_that_was_not_kept_it_begins_anew(colours: Path, registry: Registry) -> None:
    whole = make_tuner(colours, registry).fit("colours").version
    events = StopAt()
    make_tuner(colours, registry).fit("colours", watch=events)
    with pytest.raises(Interrupted):
        make_tuner(colours, registry).fit("colours", watch=StopAt(len(events.told) - 2))
    done = make_tuner(colours, registry).fit("colours", journal=True)
    assert done.version.digest == whole.digest
    file = JournalFile(journal_path(registry, whole.digest))
    assert file.seal.steps == len(file) > 0


def test_journals_of_versions_that_are_gone_go(colours: Path, registry: Registry) -> None:
    stray = registry.folder / "journals" / f"{'0' * 32}.journal"
    stray.parent.mkdir()
    stray.write_bytes(b"of another time")
    again = fit(colours, registry)
    assert [path.name for path in stray.parent.iterdir()] == [again.path.name]


def test_a_version_without_a_journal(colours: Path, registry: Registry) -> None:
    make_tuner(colours, registry).fit("colours")
    with pytest.raises(ModelNotFound, match="has no journal; fine-tune with one"):
        HeadAgain(hw.open(colours), "colours", registry=registry)


def test_the_journal_of_another_head_is_refused(colours: Path, registry: Registry) -> None:
    again = fit(colours, registry)
    other = make_tuner(colours, registry, Recipe(epochs=2, runs=2, seed=1)).fit("other", journal=True).version
    journal_path(registry, other.digest).replace(again.path)
    with pytest.raises(JournalRefused, match="its run ended with another head"):
        HeadAgain(hw.open(colours), "colours", registry=registry)


def test_features_that_cannot_be_made_any_more(tmp_path: Path, registry: Registry) -> None:
    root = write_colours(tmp_path / "colours", count=30)
    again = fit(root, registry, Recipe(epochs=2, runs=1, batch_size=16, seed=7, validation=0.0))
    content = (root / "red" / "0003.png").read_bytes()
    (root / "red" / "0003.png").write_bytes(content[:60] + bytes(len(content) - 60))
    with pytest.raises(JournalRefused, match="features of 1 samples that the head was trained on"):
        again.features()


def test_features_of_other_layers_are_refused(colours: Path, registry: Registry) -> None:
    again = fit(colours, registry)
    own = again.features()
    others = Features(own.ids, own.values, own.targets, source="other layers")
    with pytest.raises(JournalRefused, match="was made with data of version"):
        again.without(again.ids[:1], features=others)


def test_a_head_of_ones_own(colours: Path, registry: Registry) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(24, 8), nn.Tanh(), nn.Linear(8, 3))
    tuner = make_tuner(
        colours, registry, head=module, optimiser=lambda parameters: torch.optim.SGD(parameters, lr=0.05)
    )
    done = tuner.fit("colours", journal=True)
    with pytest.raises(JournalRefused, match=r"a module of your own; replay it with hw.retrain"):
        HeadAgain(hw.open(colours), "colours", registry=registry)
    assert JournalFile(journal_path(registry, done.version.digest)).seal.steps > 0


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"optimiser": lambda parameters: torch.optim.AdamW(parameters)}, "is AdamW"),
        (
            {
                "head": nn.Sequential(nn.Linear(24, 3), nn.Dropout(0.1)),
                "optimiser": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
            },
            "which draws",
        ),
    ],
)
def test_what_cannot_be_replayed_is_told_before_features_come(
    changes: dict[str, Any], says: str, colours: Path, registry: Registry
) -> None:
    watch = StopAt()
    with pytest.raises(WrongUse, match=says):
        make_tuner(colours, registry, **changes).fit("colours", journal=True, watch=watch)
    assert watch.told == []


def test_the_journal_of_a_tuner_is_one_for_retrain_too(colours: Path, registry: Registry) -> None:
    again = fit(colours, registry)
    journal = Journal(again.path, again.features())
    with pytest.raises(WrongUse, match="are not in the journal"):
        retrain(journal, [1])
