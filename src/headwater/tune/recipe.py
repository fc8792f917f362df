"""How a head is trained: a few numbers, which are a part of how a version was made."""

from __future__ import annotations

from dataclasses import dataclass

from headwater.errors import WrongUse
from headwater.plan.finetune.cut import FEATURES, IMAGES

SCHEDULE = (1.0, 0.8, 0.5, 0.3, 0.1)
"""The learning rate in five equal parts of a run, as in NDPipe's published code."""


@dataclass(frozen=True)
class Recipe:
    """What is the same for all samples.

    `epochs` are passes over as many samples as a run has, which are drawn from those of the runs before
    it, too; `runs` is how many follow one another (None: what the plan finds). `learning_rate` is that of
    features scaled to the length 1, so the same one fits every trunk; it, `momentum` and `l2` are for the
    optimiser that is taken if none is given. `validation` is the share of the samples that is held out.
    With augmentation a sample has `variants` feature vectors, which take turns.
    `cut` says what crosses the link: `features`, which stores make, `images`, the name of a cut between the
    frozen layers, or None for what the plan finds; `more_bytes` allows what is larger than the images. Raises
    `WrongUse` for what cannot be.
    """

    epochs: int = 30
    runs: int | None = None
    batch_size: int = 256
    learning_rate: float = 3.0
    momentum: float = 0.9
    l2: float = 1e-4
    validation: float = 0.1
    variants: int = 1
    seed: int = 0
    cut: str | None = None
    more_bytes: bool = False

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "variants"):
            if getattr(self, name) < 1:
                raise WrongUse(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.runs is not None and self.runs < 1:
            raise WrongUse(f"runs is {self.runs}; it must be at least 1, or None for what the plan finds")
        if not self.learning_rate > 0 or not 0 <= self.momentum < 1 or self.l2 < 0:
            raise WrongUse(
                f"learning_rate={self.learning_rate} must be above 0, momentum={self.momentum} at least 0 "
                f"and below 1, l2={self.l2} at least 0"
            )
        if not 0 <= self.validation < 1:
            raise WrongUse(f"validation is {self.validation}; it must be at least 0 and below 1")
        if self.cut == "":
            raise WrongUse(f"cut is empty; it may be {FEATURES!r}, {IMAGES!r}, the name of a cut, or None")

    def rate(self, run: int, epoch: int, *, runs: int) -> float:
        """What the learning rate is multiplied by: the schedule, and the guard (N - r/2)/N of later runs.

        A later run starts from weights that are good already: smaller steps keep what is new with it from
        undoing them.
        """
        part = SCHEDULE[epoch * len(SCHEDULE) // self.epochs]
        return part * (runs - run / 2) / runs
