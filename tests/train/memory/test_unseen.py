"""What changes without a version that tells, or under another name: results are those of plain training, and
what plain training refuses is refused."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import headwater as hw
from forks import in_child
from headwater.errors import SavedTensorChanged

ROWS, WIDTH = 64, 64
Step = Callable[[int], list[Tensor]]
WAYS: dict[str, dict[str, bool]] = {"both": {}, "swap": {"recompute": False}}


def results(make: Callable[[], Step], around: AbstractContextManager[object], steps: int = 4) -> list[Tensor]:
    torch.manual_seed(0)
    step = make()
    with around:
        return [found.detach().clone() for number in range(steps) for found in step(number)]


def assert_as_plain(make: Callable[[], Step], share: float, way: str) -> None:
    ample = hw.memory_budget("1GiB")
    results(make, ample, steps=2)
    budget = hw.memory_budget(int(ample.report().peak_before * share), **WAYS[way])
    found, plain = results(make, budget), results(make, nullcontext())
    assert budget.report().swapped > 0
    assert all(torch.equal(one, other) for one, other in zip(found, plain, strict=True))


def gradients(*nets: nn.Module) -> list[Tensor]:
    return [weight.grad for net in nets for weight in net.parameters() if weight.grad is not None]


def noisy() -> Step:
    layers = (layer for _ in range(4) for layer in (nn.Linear(WIDTH, WIDTH), nn.RReLU()))
    net = nn.Sequential(*layers)

    def step(number: int) -> list[Tensor]:
        net.zero_grad()
        loss = net(torch.randn(ROWS, WIDTH)).square().mean()
        loss.backward()
        return [loss, *gradients(net)]

    return step


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("share", [0.8, 0.5])
def test_noise_is_what_the_operation_has_filled_in_after_it_saved_it(share: float, way: str) -> None:
    assert_as_plain(noisy, share, way)


def trained_and_judged() -> Step:
    net = nn.Sequential(nn.Linear(16, 2048), nn.BatchNorm1d(2048), nn.Tanh(), nn.Linear(2048, 16))

    def step(number: int) -> list[Tensor]:
        net.zero_grad()
        passes = [net.train()(3 * torch.randn(8, 16) + mean).square().mean() for mean in range(3)]
        loss = sum(passes) + net.eval()(torch.randn(8, 16)).square().mean()
        loss.backward()
        return [loss, *gradients(net), *net.buffers()]

    return step


@pytest.mark.parametrize("way", WAYS)
def test_statistics_are_those_of_now_where_training_and_evaluation_share_a_backward_pass(way: str) -> None:
    assert_as_plain(trained_and_judged, 0.45, way)


def refilled() -> Step:
    net = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(WIDTH, WIDTH), nn.Tanh())))
    pixels = np.zeros((ROWS, WIDTH), np.float32)
    inputs = torch.from_numpy(pixels)

    def fill() -> None:
        pixels[...] = torch.randn(ROWS, WIDTH).numpy()

    def step(number: int) -> list[Tensor]:
        net.zero_grad()
        fill()
        unused = net(inputs).square().mean()
        fill()
        loss = net(inputs).square().mean()
        loss.backward()
        return [unused, loss, *gradients(net)]

    return step


@pytest.mark.parametrize("way", WAYS)
def test_data_that_numpy_fills_anew_is_the_new_data_although_an_older_graph_is_alive(way: str) -> None:
    assert_as_plain(refilled, 0.4, way)


def otherwise_named() -> Tensor:
    inputs, weight = (torch.randn(ROWS, WIDTH, requires_grad=True) for _ in range(2))
    hidden = torch.tanh(inputs) * 1.0
    loss = (hidden.data * weight).sum() + (hidden * weight).sum()
    hidden.mul_(2)
    return loss


class Scribbling(torch.autograd.Function):
    """Whose backward writes into what it saved."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, values: Tensor) -> Tensor:
        ctx.save_for_backward(values)
        return values.sum()

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, gradient: Tensor) -> Tensor:  # type: ignore[override]
        (values,) = ctx.saved_tensors  # type: ignore[attr-defined]
        return values.mul_(3.0) * gradient


def scribbled_on() -> Tensor:
    values = torch.exp(torch.randn(ROWS, WIDTH, requires_grad=True) * 0.1) * 1.0
    found = values * values
    for _ in range(6):
        found = torch.tanh(found) * 1.1
    return found.sum() + Scribbling.apply(values)


@pytest.mark.parametrize("budget", ["1GiB", 40_000])
@pytest.mark.parametrize("loss", [otherwise_named, scribbled_on])
def test_a_change_under_another_name_is_refused_as_plain_training_refuses_it(
    loss: Callable[[], Tensor], budget: int | str
) -> None:
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss().backward()
    with hw.memory_budget(budget, recompute=False):
        changed = loss()
        with pytest.raises(SavedTensorChanged):
            changed.backward()


def test_whoever_looks_at_a_graph_gets_what_was_saved_and_nothing_stays_for_it() -> None:
    def looked_at(budget: AbstractContextManager[object]) -> list[Tensor]:
        torch.manual_seed(0)
        inputs = torch.randn(ROWS, WIDTH, requires_grad=True)
        seen, found = [], inputs * 1.0
        with budget:
            for _ in range(6):
                found = torch.tanh(found)
                seen.append(found.grad_fn._saved_result.clone())  # type: ignore[union-attr]
            found.sum().backward()
        assert inputs.grad is not None
        return [inputs.grad, *seen]

    budget = hw.memory_budget(40_000, recompute=False)  # two of six tensors
    pairs = zip(looked_at(budget), looked_at(nullcontext()), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)
    assert budget.report().iterations == 1


def test_nested_tensors_are_left_alone() -> None:
    weight = torch.randn(WIDTH, WIDTH, requires_grad=True)
    rows = torch.nested.nested_tensor([torch.randn(40, WIDTH), torch.randn(24, WIDTH)])
    with hw.memory_budget("1MiB"):
        for _ in range(3):
            weight.grad = None
            nn.functional.linear(rows, weight).to_padded_tensor(0.0).sum().backward()
    inside = weight.grad
    weight.grad = None
    nn.functional.linear(rows, weight).to_padded_tensor(0.0).sum().backward()
    assert inside is not None
    assert weight.grad is not None
    assert torch.equal(inside, weight.grad)


def test_a_child_that_was_forked_inside_of_a_budget_trains_as_without_one() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(WIDTH, WIDTH), nn.Tanh())))
    inputs = torch.randn(ROWS, WIDTH)

    def gradient() -> Tensor:
        net.zero_grad()
        net(inputs).square().mean().backward()
        return gradients(net)[0].clone()

    def train_in_child() -> None:
        assert torch.equal(gradient(), plain)
        context.__exit__(None, None, None)

    plain = gradient()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # OpenMP's are not in the child
    try:
        with hw.memory_budget(60_000, recompute=False) as context:
            for _ in range(3):
                gradient()
            assert in_child(train_in_child) == "nothing"
            assert torch.equal(gradient(), plain)
    finally:
        torch.set_num_threads(threads)
