"""How far masks are from each other, and how far they would be by chance."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from headwater.plan.prune.channels import Channels
from headwater.plan.prune.masks import Keep


def distance(one: Keep, other: Keep) -> float:
    """The share of channels in which two masks differ."""
    return float(np.count_nonzero(one != other) / len(one))


def by_chance(ratio: float) -> float:
    """The distance of two masks that have nothing to do with each other: 0.5 at a ratio of half."""
    return 2 * ratio * (1 - ratio)


def all_distances(masks: Sequence[Keep]) -> NDArray[np.float64]:
    """Of every mask to every other, as a square."""
    rows = np.stack(masks).astype(np.float32)  # sums of ones are exact
    both, each = rows @ rows.T, rows.sum(1)
    found: NDArray[np.float64] = (each[:, None] + each - 2 * both).astype(np.float64) / rows.shape[1]
    return found


def width_distance(channels: Channels, one: Keep, other: Keep) -> float:
    """How much the widths of layers differ, 0 to 1, on average over layers, whichever channels are kept.

    One minus the structure similarity of Shen et al., "When to Prune?" (CVPR 2022).
    """
    here, there = (np.array(channels.widths(keep), np.float64) for keep in (one, other))
    return float(np.mean(np.abs(here - there) / np.maximum(here + there, 1)))
