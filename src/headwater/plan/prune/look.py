"""One look at a network in training."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np

from headwater.plan.prune.masks import Keep


@dataclass(frozen=True, eq=False)
class Look:
    """After so many steps, at a learning rate: which channels would be kept.

    `undecided` is the share of channels of which no scale says whether they would.
    """

    step: int
    rate: float
    keep: Keep
    undecided: float


class LookState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A look as plain data."""

    step: int
    rate: float
    keep: str
    undecided: float

    @classmethod
    def of(cls, look: Look) -> LookState:
        return cls(look.step, look.rate, pack(look.keep), look.undecided)

    def look(self, count: int) -> Look:
        """Raises ValueError unless it is of so many channels."""
        return Look(self.step, self.rate, unpack(self.keep, count), self.undecided)


def pack(keep: Keep) -> str:
    """A mask as text: hexadecimal, eight channels in two digits, the first in the highest bit."""
    return np.packbits(keep).tobytes().hex()


def unpack(text: str, count: int) -> Keep:
    """What `pack` made of so many channels; raises ValueError for another text."""
    packed = np.frombuffer(bytes.fromhex(text), np.uint8)
    if len(packed) != -(-count // 8):
        raise ValueError(f"a mask of {len(packed)} bytes for {count:,} channels")
    return np.unpackbits(packed, count=count).astype(np.bool_)
