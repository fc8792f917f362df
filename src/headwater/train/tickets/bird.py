"""`hw.EarlyBird`: watches a model in training, draws its ticket early, and makes it slim."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import msgspec
import torch
from torch import nn

from headwater.errors import ModelError, StateMismatch, WrongUse
from headwater.plan.prune import Channels, Look, PrunePlan, Rule, Watch
from headwater.plan.prune.rules import find_rule
from headwater.train.tickets.costs import measure_cost
from headwater.train.tickets.cuts import Cuts
from headwater.train.tickets.exactness import Probe, check_runs, cut_exactly, find_exact_groups
from headwater.train.tickets.hardware import channel_multiple
from headwater.train.tickets.lowbits import Rounding
from headwater.train.tickets.scales import Scales
from headwater.train.tickets.statistics import recalibrate, take_statistics
from headwater.train.tickets.surgery import cut_state, operate, tensors_of
from headwater.train.tickets.ticket import Shape, Ticket
from headwater.train.tickets.tracing import copy_of

_USUAL_IMAGE = (1, 3, 224, 224)


class BirdState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a search stands: steps that were counted, whether the model is slim, and what was seen."""

    step: int
    slim: bool
    watch: dict[str, Any]


class EarlyBird:
    """Finds the share `ratio` of channels that a model can do without, early in a run of so many `steps`.

        bird = hw.EarlyBird(model, ratio=0.5, steps=epochs * len(loader))
        for images, targets in batches:
            cross_entropy(model(images), targets).backward()
            bird.after_backward()
            optimizer.step()
            if bird.observe(lr=optimizer.param_groups[0]["lr"]):
                bird.slim(optimizer, some_batches)

    `rule` says when: a name or an object of `headwater.plan.prune`. `l1` is the strength of the penalty on
    channel scales. Layers are rounded up to a multiple of `round_to` channels, by default what the hardware
    computes at once. `example` is an input of the model, of which the shape counts; by default a photo of
    224 pixels. With `bits` the search is simulated in so many, see `searching`.

    The slim model is another model: this changes results. Raises `ModelError` for a model that cannot be
    copied or traced or has no channels that can be removed exactly.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        ratio: float = 0.5,
        steps: int,
        rule: str | Rule = "settled",
        l1: float = 1e-4,
        round_to: int | None = None,
        example: torch.Tensor | None = None,
        bits: int | None = None,
    ) -> None:
        if not isinstance(l1, int | float) or not 0 <= l1 < math.inf:
            raise WrongUse(f"l1 is {l1!r}; it must be a number, and not negative")
        self._model, self._l1, self._example = model, float(l1), _blank(example)
        self._rounding = None if bits is None else Rounding(bits)
        groups = find_exact_groups(model, self._example)
        if not groups:
            raise ModelError(
                f"{type(model).__name__} has no channels that can be removed exactly; "
                "they must go through batch norms"
            )
        self._groups, self._scales = groups, Scales(model, groups)
        self._watch = Watch(
            self._scales.channels,
            ratio=ratio,
            steps=steps,
            rule=find_rule(rule),
            multiple=channel_multiple(model) if round_to is None else round_to,
        )
        self._step = 0
        self._ticket: Ticket | None = None

    @property
    def channels(self) -> Channels:
        """What can be removed, layer by layer."""
        return self._scales.channels

    @property
    def looks(self) -> tuple[Look, ...]:
        """What was seen so far, the first first."""
        return self._watch.looks

    @property
    def plan(self) -> PrunePlan | None:
        """Which channels go; None: not yet."""
        return self._watch.plan

    @property
    def ticket(self) -> Ticket | None:
        """What the model has become; None while it is dense."""
        return self._ticket

    def searching(self) -> AbstractContextManager[object]:
        """A context for forward and backward: with `bits`, until the ticket is drawn; else nothing."""
        return nullcontext() if self._rounding is None or self.plan is not None else self._rounding

    def after_backward(self) -> None:
        """Add the penalty's gradient: once before each step of the optimiser, to gradients as they are."""
        self._scales.penalise(self._l1)

    def observe(self, lr: float) -> bool:
        """Count a step of the optimiser, made at this learning rate; whether the model can be made slim now.

        Raises `ModelError` where training ran away.
        """
        if self._ticket is not None:
            return False
        self._step += 1
        if self._watch.is_due(self._step):
            self._watch.observe(self._step, self._scales.read(), rate=lr)
        return self.plan is not None

    def slim(self, optimizer: torch.optim.Optimizer | None = None, batches: Iterable[Any] = ()) -> Ticket:
        """Remove what the plan says from the model, in place, and from what the optimiser keeps of it.

        Parameters stay the objects that they are. `batches` of training inputs give batch norms their
        statistics anew: without any, the model is no good before it has trained on. Wrap a model for
        several devices, or compile it, anew afterwards.

        All of it is done to a copy first: when this raises, model, optimiser and bird are as they were.
        `ModelError` for a model that cannot be cut so, or an optimiser's state that cannot be cut alike,
        `WrongUse` for batches of something else.
        """
        plan = self.plan
        if plan is None or self._ticket is not None:
            said = "no ticket was drawn yet" if plan is None else "the model is slim already"
            raise WrongUse(f"{said}; call slim once, when observe says so")
        cuts, before = self._cuts(plan), measure_cost(self._model, self._example)
        if optimizer is not None:
            cut_state(self._model, cuts.tensors, optimizer)  # before batches are read, which may be once only
        tried = copy.deepcopy(self._model)
        operate(tried, cuts)
        check_runs(tried, self._example)
        recalibrate(tried, batches)
        after, own = measure_cost(tried, self._example), tensors_of(tried)
        operate(self._model, cuts, optimizer)
        take_statistics(self._model, tried)
        shape = Shape(
            cuts.attributes,
            {name: tuple(own[name].shape) for name in cuts.tensors},
            {name: cut.shape for name, cut in cuts.tensors.items()},
        )
        self._ticket = Ticket(plan, shape, before, after)
        return self._ticket

    def _cuts(self, plan: PrunePlan) -> Cuts:
        try:
            copied = copy_of(self._model)
            return cut_exactly(copied, Probe.of(copied, self._example), self._groups, plan.drops())
        except ModelError as error:
            raise ModelError(
                f"{error}; nothing was changed; make an EarlyBird of the model as it is now"
            ) from error

    def state_dict(self) -> dict[str, Any]:
        """Where the search stands, as plain data; the weights are the model's own to save."""
        state = BirdState(self._step, self._ticket is not None, self._watch.state_dict())
        plain: dict[str, Any] = msgspec.to_builtins(state)
        return plain

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there. If the model was slim by then, this one, which is dense, is made as slim.

        Load it before the model's weights, which are those of the slim one. Raises `StateMismatch`.
        """
        try:
            found = msgspec.convert(state, BirdState)
        except msgspec.ValidationError as error:
            raise StateMismatch(f"this is not a state of an EarlyBird: {error}") from error
        if found.step < 0 or (found.slim and found.watch.get("plan") is None):
            raise StateMismatch(
                f"the state is of step {found.step}, or of a slim model without a plan; "
                "it was put together by hand"
            )
        if self._ticket is not None:
            raise StateMismatch(
                "the model is slim already; load the state into a new EarlyBird of the dense model"
            )
        self._watch.load_state_dict(found.watch)
        self._step = found.step
        if found.slim:
            self.slim()


def _blank(example: torch.Tensor | None) -> torch.Tensor:
    """One input of this shape."""
    if example is None:
        return torch.zeros(_USUAL_IMAGE)
    if not isinstance(example, torch.Tensor) or not example.ndim:
        raise WrongUse(f"example is {example!r}; give a tensor of inputs, of which the shape counts")
    return torch.zeros(1, *example.shape[1:])
