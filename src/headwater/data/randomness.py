"""Randomness as a function of (seed, epoch, step, sample, draw).

Nothing here has state, so any list of ids gets the same draws wherever and whenever they are
computed. Only integer operations, + - x / and square root are used: they are exact on every CPU,
while exp and log are not.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_A = np.uint64(0xBF58476D1CE4E5B9)
_MIX_B = np.uint64(0x94D049BB133111EB)
_MASK = (1 << 64) - 1


def mix(words: Words) -> Words:
    """The finaliser of splitmix64 (Steele, Lea, Flood 2014): a bijection that scatters 64 bits."""
    words = (words ^ (words >> np.uint64(30))) * _MIX_A
    words = (words ^ (words >> np.uint64(27))) * _MIX_B
    return words ^ (words >> np.uint64(31))


def mix_int(word: int) -> int:
    """`mix` of one Python integer."""
    word = ((word ^ (word >> 30)) * int(_MIX_A)) & _MASK
    word = ((word ^ (word >> 27)) * int(_MIX_B)) & _MASK
    return word ^ (word >> 31)


def derive_key(*parts: int) -> int:
    """One 64-bit key from several integers; the order of the parts matters."""
    key = 0
    for part in parts:
        key = mix_int((key + int(_GOLDEN) + (part & _MASK)) & _MASK)
    return key


def as_words(ids: NDArray[np.int64]) -> Words:
    """Sample ids as the unsigned words that the hash works on."""
    return np.ascontiguousarray(ids, dtype=np.int64).view(np.uint64)


@dataclass(frozen=True, slots=True)
class Draws:
    """What one step may draw for each of `ids`: draw k of sample i never depends on the others."""

    key: int
    ids: Words

    @classmethod
    def of(cls, ids: NDArray[np.int64], *, seed: int, epoch: int, step: int) -> Draws:
        return cls(derive_key(seed, epoch, step), mix(as_words(ids)))

    def __len__(self) -> int:
        return len(self.ids)

    def bits(self, draw: int) -> Words:
        """64 random bits per sample."""
        return mix(self.ids ^ np.uint64(derive_key(self.key, draw)))

    def uniform(self, draw: int, low: float = 0.0, high: float = 1.0) -> NDArray[np.float64]:
        """A float in [low, high) per sample, of 53 random bits."""
        unit = (self.bits(draw) >> np.uint64(11)).astype(np.float64) * 2.0**-53
        return low + (high - low) * unit

    def integers(
        self, draw: int, low: NDArray[np.int64] | int, high: NDArray[np.int64] | int
    ) -> NDArray[np.int64]:
        """An integer in [low, high) per sample; the range must be below 2^31 (bias below 2^-32 of it)."""
        span = (np.asarray(high, np.int64) - np.asarray(low, np.int64)).astype(np.uint64)
        scaled = ((self.bits(draw) >> np.uint64(32)) * span) >> np.uint64(32)
        return np.asarray(low, np.int64) + scaled.astype(np.int64)

    def log_uniform(self, draw: int, low: float, high: float) -> NDArray[np.float64]:
        """A float in [low, high) whose logarithm is uniform, of 24 random bits, without exp or log."""
        bits = self.bits(draw) >> np.uint64(40)
        coarse, middle, fine = _power_tables(low, high)
        power = coarse[bits >> np.uint64(16)] * middle[(bits >> np.uint64(8)) & np.uint64(255)]
        values: NDArray[np.float64] = low * (power * fine[bits & np.uint64(255)])
        return values


@lru_cache(maxsize=64)
def _power_tables(low: float, high: float) -> tuple[NDArray[np.float64], ...]:
    """(high/low)^u for u = 24 binary digits, as three tables of 8 digits each, by square roots."""
    root = np.float64(high) / np.float64(low)
    tables = []
    for _ in range(3):
        table = np.ones(256)
        for digit in range(7, -1, -1):
            root = np.sqrt(root)
            table[(np.arange(256) >> digit) & 1 == 1] *= root
        tables.append(table)
    return tuple(tables)
