"""Ways to a subset of a good value, whatever the objective: a file per maximiser."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType

from headwater.select.maximisers.by_size import BySize
from headwater.select.maximisers.lazy import Lazy
from headwater.select.maximisers.maximiser import Maximiser
from headwater.select.maximisers.naive import Naive
from headwater.select.maximisers.partitioned import Partitioned
from headwater.select.maximisers.stochastic import Stochastic

MAXIMISERS: MappingProxyType[str, Callable[..., Maximiser]] = MappingProxyType(
    {"by_size": BySize, "naive": Naive, "lazy": Lazy, "stochastic": Stochastic}
)
"""`Partitioned` is none of them: it cuts parts in pieces, and any of these solves each."""

__all__ = ["MAXIMISERS", "BySize", "Lazy", "Maximiser", "Naive", "Partitioned", "Stochastic"]
