"""Executable graphs as the registry takes them: ONNX without tensor data, and nothing that is not known.

What is not on a list is refused: fields, operators, kinds of attributes. So a graph has no code, no subgraph,
no function, no operator of another domain, and no way to name a file. How long it computes is not bounded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from headwater.errors import ModelRefused
from headwater.models.proto import dtype_named, parse, tidy, to_array, value_fields
from headwater.models.version import TensorFacts

if TYPE_CHECKING:
    from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

LOCATION = "registry"
"""Where every external tensor is said to lie; no file is called so, nor looked for."""
MOST_BYTES = 16 << 20
INLINE_BYTES = 1 << 10
"""A constant of at most so many bytes may stand in the graph itself: shapes, axes, bounds."""
IR_VERSIONS = range(7, 13)
OPSETS = range(13, 24)
OPERATORS = frozenset(
    [
        *(
            "Abs",
            "Add",
            "And",
            "AveragePool",
            "BatchNormalization",
            "Cast",
            "Clip",
            "Concat",
            "Constant",
            "Conv",
        ),
        *("DepthToSpace", "DequantizeLinear", "Div", "Dropout"),
        *("Elu", "Equal", "Erf", "Exp", "Expand", "Flatten", "Gather"),
        *(
            "Gelu",
            "Gemm",
            "GlobalAveragePool",
            "GlobalMaxPool",
            "Greater",
            "GroupNormalization",
            "HardSigmoid",
            "HardSwish",
        ),
        *("Identity", "InstanceNormalization", "LRN", "LayerNormalization", "LeakyRelu", "Log", "LogSoftmax"),
        *("MatMul", "Max", "MaxPool", "Mean", "Min", "Mish", "Mul", "Neg", "PRelu", "Pad", "Pow"),
        *(
            "QuantizeLinear",
            "Reciprocal",
            "ReduceL2",
            "ReduceMax",
            "ReduceMean",
            "ReduceSum",
            "Relu",
            "Reshape",
        ),
        *(
            "Selu",
            "Shape",
            "Sigmoid",
            "Slice",
            "Softmax",
            "Softplus",
            "Split",
            "Sqrt",
            "Squeeze",
            "Sub",
            "Sum",
        ),
        *("Tanh", "Transpose", "Trilu", "Unsqueeze", "Where"),
    ]
)
"""What image classifiers infer with, float and int8: no If, Loop or Scan, nothing random."""
_FIELDS = {
    "ModelProto": {
        *("ir_version", "opset_import", "producer_name", "producer_version", "domain", "model_version"),
        "graph",
    },
    "GraphProto": {"node", "name", "initializer", "input", "output", "value_info"},
    "NodeProto": {"input", "output", "name", "op_type", "domain", "attribute"},
    "AttributeProto": {"name", "type", "f", "i", "s", "t", "floats", "ints", "strings"},
    "TensorProto": {
        *("dims", "data_type", "name", "data_location", "external_data", "raw_data"),
        *("float_data", "int32_data", "int64_data", "double_data", "uint64_data"),
    },
    "TypeProto": {"tensor_type"},
}
"""What each message may hold. So there are no functions, no training, no sparse tensors, no texts."""


@dataclass(frozen=True)
class Port:
    """An input or output of a graph; None stands for an edge that is not fixed."""

    name: str
    dtype: str
    shape: tuple[int | None, ...]


@dataclass(frozen=True)
class Ports:
    """The one input and the one output of a graph."""

    input: Port
    output: Port


def check(data: bytes, tensors: Mapping[str, TensorFacts]) -> Ports:
    """What goes in and out of a graph whose external tensors are exactly `tensors`, by initialiser name.

    Raises `ModelRefused` for anything else, and names it. Nothing is executed, no file is opened.
    """
    model = parse(data, most=MOST_BYTES)
    _check_fields(model)
    _check_versions(model)
    _check_fields(model.graph)
    for node in model.graph.node:
        _check_node(node)
    for value in model.graph.value_info:
        _check_fields(value.type)
    _check_initialisers(model.graph, tensors)
    return Ports(_find_port(model.graph, "input"), _find_port(model.graph, "output"))


def check_trunk(ports: Ports) -> int:
    """The number of features; raises `ModelRefused` unless the graph takes images to features."""
    images, features = ports.input, ports.output
    _check_port(images, "images", edges=4)
    _check_port(features, "features", edges=2)
    if images.shape[1] != 3:
        raise ModelRefused(f"the trunk takes images {images.shape}; they must be (n, 3, height, width)")
    if not features.shape[1]:
        raise ModelRefused("the trunk does not say how many features it gives; export it with a fixed number")
    return features.shape[1]


def check_head(ports: Ports, features: int) -> int:
    """The number of classes; raises `ModelRefused` unless the graph takes so many features to logits."""
    _check_port(ports.input, "features", edges=2)
    _check_port(ports.output, "logits", edges=2)
    if ports.input.shape[1] != features:
        raise ModelRefused(f"the head takes {ports.input.shape[1]} features, and the trunk gives {features}")
    if not ports.output.shape[1]:
        raise ModelRefused("the head does not say how many classes it has; export it with a fixed number")
    return ports.output.shape[1]


def split_tensors(data: bytes) -> tuple[bytes, dict[str, NDArray[Any]]]:
    """The graph of an ONNX file without its tensors, texts and unused domains, and the tensors by name.

    Only short lists of int64, which are shapes and axes, stay inside: other weights make no other graph.
    """
    model = parse(data)
    tidy(model)
    tensors: dict[str, NDArray[Any]] = {}
    for tensor in model.graph.initializer:
        array = to_array(tensor)
        if array.dtype != "int64" or array.ndim > 1 or tensor.ByteSize() > INLINE_BYTES:
            tensors[tensor.name] = array
            _empty(tensor)
    return model.SerializeToString(deterministic=True), tensors


def _empty(tensor: TensorProto) -> None:
    """Leave name, type and shape, and say that the values are in the registry."""
    for field in value_fields(tensor):
        tensor.ClearField(field)
    tensor.data_location = tensor.EXTERNAL
    entry = tensor.external_data.add()
    entry.key, entry.value = "location", LOCATION


def _check_fields(message: Any) -> None:
    kind = message.DESCRIPTOR.name
    for field, _ in message.ListFields():
        if field.name not in _FIELDS[kind]:
            of = f" of {message.name!r}" if getattr(message, "name", "") else ""
            raise ModelRefused(f"the graph has {kind}.{field.name}{of}, which is not allowed")


def _check_versions(model: ModelProto) -> None:
    if model.ir_version not in IR_VERSIONS:
        raise ModelRefused(f"IR version {model.ir_version}; known are {IR_VERSIONS[0]} to {IR_VERSIONS[-1]}")
    found = [(entry.domain, entry.version) for entry in model.opset_import]
    if len(found) != 1 or found[0][0] or found[0][1] not in OPSETS:
        known = f"{OPSETS[0]} to {OPSETS[-1]}"
        raise ModelRefused(f"operator sets {found}; allowed is ONNX's own, '', alone, of version {known}")


def _check_node(node: NodeProto) -> None:
    _check_fields(node)
    if node.domain or node.op_type not in OPERATORS:
        name = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
        raise ModelRefused(f"operator {name!r} is not allowed; docs/reference/models.md lists those that are")
    if node.op_type == "Dropout" and len(node.input) > 2:
        raise ModelRefused(
            "operator 'Dropout' may be told to train, which draws at random; export in eval mode"
        )
    for attribute in node.attribute:
        _check_attribute(node, attribute)


def _check_attribute(node: NodeProto, attribute: AttributeProto) -> None:
    _check_fields(attribute)
    if attribute.name == "training_mode" and attribute.i:
        raise ModelRefused(f"operator {node.op_type!r} trains; export the model in eval mode")
    if attribute.HasField("t"):
        if node.op_type != "Constant":
            raise ModelRefused(f"operator {node.op_type!r} has a tensor for {attribute.name!r}: not allowed")
        _check_inline(attribute.t)
    elif attribute.ByteSize() > INLINE_BYTES:
        raise ModelRefused(f"attribute {attribute.name!r} of {node.op_type!r} is over {INLINE_BYTES:,} bytes")


def _check_initialisers(graph: GraphProto, tensors: Mapping[str, TensorFacts]) -> None:
    """Those that are not small constants must be exactly `tensors`."""
    names = [tensor.name for tensor in graph.initializer]
    if len(set(names)) != len(names):
        raise ModelRefused("two initialisers of the graph have one name")
    outside = set()
    for tensor in graph.initializer:
        if tensor.data_location == tensor.EXTERNAL:
            _check_external(tensor, tensors)
            outside.add(tensor.name)
        else:
            _check_inline(tensor)
    strange = sorted(set(tensors) - outside)
    if strange:
        raise ModelRefused(f"the graph has no tensor {strange[0]!r}: another architecture")


def _check_external(tensor: TensorProto, tensors: Mapping[str, TensorFacts]) -> None:
    _check_fields(tensor)
    said = [(entry.key, entry.value) for entry in tensor.external_data]
    if said != [("location", LOCATION)]:
        raise ModelRefused(f"tensor {tensor.name!r} refers to {said}; tensors come from the registry alone")
    if value_fields(tensor):
        raise ModelRefused(f"tensor {tensor.name!r} has values inside the graph and outside")
    if tensor.name not in tensors:
        raise ModelRefused(f"the graph wants a tensor {tensor.name!r}: another architecture")
    wanted, found = (dtype_named(tensor.data_type, tensor.name), tuple(tensor.dims)), tensors[tensor.name]
    if wanted != (found.dtype, found.shape):
        raise ModelRefused(
            f"the graph wants {tensor.name!r} as {wanted[0]} {wanted[1]}, "
            f"and it is {found.dtype} {found.shape}: another architecture"
        )


def _check_inline(tensor: TensorProto) -> None:
    _check_fields(tensor)
    dtype_named(tensor.data_type, tensor.name)
    if tensor.data_location or tensor.external_data:
        raise ModelRefused(f"constant {tensor.name!r} refers to a file")
    if tensor.ByteSize() > INLINE_BYTES:
        raise ModelRefused(
            f"constant {tensor.name!r} of {tensor.ByteSize():,} bytes stands in the graph; over "
            f"{INLINE_BYTES:,} it belongs to the registry"
        )


def _find_port(graph: GraphProto, side: str) -> Port:
    found: list[ValueInfoProto] = list(getattr(graph, side))
    if len(found) != 1:
        raise ModelRefused(f"the graph has {len(found)} {side}s; allowed is one")
    (value,) = found
    _check_fields(value.type)
    tensor = value.type.tensor_type
    edges = tuple(edge.dim_value if edge.HasField("dim_value") else None for edge in tensor.shape.dim)
    return Port(value.name, dtype_named(tensor.elem_type, value.name), edges)


def _check_port(port: Port, name: str, *, edges: int) -> None:
    if (port.name, port.dtype, len(port.shape)) != (name, "float32", edges):
        raise ModelRefused(
            f"the graph has {port.name!r}, {port.dtype} {port.shape}; "
            f"wanted is {name!r}, float32, of {edges} edges"
        )
    if port.shape[0] is not None:
        raise ModelRefused(
            f"{name!r} is fixed to {port.shape[0]} images; export with a dynamic batch: in torch, x.shape[0] "
            "and not len(x)"
        )
