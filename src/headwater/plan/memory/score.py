"""The on-line rule, for programs without a pattern: which tensor to let go now.

After dynamic tensor rematerialisation (Kirisame et al., ICLR 2021): cost over bytes times staleness, where
the cost is that of the cheaper way back.
"""

from __future__ import annotations


def eviction_score(*, seconds: float, size: int, stale_seconds: float) -> float:
    """The smaller, the sooner it goes: cheap to bring back, large, not asked for in a long time."""
    return seconds / (max(size, 1) * max(stale_seconds, 1e-9))
