"""The number type of a batch, and its normalisation: the arithmetic that torchvision does, in its order.

Multiply-add or a reciprocal would be faster and differs in the last bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

from headwater.data.steps.arguments import settle, to_choice, to_fill, to_flag
from headwater.data.steps.base import BatchStep, Rows
from headwater.data.steps.tensors import torch_module
from headwater.errors import WrongUse

if TYPE_CHECKING:
    import torch

    DtypeName = str | torch.dtype
    """What a caller may pass."""
else:
    DtypeName = str  # what is stored and sent

DTYPES = ("uint8", "float16", "bfloat16", "float32", "float64")


@dataclass(frozen=True)
class ToDtype(BatchStep):
    """Convert to another number type; with `scale`, uint8's 0..255 becomes a float's 0..1 and back.

    `divide` chooses how 0..1 is made: torchvision's v2 multiplies by 1/255, its v1 `ToTensor` divides
    by 255, and the two differ in the last bit for about half of the values.
    """

    name: ClassVar[str] = "to_dtype"
    steady: ClassVar[bool] = True
    dtype: DtypeName = "float32"
    scale: bool = False
    divide: bool = False

    def __post_init__(self) -> None:
        settle(self, dtype=to_choice("dtype", str(self.dtype).removeprefix("torch."), DTYPES))
        settle(self, scale=to_flag("scale", self.scale), divide=to_flag("divide", self.divide))

    def apply_batch(self, batch: torch.Tensor, rows: Rows) -> torch.Tensor:
        dtype = getattr(torch_module(), str(self.dtype))
        if batch.dtype == dtype:
            return batch
        if not self.scale or batch.is_floating_point() == dtype.is_floating_point:
            return batch.to(dtype)
        if batch.is_floating_point():
            # Just under 256, so that every value of 0..1 gets an equal share; torchvision's constant.
            return batch.mul(255.0 + 1.0 - 1e-3).to(dtype)
        return batch.to(dtype).div_(255.0) if self.divide else batch.to(dtype).mul_(1.0 / 255.0)


@dataclass(frozen=True)
class Normalize(BatchStep):
    """Subtract `mean`, then divide by `std`, per channel.

    A uint8 batch is first converted as by `ToDtype("float32", scale=True)`; torchvision refuses it.
    `inplace` is accepted for torchvision's sake: a batch is always normalised in place.
    """

    name: ClassVar[str] = "normalize"
    steady: ClassVar[bool] = True
    mean: Sequence[float]
    std: Sequence[float]
    inplace: bool = False

    def __post_init__(self) -> None:
        mean, std = _to_channels("mean", self.mean), _to_channels("std", self.std)
        if 0.0 in std:
            raise WrongUse(f"std is {std}; no value may be 0")
        if len(mean) != len(std):
            raise WrongUse(f"mean has {len(mean)} values and std {len(std)}; give one of each per channel")
        settle(self, mean=mean, std=std, inplace=to_flag("inplace", self.inplace))

    def apply_batch(self, batch: torch.Tensor, rows: Rows) -> torch.Tensor:
        if not batch.is_floating_point():
            batch = ToDtype("float32", scale=True).apply_batch(batch, rows)
        if len(self.mean) not in (1, batch.shape[1]):
            channels = f"{len(self.mean)} values, the images {batch.shape[1]} channels"
            raise WrongUse(f"mean has {channels}; give one value per channel, or one for all")
        mean = _channels(tuple(self.mean), batch.dtype, batch.device)
        return batch.sub_(mean).div_(_channels(tuple(self.std), batch.dtype, batch.device))


def _to_channels(name: str, value: object) -> tuple[float, ...]:
    filled = to_fill(name, value)
    return filled if isinstance(filled, tuple) else (filled,)


@lru_cache(maxsize=64)
def _channels(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """One value per channel, shaped to broadcast; cached, since each copy to a GPU would make it wait."""
    return torch_module().tensor(values, dtype=dtype, device=device).view(-1, 1, 1)  # type: ignore[no-any-return]
