"""CIFAR-10 as all features of EfficientNet-Lite0, scaled as the tuner does; made once and kept."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from headwater import transforms as T
from headwater.models.export import export
from headwater.models.presets import imagenet_classes, lite0_steps, load_lite0
from headwater.models.runtime import Engine
from headwater.models.split import split
from headwater.tune.head import Scaling
from imagesets import PARTS, SIZES, Floats, Ints, read_cifar10, work_in
from measuring import Options

CLASSES = 10
_QUICK = {"train": 5_000, "test": 1_000}
_MADE_WIDTH = 256


@dataclass(frozen=True, eq=False)
class Frozen:
    """Features to train on, and further ones that may join."""

    name: str
    train: Floats
    labels: Ints
    spare: Floats
    spare_labels: Ints


def open_frozen(folder: Path, options: Options) -> Frozen:
    """Of CIFAR-10 if it is there; else clouds, which show no more than that it runs."""
    if options.data is None:
        return _scaled("made", _make())
    path = work_in(folder, options) / "frozen-CIFAR-10.npz"
    if not path.exists():
        begin = time.perf_counter()
        columns = _extract(options.data / "cifar10")
        with (path.parent / "frozen.part").open("wb") as file:
            np.savez(file, **columns)
        (path.parent / "frozen.part").rename(path)
        print(f"{path.name}: made in {time.perf_counter() - begin:.0f} s", file=sys.stderr, flush=True)
    with np.load(path) as found:
        columns = {name: found[name] for name in found.files}
    if options.quick:
        columns = {name: values[: _QUICK[name.split("-")[0]]] for name, values in columns.items()}
    return _scaled("CIFAR-10", columns)


def _extract(data: Path) -> dict[str, np.ndarray]:
    """By the engine, in half precision as features cross a link."""
    size = SIZES["CIFAR-10"]
    steps = T.Compose([T.Resize(size), T.CenterCrop(size), *lite0_steps().batchwise.steps])
    model = export(split(load_lite0(), image_size=size), classes=imagenet_classes(), steps=steps).model
    engine, columns = Engine(model, threads=len(os.sched_getaffinity(0))), {}
    for part in PARTS:
        pixels, columns[f"{part}-labels"] = read_cifar10(data, part, T.Compose([T.Resize(size)]))
        columns[part] = np.concatenate([engine.features(some) for some in pixels]).astype(np.float16)
    return columns


def _make() -> dict[str, np.ndarray]:
    """Clouds that overlap, with a few directions that tell most, as features have them."""
    rng, columns = np.random.default_rng(17), {}
    turn = rng.normal(size=(_MADE_WIDTH, _MADE_WIDTH)) * np.exp(-np.arange(_MADE_WIDTH) / 32)[:, None]
    centres = rng.normal(size=(CLASSES, _MADE_WIDTH)) * 0.35
    for part, count in _QUICK.items():
        labels = rng.integers(0, CLASSES, count)
        drawn = (centres[labels] + rng.normal(size=(count, _MADE_WIDTH))) @ turn
        columns[part], columns[f"{part}-labels"] = drawn.astype(np.float16), labels
    return columns


def _scaled(name: str, columns: dict[str, np.ndarray]) -> Frozen:
    scaling = Scaling.of([columns["train"]])
    values = {part: ((columns[part] - scaling.mean) * scaling.scale).astype(np.float32) for part in PARTS}
    labels = {part: columns[f"{part}-labels"].astype(np.int64) for part in PARTS}
    return Frozen(name, values["train"], labels["train"], values["test"], labels["test"])
