"""What a model costs: its parameters, and multiplications of one forward pass."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from headwater.models.layers import evaluating

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


@dataclass(frozen=True)
class Cost:
    """`macs` are multiply-adds of convolutions and linear layers for one input.

    Training takes about three times as many, and each is two floating-point operations.
    """

    parameters: int
    macs: int


def measure_cost(model: nn.Module, example: torch.Tensor) -> Cost:
    """By one forward pass on an input of this shape."""
    counted = 0

    def count(layer: nn.Module, given: tuple[torch.Tensor, ...], result: torch.Tensor) -> None:
        nonlocal counted
        weight = layer.weight
        assert isinstance(weight, torch.Tensor)
        counted += result[0].numel() * weight[0].numel()

    layers = [layer for layer in model.modules() if isinstance(layer, (*_CONVOLUTIONS, nn.Linear))]
    hooks = [layer.register_forward_hook(count) for layer in layers]
    first = next(model.parameters())
    try:
        with evaluating(model), torch.no_grad():
            model(example.to(first.device, first.dtype))
    finally:
        for hook in hooks:
            hook.remove()
    return Cost(sum(parameter.numel() for parameter in model.parameters()), counted)
