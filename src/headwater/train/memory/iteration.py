"""One forward and backward pass as it happens: accesses, sizes, and bytes over time."""

from __future__ import annotations

import math
import weakref
from dataclasses import dataclass, field

import torch

from headwater.plan.memory import AccessRecord, TensorRecord
from headwater.train.memory.holding import Holding
from headwater.train.memory.lineage import Node
from headwater.train.memory.replay import DEEPEST

Entry = tuple[int, tuple[int, ...], torch.dtype, int]
"""A saved tensor as a plan knows it again: bytes of its storage, shape, type, number of the storage."""


@dataclass(slots=True)
class Counts:
    """What an iteration moved and waited for."""

    swapped: int = 0
    recomputed: int = 0
    evicted: int = 0
    fetches: int = 0
    late: int = 0
    stall_seconds: float = 0.0
    recompute_seconds: float = 0.0


@dataclass(slots=True)
class Moment:
    """An access: `whole` is what plain training would hold, `held` what is held."""

    seconds: float
    whole: int
    held: int


@dataclass
class Iteration:
    """What is known of one pass so far; `holdings` in the order in which they were first saved."""

    entries: list[Entry] = field(default_factory=list)
    holdings: list[weakref.ref[Holding]] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    origins: list[Node | None] = field(default_factory=list)
    saved: list[list[int]] = field(default_factory=list)
    used: list[list[int]] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    nodes: list[int] = field(default_factory=list)
    moments: list[Moment] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)
    late: dict[int, float] = field(default_factory=dict)
    postponed: set[int] = field(default_factory=set)
    backward: bool = False

    @property
    def accesses(self) -> int:
        return len(self.times)

    def add(self, holding: Holding) -> None:
        """A storage that is saved for the first time."""
        self.holdings.append(weakref.ref(holding))
        self.sizes.append(holding.size)
        self.origins.append(holding.node)
        self.saved.append([])
        self.used.append([])

    def note_save(self, number: int, entry: Entry, seconds: float) -> None:
        """`number` is negative for what an earlier iteration saved."""
        self.entries.append(entry)
        if number >= 0:
            self.saved[number].append(self.accesses)
        self.times.append(seconds)
        self.nodes.append(-self.accesses)

    def note_use(self, number: int, node: int, seconds: float) -> None:
        self.backward = True
        if number >= 0:
            self.used[number].append(self.accesses)
        self.times.append(seconds)
        self.nodes.append(node)

    @property
    def peak(self) -> int:
        return max((moment.held for moment in self.moments), default=0)

    @property
    def peak_before(self) -> int:
        return max((moment.whole for moment in self.moments), default=0)

    def record(self, noting_seconds: float = 0.0) -> AccessRecord:
        """As the planner takes it; what was made on the way and not saved comes after what was."""
        tensors = _Genealogy(self)
        begin = self.times[0] if self.times else 0.0
        times = tuple(time - begin for time in self.times)
        return AccessRecord(tensors.rows(), times, tuple(self.nodes), noting_seconds)


class _Genealogy:
    """Numbers for the nodes of a lineage, as far as they lead from one saved tensor to another."""

    def __init__(self, iteration: Iteration) -> None:
        self._iteration = iteration
        self._numbers = {
            id(node): number for number, node in enumerate(iteration.origins) if node is not None
        }
        self._extra: list[Node] = []

    def rows(self) -> tuple[TensorRecord, ...]:
        one = self._iteration
        rows = [
            TensorRecord(size, tuple(saved), tuple(used), *self._made(node, 0))
            for size, saved, used, node in zip(one.sizes, one.saved, one.used, one.origins, strict=True)
        ]
        done = 0
        while done < len(self._extra):  # each may bring further ones
            node = self._extra[done]
            rows.append(TensorRecord(node.size, (), (), *self._made(node, 1)))
            done += 1
        return tuple(rows)

    def _made(self, node: Node | None, depth: int) -> tuple[tuple[int, ...] | None, float]:
        if node is None or node.recipe is None or len(self._extra) > DEEPEST * max(len(self._numbers), 1):
            return None, 0.0
        if math.isinf(node.recipe.seconds):  # nobody knows what that would cost
            return None, 0.0
        return tuple(self._number(ref.node) for ref in node.recipe.refs()), node.recipe.seconds

    def _number(self, node: Node) -> int:
        if id(node) not in self._numbers:
            self._numbers[id(node)] = len(self._iteration.sizes) + len(self._extra)
            self._extra.append(node)
        return self._numbers[id(node)]
