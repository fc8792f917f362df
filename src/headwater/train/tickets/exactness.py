"""Which channels can go without a trace: tried out on a copy, not derived from kinds of layers.

When the scale and shift of every batch norm on a channel are 0, the model must give what it gives without
the channel. That fails for a sigmoid after a batch norm, a layer norm over channels, a sum with a layer
that has no batch norm.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Sequence

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from headwater.errors import MissingExtra
from headwater.train.tickets.cuts import find_cuts
from headwater.train.tickets.surgery import operate
from headwater.train.tickets.tracing import Group, Places, copy_of, find_groups

log = logging.getLogger("headwater")

_TOLERANCE = 1e-9  # of the largest output, in double precision
_IMAGES = 2


def find_exact_groups(model: nn.Module, example: torch.Tensor) -> list[Group]:
    """Groups whose channels can be removed exactly; others are told of in the log, and stay whole.

    Raises `ModelError` for a model that cannot be traced.
    """
    copied = _stirred(model)
    groups = find_groups(copied, example)
    exact = _sift(copied, example, groups)
    whole = sorted({group.name for group in groups} - {group.name for group in exact})
    if whole:
        log.warning("channels of %s cannot be removed exactly, and stay whole", ", ".join(whole))
    return exact


def mask(model: nn.Module, groups: Sequence[Group], drops: dict[str, Places]) -> None:
    """Silence channels instead of removing them: scale and shift of their batch norms become 0."""
    with torch.no_grad():
        for group in groups:
            for norm in group.norms:
                gone = torch.from_numpy(norm.places[np.isin(norm.channels, drops.get(group.name, ()))])
                layer = model.get_submodule(norm.module)
                for tensor in (layer.weight, layer.bias):
                    assert isinstance(tensor, torch.Tensor)
                    tensor[gone.to(tensor.device)] = 0


def _sift(copied: nn.Module, example: torch.Tensor, groups: list[Group]) -> list[Group]:
    """By halves: most models pass as a whole."""
    if not groups or _is_exact(copied, example, groups):
        return groups
    half = len(groups) // 2
    return (
        [] if not half else [*_sift(copied, example, groups[:half]), *_sift(copied, example, groups[half:])]
    )


def _is_exact(copied: nn.Module, example: torch.Tensor, groups: Sequence[Group]) -> bool:
    drops = {group.name: np.arange(0, group.size - 1, 2) for group in groups}
    masked, slim = copy.deepcopy(copied), copy.deepcopy(copied)
    mask(masked, groups, drops)
    inputs = _noise((_IMAGES, *example.shape[1:]), seed=1)
    try:
        operate(slim, find_cuts(slim, example, drops))
        with torch.no_grad():
            wanted, found = masked(inputs), slim(inputs)
    except MissingExtra:
        raise
    except Exception as error:  # whatever a model does with other shapes
        log.debug("%s: %s", ", ".join(drops), error)
        return False
    apart = (found - wanted).abs().max() if found.shape == wanted.shape else torch.tensor(torch.inf)
    return bool(apart <= _TOLERANCE * max(1.0, float(wanted.abs().max())))


def _stirred(model: nn.Module) -> nn.Module:
    """A copy with values as after training: zeros of a fresh model would hide what is not exact."""
    copied, seed = copy_of(model), 2
    with torch.no_grad():
        for module in copied.modules():
            seed += 1
            if isinstance(module, _BatchNorm) and module.affine:
                module.weight.copy_(_noise(module.weight.shape, seed) + 0.5)
                module.bias.copy_(_noise(module.bias.shape, seed + 1) - 0.5)
                if module.running_mean is not None and module.running_var is not None:
                    module.running_mean.copy_(_noise(module.running_mean.shape, seed + 2) - 0.5)
                    module.running_var.copy_(_noise(module.running_var.shape, seed + 3) + 0.5)
            elif isinstance(bias := getattr(module, "bias", None), torch.Tensor):
                bias.copy_(_noise(bias.shape, seed) - 0.5)
    return copied


def _noise(shape: Sequence[int], seed: int) -> torch.Tensor:
    """Between 0 and 1, always the same; the user's generator is left alone."""
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
