"""Small models for tests of the registry, made of ONNX nodes by hand: no torch, a few kilobytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from headwater import transforms
from headwater.models.graph import split_tensors
from headwater.models.model import Model, strip
from headwater.models.version import TensorFacts

SIZE = 8
FEATURES = 4
CLASSES = ("red", "green", "blue")
STEPS = tuple(
    transforms.Compose(
        [transforms.Resize(SIZE), transforms.CenterCrop(SIZE), transforms.Normalize(0.45, 0.25)]
    ).spec()
)

Tensors = Mapping[str, NDArray[Any]]


def make_tensors(
    seed: int = 0, *, classes: int = len(CLASSES), features: int = FEATURES
) -> dict[str, NDArray[Any]]:
    """Weights of one convolution and of a linear head, by their names in a version."""
    rng = np.random.default_rng(seed)
    shapes = {
        "trunk/conv.weight": (features, 3, 3, 3),
        "trunk/conv.bias": (features,),
        "head/weight": (classes, features),
        "head/bias": (classes,),
    }
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def trunk_nodes() -> list[onnx.NodeProto]:
    """Convolution, activation, pooling, and a reshape that needs a constant."""
    return [
        helper.make_node("Conv", ["images", "conv.weight", "conv.bias"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("GlobalAveragePool", ["b"], ["c"]),
        helper.make_node("Reshape", ["c", "shape"], ["features"]),
    ]


def trunk_file(tensors: Tensors | None = None, *, nodes: list[onnx.NodeProto] | None = None) -> bytes:
    """A trunk as an exporter writes it, with its weights inside."""
    named = strip(tensors or make_tensors(), "trunk")
    features = len(named["conv.bias"])
    return write_graph(
        nodes or trunk_nodes(),
        {**named, "shape": np.array([-1, features])},
        images=("images", ["n", 3, SIZE, SIZE]),
        out=("features", ["n", features]),
    )


SHAPE = np.array([-1, FEATURES], np.int64)


def write_graph(
    nodes: list[onnx.NodeProto],
    constants: Tensors,
    *,
    images: tuple[str, list[Any]],
    out: tuple[str, list[Any]],
) -> bytes:
    """An ONNX file of these nodes, float32 in and out."""
    graph = helper.make_graph(
        nodes,
        "test",
        [helper.make_tensor_value_info(images[0], TensorProto.FLOAT, images[1])],
        [helper.make_tensor_value_info(out[0], TensorProto.FLOAT, out[1])],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    done: bytes = model.SerializeToString()
    return done


def classifier_file(ending: str = "gemm", *, seed: int = 0, int8: bool = False) -> bytes:
    """A whole classifier as an exporter writes it; `ending` says what its last layer is made of."""
    tensors = make_tensors(seed)
    weight, bias = tensors["head/weight"], tensors["head/bias"]
    constants = {name.removeprefix("trunk/"): array for name, array in tensors.items() if "trunk/" in name}
    endings = {
        "gemm": [helper.make_node("Gemm", ["features", "fc.weight", "fc.bias"], ["logits"], transB=1)],
        "gemm without bias": [helper.make_node("Gemm", ["features", "fc.weight"], ["logits"], transB=1)],
        "sum": [
            helper.make_node("MatMul", ["features", "fc.weight"], ["product"]),
            helper.make_node("Add", ["fc.bias", "product"], ["logits"]),
        ],
        "softmax": [
            helper.make_node("Gemm", ["features", "fc.weight", "fc.bias"], ["raw"]),
            helper.make_node("Softmax", ["raw"], ["logits"]),
        ],
        "scaled": [helper.make_node("Gemm", ["features", "fc.weight"], ["logits"], transB=1, alpha=2.0)],
        "relu": [helper.make_node("Relu", ["features"], ["logits"])],
    }
    constants |= {"shape": SHAPE, "fc.bias": bias}
    constants["fc.weight"] = weight if "transB" in str(endings[ending][0]) else weight.T.copy()
    trunk = trunk_nodes()
    if int8:
        trunk[2:3] = rounding_nodes()
        constants |= {"scale": np.array(0.05, np.float32), "zero": np.array(0, np.uint8)}
    return write_graph(
        [*trunk, *endings[ending]],
        constants,
        images=("images", ["n", 3, SIZE, SIZE]),
        out=("logits", ["n", len(bias)]),
    )


def make_model(seed: int = 0, *, tensors: Tensors | None = None) -> Model:
    """A model that a registry takes; other seeds are other weights of the same architecture."""
    found = dict(tensors or make_tensors(seed))
    trunk, _ = split_tensors(trunk_file(found))
    count = len(found["head/bias"])
    names = CLASSES if count == len(CLASSES) else tuple(str(number) for number in range(count))
    return Model(trunk, None, found, names, STEPS)


def make_int8(seed: int = 12) -> Model:
    """A model whose activations are rounded to 8 bits."""
    tensors = {
        **make_tensors(seed),
        "trunk/scale": np.array(0.05, np.float32),
        "trunk/zero": np.array(0, np.uint8),
    }
    first, relu, _, last = trunk_nodes()
    trunk, _ = split_tensors(trunk_file(tensors, nodes=[first, relu, *rounding_nodes(), last]))
    return replace(make_model(seed), trunk=trunk, tensors=tensors)


def rounding_nodes() -> list[onnx.NodeProto]:
    """What comes in the place of the pooling."""
    return [
        helper.make_node("QuantizeLinear", ["b", "scale", "zero"], ["b8"]),
        helper.make_node("DequantizeLinear", ["b8", "scale", "zero"], ["b32"]),
        helper.make_node("GlobalAveragePool", ["b32"], ["c"]),
    ]


def change(model: Model, **arrays: NDArray[Any]) -> Model:
    """The model with some tensors replaced; `head_weight` stands for `head/weight`."""
    named = {name.replace("_", "/", 1): array for name, array in arrays.items()}
    return Model(model.trunk, model.head, {**model.tensors, **named}, model.classes, model.steps)


def new_head(model: Model, seed: int) -> Model:
    """The same trunk under another head."""
    classes, features = model.tensors["head/weight"].shape
    other = make_tensors(seed, classes=classes, features=features)
    return change(model, head_weight=other["head/weight"], head_bias=other["head/bias"])


def facts_of(tensors: Tensors) -> dict[str, TensorFacts]:
    return {name: TensorFacts.of(array) for name, array in tensors.items()}


def are_same(first: Tensors, second: Tensors) -> bool:
    """To the bit."""
    return facts_of(first) == facts_of(second)
