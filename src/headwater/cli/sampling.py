"""Fewer samples than a dataset has."""

from __future__ import annotations

import numpy as np

from headwater.store import Dataset


def spread(dataset: Dataset, most: int) -> Dataset:
    """At most so many samples of the dataset, spread evenly over it."""
    if len(dataset) <= most:
        return dataset
    places = np.linspace(0, len(dataset) - 1, most).astype(np.int64)
    return dataset.select(dataset.ids[places])
