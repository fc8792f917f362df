"""What a manifest says of int8 layers: how far they agree with fp32, on how many images of which data.

Layers without that come into force only if somebody says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headwater.errors import ModelRefused
from headwater.models.runtime import precision_of_graph
from headwater.models.version import ModelVersion

QUANTISED = "quantise"
"""What stands as `by` in `made` of a version whose layers were made int8, beside what was measured."""
UNDER_A_HEAD = "int8"
"""Where in `made` it stands of a version whose head was trained on int8 layers."""
BOUND = 0.95
"""Of the images, the share that must have the label that fp32 gives them, unless another is stated."""

_SHOWN = 12


@dataclass(frozen=True)
class Evidence:
    """The share of labels that stay, the bound that was stated for it, of how many images, of which data.

    `images` and `data`, a dataset's version, are None where the manifest does not say.
    """

    agreement: float
    bound: float = BOUND
    images: int | None = None
    data: str | None = None

    @property
    def enough(self) -> bool:
        return self.agreement >= self.bound

    def __str__(self) -> str:
        images = "images" if self.images is None else f"{self.images:,} images"
        data = "data that is not named" if self.data is None else f"data {self.data[:_SHOWN]}"
        return f"{self.agreement:.1%} of {images} of {data} keep the label of fp32, bound {self.bound:.1%}"


def find_evidence(version: ModelVersion) -> Evidence | None:
    """What the manifest says of it, which may come from anywhere; None for nothing that can be read."""
    made = version.made
    found = made.get(UNDER_A_HEAD)
    if not isinstance(found, dict):
        found = made if made.get("by") == QUANTISED else {}
    agreement, bound, images, data = (
        read_share(found.get("agreement")),
        read_share(found.get("bound")),
        found.get("images"),
        made.get("data"),
    )
    if agreement is None:
        return None
    return Evidence(
        agreement,
        BOUND if bound is None else bound,
        images if isinstance(images, int) and images > 0 else None,
        data if isinstance(data, str) else None,
    )


def require_measured(version: ModelVersion, trunk: bytes) -> None:
    """Raise `ModelRefused` for int8 layers of which the manifest does not say that enough labels stay."""
    if precision_of_graph(trunk) != "int8":
        return
    found = find_evidence(version)
    if found is None or not found.enough:
        said = f"nothing says that {BOUND:.1%} of labels stay" if found is None else str(found)
        raise ModelRefused(
            f"the layers of {version.name!r} {version.digest[:_SHOWN]} are int8, and {said}: it may be held, "
            "and does not come into force; have int8 layers made of its fp32 version, and measured, by "
            "`headwater models quantise`, or say --unmeasured"
        )


def read_share(value: Any) -> float | None:
    """A number from 0 to 1, or None for anything else."""
    sound = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1
    return float(value) if sound else None
