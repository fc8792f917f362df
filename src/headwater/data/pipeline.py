"""A pipeline: the steps of a chain as data, with a hash, drawn in bulk and cut anywhere."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from headwater.data.randomness import Draws
from headwater.data.steps.base import BatchStep, Rows, Sizes, Step
from headwater.errors import WrongUse

PIXEL_LIBRARIES = ("simplejpeg", "pillow", "torch", "turbojpeg")
"""Libraries whose version can change a pixel."""


@dataclass(frozen=True)
class Pipeline:
    """Steps, and the position of the first one in the chain that they were cut from.

    The position keys the randomness, so a suffix draws what it would have drawn in the whole.
    """

    steps: tuple[Step, ...]
    offset: int = 0

    def __len__(self) -> int:
        return len(self.steps)

    def __str__(self) -> str:
        names = [describe(step) for step in self.steps]
        sample, batch = names[: self.batch_start], names[self.batch_start :]
        return " > ".join(sample) + (" | " + " > ".join(batch) if batch else "")

    @cached_property
    def batch_start(self) -> int:
        """The first step of the batch stage: everything from here on acts on a batch at once."""
        start = len(self.steps)
        while start and isinstance(self.steps[start - 1], BatchStep):
            start -= 1
        return start

    @property
    def samplewise(self) -> Pipeline:
        """The steps that run once per sample."""
        return Pipeline(self.steps[: self.batch_start], self.offset)

    @property
    def batchwise(self) -> Pipeline:
        """The steps that run once per batch, on the training device."""
        return Pipeline(self.steps[self.batch_start :], self.offset + self.batch_start)

    @cached_property
    def longest_prefix(self) -> int:
        """How many leading steps are integer-exact and so may run at a store."""
        exact = [step.exact for step in self.steps[: self.batch_start]]
        return exact.index(False) if False in exact else len(exact)

    @cached_property
    def steady_prefix(self) -> int:
        """How many leading steps draw nothing: after any of them, a sample is the same in every epoch."""
        steady = [step.steady for step in self.steps]
        return steady.index(False) if False in steady else len(steady)

    def cut(self, at: int) -> tuple[Pipeline, Pipeline]:
        """What runs before and after the cut; `at` counts steps of this pipeline."""
        if not 0 <= at <= len(self.steps):
            raise WrongUse(f"cut {at} is outside a pipeline of {len(self.steps)} steps")
        return Pipeline(self.steps[:at], self.offset), Pipeline(self.steps[at:], self.offset + at)

    def draw(self, ids: NDArray[np.int64], sizes: Sizes, *, seed: int, epoch: int) -> list[Rows]:
        """What each step draws for each id, up to the first opaque step, after which sizes are unknown."""
        return self.trace(ids, sizes, seed=seed, epoch=epoch)[0]

    def trace(
        self, ids: NDArray[np.int64], sizes: Sizes, *, seed: int, epoch: int
    ) -> tuple[list[Rows], NDArray[np.float64]]:
        """What `draw` gives, and the most pixels that each sample has on its way."""
        drawn = []
        most = _pixels(sizes)
        for position, step in enumerate(self.steps, start=self.offset):
            rows = step.draw(Draws.of(ids, seed=seed, epoch=epoch, step=position), sizes)
            drawn.append(rows)
            if step.opaque:
                break
            sizes = step.out_sizes(sizes, rows)
            most = np.maximum(most, _pixels(sizes))
        return drawn, most

    def out_sizes(self, sizes: Sizes) -> Sizes:
        """Height and width of images of these sizes after the steps, up to the first opaque one."""
        drawn = self.draw(np.arange(len(sizes)), sizes, seed=0, epoch=0)
        for step, rows in zip(self.steps, drawn, strict=False):
            sizes = step.out_sizes(sizes, rows)
        return sizes

    def spec(self) -> list[dict[str, Any]]:
        """The pipeline as names and parameters; `from_spec` is the way back."""
        return [{"name": step.name, **parameters(step)} for step in self.steps]

    @classmethod
    def from_spec(
        cls, spec: Sequence[Mapping[str, Any]], catalogue: Mapping[str, type[Step]], *, offset: int = 0
    ) -> Pipeline:
        """Build from names and parameters; raises `WrongUse` for a name that the catalogue lacks."""
        return cls(tuple(_build(entry, catalogue) for entry in spec), offset)

    @cached_property
    def hash(self) -> str:
        """A digest of steps, position and the libraries that can change a pixel."""
        content = msgspec.json.encode([self.offset, self.spec(), library_versions()])
        return hashlib.blake2b(content, digest_size=16).hexdigest()


def _pixels(sizes: Sizes) -> NDArray[np.float64]:
    """As floats: a product of hostile integers would wrap to a small one."""
    pixels: NDArray[np.float64] = sizes.astype(np.float64).prod(axis=1)
    return pixels


def parameters(step: Step) -> dict[str, Any]:
    """A step's fields as plain data."""
    return {field.name: getattr(step, field.name) for field in dataclasses.fields(step)}  # type: ignore[arg-type]


def describe(step: Step) -> str:
    """A step as a person would write it, without the parameters that have their defaults."""
    changed = [
        f"{field.name}={getattr(step, field.name)}"
        for field in dataclasses.fields(step)  # type: ignore[arg-type]
        if getattr(step, field.name) != field.default
    ]
    return f"{step.name}({', '.join(changed)})" if changed else step.name


def library_versions(names: Sequence[str] = PIXEL_LIBRARIES) -> dict[str, str]:
    """Installed versions of libraries, of those that make pixels if not told; absent ones are left out."""
    found = {}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _build(entry: Mapping[str, Any], catalogue: Mapping[str, type[Step]]) -> Step:
    values = dict(entry)
    name = values.pop("name", None)
    if name not in catalogue:
        raise WrongUse(f"no step is called {name!r}; known: {', '.join(sorted(catalogue))}")
    try:
        return msgspec.convert(values, catalogue[name], strict=True)
    except msgspec.ValidationError as error:
        raise WrongUse(f"step {name!r} does not take these parameters: {error}") from error
