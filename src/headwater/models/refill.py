"""A torch model whose weights change and whose layers do not: exported once, then filled with new weights.

Torch takes seconds to export a model. Batch norms are folded into convolutions before, so that every tensor
of the graph has the name that its parameter has, and new weights are a matter of copying.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.fx.experimental.optimization import fuse

from headwater.data.pipeline import Pipeline
from headwater.errors import ModelError, WrongUse
from headwater.models.export import TOLERANCE, compare, export
from headwater.models.layers import evaluating, probe
from headwater.models.model import Model
from headwater.models.split import Split, split
from headwater.models.trial import ANY_SIZE

log = logging.getLogger("headwater")

_IMAGES = 3

State = Mapping[str, torch.Tensor]


class Refill:
    """Makes a `Model` of each state of one torch classifier. For one thread at a time."""

    def __init__(self, model: nn.Module, *, classes: Sequence[str], steps: Pipeline) -> None:
        """With these class names, after these steps, which leave images of one size.

        The model is copied and not used again. Raises what `split` and `export` do.
        """
        self._own = copy.deepcopy(model).float().cpu().eval()
        self._classes, self._steps = tuple(classes), steps
        self._parts = split(self._own, image_size=_size_of(steps))
        self._model: Model | None = None
        self._alike = False
        self.exports = 0
        """How often torch had to export it."""

    @property
    def head(self) -> frozenset[str]:
        """The names of those parameters that are the head's."""
        own = {id(parameter) for parameter in self._parts.head.parameters()}
        return frozenset(name for name, value in self._own.named_parameters() if id(value) in own)

    def takes(self, state: State) -> bool:
        """Whether these are weights of its model, by name and shape."""
        own = self._own.state_dict()
        return own.keys() == state.keys() and all(own[name].shape == state[name].shape for name in own)

    def fill(self, state: State) -> Model:
        """The model with these weights, as near to torch's as an export is."""
        self._own.load_state_dict(dict(state))
        parts = replace(self._parts, frozen=_fold(self._parts.frozen))
        if self._model is not None and self._alike:
            filled = self._model.with_tensors(self._tensors(parts))
            if self._is_close(filled, parts):
                return filled
        self._model = export(parts, classes=self._classes, steps=self._steps).model
        self.exports += 1
        self._alike = self._has_own_names(parts)
        return self._model

    def _tensors(self, parts: Split) -> dict[str, NDArray[Any]]:
        """Those of the graph, each with the value of the parameter of its name, if there is one."""
        assert self._model is not None
        return {name: _find(name, parts, array) for name, array in self._model.tensors.items()}

    def _has_own_names(self, parts: Split) -> bool:
        assert self._model is not None
        new = self._tensors(parts)
        same = all(np.array_equal(array, new[name]) for name, array in self._model.tensors.items())
        if not same:
            log.info("the exported model has other tensors than torch's; it is exported again for each round")
        return same

    def _is_close(self, model: Model, parts: Split) -> bool:
        """Whether it gives torch's logits: a tensor may depend on weights in a way of its own."""
        images = probe(_IMAGES, (3, parts.image_size, parts.image_size))
        with evaluating(parts.frozen, parts.head), torch.no_grad():
            logits = parts.head(parts.frozen(images))
        try:
            compare(model, images, logits, TOLERANCE)
        except ModelError as error:
            log.info("exported again: %s", error)
            return False
        return True


def _fold(frozen: nn.Module) -> nn.Module:
    """A copy with batch norms in the convolutions before them; as it is, where it cannot be traced."""
    try:
        return fuse(frozen).eval()
    except Exception as error:  # whatever a model does while it is traced
        log.debug("batch norms are left to the exporter: %s", error)
        return frozen


def _find(name: str, parts: Split, old: NDArray[Any]) -> NDArray[Any]:
    part, _, own = name.partition("/")
    module = parts.frozen if part == "trunk" else parts.head
    found = module.state_dict().get(own)
    if found is None or tuple(found.shape) != old.shape:
        return np.zeros_like(old) if (part, own) == ("head", "bias") else old
    value: NDArray[Any] = found.detach().numpy().astype(old.dtype, copy=True)
    return value


def _size_of(steps: Pipeline) -> int:
    sizes = steps.out_sizes(ANY_SIZE)
    if not (sizes == sizes[0, 0]).all():
        raise WrongUse(f"after {steps} images are not square, or of several sizes; end with a crop to one")
    return int(sizes[0, 0])
