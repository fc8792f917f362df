"""Torchvision as the referee of our transforms.

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
from torchvision.transforms.v2 import functional as F  # noqa: E402

__all__ = ["F", "as_image", "as_tensor", "v1", "v2"]


def as_tensor(image: NDArray[np.uint8]) -> torch.Tensor:
    """The image as torchvision wants it: a contiguous tensor of channels, height, width."""
    return torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1)))


def as_image(tensor: torch.Tensor) -> NDArray[np.uint8]:
    """Back to height, width, channels."""
    return tensor.permute(1, 2, 0).contiguous().numpy()
