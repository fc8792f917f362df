"""A torch optimiser as a journal sees it: flat gradients, rates, velocities. Only SGD can be replayed."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from headwater.errors import WrongUse
from headwater.train.replay.records import Group

Vector = NDArray[np.float32]

FIXED = ("momentum", "nesterov", "dampening", "maximize", "weight_decay")
"""What a journal says once, for all steps; a learning rate it has for each."""


class Observed:
    """A module and the SGD that trains it; its parameters in the module's order are the flat weights.

    Neighbours that the optimiser has in one group are one group here. Raises `WrongUse` for another
    optimiser, or one of other parameters.
    """

    def __init__(self, module: nn.Module, optimiser: torch.optim.Optimizer) -> None:
        self._parameters = list(module.parameters())
        self._optimiser = optimiser
        _check(optimiser)
        owners = {
            id(each): number
            for number, group in enumerate(optimiser.param_groups)
            for each in group["params"]
        }
        if set(owners) != {id(each) for each in self._parameters}:
            raise WrongUse("the optimiser is not of this model's parameters, all of them and no others")
        runs = [(owners[id(each)], each.numel()) for each in self._parameters]
        joined = [
            (owner, sum(count for _, count in some)) for owner, some in groupby(runs, lambda run: run[0])
        ]
        self._owners = [owner for owner, _ in joined]
        decays = [float(group["weight_decay"]) for group in optimiser.param_groups]
        self.groups = tuple(Group(count, decays[owner]) for owner, count in joined)
        self.momentum = float(optimiser.param_groups[0]["momentum"])
        self.nesterov = bool(optimiser.param_groups[0]["nesterov"])
        self._begun_with = _settings_of(optimiser)
        self._members = _members_of(optimiser)

    def check(self, step: int) -> None:
        """Raise `WrongUse` where the optimiser is no more what it was, before this step."""
        if _members_of(self._optimiser) != self._members:
            raise WrongUse(
                f"at step {step:,} the optimiser has other parameters or groups than when its journal began; "
                "add none and take none away on the way"
            )
        for number, (old, new) in enumerate(
            zip(self._begun_with, _settings_of(self._optimiser), strict=True)
        ):
            changed = [name for name in FIXED if old[name] != new[name]]
            if changed:
                name = changed[0]
                raise WrongUse(
                    f"at step {step:,} the optimiser has {name}={new[name]} in group {number}, and had "
                    f"{old[name]} when its journal began, which has one for all steps; change nothing but "
                    "learning rates on the way: OneCycleLR and CyclicLR take cycle_momentum=False"
                )

    @property
    def rates(self) -> NDArray[np.float64]:
        """The learning rate of each group, now."""
        rates = [float(group["lr"]) for group in self._optimiser.param_groups]
        return np.array([rates[owner] for owner in self._owners])

    @property
    def gradient(self) -> Vector:
        """What `backward` has left, without L2. Raises `WrongUse` where it left nothing."""
        slopes = [each.grad for each in self._parameters]
        if any(each is None for each in slopes):
            raise WrongUse(
                "a parameter has no gradient; call backward() before step(), of a loss that needs them all"
            )
        return _flat([each for each in slopes if each is not None])

    @property
    def place(self) -> Vector:
        """The weights, now."""
        return _flat([each.detach() for each in self._parameters])

    @property
    def speed(self) -> Vector | None:
        """The velocity, None where there is no momentum."""
        if not self.momentum:
            return None
        state = self._optimiser.state
        buffers = [state.get(each, {}).get("momentum_buffer") for each in self._parameters]
        pairs = zip(buffers, self._parameters, strict=True)
        return _flat([torch.zeros_like(each) if buffer is None else buffer for buffer, each in pairs])


def _settings_of(optimiser: torch.optim.Optimizer) -> list[dict[str, Any]]:
    return [{name: group[name] for name in FIXED} for group in optimiser.param_groups]


def _members_of(optimiser: torch.optim.Optimizer) -> list[list[int]]:
    return [[id(each) for each in group["params"]] for group in optimiser.param_groups]


def _check(optimiser: torch.optim.Optimizer) -> None:
    if type(optimiser) is not torch.optim.SGD:
        raise WrongUse(
            f"the optimiser is {type(optimiser).__name__}, whose steps are not linear in the gradients; "
            "a journal takes torch.optim.SGD, with momentum if need be"
        )
    groups = optimiser.param_groups
    if any(group["dampening"] or group["maximize"] for group in groups):
        raise WrongUse("SGD with dampening or maximize cannot be replayed; leave them out")
    if len({(group["momentum"], group["nesterov"]) for group in groups}) > 1:
        raise WrongUse("groups of parameters with different momentum cannot be replayed; give all the same")


def _flat(tensors: list[torch.Tensor]) -> Vector:
    found: Vector = torch.cat([each.detach().reshape(-1) for each in tensors]).cpu().numpy()
    return found
