"""Operations with several results, which can be computed one at a time where there is no memory for all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload

from headwater.train.memory.shelf import Shelf, without_content

MASK = 10
"""Where a convolution's backward is told which of its three gradients are wanted."""


class Parts:
    """How to need less at once.

    `is_ours` says of a tensor that only autograd and the budget hold it.
    """

    def __init__(self, shelf: Shelf, is_ours: Callable[[torch.Tensor], bool]) -> None:
        self._shelf, self._is_ours = shelf, is_ours

    def can_split(self, func: OpOverload, args: tuple[Any, ...]) -> bool:
        """Whether `run` can do this one: a convolution's backward step that wants more than one gradient."""
        if func is not torch.ops.aten.convolution_backward.default or len(args) <= MASK:
            return False
        node = torch._C._current_autograd_node()
        wanted = args[MASK][0] and any(args[MASK][1:])
        built_in = node is not None and node.name() == "ConvolutionBackward0"
        return bool(wanted) and built_in and self._is_ours(args[1])

    def run(self, func: OpOverload, args: tuple[Any, ...]) -> tuple[torch.Tensor | None, ...]:
        """The gradient of the input, of which only the shape counts for it; then those of the weights.

        Each is computed by the same kernel as in one call, so the bits are the same.
        """
        gradient, values, *rest = args[:MASK]
        shape_alone = without_content(values)
        with self._shelf.without(values):
            of_input = func(gradient, shape_alone, *rest, [True, False, False])[0]
        with self._shelf.without(of_input):
            _, *of_weights = func(gradient, values, *rest, [False, *args[MASK][1:]])
        return of_input, *of_weights
