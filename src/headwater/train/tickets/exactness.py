"""Which channels can go without a trace: tried out on a copy, not derived from kinds of layers.

When the scale and shift of every batch norm on a channel are 0, the model must give what it gives without
the channel. That fails for a sigmoid after a batch norm, a layer norm over channels, a sum with a layer
that has no batch norm, a grouped convolution. Nor may other channels go with it: a gate that multiplies one
half of the channels by the other takes both.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from headwater.errors import HeadwaterError, ModelError
from headwater.train.tickets.cuts import Cuts, find_cuts
from headwater.train.tickets.modes import Modes, calm, modes_of, tensors_in
from headwater.train.tickets.surgery import operate
from headwater.train.tickets.tracing import Group, Places, copy_of, find_groups

log = logging.getLogger("headwater")

_TOLERANCE = 1e-9  # of the largest output, in double precision
_IMAGES = 2


@dataclass(frozen=True, eq=False)
class Probe:
    """What models are tried on: an input of this shape, in these modes."""

    example: torch.Tensor
    modes: Modes

    @classmethod
    def of(cls, copied: nn.Module, example: torch.Tensor) -> Probe:
        """For a `copy_of` a model; raises `ModelError` if it does not take the example."""
        return cls(example, modes_of(copied, example))

    def run(self, model: nn.Module) -> list[torch.Tensor]:
        """All that it gives to the same two inputs."""
        inputs = _noise((_IMAGES, *self.example.shape[1:]), seed=1)
        found: list[torch.Tensor] = []
        for training in self.modes:
            with torch.no_grad(), calm(model, training=training):
                found += tensors_in(model(inputs.clone()))
        return found


def find_exact_groups(model: nn.Module, example: torch.Tensor) -> list[Group]:
    """Groups whose channels can be removed exactly; others are told of in the log, and stay whole.

    Raises `ModelError` for a model that cannot be traced.
    """
    copied = _stirred(model)
    probe = Probe.of(copied, example)
    groups = find_groups(copied, probe.example, probe.modes)
    exact = _sift(copied, probe, groups)
    whole = sorted({group.name for group in groups} - {group.name for group in exact})
    if whole:
        log.warning("channels of %s cannot be removed exactly, and stay whole", ", ".join(whole))
    return exact


def cut_exactly(
    copied: nn.Module, probe: Probe, groups: Sequence[Group], drops: Mapping[str, Places]
) -> Cuts:
    """What the removal of these channels leaves of a `copy_of` a model, after it was tried out.

    Raises `ModelError` unless these channels go and no others, and the model then gives what it gives with
    these channels silent. The copy is not changed.
    """
    masked, slim = copy.deepcopy(copied), copy.deepcopy(copied)
    try:
        mask(masked, groups, drops)
        cuts = find_cuts(copied, probe.example, drops, probe.modes)
        operate(slim, cuts)
        wanted, found = probe.run(masked), probe.run(slim)
    except HeadwaterError:
        raise
    except Exception as error:  # whatever a model does with other shapes
        names, reason = ", ".join(drops), str(error).partition("\n")[0]
        raise ModelError(f"the model does not run without channels of {names}: {reason}") from error
    _check_lost(copied, cuts, _places(groups, drops))
    _check_same(found, wanted)
    return cuts


def check_runs(model: nn.Module, example: torch.Tensor) -> None:
    """That a slim model runs with each part in its own mode, training or not; else raise `ModelError`."""
    first = next(model.parameters())
    inputs = _noise((_IMAGES, *example.shape[1:]), seed=1).to(first.device, first.dtype)
    try:
        with torch.no_grad(), calm(model, training=None):
            model(inputs)
    except Exception as error:  # whatever a model does with other shapes
        reason = str(error).partition("\n")[0]
        raise ModelError(
            f"the slim model does not run in its own mode: {reason}; nothing was changed; "
            "call model.train() or model.eval() as in training"
        ) from error


def mask(model: nn.Module, groups: Sequence[Group], drops: Mapping[str, Places]) -> None:
    """Silence channels instead of removing them: scale and shift of their batch norms become 0."""
    with torch.no_grad():
        for name, places in _places(groups, drops).items():
            layer = model.get_submodule(name)
            for tensor in (layer.weight, layer.bias):
                assert isinstance(tensor, torch.Tensor)
                tensor[torch.from_numpy(places).to(tensor.device)] = 0


def _places(groups: Sequence[Group], drops: Mapping[str, Places]) -> dict[str, Places]:
    """Entries of batch norms that scale these channels, by the name of the batch norm."""
    found: dict[str, Places] = {}
    for group in groups:
        for norm in group.norms:
            gone = norm.places[np.isin(norm.channels, drops.get(group.name, ()))]
            if len(gone):
                found[norm.module] = np.union1d(found.get(norm.module, gone), gone)
    return found


def _check_lost(model: nn.Module, cuts: Cuts, wanted: Mapping[str, Places]) -> None:
    norms = {name for name, module in model.named_modules() if isinstance(module, _BatchNorm)}
    for name in sorted(norms):
        cut = cuts.tensors.get(f"{name}.weight")
        lost = 0 if cut is None or cut.kept[0] is None else cut.shape[0] - len(cut.kept[0])
        if lost != len(wanted.get(name, ())):
            raise ModelError(f"{name} would lose {lost} channels, not {len(wanted.get(name, ()))}")


def _check_same(found: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor]) -> None:
    shapes = [[tuple(tensor.shape) for tensor in tensors] for tensors in (found, wanted)]
    if not wanted or shapes[0] != shapes[1]:
        raise ModelError(f"the model would give tensors of {shapes[0]}, not of {shapes[1]}")
    for one, other in zip(found, wanted, strict=True):
        # whole numbers and booleans have differences too
        apart = _largest(one.to(torch.complex128) - other.to(torch.complex128))
        most = max(1.0, _largest(other.to(torch.complex128)))
        if not apart <= _TOLERANCE * most:
            raise ModelError(f"the model would give something else, by {apart:.2g} of {most:.2g}")


def _largest(tensor: torch.Tensor) -> float:
    return float(tensor.abs().max()) if tensor.numel() else 0.0


def _sift(copied: nn.Module, probe: Probe, groups: list[Group]) -> list[Group]:
    """By halves: most models pass as a whole."""
    if not groups or _is_exact(copied, probe, groups):
        return groups
    half = len(groups) // 2
    return [] if not half else [*_sift(copied, probe, groups[:half]), *_sift(copied, probe, groups[half:])]


def _is_exact(copied: nn.Module, probe: Probe, groups: Sequence[Group]) -> bool:
    try:
        for drops in _trials(groups):
            cut_exactly(copied, probe, groups, drops)
    except ModelError as error:
        log.debug("%s: %s", ", ".join(group.name for group in groups), error)
        return False
    return True


def _trials(groups: Sequence[Group]) -> Iterator[dict[str, Places]]:
    """One channel of each group, every other one, and some at random.

    Every other one takes the same share of each group of a grouped convolution, one alone cannot.
    """
    rng = np.random.default_rng(0)
    yield {group.name: np.array([0]) for group in groups}
    yield {group.name: np.arange(0, group.size - 1, 2) for group in groups}
    yield {
        group.name: np.sort(rng.choice(group.size, rng.integers(1, group.size), replace=False))
        for group in groups
    }


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
