"""What surgery leaves of each tensor, found once and then applied to weights, momenta and averages alike.

A copy of the model is filled with the numbers of its own entries and pruned; the numbers that are left say
where each entry of the slim model comes from. So nothing here knows kinds of layers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import nn

from headwater.errors import ModelError
from headwater.train.tickets.modes import Modes, modes_of
from headwater.train.tickets.tracing import copy_of, remove, trace

Attribute = int | tuple[int, ...]
Attributes = dict[str, dict[str, Attribute]]
"""Numbers of modules, such as `out_channels`, by the name of the module."""


@dataclass(frozen=True, eq=False)
class Cut:
    """Of one tensor: its shape before, and which indices are left along each dimension; None is all."""

    shape: tuple[int, ...]
    kept: tuple[torch.Tensor | None, ...]

    def fits(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor has this shape, or a length of 1 instead, as factored moments have."""
        return tensor.ndim == len(self.shape) and all(
            own in (1, length) for own, length in zip(tensor.shape, self.shape, strict=True)
        )

    def apply(self, tensor: torch.Tensor) -> torch.Tensor:
        """What is left of a tensor that fits, in the same layout in memory."""
        found = tensor.detach()
        for dimension, kept in enumerate(self.kept):
            if kept is not None and found.shape[dimension] == self.shape[dimension]:
                found = found.index_select(dimension, kept.to(found.device))
        last = tensor.ndim == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
        if last and not tensor.is_contiguous():
            return found.contiguous(memory_format=torch.channels_last)
        return found.contiguous()


@dataclass(frozen=True, eq=False)
class Cuts:
    """Of all tensors that change, by name, and the numbers of modules that change with them."""

    tensors: Mapping[str, Cut]
    attributes: Attributes


def find_cuts(
    model: nn.Module, example: torch.Tensor, drops: Mapping[str, Iterable[int]], modes: Modes | None = None
) -> Cuts:
    """What the removal of these channels, by group, leaves of a model. The model is not changed.

    It is traced in these modes; None: in those that differ.
    """
    copied = copy_of(model)
    graph = trace(copied, example, modes_of(copied, example) if modes is None else modes)
    before = dict(_attributes(copied))
    shapes = {name: tuple(tensor.shape) for name, tensor in _tensors(copied)}
    for _, tensor in _tensors(copied):
        # doubles count without gaps to 2**53
        tensor.data = torch.arange(tensor.numel(), dtype=torch.float64).reshape(tensor.shape)
    remove(graph, copied, drops)
    cuts = {
        name: _cut(name, shapes[name], tensor.detach().to(torch.int64))
        for name, tensor in _tensors(copied)
        if tuple(tensor.shape) != shapes[name]
    }
    return Cuts(cuts, _changes(before, dict(_attributes(copied))))


def _tensors(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters and buffers of one dimension or more."""
    named = (*model.named_parameters(), *model.named_buffers())
    return ((name, tensor) for name, tensor in named if tensor.ndim)


def _cut(name: str, shape: tuple[int, ...], numbers: torch.Tensor) -> Cut:
    kept: list[torch.Tensor | None] = []
    wanted = torch.zeros((), dtype=torch.int64)
    for dimension, length in enumerate(shape):
        line = numbers[tuple(slice(None) if place == dimension else 0 for place in range(len(shape)))]
        stride = torch.Size(shape[dimension + 1 :]).numel()
        places = line // stride % length
        kept.append(None if len(places) == length else places)
        wanted = wanted.unsqueeze(-1) + places * stride
    if not torch.equal(wanted, numbers):
        raise ModelError(f"{name} would lose entries that are no whole rows or columns of it")
    return Cut(shape, tuple(kept))


def _attributes(model: nn.Module) -> Iterator[tuple[str, dict[str, Attribute]]]:
    for name, module in model.named_modules():
        yield name, {key: value for key, value in vars(module).items() if _is_number(value)}


def _is_number(value: object) -> bool:
    if isinstance(value, tuple):
        return all(_is_number(part) and isinstance(part, int) for part in value)
    return isinstance(value, int) and not isinstance(value, bool)


def _changes(before: Attributes, after: Attributes) -> Attributes:
    changed = {
        name: {key: value for key, value in values.items() if before[name].get(key) != value}
        for name, values in after.items()
    }
    return {name: values for name, values in changed.items() if values}
