"""Between a numpy image (height, width, channels) and a torch tensor (channels, height, width).

Torch is imported when the first step needs it; after that the cached call costs a dictionary look-up.
"""

from __future__ import annotations

from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from headwater.data.steps.base import Image
from headwater.errors import MissingExtra

if TYPE_CHECKING:
    import torch


@cache
def torch_module() -> ModuleType:
    """Torch, imported once; raises `MissingExtra` where it is not installed."""
    try:
        import torch
    except ImportError as error:
        raise MissingExtra("this step runs on torch, which is not installed; pip install torch") from error
    return torch


@cache
def functional() -> ModuleType:
    """`torch.nn.functional`, imported once."""
    return torch_module().nn.functional  # type: ignore[no-any-return]


def to_tensor(image: Image) -> torch.Tensor:
    """A view as channels, height, width: nothing is copied unless torch cannot look at it.

    Torch takes no negative strides (a flipped view) and warns about memory that it must not write to.
    """
    if min(image.strides) < 0 or not image.flags.writeable:
        image = image.copy()
    return torch_module().from_numpy(image).permute(2, 0, 1)  # type: ignore[no-any-return]


def to_planes(image: Image) -> torch.Tensor:
    """Channel by channel in memory, copied unless it lies so already; for float arithmetic.

    Torch's float kernels round a vector and a left-over element differently, so equal layout is what makes
    equal pixels, and torchvision's images lie channel by channel.
    """
    return to_tensor(image).contiguous()


def to_batch(image: Image) -> torch.Tensor:
    """A view as a batch of one whose layout torch takes for channels_last, and so keeps for the result.

    Without the stride of the batch axis set, torch writes the result channel by channel: half as fast.
    """
    _, stride, _ = (tensor := to_tensor(image)).stride()
    batch: torch.Tensor = tensor[None]
    return batch.as_strided(batch.shape, (tensor.shape[1] * stride, *tensor.stride()))


def to_image(tensor: torch.Tensor) -> Image:
    """The same memory as height, width, channels."""
    image: np.ndarray = tensor.permute(1, 2, 0).numpy()
    return image
