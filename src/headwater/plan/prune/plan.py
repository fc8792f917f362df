"""The outcome: which channels are kept, when that was decided, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from headwater.errors import StateMismatch
from headwater.plan.prune.channels import Channels
from headwater.plan.prune.look import pack, unpack
from headwater.plan.prune.masks import Keep, Scales, mask_at, widen


@dataclass(frozen=True, eq=False)
class PrunePlan:
    """Channels to drop, decided after so many steps. `ratio` is what was asked for; see `removed`."""

    channels: Channels
    keep: Keep
    ratio: float
    step: int
    reason: str

    def __post_init__(self) -> None:
        self.keep.setflags(write=False)

    @property
    def widths(self) -> tuple[int, ...]:
        """Channels of each layer that are kept."""
        return self.channels.widths(self.keep)

    @property
    def removed(self) -> float:
        """The share of channels that go: less than the ratio where layers were rounded up."""
        return 1 - float(self.keep.mean())

    def drops(self) -> dict[str, NDArray[np.int64]]:
        """Which channels go, by layer; layers that lose none are left out."""
        found = {name: np.flatnonzero(~self.keep[part]) for name, part in self.channels.parts()}
        return {name: places for name, places in found.items() if len(places)}

    def to_dict(self) -> dict[str, Any]:
        """Plain data that JSON can hold."""
        plain: dict[str, Any] = msgspec.to_builtins(
            PlanState(
                self.channels.names, self.channels.sizes, pack(self.keep), self.ratio, self.step, self.reason
            )
        )
        return plain

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> PrunePlan:
        """What `to_dict` gave; raises `StateMismatch` for anything else."""
        try:
            found = msgspec.convert(state, PlanState)
            channels = Channels(tuple(found.layers), tuple(found.sizes))
            plan = cls(channels, unpack(found.keep, len(channels)), found.ratio, found.step, found.reason)
            if not 0 < plan.ratio < 1 or plan.step < 0 or not all(plan.widths):
                raise ValueError(
                    f"ratio {plan.ratio}, step {plan.step}, layers of {plan.widths} channels are no plan's"
                )
            return plan
        except (msgspec.ValidationError, ValueError) as error:
            raise StateMismatch(f"this is not a plan of channels: {error}") from error

    def __str__(self) -> str:
        """What goes, and why, in a line; then a line per layer."""
        gone = f"{self.removed:.0%} of {len(self.channels):,} channels go"
        head = f"{gone}, after {self.step:,} steps: {self.reason}"
        rows = zip(self.channels.names, self.channels.sizes, self.widths, strict=True)
        return "\n".join([head, *(f"  {name}: {width:,} of {size:,}" for name, size, width in rows)])


class PlanState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A plan as plain data; `keep` is packed bits in hexadecimal."""

    layers: tuple[str, ...]
    sizes: tuple[int, ...]
    keep: str
    ratio: float
    step: int
    reason: str


def make_plan(
    channels: Channels, scales: Scales, *, ratio: float, multiple: int = 1, step: int = 0, reason: str = ""
) -> PrunePlan:
    """Keep the largest scales, at least one of each layer, and of each a `multiple` of channels, or all."""
    keep = widen(channels, scales, mask_at(channels, scales, ratio).keep, multiple=multiple)
    return PrunePlan(channels, keep, ratio, step, reason)
