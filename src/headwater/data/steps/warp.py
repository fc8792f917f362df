"""Shear, shift and turn an image tensor, by torch's `grid_sample` as in torchvision.

A warp is six numbers: for a pixel of the result at (x, y) from the centre, the pixel of the original is
at (a x + b y + c, d x + e y + f).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from headwater.data.steps.tensors import functional, torch_module

if TYPE_CHECKING:
    import torch

Warp = tuple[float, float, float, float, float, float]
Fill = float | tuple[float, ...] | None


def shear_x(amount: float, size: tuple[int, int]) -> Warp:
    """Each row is moved sideways by `amount` times its distance from the top."""
    # By way of the angle, as torchvision does: its rounding decides which pixel is nearest.
    slope = math.tan(math.radians(math.degrees(math.atan(amount))))
    height = size[0] * 0.5
    return 1.0, slope, slope * height, 0.0, 1.0, 0.0


def shear_y(amount: float, size: tuple[int, int]) -> Warp:
    """Each column is moved up or down by `amount` times its distance from the left."""
    angle = math.radians(math.degrees(math.atan(amount)))
    across, slope = math.cos(-angle) / math.cos(angle), math.sin(-angle) / math.cos(angle)
    centre_x, centre_y = -size[1] * 0.5, -size[0] * 0.5
    return 1.0, 0.0, 0.0, -slope, across, centre_y + slope * centre_x - across * centre_y


def shift(x: float, y: float) -> Warp:
    """Moved right by `x` and down by `y` pixels."""
    return 1.0, 0.0, -x, 0.0, 1.0, -y


def turn(degrees: float) -> Warp:
    """Turned counter-clockwise about the centre."""
    angle = math.radians(-(degrees % 360))
    return math.cos(angle), math.sin(angle), 0.0, -math.sin(angle), math.cos(angle), 0.0


def rotate(image: torch.Tensor, degrees: float, *, mode: str, fill: Fill) -> torch.Tensor:
    """`turn`, by moving pixels without interpolation where the angle allows it."""
    quarters, rest = divmod(degrees % 360, 90)
    square = image.shape[1] == image.shape[2]
    if rest == 0 and (square or quarters % 2 == 0):
        return torch_module().rot90(image, k=int(quarters), dims=(1, 2))  # type: ignore[no-any-return]
    return warp(image, turn(degrees), mode=mode, fill=fill)


def warp(image: torch.Tensor, by: Warp, *, mode: str, fill: Fill) -> torch.Tensor:
    """The warped image of the same size; what lies outside the original is `fill`, or 0."""
    torch = torch_module()
    values = image.float()[None]
    if fill is not None:
        # One more channel, warped alike, tells which pixels come from inside.
        values = torch.cat((values, torch.ones_like(values[:, :1])), dim=1)
    grid = _grid(by, image.shape[1], image.shape[2])
    values = functional().grid_sample(values, grid, mode=mode, padding_mode="zeros", align_corners=False)
    if fill is not None:
        values = _fill(values[:, :-1], values[:, -1:], mode=mode, fill=fill)
    return values[0].round_().to(image.dtype)


def _grid(by: Warp, height: int, width: int) -> torch.Tensor:
    """Where each pixel of the result comes from, in `grid_sample`'s coordinates (-1 to 1)."""
    torch = torch_module()
    points = torch.ones(height, width, 3)
    points[..., 0] = torch.linspace((1.0 - width) * 0.5, (width - 1.0) * 0.5, steps=width)
    points[..., 1] = torch.linspace((1.0 - height) * 0.5, (height - 1.0) * 0.5, steps=height)[:, None]
    matrix = torch.tensor(by).view(1, 2, 3).transpose(1, 2) / torch.tensor((0.5 * width, 0.5 * height))
    return points.view(1, height * width, 3).bmm(matrix).view(1, height, width, 2)  # type: ignore[no-any-return]


def _fill(
    values: torch.Tensor, inside: torch.Tensor, *, mode: str, fill: float | tuple[float, ...]
) -> torch.Tensor:
    torch = torch_module()
    colour = torch.tensor(fill if isinstance(fill, tuple) else (fill,), dtype=values.dtype).view(1, -1, 1, 1)
    if mode == "nearest":
        return torch.where(inside < 0.5, colour, values)  # type: ignore[no-any-return]
    return (values - colour).mul_(inside).add_(colour)  # type: ignore[no-any-return]
