"""Channel scales of a model in training: read group by group, and pulled towards zero.

Liu et al., "Learning Efficient Convolutional Networks through Network Slimming" (ICCV 2017): the scale of a
batch norm says what its channel is worth, if a penalty on all scales lets the idle ones shrink.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from headwater.plan.prune import Channels
from headwater.train.tickets.tracing import Group


class Scales:
    """Those of the batch norms on these groups of a model."""

    def __init__(self, model: nn.Module, groups: Sequence[Group]) -> None:
        self._model, self._groups = model, tuple(groups)
        self._norms = sorted({norm.module for group in groups for norm in group.norms})
        names, sizes = (group.name for group in groups), (group.size for group in groups)
        self.channels = Channels(tuple(names), tuple(sizes))

    def read(self) -> NDArray[np.float64]:
        """A number per channel: the largest of its scales, because a channel can go only when all may."""
        values = {name: self._weight(name).detach().abs().double().cpu().numpy() for name in self._norms}
        found = [np.zeros(group.size) for group in self._groups]
        for group, row in zip(self._groups, found, strict=True):
            for norm in group.norms:
                with np.errstate(invalid="ignore"):  # who gets them looks for what is no number
                    np.maximum.at(row, norm.channels, values[norm.module][norm.places])
        return np.concatenate(found)

    def penalise(self, strength: float) -> None:
        """Add the sub-gradient of `strength` times the sum of all scales to their gradients."""
        for name in self._norms:
            weight = self._weight(name)
            if weight.grad is not None:
                weight.grad.add_(torch.sign(weight.detach()), alpha=strength)

    def _weight(self, name: str) -> torch.Tensor:
        weight = self._model.get_submodule(name).weight
        assert isinstance(weight, torch.Tensor)
        return weight
