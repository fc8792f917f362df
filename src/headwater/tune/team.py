"""How many of torch's threads train a head."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

_WORTH_A_TEAM = 1 << 28
"""Products in a batch from which on several cores are quicker than one that waits for nobody."""


@contextmanager
def team(weights: int, batch_size: int) -> Iterator[None]:
    """One core for a small head, whose threads would only wait for each other while features are made."""
    before = torch.get_num_threads()
    if weights * batch_size < _WORTH_A_TEAM:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
