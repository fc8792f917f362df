"""A slim model is the masked one, on all kinds of networks, and so is its next step."""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from headwater.errors import ModelError
from headwater.plan.prune import PrunePlan, make_plan
from headwater.train.tickets.cuts import Cuts, find_cuts
from headwater.train.tickets.exactness import find_exact_groups, mask
from headwater.train.tickets.scales import Scales
from headwater.train.tickets.statistics import recalibrate
from headwater.train.tickets.surgery import operate, tensors_of
from headwater.train.tickets.tracing import Group
from prunable import KINDS, images, labels, make

CLOSE = 1e-5
# A large eps: otherwise a gradient of 1e-9 decides about a whole step.
OPTIMISERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "SGD": lambda model: torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, weight_decay=1e-3),
    "Adam": lambda model: torch.optim.Adam(model.parameters(), 1e-2, eps=0.01, amsgrad=True),
    "AdamW": lambda model: torch.optim.AdamW(model.parameters(), 1e-2, eps=0.01),
    "RMSprop": lambda model: torch.optim.RMSprop(model.parameters(), 1e-2, eps=0.01, momentum=0.5),
    "Adafactor": lambda model: torch.optim.Adafactor(model.parameters(), 1e-2),
}


def learn(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, seed: int = 1) -> torch.Tensor:
    """Some steps; the last loss."""
    model.train()
    for number in range(steps):
        optimizer.zero_grad()
        loss = cross_entropy(model(images(seed=seed + number)), labels(seed=seed + number))
        loss.backward()
        optimizer.step()
    return loss


def plan_of(model: nn.Module, groups: list[Group], ratio: float, multiple: int = 1) -> PrunePlan:
    scales = Scales(model, groups)
    return make_plan(scales.channels, scales.read(), ratio=ratio, multiple=multiple)


def cuts_of(model: nn.Module, plan: PrunePlan) -> Cuts:
    return find_cuts(model, images(1), plan.drops())


@pytest.mark.parametrize("ratio", [0.3, 0.7, 0.95])
@pytest.mark.parametrize("kind", KINDS)
def test_slim_equals_masked(kind: str, ratio: float) -> None:
    model = make(kind)
    learn(model, OPTIMISERS["SGD"](model), 3)
    recalibrate(model, [images(64)])
    groups = find_exact_groups(model, images(1))
    plan = plan_of(model, groups, ratio)
    masked = copy.deepcopy(model)
    mask(masked, groups, plan.drops())
    before = sum(parameter.numel() for parameter in model.parameters())
    operate(model, cuts_of(model, plan))
    assert sum(parameter.numel() for parameter in model.parameters()) < before
    for mode in (False, True):  # with the statistics that were kept, and with those of the batch
        with torch.no_grad():
            found, wanted = model.train(mode)(images()), masked.train(mode)(images())
        assert (found - wanted).abs().max() < CLOSE
        assert ratio > 0.9 or wanted.std(0).max() > 100 * CLOSE, "the network tells images apart"


@pytest.mark.parametrize("kind", KINDS)
def test_every_layer_that_has_a_batch_norm_can_be_cut(kind: str) -> None:
    model = make(kind)
    scaled = {norm.module for group in find_exact_groups(model, images(1)) for norm in group.norms}
    assert scaled == {name for name, layer in model.named_modules() if isinstance(layer, nn.BatchNorm2d)}


@pytest.mark.parametrize("name", OPTIMISERS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_next_step_is_that_of_the_masked_model(kind: str, name: str) -> None:
    """Weights, and all that the optimiser keeps: slim is what is left of masked, after a step too."""
    model = make(kind)
    optimizer = OPTIMISERS[name](model)
    learn(model, optimizer, 3)
    groups = find_exact_groups(model, images(1))
    plan = plan_of(model, groups, 0.5)
    cuts = cuts_of(model, plan)
    masked = copy.deepcopy(model)
    whole = OPTIMISERS[name](masked)
    whole.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    mask(masked, groups, plan.drops())
    operate(model, cuts, optimizer)
    assert _moments(model, optimizer) == _moments(masked, whole, cuts)
    if name == "Adafactor":
        return  # its steps depend on norms of whole tensors
    learn(masked, whole, 1, seed=9)
    learn(model, optimizer, 1, seed=9)
    for key, value in tensors_of(masked).items():
        wanted = cuts.tensors[key].apply(value) if key in cuts.tensors else value
        assert torch.allclose(tensors_of(model)[key], wanted, atol=CLOSE, rtol=1e-4), key


def _moments(
    model: nn.Module, optimizer: torch.optim.Optimizer, cuts: Cuts | None = None
) -> dict[tuple[str, str], list[float]]:
    found = {}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state[parameter].items():
            if cuts is not None and name in cuts.tensors and value.ndim:
                value = cuts.tensors[name].apply(value)
            found[name, key] = value.flatten().tolist()
    assert found
    return found


def test_training_goes_on_while_the_last_loss_is_alive() -> None:
    """Its graph remembers the old shapes; the same parameters, optimiser and scheduler go on."""
    model = make("ResNet, basic")
    optimizer = OPTIMISERS["SGD"](model)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    loss = learn(model, optimizer, 2)
    own = [id(parameter) for parameter in model.parameters()]
    operate(model, cuts_of(model, plan_of(model, find_exact_groups(model, images(1)), 0.5)), optimizer)
    assert [id(parameter) for parameter in model.parameters()] == own
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    learn(model, optimizer, 1, seed=5)
    schedule.step()
    assert loss.requires_grad
    assert all(not torch.equal(before[name], value) for name, value in model.named_parameters())
    assert optimizer.param_groups[0]["lr"] == 0.025


def test_layers_keep_their_layout_in_memory() -> None:
    model = make("VGG").to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = OPTIMISERS["SGD"](model)
    learn(model, optimizer, 1)
    operate(model, cuts_of(model, plan_of(model, find_exact_groups(model, images(1)), 0.5)), optimizer)
    layer = model.get_submodule("1.0")
    assert isinstance(layer, nn.Conv2d)
    assert layer.weight.is_contiguous(memory_format=torch.channels_last)
    assert layer.weight.shape[:2] == (layer.out_channels, layer.in_channels)
    assert optimizer.state[layer.weight]["momentum_buffer"].is_contiguous(memory_format=torch.channels_last)


def test_a_state_that_cannot_be_cut_is_refused_before_anything_changes() -> None:
    model = make("VGG")
    optimizer = OPTIMISERS["SGD"](model)
    learn(model, optimizer, 1)
    last = list(model.parameters())[-4]
    optimizer.state[last]["history"] = torch.zeros(7, 7, 7)
    shapes = {name: value.shape for name, value in model.state_dict().items()}
    plan = plan_of(model, find_exact_groups(model, images(1)), 0.5)
    with pytest.raises(ModelError, match=r"SGD keeps history of 2\.1\.weight in the shape \(7, 7, 7\)"):
        operate(model, cuts_of(model, plan), optimizer)
    assert {name: value.shape for name, value in model.state_dict().items()} == shapes


def test_the_users_model_is_not_touched_by_looking_at_it() -> None:
    model = make("DenseNet, concatenation").train()
    state = copy.deepcopy(model.state_dict())
    generator = torch.get_rng_state()
    groups = find_exact_groups(model, images(1))
    cuts_of(model, plan_of(model, groups, 0.5))
    assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())
    assert all(layer.training for layer in model.modules())
    assert torch.equal(torch.get_rng_state(), generator)


class Gated(nn.Module):
    """A sigmoid of 0 is not 0; a sum with a layer that has no batch norm; and one plain layer."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.Sigmoid())
        self.plain = nn.Sequential(nn.Conv2d(8, 12, 3, padding=1, bias=False), nn.BatchNorm2d(12), nn.ReLU())
        self.scaled = nn.Sequential(nn.Conv2d(12, 6, 1, bias=False), nn.BatchNorm2d(6))
        self.bare = nn.Conv2d(12, 6, 1)
        self.head = nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.plain(self.gate(x))
        logits: torch.Tensor = self.head((self.scaled(x) + self.bare(x)).mean((2, 3)))
        return logits


def test_channels_that_cannot_go_without_a_trace_stay(caplog: pytest.LogCaptureFixture) -> None:
    torch.manual_seed(0)
    model = Gated()
    nn.init.zeros_(model.bare.bias)
    assert [group.name for group in find_exact_groups(model, images(1))] == ["plain.0"]
    assert "channels of bare, gate.0 cannot be removed exactly" in caplog.text or (
        "channels of gate.0, scaled.0 cannot be removed exactly" in caplog.text
    )


class Halves(nn.Module):
    """One half of the channels times the other: what one loses, the other loses too."""

    def __init__(self) -> None:
        super().__init__()
        self.both = nn.Sequential(nn.Conv2d(3, 16, 3, bias=False), nn.BatchNorm2d(16))
        self.plain = nn.Sequential(nn.Conv2d(8, 12, 3, bias=False), nn.BatchNorm2d(12), nn.ReLU())
        self.head = nn.Linear(12, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one, other = self.both(x).chunk(2, 1)
        logits: torch.Tensor = self.head(self.plain(one * other).mean((2, 3)))
        return logits


def grouped(groups: int, middle: int = 32, after: int = 32) -> nn.Module:
    """A ResNeXt's block, with plain layers around it."""
    sizes = ((3, 16, 1), (16, middle, 1), (middle, after, groups), (after, 16, 1))
    layers = [
        nn.Sequential(nn.Conv2d(a, b, 3, groups=g, bias=False), nn.BatchNorm2d(b), nn.ReLU())
        for a, b, g in sizes
    ]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 4))


@pytest.mark.parametrize(
    ("make_model", "whole", "cut"),
    [
        (lambda: grouped(2), "1.0, 2.0", ["0.0", "3.0"]),
        (lambda: grouped(8), "1.0, 2.0", ["0.0", "3.0"]),
        (lambda: grouped(2, 4, 4), "1.0, 2.0", ["0.0", "3.0"]),
        (lambda: grouped(16, 16, 32), "1.0, 2.0", ["0.0", "3.0"]),
        (Halves, "both.0", ["plain.0"]),
    ],
    ids=["2 groups", "8 groups", "2 groups of 2", "2 channels of each", "halves"],
)
def test_layers_that_lose_more_than_a_channel_stay_whole(
    make_model: Callable[[], nn.Module], whole: str, cut: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    torch.manual_seed(0)
    model = make_model()
    groups = find_exact_groups(model, images(1))
    assert [group.name for group in groups] == cut
    assert f"channels of {whole} cannot be removed exactly" in caplog.text
    plan = plan_of(model, groups, 0.5)
    operate(model, cuts_of(model, plan))
    widths = {name: len(model.get_submodule(name).weight) for name in cut}  # type: ignore[arg-type]
    assert widths == dict(zip(plan.channels.names, plan.widths, strict=True))
    assert model(images()).isfinite().all()


class Giving(nn.Module):
    """Two results in the form of `shape`; the second alone shows a sigmoid after a batch norm."""

    def __init__(self, shape: Callable[[torch.Tensor, torch.Tensor], object]) -> None:
        super().__init__()
        self.body, self.shape = make("VGG"), shape
        self.side = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.Sigmoid())
        self.end = nn.Conv2d(8, 2, 1)

    def forward(self, x: torch.Tensor) -> object:
        return self.shape(self.body(x), self.end(self.side(x)).mean((2, 3)))


@pytest.mark.parametrize(
    "shape",
    [
        lambda one, two: (one, two),
        lambda one, two: [one, (two,)],
        lambda one, two: {"out": one, "aux": {"deep": [two]}, "best": one.argmax(1), "none": one[:0]},
    ],
    ids=["tuple", "list", "dict"],
)
def test_all_that_a_model_gives_counts(shape: Callable[[torch.Tensor, torch.Tensor], object]) -> None:
    names = [group.name for group in find_exact_groups(Giving(shape), images(1))]
    assert names == ["body.0.0", "body.1.0", "body.2.0"]


def test_a_model_that_cannot_be_traced_is_refused() -> None:
    with pytest.raises(ModelError, match=r"cannot be traced on an input of \(1, 3, 2, 2\).*`example`"):
        find_exact_groups(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)), torch.zeros(1, 3, 2, 2))


def test_a_coupled_channel_counts_as_much_as_its_largest_scale() -> None:
    model = make("ResNet, basic")
    scales = Scales(model, find_exact_groups(model, images(1)))
    norms = [model.get_submodule(name).weight for name in ("0.0.1", "0.1.two.1")]
    with torch.no_grad():
        norms[0][3], norms[1][3] = 0.25, -2.5
        norms[0][4], norms[1][4] = -0.5, 0.125
    stem = dict(zip(scales.channels.names, scales.channels.parts(), strict=True))
    name = next(name for name in stem if name in ("0.0.0", "0.1.two.0"))
    found = scales.read()[stem[name][1]]
    assert len(found) == 16
    assert np.isclose(found[3:5], [2.5, 0.5]).all()


def test_the_penalty_is_a_sub_gradient() -> None:
    model = make("VGG")
    scales = Scales(model, find_exact_groups(model, images(1)))
    weight = model.get_submodule("0.1").weight
    assert isinstance(weight, torch.Tensor)
    with torch.no_grad():
        weight[:3] = torch.tensor([-1.0, 0.0, 2.0])
    weight.grad = torch.ones_like(weight)
    scales.penalise(0.25)
    assert weight.grad[:3].tolist() == [0.75, 1.0, 1.25]
    assert model.get_submodule("1.1").weight.grad is None  # frozen, or not yet trained
