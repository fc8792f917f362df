"""What came of a fine-tuning: a version, what it reached, and what it took against what was expected."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headwater.models.version import ModelVersion
from headwater.plan.finetune import FinetunePlan


@dataclass(frozen=True)
class Measured:
    """Seconds until the head was trained, those in which features came, of training; bytes over the link."""

    seconds: float
    extract_seconds: float
    train_seconds: float
    bytes: int


@dataclass(frozen=True, eq=False)
class Finetuned:
    """A new version, and how it came about.

    `accuracy` is the share of held-out samples that the head gets right after each run, `losses` the mean
    loss of each epoch. `measured` is of this call alone: if it `resumed`, what was done before is not in it.
    `failed` counts feature vectors that could not be made; `errors` says why, by key, of the first ones.
    `said` is what was found of int8 layers, in a line.
    """

    version: ModelVersion
    plan: FinetunePlan
    accuracy: tuple[float | None, ...]
    losses: tuple[tuple[float, ...], ...]
    measured: Measured
    failed: int
    errors: Mapping[str, str]
    resumed: bool
    said: str = ""

    @property
    def comparison(self) -> dict[str, tuple[float, float]]:
        """What was predicted and what was measured, by name: seconds, and bytes."""
        stages, measured = self.plan.stages, self.measured
        return {
            "all": (self.plan.seconds, measured.seconds),
            "features": (stages.extract, measured.extract_seconds),
            "training": (stages.train, measured.train_seconds),
            "bytes": (self.plan.bytes, float(measured.bytes)),
        }
