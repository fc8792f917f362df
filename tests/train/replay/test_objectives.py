"""Gradients, their changes and Hessians, against what autograd and double precision say."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from headwater.errors import JournalRefused, WrongUse
from headwater.train.replay.features import Features
from headwater.train.replay.linear import LinearHead, Shifting
from headwater.train.replay.losses import LOSSES
from headwater.train.replay.network import Network
from headwater.train.replay.objectives import objective_of, restore

COUNT, WIDTH, OUTPUTS = 700, 6, 3
EVERYONE = slice(0, COUNT)
RNG = np.random.default_rng(0)
VALUES = RNG.normal(size=(COUNT, WIDTH)).astype(np.float32)
TARGETS = {
    "softmax": RNG.integers(0, OUTPUTS, COUNT),
    "logistic": RNG.integers(0, 2, (COUNT, OUTPUTS)).astype(np.float32),
    "squares": RNG.normal(size=(COUNT, OUTPUTS)).astype(np.float32),
}
SHIFTING = Shifting(RNG.normal(size=WIDTH), 0.5 + RNG.random(WIDTH))
Vector = NDArray[np.float32]


def features(loss: str) -> Features:
    return Features(np.arange(COUNT), VALUES, TARGETS[loss])


def weights(size: int, seed: int = 1, scale: float = 0.5) -> Vector:
    return (scale * np.random.default_rng(seed).normal(size=size)).astype(np.float32)


def double(head: LinearHead, loss: str, flat: NDArray[np.float64]) -> torch.Tensor:
    """The loss of a linear head in double precision, written out."""
    x = torch.from_numpy(VALUES.astype(np.float64))
    if head.shifting is not None:
        x = (x - torch.from_numpy(head.shifting.mean)) * torch.from_numpy(head.shifting.scale)
    edge = OUTPUTS * WIDTH
    outputs = x @ flat[:edge].view(OUTPUTS, WIDTH).T
    outputs = outputs + flat[edge:] if head.bias else outputs
    targets = torch.from_numpy(TARGETS[loss])
    return LOSSES[loss].value(outputs, targets if loss == "softmax" else targets.double())


def double_gradient(head: LinearHead, loss: str, flat: NDArray[np.float64]) -> NDArray[np.float64]:
    at = torch.from_numpy(flat).requires_grad_()
    found: NDArray[np.float64] = torch.autograd.grad(double(head, loss, at), at)[0].numpy()
    return found


HEADS = [
    LinearHead(WIDTH, OUTPUTS, loss, bias=bias, shifting=shifting)
    for loss in LOSSES
    for bias, shifting in ((True, None), (False, None), (True, SHIFTING))
]


@pytest.mark.parametrize("head", HEADS, ids=str)
def test_gradients(head: LinearHead) -> None:
    flat = weights(head.size)
    expected = double_gradient(head, head.loss, flat.astype(np.float64))
    found = head.gradient(flat, features(head.loss).parts(EVERYONE))
    np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-3)
    value = head.value(flat, features(head.loss).parts(EVERYONE))
    wide = torch.from_numpy(flat.astype(np.float64))
    assert value == pytest.approx(float(double(head, head.loss, wide)), rel=1e-4)


@pytest.mark.parametrize("size", [1.0, 1e-3, 1e-6])
@pytest.mark.parametrize("head", HEADS, ids=str)
def test_changes_are_as_precise_however_small(head: LinearHead, size: float) -> None:
    flat, offset = weights(head.size), weights(head.size, seed=2, scale=size)
    wide, away = flat.astype(np.float64), offset.astype(np.float64)
    expected = double_gradient(head, head.loss, wide + away) - double_gradient(head, head.loss, wide)
    found = head.change(flat, offset, features(head.loss).parts(EVERYONE), known=0 * flat)
    assert np.linalg.norm(found - expected) < 1e-5 * np.linalg.norm(expected)


@pytest.mark.parametrize("head", HEADS, ids=str)
def test_hessians(head: LinearHead) -> None:
    flat, along = weights(head.size), weights(head.size, seed=3)
    at = torch.from_numpy(flat.astype(np.float64))
    full = torch.autograd.functional.hessian(lambda w: double(head, head.loss, w), at).numpy()
    found = head.curve(flat, along, features(head.loss).parts(EVERYONE))
    np.testing.assert_allclose(found, full @ along, rtol=1e-3, atol=1e-2)


def test_one_sample_is_an_outer_product() -> None:
    head = HEADS[0]
    rows = np.array([17])
    found = head.gradient(weights(head.size), features("softmax").parts(rows))
    matrix = found[: OUTPUTS * WIDTH].reshape(OUTPUTS, WIDTH)
    np.testing.assert_allclose(matrix, np.outer(found[OUTPUTS * WIDTH :], VALUES[17]), rtol=1e-5)


def test_rows_may_come_in_any_parts() -> None:
    head, flat = HEADS[0], weights(HEADS[0].size)
    whole = head.gradient(flat, features("softmax").parts(EVERYONE))
    order = np.random.default_rng(4).permutation(COUNT)
    np.testing.assert_allclose(head.gradient(flat, features("softmax").parts(order)), whole, atol=2e-3)


def test_a_linear_module_as_a_network_is_the_same() -> None:
    layer = nn.Linear(WIDTH, OUTPUTS)
    linear, network = objective_of(layer), Network(layer)
    assert isinstance(linear, LinearHead)
    assert network.experimental
    assert not linear.experimental
    flat, along = weights(linear.size), weights(linear.size, seed=2)
    parts = [features("softmax").parts(EVERYONE) for _ in range(6)]
    np.testing.assert_allclose(network.gradient(flat, parts[0]), linear.gradient(flat, parts[1]), atol=2e-3)
    np.testing.assert_allclose(
        network.curve(flat, along, parts[2]), linear.curve(flat, along, parts[3]), atol=2e-2
    )
    assert network.value(flat, parts[4]) == pytest.approx(linear.value(flat, parts[5]), rel=1e-5)
    for one, other in zip(network.name_weights(flat).items(), linear.name_weights(flat).items(), strict=True):
        assert one[0] == other[0]
        np.testing.assert_array_equal(one[1], other[1])


def test_a_network_uses_the_gradient_that_is_known() -> None:
    net = Network(nn.Sequential(nn.Linear(WIDTH, 5), nn.Tanh(), nn.Linear(5, OUTPUTS)))
    flat, offset = weights(net.size), weights(net.size, seed=2, scale=0.1)
    known = net.gradient(flat, features("softmax").parts(EVERYONE))
    there = net.gradient(flat + offset, features("softmax").parts(EVERYONE))
    found = net.change(flat, offset, features("softmax").parts(EVERYONE), known=known)
    np.testing.assert_allclose(found, there - known, atol=1e-3)


@pytest.mark.parametrize(
    ("module", "says"),
    [
        (
            nn.Sequential(nn.Linear(WIDTH, 4), nn.BatchNorm1d(4)),
            "'1' is a BatchNorm1d that looks at the whole",
        ),
        (nn.Sequential(nn.Dropout(0.5), nn.Linear(WIDTH, 4)), "'0' is a Dropout, which draws"),
        (nn.Linear(WIDTH, OUTPUTS).double(), r"float64'\]; they must be float32"),
        (nn.ReLU(), "are none; they must"),
    ],
)
def test_modules_whose_gradients_cannot_be_had_again(module: nn.Module, says: str) -> None:
    with pytest.raises(WrongUse, match=says):
        Network(module)


def test_layers_that_stand_still_are_taken() -> None:
    assert Network(nn.Sequential(nn.Linear(WIDTH, 4), nn.BatchNorm1d(4), nn.Dropout(0.5)).eval()).size > 0


@pytest.mark.parametrize(
    "make", [lambda: LinearHead(2, 2, "hinge"), lambda: Network(nn.Linear(2, 2), "hinge")]
)
def test_losses_that_are_not_known(make: object) -> None:
    with pytest.raises(WrongUse, match="'hinge'; it may be softmax, logistic, squares"):
        make()  # type: ignore[operator]


@pytest.mark.parametrize(
    ("loss", "targets", "says"),
    [
        ("softmax", np.full(COUNT, 3), "classes from 3 to 3 for 3 outputs"),
        ("softmax", np.zeros(COUNT), "class numbers"),
        ("logistic", np.full((COUNT, OUTPUTS), 2.0), "from 2 to 2"),
        ("logistic", np.zeros(COUNT), r"\(700,\) for 3 outputs"),
        ("squares", np.zeros((COUNT, 2)), r"\(700, 2\) for 3 outputs"),
    ],
)
def test_targets_that_do_not_fit(loss: str, targets: NDArray[np.generic], says: str) -> None:
    with pytest.raises(JournalRefused, match=says):
        LinearHead(WIDTH, OUTPUTS, loss).check(Features(np.arange(COUNT), VALUES, targets))


@pytest.mark.parametrize("head", HEADS, ids=str)
def test_a_head_comes_back_from_what_describes_it(head: LinearHead) -> None:
    again = restore(head.describe(), None)
    flat = weights(head.size)
    one, other = (each.gradient(flat, features(head.loss).parts(EVERYONE)) for each in (head, again))
    np.testing.assert_array_equal(one, other)


def test_what_describes_another_model_is_refused() -> None:
    spec = objective_of(nn.Linear(WIDTH, OUTPUTS)).describe()
    with pytest.raises(
        JournalRefused, match=r"another model: it has \{'outputs': 3\}, this one \{'outputs': 4\}"
    ):
        restore(spec, nn.Linear(WIDTH, 4))
    net = nn.Sequential(nn.Linear(WIDTH, 4), nn.Tanh())
    with pytest.raises(JournalRefused, match="pass that as model="):
        restore(Network(net).describe(), None)
    with pytest.raises(JournalRefused, match=r"another model.*layers"):
        restore(Network(net).describe(), nn.Sequential(nn.Linear(WIDTH, 4), nn.ReLU()))
    with pytest.raises(ValueError, match="'forest'"):
        restore({"kind": "forest"}, None)
