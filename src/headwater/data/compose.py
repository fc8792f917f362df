"""`Compose`: from transforms as a user writes them to a pipeline of steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any

from headwater.data.foreign import is_foreign, recognise
from headwater.data.pipeline import Pipeline
from headwater.data.steps.base import Step
from headwater.data.steps.calls import Call
from headwater.data.steps.compound import Compound
from headwater.data.steps.decode import Decode
from headwater.data.steps.mix import MixStep
from headwater.errors import WrongUse

Transform = Step | Compound | Pipeline | Callable[..., Any]
"""What `Compose` accepts: a transform, a pipeline, or any function of an image tensor."""


def Compose(transforms: Sequence[Transform]) -> Pipeline:  # noqa: N802 - torchvision's name
    """The pipeline of these transforms, after `Decode()` unless another one comes first.

    Pipelines within are unfolded; a function that is not a transform runs at the trainer. Raises
    `WrongUse` for what is neither, for a `Decode` that is not first and a `MixUp` that is not last.
    """
    if isinstance(transforms, str) or not isinstance(transforms, Iterable):
        raise WrongUse(f"Compose takes a list of transforms, not {type(transforms).__name__}")
    steps: list[Step] = []
    for transform in transforms:
        steps += _lower(transform, first=not steps)
    if not steps or not isinstance(steps[0], Decode):
        steps.insert(0, Decode())
    _check_order(steps)
    return Pipeline(tuple(steps))


def _lower(transform: object, *, first: bool) -> list[Step]:
    """The steps of one entry of a `Compose`."""
    if isinstance(transform, Pipeline):
        return _unfold(transform, first=first)
    parts = recognise(transform) if is_foreign(transform) else [transform]
    return [step for part in parts for step in _to_steps(part)]


def _to_steps(transform: object) -> tuple[Step, ...]:
    if isinstance(transform, Step):
        return (transform,)
    if isinstance(transform, Compound):
        return transform.steps()
    if isinstance(transform, type):
        raise WrongUse(f"{transform.__name__} is a class; write {transform.__name__}(...)")
    if not callable(transform):
        raise WrongUse(f"{transform!r} is neither a transform nor callable")
    return (Call.of(transform),)


def _unfold(pipeline: Pipeline, *, first: bool) -> list[Step]:
    """A pipeline within a pipeline; the `Decode()` that its own `Compose` put first is not repeated."""
    if pipeline.offset:
        raise WrongUse(f"a pipeline cut at step {pipeline.offset} cannot be composed; compose before the cut")
    steps = list(pipeline.steps)
    return steps[1:] if not first and steps and steps[0] == Decode() else steps


def _check_order(steps: Sequence[Step]) -> None:
    for step, following in pairwise(steps):
        if isinstance(following, Decode):
            raise WrongUse(f"decode comes after {step.name}; it must be the first")
        if isinstance(step, MixStep) and not isinstance(following, MixStep):
            raise WrongUse(f"{step.name} comes before {following.name}; it must be the last")
