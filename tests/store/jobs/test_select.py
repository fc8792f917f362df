"""Selection by a job: what the same selector chooses of the same columns, through stops, kills and damage."""

from __future__ import annotations

import itertools
import math
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import headwater as hw
from headwater.data.index import Index
from headwater.engine.budget import Gone
from headwater.engine.chain import Chain
from headwater.engine.crew import Crew
from headwater.engine.inference import Extraction
from headwater.errors import DatasetStale, ModelNotFound, WrongUse
from headwater.models.model import Model
from headwater.models.registry import Registry
from headwater.models.runtime import Engine
from headwater.models.version import PROXY, ModelVersion
from headwater.plan.offload import Offload
from headwater.select.samples import Samples
from headwater.select.selecting import complete_selection, find_selector, make_selection
from headwater.select.selection import Selection
from headwater.select.specs import make_selector
from headwater.select.weights import CLIP
from headwater.store.cabinet import Cabinet
from headwater.store.features import OWN, Features, Variation
from headwater.store.jobs import select as module
from headwater.store.jobs.record import JobFolder, JobRecord
from headwater.store.jobs.runner import Running
from headwater.store.jobs.select import Sieve, select
from headwater.store.jobs.selections import Kept, Selections
from headwater.store.loads import Loads
from headwater.store.wire.jobmessages import SelectionWish
from killing import choose as choose_points
from killing import find_points, kill_at
from relabelling import CLASSES, FEATURES, nudged
from sieves import NAMES, columns, proxy, samples, write_labelled

NAME = "photos"
COUNT = 600
WISH = SelectionWish("infobatch", {"ratio": 0.6}, seed=5, epoch=3)
numbers = itertools.count()


def no_images(version: ModelVersion, variation: Variation) -> Extraction:
    raise AssertionError("an image was to be read")


@dataclass
class Site:
    """A dataset, models and selections in one folder, and jobs over them."""

    folder: Path
    index: Index
    extraction: Callable[[ModelVersion, Variation], Extraction] = no_images
    in_use: frozenset[str] = frozenset()

    @property
    def registry(self) -> Registry:
        return Registry(self.folder / "models")

    @property
    def selections(self) -> Selections:
        return Selections(self.folder / "selections")

    def push(self, model: Model, *, switch: bool = True, **made: Any) -> ModelVersion:
        return self.registry.put(model, name="small", switch=switch, made={"by": "push", **made})

    def record(self, version: ModelVersion, wish: SelectionWish | None = WISH) -> JobRecord:
        return JobRecord(
            id=f"{next(numbers):016x}",
            kind="select",
            dataset=NAME,
            version=self.index.version,
            model=version.digest,
            by="tester",
            begun="now",
            selection=wish,
        )

    def run(self, record: JobRecord, over: Callable[[], bool] = lambda: False, **sieve: Any) -> JobRecord:
        """The job, or what is left of it, with its record on disk."""
        jobs = self.folder / "jobs"
        jobs.mkdir(exist_ok=True)
        found = {one.id: one for one in JobFolder(jobs).load()}
        running = Running(found.get(record.id, record), JobFolder(jobs).save, over)
        cabinet = Cabinet(self.folder / "features", most_bytes=1 << 30)
        try:
            select(replace(self.sieve(cabinet), **sieve), running)
        finally:
            cabinet.close()
        return running.record

    def sieve(self, cabinet: Cabinet) -> Sieve:
        return Sieve(
            dataset=NAME,
            index=self.index,
            registry=self.registry,
            selections=self.selections,
            features=lambda version: Features(cabinet, self.index, dataset=NAME, version=version),
            extraction=self.extraction,
            in_use=lambda: set(self.in_use),
        )

    def keep_all(self, version: ModelVersion, seed: int = 0) -> np.ndarray:
        """Features of every sample, as if they had been made."""
        rng = np.random.default_rng(seed)
        rows = np.abs(rng.normal(size=(len(self.index), FEATURES))).astype(np.float16)
        cabinet = Cabinet(self.folder / "features", most_bytes=1 << 30, clock=time.time)
        Features(cabinet, self.index, dataset=NAME, version=version).put(np.arange(len(rows)), rows)
        cabinet.close()
        return rows


def make_index(labels: np.ndarray, classes: tuple[str, ...] = NAMES) -> Index:
    count = len(labels)
    keys = [f"{number}.jpg" for number in range(count)]
    return Index.build(keys, np.arange(1, count + 1), labels=labels, classes=classes)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """Samples that have no files at all: only their features are there."""
    return Site(tmp_path, make_index(np.random.default_rng(1).integers(0, len(NAMES), COUNT)))


def expected(site: Site, model: Model, features: np.ndarray, wish: SelectionWish, **more: Any) -> Kept:
    """What the selector chooses here, of columns that were made here."""
    labels = site.index.labels
    selector = make_selector(wish.selector, wish.parameters)
    known = columns(model, features, labels, vectors=wish.vectors if "vectors" in selector.needs else "")
    known |= {"bytes": site.index.sizes.astype(np.float32), **more}
    facts = {"seed": wish.seed, "epoch": wish.epoch, "epochs": wish.epochs, "stalled": wish.stalled}
    found = make_selection(selector, samples(site.index.ids, labels, known, **facts), clip=math.inf)
    return Kept(site.index.ids[found.places], found.weights, NAME, site.index.version)


def same(found: Kept, wanted: Kept) -> None:
    np.testing.assert_array_equal(found.ids, wanted.ids)
    np.testing.assert_array_equal(found.weights, wanted.weights)
    assert (found.dataset, found.version) == (wanted.dataset, wanted.version)


@pytest.mark.parametrize("redundancy", ["keep", "drop"])
def test_completed_it_is_the_selection_made_elsewhere_with_near_duplicates(
    site: Site, redundancy: str
) -> None:
    """Weights of medoids reach the clip, and the members of a group count for it together."""
    wish = SelectionWish("medoids", {"share": 0.15}, seed=2, epoch=4)
    version = site.push(proxy())
    features = site.keep_all(version)
    record = site.record(version, wish)
    site.run(record)
    kept, index = site.selections.get(record.id), site.index
    known = columns(proxy(), features, index.labels, vectors="logits")
    known |= {"bytes": index.sizes.astype(np.float32), "group": (np.arange(COUNT) // 4).astype(np.int32)}
    seen = samples(index.ids, index.labels, known, seed=2, epoch=4)
    wanted = make_selection(make_selector("medoids", wish.parameters), seen, redundancy=redundancy)
    places = index.position_of(kept.ids)
    found = complete_selection(
        seen, Selection("medoids", 4, places, kept.weights, "said"), redundancy=redundancy
    )
    np.testing.assert_array_equal(found.places, wanted.places)
    np.testing.assert_allclose(found.weights, wanted.weights, rtol=1e-5)
    assert kept.weights.max() > CLIP == pytest.approx(found.weights.max())
    assert (len(found) < len(places)) == (redundancy == "drop")
    assert ("near-duplicates left out" in found.reason) == (redundancy == "drop")


WISHES = [
    WISH,
    SelectionWish("uniform", {"share": 0.3}, seed=2),
    SelectionWish("biggest_losers", seed=2, epoch=1),
    SelectionWish("loss_rank", seed=2, epoch=1, epochs=9),
    SelectionWish("buckets", seed=2, epoch=4, epochs=20, stalled=0.5),
    SelectionWish("medoids", {"share": 0.3}, seed=2, epoch=4),
    SelectionWish("craig", {"share": 0.2}, seed=2, epoch=4, vectors="weights"),
    SelectionWish("k_center", {"share": 0.2}, seed=2, epoch=4),
]


@pytest.mark.parametrize("wish", WISHES, ids=lambda wish: wish.selector)
def test_a_store_selects_what_the_selector_selects_elsewhere(site: Site, wish: SelectionWish) -> None:
    version = site.push(proxy())
    features = site.keep_all(version)
    record = site.record(version, wish)
    done = site.run(record)
    wanted = expected(site, proxy(), features, wish)
    found = site.selections.get(record.id)
    same(found, wanted)
    assert done.result == wanted.digest == found.digest
    assert done.counts == {"scored": COUNT, "unlabelled": 0, "failed": 0, "chosen": len(wanted.ids)}
    assert 0 < len(wanted.ids) < COUNT or wish.selector == "buckets"
    assert set(done.figures) == {"scoring_seconds", "choosing_seconds", "effective"}
    assert done.said


@pytest.mark.parametrize("name", ["medoids", "craig", "k_center", "loss_rank"])
def test_where_all_was_scored_nothing_is_explored_unless_that_is_wished_for(site: Site, name: str) -> None:
    site.keep_all(version := site.push(proxy()))
    plain, asked = (
        site.run(site.record(version, SelectionWish(name, {"share": 0.2, **more}, seed=2, epoch=4)))
        for more in ({}, {"explore": 0.5})
    )
    assert "to explore" not in plain.said
    assert "to explore" in asked.said
    assert asked.counts["chosen"] > 1.5 * plain.counts["chosen"]


class Looks:
    """A selector that keeps what it was shown, and takes everything."""

    name, explore = "looks", 0.0

    def __init__(self, *needs: str) -> None:
        self.needs = needs
        self.seen: list[Samples] = []

    def choose(self, samples: Samples) -> Any:
        self.seen.append(samples)
        return find_selector("uniform").choose(samples)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    found = Looks("vectors")
    monkeypatch.setattr(module, "make_selector", lambda name, parameters: found)
    return found


@pytest.mark.parametrize("vectors", ["logits", "weights"])
def test_vectors_are_there_for_who_needs_them(site: Site, looks: Looks, vectors: str) -> None:
    version = site.push(proxy())
    features = site.keep_all(version)
    site.run(site.record(version, SelectionWish("looks", vectors=vectors)))
    (shown,) = looks.seen
    wanted = columns(proxy(), features, site.index.labels, vectors=vectors)["vectors"]
    assert shown.vectors is not None
    np.testing.assert_array_equal(shown.vectors, wanted)
    assert shown.vectors.dtype == np.float16


def test_no_vectors_are_made_for_nobody(site: Site, looks: Looks) -> None:
    looks.needs = ()
    version = site.push(proxy())
    site.keep_all(version)
    site.run(site.record(version))
    assert looks.seen[0].vectors is None


def test_blocks_and_parts_of_any_size_give_the_same(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    version = site.push(proxy())
    site.keep_all(version)
    whole = site.run(site.record(version))
    monkeypatch.setattr(module, "BLOCK", 97)
    monkeypatch.setattr(module, "_LOGITS_AT_ONCE", 50)
    assert site.run(site.record(version)).result == whole.result


def test_what_has_no_label_is_never_dropped(tmp_path: Path) -> None:
    labels = np.random.default_rng(1).integers(-1, len(NAMES), COUNT)
    site = Site(tmp_path, make_index(labels))
    version = site.push(proxy())
    features = site.keep_all(version)
    record = site.record(version, SelectionWish("uniform", {"share": 0.1}))
    done = site.run(record)
    found = site.selections.get(record.id)
    without = site.index.ids[labels < 0]
    assert done.counts["unlabelled"] == len(without) > 50
    assert np.isin(without, found.ids).all()
    own = np.isin(found.ids, without)
    assert found.weights[own].sum() / found.weights.sum() == pytest.approx(len(without) / COUNT)
    assert found.weights.mean() == pytest.approx(1)
    assert (np.diff(site.index.position_of(found.ids)) > 0).all(), "in the order of the data"
    part = Site(tmp_path / "part", make_index(labels))
    known = labels >= 0
    chosen = samples(
        part.index.ids[known], labels[known], columns(proxy(), features[known], labels[known]), seed=0
    )
    wanted = make_selection(make_selector("uniform", {"share": 0.1}), chosen)
    rest = found.ids[~np.isin(found.ids, without)]
    np.testing.assert_array_equal(rest, part.index.ids[known][wanted.places])


@pytest.mark.parametrize(
    "wish",
    [
        SelectionWish("medoids", {"share": 0.1}, seed=2, epoch=4),
        SelectionWish("craig", {"share": 0.2}, seed=2, epoch=4),
        SelectionWish("infobatch", {"ratio": 0.6}, seed=2, epoch=4),
    ],
    ids=lambda wish: wish.selector,
)
def test_what_could_not_be_scored_weighs_no_more_than_where_all_is_selected_from(
    tmp_path: Path, wish: SelectionWish
) -> None:
    labels = np.random.default_rng(1).integers(0, len(NAMES), COUNT)
    labels[::10] = -1
    site = Site(tmp_path, make_index(labels))
    features = site.keep_all(version := site.push(proxy()))
    site.run(record := site.record(version, wish))
    found = site.selections.get(record.id)
    selector = make_selector(wish.selector, wish.parameters)
    known = columns(proxy(), features, labels, vectors="logits")
    for column in known.values():
        column[labels < 0] = np.nan
    seen = samples(site.index.ids, labels, known, seed=2, epoch=4)
    wanted = make_selection(selector, seen, clip=math.inf)
    np.testing.assert_array_equal(found.ids, site.index.ids[wanted.places])
    np.testing.assert_allclose(found.weights, wanted.weights, rtol=1e-6)
    own = np.isin(found.ids, site.index.ids[labels < 0])
    assert found.weights[own].sum() / found.weights.sum() < 0.2


def test_a_class_that_the_proxy_does_not_know_is_no_label(tmp_path: Path) -> None:
    labels = np.arange(COUNT) % 3
    site = Site(tmp_path, make_index(labels, (CLASSES[4], "unheard of", CLASSES[2])))
    version = site.push(proxy())
    features = site.keep_all(version)
    done = site.run(record := site.record(version))
    assert done.counts["unlabelled"] == COUNT / 3
    table = np.array([4, -1, 2])
    known = labels != 1
    wanted = columns(proxy(), features[known], table[labels[known]])
    mean = wanted["loss"].mean()
    kept = np.isin(site.index.ids[known], site.selections.get(record.id).ids)
    assert kept[wanted["loss"] > mean].all(), "those above the mean loss are never left out"
    assert 0 < kept[wanted["loss"] < mean].mean() < 1


def test_labels_that_are_numbers_are_places_among_the_proxys_classes(tmp_path: Path) -> None:
    labels = np.arange(COUNT) % (len(CLASSES) + 1)  # the last one is beyond them
    site = Site(tmp_path, make_index(labels, ()))
    site.keep_all(version := site.push(proxy()))
    assert site.run(site.record(version)).counts["unlabelled"] == (labels == len(CLASSES)).sum()


def test_classes_with_nothing_in_common_are_told(tmp_path: Path) -> None:
    site = Site(tmp_path, make_index(np.zeros(9, np.int64), ("cat", "dog")))
    version = site.push(proxy())
    with pytest.raises(WrongUse, match="such as 'cat', the proxy such as 'class 0', and none in common"):
        site.run(site.record(version))


def test_nothing_to_score_selects_everything(tmp_path: Path) -> None:
    site = Site(tmp_path, make_index(np.full(9, -1)))
    version = site.push(proxy())
    done = site.run(record := site.record(version))
    assert done.said == "everything: no sample could be scored"
    assert len(site.selections.get(record.id).ids) == 9


def test_a_proxy_that_gives_no_numbers_drops_nothing(site: Site) -> None:
    model = proxy()
    weight = model.tensors["head/weight"].copy()
    weight[0] = np.inf
    version = site.push(replace(model, tensors={**model.tensors, "head/weight": weight}))
    site.keep_all(version)
    done = site.run(record := site.record(version))
    assert (done.counts["scored"], done.counts["failed"], done.counts["chosen"]) == (0, COUNT, COUNT)
    assert done.failures[0].reason == "the proxy gives no finite loss for it"
    assert len(done.failures) == 100
    assert len(site.selections.get(record.id).ids) == COUNT


@pytest.fixture
def photos(tmp_path: Path) -> Iterator[Site]:
    """Real files, three of them broken."""
    data = hw.open(write_labelled(tmp_path / "photos", 40, broken=3))
    crew = Crew(2, 2)

    def extraction(version: ModelVersion, variation: Variation) -> Extraction:
        chain = Chain(OWN.pipeline(version))
        engine = Engine(Registry(tmp_path / "models").get(version.digest))
        return Extraction(lambda: data.store.reader(chain, (Offload(0),)), chain, engine, crew)

    yield Site(tmp_path, data.index, extraction)
    crew.close()


def test_broken_files_are_counted_named_and_left_in(photos: Site) -> None:
    version = photos.push(proxy())
    done = photos.run(record := photos.record(version))
    assert (done.counts["scored"], done.counts["failed"]) == (120, 3)
    assert sorted(one.key.rpartition("/")[2] for one in done.failures) == [
        f"broken-{n}.jpg" for n in range(3)
    ]
    assert all(one.reason for one in done.failures)
    found = photos.selections.get(record.id)
    assert {one.id for one in done.failures} <= set(found.ids.tolist())
    assert done.said.endswith("and 3 that could not be scored")
    assert len(found.ids) < len(photos.index)


def kept_features(site: Site, version: ModelVersion) -> int:
    cabinet = Cabinet(site.folder / "features", most_bytes=1 << 30)
    found = len(Features(cabinet, site.index, dataset=NAME, version=version))
    cabinet.close()
    return found


def test_features_are_kept_of_a_trunk_that_lasts_and_of_no_other(photos: Site) -> None:
    first = photos.push(proxy(), switch=False)
    photos.run(photos.record(first))
    assert kept_features(photos, first) == 0, "who knows whether this trunk comes again"
    second = photos.push(nudged(proxy(), 0.1), switch=False)
    photos.run(photos.record(second))
    assert kept_features(photos, second) == 120
    third = photos.push(nudged(proxy(), 0.2), switch=False)
    read = replace(photos, extraction=no_images)
    with pytest.raises(AssertionError, match="an image"):  # the broken ones are tried again
        read.run(read.record(third))
    other = photos.push(proxy(seed=4))
    photos.run(photos.record(other))
    assert kept_features(photos, other) == 120, "it is in force"


def test_images_and_kept_features_select_the_same(photos: Site) -> None:
    version = photos.push(proxy())
    first = photos.run(photos.record(version))
    assert kept_features(photos, version) == 120
    assert photos.run(photos.record(version)).result == first.result


def history(wish: SelectionWish, epoch: int, run: str = "mine") -> SelectionWish:
    return msgspec.structs.replace(wish, epoch=epoch, run=run)


def test_rounds_of_a_run_know_of_each_other(site: Site, looks: Looks) -> None:
    looks.needs = ()
    models = [proxy(), nudged(proxy(), 1.0), nudged(proxy(), 2.0)]
    losses, chances = [], []
    for epoch, model in enumerate(models):
        features = site.keep_all(version := site.push(model))
        site.run(site.record(version, history(WISH, epoch)))
        known = columns(model, features, site.index.labels)
        losses.append(known["loss"])
        chances.append(known["probability"])
    shown = looks.seen[-1]
    np.testing.assert_array_equal(shown.loss, losses[-1])
    np.testing.assert_allclose(shown.peak, np.max(losses, axis=0), rtol=1e-3)
    smoothed = 0.7 * (0.7 * losses[0] + 0.3 * losses[1]) + 0.3 * losses[2]
    np.testing.assert_allclose(shown.smoothed, smoothed, rtol=1e-4)
    np.testing.assert_allclose(shown.deviation, np.std(chances, axis=0, ddof=1), rtol=1e-3, atol=1e-6)
    assert set(shown.seen.tolist()) == {3}
    assert set(shown.last.tolist()) == {2}
    assert set(looks.seen[0].seen.tolist()) == {1}
    table = site.selections.run("tester", NAME, "mine").before(3, site.index)
    assert set(table.model.tolist()) == set(table.logits_model.tolist()) == {2}
    assert table.notes["models"][2] == version.digest, "it says which proxy has shown it"
    assert set(shown.judged.tolist()) == {2}
    site.run(site.record(version, history(WISH, 1, run="another")))
    assert set(looks.seen[-1].seen.tolist()) == {1}, "runs know nothing of each other"


def test_a_round_that_is_done_again_finds_what_it_found_before(site: Site, looks: Looks) -> None:
    """A run that goes back further, to an older checkpoint, begins to learn anew."""
    looks.needs = ()
    site.keep_all(version := site.push(proxy()))
    for epoch in (0, 1, 2, 2, 1):
        site.run(site.record(version, history(WISH, epoch)))
    assert [set(shown.seen.tolist()) for shown in looks.seen] == [{1}, {2}, {3}, {3}, {1}]
    site.run(site.record(version, history(WISH, 9)))
    assert set(looks.seen[-1].seen.tolist()) == {2}, "the later one went when the run went back"


def test_state_and_buckets_come_back_to_the_selector(site: Site) -> None:
    site.keep_all(version := site.push(proxy()))
    wish = SelectionWish("buckets", {"rate": 0.5, "explore": 0.0}, epochs=40)
    sizes = []
    for epoch in range(2, 6):
        site.run(record := site.record(version, history(wish, epoch)))
        sizes.append(len(site.selections.get(record.id).ids))
    assert sizes[0] > sizes[1] > sizes[2], "each round sends more of them out"


def test_a_run_that_ends_leaves_nothing(site: Site) -> None:
    site.keep_all(version := site.push(proxy(), run="mine"))
    site.run(site.record(version, history(WISH, 0)))
    (runs,) = (site.folder / "selections" / "runs").iterdir()
    assert len(list(runs.iterdir())) == 1
    last = msgspec.structs.replace(history(WISH, 1), ends=True)
    site.run(record := site.record(version, last))
    assert not list((site.folder / "selections" / "runs").iterdir())
    assert len(site.selections.get(record.id).ids)


def test_only_the_last_runs_are_remembered(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwater.store.jobs.selections.MOST_RUNS", 3)
    site.keep_all(version := site.push(proxy()))
    for number in range(5):
        site.run(site.record(version, history(WISH, 0, run=f"run {number}")))
    assert len(list((site.folder / "selections" / "runs").iterdir())) == 3


def test_a_selector_that_learns_from_rounds_takes_everything_in_the_first(site: Site) -> None:
    site.keep_all(version := site.push(proxy()))
    wish = SelectionWish("active_bias", epoch=4, run="mine")
    done = site.run(site.record(version, wish))
    assert done.said == "everything: nothing is known of 'deviation' yet"
    site.keep_all(second := site.push(nudged(proxy(), 1.0)))
    again = site.run(site.record(second, history(wish, 5)))
    assert again.counts["chosen"] < COUNT


def test_proxies_that_are_no_longer_needed_go(site: Site) -> None:
    base = site.push(proxy())
    site.keep_all(base)
    made = {"by": PROXY, "run": "mine"}
    versions = []
    for number in range(4):
        version = site.push(nudged(proxy(), 0.1, seed=number), switch=False, **made)
        versions.append(version.digest)
        time.sleep(0.002)  # versions are told apart by the time that they were made
    others = site.push(nudged(proxy(), 9.0), switch=False, by=PROXY, run="another")
    used = replace(site, in_use=frozenset({versions[0]}))
    used.run(used.record(site.registry.version(versions[2]), history(WISH, 0)))
    left = {one.digest for one in site.registry.versions()}
    assert left == {base.digest, versions[0], versions[2], versions[3], others.digest}
    last = msgspec.structs.replace(history(WISH, 1), ends=True)
    site.run(site.record(site.registry.version(versions[3]), last))
    assert {one.digest for one in site.registry.versions()} == {base.digest, others.digest}


def test_proxies_of_runs_that_were_not_heard_of_for_long_go(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_RUNS", 2)
    site.keep_all(site.push(proxy()))
    for number in range(4):
        run = f"run {number}"
        version = site.push(nudged(proxy(), 0.1, seed=number), switch=False, by=PROXY, run=run)
        site.run(site.record(version, history(WISH, 0, run=run)))
        time.sleep(0.002)
    left = [one.made["run"] for one in site.registry.versions() if one.made["by"] == PROXY]
    assert left == ["run 2", "run 3"]


def test_stopped_it_leaves_nothing_and_begun_again_it_begins_anew(
    photos: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BLOCK", 30)
    version = photos.push(proxy(), switch=False)
    asked = itertools.count()
    part = photos.run(record := photos.record(version), lambda: next(asked) >= 3)
    assert (part.result, part.cursor) == ("", 30)
    with pytest.raises(WrongUse, match=f"no selection of job '{record.id}' is kept here"):
        photos.selections.get(record.id)
    whole = photos.run(record)
    assert (whole.counts["scored"], whole.cursor) == (120, len(photos.index))


def test_somebody_who_is_gone_before_his_turn_is_no_failure(site: Site) -> None:
    site.keep_all(version := site.push(proxy()))

    def turn(seconds: float) -> Any:
        raise Gone("nobody waits")

    asked = itertools.count()
    assert site.run(site.record(version), lambda: next(asked) >= 1, turn=turn).result == ""
    with pytest.raises(Gone):
        site.run(site.record(version), turn=turn)


def test_what_was_sent_lately_is_what_a_sample_takes(site: Site, looks: Looks) -> None:
    """Bytes of the file where nothing was; its seconds are not known then."""
    looks.needs = ()
    site.keep_all(version := site.push(proxy()))
    loads = Loads()
    assert loads.of(site.index) is None
    some = np.array([4, 2, 9])
    loads.note(
        site.index, some, bytes=np.array([70, 0, 5], np.float32), seconds=np.array([0.5, 0, 0.25], np.float32)
    )
    site.run(site.record(version), loads=lambda: loads.of(site.index))
    (shown,) = looks.seen
    wanted = site.index.sizes.astype(np.float32)
    wanted[[4, 9]] = [70, 5]
    np.testing.assert_array_equal(shown.bytes, wanted)
    assert shown.seconds[[4, 9]].tolist() == [0.5, 0.25]
    assert np.isnan(np.delete(shown.seconds, [4, 9])).all(), "one that failed was not sent"
    site.run(site.record(version))
    np.testing.assert_array_equal(looks.seen[-1].bytes, site.index.sizes)


class Spends:
    """Counts stretches of work for which CPU was set aside, and what was asked for."""

    def __init__(self) -> None:
        self.asked: list[float] = []

    @contextmanager
    def __call__(self, seconds: float) -> Iterator[None]:
        self.asked.append(seconds)
        yield


VECTORS = SelectionWish("craig", {"share": 0.2}, seed=2, epoch=4, run="mine")


def test_choosing_stands_in_no_line_and_goes_class_by_class(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.keep_all(version := site.push(proxy()))
    whole = site.run(site.record(version, VECTORS))
    monkeypatch.setattr("headwater.select.parts.STRETCH", 1)
    turns, spends = Spends(), Spends()
    done = site.run(site.record(version, VECTORS), turn=turns, spend=spends)
    assert done.result == whole.result
    assert len(turns.asked) == 1, "the one block was scored in line"
    assert len(spends.asked) == len(NAMES)
    assert spends.asked[0] == 0, "nothing is known yet"
    assert all(seconds > 0 for seconds in spends.asked[1:])
    later = msgspec.structs.replace(VECTORS, epoch=5)
    site.run(site.record(version, later), spend=(again := Spends()))
    assert again.asked[0] > 0, "as much as in the round before"


def test_other_selectors_choose_at_one_go(site: Site) -> None:
    site.keep_all(version := site.push(proxy()))
    site.run(site.record(version), turn=(turns := Spends()), spend=(spends := Spends()))
    assert (len(turns.asked), len(spends.asked)) == (1, 1)


def test_stopped_between_classes_it_chooses_no_further(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.keep_all(version := site.push(proxy()))
    monkeypatch.setattr("headwater.select.parts.STRETCH", 1)
    spends = Spends()
    done = site.run(record := site.record(version, VECTORS), lambda: bool(spends.asked), spend=spends)
    assert (done.result, len(spends.asked)) == ("", 1)
    assert site.run(record).result


KILLS = pytest.mark.parametrize("kills", [8, pytest.param(400, marks=pytest.mark.soak)], ids=["some", "all"])


@KILLS
def test_killed_anywhere_it_comes_to_the_same_selection(tmp_path: Path, kills: int) -> None:
    """SIGKILL before, within and after the file operations of the second round of a run."""
    labels = np.arange(100) % 3
    origin = Site(tmp_path / "origin", make_index(labels))
    origin.folder.mkdir()
    made = {"by": PROXY, "run": "mine"}
    origin.keep_all(base := origin.push(proxy()))
    first = origin.push(nudged(proxy(), 2.0), switch=False, **made)
    origin.run(origin.record(first, history(WISH, 0)))
    second = origin.push(nudged(proxy(), 1.0), switch=False, **made)
    record = origin.record(second, msgspec.structs.replace(history(WISH, 1), ends=True))
    control = Site(Path(shutil.copytree(origin.folder, tmp_path / "control")), origin.index)
    whole = control.run(record)
    assert 0 < whole.counts["chosen"] < 100
    trial = Site(tmp_path / "trial", origin.index)

    def begin() -> None:
        trial.run(record)

    shutil.copytree(origin.folder, trial.folder)
    points = find_points(begin)
    shutil.rmtree(trial.folder)
    chosen = choose_points(points, kills)
    for point in chosen[:: max(1, len(chosen) // kills)]:
        shutil.copytree(origin.folder, trial.folder)
        kill_at(point, begin)
        done = trial.run(record)
        assert (done.result, done.counts) == (whole.result, whole.counts), points[point - 1]
        same(trial.selections.get(record.id), control.selections.get(record.id))
        assert trial.registry.versions() == [base]
        assert not list((trial.folder / "selections" / "runs").iterdir())
        assert not [path for path in (trial.folder / "selections").iterdir() if path.name.startswith(".")]
        shutil.rmtree(trial.folder)


@pytest.mark.parametrize(
    ("wish", "said"),
    [
        (None, "told by which selector"),
        (SelectionWish("dance"), "there is no selector 'dance'"),
        (SelectionWish("uniform", {"size": 1}), "has no parameter 'size'"),
        (SelectionWish("uniform", {"share": "all"}), "parameter 'share'"),
        (SelectionWish("uniform", vectors="layers"), "vectors of 'layers'; known: logits, weights"),
    ],
)
def test_a_wish_that_cannot_be_is_refused_by_name(site: Site, wish: SelectionWish | None, said: str) -> None:
    version = site.push(proxy())
    with pytest.raises(WrongUse, match=said):
        site.run(site.record(version, wish))


def test_data_that_changed_needs_another_job(site: Site) -> None:
    record = msgspec.structs.replace(site.record(site.push(proxy())), version="0" * 32)
    with pytest.raises(DatasetStale, match="start another"):
        site.run(record)


def test_a_version_that_is_not_here_cannot_score(site: Site) -> None:
    record = msgspec.structs.replace(site.record(site.push(proxy())), model="0" * 32)
    with pytest.raises(ModelNotFound):
        site.run(record)
