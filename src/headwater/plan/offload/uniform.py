"""How far a sample goes at the store before it crosses the link."""

from __future__ import annotations

from dataclasses import dataclass

from headwater.errors import WrongUse


@dataclass(frozen=True)
class Offload:
    """The same for every sample: `cut` steps, counting the decoder, at the store, then a lossless codec.

    A store under pressure does less, and a step that it cannot do exactly stays at the trainer; the
    batches are the same bytes either way.
    """

    cut: int
    codec: str = "none"

    def __post_init__(self) -> None:
        if not 0 <= self.cut <= 255:
            raise WrongUse(f"cut is {self.cut}; it counts the steps at the store, so 0 to 255")
