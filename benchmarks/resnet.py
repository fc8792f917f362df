"""ResNet-50 (He et al., CVPR 2016, stride in the 3 x 3). Random weights: they cost what trained ones do."""

from __future__ import annotations

import torch
from torch import nn

_BLOCKS = (3, 4, 6, 3)
_EXPANSION = 4


class Bottleneck(nn.Module):
    """1 x 1, 3 x 3 and 1 x 1 with a connection past them."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        after = width * _EXPANSION
        self.conv1, self.bn1 = nn.Conv2d(before, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, after, 1, bias=False), nn.BatchNorm2d(after)
        self.relu = nn.ReLU(inplace=True)
        self.past = (
            nn.Identity()
            if (before, stride) == (after, 1)
            else nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        done: torch.Tensor = self.relu(self.bn3(self.conv3(y)) + self.past(x))
        return done


class ResNet50(nn.Sequential):
    """Its parts by torchvision's names."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)
        self.relu, self.maxpool = nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
        before = 64
        for number, count in enumerate(_BLOCKS):
            width = 64 << number
            strides = [1 if number == 0 else 2] + [1] * (count - 1)
            blocks = []
            for stride in strides:
                blocks.append(Bottleneck(before, width, stride))
                before = width * _EXPANSION
            self.add_module(f"layer{number + 1}", nn.Sequential(*blocks))
        self.avgpool, self.flatten = nn.AdaptiveAvgPool2d(1), nn.Flatten()
        self.fc = nn.Linear(before, classes)
