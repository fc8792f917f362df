"""Models that compute something else in training: what only training uses is cut along, or stays whole."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.functional import cross_entropy

import headwater as hw
from headwater.errors import ModelError
from headwater.plan.prune import SettledMask
from headwater.train.tickets.exactness import find_exact_groups
from headwater.train.tickets.modes import calm, modes_of
from prunable import CLASSES, KINDS, images, labels, make

AT_ONCE = SettledMask(deadline=1e-9, every=1)


def layer(before: int, after: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU())


class Branching(nn.Module):
    """Two layers, and a head on the first that runs when `when` says so."""

    def __init__(self, when: Callable[[Branching], bool], gate: nn.Module | None = None) -> None:
        super().__init__()
        self.first, self.second = layer(3, 16), layer(16, 16)
        self.gate = nn.Identity() if gate is None else gate
        self.aux, self.head, self.when = nn.Linear(16, CLASSES), nn.Linear(16, CLASSES), when

    def forward(self, x: torch.Tensor) -> object:
        x = self.first(x)
        logits = self.head(self.second(x).mean((2, 3)))
        return (logits, self.aux(self.gate(x).mean((2, 3)))) if self.when(self) else logits


class Beside(Branching):
    """The head's result is no result of the model."""

    def forward(self, x: torch.Tensor) -> object:
        found = super().forward(x)
        if not isinstance(found, tuple):
            return found
        self.noted = found[1].detach()
        return found[0]


def in_training(model: nn.Module) -> bool:
    return model.training


def in_evaluation(model: nn.Module) -> bool:
    return not model.training


def bird_of(model: nn.Module) -> hw.EarlyBird:
    bird = hw.EarlyBird(model, ratio=0.5, steps=10, rule=AT_ONCE, round_to=1, example=images(1))
    assert bird.observe(lr=0.1)
    return bird


@pytest.mark.parametrize("when", [in_training, in_evaluation])
def test_a_head_that_runs_in_one_mode_is_cut_along(when: Callable[[nn.Module], bool]) -> None:
    torch.manual_seed(0)
    model = Branching(when)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    ticket = bird_of(model).slim(optimizer, [images()])
    assert model.aux.weight.shape == (CLASSES, ticket.plan.widths[0])
    for mode in (True, False):
        found = model.train(mode)(images())
        parts = found if isinstance(found, tuple) else (found,)
        sum(cross_entropy(part, labels()) for part in parts).backward()  # type: ignore[union-attr]
        optimizer.step()
        assert len(parts) == 1 + when(model)


@pytest.mark.parametrize(
    ("model", "whole"),
    [(Branching(in_training, nn.Sigmoid()), "first.0"), (Beside(in_training), "first.0")],
    ids=["another function", "no result"],
)
def test_what_training_does_not_let_go_stays_whole(
    model: Branching, whole: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert [group.name for group in find_exact_groups(model, images(1))] == ["second.0"]
    assert f"channels of {whole} cannot be removed exactly" in caplog.text
    bird_of(model).slim(None, [images()])
    assert model.train()(images()) is not None


class Dropping(nn.Module):
    """Chance as a module, and by a call."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.drop, self.second = layer(3, 16), nn.Dropout2d(0.5), layer(16, 16)
        self.head = nn.Linear(16, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.dropout(self.second(self.drop(self.first(x))), 0.5, training=self.training)
        logits: torch.Tensor = self.head(x.mean((2, 3)))
        return logits


class Jumping(Dropping):
    """A block is left out by chance, of three generators; and noise on the images."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            x = x + torch.rand_like(x) + random.random() + float(np.random.random())
        return super().forward(x)


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_that_is_the_same_in_both_modes_is_tried_once(kind: str) -> None:
    assert modes_of(make(kind).double(), images(1)) == (False,)


@pytest.mark.parametrize(("kind", "modes"), [(Dropping, (False,)), (Jumping, (False, True))])
def test_chance_is_no_reason_to_stay_whole(kind: Callable[[], nn.Module], modes: tuple[bool, ...]) -> None:
    torch.manual_seed(0)
    model = kind().train()
    assert modes_of(copy.deepcopy(model).double(), images(1)) == modes
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[union-attr]
    assert [group.name for group in find_exact_groups(model, images(1))] == ["first.0", "second.0"]
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    assert np.random.get_state()[1].tolist() == before[2]  # type: ignore[union-attr]
    assert all(part.training for part in model.modules())


def test_training_without_chance_leaves_statistics_alone() -> None:
    model = Dropping()
    model.first[1].eval()
    own, before = [part.training for part in model.modules()], copy.deepcopy(model.state_dict())
    for training in (True, False, None):
        with calm(model, training=training):
            assert torch.equal(model(images()), model(images()))
            assert model.drop.training == (training is not False)
    assert [part.training for part in model.modules()] == own
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_a_model_that_does_not_run_in_its_own_mode_is_left_as_it_was() -> None:
    """Here neither training nor evaluation as a whole shows the head."""
    model = Branching(lambda model: model.training and not model.head.training)
    bird, before = bird_of(model), copy.deepcopy(model.state_dict())
    model.head.eval()
    with pytest.raises(ModelError, match=r"does not run in its own mode: .*; nothing was changed"):
        bird.slim(None, [images()])
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    model.train()
    assert bird.slim(None, [images()]).after.parameters > 0


def test_a_model_that_does_not_train_on_its_example_is_refused() -> None:
    model = Branching(in_training, nn.AvgPool2d(32))
    with pytest.raises(ModelError, match=r"cannot be traced on an input of .* in training mode: .*`example`"):
        find_exact_groups(model, images(1))
