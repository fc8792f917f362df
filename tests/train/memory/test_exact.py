"""Training inside of a memory budget gives what plain training gives, bit for bit."""

from __future__ import annotations

from contextlib import nullcontext
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import headwater as hw
from budgets import NETS, Results, assert_equal, loss_of, make, train
from headwater.errors import WrongUse

WAYS: dict[str, dict[str, bool]] = {
    "both": {},
    "swap": {"recompute": False},
    "recompute": {"swap": False},
}
STEPS = 4
"""One or two are measured, the others go by a plan."""


@cache
def whole(name: str, loss: Any = loss_of) -> int:
    """Bytes that plain training holds."""
    budget = hw.memory_budget("1GiB")
    train(name, steps=3, around=budget, loss=loss)
    return budget.report().peak_before


@cache
def plain(name: str, loss: Any = loss_of) -> Results:
    """What plain training gives; once for all budgets."""
    return train(name, steps=STEPS, loss=loss)


@pytest.mark.parametrize("way", ["both", "swap"])
@pytest.mark.parametrize("share", [1.0, 0.6])
@pytest.mark.parametrize("name", NETS)
def test_losses_gradients_and_statistics_are_the_same(name: str, share: float, way: str) -> None:
    budget = hw.memory_budget(int(whole(name) * share), **WAYS[way])
    assert_equal(train(name, steps=STEPS, around=budget), plain(name))
    report = budget.report()
    assert report.peak <= report.budget
    assert (report.peak < report.peak_before) == (share < 1)


@pytest.mark.parametrize("name", ["convolutional", "residual", "dropping", "transformer", "unrolled"])
def test_recomputing_alone_is_the_same_too(name: str) -> None:
    budget = hw.memory_budget(int(whole(name) * 0.9), **WAYS["recompute"])
    assert_equal(train(name, steps=STEPS, around=budget), plain(name))
    report = budget.report()
    assert report.recomputed > 0
    assert report.swapped == 0
    assert report.peak <= report.budget


def test_residuals_are_recomputed_through_batch_norms_without_counting_batches_twice() -> None:
    budget = hw.memory_budget(int(whole("residual") * 0.75), **WAYS["recompute"])
    found = train("residual", steps=STEPS, around=budget)
    assert budget.report().recomputed > 0
    assert budget.report().unplanned == 0  # the plan's lineage is that of each iteration
    assert_equal(found, plain("residual"))
    assert int(found["1.norm.num_batches_tracked"]) == STEPS


def accumulate(net: nn.Module, inputs: Tensor) -> Tensor:
    """All but the last part of a batch go backward at once, the last is returned."""
    *parts, last = inputs.chunk(2)
    for part in parts:
        loss_of(net, part).backward()
    return loss_of(net, last)


def half_precision(net: nn.Module, inputs: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = net(inputs)
    return nn.functional.cross_entropy(found.float(), torch.arange(len(inputs)) % 4)


def twice(net: nn.Module, inputs: Tensor) -> Tensor:
    """Backward runs over the same graph a second time."""
    loss = loss_of(net, inputs)
    loss.backward(retain_graph=True)
    return loss


def two_losses(net: nn.Module, inputs: Tensor) -> Tensor:
    """Two graphs live at once."""
    return loss_of(net, inputs) + loss_of(net, inputs * 0.5)


def in_blocks(net: nn.Module, inputs: Tensor) -> Tensor:
    assert isinstance(net, nn.Sequential)
    for layer in net:
        inputs = checkpoint(layer, inputs, use_reentrant=False)
    return nn.functional.cross_entropy(inputs, torch.arange(len(inputs)) % 4)


@pytest.mark.parametrize("way", ["both", "swap"])
@pytest.mark.parametrize("loss", [accumulate, half_precision, twice, two_losses, in_blocks])
@pytest.mark.parametrize("name", ["residual", "transformer"])
def test_ways_of_training_are_the_same(name: str, loss: Any, way: str) -> None:
    share = 0.75 if loss is in_blocks else 0.5
    budget = hw.memory_budget(int(whole(name, loss=loss) * share), **WAYS[way])
    assert_equal(train(name, steps=STEPS, around=budget, loss=loss), plain(name, loss))
    report = budget.report()
    assert report.peak <= report.budget
    assert report.swapped + report.recomputed > 0


def test_batches_of_changing_shape_go_by_a_plan_each() -> None:
    sizes = [8, 4, 8, 4, 8, 4, 8, 4, 8, 6]

    def run(around: Any) -> list[Tensor]:
        net, _ = make("residual")
        losses = []
        with around:
            for size in sizes:
                torch.manual_seed(size)
                loss = loss_of(net, torch.randn(size, 3, 16, 16))
                loss.backward()
                losses.append(loss.detach())
        return [*losses, *(value.grad for value in net.parameters() if value.grad is not None)]

    budget = hw.memory_budget(1_300_000)
    found = run(budget)
    expected = run(nullcontext())
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    report = budget.report()
    assert report.iterations == len(sizes)
    assert report.guided >= 4
    assert report.peak <= report.budget


def test_a_program_that_never_repeats_is_held_within_the_budget() -> None:
    def run(around: Any) -> list[Tensor]:
        net, _ = make("residual")
        assert isinstance(net, nn.Sequential)
        found = []
        with around as budget:
            for step in range(6):
                torch.manual_seed(step)
                blocks = [net[1 + (step * 3 + place) % 4] for place in range(2 + step % 3)]
                layers = [net[0], *blocks, *net[5:]]
                net.zero_grad(set_to_none=True)
                loss = loss_of(nn.Sequential(*layers), torch.randn(4 + step, 3, 16, 16))
                loss.backward()
                found += [loss.detach(), *(one.grad for one in net.parameters() if one.grad is not None)]
                if budget is not None:
                    assert budget.report().peak <= budget.report().budget
        return found

    found, expected = run(hw.memory_budget(500_000)), run(nullcontext())
    assert len(found) == len(expected)
    assert all(map(torch.equal, found, expected))


def test_double_backward_is_refused() -> None:
    net, inputs = make("convolutional")
    with hw.memory_budget("1GiB"):
        loss = loss_of(net, inputs)
        with pytest.raises(WrongUse, match="create_graph"):
            torch.autograd.grad(loss, list(net.parameters()), create_graph=True)


def test_backward_outside_is_refused() -> None:
    net, inputs = make("convolutional")
    with hw.memory_budget("1GiB"):
        loss = loss_of(net, inputs)
    with pytest.raises(WrongUse, match="inside"):
        loss.backward()
