"""What the plots of all chapters have in common."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def axes(x: str, y: str) -> dict[str, object]:
    """A layout with titles; the vertical axis begins at 0."""
    return {"xaxis": {"title": {"text": x}}, "yaxis": {"title": {"text": y}, "rangemode": "tozero"}}


def floats(values: Sequence[float] | NDArray[np.float64]) -> list[float]:
    """Six digits are more than a plot shows."""
    return [float(f"{value:.6g}") for value in values]
