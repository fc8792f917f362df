"""Means and variances of batch norms, taken anew: those of the dense model are wrong after surgery."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from headwater.errors import WrongUse
from headwater.models.layers import evaluating


def recalibrate(model: nn.Module, batches: Iterable[Any]) -> int:
    """Run batches through a model so that its batch norms have their statistics; how many there were.

    A batch is a tensor of inputs, a pair that begins with one, or has it as `inputs`. All batches count the
    same. Only statistics change; without a batch, nothing does.
    """
    norms = [
        layer for layer in model.modules() if isinstance(layer, _BatchNorm) and layer.track_running_stats
    ]
    momenta, count = [layer.momentum for layer in norms], 0
    device = next(model.parameters()).device
    try:
        with evaluating(model), torch.no_grad():
            for batch in batches:
                inputs = _inputs(batch)
                if not count:
                    _begin(norms)
                model(inputs.to(device, non_blocking=True))
                count += 1
    finally:
        for layer, momentum in zip(norms, momenta, strict=True):
            layer.momentum = momentum
    return count


def take_statistics(model: nn.Module, other: nn.Module) -> None:
    """Give batch norms of a model the statistics of those of another one of the same shape."""
    with torch.no_grad():
        for layer, like in zip(model.modules(), other.modules(), strict=True):
            if isinstance(layer, _BatchNorm):
                for own, value in zip(layer.buffers(), like.buffers(), strict=True):
                    own.copy_(value)


def _begin(norms: Iterable[_BatchNorm]) -> None:
    for layer in norms:
        layer.reset_running_stats()
        layer.momentum = None  # torch's word for the plain mean over batches
        layer.train()


def _inputs(batch: Any) -> torch.Tensor:
    found = getattr(batch, "inputs", batch)
    if isinstance(found, tuple | list) and found:
        found = found[0]
    if not isinstance(found, torch.Tensor):
        raise WrongUse(
            f"a batch is {type(batch).__name__}; give tensors of inputs, or pairs that begin with one"
        )
    return found
