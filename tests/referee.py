"""Torchvision as the referee of our transforms, and pictures for both to work on.

Its wheel is built for another torch than the one installed, so the operators that it expects from its own
extension are declared first; nothing here calls them.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

_library = torch.library.Library("torchvision", "DEF")
_library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
_library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

from torchvision import transforms as v1  # noqa: E402
from torchvision.transforms import v2  # noqa: E402
from torchvision.transforms.v2 import functional as F  # noqa: E402, N812

__all__ = ["F", "as_image", "as_tensor", "picture", "v1", "v2"]


def picture(height: int, width: int, *, channels: int = 3, seed: int = 0) -> NDArray[np.uint8]:
    """Slopes, a bright disc and noise: flat parts, edges, and every value from 0 to 255."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    slope = 200.0 * (x[..., None] + y[..., None] * np.arange(1, channels + 1)) / (width + 3 * height)
    disc = 90.0 * ((x - width / 2) ** 2 + (y - height / 3) ** 2 < (height / 4) ** 2)[..., None]
    noise = rng.normal(0, 25, (height, width, channels))
    return (slope + disc + noise).clip(0, 255).astype(np.uint8)


def as_tensor(image: NDArray[np.uint8]) -> torch.Tensor:
    """The image as torchvision wants it: a contiguous tensor of channels, height, width."""
    return torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1)))


def as_image(tensor: torch.Tensor) -> NDArray[np.uint8]:
    """Back to height, width, channels."""
    return tensor.permute(1, 2, 0).contiguous().numpy()
