from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from graphs import (
    CLASSES,
    FEATURES,
    SHAPE,
    SIZE,
    STEPS,
    classifier_file,
    make_tensors,
    trunk_nodes,
    write_graph,
)
from headwater.errors import ModelRefused
from headwater.models.classifier import read_classifier
from headwater.models.runtime import Engine, onnxruntime

IMAGES = np.random.default_rng(0).normal(size=(5, 3, SIZE, SIZE)).astype(np.float32)


def run_whole(data: bytes) -> np.ndarray:  # type: ignore[type-arg]
    """What ONNX Runtime makes of the file as it is."""
    session = onnxruntime().InferenceSession(data, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {session.get_inputs()[0].name: IMAGES})
    return found


@pytest.mark.parametrize("ending", ["gemm", "gemm without bias", "sum"])
def test_trunk_and_head_give_the_logits_of_the_file(ending: str) -> None:
    data = classifier_file(ending)
    model = read_classifier(data, classes=CLASSES, steps=STEPS)
    assert model.check() == FEATURES
    engine = Engine(model)
    logits = engine.logits(engine.features(IMAGES))
    assert np.abs(logits - run_whole(data)).max() < 1e-6


def test_a_softmax_at_the_end_is_left_to_the_engine() -> None:
    data = classifier_file("softmax")
    engine = Engine(read_classifier(data, classes=CLASSES, steps=STEPS))
    logits = engine.logits(engine.features(IMAGES))
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    assert np.abs(shares - run_whole(data)).max() < 1e-6


def test_the_head_is_that_of_the_file() -> None:
    tensors = make_tensors()
    model = read_classifier(classifier_file("softmax"), classes=CLASSES, steps=STEPS)
    assert set(model.tensors) == set(tensors)
    assert all(np.array_equal(model.tensors[name], array) for name, array in tensors.items())


def test_classes_without_names_have_numbers() -> None:
    assert read_classifier(classifier_file(), steps=STEPS).classes == ("0", "1", "2")


def test_other_weights_are_the_same_trunk() -> None:
    first, second = (read_classifier(classifier_file(seed=seed), steps=STEPS) for seed in range(2))
    assert first.trunk == second.trunk


def test_names_that_the_trunk_needs_for_itself_make_room() -> None:
    """A file whose input is called x, and a middle layer features and another images."""
    renamed = {"images": "x", "a": "features", "b": "images", "features": "flat"}
    model = onnx.load_from_string(classifier_file())
    for node in model.graph.node:
        node.input[:] = [renamed.get(name, name) for name in node.input]
        node.output[:] = [renamed.get(name, name) for name in node.output]
    model.graph.input[0].name = "x"
    data = model.SerializeToString()
    engine = Engine(read_classifier(data, classes=CLASSES, steps=STEPS))
    assert np.abs(engine.logits(engine.features(IMAGES)) - run_whole(data)).max() < 1e-6


@pytest.mark.parametrize("ending", ["relu", "scaled"])
def test_a_model_without_a_plain_linear_end_is_refused(ending: str) -> None:
    with pytest.raises(ModelRefused, match=r"ends in (Relu|Gemm).*hw\.split"):
        read_classifier(classifier_file(ending), steps=STEPS)


def test_what_is_no_classifier_is_refused() -> None:
    linear = helper.make_node("Gemm", ["images", "w"], ["logits"], transB=1)
    alone = write_graph(
        [linear], {"w": np.ones((3, 4), np.float32)}, images=("images", ["n", 4]), out=("logits", ["n", 3])
    )
    with pytest.raises(ModelRefused, match="0 layers before the last"):
        read_classifier(alone, steps=STEPS)
    model = onnx.load_from_string(classifier_file())
    model.graph.output.append(helper.make_tensor_value_info("features", 1, None))
    with pytest.raises(ModelRefused, match="2 outputs"):
        read_classifier(model.SerializeToString(), steps=STEPS)
    with pytest.raises(ModelRefused, match="not an ONNX model"):
        read_classifier(b"\xff" * 50, steps=STEPS)


def test_weights_that_are_computed_are_refused() -> None:
    """A matrix that is no constant cannot be a head's."""
    nodes = [
        *trunk_nodes(),
        helper.make_node("Neg", ["w"], ["negative"]),
        helper.make_node("Gemm", ["features", "negative"], ["logits"], transB=1),
    ]
    constants = {name.removeprefix("trunk/"): array for name, array in make_tensors().items()}
    data = write_graph(
        nodes,
        constants | {"shape": SHAPE, "w": np.ones((3, FEATURES), np.float32)},
        images=("images", ["n", 3, SIZE, SIZE]),
        out=("logits", ["n", 3]),
    )
    with pytest.raises(ModelRefused, match="ends in Gemm"):
        read_classifier(data, steps=STEPS)


def test_weights_in_a_file_beside_are_refused_by_name() -> None:
    model = onnx.load_from_string(classifier_file())
    tensor = next(entry for entry in model.graph.initializer if entry.name == "conv.weight")
    tensor.CopyFrom(numpy_helper.from_array(np.zeros((4, 3, 3, 3), np.float32), "conv.weight"))
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    entry = tensor.external_data.add()
    entry.key, entry.value = "location", "/etc/passwd"
    with pytest.raises(ModelRefused, match=r"conv\.weight.*refers to a file"):
        read_classifier(model.SerializeToString(), steps=STEPS)
