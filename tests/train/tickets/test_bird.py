"""`hw.EarlyBird` in a loop: when it draws, what is left, and runs that are stopped."""

from __future__ import annotations

import copy
import io
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import headwater as hw
from headwater.errors import ModelError, StateMismatch, WrongUse
from headwater.plan.prune import MaskDistance, Rule, SettledMask
from headwater.train.tickets.hardware import channel_multiple
from prunable import images, labels, make

STEPS = 40
RULE = SettledMask(limit=0.9, window=3, every=2)


def make_bird(model: nn.Module, **settings: Any) -> hw.EarlyBird:
    given: dict[str, Any] = {"ratio": 0.5, "steps": STEPS, "rule": RULE, "round_to": 1, "example": images(1)}
    return hw.EarlyBird(model, **{**given, **settings})


class Loop:
    """A run that can be saved and gone on with; batches depend on the step alone."""

    def __init__(self, **settings: Any) -> None:
        self.model = make("ResNet, basic")
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.05, momentum=0.9)
        self.bird = make_bird(self.model, **settings)
        self.step, self.drawn = 0, 0

    def run(self, until: int) -> None:
        while self.step < until:
            self.step += 1
            self.model.train()
            self.optimizer.zero_grad()
            with self.bird.searching():
                cross_entropy(self.model(images(seed=self.step)), labels(seed=self.step)).backward()
            self.bird.after_backward()
            self.optimizer.step()
            if self.bird.observe(lr=0.05):
                self.drawn = self.step
                self.bird.slim(self.optimizer, [images(seed=seed) for seed in range(100, 103)])

    def save(self) -> bytes:
        parts = {"model": self.model, "optimizer": self.optimizer, "bird": self.bird}
        file = io.BytesIO()
        torch.save({name: part.state_dict() for name, part in parts.items()} | {"step": self.step}, file)
        return file.getvalue()

    def load(self, data: bytes) -> None:
        saved = torch.load(io.BytesIO(data))  # with weights_only, torch's default: the state is plain data
        self.bird.load_state_dict(saved["bird"])
        self.model.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        self.step = saved["step"]


def test_a_run_becomes_slim_and_goes_on() -> None:
    loop = Loop()
    loop.run(STEPS)
    ticket = loop.bird.ticket
    assert ticket is not None
    assert loop.drawn == ticket.plan.step == 6  # the third look
    assert [look.step for look in loop.bird.looks] == [2, 4, 6]
    assert ticket.plan.removed == pytest.approx(0.5, abs=0.02)
    assert ticket.after.parameters == sum(parameter.numel() for parameter in loop.model.parameters())
    assert ticket.after.parameters < 0.5 * ticket.before.parameters
    assert ticket.after.macs < 0.6 * ticket.before.macs
    assert str(ticket).startswith(f"{ticket.after.parameters:,} of {ticket.before.parameters:,} parameters")
    assert loop.model(images()).isfinite().all()


@pytest.mark.parametrize("stop", [1, 5, 6, 7, 20])
def test_a_run_that_was_stopped_ends_as_one_that_was_not(stop: int) -> None:
    straight, first, second = Loop(), Loop(), Loop()
    straight.run(25)
    first.run(stop)
    second.load(first.save())
    second.run(25)
    assert second.bird.state_dict() == straight.bird.state_dict()
    for name, value in straight.model.state_dict().items():
        assert torch.equal(value, second.model.state_dict()[name]), name


def test_a_ticket_that_was_drawn_and_not_used_is_there_after_a_restart() -> None:
    first, second = Loop(), Loop()
    first.bird.slim = lambda *_: None  # type: ignore[assignment,method-assign]
    first.run(6)
    second.load(first.save())
    assert second.bird.plan is not None
    assert second.bird.ticket is None
    second.run(7)
    assert second.drawn == 7


def test_the_penalty_makes_scales_smaller() -> None:
    ends = []
    for l1 in (0.0, 0.05):
        loop = Loop(l1=l1, rule=MaskDistance(limit=1e-6, every=STEPS + 1))
        loop.run(10)
        ends.append(sum(layer.weight.detach().abs().sum().item() for layer in norms(loop.model)))
    assert ends[1] < 0.95 * ends[0]


def norms(model: nn.Module) -> list[nn.BatchNorm2d]:
    return [layer for layer in model.modules() if isinstance(layer, nn.BatchNorm2d)]


def test_recalibrated_statistics_are_those_of_the_slim_model() -> None:
    """With the statistics that were cut, it is another function than in training."""
    loop, apart = Loop(), []
    loop.run(5)
    for batches in ([], [images(256)]):
        bird = make_bird(model := copy.deepcopy(loop.model), rule=SettledMask(deadline=1e-9, every=1))
        assert bird.observe(lr=0.1)
        bird.slim(None, batches)
        with torch.no_grad():
            apart.append(float((model.train()(images(256)) - model.eval()(images(256))).abs().mean()))
    assert apart[1] < 0.5 * apart[0]


def test_layers_are_rounded_up_to_what_the_hardware_likes() -> None:
    model = make("VGG")
    assert channel_multiple(model) == (16 if torch.backends.cpu.get_cpu_capability() == "AVX512" else 8)
    for round_to, allowed in ((None, channel_multiple(model)), (4, 4)):
        bird = make_bird(copy.deepcopy(model), round_to=round_to, rule=SettledMask(deadline=1e-9, every=1))
        assert bird.observe(lr=0.1)
        assert bird.plan is not None
        for width, size in zip(bird.plan.widths, bird.plan.channels.sizes, strict=True):
            assert width % allowed == 0 or width == size


def test_a_search_in_few_bits_ends_with_the_ticket() -> None:
    loop = Loop(bits=8)
    inputs = images(4)
    plain = loop.model.eval()(inputs)
    with loop.bird.searching():
        assert not torch.equal(loop.model(inputs), plain)
    loop.run(7)
    assert loop.drawn == 6
    plain = loop.model.eval()(inputs)
    with loop.bird.searching():
        assert torch.equal(loop.model(inputs), plain)


def test_a_frozen_model_and_one_on_no_gradient_can_be_watched() -> None:
    model = make("VGG").requires_grad_(False)
    with torch.no_grad():
        bird = make_bird(model)
    bird.after_backward()
    assert not bird.observe(lr=0.1)


def test_what_cannot_be_is_refused() -> None:
    model = make("VGG")
    with pytest.raises(WrongUse, match="l1 is -1"):
        make_bird(model, l1=-1)
    with pytest.raises(WrongUse, match="there is no rule 'soon'; choose from distance, settled"):
        make_bird(model, rule="soon")
    with pytest.raises(WrongUse, match="ratio 1"):
        make_bird(model, ratio=1.0)
    bird = make_bird(model)
    with pytest.raises(WrongUse, match="no ticket was drawn yet"):
        bird.slim()
    with pytest.raises(ModelError, match="Sequential has no channels that can be removed exactly"):
        make_bird(nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 14 * 14, 4)))


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"l1": float("nan")}, "l1 is nan"),
        ({"l1": float("inf")}, "l1 is inf"),
        ({"l1": "1e-4"}, "l1 is '1e-4'"),
        ({"example": torch.zeros(())}, r"example is tensor\(0\.\)"),
        ({"example": "photo"}, "example is 'photo'"),
        ({"rule": None}, "there is no rule None; choose from distance, settled, or give an object"),
        ({"steps": float("nan")}, "steps nan and multiple 1 must be whole numbers"),
        ({"round_to": 1.5}, r"multiple 1\.5 must be whole numbers"),
        ({"ratio": float("nan")}, "ratio nan"),
    ],
    ids=str,
)
def test_settings_that_are_no_numbers_are_refused(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(WrongUse, match=reason):
        make_bird(make("VGG"), **settings)


def test_an_example_of_no_image_counts_as_one() -> None:
    bird = make_bird(make("VGG"), example=images(8)[:0], rule=SettledMask(deadline=1e-9, every=1))
    assert bird.observe(lr=0.1)
    assert bird.slim().after.macs > 0


def lazy() -> nn.Module:
    return nn.Sequential(nn.LazyConv2d(8, 3), nn.LazyBatchNorm2d())


def scripted() -> nn.Module:
    with warnings.catch_warnings(action="ignore"):
        return torch.jit.script(make("VGG"))  # type: ignore[no-untyped-call]


def normed() -> nn.Module:
    with warnings.catch_warnings(action="ignore"):
        nn.utils.weight_norm((model := make("VGG")).get_submodule("0.0"))
    return model


@pytest.mark.parametrize("make_model", [lazy, scripted, normed])
def test_a_model_that_cannot_be_copied_is_refused(make_model: Callable[[], nn.Module]) -> None:
    with pytest.raises(ModelError, match=r"cannot be copied: .*; give a torch module that is not scripted"):
        make_bird(make_model())


def test_a_slim_model_is_not_made_slim_again() -> None:
    loop = Loop()
    loop.run(10)
    assert not loop.bird.observe(lr=0.1)
    with pytest.raises(WrongUse, match="slim already"):
        loop.bird.slim()
    with pytest.raises(StateMismatch, match="slim already"):
        loop.bird.load_state_dict(loop.bird.state_dict())


class Whole:
    """A model, its optimiser and its bird just before `slim`, and what they are."""

    def __init__(self) -> None:
        loop = self.loop = Loop()
        loop.bird.slim = lambda *_: None  # type: ignore[assignment,method-assign]
        loop.run(6)
        del loop.bird.slim  # type: ignore[method-assign]
        assert loop.bird.plan is not None

    def state(self) -> dict[str, Any]:
        own, loop = {}, self.loop
        for name, module in loop.model.named_modules():
            own[f"{name} is"] = repr(module)
        for name, value in loop.model.state_dict(keep_vars=True).items():
            own[name] = (value.tolist(), None if value.grad is None else value.grad.tolist())
            moments = loop.optimizer.state.get(value, {})
            own[f"{name} keeps"] = {key: moment.tolist() for key, moment in moments.items()}
        return own | {"bird": loop.bird.state_dict(), "ticket": loop.bird.ticket}


GOOD = [images(seed=seed) for seed in range(3)]


@pytest.mark.parametrize(
    ("batches", "kind", "reason"),
    [
        ([{"images": images()}], WrongUse, "a batch is dict"),
        ([[]], WrongUse, "a batch is list"),
        ([*GOOD, "x"], WrongUse, "a batch is str"),
        (
            [*GOOD, images()[:, :2]],
            WrongUse,
            r"\(8, 2, 16, 16\), torch.float32, is not what .*channels.*; give",
        ),
        ([*GOOD, images().double()], WrongUse, r"torch.float64, is not what the model takes"),
        ([*GOOD, images() * float("nan")], WrongUse, r"\(8, 3, 16, 16\), .* holds what is no number"),
        ([images() / 0], WrongUse, "holds what is no number"),
        ([*GOOD, images() * 1e38], ModelError, "statistics of 0.0.1 are no numbers"),
        (3, WrongUse, "batches is 3; give some batches"),
    ],
)
def test_batches_that_are_no_good_change_nothing(batches: Any, kind: type[Exception], reason: str) -> None:
    whole = Whole()
    before = whole.state()
    with pytest.raises(kind, match=reason):
        whole.loop.bird.slim(whole.loop.optimizer, batches)
    assert whole.state() == before
    whole.loop.bird.slim(whole.loop.optimizer, GOOD)
    straight = Whole()
    straight.loop.bird.slim(straight.loop.optimizer, GOOD)
    assert {**whole.state(), "ticket": None} == {**straight.state(), "ticket": None}


def test_a_model_that_does_not_run_when_it_is_cut_is_left_as_it_was() -> None:
    whole = Whole()
    blocks = whole.loop.model.get_submodule("0.3")
    old, other = blocks.get_submodule("two.0"), nn.Conv2d(32, 32, 3, padding=1, bias=False, groups=8)
    blocks.get_submodule("two")[0] = other  # type: ignore[index]
    before = whole.state()
    with pytest.raises(ModelError, match=r"the model does not run.*nothing was changed; make an EarlyBird"):
        whole.loop.bird.slim(whole.loop.optimizer, GOOD)
    assert whole.state() == before
    assert whole.loop.model(images()).isfinite().all()
    blocks.get_submodule("two")[0] = old  # type: ignore[index]
    assert whole.loop.bird.slim(whole.loop.optimizer, GOOD).after.parameters > 0


def test_an_optimiser_that_cannot_be_cut_is_refused_before_batches_are_read() -> None:
    whole, batches = Whole(), iter(GOOD)
    whole.loop.optimizer.state[next(whole.loop.model.parameters())]["history"] = torch.zeros(7, 7)
    before = whole.state()
    with pytest.raises(ModelError, match="SGD keeps history"):
        whole.loop.bird.slim(whole.loop.optimizer, batches)
    assert whole.state() == before
    assert len(list(batches)) == len(GOOD)


@pytest.mark.parametrize("rule", [MaskDistance(), SettledMask(limit=0.3)])
def test_the_state_of_another_run_is_refused(rule: Rule) -> None:
    loop = Loop()
    loop.run(3)
    with pytest.raises(StateMismatch, match="the state was saved with rule"):
        Loop(rule=rule).bird.load_state_dict(loop.bird.state_dict())
    with pytest.raises(StateMismatch, match="this is not a state of an EarlyBird"):
        Loop().bird.load_state_dict(loop.model.state_dict())


def test_a_state_that_was_put_together_is_refused_and_nothing_changes() -> None:
    loop = Loop()
    loop.run(10)
    state = loop.bird.state_dict()
    watch = state["watch"]
    nothing = "0" * len(watch["plan"]["keep"])
    for change, reason in (
        ({"step": -1}, "of step -1"),
        ({"watch": {**watch, "plan": None}}, "a slim model without a plan"),
        ({"watch": {**watch, "plan": {**watch["plan"], "keep": nothing}}}, "channels are no plan's"),
    ):
        other = Loop()
        before = other.bird.state_dict()
        with pytest.raises(StateMismatch, match=reason):
            other.bird.load_state_dict({**state, **change})
        assert other.bird.state_dict() == before


def test_training_that_ran_away_is_said() -> None:
    model = make("VGG")
    bird = make_bird(model, rule=SettledMask(every=1))
    with torch.no_grad():
        norms(model)[0].weight[0] = float("nan")
    with pytest.raises(ModelError, match="training ran away"):
        bird.observe(lr=0.1)


def test_a_batch_norm_that_is_held_in_evaluation_is_only_cut() -> None:
    whole = Whole()
    held = norms(whole.loop.model)[1].eval()
    before = copy.deepcopy(held)
    assert whole.loop.bird.plan is not None
    whole.loop.bird.slim(whole.loop.optimizer, GOOD)
    assert held.running_mean is not None
    assert before.running_mean is not None
    own, old = held.running_mean.tolist(), before.running_mean.tolist()
    assert own == [value for value in old if value in own]
    assert len(own) < len(old)
    assert norms(whole.loop.model)[0].num_batches_tracked == len(GOOD)
    assert not held.training
