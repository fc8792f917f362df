"""int8 layers are taken if labels stay, on images that did not calibrate them; else fp32, and why."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper

from exports import brittle, coloured, exported_plain, fitted
from headwater.errors import ModelError, WrongUse
from headwater.models import quantise as module
from headwater.models.quantise import (
    CALIBRATING,
    HELD_OUT,
    LEAST_HELD_OUT,
    Quantised,
    compare,
    divide,
    quantise,
)
from headwater.models.runtime import Engine


@cache
def quantised() -> Quantised:
    return quantise(fitted(), coloured(200, seed=2)[0])


def test_int8_that_keeps_the_labels_is_taken() -> None:
    found = quantised()
    assert found.accepted
    assert found.agreement is not None
    assert found.agreement >= 0.95
    assert found.correlation is not None
    assert found.correlation > 0.99
    assert found.reason.startswith("int8: int8 gives the label of fp32 for ")
    assert found.reason.endswith("of 136 images, bound 95.0%")
    assert found.made == {
        "by": "quantise",
        "agreement": found.agreement,
        "images": 136,
        "bound": 0.95,
        "correlation": found.correlation,
    }


def test_the_figures_are_those_of_the_images_held_out() -> None:
    _, held_out = divide(coloured(200, seed=2)[0])
    engines = Engine(fitted()), Engine(quantised().model)
    fp32, int8 = (engine.logits(engine.features(np.stack(held_out))) for engine in engines)
    found = quantised()
    assert found.agreement == (fp32.argmax(axis=1) == int8.argmax(axis=1)).mean()
    assert found.correlation == pytest.approx(np.corrcoef(fp32.ravel(), int8.ravel())[0, 1], abs=1e-6)
    assert not np.array_equal(fp32, int8)


def test_the_int8_model_is_a_model_like_any_other() -> None:
    model = quantised().model
    assert model.check() == fitted().check()
    assert Engine(model).precision == "int8"
    assert Engine(fitted()).precision == "fp32"
    assert model.classes == fitted().classes
    assert model.steps == fitted().steps
    for name in ("head/weight", "head/bias"):
        np.testing.assert_array_equal(model.tensors[name], fitted().tensors[name])
    weights = {name: array for name, array in model.tensors.items() if array.ndim == 4}
    assert {array.dtype.name for array in weights.values()} == {"float32", "int8"}


def test_two_convolutions_stay_and_the_others_are_per_channel() -> None:
    graph = onnx.load_from_string(quantised().model.trunk).graph
    made_by = {name: node for node in graph.node for name in node.output}
    kinds = [made_by.get(node.input[1]) for node in graph.node if node.op_type == "Conv"]
    assert [kind.op_type if kind else "tensor" for kind in kinds] == ["tensor", "tensor", "DequantizeLinear"]
    tensors = quantised().model.part("trunk")
    weight, scale, zero = (tensors[name] for name in kinds[-1].input)  # type: ignore[union-attr]
    assert (weight.dtype, scale.shape, set(zero.tolist())) == (np.int8, (24,), {0})
    zeros = {node.input[2] for node in graph.node if node.op_type == "QuantizeLinear"}
    assert {tensors[name].dtype.name for name in zeros} == {"uint8"}


def test_the_speed_up_is_the_median_of_batches_without_the_first() -> None:
    taken = iter([900.0, 1.0, 3.0, 1.0, 8.0, 2.0, 5.0, 1.0])

    def ticks() -> Iterator[float]:
        for seconds in taken:
            yield 0.0
            yield seconds

    found = compare(fitted(), fitted(), coloured(4 * module._CHUNK)[0], clock=ticks().__next__)
    assert found.speedup == 4.0
    assert next(taken, None) is None
    assert quantised().speedup is not None
    assert quantise(fitted(), coloured(10)[0]).speedup is None, "nothing was measured"


def test_a_turn_is_taken_for_every_few_images() -> None:
    turns = 0

    @contextmanager
    def turn() -> Iterator[None]:
        nonlocal turns
        turns += 1
        yield

    quantise(fitted(), coloured(100, seed=2)[0], turn=turn)
    assert turns == 2 * -(-50 // module._CHUNK), "fifty calibrate, and fifty are compared on"


def test_nothing_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    quantise(fitted(), coloured(80, seed=3)[0])
    assert capfd.readouterr() == ("", "")


def test_int8_that_changes_labels_is_not_taken() -> None:
    model = brittle()
    found = quantise(model, coloured(200, seed=2)[0])
    assert not found.accepted
    assert found.model is model
    assert found.agreement is not None
    assert found.agreement < 0.95
    assert (
        found.reason
        == f"fp32: int8 gives the label of fp32 for {found.agreement:.1%} of 136 images, bound 95.0%"
    )


def test_the_bound_decides() -> None:
    model, images = brittle(), coloured(200, seed=2)[0]
    found = quantise(model, images, bound=0.0)
    assert found.accepted
    assert found.model is not model
    for bound in (-0.1, 1.1):
        with pytest.raises(WrongUse, match="outside 0"):
            quantise(model, images, bound=bound)


def test_images_calibrate_or_are_held_out_never_both() -> None:
    calibrating, held_out = divide(range(400))
    assert calibrating == list(range(0, 2 * CALIBRATING, 2))
    assert sorted(calibrating + held_out) == list(range(CALIBRATING + HELD_OUT))


def test_no_more_images_are_read_than_used() -> None:
    read = 0

    def endless() -> Iterator[NDArray[np.uint8]]:
        nonlocal read
        image = coloured(1)[0][0]
        while True:
            read += 1
            yield image

    divide(endless())
    assert read == CALIBRATING + HELD_OUT


@pytest.mark.parametrize("count", [0, 1, 2 * LEAST_HELD_OUT - 1])
def test_too_few_images_leave_fp32(count: int) -> None:
    found = quantise(fitted(), coloured(count)[0])
    assert (found.model, found.accepted, found.agreement) == (fitted(), False, None)
    assert found.reason == f"fp32: {count // 2} images are left to compare on, at least 32 are needed"


def test_int8_is_not_quantised_again() -> None:
    with pytest.raises(WrongUse, match="int8 already"):
        quantise(quantised().model, coloured(80)[0])


def test_layers_without_a_convolution_are_refused() -> None:
    whole = onnx.load_from_string(exported_plain().model.trunk)
    for node in whole.graph.node:
        node.op_type = node.op_type.replace("Conv", "Relu")
    with pytest.raises(ModelError, match="no convolution"):
        module._first_convolutions(whole)


def test_a_model_agrees_with_itself() -> None:
    found = compare(fitted(), fitted(), coloured(20)[0])
    assert (found.labels, found.images) == (1.0, 20)
    assert found.correlation == pytest.approx(1.0)
    with pytest.raises(WrongUse, match="no images"):
        compare(fitted(), fitted(), [])


def test_tensors_go_into_the_graph_for_calibration() -> None:
    whole = module._join(fitted())
    tensors = fitted().part("trunk")
    inside = {tensor.name: numpy_helper.to_array(tensor) for tensor in whole.graph.initializer}
    assert all(np.array_equal(inside[name], array) for name, array in tensors.items())
