"""From a module, or from what a journal says, to an objective."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import nn

from headwater.errors import JournalRefused
from headwater.train.replay.linear import KIND as LINEAR
from headwater.train.replay.linear import LinearHead, Shifting
from headwater.train.replay.network import KIND as NETWORK
from headwater.train.replay.network import Network
from headwater.train.replay.objective import Objective


def objective_of(module: nn.Module, loss: str = "softmax") -> Objective:
    """A linear layer is convex, and first class; any other module is an experiment."""
    if type(module) is nn.Linear:
        return LinearHead(module.in_features, module.out_features, loss, bias=module.bias is not None)
    return Network(module, loss)


def restore(spec: Mapping[str, Any], module: nn.Module | None) -> Objective:
    """The objective of a journal; raises `JournalRefused` unless `module` is a model like that.

    A linear head needs no module. `ValueError` is raised for what no objective says of itself.
    """
    kind, loss = spec.get("kind"), str(spec.get("loss"))
    if kind == NETWORK:
        if module is None:
            raise JournalRefused("the journal is of a network; pass that as model=")
        found: Objective = Network(module, loss)
    elif kind == LINEAR:
        found = _linear(spec)
        if module is not None:
            _compare(objective_of(module, loss).describe(), {**spec, "mean": None, "scale": None})
    else:
        raise ValueError(f"a model of kind {kind!r}, this version knows {LINEAR} and {NETWORK}")
    _compare(found.describe(), spec)
    return found


def _linear(spec: Mapping[str, Any]) -> LinearHead:
    numbers = [np.frombuffer(spec[name], "<f8") for name in ("mean", "scale") if name in spec]
    shifting = Shifting(*numbers) if len(numbers) == 2 else None
    return LinearHead(
        int(spec["features"]), int(spec["outputs"]), str(spec["loss"]), bool(spec["bias"]), shifting
    )


def _compare(found: Mapping[str, Any], spec: Mapping[str, Any]) -> None:
    differs = sorted(name for name in {*found, *spec} if found.get(name) != spec.get(name))
    if differs:
        has, wants = ({name: each.get(name) for name in differs} for each in (found, spec))
        raise JournalRefused(
            f"the journal is of another model: it has {wants}, this one {has}; pass the one that was trained"
        )
