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


def test_batch_norms_that_are_held_in_evaluation_keep_their_statistics() -> None:
    model, straight = make("VGG").train(), make("VGG").train()
    held = model.get_submodule("1.1").eval()
    before = copy.deepcopy(held.state_dict())
    for one in (model, straight):
        recalibrate(one, [images(seed=1), images(seed=2)])
    assert all(torch.equal(before[name], value) for name, value in held.state_dict().items())
    assert torch.equal(model[0][1].running_mean, straight[0][1].running_mean)  # type: ignore[index]
    assert not torch.equal(model[2][1].running_mean, straight[2][1].running_mean)  # type: ignore[index]
    assert [name for name, part in model.named_modules() if not part.training] == ["1.1"]


def test_of_a_model_in_evaluation_all_statistics_are_taken() -> None:
    model, straight = make("VGG").eval(), make("VGG").train()
    for one in (model, straight):
        recalibrate(one, [images()])
    own = straight.state_dict()
    assert all(torch.equal(own[name], value) for name, value in model.state_dict().items())


def test_batch_norms_that_no_batch_comes_to_keep_their_statistics() -> None:
    model = nn.ModuleDict({"body": make("VGG"), "aside": nn.BatchNorm2d(3)})
    model.forward = model["body"].forward  # type: ignore[method-assign]
    nn.init.constant_(model["aside"].running_mean, 7)  # type: ignore[arg-type]
    assert recalibrate(model, [images()]) == 1
    assert model["aside"].running_mean.tolist() == [7, 7, 7]  # type: ignore[operator, union-attr]


def test_batches_of_something_else_are_refused() -> None:
    model = make("VGG")
    with pytest.raises(WrongUse, match="a batch is dict"):
        recalibrate(model, [{"images": images()}])
    assert model[0][1].momentum == 0.1  # type: ignore[index]
