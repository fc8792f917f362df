"""Is a head that was trained near the data as good as one with all data at the tuner; and three runs as one?

CIFAR-10 at 64 pixels, frozen layers of EfficientNet-Lite0, a new linear head. Near-data: a store makes the
features, which cross the wire in half precision although they are larger than these small images, so the cut
is forced; once in one run, once in three. All data at the tuner: features of the same layers by torch in
single precision, and a plain loop of torch over all of them with the same recipe. Every head is judged by the
test images, through its own layers. The seed keys the order of samples, and which run each is in.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import nn

import headwater as hw
from headwater.data.pipeline import Pipeline
from headwater.data.steps import catalogue
from headwater.models.export import export
from headwater.models.presets import imagenet_classes, load_lite0
from headwater.models.registry import Registry
from headwater.models.runtime import make_head
from headwater.models.split import split
from headwater.models.version import ModelVersion
from headwater.tune.labels import Labelled, own_labels
from headwater.tune.sources import Sources
from measuring import Bar, Cell, Options, Report, Table, main
from serving import serve
from small_files import make_parquet
from tuners import state_of
from whole_data import SIZE, extract, judge, small_steps, train

SEEDS, EPOCHS = 5, 30
QUICK = {"train": 2_000, "test": 1_000}
MADE = {"train": 2_000, "test": 500}
RUNS = {"near-data": 1, "near-data, 3 runs": 3}
WHOLE = "all data at the tuner"
POINTS = {WHOLE: 0.3, "near-data": 0.5}
"""How far near-data may be from all data at the tuner, and its three runs from its one."""

Scores = dict[str, list[float]]


def make_data(folder: Path, options: Options) -> dict[str, Path]:
    """CIFAR-10's two parts, or noise that shows no more than that it runs."""
    if options.data:
        return {part: options.data / "cifar10" / f"{part}.parquet" for part in QUICK}
    for part, count in MADE.items():
        make_parquet(folder / f"{part}.parquet", count)
    return {part: folder / f"{part}.parquet" for part in MADE}


def part_of(data: hw.Dataset, part: str, options: Options) -> Labelled:
    return own_labels(data.select(data.ids[: QUICK[part]]) if options.quick else data)


class Near:
    """Fine-tunings over a store, and the test images' features by the same layers."""

    def __init__(self, registry: Registry, version: ModelVersion, train: Labelled, test: Labelled) -> None:
        self._registry, self._version, self._train = registry, version, train
        self._test, self._labels = self._extract(test), test.labels

    def _extract(self, test: Labelled) -> NDArray[np.float16]:
        model = self._registry.get(self._version.digest)
        source = Sources(test.dataset, self._version, model, seed=0).here()
        positions = test.dataset.positions()
        steps = Pipeline.from_spec(self._version.steps, catalogue())
        found = list(source.run(positions, test.dataset.index.ids[positions], steps=steps, variant=0))
        source.close()
        assert all(not batch.failures for batch in found)
        return np.concatenate([batch.features for batch in found])

    def score(self, recipe: hw.Recipe) -> float:
        """Points of test accuracy of a head that is trained so."""
        tuner = hw.Tuner(
            self._train.dataset,
            self._version.digest,
            registry=self._registry,
            recipe=recipe,
            labels=self._train,
        )
        done = tuner.fit("cifar10")
        assert not done.failed
        head = make_head(self._registry.get(done.version.digest))
        logits = head.run(self._test.astype(np.float32))
        return 100 * float((logits.argmax(axis=1) == self._labels).mean())


def recipe_of(seed: int, runs: int, options: Options) -> hw.Recipe:
    """The default one; features are larger than the images, so the cut must be allowed."""
    epochs = 10 if options.quick else EPOCHS
    return hw.Recipe(epochs=epochs, runs=runs, validation=0.0, seed=seed, cut="features", more_bytes=True)


def score_near(near: Near, seeds: range, options: Options) -> Scores:
    found: Scores = {name: [] for name in RUNS}
    for seed in seeds:
        for name, runs in RUNS.items():
            found[name].append(near.score(recipe_of(seed, runs, options)))
        tell(seed, found)
    return found


def score_whole(trunk: nn.Module, data: Labelled, test: Labelled, seeds: range, options: Options) -> Scores:
    known, asked = extract(trunk, data), extract(trunk, test)
    found: Scores = {WHOLE: []}
    for seed in seeds:
        head = train(known, recipe_of(seed, 1, options), len(data.classes))
        found[WHOLE].append(judge(head, asked))
        tell(seed, found)
    return found


def tell(seed: int, found: Scores) -> None:
    points = ", ".join(f"{name} {scores[-1]:.2f}" for name, scores in found.items())
    print(f"seed {seed}: {points}", file=sys.stderr, flush=True)


def score_all(folder: Path, options: Options) -> tuple[Scores, dict[str, int]]:
    """Points of every way and seed, and how many images there are."""
    files, seeds = make_data(folder, options), range(2 if options.quick else SEEDS)
    parts = split(load_lite0(), image_size=SIZE)
    model = export(parts, classes=imagenet_classes(), steps=small_steps()).model
    (held, state), registry = state_of(folder / "state"), Registry(folder / "models")
    for each in (held, registry):
        version = each.put(model, name="lite0-64", switch=True)
    test = part_of(hw.open(files["test"], progress=False), "test", options)
    with (
        serve(files["train"], further=state) as store,
        closing(hw.open(store.photos, progress=False)) as data,
    ):
        near = Near(registry, version, part_of(data, "train", options), test)
        scores = score_near(near, seeds, options)
    local = part_of(hw.open(files["train"], progress=False), "train", options)
    scores |= score_whole(parts.frozen, local, test, seeds, options)
    return scores, {"train": len(local), "test": len(test)}


def score_table(scores: Scores) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for name, found in scores.items():
        deviation = statistics.stdev(found) if len(found) > 1 else 0.0
        cells = (*(f"{score:.2f}" for score in found), f"{statistics.fmean(found):.2f}", f"{deviation:.2f}")
        rows.append((name, *cells))
    seeds = (f"seed {seed}" for seed in range(len(scores[WHOLE])))
    return Table(("test accuracy, %", *seeds, "mean", "deviation"), tuple(rows))


def bars_of(scores: Mapping[str, list[float]]) -> Iterator[Bar]:
    """Differences of the means; each seed is a pair."""
    pairs = (("near-data", WHOLE), ("near-data, 3 runs", "near-data"))
    for name, against in pairs:
        apart = [ours - theirs for ours, theirs in zip(scores[name], scores[against], strict=True)]
        middle, most = statistics.fmean(apart), POINTS[against]
        found = f"{middle:+.2f} ({min(apart):+.2f}..{max(apart):+.2f})"
        yield Bar(f"{name} - {against}, points", f"within {most:g}", found, abs(middle) <= most)


def run(folder: Path, options: Options) -> Report:
    scores, counts = score_all(folder, options)
    usual = recipe_of(0, 1, options)
    return Report(
        f"test accuracy on CIFAR-10 at {SIZE} pixels, near the data and with all of it at the tuner",
        (score_table(scores),),
        tuple(bars_of(scores)) if options.data else (),  # noise has no accuracy
        (
            f"{counts['train']:,} images to train on, {counts['test']:,} to judge by; {usual.epochs} epochs, "
            f"batches of {usual.batch_size}, learning rate {usual.learning_rate:g}, L2 {usual.l2:g}",
            "the store keeps the features that it has made: all seeds train on the same ones",
        ),
        raw={"scores": scores, **counts},
    )


if __name__ == "__main__":
    main(__doc__, run)
