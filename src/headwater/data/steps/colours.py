"""Colour functions on one image tensor (channels, height, width), with torchvision's arithmetic.

The order of float operations is torchvision's on purpose: it is what makes the pixels equal. Images are
uint8 (0..255) or float (0..1), of one or three channels that lie one after the other in memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from headwater.data.steps.tensors import functional, torch_module

if TYPE_CHECKING:
    import torch

_SECTORS = ((0, 2, 1, 1, 3, 0), (3, 0, 0, 2, 1, 1), (1, 1, 3, 0, 0, 2))
"""Which of (value, p, q, t) is red, green and blue in each sixth of the colour circle."""


def brightness(image: torch.Tensor, factor: float) -> torch.Tensor:
    """Every pixel times `factor`."""
    return _finish(image.mul(factor), image)


def contrast(image: torch.Tensor, factor: float) -> torch.Tensor:
    """Away from (factor above 1) or towards (below 1) the image's mean grey."""
    grey = _whole_grey(image) if image.shape[0] == 3 else image.float()
    return _blend(image, grey.mean().view(1, 1, 1), factor)


def saturation(image: torch.Tensor, factor: float) -> torch.Tensor:
    """Away from or towards each pixel's grey."""
    return _blend(image, _whole_grey(image), factor) if image.shape[0] == 3 else image


def hue(image: torch.Tensor, shift: float) -> torch.Tensor:
    """Turn the colour circle by `shift` of a whole turn."""
    if image.shape[0] == 1:
        return image
    scaled = image if image.is_floating_point() else image.float().mul_(1.0 / 255.0)
    angle, colourfulness, value = _to_hsv(scaled)
    turned = _from_hsv(angle.add_(shift).remainder_(1.0), colourfulness, value)
    return turned if image.is_floating_point() else turned.mul_(255.0 + 1.0 - 1e-3).to(image.dtype)


def grey(image: torch.Tensor, channels: int) -> torch.Tensor:
    """The luminance, in one channel or repeated in three."""
    if image.shape[0] == 1:
        return image.expand(channels, -1, -1)
    return luminance(image).to(image.dtype)[None].expand(channels, -1, -1)


def luminance(image: torch.Tensor) -> torch.Tensor:
    """Red, green and blue weighed as in ITU-R 601, as float."""
    red, green, blue = image.unbind(0)
    return red.mul(0.2989).add_(green, alpha=0.587).add_(blue, alpha=0.114)


def sharpness(image: torch.Tensor, factor: float) -> torch.Tensor:
    """Away from or towards a smoothed image; the outermost pixels stay as they are."""
    channels, height, width = image.shape
    if height <= 2 or width <= 2:
        return image
    torch = torch_module()
    kernel = torch.full((3, 3), 1.0 / 13.0)
    kernel[1, 1] = 5.0 / 13.0
    result = image.to(torch.float32, copy=True, memory_format=torch.contiguous_format)
    smooth = functional().conv2d(result, kernel.expand(channels, 1, 3, 3), groups=channels)
    if not image.is_floating_point():
        smooth.round_()
    inner = result[:, 1:-1, 1:-1]
    inner.add_(smooth.sub_(inner), alpha=1.0 - factor)
    return _finish(result, image)


def posterize(image: torch.Tensor, bits: int) -> torch.Tensor:
    """Keep the highest `bits` of each uint8 value."""
    return image if bits >= 8 else image & (((1 << bits) - 1) << (8 - bits))


def solarize(image: torch.Tensor, threshold: float) -> torch.Tensor:
    """Invert the uint8 values from `threshold` on."""
    return torch_module().where(image >= threshold, ~image, image)  # type: ignore[no-any-return]


def autocontrast(image: torch.Tensor) -> torch.Tensor:
    """Stretch each channel to the full range; a channel of one value stays as it is."""
    values = image.to(torch_module().float32, copy=True)
    low, high = values.amin((1, 2), keepdim=True), values.amax((1, 2), keepdim=True)
    flat = low == high
    spread = high.sub_(low).mul_(1.0 / 255.0).masked_fill_(flat, 1.0)
    return _finish(values.sub_(low.masked_fill_(flat, 0.0)).div_(spread), image)


def equalize(image: torch.Tensor) -> torch.Tensor:
    """Spread each channel's uint8 histogram evenly, by Pillow's rule."""
    torch = torch_module()
    tables = np.stack([_equalising_table(np.bincount(c.flatten(), minlength=256)) for c in image.numpy()])
    index = image.flatten(1).long()
    return torch.from_numpy(tables).gather(1, index).view(image.shape)  # type: ignore[no-any-return]


def _equalising_table(counts: NDArray[np.intp]) -> NDArray[np.uint8]:
    share = (counts.sum() - counts[counts.nonzero()[0][-1]]) // 255
    if share == 0:
        return np.arange(256, dtype=np.uint8)
    below = np.cumsum(counts) - counts
    table: NDArray[np.uint8] = np.minimum((below + share // 2) // share, 255).astype(np.uint8)
    return table


def _finish(result: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Within the range of the original's type, and of that type."""
    return result.clamp_(0, 1 if like.is_floating_point() else 255).to(like.dtype)


def _blend(image: torch.Tensor, other: torch.Tensor, share: float) -> torch.Tensor:
    return _finish(image.mul(share).add_(other, alpha=1.0 - share), image)


def _whole_grey(image: torch.Tensor) -> torch.Tensor:
    """Luminance in whole numbers for a uint8 image, but as float: what torchvision blends with."""
    return luminance(image) if image.is_floating_point() else luminance(image).floor_()


def _to_hsv(image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch = torch_module()
    least, most = torch.aminmax(image, dim=0)
    grey_pixels, spread = most == least, most - least
    one = torch.ones_like(most)
    from_red, from_green, from_blue = (most - image) / torch.where(grey_pixels, one, spread)
    sector = torch.where(most == image[1], from_red + 2.0 - from_blue, from_green + 4.0 - from_red)
    sector = torch.where(most == image[0], from_blue - from_green, sector)
    angle = sector.mul_(1.0 / 6.0).add_(1.0).fmod_(1.0)
    return angle, spread / torch.where(grey_pixels, one, most), most


def _from_hsv(angle: torch.Tensor, colourfulness: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    torch = torch_module()
    sixths = angle * 6
    sector = sixths.floor()
    part, rest = colourfulness * (sixths - sector), 1.0 - colourfulness
    p, q, t = (share.mul(value).clamp_(0.0, 1.0) for share in (rest, 1.0 - part, part + rest))
    index = torch.tensor(_SECTORS)[:, sector.long().remainder_(6)]
    return torch.stack((value, p, q, t)).gather(0, index)  # type: ignore[no-any-return]
