"""How far what is chosen is from all: so that no selector becomes a filter that nobody notices."""

from __future__ import annotations

import numpy as np

from headwater.select.samples import Marks, Samples


def describe_shift(samples: Samples, chosen: Marks) -> str:
    """In words, for the end of a reason; nothing where all is chosen."""
    if chosen.all():
        return ""
    said = f"; the share of a class moves by up to {100 * class_shift(samples, chosen):.2g} points"
    ratio = size_shift(samples, chosen)
    return said if ratio is None else f"{said}, the mean size to {ratio:.3g} times that of all"


def class_shift(samples: Samples, chosen: Marks) -> float:
    """How much the share of a class differs at most between those chosen and all."""
    classes, counts = np.unique(samples.labels, return_counts=True)
    found = np.zeros(len(classes))
    kept, kept_counts = np.unique(samples.labels[chosen], return_counts=True)
    found[np.searchsorted(classes, kept)] = kept_counts / max(1, kept_counts.sum())
    return float(np.abs(found - counts / counts.sum()).max())


def size_shift(samples: Samples, chosen: Marks) -> float | None:
    """The mean bytes of those chosen, in those of all; None where they are not known."""
    told = np.isfinite(samples.bytes)
    if not (told & chosen).any():
        return None
    means = [np.mean(samples.bytes, dtype=np.float64, where=told & some) for some in (chosen, True)]
    return float(means[0] / means[1]) if means[1] else None
