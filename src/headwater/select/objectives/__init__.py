"""What a good subset is: a file per objective, which says what a sample would add to what was taken."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType

from headwater.select.objectives.facility_location import FacilityLocation
from headwater.select.objectives.graph_cut import GraphCut
from headwater.select.objectives.k_center import KCenter
from headwater.select.objectives.objective import Objective, Progress

OBJECTIVES: MappingProxyType[str, Callable[..., Objective]] = MappingProxyType(
    {"facility_location": FacilityLocation, "k_center": KCenter, "graph_cut": GraphCut}
)

__all__ = ["OBJECTIVES", "FacilityLocation", "GraphCut", "KCenter", "Objective", "Progress"]
