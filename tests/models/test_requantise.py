"""int8 layers with new weights: the same as a quantisation anew gives, but for the ranges of activations."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from exports import coloured, exported_plain, fitted
from graphs import make_model
from headwater.errors import ModelRefused
from headwater.models.model import Model
from headwater.models.quantise import quantise
from headwater.models.requantise import requantise
from headwater.models.runtime import Engine, precision_of
from headwater.select.scoring import rank_correlation, score

PIXELS, LABELS = coloured(260, seed=3)


def make_int8(model: Model) -> Model:
    found = quantise(model, list(PIXELS), bound=0.0)
    assert found.accepted
    return found.model


def moved(model: Model, size: float) -> Model:
    """As if training had gone on."""
    rng = np.random.default_rng(1)
    tensors = {
        name: (array + size * array.std() * rng.normal(size=array.shape)).astype(array.dtype)
        if array.ndim
        else array
        for name, array in model.tensors.items()
    }
    return replace(model, tensors=tensors)


def losses(model: Model) -> np.ndarray:
    engine = Engine(model)
    return score(engine.logits(engine.features(PIXELS)), LABELS).loss


def test_the_same_weights_give_the_same_tensors() -> None:
    model = fitted()
    int8 = make_int8(model)
    again = requantise(int8, model)
    assert (again.trunk, again.classes, again.steps) == (int8.trunk, int8.classes, int8.steps)
    for name, array in int8.tensors.items():
        np.testing.assert_array_equal(again.tensors[name], array, err_msg=name)
        assert again.tensors[name].dtype == array.dtype


def test_other_weights_are_rounded_as_a_quantisation_anew_rounds_them() -> None:
    """The ranges of activations differ, and with them biases; the weights of the layers do not."""
    model = fitted()
    other = moved(model, 0.1)
    found, anew = requantise(make_int8(model), other), make_int8(other)
    assert precision_of(found) == "int8"
    changed = 0
    for name in anew.tensors:
        if "weight_quantized" in name or name.endswith("weight_scale"):
            np.testing.assert_array_equal(found.tensors[name], anew.tensors[name], err_msg=name)
            changed += not np.array_equal(found.tensors[name], make_int8(model).tensors[name])
    assert changed
    assert rank_correlation(losses(found), losses(other)) > 0.9


def test_a_channel_of_zeros_keeps_its_scale() -> None:
    model = fitted()
    name = "trunk/6.weight"
    weight = model.tensors[name].copy()
    weight[2] = 0
    found = requantise(make_int8(model), replace(model, tensors={**model.tensors, name: weight}))
    assert not found.tensors["trunk/6.weight_quantized"][2].any()
    assert (found.tensors["trunk/6.weight_scale"] > 0).all()
    assert np.isfinite(losses(found)).all()


@pytest.mark.parametrize("other", [make_model(), exported_plain().model], ids=["by hand", "wider"])
def test_another_architecture_is_refused(other: Model) -> None:
    if "trunk/6.weight" in other.tensors:
        wider = np.zeros((25, 16, 3, 3), np.float32)
        other = replace(other, tensors={**other.tensors, "trunk/6.weight": wider})
    with pytest.raises(ModelRefused, match="another architecture"):
        requantise(make_int8(fitted()), other)
