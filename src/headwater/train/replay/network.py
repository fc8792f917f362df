"""Any torch module with a smooth loss. Replay of what is not convex is an experiment, and says so.

Gradients that depend on more than weights and samples cannot be had again: layers that draw, or that look
at the whole batch, are refused.
"""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Callable, Mapping
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from headwater.errors import JournalRefused, WrongUse
from headwater.train.replay.features import Features, Part
from headwater.train.replay.losses import LOSSES
from headwater.train.replay.objective import Parts, Sketch, Vector

KIND = "network"


class Network:
    """A copy of a module, under the loss of this name; the flat weights are its parameters in their order.

    Raises `WrongUse` for a module that draws or looks at whole batches, or that is not of float32.
    """

    experimental = True

    def __init__(self, module: nn.Module, loss: str = "softmax") -> None:
        if loss not in LOSSES:
            raise WrongUse(f"loss is {loss!r}; it may be {', '.join(LOSSES)}")
        _check_layers(module)
        self._module, self._loss = copy.deepcopy(module), loss
        self._shapes = {name: tuple(value.shape) for name, value in self._module.named_parameters()}
        counts = [math.prod(shape) for shape in self._shapes.values()]
        self._ends = list(accumulate(counts, initial=0))

    @property
    def size(self) -> int:
        return self._ends[-1]

    def describe(self) -> dict[str, Any]:
        layers = hashlib.blake2b(repr(self._module).encode(), digest_size=16).hexdigest()
        shapes = [[name, list(shape)] for name, shape in self._shapes.items()]
        return {"kind": KIND, "layers": layers, "parameters": shapes, "loss": self._loss}

    def check(self, features: Features) -> None:
        try:
            with torch.no_grad():
                outputs = self._module(features.take(np.zeros(1, np.int64))[0])
        except (RuntimeError, ValueError, IndexError) as error:
            raise JournalRefused(
                f"the model does not run on features of shape {features.values.shape[1:]}: {error}; "
                "bring those that it was trained on"
            ) from error
        problem = LOSSES[self._loss].check(torch.from_numpy(np.asarray(features.targets)), outputs.shape[-1])
        if problem:
            raise JournalRefused(f"{problem}; bring the targets that it was trained on")

    def name_weights(self, weights: Vector) -> Mapping[str, NDArray[np.float32]]:
        return {name: part.numpy() for name, part in self._parameters(torch.from_numpy(weights)).items()}

    def value(self, weights: Vector, parts: Parts) -> float:
        with torch.no_grad():
            return sum(float(self._sum(torch.from_numpy(weights), x, target)) for x, target in parts)

    def gradient(self, weights: Vector, parts: Parts) -> Vector:
        return self._add_up(weights, parts, lambda flat, loss: torch.autograd.grad(loss, flat)[0])

    def change(self, weights: Vector, offset: Vector, parts: Parts, *, known: Vector) -> Vector:
        return self.gradient(weights + offset, parts) - known

    def curve(self, weights: Vector, direction: Vector, parts: Parts) -> Vector:
        along = torch.from_numpy(direction)

        def bend(flat: Tensor, loss: Tensor) -> Tensor:
            (slope,) = torch.autograd.grad(loss, flat, create_graph=True)
            return torch.autograd.grad(slope @ along, flat)[0]

        return self._add_up(weights, parts, bend)

    def sketch(self, some: Part) -> Sketch | None:
        return None

    def _add_up(self, weights: Vector, parts: Parts, of: Callable[[Tensor, Tensor], Tensor]) -> Vector:
        flat = torch.from_numpy(weights.copy()).requires_grad_()
        total = torch.zeros(self.size)
        for x, target in parts:
            total += of(flat, self._sum(flat, x, target))
        found: Vector = total.numpy()
        return found

    def _sum(self, flat: Tensor, x: Tensor, target: Tensor) -> Tensor:
        return LOSSES[self._loss].value(functional_call(self._module, self._parameters(flat), (x,)), target)

    def _parameters(self, flat: Tensor) -> dict[str, Tensor]:
        places = zip(self._shapes.items(), self._ends, self._ends[1:], strict=False)
        return {name: flat[begin:end].view(shape) for (name, shape), begin, end in places}


def _check_layers(module: nn.Module) -> None:
    for name, layer in module.named_modules():
        if isinstance(layer, _BatchNorm) and layer.training:
            raise WrongUse(
                f"layer {name!r} is a {type(layer).__name__} that looks at the whole batch; call eval() on "
                "it, so that its statistics stand still"
            )
        if isinstance(layer, _DropoutNd) and layer.training and layer.p > 0:
            raise WrongUse(f"layer {name!r} is a {type(layer).__name__}, which draws; train without it")
    kinds = sorted({str(each.dtype) for each in module.parameters()})
    if kinds != ["torch.float32"]:
        raise WrongUse(f"the model's parameters are {kinds or 'none'}; they must be float32")
