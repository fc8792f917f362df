"""Transforms with torchvision v2's names and arguments.

They are values: printable, comparable, sendable to a store. `Compose` makes a pipeline of them. Given
the same parameters they give the pixels of torchvision on uint8 tensors; what is random is keyed by
(seed, epoch, sample, step) instead of drawn from a generator.
"""

from __future__ import annotations

from headwater.data.compose import Compose
from headwater.data.steps.blur import GaussianBlur
from headwater.data.steps.compound import CenterCrop, RandomCrop, RandomResizedCrop
from headwater.data.steps.decode import Decode
from headwater.data.steps.dtype import Normalize, ToDtype
from headwater.data.steps.erasing import RandomErasing
from headwater.data.steps.flip import RandomHorizontalFlip, RandomVerticalFlip
from headwater.data.steps.jitter import ColorJitter, Grayscale, RandomGrayscale
from headwater.data.steps.mix import CutMix, MixUp
from headwater.data.steps.pad import Pad
from headwater.data.steps.resize import Resize
from headwater.data.steps.trivial import TrivialAugmentWide

__all__ = [
    "CenterCrop",
    "ColorJitter",
    "Compose",
    "CutMix",
    "Decode",
    "GaussianBlur",
    "Grayscale",
    "MixUp",
    "Normalize",
    "Pad",
    "RandomCrop",
    "RandomErasing",
    "RandomGrayscale",
    "RandomHorizontalFlip",
    "RandomResizedCrop",
    "RandomVerticalFlip",
    "Resize",
    "ToDtype",
    "TrivialAugmentWide",
]
