"""How weights move: gradient descent with L2 and momentum, as torch's SGD has it.

It is linear in weights, velocity and gradient together. So what two runs differ by moves in the same way,
driven by the difference of their gradients, and is computed as precisely however small it is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from headwater.train.replay.records import Header

Vector = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Rule:
    """What is the same in all steps; `counts` and `decays` have an entry for each group of parameters."""

    counts: tuple[int, ...]
    decays: tuple[float, ...]
    momentum: float
    nesterov: bool

    @classmethod
    def of(cls, header: Header) -> Rule:
        groups = header.groups
        counts, decays = tuple(group.count for group in groups), tuple(group.decay for group in groups)
        return cls(counts, decays, header.momentum, header.nesterov)

    @property
    def size(self) -> int:
        return sum(self.counts)

    def spread(self, numbers: NDArray[np.float64] | tuple[float, ...]) -> Vector:
        """One number for each group as one for each weight; a single one for all is left alone."""
        wide = np.asarray(numbers, np.float32)
        return wide if len(wide) == 1 else np.repeat(wide, self.counts)

    def mean(self, numbers: NDArray[np.float64]) -> float:
        """One number for all groups, each counted by its weights."""
        if len(numbers) == 1:
            return float(numbers[0])
        return float(np.dot(numbers, self.counts)) / self.size


class Motion:
    """Where the weights are, and with which velocity they move.

    `place` and `speed` are views of tensors: torch moves them in one pass each, which is much of what an
    approximate step costs.
    """

    def __init__(self, rule: Rule, place: Vector, speed: Vector | None = None) -> None:
        self._rule, self._decay = rule, _number(rule.spread(rule.decays))
        self.place = np.array(place, np.float32)
        self.speed = np.zeros_like(self.place) if speed is None else np.array(speed, np.float32)
        self._place, self._speed = torch.from_numpy(self.place), torch.from_numpy(self.speed)
        self._force = torch.empty_like(self._place)

    @property
    def kept_speed(self) -> Vector | None:
        """The velocity, where there is one to keep."""
        return self.speed if self._rule.momentum else None

    def step(self, gradient: Vector, rates: NDArray[np.float64]) -> None:
        """One step along a mean gradient, to which L2 is added."""
        rule = self._rule
        rate = float(rates[0]) if len(rates) == 1 else torch.from_numpy(rule.spread(rates))
        force = _add(torch.from_numpy(gradient), self._place, self._decay, out=self._force)
        if rule.momentum:
            torch.add(force, self._speed, alpha=rule.momentum, out=self._speed)
            if rule.nesterov:
                force.add_(self._speed, alpha=rule.momentum)
            else:
                force = self._speed
        _add(self._place, force, -rate, out=self._place)

    def set(self, place: Vector, speed: Vector | None) -> None:
        """Be here now."""
        self.place[:] = place
        self.speed[:] = 0 if speed is None else speed


def _number(values: Vector) -> float | torch.Tensor:
    """One number for all weights, or one for each."""
    return float(values[0]) if len(values) == 1 else torch.from_numpy(values)


def _add(
    one: torch.Tensor, other: torch.Tensor, factor: float | torch.Tensor, *, out: torch.Tensor
) -> torch.Tensor:
    """One plus so many times the other."""
    if isinstance(factor, float):
        return torch.add(one, other, alpha=factor, out=out)
    return torch.addcmul(one, other, factor, out=out)
