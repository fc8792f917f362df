"""Heads and optimisers of the user's own, as text that differs where they do."""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from torch import nn

from headwater.tune.head import Optimiser


def describe_head(head: nn.Module | None) -> str:
    """A digest of its layers and of all its numbers."""
    if head is None:
        return "linear"
    state = hashlib.blake2b(repr(head).encode(), digest_size=16)
    for name, value in sorted(head.state_dict().items()):
        state.update(name.encode())
        state.update(np.ascontiguousarray(value.detach().cpu().numpy()).tobytes())
    return state.hexdigest()


def describe_optimiser(optimiser: Optimiser | None) -> str:
    """Its kind and its settings."""
    if optimiser is None:
        return "SGD"
    made = optimiser([nn.Parameter(torch.zeros(1))])
    settings = ", ".join(f"{name}={value}" for name, value in sorted(made.defaults.items()))
    return f"{type(made).__name__}({settings})"
