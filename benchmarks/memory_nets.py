"""Networks of four kinds for the benchmarks of memory, as rows of blocks, and a step of training each."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

CLASSES = 10


class Bottleneck(nn.Module):
    """Three convolutions and a way around them, as in ResNet-50."""

    def __init__(self, before: int, width: int, stride: int = 1) -> None:
        super().__init__()
        after = 4 * width
        self.inner = nn.Sequential(
            *_convolution(before, width, 1),
            nn.ReLU(inplace=True),
            *_convolution(width, width, 3, stride),
            nn.ReLU(inplace=True),
            *_convolution(width, after, 1),
        )
        same = stride == 1 and before == after
        self.around = nn.Identity() if same else nn.Sequential(*_convolution(before, after, 1, stride))
        self.relu = nn.ReLU(inplace=True)

    def forward(self, images: Tensor) -> Tensor:
        return self.relu(self.inner(images) + self.around(images))


class Recurrent(nn.Module):
    """A layer of an LSTM, without its state."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.layer = nn.LSTM(before, after, batch_first=True)

    def forward(self, rows: Tensor) -> Tensor:
        found: Tensor = self.layer(rows)[0]
        return found


class Mean(nn.Module):
    def forward(self, rows: Tensor) -> Tensor:
        return rows.mean(1)


def _convolution(before: int, after: int, size: int, stride: int = 1) -> list[nn.Module]:
    convolution = nn.Conv2d(before, after, size, stride, size // 2, bias=False)
    return [convolution, nn.BatchNorm2d(after)]


def _head(width: int) -> nn.Module:
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, CLASSES))


def resnet50() -> nn.Sequential:
    """ResNet-50's blocks, an eighth as wide, for images of 32 pixels."""
    blocks: list[nn.Module] = [nn.Sequential(*_convolution(3, 8, 3), nn.ReLU(inplace=True))]
    before = 8
    for stage, count in enumerate((3, 4, 6, 3)):
        for place in range(count):
            width = 8 * 2**stage
            blocks.append(Bottleneck(before, width, 2 if stage and not place else 1))
            before = 4 * width
    return nn.Sequential(*blocks, _head(before))


def vgg() -> nn.Sequential:
    """VGG-16's convolutions with batch norm, a quarter as wide, for images of 32 pixels."""
    blocks: list[nn.Module] = []
    before = 3
    for width, count in ((16, 2), (32, 2), (64, 3), (128, 3), (128, 3)):
        layers: list[nn.Module] = []
        for _ in range(count):
            layers += [*_convolution(before, width, 3), nn.ReLU(inplace=True)]
            before = width
        blocks.append(nn.Sequential(*layers, nn.MaxPool2d(2)))
    return nn.Sequential(*blocks, _head(before))


def transformer() -> nn.Sequential:
    """Eight encoder layers, 64 positions."""
    layers = [
        nn.TransformerEncoderLayer(96, 4, 384, batch_first=True, activation="gelu", norm_first=True)
        for _ in range(8)
    ]
    return nn.Sequential(*layers, Mean(), nn.Linear(96, CLASSES))


def lstm() -> nn.Sequential:
    """Six layers, 64 steps."""
    layers = [Recurrent(48 if not place else 96, 96) for place in range(6)]
    return nn.Sequential(*layers, Mean(), nn.Linear(96, CLASSES))


def small() -> nn.Sequential:
    """Forty layers of 64 numbers, in which calls take longer than computing."""
    layers = [layer for _ in range(40) for layer in (nn.Linear(64, 64), nn.Tanh())]
    return nn.Sequential(*layers, nn.Linear(64, CLASSES))


NETS: dict[str, tuple[Callable[[], nn.Sequential], tuple[int, ...]]] = {
    "ResNet-50-like": (resnet50, (3, 32, 32)),
    "VGG": (vgg, (3, 32, 32)),
    "transformer": (transformer, (64, 96)),
    "LSTM": (lstm, (64, 48)),
}
"""Name > how it is made, shape of a sample."""

SMALL = "small layers"
_ALL = NETS | {SMALL: (small, (64,))}


def make(name: str) -> nn.Sequential:
    torch.manual_seed(0)
    return _ALL[name][0]()


def step(net: nn.Module, name: str, size: int) -> None:
    """Forward and backward over one random batch."""
    inputs = torch.randn(size, *_ALL[name][1])
    net.zero_grad(set_to_none=True)
    cross_entropy(net(inputs), torch.arange(size) % CLASSES).backward()
