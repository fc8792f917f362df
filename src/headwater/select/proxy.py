"""The samples of which a smaller model was least sure, chosen once.

Selection via Proxy (Coleman et al., ICLR 2020). Kept: the share with the least confidence, the least margin
or the highest entropy by a model that is cheaper to train, fixed for the whole run. Changed: a share of each
class; a sample of unknown score stays. The columns of the first epoch with any are the proxy's: those of
another run, where the loader begins with its signals, and else of the model's own first epoch. They hold
the target's probability and the largest other one, so confidence is exact; margin is, where the target is
among the two likeliest; entropy is the largest that both allow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from headwater.errors import WrongUse
from headwater.select.arithmetic import log2
from headwater.select.choosing import Scores, check_part, check_share, everything, known, lowest
from headwater.select.samples import Floats, Ints, Marks, Samples
from headwater.select.selection import Choice

_MEASURES = ("confidence", "margin", "entropy")


@dataclass(frozen=True)
class Proxy:
    """The `share` of each class that a proxy is least sure of, `by` one of three measures.

    It keeps its samples as bucket 0, and the epoch in which it chose them as its state.
    """

    share: float = 0.5
    by: Literal["confidence", "margin", "entropy"] = "confidence"
    explore: float = 0.0
    name = "proxy"
    needs = ("probability", "margin")

    def __post_init__(self) -> None:
        check_share(self.share)
        check_part("explore", self.explore)
        if self.by not in _MEASURES:
            raise WrongUse(f"by is {self.by!r}; choose from {', '.join(_MEASURES)}")

    def choose(self, samples: Samples) -> Choice:
        if "chosen" in samples.state:
            return self._keep(samples, samples.bucket == 0, int(samples.state["chosen"]))
        told = known(samples, "probability") & known(samples, "margin")
        if not told.any():
            return Choice(everything(samples), "everything: there are no scores of a proxy")
        kept, places = ~told, np.flatnonzero(told)
        sure = self._sureness(samples, places)
        kept[places[lowest(sure, samples.labels[places], share=self.share)]] = True
        return self._keep(samples, kept, samples.epoch)

    def _keep(self, samples: Samples, kept: Marks, epoch: int) -> Choice:
        reason = f"{self.share:.0%} of each class with the least {self.by} of a proxy, as of epoch {epoch}"
        if self.by == "entropy":
            reason = reason.replace("least", "highest")
        return Choice(np.flatnonzero(kept), reason, buckets=(~kept).view(np.uint8), state={"chosen": epoch})

    def _sureness(self, samples: Samples, places: Ints) -> Scores:
        target, margin = samples.probability[places], samples.margin[places]
        other = target - margin
        if self.by == "entropy":
            return _negative_entropy(target, other, others=len(samples.classes) - 2)
        sure: Floats = np.abs(margin) if self.by == "margin" else np.maximum(target, other)
        return sure


def _negative_entropy(target: Floats, other: Floats, *, others: int) -> Scores:
    """As if what is left of the probability were spread evenly over the other classes."""
    rest = np.clip(1 - target - other, 0, None) / max(others, 1)
    found: Scores = target * log2(target) + other * log2(other) + max(others, 1) * rest * log2(rest)
    return found
