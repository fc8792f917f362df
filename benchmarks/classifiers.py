"""EfficientNet-Lite0 on photos: the photos as it sees them, and classifiers as processes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import headwater as hw
from headwater.data.pipeline import Pipeline
from headwater.engine.chain import Chain
from headwater.models.model import Model
from headwater.models.presets import imagenet_classes, lite0_steps
from measuring import Options
from serving import Child
from trainers import write_tars

Pixels = NDArray[np.uint8]

_OTHERWISE = {"n02012849": "crane bird", "n03710721": "maillot tank suit"}
"""Two classes of ImageNet share their first word with another one."""


@dataclass(frozen=True, eq=False)
class Photos:
    """Photos as files, and as the pixels that the model sees; the classes are -1 where they are not known."""

    folder: Path
    pixels: Pixels
    labels: NDArray[np.int64]

    @property
    def labelled(self) -> bool:
        return bool((self.labels >= 0).all())

    def save(self, folder: Path) -> Path:
        """The pixels as a file, for a process to read."""
        path = folder / "pixels.npy"
        np.save(path, self.pixels)
        return path


def open_photos(folder: Path, options: Options) -> Photos:
    """All photos of the data folder, or made ones."""
    tars = write_tars(folder, options)
    data = hw.open(tars, progress=False)
    positions = data.positions()
    names = [data.index.key(position) for position in positions.tolist()]
    pixels = pixels_of(data, positions, lite0_steps())
    return Photos(tars, pixels, np.array([class_of(Path(name).stem) for name in names]))


def pixels_of(data: hw.Dataset, positions: NDArray[np.int64], steps: Pipeline) -> Pixels:
    """Samples as a pipeline's steps per sample leave them."""
    lot = _Lot(data.index.ids[positions])
    Chain(steps.samplewise).run(data.store.read(positions), lot)
    return np.stack([lot.made[place] for place in range(len(positions))])


def class_of(name: str) -> int:
    """The place in ImageNet's classes of a photo called WORDNETID_NAME; -1 for a photo of none."""
    wordnet, _, words = name.partition("_")
    wanted = _OTHERWISE.get(wordnet, words.replace("_", " "))
    classes = imagenet_classes()
    return classes.index(wanted) if wanted in classes else -1


class _Lot:
    def __init__(self, ids: NDArray[np.int64]) -> None:
        self.ids, self.epoch = ids, 0
        self.made: dict[int, Any] = {}

    def emit(self, place: int, image: Any) -> None:
        self.made[place] = image

    def fail(self, place: int, stage: str, error: Exception) -> None:
        raise RuntimeError(f"sample {self.ids[place]} failed at {stage}") from error


class Classifier(Child):
    """processes/classifier.py; `settings` are its `Settings`."""

    def __init__(self, settings: Mapping[str, Any], *, seconds: float) -> None:
        super().__init__("classifier.py", json.dumps(dict(settings)))
        self._seconds = seconds

    def measure(self) -> float:
        """Images per second."""
        found = self.ask(f"measure {self._seconds}")
        return float(found["images"] / found["seconds"])


def nbytes(model: Model) -> int:
    """Bytes of graph and tensors."""
    return model.nbytes + sum(len(graph) for graph in model.graphs.values())
