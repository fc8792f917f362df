"""An ONNX classifier from elsewhere as trunk and linear head: its last layer becomes the head."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from headwater.errors import ModelRefused
from headwater.models.graph import split_tensors
from headwater.models.model import Model
from headwater.models.proto import onnx_module, parse, to_array

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto

_PASSED_OVER = ("Softmax", "LogSoftmax", "Identity")
"""At the end of a classifier: the head gives logits."""


@dataclass(frozen=True, eq=False)
class _Head:
    """The name of what the last layer takes, its weight (classes, features) and its bias."""

    features: str
    weight: NDArray[Any]
    bias: NDArray[Any]


def read_classifier(
    data: bytes, *, classes: Sequence[str] | None = None, steps: Sequence[dict[str, Any]]
) -> Model:
    """The model in an ONNX file that holds its weights; raises `ModelRefused` for one that cannot be cut.

    It must take float32 images (n, 3, height, width) and end in Gemm, or in MatMul and Add, whose matrix is a
    constant. Classes without names are called by their numbers.
    """
    model = parse(data)
    head = _find_head(model.graph)
    _cut(model, head)
    trunk, tensors = split_tensors(model.SerializeToString())
    named = {f"trunk/{name}": array for name, array in tensors.items()}
    named |= {"head/weight": head.weight, "head/bias": head.bias}
    names = tuple(str(number) for number in range(len(head.bias))) if classes is None else tuple(classes)
    return Model(trunk, None, named, names, tuple(steps))


def _find_head(graph: GraphProto) -> _Head:
    makers = {name: node for node in graph.node for name in node.output}
    if len(graph.output) != 1:
        raise ModelRefused(f"the model has {len(graph.output)} outputs; a classifier has one")
    last = makers.get(graph.output[0].name)
    while last is not None and last.op_type in _PASSED_OVER:
        last = makers.get(last.input[0])
    constants = {tensor.name: tensor for tensor in graph.initializer}

    def find(name: str) -> NDArray[Any] | None:
        return to_array(constants[name]) if name in constants else None

    head = None
    if last is not None and last.op_type == "Gemm":
        head = _from_gemm(last, [find(name) for name in last.input])
    elif last is not None and last.op_type == "Add":
        head = _from_sum(last, makers, [find(name) for name in last.input], find)
    if head is None:
        found = "nothing" if last is None else last.op_type
        raise ModelRefused(
            f"the model ends in {found}, not in a linear layer of constant weights; "
            "cut it in torch with hw.split(model, at=...)"
        )
    return head


def _from_gemm(node: NodeProto, values: list[NDArray[Any] | None]) -> _Head | None:
    plain = {"alpha": 1.0, "beta": 1.0, "transA": 0, "transB": 0}
    said = plain | {
        entry.name: entry.f if entry.name in ("alpha", "beta") else entry.i for entry in node.attribute
    }
    weight = values[1]
    bias = values[2] if len(values) > 2 else None
    if weight is None or (len(values) > 2 and bias is None):
        return None
    if (said["alpha"], said["beta"], said["transA"]) != (1.0, 1.0, 0):
        return None
    return _to_head(node.input[0], weight if said["transB"] else weight.T, bias)


def _from_sum(node: NodeProto, makers: Any, values: list[NDArray[Any] | None], find: Any) -> _Head | None:
    """A product with a matrix, and a bias, in either order."""
    for place, bias in enumerate(values):
        product = makers.get(node.input[1 - place])
        if bias is not None and product is not None and product.op_type == "MatMul":
            weight = find(product.input[1])
            return None if weight is None else _to_head(product.input[0], weight.T, bias)
    return None


def _to_head(features: str, weight: NDArray[Any], bias: NDArray[Any] | None) -> _Head | None:
    if weight.ndim != 2 or (bias is not None and bias.size not in (1, len(weight))):
        return None
    flat = np.zeros(len(weight)) if bias is None else np.broadcast_to(bias.reshape(-1), (len(weight),))
    return _Head(features, np.ascontiguousarray(weight, np.float32), np.ascontiguousarray(flat, np.float32))


def _cut(model: ModelProto, head: _Head) -> None:
    """Leave what leads to the features, and call both ends as a trunk's are called."""
    graph = model.graph
    nodes = _needed(graph, head.features)
    used = {name for node in nodes for name in node.input}
    constants = {tensor.name for tensor in graph.initializer}
    kept = _copies(tensor for tensor in graph.initializer if tensor.name in used)
    inputs = _copies(value for value in graph.input if value.name not in constants)
    if len(inputs) != 1 or not nodes:
        raise ModelRefused(f"the model has {len(inputs)} inputs and {len(nodes)} layers before the last")
    for field in ("node", "initializer", "input", "output", "value_info"):
        graph.ClearField(field)
    graph.node.extend(nodes)
    graph.initializer.extend(kept)
    graph.input.extend(inputs)
    onnx = onnx_module()
    shape = ["n", head.weight.shape[1]]
    graph.output.append(onnx.helper.make_tensor_value_info(head.features, onnx.TensorProto.FLOAT, shape))
    _rename(graph, {inputs[0].name: "images", head.features: "features"})


def _needed(graph: GraphProto, target: str) -> list[NodeProto]:
    wanted, nodes = {target}, []
    for node in reversed(graph.node):  # a graph lists its nodes in the order in which they run
        if wanted & set(node.output):
            wanted |= set(node.input)
            nodes.append(node)
    return _copies(reversed(nodes))


def _copies(messages: Iterable[Any]) -> list[Any]:
    """What outlives the graph that it is in."""
    copies = []
    for message in messages:
        copies.append(type(message)())
        copies[-1].CopyFrom(message)
    return copies


def _rename(graph: GraphProto, names: dict[str, str]) -> None:
    """Names that are taken already make room."""
    every = {name for node in graph.node for name in (*node.input, *node.output)}
    moved = {name: f"{name} of the file" for name in names.values() if name in every and name not in names}
    names = moved | names
    for node in graph.node:
        for values in (node.input, node.output):
            values[:] = [names.get(name, name) for name in values]
    for value in (*graph.input, *graph.output, *graph.initializer):
        value.name = names.get(value.name, value.name)
