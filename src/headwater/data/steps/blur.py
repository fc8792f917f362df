"""Gaussian blur, by torch's float convolution as in torchvision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING, ClassVar, cast

from headwater.data.randomness import Draws
from headwater.data.steps.arguments import settle, to_range, to_size
from headwater.data.steps.base import Image, Row, Rows, Sizes, Step
from headwater.data.steps.tensors import functional, to_image, to_planes, torch_module
from headwater.errors import SampleError, WrongUse

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class GaussianBlur(Step):
    """Blur with a kernel of (width, height) pixels, both odd, and a standard deviation drawn from `sigma`."""

    name: ClassVar[str] = "gaussian_blur"
    kernel_size: int | Sequence[int]
    sigma: float | Sequence[float] = (0.1, 2.0)

    def __post_init__(self) -> None:
        size = to_size("kernel_size", self.kernel_size)
        if size[0] % 2 == 0 or size[1] % 2 == 0:
            raise WrongUse(f"kernel_size is {self.kernel_size!r}; both edges must be odd")
        sigma = self.sigma if isinstance(self.sigma, Sequence) else (self.sigma, self.sigma)
        settle(self, kernel_size=size, sigma=to_range("sigma", sigma, low=1e-6))

    def draw(self, draws: Draws, sizes: Sizes) -> Rows:
        return draws.uniform(0, *cast(tuple[float, float], self.sigma))[:, None]

    def apply(self, image: Image, row: Row) -> Image:
        width, height = cast(tuple[int, int], self.kernel_size)
        if image.shape[0] <= height // 2 or image.shape[1] <= width // 2:
            size = f"{image.shape[0]} x {image.shape[1]} pixels"
            raise SampleError(f"image of {size} is too small for a blur of {height} x {width}; resize first")
        return to_image(blur(to_planes(image), width, height, sigma=float(row[0])))


def blur(image: torch.Tensor, width: int, height: int, *, sigma: float) -> torch.Tensor:
    """Convolve each channel with a Gaussian; the border is mirrored."""
    values = image if image.is_floating_point() else image.float()
    kernel = _gaussian(height, sigma)[:, None] * _gaussian(width, sigma)
    border = (width // 2, width // 2, height // 2, height // 2)
    padded = functional().pad(values[None], border, mode="reflect")
    channels = image.shape[0]
    done = functional().conv2d(
        padded, kernel.to(values.dtype).expand(channels, 1, height, width), groups=channels
    )
    return done[0] if image.is_floating_point() else done[0].round_().to(image.dtype)  # type: ignore[no-any-return]


def _gaussian(length: int, sigma: float) -> torch.Tensor:
    """A Gaussian sampled at `length` points; the softmax makes its sum 1."""
    torch = torch_module()
    reach = (length - 1) / (2.0 * sqrt(2.0))
    points = torch.linspace(-reach, reach, steps=length)
    return torch.softmax(points.div(sigma).pow(2).neg(), dim=0)  # type: ignore[no-any-return]
