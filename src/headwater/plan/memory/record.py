"""What one iteration did: which tensors autograd kept, when, and of what they were made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from headwater.errors import WrongUse


@dataclass(frozen=True)
class TensorRecord:
    """A storage. `saved` and `used` are positions in the record's list of accesses.

    One that was never saved only passes on what is recomputed through it. `parents` are positions of other
    storages, and None means that it cannot be made again; parameters are no parents, they are always there.
    """

    size: int
    saved: tuple[int, ...] = ()
    used: tuple[int, ...] = ()
    parents: tuple[int, ...] | None = None
    seconds: float = 0.0

    def gap_after(self, access: int) -> int | None:
        """The next access in the backward pass after this one."""
        return next((use for use in self.used if use > access), None)


@dataclass(frozen=True)
class AccessRecord:
    """Tensors, and the time of each access without the waiting that the measuring itself caused.

    `nodes` numbers, for each access, the step of the backward pass that asked; what a step was given is held
    until it is done. `noting_seconds` are what every iteration pays for knowing how tensors are made, as soon
    as one of them is made again.
    """

    tensors: tuple[TensorRecord, ...]
    times: tuple[float, ...]
    nodes: tuple[int, ...] = ()
    noting_seconds: float = 0.0
    first_use: int = field(init=False)

    def __post_init__(self) -> None:
        if self.nodes and len(self.nodes) != len(self.times):
            raise WrongUse(f"{len(self.nodes)} nodes for {len(self.times)} accesses; give one for each")
        uses = [tensor.used[0] for tensor in self.tensors if tensor.used]
        object.__setattr__(self, "first_use", min(uses, default=len(self.times)))
        if not self.nodes:
            object.__setattr__(self, "nodes", tuple(range(len(self.times))))

    @property
    def saved(self) -> list[int]:
        """Positions of what autograd kept and asked for again."""
        return [place for place, tensor in enumerate(self.tensors) if tensor.saved and tensor.used]

    def at(self) -> list[int]:
        """The tensor of each access, -1 where a tensor is not in the record."""
        found = [-1] * len(self.times)
        for place, tensor in enumerate(self.tensors):
            for access in (*tensor.saved, *tensor.used):
                found[access] = place
        return found

    def peak(self) -> int:
        """Most bytes held at once if everything is kept."""
        return max(held_over_time(self), default=0)


def held_over_time(record: AccessRecord) -> list[int]:
    """Bytes held at each access if everything is kept until the step that asks for it last is done."""
    change = [0] * (len(record.times) + 1)
    ends = last_of_node(record.nodes)
    for tensor in record.tensors:
        if tensor.saved:
            last = max(*tensor.saved, *tensor.used, tensor.saved[0])
            change[tensor.saved[0]] += tensor.size
            change[ends[last] + 1] -= tensor.size
    held, total = [], 0
    for step in change[:-1]:
        total += step
        held.append(total)
    return held


def last_of_node(nodes: Sequence[int]) -> list[int]:
    """For each access the last one of the same step."""
    ends = list(range(len(nodes)))
    for place in range(len(nodes) - 2, -1, -1):
        if nodes[place] == nodes[place + 1]:
            ends[place] = ends[place + 1]
    return ends
