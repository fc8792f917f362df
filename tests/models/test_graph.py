from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from graphs import (
    FEATURES,
    SHAPE,
    SIZE,
    are_same,
    facts_of,
    make_model,
    make_tensors,
    trunk_file,
    trunk_nodes,
    write_graph,
)
from headwater.errors import ModelRefused
from headwater.models import graph
from headwater.models.graph import Port, Ports, check, check_head, check_trunk, split_tensors
from headwater.models.model import strip
from headwater.models.version import TensorFacts

GRAPH = make_model().trunk
FACTS = strip(facts_of(make_tensors()), "trunk")


def altered(change: Callable[[Any], object], data: bytes = GRAPH) -> bytes:
    """The graph after a change to its message."""
    model = onnx.load_from_string(data)
    change(model)
    done: bytes = model.SerializeToString()
    return done


def refused(change: Callable[[Any], object], named: str) -> None:
    with pytest.raises(ModelRefused, match=named):
        check(altered(change), FACTS)


def add_node(op_type: str, **attributes: Any) -> Callable[[Any], object]:
    return lambda model: model.graph.node.append(helper.make_node(op_type, ["a"], ["z"], **attributes))


def test_a_sound_graph_tells_its_ports() -> None:
    expected = Ports(
        Port("images", "float32", (None, 3, SIZE, SIZE)), Port("features", "float32", (None, FEATURES))
    )
    assert check(GRAPH, FACTS) == expected
    assert check_trunk(expected) == FEATURES


def test_split_leaves_a_graph_without_weights() -> None:
    tensors = make_tensors()
    bare, found = split_tensors(trunk_file(tensors))
    assert are_same(found, strip(tensors, "trunk"))
    model = onnx.load_from_string(bare)
    kinds = {tensor.name: tensor.data_location for tensor in model.graph.initializer}
    assert kinds == {
        "conv.weight": TensorProto.EXTERNAL,
        "conv.bias": TensorProto.EXTERNAL,
        "shape": TensorProto.DEFAULT,
    }
    assert len(bare) < 700


def test_other_weights_are_the_same_graph() -> None:
    assert split_tensors(trunk_file(make_tensors(1)))[0] == split_tensors(trunk_file(make_tensors(2)))[0]


def test_split_twice_is_refused_because_the_weights_are_gone() -> None:
    with pytest.raises(ModelRefused, match=r"conv\.weight.*refers to a file"):
        split_tensors(GRAPH)


@pytest.mark.parametrize(
    "dtype", ["float32", "float16", "float64", "int8", "uint8", "int32", "int64", "bool"]
)
@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (0,)])
def test_tensors_of_every_kind_come_out(dtype: str, shape: tuple[int, ...]) -> None:
    array = (np.arange(np.prod(shape, dtype=int)).reshape(shape) % 2).astype(dtype)
    data = write_graph([], {"it": array}, images=("images", [1]), out=("images", [1]))
    bare, found = split_tensors(data)
    if dtype == "int64" and len(shape) < 2:
        assert not found
        assert (
            numpy_helper.to_array(onnx.load_from_string(bare).graph.initializer[0]).tolist() == array.tolist()
        )
    else:
        assert are_same(found, {"it": array})


def test_values_in_typed_fields_come_out() -> None:
    """As some exporters write them, instead of raw bytes."""
    weight = helper.make_tensor("it", TensorProto.FLOAT, [2, 1], [1.5, -2.0])
    data = altered(
        lambda model: model.graph.initializer.append(weight),
        write_graph([], {}, images=("x", [1]), out=("x", [1])),
    )
    bare, found = split_tensors(data)
    assert found["it"].tolist() == [[1.5], [-2.0]]
    assert b"float_data" not in bare
    assert not onnx.load_from_string(bare).graph.initializer[0].float_data


def test_texts_of_the_exporter_are_dropped() -> None:
    def write(model: Any) -> None:
        for part in (
            model,
            model.graph,
            model.graph.node[0],
            model.graph.initializer[0],
            model.graph.input[0],
        ):
            part.doc_string = "/home/somebody/secret.py"
            entry = part.metadata_props.add()
            entry.key, entry.value = "stack_trace", "/home/somebody/secret.py"
        model.graph.node[0].attribute[0].doc_string = "/home/somebody"
        model.graph.quantization_annotation.add().tensor_name = "somebody"
        model.opset_import.append(helper.make_opsetid("com.microsoft", 1))

    bare, _ = split_tensors(altered(write, trunk_file()))
    assert b"somebody" not in bare
    assert bare == GRAPH


@pytest.mark.parametrize(
    "op_type", ["If", "Loop", "Scan", "RandomNormal", "Bernoulli", "NonZero", "Einsum", "Convv", ""]
)
def test_an_operator_that_is_not_listed_is_refused_by_name(op_type: str) -> None:
    refused(add_node(op_type), repr(op_type))


@pytest.mark.parametrize("domain", ["com.microsoft", "ai.onnx", "ai.onnx.ml", "evil"])
def test_an_operator_of_another_domain_is_refused_by_name(domain: str) -> None:
    refused(add_node("Relu", domain=domain), f"{domain}.Relu")
    refused(lambda model: model.opset_import.append(helper.make_opsetid(domain, 1)), domain)


def test_subgraphs_hidden_in_an_allowed_operator_are_refused() -> None:
    body = helper.make_graph([], "body", [], [])
    refused(add_node("Relu", body=body), "AttributeProto.g")
    refused(add_node("Relu", bodies=[body]), "AttributeProto.graphs")


def test_a_subgraph_under_a_false_type_is_refused() -> None:
    def hide(model: Any) -> None:
        attribute = model.graph.node[0].attribute[0]
        attribute.g.CopyFrom(helper.make_graph([], "body", [], []))

    refused(hide, "AttributeProto.g")


def test_operators_that_would_train_are_refused() -> None:
    check(altered(add_node("Dropout")), FACTS)
    told = helper.make_node("Dropout", ["a", "", "yes"], ["z"])
    refused(lambda model: model.graph.node.append(told), "'Dropout' may be told to train")
    refused(add_node("BatchNormalization", training_mode=1), "'BatchNormalization' trains")
    check(altered(add_node("BatchNormalization", training_mode=0)), FACTS)


def test_functions_training_and_sparse_tensors_are_refused() -> None:
    function = helper.make_function("evil", "Relu", ["x"], ["y"], [], [helper.make_opsetid("", 18)])
    refused(lambda model: model.functions.append(function), "functions")
    refused(lambda model: model.training_info.add(), "training_info")
    refused(lambda model: model.graph.sparse_initializer.add(), "sparse_initializer")
    refused(lambda model: model.metadata_props.add(), "metadata_props")


def test_a_reference_to_an_attribute_is_refused() -> None:
    def refer(model: Any) -> None:
        model.graph.node[0].attribute[0].ref_attr_name = "outer"

    refused(refer, "ref_attr_name")


@pytest.mark.parametrize(
    "entries",
    [
        [("location", "weights.bin")],
        [("location", "/etc/passwd")],
        [("location", "../registry")],
        [("location", "registry"), ("offset", "0")],
        [("location", "registry"), ("location", "/etc/passwd")],
        [("path", "registry")],
        [],
    ],
)
def test_a_reference_to_a_file_is_refused_by_name(entries: list[tuple[str, str]]) -> None:
    def refer(model: Any) -> None:
        tensor = model.graph.initializer[0]
        tensor.ClearField("external_data")
        for key, value in entries:
            entry = tensor.external_data.add()
            entry.key, entry.value = key, value

    refused(refer, r"'conv\.weight' refers to")


def test_a_constant_that_refers_to_a_file_is_refused() -> None:
    def refer(model: Any) -> None:
        value = numpy_helper.from_array(np.zeros(2, np.float32), "it")
        value.data_location = TensorProto.EXTERNAL
        entry = value.external_data.add()
        entry.key, entry.value = "location", "/etc/passwd"
        model.graph.node.append(helper.make_node("Constant", [], ["z"], value=value))

    refused(refer, "'it' refers to a file")

    def half(model: Any) -> None:
        entry = next(t for t in model.graph.initializer if t.name == "shape").external_data.add()
        entry.key, entry.value = "location", "/etc/passwd"

    refused(half, "'shape' refers to a file")


def test_small_constants_may_stand_in_the_graph_and_large_ones_may_not() -> None:
    def constant(count: int) -> Callable[[Any], object]:
        return add_node("Constant", value=numpy_helper.from_array(np.zeros(count, np.float32), "it"))

    check(altered(constant(200)), FACTS)
    refused(constant(300), r"'it' of 1,2\d\d bytes")
    refused(add_node("Constant", value_floats=[0.0] * 300), "value_floats")
    refused(
        lambda model: model.graph.initializer.append(
            numpy_helper.from_array(np.zeros(300, np.float32), "it")
        ),
        "'it'",
    )


def test_a_tensor_as_an_attribute_of_another_operator_is_refused() -> None:
    refused(
        add_node("Relu", value=numpy_helper.from_array(np.zeros(2, np.float32), "it")), "'Relu' has a tensor"
    )


def test_values_inside_and_outside_are_refused() -> None:
    def both(model: Any) -> None:
        model.graph.initializer[0].raw_data = b"\0" * 432

    refused(both, "inside the graph and outside")


def test_texts_as_values_are_refused() -> None:
    value = helper.make_tensor("it", TensorProto.STRING, [1], [b"/etc/passwd"])
    refused(add_node("Constant", value=value), "string_data|STRING")
    refused(lambda model: setattr(model.graph.initializer[0], "data_type", TensorProto.BFLOAT16), "BFLOAT16")
    refused(lambda model: setattr(model.graph.initializer[0], "data_type", 99), "99")


@pytest.mark.parametrize(
    ("facts", "named"),
    [
        ({}, "conv"),
        (
            FACTS | {"conv.weight": TensorFacts("float32", (FEATURES, 3, 5, 5), "")},
            r"conv\.weight.*another architecture",
        ),
        (FACTS | {"conv.weight": TensorFacts("float16", (FEATURES, 3, 3, 3), "")}, "float16"),
        (FACTS | {"bn.weight": TensorFacts("float32", (4,), "")}, r"bn\.weight.*another architecture"),
        (
            {name: facts for name, facts in FACTS.items() if name != "conv.bias"},
            r"conv\.bias.*another architecture",
        ),
    ],
)
def test_another_architecture_is_refused_by_name(facts: dict[str, TensorFacts], named: str) -> None:
    with pytest.raises(ModelRefused, match=named):
        check(GRAPH, facts)


def test_two_tensors_of_one_name_are_refused() -> None:
    refused(lambda model: model.graph.initializer.append(model.graph.initializer[0]), "one name")


@pytest.mark.parametrize("number", [0, 6, 13, 99])
def test_an_unknown_ir_is_refused(number: int) -> None:
    refused(lambda model: setattr(model, "ir_version", number), f"IR version {number}")


@pytest.mark.parametrize("number", [1, 12, 24, 99])
def test_an_unknown_operator_set_is_refused(number: int) -> None:
    refused(lambda model: setattr(model.opset_import[0], "version", number), str(number))


def test_a_graph_needs_one_input_and_one_output() -> None:
    refused(lambda model: model.graph.input.append(model.graph.input[0]), "2 inputs")
    refused(lambda model: model.graph.ClearField("output"), "0 outputs")


@pytest.mark.parametrize(
    ("images", "out", "named"),
    [
        (("pixels", ["n", 3, 8, 8]), ("features", ["n", 4]), "'images'"),
        (("images", ["n", 1, 8, 8]), ("features", ["n", 4]), "height, width"),
        (("images", [1, 3, 8, 8]), ("features", ["n", 4]), "dynamic batch"),
        (("images", ["n", 3, 8, 8]), ("features", [1, 4]), "dynamic batch"),
        (("images", ["n", 3, 8, 8]), ("features", ["n", "f"]), "how many features"),
        (("images", ["n", 3, 8, 8]), ("features", ["n", 4, 1]), "2 edges"),
    ],
)
def test_a_trunk_takes_images_to_features(
    images: tuple[str, list[Any]], out: tuple[str, list[Any]], named: str
) -> None:
    data = write_graph([], {}, images=images, out=out)
    with pytest.raises(ModelRefused, match=named):
        check_trunk(check(data, {}))


@pytest.mark.parametrize(
    ("out", "named"), [(["n", "c"], "how many classes"), (["n", 5, 1], "2 edges"), ([3, 5], "dynamic batch")]
)
def test_a_head_takes_features_to_logits(out: list[Any], named: str) -> None:
    def head(shape: list[Any]) -> Ports:
        return check(write_graph([], {}, images=("features", ["n", 4]), out=("logits", shape)), {})

    assert check_head(head(["n", 5]), 4) == 5
    with pytest.raises(ModelRefused, match=named):
        check_head(head(out), 4)
    with pytest.raises(ModelRefused, match="takes 4 features, and the trunk gives 5"):
        check_head(head(["n", 5]), 5)


def test_fields_that_onnx_does_not_know_are_refused() -> None:
    """A newer runtime might read them: field 1000, of one byte."""
    for data in (
        GRAPH + b"\xc2\x3e\x01x",
        altered(lambda model: model.graph.node[0].MergeFromString(b"\xc2\x3e\x01x")),
    ):
        with pytest.raises(ModelRefused, match="does not know"):
            check(data, FACTS)


@pytest.mark.parametrize("data", [pickle.dumps({}), b"PK\x03\x04" + b"\0" * 40])
def test_a_pickle_is_refused_by_name(data: bytes) -> None:
    for call in (lambda: check(data, {}), lambda: split_tensors(data)):
        with pytest.raises(ModelRefused, match="pickled content"):
            call()


def test_what_is_no_graph_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelRefused, match="not an ONNX model"):
        check(b"\xff" * 100, {})
    monkeypatch.setattr(graph, "MOST_BYTES", 100)
    with pytest.raises(ModelRefused, match="at most 100"):
        check(GRAPH, FACTS)


@given(st.data())
def test_mutated_graphs_are_refused_or_pass_the_same_rules(data: st.DataObject) -> None:
    content = bytearray(GRAPH)
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        check(bytes(content), FACTS)
    except ModelRefused:
        return
    model = onnx.load_from_string(bytes(content))
    assert {node.op_type for node in model.graph.node} <= graph.OPERATORS
    places = [entry.value for tensor in model.graph.initializer for entry in tensor.external_data]
    assert places == [graph.LOCATION] * len(FACTS)


def test_every_listed_operator_is_one_of_onnx() -> None:
    for name in graph.OPERATORS:
        assert onnx.defs.get_schema(name, graph.OPSETS[-1])


def test_shapes_stay_in_the_graph_only_while_they_are_short() -> None:
    data = write_graph(
        trunk_nodes(), {"long": np.zeros(2000, np.int64), "shape": SHAPE}, images=("x", [1]), out=("x", [1])
    )
    assert set(split_tensors(data)[1]) == {"long"}
