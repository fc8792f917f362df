"""A search in few bits, simulated: what layers multiply is rounded, as if the hardware had no more bits.

You et al. (ICLR 2020) search in 8 bits and train the ticket in full precision. Here weights and inputs of
convolutions and linear layers are rounded to whole multiples of a scale, weights channel by channel, and
the gradients of both by chance up or down, so that they are right on average. The numbers are still floats:
this shows whether a search in 8 bits would find as good a ticket, and takes longer than one without.
Weights that the optimiser keeps, momenta and batch norms are not rounded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from headwater.errors import WrongUse

_LAYERS: frozenset[Callable[..., Any]] = frozenset((F.conv1d, F.conv2d, F.conv3d, F.linear))


class Rounding(TorchFunctionMode):
    """Within, layers compute with so many bits, sign included."""

    def __init__(self, bits: int) -> None:
        super().__init__()
        if not isinstance(bits, int) or not 2 <= bits <= 8:
            raise WrongUse(f"bits is {bits!r}; 2 to 8 can be simulated")
        self._levels = 2 ** (bits - 1) - 1

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        named = dict(kwargs or {})
        if func not in _LAYERS:
            return func(*args, **named)
        plain = [*args[:2], *(named.pop(name) for name in ("input", "weight")[len(args) :])]
        rounded = (
            _rounded(values, self._levels, rows) for values, rows in zip(plain, (False, True), strict=True)
        )
        return func(*rounded, *args[2:], **named)


class _Rounded(torch.autograd.Function):
    """To the nearest level on the way forward; the gradient by chance to one of its two neighbours."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, levels: int, rows: bool) -> torch.Tensor:
        ctx.levels, ctx.rows = levels, rows
        scale = _scale(values, levels, rows=rows)
        return torch.round(values / scale) * scale

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (gradient,) = gradients
        scale = _scale(gradient, ctx.levels, rows=ctx.rows)
        return torch.floor(gradient / scale + torch.rand_like(gradient)) * scale, None, None


def _rounded(values: torch.Tensor, levels: int, rows: bool) -> torch.Tensor:
    found: torch.Tensor = _Rounded.apply(values, levels, rows)  # type: ignore[no-untyped-call]
    return found


def _scale(values: torch.Tensor, levels: int, *, rows: bool) -> torch.Tensor:
    """So that the largest value is the last level: of all, or of each row along the first dimension."""
    size = values.abs()
    largest = size.amax(tuple(range(1, values.ndim)), keepdim=True) if rows else size.amax()
    return largest.clamp(min=torch.finfo(values.dtype).tiny * levels) / levels
