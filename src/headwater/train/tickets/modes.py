"""Evaluation and training, with nothing left to chance: what a model computes in either can be compared.

Some layers run in one of them only, such as auxiliary heads. In training, batch norms keep their statistics
here and dropout is off; other chance begins alike each time.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode

from headwater.errors import ModelError

Modes = tuple[bool, ...]
"""Those in which a model is looked at; true is training."""

_BY_CHANCE = (
    *(F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout),
    *(F.rrelu, F.batch_norm, F.multi_head_attention_forward),
)
_SIGNATURES = {function: inspect.signature(function) for function in _BY_CHANCE}


@contextmanager
def calm(model: nn.Module, *, training: bool | None) -> Iterator[None]:
    """In training or evaluation, None: each part as it is, and nothing is by chance.

    Modes and the generators of random numbers are as they were afterwards.
    """
    own = {part: part.training for part in model.modules()}
    if training is not None:
        model.train(training)
    for part in own:
        if isinstance(part, _BatchNorm):
            part.eval()
    try:
        with _seeded(model), _Still():
            yield
    finally:
        for part, mode in own.items():
            part.training = mode


def modes_of(model: nn.Module, example: torch.Tensor) -> Modes:
    """Evaluation, and training too if the model makes other calls then. Raises `ModelError` if it fails."""
    evaluated, trained = (_calls(model, example, training=training) for training in (False, True))
    return (False,) if evaluated == trained else (False, True)


@contextmanager
def tracing(model: nn.Module, example: torch.Tensor, *, training: bool = False) -> Iterator[None]:
    """What a model raises within is a `ModelError`."""
    try:
        yield
    except Exception as error:  # whatever a model does while it is traced
        reason, when = str(error).partition("\n")[0], " in training mode" if training else ""
        raise ModelError(
            f"{type(model).__name__} cannot be traced on an input of {tuple(example.shape)}{when}: {reason}; "
            "give an `example` that it takes"
        ) from error


def tensors_in(result: object) -> Iterator[torch.Tensor]:
    """All that a model gives, which may be in tuples, lists and dicts."""
    if isinstance(result, torch.Tensor):
        yield result
    elif isinstance(result, tuple | list | Mapping):
        for part in result.values() if isinstance(result, Mapping) else result:
            yield from tensors_in(part)


class _Still(TorchFunctionMode):
    """Within, functions that draw or take statistics in training do what they do in evaluation."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        signature = _SIGNATURES.get(func)
        if signature is None:
            return func(*args, **(kwargs or {}))
        given = signature.bind(*args, **(kwargs or {}))
        # A batch norm that keeps no statistics has those of the batch, in evaluation too.
        if given.arguments.get("running_mean", given) is not None:
            given.arguments["training"] = False
        return func(*given.args, **given.kwargs)


class _Calls(TorchFunctionMode):
    """Notes what is called with what; tensors are numbers, in the order in which they come up."""

    def __init__(self, known: Iterator[torch.Tensor]) -> None:
        super().__init__()
        self.noted: list[object] = []
        self._held: dict[int, tuple[int, torch.Tensor]] = {}  # held, so that no other one gets its id
        for tensor in known:
            self._plain(tensor)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self.noted.append((func, self._plain((args, kwargs or {})), self._plain(result)))
        return result

    def _plain(self, value: object) -> object:
        if isinstance(value, torch.Tensor):
            return self._held.setdefault(id(value), (len(self._held), value))[0]
        if isinstance(value, tuple | list):
            return [self._plain(part) for part in value]
        if isinstance(value, dict):
            return [(key, self._plain(part)) for key, part in value.items()]
        return repr(value)


def _calls(model: nn.Module, example: torch.Tensor, *, training: bool) -> list[object]:
    inputs = example.cpu().double()
    calls = _Calls(iter((inputs, *model.parameters(), *model.buffers())))
    with tracing(model, example, training=training), torch.no_grad(), calls, calm(model, training=training):
        model(inputs)
    return calls.noted


@contextmanager
def _seeded(model: nn.Module) -> Iterator[None]:
    """Chance begins alike within, on the CPU; the user's generators are left alone."""
    devices = {tensor.device for tensor in model.parameters()}
    own, numpys = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(device.index for device in devices if device.type == "cuda"):
            torch.default_generator.manual_seed(0)
            random.seed(0)
            np.random.seed(0)
            yield
    finally:
        random.setstate(own)
        np.random.set_state(numpys)
