"""What does a relabel cost after the head has changed, and how much of it is skipped?

EfficientNet-Lite0: a store labels photos over the wire and keeps their features. Then the head changes, by
a few steps of training on the photos' labels and by noise of several sizes, and each change is relabelled
twice from the same labels and features: with the rule that skips what cannot have changed, and without it.
The labels must be the same. Both ways write every row, so most of the seconds are the database's. The last
row is about features that are drawn at random, many of them.
"""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import headwater as hw
from classifiers import class_of, write_tars
from headwater.data.index import Index
from headwater.engine.inference import Extraction
from headwater.errors import HeadwaterError
from headwater.models.model import Model
from headwater.models.presets import PRESETS
from headwater.models.registry import Registry
from headwater.models.version import ModelVersion
from headwater.store.cabinet import Cabinet
from headwater.store.features import Features
from headwater.store.jobs.record import JobRecord
from headwater.store.jobs.relabel import Workplace, relabel
from headwater.store.jobs.runner import Running
from headwater.store.labels import LabelRows, open_labels
from headwater.store.server.config import DatasetConfig, ServeConfig
from headwater.store.server.daemon import Daemon
from headwater.tune.relabel import JobAtStore, relabel_at
from measuring import Bar, Cell, Options, Report, Table, main

DATASET, NAME = "photos", "lite0"
NOISE = (1e-4, 1e-3, 1e-2)
"""Relative to the weights."""
STEPS, RATE = 20, 0.02
DRAWN, DRAWN_QUICK = 200_000, 20_000
LEAST_SKIPPED = 0.5
COLUMNS = ("change of the head", "size", "labels changed", "skipped", "s with", "s without", "same labels")


class Unskipped(Features):
    """Features whose norms are not known, so that every sample is computed."""

    def norms(self, ids: NDArray[np.int64], times: NDArray[np.int64] | None = None) -> NDArray[np.float32]:
        return np.full(len(ids), np.nan, np.float32)


@dataclass(frozen=True)
class Outcome:
    """A relabel that was tried."""

    seconds: float
    counts: Mapping[str, int]
    rows: LabelRows


@dataclass(frozen=True)
class Site:
    """A dataset with labels of one version, and features; changes are tried on copies of it."""

    folder: Path
    index: Index

    @property
    def registry(self) -> Registry:
        return Registry(self.folder / "models")

    def features(self) -> NDArray[np.float16]:
        """Of all samples that have a label, in order of id."""
        version = self.registry.current(NAME)
        with closing(Cabinet(self.folder / "features", most_bytes=1 << 40)) as cabinet:
            kept = Features(cabinet, self.index, dataset=DATASET, version=version)
            return kept.get(np.sort(self.index.ids))[1]

    def rows(self) -> LabelRows:
        with closing(open_labels(self.folder / "labels.db")) as labels:
            return labels.get(DATASET, self.index.ids)

    def relabel(self, model: Model, kind: type[Features]) -> Outcome:
        """To a new version, over a copy, in this process."""
        trial = replace(self, folder=Path(shutil.copytree(self.folder, self.folder.with_name("trial"))))
        try:
            version = trial.registry.put(model, name=NAME, switch=True)
            seconds, counts = trial._run(version, kind)
            return Outcome(seconds, counts, trial.rows())
        finally:
            shutil.rmtree(trial.folder)

    def _run(self, version: ModelVersion, kind: type[Features]) -> tuple[float, Mapping[str, int]]:
        running = Running(_record(version, self.index), lambda record: None)
        with (
            closing(Cabinet(self.folder / "features", most_bytes=1 << 40)) as cabinet,
            closing(open_labels(self.folder / "labels.db")) as labels,
        ):
            place = Workplace(
                DATASET,
                self.index,
                labels,
                self.registry,
                lambda version: kind(cabinet, self.index, dataset=DATASET, version=version),
                _no_images,
            )
            begin = time.perf_counter()
            relabel(place, running)
            return time.perf_counter() - begin, running.record.counts


def _no_images(version: ModelVersion) -> Extraction:
    raise HeadwaterError("a sample without kept features; this benchmark needs all of them")


def _record(version: ModelVersion, index: Index) -> JobRecord:
    return JobRecord(
        id=f"benchmark-{version.digest[:8]}",
        kind="relabel",
        dataset=DATASET,
        version=index.version,
        model=version.digest,
        by="benchmark",
        begun="now",
    )


def label_at_a_store(folder: Path, tars: Path, model: Model) -> tuple[Site, JobAtStore]:
    """A store labels the photos; what it keeps, and what it took."""
    state = folder / "state"
    Registry(state / "models").put(model, name=NAME, switch=True)
    served = {DATASET: DatasetConfig(str(tars))}
    with Daemon(ServeConfig(listen="127.0.0.1:0", datasets=served, state=state)) as daemon:
        (found,) = relabel_at([daemon.serving.address])
    if found.error is not None or found.job is None or found.job.state != "done":
        raise HeadwaterError(f"the store did not label its photos: {found}")
    return Site(state, hw.open(tars, progress=False).index), found


def draw_a_site(folder: Path, count: int, model: Model) -> Site:
    """As many samples without files, their features drawn, labelled by the model."""
    site = Site(folder / "drawn", Index.build([f"{n}.jpg" for n in range(count)], np.full(count, 1)))
    version = site.registry.put(model, name=NAME, switch=True)
    rng = np.random.default_rng(0)
    with closing(Cabinet(site.folder / "features", most_bytes=1 << 40)) as cabinet:
        kept = Features(cabinet, site.index, dataset=DATASET, version=version)
        for begin in range(0, count, 4096):
            positions = np.arange(begin, min(begin + 4096, count))
            drawn = np.abs(rng.normal(size=(len(positions), version.features)))
            kept.put(positions, drawn.astype(np.float16))
    site._run(version, Features)
    return site


def with_head(model: Model, weight: NDArray[np.float32], bias: NDArray[np.float32]) -> Model:
    return replace(model, tensors={**model.tensors, "head/weight": weight, "head/bias": bias})


def with_noise(model: Model, size: float) -> Model:
    rng = np.random.default_rng(7)

    def shaken(values: NDArray[np.float32]) -> NDArray[np.float32]:
        noise = rng.normal(size=values.shape) * np.sqrt(np.mean(np.square(values)))
        return (values + size * noise).astype(np.float32)

    return with_head(model, shaken(model.tensors["head/weight"]), shaken(model.tensors["head/bias"]))


def trained(model: Model, features: NDArray[np.float16], labels: NDArray[np.int64]) -> Model:
    """A few steps of gradient descent on cross-entropy, over all samples with a label."""
    inputs, wanted = features[labels >= 0].astype(np.float32), labels[labels >= 0]
    weight, bias = model.tensors["head/weight"].copy(), model.tensors["head/bias"].copy()
    for _ in range(STEPS):
        logits = inputs @ weight.T + bias
        shares = np.exp(logits - logits.max(axis=1, keepdims=True))
        shares /= shares.sum(axis=1, keepdims=True)
        shares[np.arange(len(wanted)), wanted] -= 1
        weight -= RATE * (shares.T @ inputs) / len(wanted)
        bias -= RATE * shares.mean(axis=0)
    return with_head(model, weight, bias)


def changes(site: Site, model: Model) -> Iterator[tuple[str, Model]]:
    names = [Path(site.index.key(position)).stem for position in range(len(site.index))]
    truth = np.array([class_of(name) for name in names])[np.argsort(site.index.ids)]
    features = site.features()
    if len(features) == len(truth) and (truth >= 0).any():
        yield f"{STEPS} steps of training", trained(model, features, truth)
    for size in NOISE:
        yield f"noise of {size:g}", with_noise(model, size)


def measure(
    site: Site, change: str, *, old: Model, new: Model, rounds: int
) -> tuple[tuple[Cell, ...], float]:
    """A row of the table, and the share that was skipped."""
    pairs = [(site.relabel(new, Features), site.relabel(new, Unskipped)) for _ in range(rounds)]
    skipping, plain = pairs[-1]
    same = all(np.array_equal(one.rows.labels, other.rows.labels) for one, other in pairs)
    moved = new.tensors["head/weight"] - old.tensors["head/weight"]
    size = float(np.linalg.norm(moved) / np.linalg.norm(old.tensors["head/weight"]))
    share = skipping.counts["skipped"] / max(1, len(skipping.rows))
    seconds = [statistics.median(pair[side].seconds for pair in pairs) for side in (0, 1)]
    row = (change, f"{size:.1e}", plain.counts["changed"], f"{share:.1%}", *seconds, "yes" if same else "NO")
    return row, share


def run(folder: Path, options: Options) -> Report:
    model = PRESETS["efficientnet-lite0"]()
    tars = write_tars(folder, options)
    site, found = label_at_a_store(folder, tars, model)
    assert found.job is not None
    rows, shares = [], {}
    for change, new in changes(site, model):
        row, shares[change] = measure(site, change, old=model, new=new, rounds=options.rounds)
        rows.append(row)
    count = DRAWN_QUICK if options.quick else DRAWN
    many = draw_a_site(folder, count, model)
    row, _ = measure(
        many, f"noise of {NOISE[1]:g}, {count:,} drawn", old=model, new=with_noise(model, NOISE[1]), rounds=1
    )
    rows.append(row)
    labelled = found.job.counts["labelled"]
    return Report(
        "a relabel after a change of the head",
        (Table(COLUMNS, tuple(rows)),),
        _bars(rows, shares),
        (f"{labelled:,} photos, {len(model.classes):,} classes",),
    )


def _bars(rows: list[tuple[Cell, ...]], shares: Mapping[str, float]) -> tuple[Bar, ...]:
    same = all(row[-1] == "yes" for row in rows)
    small = shares.get(f"{STEPS} steps of training", shares[f"noise of {NOISE[1]:g}"])
    return (
        Bar("labels with the rule and without", "the same", "the same" if same else "they differ", same),
        Bar(
            "skipped after a small change", f"over {LEAST_SKIPPED:.0%}", f"{small:.1%}", small > LEAST_SKIPPED
        ),
    )


if __name__ == "__main__":
    main(__doc__, run)
