"""How far a proxy says of samples what the model says that it stands for: labels, and the order of losses."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headwater.errors import WrongUse
from headwater.select.scoring import Floats, Ints, rank_correlation, score


@dataclass(frozen=True)
class Agreement:
    """Of so many samples, the share with equal labels, and Spearman's correlation of both losses.

    `losses` is NaN where the losses of one do not vary.
    """

    labels: float
    losses: float
    samples: int


def measure_agreement(logits: Floats, reference: Floats, targets: Ints) -> Agreement:
    """Compare a proxy's logits with another model's on the same samples, whose true classes are `targets`.

    Samples without a finite loss by either are left out. Raises `WrongUse` for arrays that are not of the
    same samples and classes, and if no sample is left.
    """
    _check(logits, reference, targets)
    losses = score(logits, targets).loss, score(reference, targets).loss
    sound = np.isfinite(losses[0]) & np.isfinite(losses[1])
    if not sound.any():
        raise WrongUse(
            f"of {len(targets)} samples none has a finite loss by both; there is nothing to compare"
        )
    same = logits[sound].argmax(axis=1) == reference[sound].argmax(axis=1)
    correlation = rank_correlation(losses[0][sound], losses[1][sound])
    return Agreement(float(same.mean()), correlation, int(sound.sum()))


def _check(logits: Floats, reference: Floats, targets: Ints) -> None:
    if logits.ndim != 2 or logits.shape != reference.shape or targets.shape != logits.shape[:1]:
        raise WrongUse(
            f"logits of shape {logits.shape} and {reference.shape} with targets of shape {targets.shape}; "
            "both must be (samples, classes), with a target for each sample"
        )
    if len(targets) and not (targets.min() >= 0 and targets.max() < logits.shape[1]):
        raise WrongUse(
            f"targets are {targets.min()} to {targets.max()}, and there are {logits.shape[1]} classes"
        )
