"""What the loader hands over."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

Targets = Any  # a tensor of labels, or a dict of it and the further fields
Device = torch.device | str | int


@dataclass(frozen=True, slots=True)
class Batch:
    """Samples that were really served. `for x, y in loader` works too.

    `weights` are all ones unless a selection says otherwise; over an epoch their mean is 1.
    """

    inputs: torch.Tensor
    targets: Targets
    weights: torch.Tensor
    ids: torch.Tensor
    epoch: int = 0

    def __iter__(self) -> Iterator[Any]:
        yield self.inputs
        yield self.targets

    def __getitem__(self, place: int) -> Any:
        return (self.inputs, self.targets)[place]

    def __len__(self) -> int:
        """The number of samples."""
        return len(self.ids)

    def to(self, device: Device, non_blocking: bool = False) -> Batch:
        """The same batch on a device; ids stay where they are, for `loader.report`."""
        return replace(
            self,
            inputs=self.inputs.to(device, non_blocking=non_blocking),
            targets=_map(self.targets, lambda tensor: tensor.to(device, non_blocking=non_blocking)),
            weights=self.weights.to(device, non_blocking=non_blocking),
        )

    def pin_memory(self) -> Batch:
        """The same batch in page-locked memory."""
        return replace(
            self,
            inputs=self.inputs.pin_memory(),
            targets=_map(self.targets, torch.Tensor.pin_memory),
            weights=self.weights.pin_memory(),
        )


def _map(targets: Targets, function: Any) -> Targets:
    if isinstance(targets, dict):
        return {name: _map(value, function) for name, value in targets.items()}
    return function(targets) if isinstance(targets, torch.Tensor) else targets
