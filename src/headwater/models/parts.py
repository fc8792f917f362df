"""Frozen layers in two parts that are ready to run: up to a cut, for a store, and from it, for a tuner."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headwater.models.crossing import Crossing
from headwater.models.cutting import divide
from headwater.models.model import Model
from headwater.models.pixels import Affine, put_before
from headwater.models.proto import parse
from headwater.models.runtime import CHUNK, Floats, Session

Tensors = dict[str, NDArray[np.generic]]


class FirstLayers:
    """The layers up to a cut. Any thread may call it; raises what `Engine` does."""

    def __init__(self, model: Model, at: Crossing, *, threads: int = 1) -> None:
        model.check()
        graph, _ = divide(model.trunk, at)
        tensors = tensors_of(graph, model)
        self.width = at.width
        """How many numbers cross for an image."""
        self.nbytes = sum(array.nbytes for array in tensors.values())
        self._session = Session(put_before(graph, Affine.of(model.steps)), tensors, threads=threads)

    def features(self, images: NDArray[np.uint8]) -> Floats:
        """What crosses, (n, width), of images as the steps per sample leave them."""
        return self._session.run(images)


class LastLayers:
    """The layers behind a cut. Any thread may call it; raises what `Engine` does."""

    def __init__(self, model: Model, at: Crossing, *, threads: int = 1) -> None:
        self.width = model.check()
        """How many features an image has."""
        _, graph = divide(model.trunk, at)
        self._session = Session(graph, tensors_of(graph, model), threads=threads)

    def features(self, vectors: NDArray[np.floating]) -> Floats:
        """Features (n, width) of what crossed, in any precision."""
        parts = [
            self._session.run(vectors[begin : begin + CHUNK].astype(np.float32, copy=False))
            for begin in range(0, len(vectors), CHUNK)
        ]
        return np.concatenate(parts) if parts else np.empty((0, self.width), np.float32)


def tensors_of(graph: bytes, model: Model) -> Tensors:
    """Those of the trunk's tensors that a part of it needs."""
    names = {tensor.name for tensor in parse(graph).graph.initializer}
    return {name: array for name, array in model.part("trunk").items() if name in names}
