"""The simulated search in few bits: how many values there are, unbiased gradients, and where it applies."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from headwater.errors import WrongUse
from headwater.train.tickets.lowbits import Rounding
from prunable import images, labels, make


def levels(values: torch.Tensor) -> torch.Tensor:
    """Values as multiples of the smallest step between them, if they are of 8 bits."""
    scale = values.abs().max() / 127
    return values / scale


@pytest.mark.parametrize(("bits", "most"), [(8, 255), (4, 15), (2, 3)])
def test_weights_have_so_many_values_in_each_row(bits: int, most: int) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(4_096, 3, bias=False)
    with Rounding(bits), torch.no_grad():
        seen = layer(torch.eye(4_096))  # a row of ones and zeros is not changed by rounding
    assert [len(row.unique()) for row in seen.T] == [most] * 3
    assert (seen.T - layer.weight).abs().max() <= layer.weight.abs().max() / (2 ** (bits - 1) - 1) / 2 * 1.001


def test_inputs_are_rounded_to_255_values() -> None:
    inputs = torch.linspace(-1, 1, 10_001).reshape(1, 1, 1, -1)
    with Rounding(8):
        seen = F.conv2d(inputs, torch.ones(1, 1, 1, 1))
    assert len(seen.unique()) == 255
    assert torch.allclose(levels(seen), levels(seen).round(), atol=1e-3)


def test_gradients_are_rounded_and_right_on_average() -> None:
    torch.manual_seed(0)
    inputs, weight, wanted = torch.eye(64), torch.randn(1, 64), torch.randn(64, 1)
    total = torch.zeros(1, 64)
    for _ in range(400):
        leaf = weight.clone().requires_grad_()
        with Rounding(8):
            (F.linear(inputs, leaf) * wanted).sum().backward()
        assert leaf.grad is not None
        assert torch.allclose(levels(leaf.grad), levels(leaf.grad).round(), atol=1e-3)
        total += leaf.grad
    assert (total / 400 - wanted.T).abs().max() < wanted.abs().max() / 127 / 4


def test_arguments_by_name_are_rounded_too() -> None:
    inputs, weight = torch.rand(2, 5), torch.rand(3, 5)
    with Rounding(4):
        assert torch.equal(F.linear(input=inputs, weight=weight), F.linear(inputs, weight))
        assert not torch.equal(F.linear(inputs, weight=weight), inputs @ weight.T)


def test_layers_of_a_model_compute_with_it_and_batch_norms_without() -> None:
    model = make("ResNet, basic").train()
    plain = model(images())
    with Rounding(8):
        rounded = model(images())
        assert torch.equal(
            F.batch_norm(images(), None, None, training=True),
            F.batch_norm(images(), None, None, training=True),
        )
    assert 1e-4 < (plain - rounded).abs().max() < 0.5
    F.cross_entropy(rounded, labels()).backward()
    assert all(
        parameter.grad is not None and parameter.grad.isfinite().all() for parameter in model.parameters()
    )
    assert torch.equal(model(images()), plain)


def test_zeros_stay_zeros() -> None:
    leaf = torch.zeros(2, 3, requires_grad=True)
    with Rounding(8):
        result = F.linear(torch.zeros(1, 3), leaf)
        result.sum().backward()
    assert result.tolist() == [[0.0, 0.0]]
    assert leaf.grad is not None
    assert leaf.grad.isfinite().all()


@pytest.mark.parametrize("bits", [1, 9, 4.5, float("nan"), "8"])
def test_bits_that_are_not_simulated_are_refused(bits: Any) -> None:
    with pytest.raises(WrongUse, match="2 to 8"):
        Rounding(bits)
