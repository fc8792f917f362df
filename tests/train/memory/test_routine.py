"""Iterations that fit are only looked at, until one is different: then nothing was missed."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import headwater as hw
from headwater.errors import SavedTensorChanged, WrongUse
from headwater.train.memory.budget import MemoryBudget
from headwater.train.memory.storages import WeakStorage

WIDTH, ROWS = 64, 32
SAVED = 4 * WIDTH * ROWS  # bytes of one activation


class Deep(nn.Module):
    """As many layers as one says, whatever is put in."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(12))
        self.depth = 4

    def forward(self, values: Tensor) -> Tensor:
        for layer in self.layers[: self.depth]:
            values = torch.tanh(layer(values))
        return values


def settle(budget: MemoryBudget, call: Callable[[], object]) -> None:
    """Until iterations are only looked at."""
    for _ in range(10):
        call()
        if is_light(budget):
            return
    raise AssertionError("it is never only looked at")


def is_light(budget: MemoryBudget) -> bool:
    assert budget._tracker is not None
    return budget._tracker._routine is not None


def gradients(net: nn.Module, rows: int = ROWS, seed: int = 1) -> list[Tensor]:
    inputs = torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(seed))
    net.zero_grad(set_to_none=True)
    net(inputs).square().sum().backward()
    return [one.grad.clone() for one in net.parameters() if one.grad is not None]


def equal(some: list[Tensor], others: list[Tensor]) -> bool:
    return len(some) == len(others) and all(map(torch.equal, some, others))


@pytest.fixture
def net() -> Deep:
    torch.manual_seed(0)
    return Deep()


def test_what_fits_is_only_looked_at_and_counted(net: Deep) -> None:
    plain = gradients(net)
    with hw.memory_budget("1MiB") as budget:
        settle(budget, lambda: gradients(net))
        before = budget.report()
        for _ in range(3):
            assert equal(gradients(net), plain)
        assert is_light(budget)
        after = budget.report()
        assert (after.iterations, after.guided) == (before.iterations + 3, before.guided + 3)
        assert after.peak == after.peak_before == before.peak > 0


def test_where_something_has_to_leave_all_is_accounted_for(net: Deep) -> None:
    net.depth = 12
    with hw.memory_budget(6 * SAVED) as budget:
        for _ in range(8):
            gradients(net)
            assert not is_light(budget)


@pytest.mark.parametrize("change", ["rows", "depth"])
def test_one_that_is_different_stays_within_the_budget(net: Deep, change: str) -> None:
    """From its first tensor on, or from one in its middle, of which those before it must leave too."""
    rows = 4 * ROWS if change == "rows" else ROWS
    known = gradients(net)
    net.depth = 12 if change == "depth" else 4
    plain = gradients(net, rows)
    net.depth = 4
    most = 7 * SAVED if change == "depth" else 12 * SAVED
    with hw.memory_budget(most) as budget:
        settle(budget, lambda: gradients(net))
        light = budget.report()
        net.depth = 12 if change == "depth" else 4
        for _ in range(4):
            assert equal(gradients(net, rows), plain)
            report = budget.report()
            assert report.peak <= most < report.peak_before
            assert report.swapped + report.recomputed > 0
        assert report.iterations == light.iterations + 4
        net.depth = 4
        assert equal(gradients(net), known)


def test_other_storages_of_the_same_shapes_are_counted() -> None:
    """What was saved twice lies in one storage; of two that look alike each takes its room."""
    weights = [nn.Parameter(torch.randn(WIDTH, WIDTH)) for _ in range(8)]
    size = 4 * WIDTH * WIDTH
    twice = True

    def step() -> list[Tensor]:
        made = [weight.tanh() for weight in weights]
        pairs = zip(made[::2], made[1::2], strict=True)
        products = [one * one if twice else one.clone() * other.clone() for one, other in pairs]
        loss = torch.stack([product.sum() for product in products]).sum()
        return list(torch.autograd.grad(loss, weights, allow_unused=True))

    twice = False
    plain = step()
    twice = True
    with hw.memory_budget(9 * size) as budget:
        settle(budget, step)
        assert budget.report().peak == 8 * size
        twice = False
        for _ in range(4):
            assert equal(step(), plain)
            report = budget.report()
            assert report.peak_before == 16 * size
            assert report.peak <= 9 * size


def test_what_does_not_outlast_the_step_any_more_is_counted() -> None:
    """Data that is there all the time takes no room for backward; what comes anew does."""
    layers = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())
    kept = torch.randn(ROWS, WIDTH)

    def step(values: Tensor) -> None:
        layers(values).square().sum().backward()

    with hw.memory_budget("1MiB") as budget:
        settle(budget, lambda: step(kept))
        before = budget.report().peak_before
        step(torch.randn(ROWS, WIDTH))
        assert budget.report().peak_before == before + SAVED


def test_a_tensor_without_a_storage_is_known_again_too() -> None:
    sparse = torch.eye(WIDTH).to_sparse()
    weight = nn.Parameter(torch.randn(WIDTH, ROWS))
    with hw.memory_budget("1MiB") as budget:
        settle(budget, lambda: torch.sparse.mm(sparse, weight).tanh().sum().backward())


def test_what_is_written_over_is_told(net: Deep) -> None:
    def spoil() -> None:
        inputs = torch.randn(ROWS, WIDTH)
        hidden = torch.tanh(net.layers[0](inputs))
        loss = net.layers[1](hidden).sum()
        with torch.no_grad():
            hidden.zero_()
        loss.backward()

    def sound() -> None:
        inputs = torch.randn(ROWS, WIDTH)
        net.layers[1](torch.tanh(net.layers[0](inputs))).sum().backward()

    with hw.memory_budget("1MiB") as budget:
        settle(budget, sound)
        with pytest.raises(SavedTensorChanged):
            spoil()


def test_what_was_written_over_before_something_else_came_is_told(net: Deep) -> None:
    with hw.memory_budget("1MiB") as budget:
        settle(budget, lambda: gradients(net))
        hidden = torch.tanh(net.layers[0](torch.randn(ROWS, WIDTH)))
        with torch.no_grad():
            hidden.zero_()
        loss = torch.exp(hidden[:7] * 2).sum()  # another shape than the one that comes next
        assert not is_light(budget)
        with pytest.raises(SavedTensorChanged):
            loss.backward()


def test_a_graph_that_is_kept_is_taken_into_account(net: Deep) -> None:
    with hw.memory_budget("1MiB") as budget:
        settle(budget, lambda: gradients(net))
        loss = net(torch.randn(ROWS, WIDTH)).square().sum()
        net.zero_grad(set_to_none=True)
        loss.backward(retain_graph=True)
        first = [one.grad.clone() for one in net.parameters() if one.grad is not None]
        gradients(net)
        assert not is_light(budget)
        net.zero_grad(set_to_none=True)
        loss.backward()
        assert equal([one.grad for one in net.parameters() if one.grad is not None], first)


def test_an_iteration_that_breaks_off_is_followed_by_sound_ones(net: Deep) -> None:
    plain = gradients(net)
    with hw.memory_budget("1MiB") as budget:
        settle(budget, lambda: gradients(net))
        torch.tanh(net.layers[0](torch.randn(ROWS, WIDTH)))  # and no more
        for _ in range(6):
            assert equal(gradients(net), plain)
        assert is_light(budget)


def test_no_graph_is_built_in_backward(net: Deep) -> None:
    with hw.memory_budget("1MiB") as budget:
        settle(budget, lambda: gradients(net))
        loss = net(torch.randn(ROWS, WIDTH)).square().sum()
        with pytest.raises(WrongUse, match="create_graph"):
            torch.autograd.grad(loss, list(net.layers[:4].parameters()), create_graph=True)


def test_backward_after_the_budget_was_left_is_refused_and_holds_nothing(net: Deep) -> None:
    with hw.memory_budget("1MiB") as budget:
        settle(budget, lambda: gradients(net))
        hidden = torch.tanh(net.layers[0](torch.randn(ROWS, WIDTH)))
        loss = net.layers[1](hidden).sum()
        storage = WeakStorage(hidden.untyped_storage())
    with pytest.raises(WrongUse, match="inside of the `with`"):
        loss.backward()
    del hidden
    gc.collect()
    assert storage.gone
