"""What is known of int8 layers that get a new head: their agreement with fp32 was that of another head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headwater.models.model import Model
from headwater.models.quantise import BY
from headwater.models.runtime import precision_of
from headwater.models.version import ModelVersion

KEY = "int8"
"""What it is called in `made`."""
_SHOWN = 12


@dataclass(frozen=True)
class Int8Layers:
    """Share of the labels of fp32 that int8 layers gave under the head of `version`; None: not known."""

    agreement: float | None
    version: str

    def say(self) -> str:
        """A line for whoever puts a new head on them."""
        begun = "the frozen layers are int8: their agreement with fp32"
        if self.agreement is None:
            return f"{begun} is not known, and is not measured for the new head"
        measured = f"{self.agreement:.1%} of the labels, was measured for the head of {self.version[:_SHOWN]}"
        return f"{begun}, {measured} and not for the new head"

    def describe(self) -> dict[str, Any]:
        """For `made` of a version with another head."""
        return {"agreement": self.agreement, "measured_for": self.version}


def find_int8(version: ModelVersion, model: Model) -> Int8Layers | None:
    """What `made` says of a version's frozen layers, or of those that it has them from; None for fp32."""
    if precision_of(model) != "int8":
        return None
    made, before = version.made, version.made.get(KEY)
    if isinstance(before, dict):
        return Int8Layers(_number(before.get("agreement")), str(before.get("measured_for", "")))
    return Int8Layers(_number(made.get("agreement")) if made.get("by") == BY else None, version.digest)


def _number(value: object) -> float | None:
    """A manifest may come from anywhere."""
    return float(value) if isinstance(value, int | float) else None
