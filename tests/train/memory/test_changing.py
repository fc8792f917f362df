"""Programs whose depth changes, and chains that are made again: the same gradients, nothing made twice."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import Tensor, nn

import headwater as hw
from headwater.train.memory import replay
from headwater.train.memory.lineage import Recipe

LAYERS, ROWS, WIDTH = 12, 128, 64
SAVED = 4 * ROWS * WIDTH  # bytes of one activation


class Deep(nn.Module):
    """As many layers as one says."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))
        self.depth = LAYERS

    def forward(self, values: Tensor) -> Tensor:
        for layer in self.layers[: self.depth]:
            values = torch.tanh(layer(values))
        return values


def gradients(net: Deep, depth: int) -> list[Tensor]:
    torch.manual_seed(depth)
    net.depth = depth
    net.zero_grad(set_to_none=True)
    net(torch.randn(ROWS, WIDTH)).sum().backward()
    return [one.grad.clone() for one in net.parameters() if one.grad is not None]


@pytest.mark.parametrize(
    "ways", [{}, {"recompute": False}, {"swap": False}], ids=["both", "swap", "recompute"]
)
@pytest.mark.parametrize("held", [4, 7])
def test_a_program_that_stops_earlier_than_its_plan_is_sound(ways: dict[str, bool], held: int) -> None:
    depths = (12, 12, 12, 11, 10, 8, 12, 7, 5, 4, 12, 11, 12)
    net = Deep()
    plain = [gradients(net, depth) for depth in depths]
    with hw.memory_budget(held * SAVED, **ways) as budget:
        for depth, expected in zip(depths, plain, strict=True):
            found = gradients(net, depth)
            assert all(map(torch.equal, found, expected))
            assert budget.report().peak <= held * SAVED


def test_a_chain_that_fits_its_plan_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: Counter[str] = Counter()
    run = replay._run

    def count(recipe: Recipe, *rest: object) -> Tensor:
        made[str(recipe.operation)] += 1
        return run(recipe, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(replay, "_run", count)
    net = Deep()
    with hw.memory_budget(8 * SAVED, swap=False) as budget:
        for _ in range(4):
            made.clear()
            gradients(net, LAYERS)
        plan = budget.report().plan
        assert plan is not None
        chosen = sum(choice.action == "recompute" for choice in plan.choices)
    assert plan.fits
    assert 0 < made["aten.tanh.default"] <= chosen
