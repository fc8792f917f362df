"""The graphs on either side of a cut through frozen layers, and where they may be cut at all.

A cut is a tensor of float32 with a row for each image that lies on every way from images to features. What
else the far side needs, a constant or the number of images, is had again there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, Any

import numpy as np

from headwater.errors import ModelError
from headwater.models.crossing import Crossing, Crossings, Shape
from headwater.models.proto import onnx_module, parse

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

MOST_NAME = 128
"""Characters of a cut's name; a tensor with a longer one, or one that cannot be printed, is no cut."""
VECTORS = "vectors"
"""The input of the far side: what crosses, flattened, (n, width)."""

_BATCHES = (5, 7)
"""Two sizes of a batch; an edge that is both of them is the batch."""
_SHAPE_OF_A_PART = 15  # the operator set since which `Shape` may tell some edges only


def find_crossings(graph: bytes) -> Crossings:
    """The cuts of a trunk that `graph.check` has passed; raises `ModelError` where shapes cannot be told."""
    flow = _Flow(parse(graph))
    return Crossings(tuple(flow.crossings()), flow.work)


def divide(graph: bytes, at: Crossing) -> tuple[bytes, bytes]:
    """The graphs before and after a cut of this graph, whose initialisers lie where they did.

    The first gives `features` (n, width of the cut), the second takes `vectors` of that shape. Where the cut
    comes out of int8, the second rounds to int8 again: what half precision changed on the way is undone.
    """
    flow = _Flow(parse(graph))
    return flow.before(at), flow.after(at, flow.unrounded(at.name))


class _Flow:
    """The nodes that the output of a graph needs, and which of what they make depends on the image."""

    def __init__(self, model: ModelProto) -> None:
        self._model = model
        (given,), (made,) = model.graph.input, model.graph.output
        self._given, self._made = given.name, made.name
        nodes = _sort(list(model.graph.node))
        del model.graph.node[:]
        model.graph.node.extend(nodes)
        self._nodes = _needed(nodes, {made.name})
        self._varying = self._find_varying()

    @cached_property
    def _edges(self) -> dict[str, Shape]:
        """Of weights and float32 tensors, for the first of the two batches."""
        return _infer(self._model, _BATCHES[0])

    @cached_property
    def _shapes(self) -> dict[str, Shape]:
        """Of float32 tensors with a row for each image: their shape for one image."""
        other = _infer(self._model, _BATCHES[1])
        return {
            name: edges[1:]
            for name, edges in self._edges.items()
            if edges[:1] == _BATCHES[:1] and other.get(name) == (_BATCHES[1], *edges[1:])
        }

    def _find_varying(self) -> set[str]:
        found = {self._given}
        for node in self._nodes:
            if not self._tells_shape(node) and found.intersection(node.input):
                found.update(node.output)
        return found

    def _tells_shape(self, node: NodeProto) -> bool:
        """Whether it only asks for a shape, of which but the number of images is known beforehand."""
        opset = self._model.opset_import[0].version
        return node.op_type == "Shape" and opset >= _SHAPE_OF_A_PART and node.input[0] in self._shapes

    @property
    def work(self) -> int:
        return sum(self._multiplications(node) for node in self._nodes)

    def crossings(self) -> Iterator[Crossing]:
        last: dict[str, int] = {}
        for place, node in enumerate(self._nodes):
            if not self._tells_shape(node):
                last.update((name, place) for name in node.input if name in self._varying)
        alive, seen, work = {self._given}, {self._given, self._made}, 0
        for place, node in enumerate(self._nodes):
            work += self._multiplications(node)
            alive.update(name for name in node.output if last.get(name, -1) > place)
            alive = {name for name in alive if last.get(name, -1) > place}
            if len(alive) == 1 and (name := next(iter(alive))) not in seen and self._may_cross(name):
                seen.add(name)
                yield Crossing(name, self._shapes[name], work)

    def _may_cross(self, name: str) -> bool:
        return name in self._shapes and len(name) <= MOST_NAME and name.isprintable()

    def unrounded(self, name: str) -> str:
        """The tensor of which this is what int8 left, or itself."""
        makers = {output: node for node in self._nodes for output in node.output}
        last = makers.get(name)
        first = makers.get(last.input[0]) if last is not None and last.input else None
        kinds = [node.op_type if node is not None else "" for node in (first, last)]
        if kinds != ["QuantizeLinear", "DequantizeLinear"]:
            return name
        assert first is not None
        return first.input[0] if self._shapes.get(first.input[0]) == self._shapes.get(name) else name

    def before(self, at: Crossing) -> bytes:
        nodes = _needed(self._nodes, {at.name})
        flat = _node("Reshape", [at.name, "cut/width"], [self._made])
        return self._build(
            nodes,
            after=[flat],
            ports=(self._model.graph.input[0], _port(self._made, at.width)),
            constants={"cut/width": (0, at.width)},
        )

    def after(self, at: Crossing, start: str) -> bytes:
        nodes: list[NodeProto] = []
        constants: dict[str, Shape] = {}
        for node in self._nodes:
            told, needs = self._retell(node) if self._tells_shape(node) else ([node], {})
            nodes += told
            constants |= needs
        nodes = _needed(nodes, {self._made}, but={start})
        used = {name for node in nodes for name in node.input}
        constants = {name: values for name, values in constants.items() if name in used}
        unfolded = _node("Reshape", [VECTORS, "cut/shape"], [start])
        ports = _port(VECTORS, at.width), self._model.graph.output[0]
        return self._build(
            nodes, first=[unfolded], ports=ports, constants={"cut/shape": (0, *at.shape), **constants}
        )

    def _retell(self, node: NodeProto) -> tuple[list[NodeProto], dict[str, Shape]]:
        """A shape without the tensor that had it: the number of images is that of the vectors."""
        (name,), edges = node.output, self._shapes[node.input[0]]
        places = range(1 + len(edges))[_slice(node)]
        known = {f"{name}/rest": tuple(edges[place - 1] for place in places if place)}
        if 0 not in places:
            return [_node("Identity", [f"{name}/rest"], [name])], known
        if len(places) == 1:
            return [_node("Shape", [VECTORS], [name], start=0, end=1)], {}
        rows = _node("Shape", [VECTORS], [f"{name}/rows"], start=0, end=1)
        return [rows, _node("Concat", [f"{name}/rows", f"{name}/rest"], [name], axis=0)], known

    def _multiplications(self, node: NodeProto) -> int:
        """For one image."""
        if node.op_type not in ("Conv", "Gemm", "MatMul"):
            return 0
        result, weight = self._edges.get(node.output[0]), self._edges.get(node.input[1])
        first = self._edges.get(node.input[0])
        if not result or not weight or not first:
            return 0
        each = math.prod(weight[1:]) if node.op_type == "Conv" else first[-1]
        return math.prod(result) * each // _BATCHES[0]

    def _build(
        self,
        nodes: list[NodeProto],
        *,
        ports: tuple[Any, Any],
        constants: dict[str, Shape],
        first: list[NodeProto] | None = None,
        after: list[NodeProto] | None = None,
    ) -> bytes:
        """A model like this one, of these nodes and of those of its initialisers that they use."""
        onnx = onnx_module()
        used = {name for node in nodes for name in node.input} - set(constants)
        kept = [tensor for tensor in self._model.graph.initializer if tensor.name in used]
        made: ModelProto = onnx.ModelProto()
        made.CopyFrom(self._model)
        made.ClearField("graph")
        made.graph.name = self._model.graph.name
        made.graph.node.extend([*(first or ()), *nodes, *(after or ())])
        made.graph.initializer.extend(kept)
        for name, values in constants.items():
            made.graph.initializer.append(onnx.numpy_helper.from_array(np.array(values, np.int64), name))
        made.graph.input.append(ports[0])
        made.graph.output.append(ports[1])
        done: bytes = made.SerializeToString(deterministic=True)
        return done


def _sort(nodes: list[NodeProto]) -> list[NodeProto]:
    """Each after those whose results it takes: ONNX Runtime sorts for itself, and its own tools do not."""
    makers = {name: place for place, node in enumerate(nodes) for name in node.output if name}
    before = {
        place: {makers[name] for name in node.input if name in makers} for place, node in enumerate(nodes)
    }
    try:
        return [nodes[place] for place in TopologicalSorter(before).static_order()]
    except CycleError as error:
        raise ModelError("the nodes of the graph wait for each other in a circle") from error


def _needed(nodes: list[NodeProto], wanted: set[str], *, but: set[str] | None = None) -> list[NodeProto]:
    """The nodes, in their order, without which `wanted` cannot be made; `but` is there already."""
    there, kept, wanted = but or set(), [], set(wanted)
    for node in reversed(nodes):
        if (wanted - there).intersection(node.output):
            kept.append(node)
            wanted.update(node.input)
    return kept[::-1]


def _infer(model: ModelProto, batch: int) -> dict[str, Shape]:
    """Shapes of all tensors that are known for a batch of this size; other types than float32 have none."""
    onnx = onnx_module()
    fixed: ModelProto = onnx.ModelProto()
    fixed.CopyFrom(model)
    fixed.graph.ClearField("value_info")
    (given,), (made,) = fixed.graph.input, fixed.graph.output
    given.type.tensor_type.shape.dim[0].dim_value = batch
    made.type.tensor_type.shape.dim[0].Clear()
    try:
        told = onnx.shape_inference.infer_shapes(fixed, data_prop=True).graph
    except Exception as error:  # its kinds of error derive from Exception alone
        raise ModelError(f"the shapes inside the layers cannot be told: {error}") from error
    found = {value.name: _shape_of(value) for value in (*told.input, *told.value_info, *told.output)}
    weights = {tensor.name: tuple(tensor.dims) for tensor in told.initializer}
    return {**weights, **{name: edges for name, edges in found.items() if edges is not None}}


def _shape_of(value: Any) -> Shape | None:
    kind = value.type.tensor_type
    edges = tuple(edge.dim_value for edge in kind.shape.dim)
    fits = kind.elem_type == onnx_module().TensorProto.FLOAT and kind.HasField("shape")
    return edges if fits and all(edge > 0 for edge in edges) else None


def _slice(node: NodeProto) -> slice:
    bounds = {attribute.name: attribute.i for attribute in node.attribute}
    return slice(bounds.get("start", 0), bounds.get("end"))


def _node(kind: str, given: list[str], made: list[str], **attributes: Any) -> NodeProto:
    done: NodeProto = onnx_module().helper.make_node(kind, given, made, **attributes)
    return done


def _port(name: str, width: int) -> Any:
    onnx = onnx_module()
    return onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n", width])
