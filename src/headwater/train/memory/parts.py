"""Operations that can be computed with less memory at once, to the same bits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
from torch import Tensor
from torch._ops import OpOverload

from headwater.train.memory.shelf import Shelf, without_content

Gradients = tuple[Tensor | None, ...]
Call = Callable[[OpOverload, tuple[Any, ...], dict[str, Any]], Any]
"""How an operation is run."""


class Part(Protocol):
    """One operation."""

    def can_split(self, args: tuple[Any, ...]) -> bool:
        """Whether `run` can do it with these arguments."""

    def run(self, call: Call, func: OpOverload, args: tuple[Any, ...]) -> Gradients:
        """Its results. Raises `NoDisk` where there is none for what is out of memory meanwhile."""


class Parts:
    """How to need less at once.

    `is_ours` says of a tensor that only autograd and the budget hold it.
    """

    def __init__(self, shelf: Shelf, is_ours: Callable[[Tensor], bool]) -> None:
        self._parts: dict[OpOverload, Part] = {
            torch.ops.aten.convolution_backward.default: OneGradientAtATime(shelf, is_ours),
            torch.ops.aten.native_batch_norm_backward.default: FewChannelsAtATime(),
        }

    def can_split(self, func: OpOverload, args: tuple[Any, ...]) -> bool:
        """Whether `run` can do this one."""
        part = self._parts.get(func)
        return part is not None and args[0].is_cpu and part.can_split(args)

    def run(self, call: Call, func: OpOverload, args: tuple[Any, ...]) -> Gradients:
        """Its results. Raises `NoDisk` where there is none for what is out of memory meanwhile."""
        return self._parts[func].run(call, func, args)


class OneGradientAtATime:
    """A convolution's backward step: the gradient of the input, of which only the shape counts for it; then
    those of the weights. Each is computed by the same kernel as in one call."""

    MASK = 10
    """Where it is told which of its three gradients are wanted."""

    def __init__(self, shelf: Shelf, is_ours: Callable[[Tensor], bool]) -> None:
        self._shelf, self._is_ours = shelf, is_ours

    def can_split(self, args: tuple[Any, ...]) -> bool:
        """If it wants more than one, and does not read the memory of its input by another name too."""
        if len(args) <= self.MASK or _shares(args[1], args[0]) or _shares(args[1], args[2]):
            return False
        node = torch._C._current_autograd_node()
        wanted = args[self.MASK][0] and any(args[self.MASK][1:])
        built_in = node is not None and node.name() == "ConvolutionBackward0"
        return bool(wanted) and built_in and self._is_ours(args[1])

    def run(self, call: Call, func: OpOverload, args: tuple[Any, ...]) -> Gradients:
        gradient, values, *rest = args[: self.MASK]
        shape_alone = without_content(values)
        with self._shelf.without(values):
            of_input = call(func, (gradient, shape_alone, *rest, [True, False, False]), {})[0]
        with self._shelf.without(of_input):
            _, *of_weights = call(func, (gradient, values, *rest, [False, *args[self.MASK][1:]]), {})
        return of_input, *of_weights


class FewChannelsAtATime:
    """A batch norm's backward step, in which no channel has to do with another.

    Its kernel takes large tensors beside its results. Only for images, of which it takes one channel after
    the other.
    """

    PIECES = 8
    LEAST = 2
    """Channels of a piece; of a single one, two layouts look the same."""

    def can_split(self, args: tuple[Any, ...]) -> bool:
        if len(args) != 10 or not args[9][0]:
            return False
        gradient, values = args[:2]
        known = gradient.dtype == values.dtype and values.dtype in (torch.float32, torch.float64)
        images = values.dim() > 2 and values.numel() > values.shape[0] * values.shape[1]
        plain = values.is_contiguous() and gradient.is_contiguous()
        return bool(known and images and plain) and values.shape[1] >= 2 * self.LEAST

    def run(self, call: Call, func: OpOverload, args: tuple[Any, ...]) -> Gradients:
        gradient, values, of_channels, (*how, mask) = args[0], args[1], args[2:7], args[7:]
        of_input, of_weights = torch.empty_like(values), []
        for piece in self.pieces(values.shape[1]):
            rows = (None if one is None else one[piece] for one in of_channels)
            large = gradient[:, piece].contiguous(), values[:, piece].contiguous()
            of_input[:, piece], *found = call(func, (*large, *rows, *how, mask), {})
            of_weights.append(found)
        columns = zip(zip(*of_weights, strict=True), mask[1:], strict=True)
        return of_input, *(torch.cat(pieces) if wanted else None for pieces, wanted in columns)

    def pieces(self, channels: int) -> Iterator[slice]:
        """As even as can be, of `LEAST` channels at least."""
        count = min(self.PIECES, channels // self.LEAST)
        for place in range(count):
            yield slice(place * channels // count, (place + 1) * channels // count)


def _shares(one: Tensor, other: Tensor) -> bool:
    return bool(one.untyped_storage()._cdata == other.untyped_storage()._cdata)
