"""Small models whose steps need no torch, and photos to label with them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from datasets import make_photo
from graphs import SIZE, change, make_model, make_tensors
from headwater import transforms as T
from headwater.models.model import Model

STEPS = tuple(T.Compose([T.CenterCrop(SIZE), T.Normalize(0.45, 0.25)]).spec())
CLASSES = tuple(f"class {number}" for number in range(7))
FEATURES = 12


def small_model(seed: int = 0) -> Model:
    """Seven classes by twelve features; other seeds are other weights throughout."""
    tensors = make_tensors(seed, classes=len(CLASSES), features=FEATURES)
    return replace(make_model(tensors=tensors), classes=CLASSES, steps=STEPS)


def nudged(model: Model, size: float, seed: int = 1) -> Model:
    """The same trunk under a head that differs a little."""
    rng = np.random.default_rng(seed)
    weight, bias = model.tensors["head/weight"], model.tensors["head/bias"]
    return change(
        model,
        head_weight=(weight + size * rng.normal(size=weight.shape)).astype(np.float32),
        head_bias=(bias + size * rng.normal(size=bias.shape)).astype(np.float32),
    )


def write_photos(folder: Path, count: int, *, broken: int = 0, name: str = "") -> Path:
    """JPEGs of a few kilobytes, and some files that only look like one."""
    rng = np.random.default_rng(3 + len(name))
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        (folder / f"{name}{number:05d}.jpg").write_bytes(make_photo(rng, 24, 32))
    for number in range(broken):
        (folder / f"broken-{number}.jpg").write_bytes(make_photo(rng, 24, 32)[:200])
    return folder
