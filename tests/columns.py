"""Samples for tests of selectors: made of a few columns, or of random ones with everything known."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from headwater.select.samples import Samples

seeds = st.integers(0, 2**32 - 1)

_FLOATS = ("loss", "smoothed", "peak", "probability", "deviation", "margin", "seconds", "bytes")


def make_samples(count: int, *, labels: object = 0, **known: Any) -> Samples:
    """So many samples with these columns; all of one class unless told."""
    made = {name: np.array(value, np.float32) if name in _FLOATS else value for name, value in known.items()}
    ids = np.arange(count, dtype=np.int64) * 1_000_003 + 17
    return Samples.of(ids, np.broadcast_to(np.array(labels, np.int64), count).copy(), **made)


def random_samples(
    rng: np.random.Generator, count: int, *, classes: int = 5, unknown: float = 0.0, **facts: Any
) -> Samples:
    """Everything known as after some epochs; a share of all floats unknown, some labels missing."""
    probability = rng.random(count)
    columns = {
        "loss": rng.exponential(1, count),
        "smoothed": rng.exponential(1, count),
        "peak": rng.exponential(2, count),
        "probability": probability,
        "deviation": rng.random(count) / 4,
        "margin": probability - (1 - probability) * rng.random(count),
        "seconds": rng.lognormal(-5, 1, count),
        "bytes": rng.lognormal(11, 1, count),
    }
    for column in columns.values():
        column[rng.random(count) < unknown] = np.nan
    epoch = int(facts.pop("epoch", 3))
    return make_samples(
        count,
        labels=rng.integers(-1 if count > 9 else 0, classes, count),
        seen=rng.integers(1, 5, count, dtype=np.int32),
        last=np.full(count, epoch - 1, np.int32),
        vectors=rng.normal(size=(count, 6)).astype(np.float32),
        epoch=epoch,
        **columns,
        **facts,
    )
