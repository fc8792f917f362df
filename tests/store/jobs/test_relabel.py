"""Labels by a new version: the same as by looking at every image, whatever was kept, skipped or cut short."""

from __future__ import annotations

import itertools
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import sqlalchemy as sa

import headwater as hw
from headwater.data.index import Index
from headwater.engine.chain import Chain
from headwater.engine.crew import Crew
from headwater.engine.inference import Extraction
from headwater.errors import DatasetStale, ModelNotFound
from headwater.models.model import Model
from headwater.models.registry import Registry
from headwater.models.runtime import Classified, Engine, decide, make_head
from headwater.models.version import ModelVersion
from headwater.plan.offload import Offload
from headwater.store.cabinet import Cabinet
from headwater.store.features import OWN, Features
from headwater.store.jobs import relabel as module
from headwater.store.jobs.record import JobFolder, JobRecord
from headwater.store.jobs.relabel import Workplace, relabel
from headwater.store.jobs.runner import Running
from headwater.store.labels import LabelRows, Source, open_labels
from headwater.store.labels.database import LabelDatabase
from headwater.store.labels.schema import history
from killing import find_points, kill_at
from labelled import Kind
from relabelling import CLASSES, FEATURES, nudged, small_model, write_photos

NAME = "photos"
numbers = itertools.count()


def no_images(version: ModelVersion) -> Extraction:
    raise AssertionError("an image was to be read")


@dataclass
class Site:
    """A dataset, models and labels in one folder, and jobs over them."""

    folder: Path
    index: Index
    extraction: Callable[[ModelVersion], Extraction] = no_images
    kept: bool = True
    labels: str = ""
    """Where the database is, if not in the folder."""

    @property
    def registry(self) -> Registry:
        return Registry(self.folder / "models")

    def open_labels(self) -> LabelDatabase:
        return open_labels(self.labels or self.folder / "labels.db")

    def push(self, model: Model) -> ModelVersion:
        return self.registry.put(model, name="small", switch=True)

    def place(self, labels: LabelDatabase, cabinet: Cabinet | None) -> Workplace:
        def features(version: ModelVersion) -> Features | None:
            return None if cabinet is None else Features(cabinet, self.index, dataset=NAME, version=version)

        return Workplace(NAME, self.index, labels, self.registry, features, self.extraction)

    def cabinet(self) -> Cabinet:
        return Cabinet(self.folder / "features", most_bytes=1 << 30)

    def record(self, version: ModelVersion, **options: bool) -> JobRecord:
        return JobRecord(
            id=f"job{next(numbers)}",
            kind="relabel",
            dataset=NAME,
            version=self.index.version,
            model=version.digest,
            by="tester",
            begun="now",
            options=options,
        )

    def run(self, record: JobRecord, over: Callable[[], bool] = lambda: False) -> JobRecord:
        """The job, or what is left of it, with its record on disk."""
        jobs = self.folder / "jobs"
        jobs.mkdir(exist_ok=True)
        found = {one.id: one for one in JobFolder(jobs).load()}
        running = Running(found.get(record.id, record), JobFolder(jobs).save, over)
        cabinet = self.cabinet() if self.kept else None
        with closing(self.open_labels()) as labels:
            relabel(self.place(labels, cabinet), running)
        if cabinet is not None:
            cabinet.close()
        return running.record

    def rows(self, *, opinions: bool = False) -> LabelRows:
        with closing(self.open_labels()) as labels:
            return labels.get(NAME, self.index.ids, opinions=opinions)

    def names(self) -> dict[int, str]:
        """Sample > the name of its class."""
        with closing(self.open_labels()) as labels:
            rows, classes = labels.get(NAME, self.index.ids), labels.classes(NAME)
        return {int(id): classes.names[label] for id, label in zip(rows.samples, rows.labels, strict=True)}


def vectors(count: int, seed: int = 0) -> np.ndarray:
    return np.abs(np.random.default_rng(seed).normal(size=(count, FEATURES))).astype(np.float16)


def keep_all(site: Site, version: ModelVersion, seed: int = 0, *, later: float = 0.0) -> np.ndarray:
    """Features of every sample, as if they had been made, so many seconds from now."""
    rows = vectors(len(site.index), seed)
    cabinet = Cabinet(site.folder / "features", most_bytes=1 << 30, clock=lambda: time.time() + later)
    Features(cabinet, site.index, dataset=NAME, version=version).put(np.arange(len(rows)), rows)
    cabinet.close()
    return rows


def expected(model: Model, features: np.ndarray) -> Classified:
    return decide(make_head(model).run(features.astype(np.float32)))


def check(site: Site, model: Model, features: np.ndarray) -> None:
    """Every sample has the label that the model gives for its features."""
    right = expected(model, features)
    found = site.names()
    assert found == {int(id): CLASSES[label] for id, label in zip(site.index.ids, right.labels, strict=True)}


@pytest.fixture
def site(tmp_path: Path, label_kind: Kind) -> Site:
    """Samples that have no files at all: only their features are there."""
    index = Index.build([f"{number}.jpg" for number in range(3000)], np.full(3000, 9))
    return Site(tmp_path, index, labels=label_kind.make())


@pytest.fixture
def photos(tmp_path: Path, label_kind: Kind) -> Iterator[Site]:
    """Real files, three of them broken."""
    data = hw.open(write_photos(tmp_path / "photos", 150, broken=3))
    crew = Crew(2, 2)

    def extraction(version: ModelVersion) -> Extraction:
        chain = Chain(OWN.pipeline(version))
        engine = Engine(Registry(tmp_path / "models").get(version.digest))
        return Extraction(lambda: data.store.reader(chain, (Offload(0),)), chain, engine, crew)

    yield Site(tmp_path, data.index, extraction, labels=label_kind.make())
    crew.close()


def test_every_image_gets_its_label_and_broken_ones_are_named(photos: Site) -> None:
    version = photos.push(small_model())
    done = photos.run(photos.record(version))
    assert done.counts == {
        "labelled": 150,
        "unchanged": 0,
        "changed": 0,
        "skipped": 0,
        "failed": 3,
        "protected": 0,
    }
    assert sorted(one.key for one in done.failures) == [f"broken-{number}.jpg" for number in range(3)]
    assert all(one.reason for one in done.failures)
    assert done.cursor == len(photos.index)
    rows = photos.rows()
    assert len(rows) == 150
    assert set(rows.sources.tolist()) == {Source.MODEL}
    cabinet = photos.cabinet()
    places, features = Features(cabinet, photos.index, dataset=NAME, version=version).get(rows.samples)
    assert len(places) == 150
    right = expected(small_model(), features)
    np.testing.assert_array_equal(rows.labels, right.labels)
    np.testing.assert_array_equal(rows.scores, right.scores)
    np.testing.assert_array_equal(rows.margins, right.margins)


def test_without_a_cache_the_labels_are_the_same(photos: Site, label_kind: Kind) -> None:
    version = photos.push(small_model())
    photos.run(photos.record(version))
    first = photos.rows()
    bare = replace(photos, kept=False, labels=label_kind.make())
    bare.run(bare.record(version))
    np.testing.assert_array_equal(first.labels, bare.rows().labels)
    np.testing.assert_array_equal(first.margins, bare.rows().margins)


def test_a_second_time_there_is_nothing_to_do(photos: Site) -> None:
    version = photos.push(small_model())
    photos.run(photos.record(version))
    before = photos.rows()
    again = photos.run(photos.record(version))
    assert sum(again.counts.values()) == again.counts["failed"] == 3, "broken ones are tried again"
    np.testing.assert_array_equal(before.revisions, photos.rows().revisions)


def test_a_new_head_reads_no_image(site: Site) -> None:
    first, second = small_model(), nudged(small_model(), 3.0)
    features = keep_all(site, site.push(first))
    site.run(site.record(site.registry.current("small")))
    check(site, first, features)
    done = site.run(site.record(site.push(second)))
    check(site, second, features)
    differ = int((expected(first, features).labels != expected(second, features).labels).sum())
    assert done.counts["changed"] == differ > 500
    assert done.counts["changed"] + done.counts["unchanged"] + done.counts["skipped"] == 3000


def test_a_small_change_skips_most_and_changes_no_label(site: Site) -> None:
    first = small_model()
    features = keep_all(site, site.push(first))
    site.run(site.record(site.registry.current("small")))
    second = nudged(first, 0.01)
    version = site.push(second)
    done = site.run(site.record(version))
    check(site, second, features)
    assert done.counts["skipped"] > 1500
    rows, right = site.rows(), expected(second, features)
    order = np.argsort(site.index.ids)
    assert (rows.scores <= right.scores[order] * (1 + 1e-6)).all()
    assert (rows.margins <= right.margins[order] + 1e-5).all()
    with closing(site.open_labels()) as labels:
        number = labels.model(version.digest).number
        log = {one.number: one for one in labels.log(NAME)}
    assert set(rows.models.tolist()) == {number}, "all rows are of the new version"
    kept = [log[revision].key.endswith(" kept") for revision in rows.revisions.tolist()]
    assert sum(kept) == done.counts["skipped"], "a row says whether its score is a bound"
    measured = ~np.array(kept)
    np.testing.assert_array_equal(rows.margins[measured], right.margins[order][measured])


def test_many_small_changes_one_after_the_other(site: Site) -> None:
    """Bounds upon bounds stay right, and samples whose bound is used up are looked at again."""
    model = small_model()
    features = keep_all(site, site.push(model))
    skipped = []
    for number in range(5):
        done = site.run(site.record(site.registry.current("small")))
        check(site, model, features)
        skipped.append(done.counts["skipped"])
        model = nudged(model, 0.03, seed=number)
        site.push(model)
    assert skipped[0] == 0
    assert all(count > 300 for count in skipped[1:])


def test_another_trunk_is_no_reason_to_skip(site: Site) -> None:
    first = small_model()
    keep_all(site, site.push(first))
    site.run(site.record(site.registry.current("small")))
    second = replace(
        first, tensors={**first.tensors, "trunk/conv.bias": first.tensors["trunk/conv.bias"] + 1}
    )
    version = site.push(second)
    features = keep_all(site, version, seed=9)
    done = site.run(site.record(version))
    assert done.counts["skipped"] == 0
    check(site, second, features)


def test_features_that_came_after_the_label_are_no_reason_to_skip(site: Site) -> None:
    """A file was replaced, and somebody asked for its features since: label and margin are the old file's."""
    first = small_model()
    keep_all(site, site.push(first))
    site.run(site.record(site.registry.current("small")))
    shutil.rmtree(site.folder / "features")
    features = keep_all(site, site.registry.current("small"), seed=9, later=60.0)
    second = nudged(first, 0.01)
    done = site.run(site.record(site.push(second)))
    check(site, second, features)
    assert done.counts["skipped"] == 0


def test_an_old_head_that_is_gone_is_no_reason_to_skip(site: Site) -> None:
    first = small_model()
    old = site.push(first)
    features = keep_all(site, old)
    site.run(site.record(old))
    for number in range(12):
        site.push(nudged(first, 0.001, seed=number))
    shutil.rmtree(site.folder / "models")
    second = nudged(first, 0.001)
    done = site.run(site.record(site.push(second)))
    assert done.counts["skipped"] == 0
    check(site, second, features)


def untouched(site: Site, version: ModelVersion, before: LabelRows) -> None:
    """A relabel by this version finds nothing to do."""
    done = site.run(site.record(version))
    assert sum(done.counts.values()) == 0
    np.testing.assert_array_equal(site.rows().revisions, before.revisions)


@pytest.mark.parametrize("related", [True, False], ids=["parent and child", "both of one trunk"])
def test_after_a_rollback_there_is_nothing_to_relabel(site: Site, related: bool) -> None:
    """Also where the older version never labelled before."""
    first, second = small_model(), nudged(small_model(), 3.0)
    old = site.registry.put(first, name="small", switch=True, now=datetime(2026, 1, 1, tzinfo=UTC))
    new = site.registry.put(second, name="small", parent=old.digest if related else None, switch=True)
    features = keep_all(site, new)
    site.run(site.record(new))
    check(site, second, features)
    before = site.rows()
    assert site.registry.rollback("small") == old
    untouched(site, old, before)
    site.registry.switch("small", new.digest)
    untouched(site, new, before)
    with closing(site.open_labels()) as labels:
        assert [one.digest for one in labels.models()] == [old.digest, new.digest]


@pytest.mark.parametrize("held", [True, False], ids=["old version held", "new version sent whole"])
def test_a_store_that_was_away_with_an_older_version_replaces_nothing(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: bool
) -> None:
    """It labels what nobody has labelled, and that is older than the new version."""
    monkeypatch.setattr(module, "BLOCK", 1000)
    first, second = small_model(), nudged(small_model(), 3.0)
    away = replace(site, folder=tmp_path / "away")
    away.folder.mkdir()
    old = away.push(first)
    keep_all(away, old)
    site.registry.put(first, name="small", now=datetime.fromisoformat(old.time))
    new = site.registry.put(second, name="small", parent=old.digest, switch=True)
    if not held:
        assert site.registry.drop([old.digest])
    features = keep_all(site, new)
    asked = itertools.count()
    site.run(site.record(new), lambda: next(asked) >= 1)
    before = site.rows()
    assert len(before) == 1000, "it was stopped after the first block"
    done = away.run(away.record(old))
    assert done.counts["labelled"] == 2000
    found = site.rows()
    mine = np.isin(found.samples, before.samples)
    np.testing.assert_array_equal(found.revisions[mine], before.revisions)
    done = site.run(site.record(new))
    assert done.counts["unchanged"] + done.counts["changed"] + done.counts["skipped"] == 2000
    check(site, second, features)


def test_classes_that_were_merged_are_not_guessed(site: Site) -> None:
    first = small_model()
    features = keep_all(site, site.push(first))
    site.run(site.record(site.registry.current("small")))
    with closing(site.open_labels()) as labels:
        labels.merge(NAME, CLASSES[0], CLASSES[1])
        labels.rename(NAME, CLASSES[2], "renamed")
    second = nudged(first, 0.01)
    done = site.run(site.record(site.push(second)))
    assert done.counts["skipped"] > 100
    with closing(site.open_labels()) as labels:
        rows = labels.get(NAME, site.index.ids)
        names = labels.classes(NAME).names
    right = expected(second, features).labels[np.argsort(site.index.ids)]
    read_as = np.array([1, 1, *range(2, len(CLASSES))])
    np.testing.assert_array_equal(rows.labels, read_as[right])
    assert names[2] == "renamed"


def test_a_human_is_never_overwritten(site: Site) -> None:
    first = small_model()
    features = keep_all(site, site.push(first))
    site.run(site.record(site.registry.current("small")))
    mine = np.sort(site.index.ids)[::7]
    with closing(site.open_labels()) as labels:
        labels.write(NAME, LabelRows.of(mine, np.full(len(mine), 6), source=Source.HUMAN))
    second = nudged(first, 1.0)
    version = site.push(second)
    done = site.run(site.record(version))
    rows = site.rows()
    human = np.isin(rows.samples, mine)
    assert (rows.labels[human] == 6).all()
    assert set(rows.sources[human].tolist()) == {Source.HUMAN}
    right = expected(second, features).labels[np.argsort(site.index.ids)]
    np.testing.assert_array_equal(rows.labels[~human], right[~human])
    assert done.counts["protected"] == 0
    asked = site.run(site.record(version, opinions=True))
    assert asked.counts["protected"] == len(mine)
    np.testing.assert_array_equal(site.rows().labels, rows.labels)
    thought = site.rows(opinions=True)
    np.testing.assert_array_equal(thought.samples, mine)
    assert (thought.labels == right[human]).all()
    third = nudged(second, 0.005)
    again = site.run(site.record(site.push(third), opinions=True))
    assert again.counts["skipped"] > 1500, "opinions can be skipped too"
    thought = site.rows(opinions=True)
    assert (thought.labels == expected(third, features).labels[np.argsort(site.index.ids)][human]).all()


@pytest.mark.parametrize("over", [False, True])
def test_imports_are_replaced_only_if_asked(site: Site, over: bool) -> None:
    model = small_model()
    version = site.push(model)
    features = keep_all(site, version)
    brought = np.full(len(site.index), 3)
    with closing(site.open_labels()) as labels:
        labels.enrol(NAME, site.index.ids, brought, class_names=[f"x{n}" for n in range(4)])
    done = site.run(site.record(version, over_imports=over))
    found = site.names()
    if over:
        check(site, model, features)
        assert done.counts["labelled"] == 3000
    else:
        assert set(found.values()) == {"x3"}
        assert sum(done.counts.values()) == 0


def test_a_human_in_the_middle_of_the_job_wins(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCK", 500)
    version = site.push(small_model())
    keep_all(site, version)
    mine = site.index.ids[2900:2901]

    def interfere() -> bool:
        with closing(site.open_labels()) as labels:
            if NAME in labels.datasets() and not len(labels.get(NAME, mine)):
                labels.write(NAME, LabelRows.of(mine, [6], source=Source.HUMAN))
        return False

    site.run(site.record(version), interfere)
    rows = site.rows()
    assert rows.labels[rows.samples == mine].tolist() == [6]
    assert len(rows) == 3000


def test_stopped_and_begun_again_it_goes_on(photos: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STRETCH", 32)
    version = photos.push(small_model())
    record = photos.record(version)
    asked = itertools.count()
    part = photos.run(record, lambda: next(asked) >= 2)
    assert 0 < part.cursor < len(photos.index)
    assert len(photos.rows()) == part.counts["labelled"]
    whole = photos.run(record)
    assert whole.counts["labelled"] == 150 == len(photos.rows())
    assert whole.counts["failed"] == 3
    revisions = set(photos.rows().revisions.tolist())
    assert len(revisions) == 1, "one job, one revision"


def tally(site: Site) -> dict[int, int]:
    """Rows of the history of labels by sample: each was written once."""
    query = sa.select(history.c.sample, sa.func.count()).group_by(history.c.sample)
    with closing(site.open_labels()) as labels, labels._engine.connect() as connection:
        return dict(map(tuple, connection.execute(query)))


KILLS = pytest.mark.parametrize("kills", [5, pytest.param(400, marks=pytest.mark.soak)], ids=["some", "all"])


@KILLS
def test_killed_anywhere_nothing_is_lost_or_doubled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kills: int
) -> None:
    """SIGKILL before, within and after the file operations of a job that skips, multiplies and writes."""
    monkeypatch.setattr(module, "BLOCK", 40)
    index = Index.build([f"{number}.jpg" for number in range(100)], np.full(100, 9))
    origin = Site(tmp_path / "origin", index)
    origin.folder.mkdir()
    first = small_model()
    features = keep_all(origin, origin.push(first))
    origin.run(origin.record(origin.registry.current("small")))
    second = nudged(first, 0.1)
    version = origin.push(second)
    record = origin.record(version)
    control = Site(Path(shutil.copytree(origin.folder, tmp_path / "control")), index)
    whole = control.run(record)
    assert min(whole.counts["skipped"], whole.counts["unchanged"]) > 10
    trial = Site(tmp_path / "trial", index)

    def begin() -> None:
        trial.run(record)

    shutil.copytree(origin.folder, trial.folder)
    points = find_points(begin)
    shutil.rmtree(trial.folder)
    for point in range(1, len(points) + 1, max(1, len(points) // kills)):
        shutil.copytree(origin.folder, trial.folder)
        kill_at(point, begin)
        done = trial.run(record)
        assert done.counts == whole.counts, point
        assert done.cursor == 100
        assert done.pending is None
        check(trial, second, features)
        assert set(tally(trial).values()) == {2}, "written once by each of the two jobs"
        shutil.rmtree(trial.folder)


def test_killed_between_two_writes_of_a_stretch(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process ends when the database has a write and the record does not say so yet."""
    first = small_model()
    features = keep_all(site, site.push(first))
    site.run(site.record(site.registry.current("small")))
    second = nudged(first, 0.05)
    record = site.record(site.push(second))
    original = LabelDatabase.write

    def write(self: LabelDatabase, *words: Any, **named: Any) -> Any:
        original(self, *words, **named)
        os._exit(9)

    monkeypatch.setattr(LabelDatabase, "write", write)
    for _ in range(2):  # after the rows that are kept, and after those that were made
        child = os.fork()
        if not child:
            site.run(record)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    monkeypatch.undo()
    done = site.run(record)
    check(site, second, features)
    assert sum(done.counts[name] for name in ("unchanged", "changed", "skipped")) == 3000
    assert set(tally(site).values()) == {2}


def test_data_that_changed_needs_another_job(site: Site) -> None:
    version = site.push(small_model())
    record = msgspec.structs.replace(site.record(version), version="0" * 32)
    with pytest.raises(DatasetStale, match="start another"):
        site.run(record)


def test_a_version_that_is_not_here_cannot_label(site: Site) -> None:
    record = msgspec.structs.replace(site.record(site.push(small_model())), model="0" * 32)
    with pytest.raises(ModelNotFound):
        site.run(record)
    with closing(site.open_labels()) as labels:
        assert labels.datasets() == []
        assert labels.models() == []
