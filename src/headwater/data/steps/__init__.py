"""Every step that a pipeline may be made of, by the name under which it is sent."""

from __future__ import annotations

from importlib.util import find_spec

from headwater.data.steps.base import BatchStep, Step
from headwater.data.steps.blur import GaussianBlur
from headwater.data.steps.box import CentralBox, RandomArea, RandomBox
from headwater.data.steps.dtype import Normalize, ToDtype
from headwater.data.steps.erasing import RandomErasing
from headwater.data.steps.flip import RandomHorizontalFlip, RandomVerticalFlip
from headwater.data.steps.jitter import ColorJitter, Grayscale, RandomGrayscale
from headwater.data.steps.mix import CutMix, MixUp
from headwater.data.steps.pad import Pad, PadToFit
from headwater.data.steps.resize import Resize
from headwater.data.steps.trivial import TrivialAugmentWide

__all__ = ["BatchStep", "Step", "catalogue"]


def catalogue() -> dict[str, type[Step]]:
    """Steps by name. A user's callable is not among them; without torch, neither is the resize."""
    # Decoding is imported here: it brings the codecs, which a look at the base classes does not need.
    from headwater.data.steps.decode import Decode
    from headwater.data.steps.thumbnail import Thumbnail

    classes: list[type[Step]] = [Decode, RandomArea, RandomBox, CentralBox, Pad, PadToFit, Thumbnail]
    classes += [RandomHorizontalFlip, RandomVerticalFlip, ColorJitter, Grayscale, RandomGrayscale]
    classes += [GaussianBlur, TrivialAugmentWide, ToDtype, Normalize, RandomErasing, MixUp, CutMix]
    if find_spec("torch") is not None:
        classes.append(Resize)
    return {step.name: step for step in classes}
