"""int8 layers under a new head: they stay only where that is measured to give the labels that fp32 gives.

Their agreement with fp32 was that of another head. So when a head is trained, some of the images go through
the fp32 layers too that the int8 ones were made of; where too few labels stay, the head gets those layers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headwater.errors import ModelNotFound, ModelRefused
from headwater.models.evidence import BOUND, QUANTISED, UNDER_A_HEAD, read_share
from headwater.models.model import Model
from headwater.models.quantise import HELD_OUT, LEAST_HELD_OUT
from headwater.models.registry import Registry
from headwater.models.runtime import precision_of
from headwater.models.version import ModelVersion

_INSTEAD = "instead_of"
_SHOWN = 12


@dataclass(frozen=True, eq=False)
class Int8Layers:
    """int8 layers, the fp32 version that they were made of, and the share of its labels that must stay.

    `origin` is None where nothing is known of it: then there is nothing to compare with, or to go back to.
    """

    version: ModelVersion
    origin: ModelVersion | None
    bound: float

    def require_origin(self) -> None:
        """Raise `ModelRefused` where it could not be measured whether labels stay under a new head."""
        if self.origin is None:
            raise ModelRefused(
                f"the layers of {self.version.name!r} {self.version.digest[:_SHOWN]} are int8, and nobody "
                f"knows of which fp32 ones: that {self.bound:.1%} of labels stay under a new head cannot be "
                "measured; tune its fp32 version, or one of `headwater models quantise`, or say --unmeasured"
            )

    def say(self) -> str:
        """A line for whoever puts a new head on them."""
        if self.origin is None:
            return "the frozen layers are int8, nobody knows of which fp32 ones: agreement is not measured"
        return (
            f"the frozen layers are int8: when the head is trained, up to {HELD_OUT} images are compared "
            f"with fp32 ({self.origin.digest[:_SHOWN]}), which it gets unless {self.bound:.1%} of labels stay"
        )


@dataclass(frozen=True)
class Verdict:
    """What share of labels stayed (None: too few images to say), of how many images, and the bound."""

    agreement: float | None
    images: int
    bound: float

    @property
    def accepted(self) -> bool:
        return self.agreement is not None and self.agreement >= self.bound

    def say(self) -> str:
        """In a line, which layers there are now, and why."""
        if self.agreement is None:
            return f"fp32: {self.images} images are there to compare on, at least {LEAST_HELD_OUT} are needed"
        said = f"int8 layers give the label of fp32 for {self.agreement:.1%} of {self.images} images"
        if self.accepted:
            return f"int8: under the new head {said}, bound {self.bound:.1%}"
        return f"fp32: under the new head {said}, bound {self.bound:.1%}; accuracies are those with int8"

    def describe(self, layers: Int8Layers) -> dict[str, Any]:
        """For `made` of the version that comes of it."""
        assert layers.origin is not None
        found = {"of": layers.origin.digest, **_facts(self)}
        return found if self.accepted else {**found, _INSTEAD: layers.version.digest}


def judge(same: int, images: int, *, bound: float) -> Verdict:
    """Of the images, `same` have one label either way; too few of them are no measure."""
    return Verdict(same / images if images >= LEAST_HELD_OUT else None, images, bound)


def unjudged() -> dict[str, Any]:
    """For `made` where nothing could be compared."""
    return {"of": None, "agreement": None}


def tuned_from(version: ModelVersion) -> str:
    """The digest of the version that a tuned one began with: its parent, unless that came instead of it."""
    instead = _before(version).get(_INSTEAD)
    return instead if isinstance(instead, str) else version.parent or ""


def find_int8(registry: Registry, version: ModelVersion, model: Model) -> Int8Layers | None:
    """What `made` says of a version's frozen layers; None for fp32.

    Raises `ModelNotFound` where the fp32 version is named and is not there: nothing could be compared.
    """
    if precision_of(model) != "int8":
        return None
    before, made = _before(version), version.made
    digest = before.get("of") or (version.parent if made.get("by") == QUANTISED else None)
    if not isinstance(digest, str):
        return Int8Layers(version, None, BOUND)
    bound = read_share(before.get("bound", made.get("bound")))
    return Int8Layers(version, _find_origin(registry, version, digest), BOUND if bound is None else bound)


def _find_origin(registry: Registry, version: ModelVersion, digest: str) -> ModelVersion:
    origin = registry.find(digest)
    if origin is None:
        raise ModelNotFound(
            f"the layers of {version.digest[:_SHOWN]} are int8, and {digest[:_SHOWN]}, the fp32 version that "
            f"they were made of, is not in {registry.folder}: whether labels stay under a new head cannot be "
            "measured; push that version again, or tune another"
        )
    if (origin.features, origin.steps) != (version.features, version.steps):
        raise ModelNotFound(
            f"the layers of {version.digest[:_SHOWN]} are int8, and are not those of {digest[:_SHOWN]}: "
            "features or steps differ; tune an fp32 version"
        )
    return origin


def _before(version: ModelVersion) -> dict[str, Any]:
    """What an earlier fine-tuning has found; a manifest may come from anywhere."""
    found = version.made.get(UNDER_A_HEAD)
    return found if isinstance(found, dict) else {}


def _facts(verdict: Verdict) -> dict[str, Any]:
    return {
        "agreement": verdict.agreement,
        "images": verdict.images,
        "bound": verdict.bound,
        "accepted": verdict.accepted,
    }
