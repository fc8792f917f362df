from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from onnx import helper

from graphs import CLASSES, FEATURES, change, make_model, make_tensors, write_graph
from headwater.errors import ModelRefused
from headwater.models.graph import split_tensors
from headwater.models.model import Model


def with_graph_head(model: Model, *, features: int = FEATURES, classes: int = len(CLASSES)) -> Model:
    """The same trunk under a head that is a graph."""
    weight = np.ones((features, classes), np.float32)
    node = helper.make_node("MatMul", ["features", "weight"], ["logits"])
    whole = write_graph(
        [node], {"weight": weight}, images=("features", ["n", features]), out=("logits", ["n", classes])
    )
    head, tensors = split_tensors(whole)
    kept = {name: array for name, array in model.tensors.items() if name.startswith("trunk/")}
    return replace(
        model, head=head, tensors=kept | {f"head/{name}": array for name, array in tensors.items()}
    )


def test_a_sound_model_tells_its_features() -> None:
    assert make_model().check() == FEATURES
    assert with_graph_head(make_model()).check() == FEATURES


def test_parts_have_their_own_names() -> None:
    model = make_model()
    assert sorted(model.part("trunk")) == ["conv.bias", "conv.weight"]
    assert sorted(model.part("head")) == ["bias", "weight"]
    assert set(model.graphs) == {"trunk"}
    assert set(with_graph_head(model).graphs) == {"trunk", "head"}


@pytest.mark.parametrize(
    ("arrays", "named"),
    [
        ({"head_weight": np.zeros((3, FEATURES + 1), np.float32)}, "head/weight"),
        ({"head_weight": np.zeros((3, FEATURES))}, "float64"),
        ({"head_bias": np.zeros((3, 1), np.float32)}, "head/bias"),
        ({"head_bias": np.zeros(4, np.float32)}, "head/bias"),
        ({"head_scale": np.zeros(3, np.float32)}, "head/scale"),
        ({"body_x": np.zeros(3, np.float32)}, "body/x"),
        ({"trunk_conv.weight": np.zeros((FEATURES, 3, 5, 5), np.float32)}, "conv.weight"),
        ({"trunk_more": np.zeros(3, np.float32)}, "more"),
    ],
)
def test_parts_that_do_not_fit_are_refused_by_name(arrays: dict[str, np.ndarray], named: str) -> None:  # type: ignore[type-arg]
    with pytest.raises(ModelRefused, match=named):
        change(make_model(), **arrays).check()


def test_a_head_without_its_tensors_is_refused() -> None:
    model = make_model()
    kept = {name: array for name, array in model.tensors.items() if name != "head/bias"}
    with pytest.raises(ModelRefused, match="head/weight and head/bias"):
        replace(model, tensors=kept).check()


def test_every_class_needs_a_name() -> None:
    for model in (make_model(), with_graph_head(make_model())):
        with pytest.raises(ModelRefused, match="3 classes apart, and 2 have names"):
            replace(model, classes=("a", "b")).check()


def test_a_name_that_two_classes_have_is_refused() -> None:
    with pytest.raises(ModelRefused, match="'red' is the name of more than one class"):
        replace(make_model(), classes=("red", "green", "red")).check()


def test_a_head_that_takes_other_features_is_refused() -> None:
    with pytest.raises(ModelRefused, match="takes 5 features, and the trunk gives 4"):
        with_graph_head(make_model(), features=5).check()


@pytest.mark.parametrize(
    "steps", [({"name": "download", "url": "x"},), ({"name": "resize", "file": "x"},), ({},)], ids=str
)
def test_steps_that_are_not_in_the_catalogue_are_refused(steps: tuple[dict[str, str], ...]) -> None:
    with pytest.raises(ModelRefused, match="the steps before the model"):
        replace(make_model(), steps=steps).check()


def test_other_weights_fit_the_same_architecture() -> None:
    model = make_model(1).with_tensors(make_tensors(2))
    assert model.facts == make_model(2).facts
    assert model.trunk == make_model().trunk


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("head/bias", None),
        ("head/more", np.zeros(1, np.float32)),
        ("head/bias", np.zeros(4, np.float32)),
        ("head/bias", np.zeros(3)),
    ],
)
def test_weights_of_another_architecture_are_refused_by_name(name: str, array: np.ndarray | None) -> None:  # type: ignore[type-arg]
    tensors = make_tensors() | {name: array}
    given = {name: array for name, array in tensors.items() if array is not None}
    with pytest.raises(ModelRefused, match=f"{name}.*another architecture"):
        make_model().with_tensors(given)
