"""Every cut of a few models: what crosses, and that both sides together are the whole."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import helper

import headwater as hw
from exports import coloured, exported_plain, fitted, steps
from graphs import facts_of, make_model, trunk_nodes, write_graph
from headwater.errors import ModelError, ModelNotFound
from headwater.models import graph as graphs
from headwater.models.crossing import Crossings
from headwater.models.cutting import divide, find_crossings
from headwater.models.export import export
from headwater.models.model import Model
from headwater.models.parts import FirstLayers, LastLayers, tensors_of
from headwater.models.quantise import quantise
from headwater.models.runtime import Engine, onnxruntime
from nets import CLASSES, SIZE, LongSkip, Residual

MODELS = ("plain", "residual", "int8", "small", "tokens")


@cache
def model_of(name: str) -> Model:
    if name == "plain":
        return exported_plain().model
    if name == "residual":
        return export(hw.split(Residual(), image_size=SIZE), classes=CLASSES, steps=steps()).model
    if name == "int8":
        return quantise(fitted(), coloured(200, seed=2)[0]).model
    return make_model() if name == "small" else tokens()


def tokens() -> Model:
    """As in a transformer: the number of images is asked for, whole shapes are, and a token is put before."""
    rng = np.random.default_rng(5)
    make = helper.make_node
    nodes = [
        make("Conv", ["images", "conv.weight", "conv.bias"], ["patches"], strides=[2, 2], pads=[1, 1, 1, 1]),
        make("Shape", ["images"], ["rows"], start=0, end=1),
        make("Shape", ["patches"], ["edges"]),
        make("Shape", ["patches"], ["area"], start=2),
        make("Reshape", ["patches", "row"], ["lines"]),
        make("Transpose", ["lines"], ["turned"], perm=[0, 2, 1]),
        make("Concat", ["rows", "one", "four"], ["wide"], axis=0),
        make("Expand", ["token", "wide"], ["tokens"]),
        make("Concat", ["tokens", "turned"], ["joined"], axis=1),
        make("MatMul", ["joined", "mix"], ["mixed"]),
        make("Add", ["mixed", "joined"], ["sum"]),
        make("Slice", ["sum", "one", "far", "one"], ["others"]),
        make("Transpose", ["others"], ["back"], perm=[0, 2, 1]),
        make("Reshape", ["back", "edges"], ["again"]),
        make("Concat", ["rows", "four", "area"], ["same"], axis=0),
        make("Reshape", ["again", "same"], ["squared"]),
        make("GlobalAveragePool", ["squared"], ["pooled"]),
        make("Concat", ["rows", "four"], ["flat"], axis=0),
        make("Reshape", ["pooled", "flat"], ["features"]),
    ]
    constants: dict[str, NDArray[Any]] = {
        "conv.weight": rng.normal(size=(4, 3, 3, 3)).astype(np.float32),
        "conv.bias": rng.normal(size=4).astype(np.float32),
        "token": rng.normal(size=(1, 1, 4)).astype(np.float32),
        "mix": rng.normal(size=(4, 4)).astype(np.float32),
        **{"one": np.array([1]), "four": np.array([4]), "far": np.array([99]), "row": np.array([0, 4, 16])},
    }
    whole = write_graph(nodes, constants, images=("images", ["n", 3, 8, 8]), out=("features", ["n", 4]))
    trunk, tensors = graphs.split_tensors(whole)
    small = make_model()
    heads = {name: array for name, array in small.tensors.items() if name.startswith("head/")}
    named = {f"trunk/{name}": array for name, array in tensors.items()}
    return Model(trunk, None, named | heads, small.classes, small.steps)


@cache
def cuts_of(name: str) -> Crossings:
    return find_crossings(model_of(name).trunk)


def images_for(model: Model, count: int, seed: int = 0) -> NDArray[np.uint8]:
    edge = onnx.load_from_string(model.trunk).graph.input[0].type.tensor_type.shape.dim[2].dim_value
    return np.random.default_rng(seed).integers(0, 256, (count, edge, edge, 3)).astype(np.uint8)


def run_plainly(graph: bytes, model: Model, batch: NDArray[Any]) -> NDArray[np.float32]:
    """Without any fusion, so that the same nodes give the same bits whatever is around them."""
    runtime = onnxruntime()
    options = runtime.SessionOptions()
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    tensors = tensors_of(graph, model)
    values = {
        name: runtime.OrtValue.ortvalue_from_numpy(np.require(array, requirements="C"))
        for name, array in tensors.items()
    }
    options.add_external_initializers(list(values), list(values.values()))
    session = runtime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {session.get_inputs()[0].name: batch})
    done: NDArray[np.float32] = found
    return done


EVERY = [(name, cut) for name in ("small", "tokens") for cut in range(len(cuts_of(name)))]


def test_the_cuts_of_a_plain_network_are_all_of_its_tensors() -> None:
    found = cuts_of("plain")
    nodes = onnx.load_from_string(model_of("plain").trunk).graph.node
    assert list(found.names) == [node.output[0] for node in nodes][:-1]
    assert [cut.shape for cut in found][::2] == [(8, 16, 16), (16, 16, 16), (24, 8, 8), (24, 1, 1)]
    assert [cut.bytes for cut in found][::2] == [4096, 8192, 3072, 48]


def test_work_is_the_multiplications_so_far() -> None:
    convolutions = 8 * 256 * 27, 16 * 256 * 72, 24 * 64 * 144
    expected = np.cumsum(convolutions).repeat(2).tolist()
    assert [cut.work for cut in cuts_of("plain")] == [*expected, expected[-1]]
    assert cuts_of("plain").work == expected[-1]


def test_inside_a_skip_connection_there_is_no_cut() -> None:
    assert cuts_of("residual").names == (
        *("conv2d", "relu", "add_30", "relu_2", "add_61", "relu_4", "add_92", "relu_6"),
        *("avg_pool2d", "relu_7"),
    )


def test_where_everything_goes_past_there_is_none() -> None:
    model = export(hw.split(LongSkip(), image_size=SIZE), classes=CLASSES[:4], steps=steps()).model
    assert not find_crossings(model.trunk).all


def test_int8_is_cut_at_floats_only() -> None:
    model, found = model_of("int8"), cuts_of("int8")
    graph = onnx.load_from_string(model.trunk).graph
    rounded = {node.output[0] for node in graph.node if node.op_type == "QuantizeLinear"}
    restored = {node.output[0] for node in graph.node if node.op_type == "DequantizeLinear"}
    assert rounded, "there is int8 in it"
    assert not rounded & set(found.names)
    assert restored & set(found.names)


def test_rows_that_are_no_images_are_no_cut() -> None:
    """Two rows for each image, as windows of one: what crosses must have one."""
    nodes = [
        *trunk_nodes()[:2],
        helper.make_node("Reshape", ["b", "windows"], ["w"]),
        helper.make_node("Relu", ["w"], ["v"]),
        helper.make_node("Reshape", ["v", "back"], ["c2"]),
        helper.make_node("GlobalAveragePool", ["c2"], ["c"]),
        trunk_nodes()[3],
    ]
    small = make_model()
    constants = {
        **small.part("trunk"),
        **{"shape": np.array([-1, 4]), "windows": np.array([-1, 4, 4, 8]), "back": np.array([-1, 4, 8, 8])},
    }
    whole = write_graph(nodes, constants, images=("images", ["n", 3, 8, 8]), out=("features", ["n", 4]))
    assert find_crossings(whole).names == ("a", "b", "c2", "c")


def test_a_token_and_the_number_of_images_are_had_again() -> None:
    assert cuts_of("tokens").names == (
        *("patches", "lines", "turned", "joined", "sum", "others", "back", "again", "squared", "pooled"),
    )


@pytest.mark.parametrize("name", MODELS)
def test_both_sides_are_the_whole_at_every_cut(name: str) -> None:
    """Exactly, node by node; and by fused sessions with half precision between them, about."""
    model, pixels = model_of(name), images_for(model_of(name), 6)
    engine = Engine(model)
    expected = engine.features(pixels)
    edge = pixels.shape[1]
    floats = np.random.default_rng(1).normal(size=(6, 3, edge, edge)).astype(np.float32)
    exact = run_plainly(model.trunk, model, floats)
    size = np.abs(expected).max()
    assert len(cuts_of(name))
    for cut in cuts_of(name):
        near, far = divide(model.trunk, cut)
        crossed = run_plainly(near, model, floats)
        assert crossed.shape == (6, cut.width)
        np.testing.assert_array_equal(run_plainly(far, model, crossed), exact, cut.name)
        halves = FirstLayers(model, cut).features(pixels).astype(np.float16)
        # int8 rounds anew on the far side; a value on the edge of a step may go either way.
        slack = 0.05 if name == "int8" else 4e-3
        found = LastLayers(model, cut).features(halves)
        np.testing.assert_allclose(found, expected, rtol=slack, atol=slack * size, err_msg=cut.name)


@pytest.mark.parametrize("name", MODELS)
def test_both_graphs_are_what_the_registry_takes(name: str) -> None:
    model = model_of(name)
    for cut in cuts_of(name):
        for part, graph in zip(("near", "far"), divide(model.trunk, cut), strict=True):
            ports = graphs.check(graph, facts_of(tensors_of(graph, model)))
            if part == "near":
                assert graphs.check_trunk(ports) == cut.width
            else:
                assert (ports.input.shape, ports.output.name) == ((None, cut.width), "features")


@pytest.mark.parametrize("name", MODELS)
def test_a_far_side_can_be_cut_again(name: str) -> None:
    """From cut to cut to the end is the whole: how the planner times the layers between two."""
    model, cuts = model_of(name), list(cuts_of(name))[::2]
    pixels = images_for(model, 3)
    rest, floats = model.trunk, np.random.default_rng(2).normal(size=(3, 3, *pixels.shape[1:3]))
    values = floats.astype(np.float32)
    expected = run_plainly(model.trunk, model, values)
    for cut in cuts:
        near, rest = divide(rest, cut)
        values = run_plainly(near, model, values)
    np.testing.assert_array_equal(run_plainly(rest, model, values), expected)


@settings(max_examples=25, deadline=None)
@given(which=st.sampled_from(EVERY), count=st.integers(0, 40), seed=st.integers(0, 9))
def test_any_number_of_images(which: tuple[str, int], count: int, seed: int) -> None:
    name, place = which
    model, cut = model_of(name), cuts_of(name).all[place]
    pixels = images_for(model, count, seed)
    crossed = FirstLayers(model, cut).features(pixels)
    assert crossed.shape == (count, cut.width)
    found = LastLayers(model, cut).features(crossed)
    np.testing.assert_allclose(found, Engine(model).features(pixels), rtol=1e-4, atol=1e-5)


def test_each_side_needs_its_own_tensors_only() -> None:
    model, cut = model_of("plain"), cuts_of("plain").find("hardtanh")
    first = FirstLayers(model, cut)
    assert 0 < first.nbytes < sum(array.nbytes for array in model.part("trunk").values()) / 4


def test_a_tensor_without_a_decent_name_is_no_cut() -> None:
    """Names come out in errors and tables; a graph may have any."""
    wide = make_model()
    graph = onnx.load_from_string(wide.trunk)
    for old, new in (("a", "\x1b[31mred"), ("b", "b" * 129)):
        for node in graph.graph.node:
            node.input[:] = [new if name == old else name for name in node.input]
            node.output[:] = [new if name == old else name for name in node.output]
    assert find_crossings(graph.SerializeToString()).names == ("c",)


def test_an_unknown_name_is_told_the_others() -> None:
    with pytest.raises(ModelNotFound, match="no cut 'conv9'; there are: a, b, c"):
        cuts_of("small").find("conv9")
    with pytest.raises(ModelNotFound, match="there are: none"):
        Crossings((), 0).find("conv9")
    with pytest.raises(ModelNotFound) as caught:
        cuts_of("small").find("x" * 100_000)
    assert len(str(caught.value)) < 300


def test_nodes_in_a_circle_are_an_error() -> None:
    """ONNX Runtime would refuse them too; nothing may wait for ever."""
    nodes = [helper.make_node("Add", ["images", "b"], ["a"]), helper.make_node("Relu", ["a"], ["b"])]
    nodes.append(helper.make_node("Reshape", ["b", "shape"], ["features"]))
    shape = {"shape": np.array([-1, 192])}
    circle = write_graph(nodes, shape, images=("images", ["n", 3, 8, 8]), out=("features", ["n", 192]))
    with pytest.raises(ModelError, match="in a circle"):
        find_crossings(circle)


def test_the_far_side_takes_vectors_of_its_cut() -> None:
    model = make_model()
    cut = cuts_of("small").find("b")
    with pytest.raises(ModelError, match="vectors are float32"):
        LastLayers(model, cut).features(np.zeros((2, cut.width + 1), np.float16))
