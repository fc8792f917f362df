"""Smooth losses of a linear model's outputs: their slopes, and how these change.

Each is convex in the outputs. `shift` is the difference of two slopes, computed from the difference of the
outputs: what is left of subtracting two nearly equal numbers would be noise where one sample of many is
removed.

Targets come a sample a row, and so do the outputs beside them, (n, C), as in training. Where there are no
targets, outputs come the other way round, (C, n): over a thousand neighbours at a time, a softmax takes a
tenth of the time that it takes over ten.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F


class Loss(Protocol):
    """Of outputs and what they should be; sums over samples and outputs are left to the caller."""

    def check(self, targets: Tensor, outputs: int) -> str:
        """What is wrong with the targets for so many outputs; nothing if nothing is."""
        ...

    def value(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The sum over all samples, of outputs (n, C)."""
        ...

    def slope(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The derivative by the outputs, both (n, C)."""
        ...

    def shift(self, outputs: Tensor, change: Tensor) -> Tensor:
        """How the slope differs after a change of the outputs, all (C, n)."""
        ...

    def curve(self, outputs: Tensor, direction: Tensor) -> Tensor:
        """The derivative of the slope in a direction, all (C, n)."""
        ...

    def bend(self, outputs: Tensor) -> Tensor:
        """The mean of the second derivatives by the outputs (C, n), as (C, C)."""
        ...


class Softmax:
    """Cross-entropy of classes; targets are their numbers."""

    def check(self, targets: Tensor, outputs: int) -> str:
        if targets.is_floating_point() or targets.ndim != 1:
            return f"targets are {targets.dtype} of {targets.ndim} dimensions; softmax wants class numbers"
        low, high = (int(each) for each in targets.aminmax())
        return "" if low >= 0 and high < outputs else f"classes from {low} to {high} for {outputs} outputs"

    def value(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs, targets, reduction="sum")

    def slope(self, outputs: Tensor, targets: Tensor) -> Tensor:
        slopes = torch.softmax(outputs, 1)
        return slopes.scatter_add_(1, targets[:, None], slopes.new_full((len(targets), 1), -1.0))

    def shift(self, outputs: Tensor, change: Tensor) -> Tensor:
        shares, growth = torch.softmax(outputs, 0), torch.expm1(change)
        mean = (shares * growth).sum(0)
        return shares.mul_(growth.sub_(mean)).div_(mean.add_(1))

    def curve(self, outputs: Tensor, direction: Tensor) -> Tensor:
        shares = torch.softmax(outputs, 0)
        return shares * (direction - (shares * direction).sum(0))

    def bend(self, outputs: Tensor) -> Tensor:
        shares = torch.softmax(outputs, 0)
        return torch.diag(shares.mean(1)) - shares @ shares.T / shares.shape[1]


class Logistic:
    """Binary cross-entropy of each output; targets are 0 or 1, (n,) for one output or (n, C)."""

    def check(self, targets: Tensor, outputs: int) -> str:
        shape = tuple(targets.shape[1:]) or (1,)
        if shape != (outputs,):
            return f"targets of shape {tuple(targets.shape)} for {outputs} outputs"
        low, high = (float(each) for each in targets.aminmax())
        return "" if low >= 0 and high <= 1 else f"targets from {low:g} to {high:g}; logistic wants 0 to 1"

    def value(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(outputs, _like(targets, outputs), reduction="sum")

    def slope(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return torch.sigmoid(outputs).sub_(_like(targets, outputs))

    def shift(self, outputs: Tensor, change: Tensor) -> Tensor:
        share, growth = torch.sigmoid(outputs), torch.expm1(change)
        return share * torch.sigmoid(-outputs) * growth / (1 + share * growth)

    def curve(self, outputs: Tensor, direction: Tensor) -> Tensor:
        return torch.sigmoid(outputs) * torch.sigmoid(-outputs) * direction

    def bend(self, outputs: Tensor) -> Tensor:
        return torch.diag((torch.sigmoid(outputs) * torch.sigmoid(-outputs)).mean(1))


class Squares:
    """Half the squared difference; targets are numbers, (n,) for one output or (n, C)."""

    def check(self, targets: Tensor, outputs: int) -> str:
        shape = tuple(targets.shape[1:]) or (1,)
        return "" if shape == (outputs,) else f"targets of shape {tuple(targets.shape)} for {outputs} outputs"

    def value(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return 0.5 * (outputs - _like(targets, outputs)).square().sum()

    def slope(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return outputs - _like(targets, outputs)

    def shift(self, outputs: Tensor, change: Tensor) -> Tensor:
        return change

    def curve(self, outputs: Tensor, direction: Tensor) -> Tensor:
        return direction

    def bend(self, outputs: Tensor) -> Tensor:
        return torch.eye(len(outputs))


LOSSES: dict[str, Loss] = {"softmax": Softmax(), "logistic": Logistic(), "squares": Squares()}


def _like(targets: Tensor, outputs: Tensor) -> Tensor:
    return targets.to(outputs.dtype).reshape(outputs.shape)
