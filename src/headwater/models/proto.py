"""ONNX messages: read within limits, tidied, their tensors taken out. `graph` says what they may hold."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from headwater.errors import MissingExtra, ModelRefused
from headwater.models.version import DTYPES

if TYPE_CHECKING:
    from onnx import ModelProto, TensorProto

MOST_FILE_BYTES = (2 << 30) - 1
"""What protobuf can hold."""
_TYPES = {
    **{name.upper(): name for name in DTYPES if name not in ("float32", "float64")},
    "FLOAT": "float32",
    "DOUBLE": "float64",
}
_PICKLE_PROTOCOLS = (2, 3, 4, 5)


def onnx_module() -> ModuleType:
    """onnx, on first use; raises `MissingExtra` where it is not installed."""
    try:
        import onnx
    except ImportError as error:
        raise MissingExtra(f"graphs need {error.name}; pip install 'headwater[models]'") from error
    found: ModuleType = onnx
    return found


def parse(data: bytes, *, most: int = MOST_FILE_BYTES) -> ModelProto:
    """An ONNX model of at most so many bytes; raises `ModelRefused`, also for fields unknown to onnx."""
    check_size(len(data), most=most)
    if is_pickled(data):
        raise ModelRefused("pickled content instead of ONNX; export the model")
    onnx = onnx_module()
    from google.protobuf.message import DecodeError

    model: ModelProto = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError as error:
        raise ModelRefused(f"not an ONNX model: {error}") from error
    _refuse_unknown_fields(model)
    return model


def check_size(nbytes: int, *, most: int = MOST_FILE_BYTES) -> None:
    """Raise `ModelRefused` for more bytes than are taken: of a file, before it is read."""
    if nbytes > most:
        raise ModelRefused(f"an ONNX model of {nbytes:,} bytes; at most {most:,} are taken")


def _refuse_unknown_fields(model: ModelProto) -> None:
    """The runtime's own, newer reader may know what this one passes over."""
    onnx = onnx_module()
    known = onnx.ModelProto()
    known.CopyFrom(model)
    known.DiscardUnknownFields()
    if known.ByteSize() != model.ByteSize():
        raise ModelRefused(f"the graph has fields that onnx {onnx.__version__} does not know; export it anew")


def is_pickled(data: bytes | memoryview) -> bool:
    """Whether bytes begin as pickles and the archives of `torch.save` do."""
    start = bytes(data[:4])
    return start == b"PK\x03\x04" or (start[:1] == b"\x80" and start[1:2] in map(_byte, _PICKLE_PROTOCOLS))


def _byte(number: int) -> bytes:
    return bytes([number])


def tidy(model: ModelProto) -> None:
    """Take out what a graph runs without: texts, which tell of the exporter's machine, and unused domains."""
    graph = model.graph
    values = (*graph.input, *graph.output, *graph.value_info)
    for part in (model, graph, *graph.node, *graph.initializer, *values):
        part.ClearField("doc_string")
        part.ClearField("metadata_props")
    for node in graph.node:
        for attribute in node.attribute:
            attribute.ClearField("doc_string")
    graph.ClearField("quantization_annotation")
    used = {node.domain for node in graph.node} | {""}
    imports = [entry for entry in model.opset_import if entry.domain in used]
    model.ClearField("opset_import")
    model.opset_import.extend(imports)


def to_array(tensor: TensorProto) -> NDArray[Any]:
    """The values of a tensor that a file holds inside; raises `ModelRefused`."""
    from onnx import numpy_helper

    dtype = dtype_named(tensor.data_type, tensor.name)
    if tensor.data_location == tensor.EXTERNAL:
        raise ModelRefused(f"tensor {tensor.name!r} refers to a file; save the model with its weights inside")
    try:
        array: NDArray[Any] = numpy_helper.to_array(tensor)
    except (ValueError, TypeError, KeyError) as error:
        raise ModelRefused(
            f"tensor {tensor.name!r} has other values than its shape asks for: {error}"
        ) from error
    return array.astype(dtype, copy=False)


def dtype_named(number: int, of: str) -> str:
    """The name of ONNX's type of this number; raises `ModelRefused` for one that is not kept."""
    kinds = onnx_module().TensorProto.DataType
    name = kinds.Name(number) if number in kinds.values() else str(number)
    if name not in _TYPES:
        raise ModelRefused(f"{of!r} is of type {name}; allowed: {', '.join(DTYPES)}")
    return _TYPES[name]


def value_fields(tensor: TensorProto) -> list[str]:
    """Names of the fields that hold values."""
    names = [field.name for field, _ in tensor.ListFields()]
    return [name for name in names if name.endswith("_data") and name != "external_data"]
