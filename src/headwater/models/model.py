"""A model: frozen layers, a head, the class names, and the steps that an image goes through before it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

from numpy.typing import NDArray

from headwater.data.pipeline import Pipeline
from headwater.data.steps import catalogue
from headwater.errors import ModelRefused, WrongUse
from headwater.models import graph
from headwater.models.version import TensorFacts

T = TypeVar("T")
_LINEAR = {"head/weight", "head/bias"}


@dataclass(frozen=True, eq=False)
class Model:
    """Graphs without tensor data, and the tensors beside them.

    `trunk` takes float32 `images` (n, 3, height, width) to `features` (n, F). `head` takes `features` to
    `logits`; None is the linear one, `features @ weight.T + bias`. `tensors` are named `trunk/INITIALISER`,
    `head/INITIALISER`, for a linear head `head/weight` and `head/bias`. `steps` is a `Pipeline.spec()`.
    """

    trunk: bytes
    head: bytes | None
    tensors: Mapping[str, NDArray[Any]]
    classes: tuple[str, ...]
    steps: tuple[dict[str, Any], ...]

    @property
    def graphs(self) -> dict[str, bytes]:
        """The graphs by part."""
        return {"trunk": self.trunk} | ({} if self.head is None else {"head": self.head})

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(array.nbytes for array in self.tensors.values())

    @cached_property
    def facts(self) -> dict[str, TensorFacts]:
        """Type, shape and digest of every tensor."""
        return {name: TensorFacts.of(array) for name, array in sorted(self.tensors.items())}

    def part(self, name: str) -> dict[str, NDArray[Any]]:
        """The tensors of `trunk` or `head`, by the names that its graph has for them."""
        return strip(self.tensors, name)

    def with_tensors(self, tensors: Mapping[str, NDArray[Any]]) -> Model:
        """The same architecture with other weights; raises `ModelRefused` unless these fit, by name."""
        wanted = {name: (array.dtype, array.shape) for name, array in self.tensors.items()}
        for name in sorted(wanted.keys() | tensors.keys()):
            if name not in tensors:
                raise ModelRefused(f"there is no tensor {name!r}, which the model has: another architecture")
            if name not in wanted:
                raise ModelRefused(
                    f"there is a tensor {name!r}, which the model has not: another architecture"
                )
            found = (tensors[name].dtype, tensors[name].shape)
            if found != wanted[name]:
                raise ModelRefused(
                    f"tensor {name!r} is {found[0]} {found[1]}, and the model's is {wanted[name][0]} "
                    f"{wanted[name][1]}: another architecture"
                )
        return replace(self, tensors=dict(tensors))

    def check(self) -> int:
        """The number of features; raises `ModelRefused` unless all parts of the model fit together."""
        for name in self.tensors:
            if not name.startswith(("trunk/", "head/")):
                raise ModelRefused(f"tensor {name!r} belongs neither to trunk nor to head")
        _check_steps(self.steps)
        ports = graph.check(self.trunk, strip(self.facts, "trunk"))
        features = graph.check_trunk(ports)
        if self.head is None:
            classes = _check_linear(self.facts, features)
        else:
            classes = graph.check_head(graph.check(self.head, strip(self.facts, "head")), features)
        if classes != len(self.classes):
            raise ModelRefused(
                f"the head tells {classes:,} classes apart, and {len(self.classes):,} have names"
            )
        twice = [name for name, times in Counter(self.classes).items() if times > 1]
        if twice:
            raise ModelRefused(f"{twice[0]!r} is the name of more than one class; each needs its own")
        return features


def strip(named: Mapping[str, T], part: str) -> dict[str, T]:
    """What belongs to a part, by the names within it."""
    return {
        name.removeprefix(f"{part}/"): value for name, value in named.items() if name.startswith(f"{part}/")
    }


def _check_linear(facts: Mapping[str, TensorFacts], features: int) -> int:
    """The number of classes of a linear head."""
    found = {name: (fact.dtype, fact.shape) for name, fact in facts.items() if name.startswith("head/")}
    if set(found) != _LINEAR:
        raise ModelRefused(f"a linear head has head/weight and head/bias; this one has {sorted(found)}")
    classes = facts["head/bias"].shape[0] if len(facts["head/bias"].shape) == 1 else -1
    wanted = {"head/weight": ("float32", (classes, features)), "head/bias": ("float32", (classes,))}
    if found != wanted:
        raise ModelRefused(
            f"the linear head is {found}; after {features:,} features it must be float32, "
            "weight (classes, features) and bias (classes)"
        )
    return classes


def _check_steps(steps: tuple[dict[str, Any], ...]) -> None:
    try:
        Pipeline.from_spec(steps, catalogue())
    except WrongUse as error:
        raise ModelRefused(f"the steps before the model cannot be run here: {error}") from error
