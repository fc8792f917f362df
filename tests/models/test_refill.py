"""Exported once and filled again: the model that an export anew would give."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

from exports import coloured, normalised, steps
from headwater import transforms as T
from headwater.errors import WrongUse
from headwater.models.refill import Refill
from headwater.models.runtime import Engine
from nets import CLASSES, SIZE, Residual, plain

PIXELS, LABELS = coloured(24)


def train(model: nn.Module) -> nn.Module:
    """A few steps, through batch norms that learn too."""
    model.train()
    optimiser = torch.optim.SGD(model.parameters(), 0.05)
    for _ in range(3):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(normalised(PIXELS)), torch.from_numpy(LABELS)).backward()
        optimiser.step()
    return model.eval()


def logits_of(model: nn.Module) -> np.ndarray:
    with torch.no_grad():
        found: np.ndarray = model.eval()(normalised(PIXELS)).numpy()
    return found


@pytest.mark.parametrize("make", [plain, Residual])
def test_new_weights_need_no_new_export(make: type[nn.Module]) -> None:
    model = make()
    refill = Refill(model, classes=CLASSES, steps=steps())
    first = refill.fill(model.state_dict())
    train(model)
    second = refill.fill(model.state_dict())
    assert refill.exports == 1
    assert (second.trunk, second.head) == (first.trunk, first.head), "the graphs are the same, to the byte"
    engine = Engine(second)
    np.testing.assert_allclose(
        engine.logits(engine.features(normalised(PIXELS).numpy())), logits_of(model), rtol=1e-3, atol=1e-3
    )
    before = Engine(first)
    assert not np.allclose(
        before.logits(before.features(normalised(PIXELS).numpy())), logits_of(model), atol=0.01
    )


def test_the_model_itself_is_left_alone() -> None:
    model = plain().train()
    held = copy.deepcopy(model.state_dict())
    refill = Refill(model, classes=CLASSES, steps=steps())
    made = refill.fill(model.state_dict())
    assert model.training
    with torch.no_grad():
        for tensor in model.parameters():
            tensor.add_(1.0)
    again = refill.fill(held)
    for name, array in made.tensors.items():
        np.testing.assert_array_equal(again.tensors[name], array)


class Fickle(nn.Module):
    """Its layers cannot be traced, so that its batch norm is folded by the exporter under another name."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.norm = nn.Conv2d(3, 6, 3, bias=False), nn.BatchNorm2d(6)
        self.head = nn.Linear(6, len(CLASSES), bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[2] != x.shape[3]:
            raise ValueError("no square")
        return self.head(torch.relu(self.norm(self.conv(x))).mean((2, 3)))


def test_a_model_whose_tensors_have_other_names_is_exported_each_time() -> None:
    model = Fickle().eval()
    refill = Refill(model, classes=CLASSES, steps=steps())
    refill.fill(model.state_dict())
    train(model)
    made = refill.fill(model.state_dict())
    assert refill.exports == 2
    engine = Engine(made)
    np.testing.assert_allclose(
        engine.logits(engine.features(normalised(PIXELS).numpy())), logits_of(model), rtol=1e-3, atol=1e-3
    )


def test_steps_that_leave_several_sizes_are_refused() -> None:
    for wrong in (T.Compose([T.Normalize(0.5, 0.5)]), T.Compose([T.CenterCrop((SIZE, SIZE + 8))])):
        with pytest.raises(WrongUse, match="not square, or of several sizes"):
            Refill(plain(), classes=CLASSES, steps=wrong)
