"""Which layers must be cut alike, as Torch-Pruning finds it (Fang et al., "DepGraph", CVPR 2023).

The library sees copies only. What it is asked for is the structure: which batch norms belong to a channel,
and which entries of which tensors are left when channels go.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from headwater.errors import MissingExtra, ModelError
from headwater.train.tickets.modes import Modes, calm, tensors_in, tracing

if TYPE_CHECKING:
    from torch_pruning import DependencyGraph

Places = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Norm:
    """A batch norm that scales channels of a group: entry `places[i]` scales channel `channels[i]`."""

    module: str
    places: Places
    channels: Places


@dataclass(frozen=True, eq=False)
class Group:
    """Channels that stand or fall together in several layers, called by one of these."""

    name: str
    size: int
    norms: tuple[Norm, ...]


def copy_of(model: nn.Module) -> nn.Module:
    """A copy to trace: on the CPU, in double precision, trainable, because tracing follows gradients.

    Raises `ModelError` for a model that cannot be copied.
    """
    try:
        return copy.deepcopy(model).cpu().double().requires_grad_(True).eval()
    except Exception as error:  # whatever a module does when it is copied
        reason = str(error).partition("\n")[0]
        raise ModelError(
            f"{type(model).__name__} cannot be copied: {reason}; give a torch module that is not scripted, "
            "ran once if it is lazy, and has weight norm as a parametrization"
        ) from error


def trace(copied: nn.Module, example: torch.Tensor, modes: Modes) -> DependencyGraph:
    """How the layers of a `copy_of` depend on each other, in all of these modes together.

    Raises `ModelError` if that cannot be found out.
    """
    try:
        from torch_pruning import DependencyGraph
    except ImportError as error:
        raise MissingExtra(f"early tickets need {error.name}; pip install 'headwater[train]'") from error

    def forward(model: nn.Module, inputs: torch.Tensor) -> list[torch.Tensor]:
        found: list[torch.Tensor] = []
        for training in modes:
            with calm(model, training=training):
                found += tensors_in(model(inputs.clone()))
        return found

    with tracing(copied, example), warnings.catch_warnings(action="ignore"), torch.enable_grad():
        return DependencyGraph().build_dependency(
            copied, example.cpu().double(), forward_fn=forward, verbose=False
        )


def find_groups(model: nn.Module, example: torch.Tensor, modes: Modes) -> list[Group]:
    """Groups of two channels or more that batch norms scale, in the order of their layers."""
    copied = copy.deepcopy(model)
    graph = trace(copied, example, modes)
    names = {module: name for name, module in copied.named_modules()}
    groups = [_group(list(each), names) for each in graph.get_all_groups()]
    order = {name: place for place, name in enumerate(names.values())}
    found = [group for group in groups if group.norms and group.size > 1]
    return sorted(found, key=lambda group: order[group.name])


def _group(items: list[Any], names: Mapping[nn.Module, str]) -> Group:
    norms = [
        Norm(
            names[item.dep.target.module],
            np.array(item.idxs, np.int64),
            np.array(item.root_idxs, np.int64),
        )
        for item in items
        if isinstance(item.dep.target.module, _BatchNorm) and item.dep.target.module.affine
    ]
    return Group(names[items[0].dep.target.module], len(items[0].idxs), tuple(norms))


def remove(graph: DependencyGraph, copied: nn.Module, drops: Mapping[str, Iterable[int]]) -> None:
    """Remove these channels from the copy that was traced, by the names of their groups."""
    for name, places in drops.items():
        layer = copied.get_submodule(name)
        prune = graph.get_pruner_of_module(layer).prune_out_channels
        with warnings.catch_warnings(action="ignore"):
            graph.get_pruning_group(layer, prune, [int(place) for place in places]).prune()
