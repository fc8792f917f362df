"""Samples of local data forgotten: no trace of them is left, and everything else is as it was."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

import headwater as hw
from forgetting import NAME, Home
from headwater import transforms as T
from headwater.data.forgetting import Audit
from headwater.data.index import sample_ids
from headwater.errors import JournalRefused, ModelRefused, WrongUse
from headwater.store.labels import open_labels
from headwater.tune.again import HeadAgain
from headwater.tune.forget.survey import Wish, look_around
from headwater.tune.forget.traces import Marks
from headwater.tune.journals import journal_path
from headwater.tune.recipe import Recipe
from headwater.tune.tuner import Tuner
from tunings import Interrupted, StopAt


def some_ids(home: Home, *places: int) -> list[int]:
    """Of samples that the head was trained on."""
    with closing(hw.open(home.data)) as data:
        return HeadAgain(data, NAME, registry=home.registry).ids[list(places)].tolist()


def held_out(home: Home) -> int:
    with closing(hw.open(home.data)) as data:
        return int(np.setdiff1d(data.ids, HeadAgain(data, NAME, registry=home.registry).ids)[0])


def test_no_trace_is_left(home: Home) -> None:
    ids = some_ids(home, 3, 40)
    marks = [home.marks(id) for id in ids]
    for mark in marks:
        found = {trace.path.relative_to(home.folder).parts[0] for trace in home.traces(mark)}
        assert found == {"cache", "labels.db", "models"}, "the scan sees what is there before"
    home.forget(Wish(ids=tuple(ids)))
    assert not [trace for mark in marks for trace in home.traces(mark)]
    with closing(hw.open(home.data)) as data:
        assert len(data) == 58
        assert not data.index.has(np.array(ids)).any()
        home.relabel()
    assert not [trace for mark in marks for trace in home.traces(mark)], "nor after it was used again"


def test_the_data_are_not_touched(home: Home) -> None:
    before = {path: path.read_bytes() for path in home.data.rglob("*.png")}
    home.forget(Wish(ids=tuple(some_ids(home, 3))))
    assert {path: path.read_bytes() for path in home.data.rglob("*.png")} == before


@pytest.mark.slow
def test_files_are_deleted_if_that_is_said(home: Home) -> None:
    (path,) = (path for path in home.data.rglob("*.png") if path.name == "0007.png" and "red" in str(path))
    home.forget(Wish(paths=("red/0007.png",), delete_files=True))
    assert not path.exists()
    assert len(list(home.data.rglob("*.png"))) == 59


@pytest.mark.slow
def test_a_sample_stays_forgotten_when_the_folder_changes_or_is_indexed_anew(home: Home) -> None:
    (id,) = sample_ids(["red/0007.png"]).tolist()
    home.forget(Wish(ids=(id,)))
    (home.data / "red" / "new.png").write_bytes((home.data / "red" / "0001.png").read_bytes())
    for data in (hw.open(home.data), hw.open(home.data, refresh=True), hw.open(str(home.data) + "/")):
        with closing(data):
            assert len(data) == 60
            assert not data.index.has(np.array([id])).any()
    assert not home.traces(Marks.of(id, "red/0007.png"))


def test_the_head_is_made_again_and_the_old_one_is_sealed(home: Home) -> None:
    ids, old = some_ids(home, 3, 40), home.registry.current(NAME)
    done = home.forget(Wish(ids=tuple(ids)))
    new = home.registry.current(NAME)
    assert done.task.new == {NAME: new.digest}
    assert (new.made["by"], new.made["from"]) == ("forget", old.digest)
    assert new.made["forgot"]["samples"] == 2
    assert new.made["forgot"]["method"] in ("replay", "exact")
    assert len(new.made["forgot"]["hashes"]) == 2
    assert new.made["samples"] == old.made["samples"] - 2
    with closing(hw.open(home.data)) as data:
        assert new.made["data"] == data.version
        assert not np.isin(ids, HeadAgain(data, NAME, registry=home.registry).ids).any()
    assert not journal_path(home.registry, old.digest).exists()
    with pytest.raises(ModelRefused, match="is sealed: a sample that it was trained on has been forgotten"):
        home.registry.rollback(NAME)
    for use in (home.registry.get, lambda digest: home.registry.switch(NAME, digest)):
        with pytest.raises(ModelRefused, match="is sealed"):
            use(old.digest)


@pytest.mark.slow
def test_the_new_head_is_that_of_a_training_without_them(home: Home) -> None:
    ids = some_ids(home, 3, 40)
    with closing(hw.open(home.data)) as data:
        again = HeadAgain(data, NAME, registry=home.registry)
        exact = again.without(ids, method="exact").tensors
    home.forget(Wish(ids=tuple(ids), method="exact"))
    found = home.registry.get(NAME).tensors
    assert np.array_equal(found["head/weight"], exact["weight"])


def test_the_version_that_the_data_will_have_is_known_also_without_a_class(home: Home) -> None:
    paths = tuple(f"green/{path.name}" for path in (home.data / "green").iterdir())
    assert paths
    done = home.forget(Wish(paths=paths, models=False))
    with closing(hw.open(home.data)) as data:
        assert len(data.classes) == 2
        assert done.task.after == data.version


def test_labels_are_renewed_and_those_of_the_sample_are_gone(home: Home) -> None:
    (id,) = some_ids(home, 3)
    done = home.forget(Wish(ids=(id,)))
    new = home.registry.current(NAME)
    with closing(open_labels(home.labels)) as labels:
        assert labels.count_rows(NAME, [id]) == 0
        assert labels.count_by(NAME, [new.digest]) == 59
        assert labels.count_by(NAME, list(done.task.sealed)) == 0
    (counts,) = done.relabelled.values()
    assert sum(counts.values()) == 59


@pytest.mark.slow
def test_labels_may_be_left(home: Home) -> None:
    done = home.forget(Wish(ids=tuple(some_ids(home, 3)), relabel=False))
    assert not done.relabelled
    with closing(open_labels(home.labels)) as labels:
        assert labels.count_by(NAME, list(done.task.sealed)) == 59


@pytest.mark.slow
def test_one_after_the_other(home: Home) -> None:
    for id in some_ids(home, 3, 9, 30):
        marks = home.marks(id)
        home.forget(Wish(ids=(id,)))
        assert not home.traces(marks)
    assert len(home.registry.sealed()) == 3
    with closing(hw.open(home.data)) as data:
        assert len(data) == 57


@pytest.mark.slow
def test_to_forget_it_again_changes_nothing(home: Home) -> None:
    ids = tuple(some_ids(home, 3))
    home.forget(Wish(ids=ids))
    before = home.registry.current(NAME), len(list(Audit(home.folder / "forgotten").lines()))
    done = home.forget(Wish(ids=ids))
    assert not done.task.old
    assert (home.registry.current(NAME), len(list(Audit(home.folder / "forgotten").lines()))) == before


def test_the_audit_names_nobody(home: Home) -> None:
    ids = some_ids(home, 3)
    home.forget(Wish(ids=tuple(ids)))
    (line,) = Audit(home.folder / "forgotten").lines()
    assert line["places"] == [str(home.data)]
    assert line["hashes"] == home.scene.hashes(ids)
    assert home.scene.past.when(ids[0]) == line["time"]
    assert home.scene.past.when(ids[0] + 1) is None
    assert (home.folder / "forgotten" / "key").stat().st_mode & 0o777 == 0o600


@pytest.mark.slow
def test_a_sample_that_was_held_out_costs_no_version(home: Home) -> None:
    id, before = held_out(home), home.registry.current(NAME)
    marks = home.marks(id)
    done = home.forget(Wish(ids=(id,)))
    assert home.registry.current(NAME) == before
    assert not done.task.sealed
    assert not home.traces(marks)


def test_a_version_without_a_journal_is_named_before_anything_is_changed(home: Home) -> None:
    ids = tuple(some_ids(home, 3))
    journal_path(home.registry, home.registry.current(NAME).digest).unlink()
    with pytest.raises(
        ModelRefused, match=r"in force as colours .* has no journal: fine-tune .* or say --no-model"
    ):
        look_around(home.scene, Wish(ids=ids))
    survey = look_around(home.scene, Wish(ids=ids, models=False))
    assert list(survey.left) == [NAME]
    before, marks = home.registry.current(NAME), home.marks(ids[0])
    home.forget(Wish(ids=ids, models=False))
    assert home.registry.current(NAME) == before
    assert not home.registry.sealed()
    assert not home.traces(marks)


def test_a_journal_that_is_cut_short_is_refused_before_anything_is_changed(home: Home) -> None:
    ids = tuple(some_ids(home, 3))
    path = journal_path(home.registry, home.registry.current(NAME).digest)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(JournalRefused, match="cut short"):
        look_around(home.scene, Wish(ids=ids))
    assert len(hw.open(home.data)) == 60


@pytest.mark.slow
def test_a_journal_of_another_head_is_refused(home: Home) -> None:
    ids = tuple(some_ids(home, 3))
    with closing(hw.open(home.data)) as data:
        recipe = Recipe(epochs=2, runs=2, seed=1)
        other = Tuner(data, "plain", registry=home.registry, recipe=recipe).fit("other", journal=True).version
    mine = journal_path(home.registry, home.registry.current(NAME).digest)
    shutil.copy(journal_path(home.registry, other.digest), mine)
    with pytest.raises(JournalRefused, match="its run ended with another head"):
        look_around(home.scene, Wish(ids=ids))


@pytest.mark.slow
def test_all_names_in_force_are_made_again(home: Home) -> None:
    ids = tuple(some_ids(home, 3))
    with closing(hw.open(home.data)) as data:
        recipe = Recipe(epochs=2, runs=2, seed=7, validation=0.0)
        Tuner(data, "plain", registry=home.registry, recipe=recipe).fit("other", journal=True)
    done = home.forget(Wish(ids=ids))
    assert set(done.task.new) == {NAME, "other"}
    assert home.registry.in_force() == {**home.registry.in_force(), **done.task.new}


@pytest.mark.slow
def test_a_head_that_went_on_from_one_that_saw_it_is_refused(home: Home) -> None:
    ids = tuple(some_ids(home, 3))
    with closing(hw.open(home.data)) as data:
        recipe = Recipe(epochs=2, runs=2, seed=8)
        Tuner(data, NAME, registry=home.registry, recipe=recipe).fit("further", journal=True)
    with pytest.raises(ModelRefused, match=r"in force as further .* went on from a head that saw them"):
        look_around(home.scene, Wish(ids=ids))


@pytest.mark.slow
def test_older_versions_of_the_name_are_sealed_too(home: Home) -> None:
    """They were trained on the data as they were before, without a journal: nobody can tell."""
    first = home.registry.current(NAME)
    journal = journal_path(home.registry, first.digest)
    (home.data / "red" / "new.png").write_bytes((home.data / "red" / "0001.png").read_bytes())
    with closing(hw.open(home.data)) as data:
        recipe = Recipe(epochs=2, runs=2, seed=9)
        Tuner(data, "plain", registry=home.registry, recipe=recipe).fit(NAME, journal=True)
        second = home.registry.current(NAME)
        ids = HeadAgain(data, NAME, registry=home.registry).ids[:1].tolist()
    journal.unlink()
    done = home.forget(Wish(ids=tuple(ids)))
    assert set(done.task.sealed) == {first.digest, second.digest}
    assert home.registry.current("plain").digest not in done.task.sealed


@pytest.mark.slow
def test_what_a_fine_tuning_under_way_has_fetched_goes(home: Home) -> None:
    ids = tuple(some_ids(home, 3))
    with closing(hw.open(home.data)) as data:
        tuner = Tuner(data, "plain", registry=home.registry, recipe=Recipe(epochs=3, runs=2, seed=11))
        with pytest.raises(Interrupted):
            tuner.fit("under-way", journal=True, watch=StopAt(6))
    assert list((home.folder / "cache" / "finetune").iterdir())
    done = home.forget(Wish(ids=ids))
    assert done.cached["unfinished fine-tunings"] == 1
    assert not list((home.folder / "cache" / "finetune").iterdir())


@pytest.mark.slow
def test_held_samples_and_signals_of_a_loader_go(home: Home) -> None:
    (id,) = some_ids(home, 3)
    with closing(hw.open(home.data)) as data:
        cache = hw.Cache(memory=None, disk="8MiB")
        loader = hw.DataLoader(data, T.Compose([T.CenterCrop(32)]), batch_size=60, num_workers=0, cache=cache)
        for _ in loader:
            pass
    marks = home.marks(id)
    held = {trace.mark for trace in home.traces(marks) if "samples" in trace.path.parts}
    assert held >= {"content", "id, little-endian"}
    done = home.forget(Wish(ids=(id,)))
    assert done.cached["cached samples and features"] >= 2
    assert not home.traces(marks)


def test_wrong_names_are_told(home: Home) -> None:
    with pytest.raises(WrongUse, match="has no sample with id 7; `headwater ls` shows ids"):
        look_around(home.scene, Wish(ids=(7,)))
    with pytest.raises(WrongUse, match="name the samples to forget"):
        look_around(home.scene, Wish())
    with closing(hw.open(home.data)) as data, pytest.raises(WrongUse, match="these are all samples"):
        look_around(home.scene, Wish(ids=tuple(data.ids.tolist())))


def test_looking_changes_nothing(home: Home) -> None:
    before = snapshot(home)
    survey = look_around(home.scene, Wish(ids=tuple(some_ids(home, 3))))
    assert survey.there[str(home.data)].found == {"index": 1, "labels": 2}
    assert list(survey.task.old) == [NAME]
    assert snapshot(home) == before


def snapshot(home: Home) -> dict[Path, bytes]:
    kept = (path for path in home.folder.rglob("*") if path.is_file() and "-shm" not in path.name)
    return {path: path.read_bytes() for path in kept}
