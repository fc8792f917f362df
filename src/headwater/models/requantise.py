"""New weights for int8 layers: rounded as before, while activations keep the ranges of their calibration.

To calibrate takes a pass over images, to round weights takes none. Ranges get old as training goes on; how
well the result ranks samples tells when.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headwater.errors import ModelRefused
from headwater.models.model import Model
from headwater.models.proto import parse

Array = NDArray[Any]

_QUANTISED = "_quantized"
_LARGEST = 127  # of symmetric int8
_UNPACKED = "DequantizeLinear"


@dataclass(frozen=True)
class _Layer:
    """Names of tensors of an int8 layer: its input's scale, and values and scale of weight and bias."""

    input_scale: str
    weight: tuple[str, str]
    bias: tuple[str, str] | None
    axis: int | None


def requantise(int8: Model, fp32: Model) -> Model:
    """The int8 model with the weights of another state of the model that it was made of.

    Raises `ModelRefused` if it was made of another architecture.
    """
    old, new = int8.part("trunk"), fp32.part("trunk")
    made = {name: new.get(name, array) for name, array in old.items()}
    for layer in _layers(int8):
        values, scale = layer.weight
        weight = _find(new, values, old[values])
        made[scale] = _scale_of(weight, layer.axis, old[scale])
        made[values] = _round(weight, _along(made[scale], weight, layer.axis), old[values])
        if layer.bias is not None:
            values, scale = layer.bias
            made[scale] = (old[layer.input_scale] * made[layer.weight[1]]).astype(np.float32)
            made[values] = _round(_find(new, values, old[values]), made[scale], old[values])
    head = {name: array for name, array in fp32.tensors.items() if name.startswith("head/")}
    found = replace(int8, tensors=head | {f"trunk/{name}": array for name, array in made.items()})
    return int8.with_tensors(found.tensors)


def _layers(model: Model) -> Iterator[_Layer]:
    """The layers whose weights are int8, by what unpacks them in the graph."""
    graph, known = parse(model.trunk).graph, model.part("trunk")
    unpacked = {node.output[0]: node for node in graph.node if node.op_type == _UNPACKED}
    for node in graph.node:
        sources = [unpacked.get(name) for name in node.input]
        weight = sources[1] if len(sources) > 1 else None
        if sources and sources[0] is not None and weight is not None and weight.input[0] in known:
            bias = sources[2] if len(sources) > 2 else None
            axes = [entry.i for entry in weight.attribute if entry.name == "axis"] or [1]
            yield _Layer(
                sources[0].input[1],
                (weight.input[0], weight.input[1]),
                None if bias is None else (bias.input[0], bias.input[1]),
                axes[0] if known[weight.input[1]].ndim else None,
            )


def _find(tensors: dict[str, Array], quantised: str, like: Array) -> Array:
    """The fp32 tensor that an int8 one was made of."""
    name = quantised.removesuffix(_QUANTISED)
    if name not in tensors or tensors[name].shape != like.shape:
        raise ModelRefused(f"there is no tensor {name!r} of {like.shape}: another architecture")
    return tensors[name]


def _scale_of(weight: Array, axis: int | None, old: Array) -> Array:
    """What one step of int8 means, for each channel if they have scales of their own; as before for zeros."""
    others = tuple(place for place in range(weight.ndim) if place != axis)
    most = np.abs(weight).max(axis=None if axis is None else others)
    return np.where(most > 0, most / _LARGEST, old).astype(np.float32)


def _along(scale: Array, weight: Array, axis: int | None) -> Array:
    if axis is None:
        return scale
    return scale.reshape([-1 if place == axis else 1 for place in range(weight.ndim)])


def _round(values: Array, scale: Array, like: Array) -> Array:
    limits = np.iinfo(like.dtype)
    rounded: Array = np.clip(np.round(values / scale), limits.min, limits.max).astype(like.dtype)
    return rounded
