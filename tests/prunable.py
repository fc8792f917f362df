"""Small networks of the kinds that channels are removed from."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

CLASSES = 5
SIZE = 16


def _convolution(before: int, after: int, stride: int = 1, kernel: int = 3, groups: int = 1) -> nn.Sequential:
    layer = nn.Conv2d(before, after, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(after), nn.ReLU(inplace=True))


def vgg() -> nn.Module:
    """Ends in a linear layer over several pixels of each channel."""
    return nn.Sequential(
        _convolution(3, 16),
        _convolution(16, 24, 2),
        _convolution(24, 32, 2),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4, CLASSES),
    )


class Basic(nn.Module):
    """Two convolutions and a way past them, with a batch norm of its own where the shape changes."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.one = _convolution(before, after, stride)
        self.two = nn.Sequential(nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after))
        same = (before, stride) == (after, 1)
        self.past = (
            nn.Identity()
            if same
            else nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.two(self.one(x)) + self.past(x))


class Bottleneck(nn.Module):
    """1 x 1, 3 x 3 and 1 x 1, and a way past them."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        after = 4 * width
        self.one, self.two = _convolution(before, width, kernel=1), _convolution(width, width, stride)
        self.three = nn.Sequential(nn.Conv2d(width, after, 1, bias=False), nn.BatchNorm2d(after))
        same = (before, stride) == (after, 1)
        self.past = (
            nn.Identity()
            if same
            else nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.three(self.two(self.one(x))) + self.past(x))


class Inverted(nn.Module):
    """MobileNet's: wide, depthwise, narrow, the narrow ends added."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        wide = 3 * before
        self.widen, self.depthwise = (
            _convolution(before, wide, kernel=1),
            _convolution(wide, wide, stride, groups=wide),
        )
        self.narrow = nn.Sequential(nn.Conv2d(wide, after, 1, bias=False), nn.BatchNorm2d(after))
        self.adds = (before, stride) == (after, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.narrow(self.depthwise(self.widen(x)))
        return x + y if self.adds else y


class Growing(nn.Module):
    """DenseNet's: batch norm first, and what comes out stands beside what went in."""

    def __init__(self, before: int, growth: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.BatchNorm2d(before), nn.Conv2d(before, 2 * growth, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(2 * growth)
        self.conv2 = nn.Conv2d(2 * growth, growth, 3, padding=1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv1(torch.relu(self.norm1(x)))
        return torch.cat((x, self.conv2(torch.relu(self.norm2(y)))), 1)


def _ended(body: nn.Module, width: int) -> nn.Module:
    return nn.Sequential(body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, CLASSES))


def basic() -> nn.Module:
    body = nn.Sequential(_convolution(3, 16), Basic(16, 16, 1), Basic(16, 32, 2), Basic(32, 32, 1))
    return _ended(body, 32)


def bottleneck() -> nn.Module:
    body = nn.Sequential(
        _convolution(3, 16), Bottleneck(16, 8, 1), Bottleneck(32, 8, 1), Bottleneck(32, 16, 2)
    )
    return _ended(body, 64)


def depthwise() -> nn.Module:
    body = nn.Sequential(_convolution(3, 16), Inverted(16, 16, 1), Inverted(16, 24, 2), Inverted(24, 24, 1))
    return _ended(nn.Sequential(body, _convolution(24, 32, kernel=1)), 32)


def dense() -> nn.Module:
    body = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1, bias=False),
        Growing(16, 8),
        Growing(24, 8),
        nn.Sequential(nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 24, 1, bias=False), nn.AvgPool2d(2)),
        Growing(24, 8),
        nn.BatchNorm2d(32),
        nn.ReLU(),
    )
    return _ended(body, 32)


KINDS: dict[str, Callable[[], nn.Module]] = {
    "VGG": vgg,
    "ResNet, basic": basic,
    "ResNet, bottleneck": bottleneck,
    "MobileNet, depthwise": depthwise,
    "DenseNet, concatenation": dense,
}


def make(kind: str, seed: int = 0) -> nn.Module:
    """A network whose batch norms have values that matter, as after some training."""
    torch.manual_seed(seed)
    model = KINDS[kind]()
    with torch.no_grad():
        for layer in model.modules():
            if isinstance(layer, nn.BatchNorm2d):
                layer.weight.copy_(torch.rand_like(layer.weight) + 0.1)
                layer.bias.copy_(torch.rand_like(layer.bias) - 0.5)
    return model


def images(count: int = 8, seed: int = 1) -> torch.Tensor:
    return torch.rand(count, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(seed)) * 2 - 1


def labels(count: int = 8, seed: int = 2) -> torch.Tensor:
    return torch.randint(0, CLASSES, (count,), generator=torch.Generator().manual_seed(seed))
