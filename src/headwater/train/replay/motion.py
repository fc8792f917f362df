"""How weights move: gradient descent with L2 and momentum, as torch's SGD has it.

It is linear in weights, velocity and gradient together. So what two runs differ by moves in the same way,
driven by the difference of their gradients, and is computed as precisely however small it is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
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
        return float(np.dot(numbers, self.counts)) / self.size


class Motion:
    """Where the weights are, and with which velocity they move."""

    def __init__(self, rule: Rule, place: Vector, speed: Vector | None = None) -> None:
        self._rule, self._decay = rule, rule.spread(rule.decays)
        self.place = np.array(place, np.float32)
        self.speed = np.zeros_like(self.place) if speed is None else np.array(speed, np.float32)
        self._force, self._stride = np.empty_like(self.place), np.empty_like(self.place)

    @property
    def kept_speed(self) -> Vector | None:
        """The velocity, where there is one to keep."""
        return self.speed if self._rule.momentum else None

    def step(self, gradient: Vector, rates: NDArray[np.float64]) -> None:
        """One step along a mean gradient, to which L2 is added."""
        rule, force = self._rule, self._force
        np.multiply(self.place, self._decay, out=force)
        force += gradient
        if rule.momentum:
            self.speed *= np.float32(rule.momentum)
            self.speed += force
            if rule.nesterov:
                np.multiply(self.speed, np.float32(rule.momentum), out=self._stride)
                self._stride += force
                force = self._stride
            else:
                force = self.speed
        np.multiply(force, rule.spread(rates), out=self._stride)
        self.place -= self._stride

    def set(self, place: Vector, speed: Vector | None) -> None:
        """Be here now."""
        self.place[:] = place
        self.speed[:] = 0 if speed is None else speed
