"""Random erasing: a box of the finished image is overwritten.

Zhong et al., "Random Erasing Data Augmentation" (AAAI 2020), with torchvision's drawing of the box.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from headwater.data.randomness import Draws
from headwater.data.steps.arguments import settle, to_fill, to_flag, to_float, to_range
from headwater.data.steps.base import BatchStep, Rows, Sizes
from headwater.data.steps.box import draw_edges, place, to_ratio
from headwater.data.steps.tensors import torch_module
from headwater.errors import WrongUse

if TYPE_CHECKING:
    import torch

_COIN, _NOISE = 1000, 1001  # past all draws of the box


@dataclass(frozen=True)
class RandomErasing(BatchStep):
    """With probability `p` a box of each image becomes `value`: a number, one per channel, or "random".

    A row is (top, left, height, width, key of the noise); height 0 means nothing is erased. "random" is
    normal noise, the same for the same sample and epoch. `inplace` is accepted and makes no difference.
    """

    name: ClassVar[str] = "random_erasing"
    p: float = 0.5
    scale: Sequence[float] = (0.02, 0.33)
    ratio: Sequence[float] = (0.3, 3.3)
    value: float | str | Sequence[float] = 0.0
    inplace: bool = False

    def __post_init__(self) -> None:
        settle(self, p=to_float("p", self.p, low=0.0, high=1.0), inplace=to_flag("inplace", self.inplace))
        settle(self, scale=to_range("scale", self.scale, low=0.0, high=1.0), ratio=to_ratio(self.ratio))
        if isinstance(self.value, str):
            if self.value != "random":
                raise WrongUse(f'value is {self.value!r}; it must be a number, one per channel, or "random"')
        else:
            settle(self, value=to_fill("value", self.value))

    def draw(self, draws: Draws, sizes: Sizes) -> Rows:
        scale, ratio = to_range("scale", self.scale), to_range("ratio", self.ratio)
        heights, widths, found = draw_edges(draws, sizes, scale=scale, ratio=ratio, fits=_smaller)
        rows = np.empty((len(draws), 5))
        rows[:, :4] = place(draws, sizes, np.stack((heights, widths), axis=1))
        rows[:, 4] = draws.bits(_NOISE) >> np.uint64(11)
        rows[~found | (draws.uniform(_COIN) >= self.p)] = 0.0
        return rows

    def apply_batch(self, batch: torch.Tensor, rows: Rows) -> torch.Tensor:
        for position in rows[:, 2].nonzero()[0].tolist():
            top, left, height, width, key = rows[position].astype(np.int64).tolist()
            box = batch[position, :, top : top + height, left : left + width]
            box.copy_(self._paint(box, key))
        return batch

    def _paint(self, box: torch.Tensor, key: int) -> torch.Tensor:
        torch = torch_module()
        if self.value == "random":
            # Drawn on the CPU, so that the noise does not depend on the training device.
            noise = torch.randn(box.shape, generator=torch.Generator().manual_seed(key))
            return noise.to(box.device)  # type: ignore[no-any-return]
        values = self.value if isinstance(self.value, tuple) else (self.value,)
        if len(values) not in (1, box.shape[0]):
            raise WrongUse(
                f"value has {len(values)} numbers, the images {box.shape[0]} channels; give one each"
            )
        colour = torch.tensor(values, device=box.device)
        return colour[:, None, None].expand(box.shape)  # type: ignore[no-any-return]


def _smaller(heights: NDArray[np.float64], widths: NDArray[np.float64], sizes: Sizes) -> NDArray[np.bool_]:
    return (heights < sizes[:, 0]) & (widths < sizes[:, 1])
