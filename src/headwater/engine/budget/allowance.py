"""The numbers of a budget, checked."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from headwater.engine.quota import granted_cores
from headwater.errors import WrongUse

_DERIVED = -1  # stands for a default that follows from the other numbers; no budget keeps it
_REQUEST_BYTES = 64 << 20


@dataclass(frozen=True)
class Budget:
    """What one store may spend.

    `cores` may be a fraction. `memory` is bytes of requests and replies on their way. `requests` are
    worked on at once, by default 2 for each core and 2 more. One request asks for at most
    `request_bytes` bytes (by default 64 MiB, or a quarter of a small memory, so that four fit) and
    `request_samples` samples. Raises WrongUse for numbers that leave nothing to work with.
    """

    cores: float = field(default_factory=granted_cores)
    memory: int = 1 << 30
    requests: int = _DERIVED
    request_bytes: int = _DERIVED
    request_samples: int = 16_384

    def __post_init__(self) -> None:
        if not (math.isfinite(self.cores) and self.cores > 0):
            raise WrongUse(f"cores is {self.cores}; give a number above 0, such as 0.5 or 4")
        if self.requests == _DERIVED:
            object.__setattr__(self, "requests", 2 * math.ceil(self.cores) + 2)
        if self.request_bytes == _DERIVED:
            object.__setattr__(self, "request_bytes", max(1, min(_REQUEST_BYTES, self.memory // 4)))
        for name in ("memory", "requests", "request_bytes", "request_samples"):
            if getattr(self, name) < 1:
                raise WrongUse(f"{name} is {getattr(self, name)}; it must be 1 or more")
        if self.request_bytes > self.memory:
            raise WrongUse(
                f"request_bytes is {self.request_bytes:,} and memory only {self.memory:,}; "
                "no such request could be let in: raise memory or lower request_bytes"
            )
