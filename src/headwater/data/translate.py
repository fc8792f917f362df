"""A pipeline from whatever a user passes as `transform`."""

from __future__ import annotations

from collections.abc import Sequence

from headwater.data.compose import Compose, Transform
from headwater.data.foreign import is_foreign
from headwater.data.pipeline import Pipeline
from headwater.errors import WrongUse


def from_torchvision(transform: object) -> Pipeline:
    """The pipeline that does what a transform of torchvision (v1 or v2, also `nn.Sequential`) does.

    What is not recognised stays a callable that runs at the trainer on tensors; `print` shows which.
    """
    if not is_foreign(transform):
        raise WrongUse(f"{transform!r} is not a transform of torchvision")
    return Compose([transform])  # type: ignore[list-item]


def as_pipeline(transform: Transform | Sequence[Transform] | None) -> Pipeline:
    """None is decoding alone; a pipeline is taken as it is; all else goes through `Compose`."""
    if isinstance(transform, Pipeline):
        return transform
    if transform is None:
        return Compose([])
    if isinstance(transform, (list, tuple)):
        return Compose(transform)
    return Compose([transform])  # type: ignore[list-item]
