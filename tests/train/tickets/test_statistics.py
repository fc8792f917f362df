"""Batch norms after recalibration, and what it must leave alone."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from headwater.errors import WrongUse
from headwater.train.tickets.statistics import recalibrate
from prunable import images, labels, make


def test_statistics_are_those_of_the_batches() -> None:
    model = make("VGG").train()
    assert recalibrate(model, [images(8, seed) for seed in range(4)]) == 4
    inner = model[0][0](torch.cat([images(8, seed) for seed in range(4)]))  # type: ignore[index]
    norm = model[0][1]  # type: ignore[index]
    assert torch.allclose(norm.running_mean, inner.mean((0, 2, 3)), atol=1e-6)
    assert torch.allclose(norm.running_var, inner.var((0, 2, 3)), rtol=0.05)
    assert norm.momentum == 0.1
    assert all(layer.training for layer in model.modules())


def test_nothing_but_statistics_changes_and_dropout_is_off() -> None:
    model = nn.Sequential(nn.Dropout(0.9), make("ResNet, basic")).eval()
    before = copy.deepcopy(model)
    recalibrate(model, [images()])
    again = copy.deepcopy(before)
    recalibrate(again, [(images(), labels())])
    for name, value in model.state_dict().items():
        assert torch.equal(value, again.state_dict()[name]), name
        changes = name.rpartition(".")[2] in ("running_mean", "running_var", "num_batches_tracked")
        assert torch.equal(value, before.state_dict()[name]) != changes, name
    assert not any(layer.training for layer in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_without_batches_statistics_stay() -> None:
    model = make("VGG")
    before = copy.deepcopy(model.state_dict())
    assert recalibrate(model, []) == 0
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_batches_of_something_else_are_refused() -> None:
    model = make("VGG")
    with pytest.raises(WrongUse, match="a batch is dict"):
        recalibrate(model, [{"images": images()}])
    assert model[0][1].momentum == 0.1  # type: ignore[index]
