"""The same on a real accelerator, where there is one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import headwater as hw
from budgets import Residual, assert_equal

pytestmark = pytest.mark.skipif(not torch.accelerator.is_available(), reason="torch has no accelerator here")

STEPS = 6
WAYS = [{}, {"recompute": False}, {"host": 0, "recompute": False}, {"host": "8MiB", "recompute": False}]


@pytest.fixture(autouse=True)
def deterministic(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Plain training must give the same bits twice, else there is nothing to compare with."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def make(name: str) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    device = torch.accelerator.current_accelerator()
    if name == "residual":
        layers = [nn.Conv2d(3, 32, 3, padding=1), *(Residual(32) for _ in range(8))]
        ending = [nn.Flatten(), nn.Linear(32 * 32 * 32, 4)]
        return nn.Sequential(*layers, *ending).to(device), torch.randn(16, 3, 32, 32).to(device)
    encoder = [nn.TransformerEncoderLayer(128, 4, 512, dropout=0.1, batch_first=True) for _ in range(4)]
    net = nn.Sequential(*encoder, nn.Flatten(), nn.Linear(128 * 64, 4))
    return net.to(device), torch.randn(16, 64, 128).to(device)


def train(name: str, around: AbstractContextManager[object]) -> tuple[dict[str, Tensor], int]:
    """What comes out, and the most bytes that torch had allocated in the last step beyond the first ones."""
    net, inputs = make(name)
    targets = torch.arange(len(inputs), device=inputs.device) % 4
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    torch.manual_seed(1)
    before = peak = 0
    with around:
        for _ in range(STEPS):
            optimizer.zero_grad(set_to_none=False)
            torch.accelerator.synchronize()
            before = torch.accelerator.memory_allocated()
            torch.accelerator.reset_peak_memory_stats()
            cross_entropy(net(inputs), targets).backward()
            optimizer.step()
            peak = torch.accelerator.max_memory_allocated() - before
    gradients = {f"gradient of {key}": value.grad for key, value in net.named_parameters()}
    return {**net.state_dict(), **{key: one for key, one in gradients.items() if one is not None}}, peak


@pytest.mark.parametrize("ways", WAYS, ids=str)
@pytest.mark.parametrize("name", ["residual", "transformer"])
def test_training_is_the_same_and_takes_less_of_the_device(name: str, ways: dict[str, int | str]) -> None:
    large = hw.memory_budget("8GiB")
    expected, plain = train(name, nullcontext())
    assert_equal(train(name, large)[0], expected)
    whole = large.report().peak_before
    assert whole > 0, "it counts the accelerator's memory"
    budget = hw.memory_budget(whole // 2, **ways)  # type: ignore[arg-type]
    found, peak = train(name, budget)
    assert_equal(found, expected)
    report = budget.report()
    assert report.peak <= report.budget
    assert report.guided >= 2
    assert peak < plain - (whole - report.budget) // 2


def test_backward_in_a_stream_of_ones_own() -> None:
    def run(around: AbstractContextManager[object]) -> dict[str, Tensor]:
        side = torch.get_device_module().Stream()
        net, inputs = make("residual")
        torch.accelerator.synchronize()
        with around, torch.get_device_module().stream(side):
            for _ in range(4):
                net(inputs).square().mean().backward()
        torch.accelerator.synchronize()
        return {key: one.grad for key, one in net.named_parameters() if one.grad is not None}

    assert_equal(run(hw.memory_budget("4MiB", recompute=False)), run(nullcontext()))


def test_pinned_memory_is_given_back() -> None:
    budget = hw.memory_budget("8MiB", host="512MiB", recompute=False)
    train("residual", budget)
    stats = getattr(torch.get_device_module(), "host_memory_stats", dict)()
    assert stats.get("allocated_bytes.current", 0) == 0


def test_tensors_of_the_cpu_are_left_alone() -> None:
    with hw.memory_budget("1MiB") as budget:
        nn.Linear(512, 512)(torch.randn(4096, 512)).square().sum().backward()
        assert budget.report().peak_before == 0


def test_the_largest_batch() -> None:
    net, inputs = make("residual")

    def step(size: int) -> None:
        net(inputs[:1].expand(size, -1, -1, -1).contiguous()).square().mean().backward()

    assert 0 < hw.max_batch(step, "4MiB", host="64MiB", most=64) < 64
