"""A model and its optimiser made slim in place: the same objects, with fewer entries."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from headwater.errors import ModelError
from headwater.train.tickets.cuts import Attributes, Cut, Cuts


def operate(model: nn.Module, cuts: Cuts, optimizer: torch.optim.Optimizer | None = None) -> None:
    """Cut a model's tensors, and what an optimiser keeps of them; gradients are dropped.

    Parameters stay the objects that they are, so optimisers and schedulers go on. Raises `ModelError`
    before anything changes for a state that cannot be cut.
    """
    moments = [] if optimizer is None else cut_state(model, cuts.tensors, optimizer)
    held = tensors_of(model)
    slim = {name: cut.apply(held[name]) for name, cut in cuts.tensors.items()}
    reshape(model, slim, cuts.attributes)
    for state, key, value in moments:
        state[key] = value


def reshape(model: nn.Module, tensors: Mapping[str, torch.Tensor], attributes: Attributes) -> None:
    """Give a model's tensors these values, of other shapes, and its modules these numbers."""
    held = tensors_of(model)
    for name, value in tensors.items():
        _replace(held[name], value)
    for name, values in attributes.items():
        for key, number in values.items():
            setattr(model.get_submodule(name), key, number)


def tensors_of(model: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers by name."""
    return dict((*model.named_parameters(), *model.named_buffers()))


def _replace(tensor: torch.Tensor, value: torch.Tensor) -> None:
    tensor.grad = None
    # The graph of the last step, alive as long as its loss is, expects gradients of the old shape. Torch
    # forgets it for this tensor when the type changes.
    other = torch.float32 if tensor.dtype == torch.float64 else torch.float64
    tensor.data = torch.empty(0, dtype=other, device=tensor.device)
    tensor.data = value


def cut_state(
    model: nn.Module, cuts: Mapping[str, Cut], optimizer: torch.optim.Optimizer
) -> list[tuple[dict[str, object], str, torch.Tensor]]:
    """What is to be put where in an optimiser's state; nothing is changed.

    Raises `ModelError` for a state that cannot be cut.
    """
    found: list[tuple[dict[str, object], str, torch.Tensor]] = []
    for name, parameter in model.named_parameters():
        if name not in cuts or parameter not in optimizer.state:
            continue
        state: dict[str, object] = optimizer.state[parameter]
        for key, value in state.items():
            if isinstance(value, torch.Tensor) and value.ndim:
                found.append((state, key, _cut_moment(cuts[name], value, f"{key} of {name}", optimizer)))
    return found


def _cut_moment(cut: Cut, value: torch.Tensor, what: str, optimizer: torch.optim.Optimizer) -> torch.Tensor:
    if not cut.fits(value):
        raise ModelError(
            f"{type(optimizer).__name__} keeps {what} in the shape {tuple(value.shape)}, the parameter has "
            f"{cut.shape}: it cannot be cut alike; leave out the optimiser, and make a new one"
        )
    return cut.apply(value)
