"""From decoded pixels to what frozen layers take: normalisation as one multiplication and one addition.

The batch stage of a model's pipeline is folded into a scale and a shift per channel, and both become nodes
in front of the graph, so that uint8 images go into ONNX Runtime as they were decoded. The result is within
`TOLERANCE` of the steps' own arithmetic, which divides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headwater.data.pipeline import Pipeline
from headwater.data.steps import BatchStep, Step, catalogue
from headwater.data.steps.dtype import Normalize, ToDtype
from headwater.errors import ModelError
from headwater.models.proto import onnx_module

TOLERANCE = 1e-5
"""The largest difference, on normalised values of the usual size (up to 3)."""

_AFFINE: Mapping[str, type[Step]] = {ToDtype.name: ToDtype, Normalize.name: Normalize}
_WHITE = 255.0


@dataclass(frozen=True, eq=False)
class Affine:
    """`pixels * scale + shift`, with a value of each per channel, or one for all."""

    scale: NDArray[np.float32]
    shift: NDArray[np.float32]

    @classmethod
    def of(cls, spec: Sequence[Mapping[str, Any]]) -> Affine:
        """What the batch stage of a pipeline does to uint8 images.

        Raises `ModelError` for a batch stage that does more than convert to float32 and normalise.
        """
        tail = list(takewhile(lambda entry: entry["name"] in _AFFINE, reversed(spec)))[::-1]
        _refuse_batch_steps(spec[: len(spec) - len(tail)])
        scale, shift, white = np.ones(1), np.zeros(1), _WHITE
        for step in Pipeline.from_spec(tail, _AFFINE).steps:
            if isinstance(step, ToDtype):
                _refuse_other_dtype(step)
                factor = 1.0 / white if step.scale else 1.0
                scale, shift, white = scale * factor, shift * factor, 1.0
            elif isinstance(step, Normalize):
                scale, shift, white = scale / white, shift / white, 1.0
                scale, shift = scale / step.std, (shift - np.array(step.mean)) / step.std
        return cls(scale.astype(np.float32), shift.astype(np.float32))

    def apply(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Images (n, height, width, channels) as the batch (n, channels, height, width)."""
        planes = pixels.transpose(0, 3, 1, 2)
        batch = np.multiply(planes, self.scale.reshape(-1, 1, 1), dtype=np.float32, order="C")
        return np.add(batch, self.shift.reshape(-1, 1, 1), out=batch)


def _refuse_batch_steps(spec: Sequence[Mapping[str, Any]]) -> None:
    names = {name for name, step in catalogue().items() if issubclass(step, BatchStep)}
    for entry in spec:
        if entry["name"] in names:
            raise ModelError(
                f"the model's pipeline has {entry['name']!r} before its end; beside the data only "
                f"{' and '.join(_AFFINE)} run on a batch, and they come last"
            )


def _refuse_other_dtype(step: ToDtype) -> None:
    if step.dtype != "float32":
        raise ModelError(f"the model's pipeline converts to {step.dtype}; frozen layers take float32")


def put_before(graph: bytes, affine: Affine) -> bytes:
    """The graph behind nodes that take uint8 images (n, height, width, channels) as `pixels`.

    The channels are moved first, while a value is one byte.
    """
    onnx = onnx_module()
    model = onnx.load_from_string(graph)
    (images,) = model.graph.input
    n, channels, height, width = images.type.tensor_type.shape.dim
    pixels = onnx.helper.make_tensor_value_info("pixels", onnx.TensorProto.UINT8, None)
    pixels.type.tensor_type.shape.dim.extend([n, height, width, channels])
    nodes = [*_nodes(onnx, images.name), *model.graph.node]
    model.graph.initializer.extend(_constants(onnx, affine))
    del model.graph.input[:], model.graph.node[:]
    model.graph.input.append(pixels)
    model.graph.node.extend(nodes)
    done: bytes = model.SerializeToString()
    return done


def _nodes(onnx: Any, images: str) -> list[Any]:
    make = onnx.helper.make_node
    return [
        make("Transpose", ["pixels"], ["pixels/planes"], perm=(0, 3, 1, 2)),
        make("Cast", ["pixels/planes"], ["pixels/floats"], to=onnx.TensorProto.FLOAT),
        make("Mul", ["pixels/floats", "pixels/scale"], ["pixels/scaled"]),
        make("Add", ["pixels/scaled", "pixels/shift"], [images]),
    ]


def _constants(onnx: Any, affine: Affine) -> list[Any]:
    values = {"pixels/scale": affine.scale, "pixels/shift": affine.shift}
    return [onnx.numpy_helper.from_array(value.reshape(1, -1, 1, 1), name) for name, value in values.items()]
