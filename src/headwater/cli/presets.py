"""Transforms that can be named on the command line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headwater import transforms
from headwater.data.pipeline import Pipeline
from headwater.errors import WrongUse

_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def finish() -> list[Any]:
    """The end of each: float32, normalised as ImageNet's models expect it."""
    return [transforms.ToDtype("float32", scale=True), transforms.Normalize(_MEAN, _STD)]


PRESETS: dict[str, Callable[[], Pipeline]] = {
    "imagenet": lambda: transforms.Compose(
        [transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(), *finish()]
    ),
    "validation": lambda: transforms.Compose([transforms.Resize(256), transforms.CenterCrop(224), *finish()]),
    "cifar": lambda: transforms.Compose(
        [transforms.RandomCrop(32, padding=4), transforms.RandomHorizontalFlip(), *finish()]
    ),
}


def find_preset(name: str) -> Pipeline:
    """Raises `WrongUse` for a name that is not among them."""
    if name not in PRESETS:
        raise WrongUse(f"no transform is called {name!r}; known: {', '.join(PRESETS)}")
    return PRESETS[name]()
