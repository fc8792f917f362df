"""A run under observation: a look now and then, until the rule draws the ticket."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from headwater.errors import StateMismatch, WrongUse
from headwater.plan.prune.channels import Channels
from headwater.plan.prune.look import Look, LookState
from headwater.plan.prune.masks import Scales, count_removed, mask_at
from headwater.plan.prune.plan import PrunePlan, make_plan
from headwater.plan.prune.rules import Rule

FORMAT = 1


class WatchState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is known of a run so far, and what it is a run of."""

    channels: str
    ratio: float
    rule: str
    looks: tuple[LookState, ...]
    scales: tuple[float, ...]
    plan: dict[str, Any] | None
    format: int = FORMAT


class Watch:
    """Sees the scales of `channels` in a run of so many `steps`, and holds the plan once there is one."""

    def __init__(
        self, channels: Channels, *, ratio: float, steps: int, rule: Rule, multiple: int = 1
    ) -> None:
        if not all(isinstance(number, Integral) and number >= 1 for number in (steps, multiple)):
            raise WrongUse(f"steps {steps!r} and multiple {multiple!r} must be whole numbers, at least 1")
        count_removed(channels, ratio)
        self.channels, self.ratio, self._steps = channels, float(ratio), int(steps)
        self._rule, self._multiple = rule, int(multiple)
        self._looks: tuple[Look, ...] = ()
        self._scales: NDArray[np.float64] = np.empty(0)
        self._plan: PrunePlan | None = None

    @property
    def looks(self) -> tuple[Look, ...]:
        """All of them so far, the first first."""
        return self._looks

    @property
    def plan(self) -> PrunePlan | None:
        """None: not yet."""
        return self._plan

    def is_due(self, step: int) -> bool:
        """Whether to look after so many steps; never again once there is a plan."""
        return self._plan is None and step % self._rule.interval(self._steps) == 0

    def observe(self, step: int, scales: Scales, *, rate: float) -> PrunePlan | None:
        """Look at scales, one per channel, at a learning rate; the plan, or None: not yet.

        Raises `ModelError` for scales that are no numbers.
        """
        if len(scales) != len(self.channels):
            raise WrongUse(f"{len(scales):,} scales for {len(self.channels):,} channels")
        memory = self._rule.memory if len(self._scales) else 0.0
        mixed = (1 - memory) * scales.astype(np.float64)
        self._scales = mixed + memory * self._scales if memory else mixed
        mask = mask_at(self.channels, self._scales, self.ratio)
        self._looks = (*self._looks, Look(step, float(rate), mask.keep, mask.undecided))
        reason = self._rule.decide(self._looks, ratio=self.ratio, steps=self._steps)
        if reason is not None:
            self._plan = make_plan(
                self.channels,
                self._scales,
                ratio=self.ratio,
                multiple=self._multiple,
                step=step,
                reason=reason,
            )
        return self._plan

    def state_dict(self) -> dict[str, Any]:
        """Plain data that JSON can hold."""
        state = WatchState(
            self.channels.key,
            self.ratio,
            repr(self._rule),
            tuple(LookState.of(look) for look in self._looks),
            tuple(self._scales.tolist()),
            None if self._plan is None else self._plan.to_dict(),
        )
        plain: dict[str, Any] = msgspec.to_builtins(state)
        return plain

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there; raises `StateMismatch` for the state of another network, ratio or rule."""
        found = _read(state)
        for what, saved, here in (
            ("channels", found.channels, self.channels.key),
            ("ratio", found.ratio, self.ratio),
            ("rule", found.rule, repr(self._rule)),
        ):
            if saved != here:
                raise StateMismatch(
                    f"the state was saved with {what} {saved}, this run has {here}; make it as it was then"
                )
        if len(found.scales) not in (0, len(self.channels)):
            raise StateMismatch(f"the state has {len(found.scales):,} scales, not {len(self.channels):,}")
        if not np.isfinite(found.scales).all():
            raise StateMismatch("the state has scales that are no numbers; load one of before they were")
        plan = None if found.plan is None else PrunePlan.from_dict(found.plan)
        if plan is not None and plan.channels != self.channels:
            raise StateMismatch("the state holds a plan for other channels; it was put together by hand")
        try:
            self._looks = tuple(look.look(len(self.channels)) for look in found.looks)
        except ValueError as error:
            raise StateMismatch(f"the state is damaged: {error}") from error
        self._scales, self._plan = np.array(found.scales, np.float64), plan


def _read(state: Mapping[str, Any]) -> WatchState:
    if isinstance(state, Mapping) and state.get("format") != FORMAT:
        raise StateMismatch(
            f"the state has format {state.get('format')!r}, this version of headwater reads {FORMAT}; "
            "load it with the version that saved it"
        )
    try:
        return msgspec.convert(state, WatchState)
    except msgspec.ValidationError as error:
        raise StateMismatch(f"this is not a state of an observed run: {error}") from error
