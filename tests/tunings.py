"""What tests of fine-tuning share: pictures of three colours, a registry with a small model, a watch."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from PIL import Image

from exports import exported_plain
from headwater.models.registry import Registry

COLOURS = {"blue": (60, 60, 200), "green": (60, 200, 60), "red": (200, 60, 60)}
SIZE = 40


def make_picture(colour: tuple[int, int, int], seed: int, *, size: int = SIZE) -> bytes:
    """A noisy picture of one colour, as PNG."""
    pixels = np.array(colour) + np.random.default_rng(seed).normal(0, 25, (size, size, 3))
    stream = io.BytesIO()
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(stream, "PNG")
    return stream.getvalue()


def write_colours(root: Path, count: int = 60, *, size: int = SIZE) -> Path:
    """So many pictures of each colour, in a folder of its name."""
    for number, (name, colour) in enumerate(COLOURS.items()):
        (root / name).mkdir(parents=True)
        for place in range(count):
            picture = make_picture(colour, 1000 * number + place, size=size)
            (root / name / f"{place:04d}.png").write_bytes(picture)
    return root


def make_registry(folder: Path) -> Registry:
    """With the small model of `exports`, whose own classes are others, in force as `plain`."""
    registry = Registry(folder)
    registry.put(exported_plain().model, name="plain", switch=True)
    return registry


class Interrupted(Exception):
    """What `StopAt` raises."""


class StopAt:
    """A watch that ends the fine-tuning at the n-th thing that it is told; None: never."""

    def __init__(self, last: int | None = None) -> None:
        self.last = last
        self.told: list[tuple[object, ...]] = []
        self.stores: dict[str, tuple[int, int]] = {}
        """What came last from each store, and what is to come; this ends nothing."""

    def features(self, done: int, total: int) -> None:
        self._tell("features", done, total)

    def store(self, store: str, done: int, total: int) -> None:
        self.stores[store] = (done, total)

    def epoch(self, run: int, epoch: int, loss: float) -> None:
        self._tell("epoch", run, epoch, loss)

    def run(self, run: int, accuracy: float | None) -> None:
        self._tell("run", run, accuracy)

    def _tell(self, *what: object) -> None:
        self.told.append(what)
        if self.last is not None and len(self.told) >= self.last:
            raise Interrupted(what)
