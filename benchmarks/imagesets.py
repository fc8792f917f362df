"""CIFAR-10 and Fashion-MNIST as arrays: pixels, or features of frozen layers that are made once and kept."""

from __future__ import annotations

import gzip
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

import headwater as hw
from classifiers import pixels_of
from headwater import transforms as T
from headwater.models.export import export
from headwater.models.presets import imagenet_classes, lite0_steps, load_lite0
from headwater.models.runtime import Engine
from headwater.models.split import split
from measuring import Options

Pixels = NDArray[np.uint8]
Floats = NDArray[np.float32]
Ints = NDArray[np.int64]

FOLDERS = {
    "work": "keeps features and finished runs, so that a run that was stopped goes on",
    "fashion": "the IDX files of Fashion-MNIST: Debian's dataset-fashion-mnist puts them under "
    "/usr/share/datasets/fashion-mnist",
}
PARTS = ("train", "test")
Source = Callable[[str], tuple[Iterator[Pixels], Ints]]
"""From the name of a part to its images as the layers get them, some at a time, and all labels."""
SIZES = {"CIFAR-10": 96, "Fashion-MNIST": 64}
"""Pixels of an edge, as the frozen layers get them: thrice as many as the images have, and about twice."""
KEPT = 256
"""Principal components that are kept of 1,280 features."""
_AT_ONCE = 512
_QUICK = {"train": 6_000, "test": 2_000}
_MADE = {"train": 4_000, "test": 1_000}


@dataclass(frozen=True, eq=False)
class Examples:
    """What to learn from, and what to judge by: a row per sample."""

    name: str
    train: Floats
    labels: Ints
    test: Floats
    test_labels: Ints

    def first(self, width: int, *, quick: bool) -> Examples:
        """So many components of all samples, or of some, with a mean square of 1."""
        known, asked = (_QUICK[part] if quick else None for part in PARTS)
        scale = 1 / np.sqrt(np.mean(np.square(self.train[:known, :width])))
        return Examples(
            self.name,
            self.train[:known, :width] * scale,
            self.labels[:known],
            self.test[:asked, :width] * scale,
            self.test_labels[:asked],
        )

    def some(self, count: int) -> Examples:
        """The first so many to learn from."""
        return replace(self, train=self.train[:count], labels=self.labels[:count])


def open_features(folder: Path, options: Options, width: int) -> Iterator[Examples]:
    """Of each dataset that was given, or made ones, which show no more than that it runs."""
    work = work_in(folder, options)
    sources: dict[str, Source] = {}
    if options.data is not None:
        data, steps = options.data / "cifar10", T.Compose([T.Resize(SIZES["CIFAR-10"])])
        sources["CIFAR-10"] = lambda part: read_cifar10(data, part, steps)
    if (fashion := options.folders["fashion"]) is not None:
        sources["Fashion-MNIST"] = lambda part: read_fashion(fashion, part)
    for name, source in sources.items():
        yield _keep(work / f"features-{name}-{SIZES[name]}.npz", name, source).first(
            width, quick=options.quick
        )
    if not sources:
        yield make_examples(width)


def work_in(folder: Path, options: Options) -> Path:
    """Where things are kept: for good if the command line says where."""
    work = options.folders["work"] or folder
    work.mkdir(parents=True, exist_ok=True)
    return work


def make_examples(width: int) -> Examples:
    """Ten clouds that overlap, with a few samples of a wrong class."""
    rng = np.random.default_rng(17)
    centres = rng.normal(size=(10, width)) * 3 / width**0.5
    drawn = {}
    for part, count in _MADE.items():
        labels = rng.integers(0, 10, count)
        drawn[part] = (centres[labels] + rng.normal(size=(count, width))).astype(np.float32), labels
    return Examples("made", *drawn["train"], *drawn["test"])


def read_cifar10(folder: Path, part: str, steps: hw.Pipeline) -> tuple[Iterator[Pixels], Ints]:
    """Its images after these steps, some at a time, and all labels."""
    data = hw.open(folder / f"{part}.parquet", progress=False)
    positions = data.positions()
    parts = (
        pixels_of(data, positions[begin : begin + _AT_ONCE], steps)
        for begin in range(0, len(positions), _AT_ONCE)
    )
    return parts, data.index.labels[positions]


def read_fashion(folder: Path, part: str) -> tuple[Iterator[Pixels], Ints]:
    """Its images as the layers get them, some at a time, and all labels."""
    stem = {"train": "train", "test": "t10k"}[part]
    grey, labels = (_read_idx(folder / f"{stem}-{kind}-ubyte.gz") for kind in ("images-idx3", "labels-idx1"))
    parts = (_enlarge(grey[begin : begin + _AT_ONCE]) for begin in range(0, len(grey), _AT_ONCE))
    return parts, labels.astype(np.int64)


def _read_idx(path: Path) -> Pixels:
    """An IDX file: two zeros, the type, the number of edges, the edges, and bytes."""
    content = gzip.decompress(path.read_bytes())
    edges = content[3]
    shape = np.frombuffer(content, ">u4", edges, 4).astype(int)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * edges).reshape(shape)


def _enlarge(grey: Pixels) -> Pixels:
    size = SIZES["Fashion-MNIST"]
    images = torch.from_numpy(grey.copy())[:, None].expand(-1, 3, -1, -1)
    made = torch.nn.functional.interpolate(images, (size, size), mode="bilinear", antialias=True)
    return np.ascontiguousarray(made.permute(0, 2, 3, 1).numpy())


def _keep(path: Path, name: str, source: Source) -> Examples:
    """From the file, or made and put there."""
    if not path.exists():
        begin, columns = time.perf_counter(), _extract(source, SIZES[name])
        with (path.parent / "features.part").open("wb") as file:
            np.savez(file, **columns)
        (path.parent / "features.part").rename(path)
        print(f"{path.name}: made in {time.perf_counter() - begin:.0f} s", file=sys.stderr, flush=True)
    with np.load(path) as found:
        values = {part: found[part].astype(np.float32) for part in PARTS}
        return Examples(name, values["train"], found["train-labels"], values["test"], found["test-labels"])


def _extract(source: Source, size: int) -> dict[str, NDArray[np.generic]]:
    """Features by the engine in single precision, turned so that the first of them tell most."""
    steps = T.Compose([T.Resize(size), T.CenterCrop(size), *lite0_steps().batchwise.steps])
    parts = split(load_lite0(), image_size=size)
    engine = Engine(
        export(parts, classes=imagenet_classes(), steps=steps).model, threads=len(os.sched_getaffinity(0))
    )
    made: dict[str, Floats] = {}
    columns: dict[str, NDArray[np.generic]] = {}
    for part in PARTS:
        pixels, columns[f"{part}-labels"] = source(part)
        made[part] = np.concatenate([engine.features(some) for some in pixels])
    mean, turn = _components(made["train"])
    return columns | {part: ((made[part] - mean) @ turn).astype(np.float16) for part in PARTS}


def _components(features: Floats) -> tuple[Floats, Floats]:
    """The mean, and a turn to principal components; the mean square of all is 1."""
    mean = features.mean(axis=0, dtype=np.float64)
    centred = (features - mean).astype(np.float32)
    spread, directions = np.linalg.eigh((centred.T @ centred).astype(np.float64) / len(centred))
    spread, directions = spread[::-1][:KEPT], directions[:, ::-1][:, :KEPT]
    # the sign of a direction is arbitrary: its largest entry shall be positive
    largest = directions[np.abs(directions).argmax(axis=0), np.arange(KEPT)]
    turn = directions * np.sign(largest) / np.sqrt(spread.mean())
    return mean.astype(np.float32), turn.astype(np.float32)
