"""What was decided for each step of a replay, and what it comes to."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ReplayPlan:
    """Which of so many `steps` were computed; the others were approximated.

    Steps before `first` saw none of the samples that changed, and are as they were. `error` is the estimated
    distance to training again, as a share of how far the weights moved since a run that was trained in full.
    `note` says what else happened.
    """

    steps: int
    first: int
    exact: tuple[int, ...]
    error: float
    note: str = ""

    @property
    def approximate(self) -> int:
        """How many steps were approximated."""
        return self.steps - self.first - len(self.exact)

    def __str__(self) -> str:
        if self.first == self.steps:
            return f"none of {self.steps:,} steps saw any of the samples"
        skipped = f"the first {self.first:,} steps saw none of them, " if self.first else ""
        text = (
            f"{skipped}{len(self.exact):,} computed, {self.approximate:,} approximated; "
            f"estimated error {self.error:.2g} of the change"
        )
        return f"{text}; {self.note}" if self.note else text
