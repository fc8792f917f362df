"""Networks of torchvision as they are, by what they are made of.

Its wheel is built for another torch than the one installed, so the operators that it expects from its own
extension are declared first; no network calls them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import nn

_library = torch.library.Library("torchvision", "DEF")
_library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
_library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

from torchvision import models  # noqa: E402

CLASSES = 10


def _vgg() -> nn.Module:
    """Without the two linear layers of 4,096, which hold nine tenths of its weights and no batch norm."""
    network = models.vgg16_bn()
    network.avgpool, network.classifier = nn.AdaptiveAvgPool2d(1), nn.Linear(512, CLASSES)
    return network


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "VGG-16": _vgg,
    "ResNet-18, basic": partial(models.resnet18, num_classes=CLASSES),
    "ResNet-50, bottleneck": partial(models.resnet50, num_classes=CLASSES),
    "MobileNet-V2, depthwise": partial(models.mobilenet_v2, num_classes=CLASSES),
    "DenseNet-121, concatenation": partial(models.densenet121, num_classes=CLASSES),
}
