"""Means and variances of batch norms, taken anew: those of the dense model are wrong after surgery."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeGuard

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from headwater.errors import HeadwaterError, ModelError, WrongUse
from headwater.models.layers import evaluating
from headwater.train.memory.shortage import is_out_of_memory


def recalibrate(model: nn.Module, batches: Iterable[Any]) -> int:
    """Run batches through a model so that its batch norms have their statistics; how many there were.

    A batch is a tensor of inputs, a pair that begins with one, or has it as `inputs`. All batches count the
    same. Only statistics change; without a batch, nothing does. Batch norms that are held in evaluation
    while the model trains keep theirs, and so do those that no batch comes to.

    Raises `WrongUse` for batches that the model does not take or that hold what is no number, `ModelError`
    if statistics are no numbers all the same; those of the model are then in between.
    """
    if not isinstance(batches, Iterable):
        raise WrongUse(f"batches is {batches!r}; give some batches of training inputs")
    norms = {name: layer for name, layer in model.named_modules() if _is_learning(layer, model)}
    momenta, count = [layer.momentum for layer in norms.values()], 0
    before = [[tensor.clone() for tensor in layer.buffers()] for layer in norms.values()]
    try:
        with evaluating(model), torch.no_grad():
            for batch in batches:
                if not count:
                    _begin(norms.values())
                _run(model, _inputs(batch))
                count += 1
    finally:
        for layer, momentum in zip(norms.values(), momenta, strict=True):
            layer.momentum = momentum
    if count:
        _finish(norms, before)
    return count


def take_statistics(model: nn.Module, other: nn.Module) -> None:
    """Give batch norms of a model the statistics of those of another one of the same shape."""
    with torch.no_grad():
        for layer, like in zip(model.modules(), other.modules(), strict=True):
            if isinstance(layer, _BatchNorm):
                for own, value in zip(layer.buffers(), like.buffers(), strict=True):
                    own.copy_(value)


def _is_learning(layer: nn.Module, model: nn.Module) -> TypeGuard[_BatchNorm]:
    """Of a model that is in evaluation as a whole, every batch norm: which are held there is not known."""
    frozen = model.training and not layer.training
    return isinstance(layer, _BatchNorm) and layer.track_running_stats and not frozen


def _begin(norms: Iterable[_BatchNorm]) -> None:
    for layer in norms:
        layer.reset_running_stats()
        layer.momentum = None  # torch's word for the plain mean over batches
        layer.train()


def _run(model: nn.Module, inputs: torch.Tensor) -> None:
    what = f"a batch of {tuple(inputs.shape)}, {inputs.dtype},"
    if not inputs.isfinite().all():
        raise WrongUse(f"{what} holds what is no number; leave it out")
    try:
        model(inputs.to(next(model.parameters()).device, non_blocking=True))
    except Exception as error:  # whatever a model does with other inputs
        if isinstance(error, HeadwaterError) or is_out_of_memory(error):
            raise
        reason = str(error).partition("\n")[0]
        raise WrongUse(f"{what} is not what the model takes: {reason}; give inputs as in training") from error


def _finish(norms: Mapping[str, _BatchNorm], before: Sequence[Sequence[torch.Tensor]]) -> None:
    for (name, layer), values in zip(norms.items(), before, strict=True):
        if not layer.num_batches_tracked:  # such as one of a head that runs in training only
            for own, value in zip(layer.buffers(), values, strict=True):
                own.copy_(value)
        elif not all(tensor.isfinite().all() for tensor in layer.buffers()):
            raise ModelError(
                f"statistics of {name} are no numbers: activations are too large; lower the learning rate"
            )


def _inputs(batch: Any) -> torch.Tensor:
    found = getattr(batch, "inputs", batch)
    if isinstance(found, tuple | list) and found:
        found = found[0]
    if not isinstance(found, torch.Tensor):
        raise WrongUse(
            f"a batch is {type(batch).__name__}; give tensors of inputs, or pairs that begin with one"
        )
    return found
