"""The part of a model that is trained: a linear layer by default, or any torch module."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional as F

from headwater.errors import ModelError, StateMismatch, WrongUse
from headwater.models.export import export_head
from headwater.models.model import Model
from headwater.train.replay.linear import LinearHead, Shifting
from headwater.train.replay.objective import Objective
from headwater.train.replay.objectives import objective_of
from headwater.train.replay.optimisers import Observed
from headwater.tune.recipe import Recipe

Floats = NDArray[np.float32]
Batch = tuple[torch.Tensor, torch.Tensor]
"""Features (n, F) as float32, and the class of each."""
Optimiser = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
"""From parameters to what trains them."""
Exported = tuple[bytes | None, dict[str, NDArray[Any]]]
"""A head's graph, None if it is linear, and its tensors."""


@dataclass(frozen=True, eq=False)
class Scaling:
    """Features with mean 0 and equal spread, of length 1 on average: `(features - mean) * scale`.

    A learning rate then means the same for every trunk. It is folded into the linear layer in the end.
    """

    mean: NDArray[np.float64]
    scale: NDArray[np.float64]

    @classmethod
    def of(cls, features: Iterable[NDArray[np.float16]]) -> Scaling:
        """What the features of the first run need, which come in parts."""
        count, total, squares = 0, np.zeros(1), np.zeros(1)
        for part in features:
            wide = part.astype(np.float64)
            count, total, squares = count + len(wide), total + wide.sum(0), squares + (wide * wide).sum(0)
        mean = total / count
        spread = np.sqrt(np.maximum(squares / count - mean * mean, 0))
        # A feature that is the same everywhere tells nothing, and stays as it is.
        spread[spread < 1e-6 * np.maximum(1.0, np.abs(mean))] = 1.0
        return cls(mean, 1 / (spread * np.sqrt(len(mean))))


class Head:
    """A module that maps features to logits, its optimiser, and both as tensors that can be kept.

    `scaling` is given for the linear layer, which is exported without it.
    """

    def __init__(
        self, module: nn.Module, optimiser: torch.optim.Optimizer, *, scaling: Scaling | None = None
    ) -> None:
        self._module, self._optimiser, self._scaling = module, optimiser, scaling
        self._rates = [float(group["lr"]) for group in optimiser.param_groups]
        if scaling is not None:
            self._mean = torch.from_numpy(scaling.mean.astype(np.float32))
            self._scale = torch.from_numpy(scaling.scale.astype(np.float32))

    @property
    def weights(self) -> int:
        """How many numbers are trained."""
        return sum(parameter.numel() for parameter in self._module.parameters())

    def observe(self) -> Observed:
        """Its optimiser as a journal sees it; raises `WrongUse` for one that cannot be replayed."""
        return Observed(self._module, self._optimiser)

    def check_replayable(self) -> None:
        """Raise `WrongUse` where no journal of it could be followed: for its optimiser, or its module."""
        self.observe()
        _ = self.objective

    @property
    def objective(self) -> Objective:
        """What is minimised; raises `WrongUse` for a module whose gradients cannot be had again."""
        if self._scaling is None or not isinstance(self._module, nn.Linear):
            return objective_of(self._module)
        layer, scaling = self._module, self._scaling
        shifting = Shifting(scaling.mean, scaling.scale)
        return LinearHead(layer.in_features, layer.out_features, shifting=shifting)

    @classmethod
    def linear(
        cls,
        scaling: Scaling,
        *,
        classes: int,
        recipe: Recipe,
        optimiser: Optimiser | None,
        start: Model | None,
    ) -> Head:
        """A linear layer for scaled features; it begins as the head of `start`, or else with zeros."""
        layer = nn.Linear(len(scaling.mean), classes)
        weight, bias = _unfold(start, scaling) if start is not None else (0.0, 0.0)
        with torch.no_grad():
            layer.weight.copy_(torch.as_tensor(weight))
            layer.bias.copy_(torch.as_tensor(bias))
        make = optimiser or _sgd(recipe)
        return cls(layer, make(layer.parameters()), scaling=scaling)

    @classmethod
    def custom(cls, module: nn.Module, optimiser: Optimiser) -> Head:
        """A copy of the user's own module, on features as they are."""
        same = copy.deepcopy(module)
        return cls(same, optimiser(same.parameters()))

    def train(
        self, batches: Iterable[Batch], *, rate: float, note: Callable[[], None] = lambda: None
    ) -> float:
        """One epoch at this share of the learning rate; the mean loss. Raises `ModelError` if it is lost.

        `note` is called before each step of the optimiser.
        """
        self._module.train()
        for group, first in zip(self._optimiser.param_groups, self._rates, strict=True):
            group["lr"] = first * rate
        total, count = 0.0, 0
        for features, targets in batches:
            loss = F.cross_entropy(self._module(self._scaled(features)), targets)
            self._optimiser.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            note()
            self._optimiser.step()
            total, count = total + loss.item() * len(targets), count + len(targets)
        mean = total / max(count, 1)
        if not np.isfinite(mean):
            raise ModelError("training ran away: the loss is no number any more; lower learning_rate")
        return mean

    def accuracy(self, batches: Iterable[Batch]) -> float | None:
        """The share of these whose class it finds, as it would be deployed; None of none."""
        deployed, right, count = self._deploy(), 0, 0
        for features, targets in batches:
            right += int((deployed(features).argmax(1) == targets).sum())
            count += len(targets)
        return right / count if count else None

    def labels(self, features: NDArray[np.float16]) -> NDArray[np.int64]:
        """The class of each row, as it would be deployed."""
        found: NDArray[np.int64] = self._deploy()(torch.from_numpy(features).float()).argmax(1).numpy()
        return found

    def _deploy(self) -> Callable[[torch.Tensor], torch.Tensor]:
        if self._scaling is not None:
            weight, bias = map(torch.from_numpy, self._fold(self._scaling))
            return lambda features: features @ weight.T + bias
        self._module.eval()
        return torch.no_grad()(self._module)

    def export(self, width: int) -> Exported:
        """As a version keeps it, for `width` features."""
        if self._scaling is None:
            return export_head(self._module, width)
        weight, bias = self._fold(self._scaling)
        return None, {"weight": weight, "bias": bias}

    def _fold(self, scaling: Scaling) -> tuple[Floats, Floats]:
        """The linear layer for features as they are."""
        weight, bias = (_to_array(part) for part in self._module.parameters())
        return fold(weight, bias, scaling)

    def _scaled(self, features: torch.Tensor) -> torch.Tensor:
        return features if self._scaling is None else (features - self._mean) * self._scale

    def state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Everything that training has changed: tensors, and plain values of the optimiser."""
        tensors = {f"head/{name}": _to_array(value) for name, value in self._module.state_dict().items()}
        plain: dict[str, Any] = {}
        for number, values in self._optimiser.state_dict()["state"].items():
            for name, value in values.items():
                key = f"optimiser/{number}/{name}"
                if isinstance(value, torch.Tensor):
                    tensors[key] = _to_array(value)
                else:
                    plain[key] = _check_plain(name, value)
        return tensors, plain

    def load(self, tensors: Mapping[str, NDArray[Any]], plain: Mapping[str, Any]) -> None:
        """Go on from what `state` gave; raises `StateMismatch` for that of another module."""
        weights = {
            name.removeprefix("head/"): value for name, value in tensors.items() if name[:5] == "head/"
        }
        state: dict[int, dict[str, Any]] = {}
        for key, value in (*tensors.items(), *plain.items()):
            if key.startswith("optimiser/"):
                _, number, name = key.split("/", 2)
                state.setdefault(int(number), {})[name] = _to_value(value)
        try:
            self._module.load_state_dict({name: _to_value(value) for name, value in weights.items()})
            self._optimiser.load_state_dict({**self._optimiser.state_dict(), "state": state})
        except (RuntimeError, ValueError, KeyError) as error:
            raise StateMismatch(f"the saved state is that of another head or optimiser: {error}") from error


def fold(weight: Floats, bias: Floats, scaling: Scaling) -> tuple[Floats, Floats]:
    """A linear layer for scaled features as it is for features as they are."""
    wide = weight.astype(np.float64) * scaling.scale
    return wide.astype(np.float32), (bias.astype(np.float64) - wide @ scaling.mean).astype(np.float32)


def check_custom(module: nn.Module, *, features: int, classes: int) -> None:
    """Raise `WrongUse` for a module that does not map features to logits, or is not of float32."""
    kinds = {parameter.dtype for parameter in module.parameters()}
    if kinds != {torch.float32}:
        raise WrongUse(f"the head's parameters are {sorted(map(str, kinds)) or 'none'}; they must be float32")
    same = copy.deepcopy(module).eval()
    try:
        with torch.no_grad():
            logits = same(torch.zeros(2, features))
    except Exception as error:
        raise WrongUse(f"the head does not run on (n, {features}) features: {error}") from error
    if tuple(logits.shape) != (2, classes):
        raise WrongUse(f"the head gives {tuple(logits.shape)} for 2 samples; it must give (2, {classes})")


def _sgd(recipe: Recipe) -> Optimiser:
    def make(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(
            parameters, lr=recipe.learning_rate, momentum=recipe.momentum, weight_decay=recipe.l2
        )

    return make


def _unfold(model: Model, scaling: Scaling) -> tuple[Floats, Floats]:
    """A linear head as it would be on scaled features."""
    weight, bias = (model.tensors[f"head/{name}"].astype(np.float64) for name in ("weight", "bias"))
    return (weight / scaling.scale).astype(np.float32), (bias + weight @ scaling.mean).astype(np.float32)


def _to_array(tensor: torch.Tensor) -> NDArray[Any]:
    array: NDArray[Any] = tensor.detach().cpu().numpy().copy()
    return array


def _to_value(value: Any) -> Any:
    return torch.from_numpy(np.array(value)) if isinstance(value, np.ndarray) else value


def _check_plain(name: str, value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise WrongUse(
        f"the optimiser keeps a {type(value).__name__} as {name!r}, which a state cannot hold; use another"
    )
