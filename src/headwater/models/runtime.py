"""The engine beside the data: frozen layers by ONNX Runtime, the head by numpy.

A session is made of a graph in memory and of tensors in memory. It can reach no file: the graph is checked,
and each of its external initialisers is handed over by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from types import ModuleType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from headwater.errors import MissingExtra, ModelError, WrongUse
from headwater.models.model import Model
from headwater.models.pixels import Affine, put_before
from headwater.models.proto import parse

Floats = NDArray[np.float32]

CHUNK = 4
"""Images that go through the layers at once, for each thread: what more of them leave between two layers does
not stay in the cache of a core."""
ROWS = 1024
"""Features that go through a head at once."""

_QUANTISED = "DequantizeLinear"


@dataclass(frozen=True, eq=False)
class Classified:
    """What a model says of each image of a batch."""

    labels: NDArray[np.int32]
    """Places in the model's list of classes."""
    scores: Floats
    """The label's share of the softmax."""
    margins: Floats
    """By how much the label's logit exceeds the next one's; infinite if there is only one class."""

    def __len__(self) -> int:
        return len(self.labels)


class Head(Protocol):
    """Takes float32 features (n, F) to logits (n, classes)."""

    def run(self, features: Floats, /) -> Floats: ...


class Engine:
    """A model that is ready to run. Any thread may call it; calls at the same time share its `threads`.

    Raises `ModelRefused` for a model that may not run here and `ModelError` for one that cannot.
    """

    def __init__(self, model: Model, *, threads: int = 1) -> None:
        if threads < 1:
            raise WrongUse(f"threads={threads}; an engine needs at least 1")
        self.model, self._threads = model, threads
        self.width = model.check()
        """How many features an image has."""
        self._pixels = self._session(put_before(model.trunk, Affine.of(model.steps)), "trunk")
        self._head = make_head(model, threads=threads)

    def _session(self, graph: bytes, part: str) -> Session:
        return Session(graph, self.model.part(part), threads=self._threads)

    @cached_property
    def _floats(self) -> Session:
        """For images that come normalised, which a store's do not: made when the first of them comes."""
        return self._session(self.model.trunk, "trunk")

    @property
    def precision(self) -> str:
        """int8 if the frozen layers are quantised, else fp32."""
        return precision_of(self.model)

    def features(self, images: NDArray[Any]) -> Floats:
        """What the frozen layers make of a batch of any size: (n, width).

        Images are uint8 (n, height, width, channels) as the pipeline's steps per sample leave them, or
        float32 (n, channels, height, width) that are normalised already. Raises `ModelError` for others.
        """
        return (self._pixels if images.dtype == np.uint8 else self._floats).run(images)

    def logits(self, features: NDArray[Any]) -> Floats:
        """The head on features of any float type: (n, classes)."""
        return self._head.run(features.astype(np.float32, copy=False))

    def classify(self, images: NDArray[Any]) -> Classified:
        """Label, score and margin of each image; images as for `features`."""
        return decide(self.logits(self.features(images)))


class Session:
    """One graph of one input and one output, both with any number of rows, `at_once` of them together."""

    def __init__(
        self, graph: bytes, tensors: Mapping[str, NDArray[Any]], *, threads: int, at_once: int | None = None
    ) -> None:
        runtime = onnxruntime()
        self._at_once = at_once or CHUNK * threads
        # The session looks at this memory for as long as it lives.
        self._values = {name: _to_value(array) for name, array in tensors.items()}
        options = _options(threads)
        options.add_external_initializers(list(self._values), list(self._values.values()))
        try:
            self._session = runtime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # each of its kinds of error derives from Exception alone
            raise ModelError(f"ONNX Runtime cannot run the graph: {error}") from error
        (self._input,), (self._output,) = self._session.get_inputs(), self._session.get_outputs()

    def run(self, batch: NDArray[Any]) -> Floats:
        """The output for each row; raises `ModelError` for a batch of another shape or type."""
        self._check(batch)
        starts = range(0, len(batch), self._at_once)
        parts = [self._run(batch[start : start + self._at_once]) for start in starts]
        if not parts:
            return np.empty((0, *self._output.shape[1:]), np.float32)
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _run(self, batch: NDArray[Any]) -> Floats:
        try:
            (found,) = self._session.run([self._output.name], {self._input.name: batch})
        except Exception as error:
            raise ModelError(f"ONNX Runtime failed on {len(batch)} x {batch.shape[1:]}: {error}") from error
        done: Floats = found
        return done

    def _check(self, batch: NDArray[Any]) -> None:
        shape, kind = self._input.shape, self._input.type
        fits = [
            not isinstance(edge, int) or edge == real for edge, real in zip(shape, batch.shape, strict=False)
        ]
        if f"tensor({_onnx_name(batch.dtype)})" != kind or batch.ndim != len(shape) or not all(fits):
            edges = " x ".join(map(str, shape))
            raise ModelError(
                f"{self._input.name} are {batch.dtype} {batch.shape}; the model takes {kind} {edges}"
            )


class _Linear:
    """`features @ weight.T + bias`."""

    def __init__(self, model: Model) -> None:
        self._weight, self._bias = model.tensors["head/weight"], model.tensors["head/bias"]

    def run(self, features: Floats) -> Floats:
        if features.ndim != 2 or features.shape[1] != self._weight.shape[1]:
            raise ModelError(f"features are {features.shape}; the head takes n x {self._weight.shape[1]}")
        logits: Floats = features @ self._weight.T + self._bias
        return logits


def make_head(model: Model, *, threads: int = 1) -> Head:
    """A model's head alone, for features that were made before: no frozen layers are loaded."""
    if model.head is None:
        return _Linear(model)
    return Session(model.head, model.part("head"), threads=threads, at_once=ROWS)


def precision_of(model: Model) -> str:
    """int8 if the frozen layers are quantised, else fp32; nothing is loaded for it."""
    return precision_of_graph(model.trunk)


def precision_of_graph(trunk: bytes) -> str:
    """The same of their graph alone."""
    return "int8" if any(node.op_type == _QUANTISED for node in parse(trunk).graph.node) else "fp32"


def decide(logits: Floats) -> Classified:
    """The label of each row, its score and its margin; raises `ModelError` if a value is not a number."""
    if logits.ndim != 2 or not logits.shape[1]:
        raise ModelError(f"logits are {logits.shape}; they must be n x classes")
    labels = logits.argmax(axis=1)
    tops = np.take_along_axis(logits, labels[:, None], axis=1)
    if not np.isfinite(tops).all():
        raise ModelError(
            "the model gives logits that are not finite; its weights, or the features, are broken"
        )
    scores = 1.0 / np.exp(logits - tops).sum(axis=1)
    return Classified(labels.astype(np.int32), scores.astype(np.float32), _margins(logits, tops[:, 0]))


def _margins(logits: Floats, tops: Floats) -> Floats:
    if logits.shape[1] == 1:
        return np.full(len(logits), np.inf, np.float32)
    margins: Floats = tops - np.partition(logits, -2, axis=1)[:, -2]
    return margins


@cache
def onnxruntime() -> ModuleType:
    """ONNX Runtime, imported once; raises `MissingExtra` where it is not installed."""
    try:
        import onnxruntime as module
    except ImportError as error:
        raise MissingExtra(f"models run on {error.name}; pip install 'headwater[models]'") from error
    found: ModuleType = module
    return found


def _options(threads: int) -> Any:
    runtime = onnxruntime()
    options = runtime.SessionOptions()
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3
    # A thread that has nothing to do must not burn the core that decodes the next images.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options


def _to_value(array: NDArray[Any]) -> Any:
    return onnxruntime().OrtValue.ortvalue_from_numpy(np.require(array, requirements="C"))


def _onnx_name(dtype: np.dtype[Any]) -> str:
    return {"float32": "float", "float64": "double"}.get(dtype.name, dtype.name)
