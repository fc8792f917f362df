"""How long a fine-tuning takes: the time model of FT-DMP (NDPipe, ASPLOS'24).

Stores, link and the tuner's share of the frozen layers work at the same time, image after image, so features
come at the rate of the slowest of them: S seconds for all. Training takes T. The data is divided into N runs;
while the tuner trains on one, the features of the next come:

    S/N + (N-1)/N max(S, R + T) + T/N

R are seconds that the tuner itself spends on frozen layers, in which it does not train; the published model
has none. Nor has it what the first images take until they are through: they come in lots, and the last stage
waits for the first lot, as the first stage has nothing to do during the last.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from headwater.errors import WrongUse
from headwater.plan.finetune.cut import Cut


@dataclass(frozen=True)
class Work:
    """What is to be done: `images` to train on, each in `variants` ways, `epochs` times.

    `held` are those to validate with. `train_seconds` is what one pass over the features of one image takes.
    Images go from stage to stage in lots of `lot`.
    """

    images: int
    held: int = 0
    variants: int = 1
    epochs: int = 1
    train_seconds: float = 0.0
    lot: int = 1

    def __post_init__(self) -> None:
        if min(self.images, self.variants, self.epochs, self.lot) < 1 or self.held < 0:
            raise WrongUse(
                f"images={self.images}, variants={self.variants}, epochs={self.epochs} and lot={self.lot} "
                f"must be at least 1, held={self.held} at least 0"
            )
        if not (math.isfinite(self.train_seconds) and self.train_seconds >= 0):
            raise WrongUse(f"train_seconds is {self.train_seconds}; it must be a number of at least 0")

    @property
    def extractions(self) -> int:
        """How many feature vectors are needed."""
        return self.images * self.variants + self.held

    @property
    def training(self) -> float:
        """Seconds that the tuner trains for."""
        return self.images * self.epochs * self.train_seconds


@dataclass(frozen=True)
class Rates:
    """What each store, the links and the tuner can do in a second; what is not known is infinite.

    `store_cores` and `store_link` (bytes) are those of one store; `tuner_link` is what the tuner takes in
    from all of them.
    """

    store_cores: float = math.inf
    store_link: float = math.inf
    tuner_link: float = math.inf
    tuner_cores: float = math.inf

    def __post_init__(self) -> None:
        for name in ("store_cores", "store_link", "tuner_link", "tuner_cores"):
            if not getattr(self, name) > 0:
                raise WrongUse(f"{name} is {getattr(self, name)}; it must be above 0")

    def link(self, stores: int) -> float:
        """Bytes per second from so many stores."""
        return min(stores * self.store_link, self.tuner_link)


@dataclass(frozen=True)
class Stages:
    """Seconds that each stage needs for all of the work."""

    store: float
    link: float
    rest: float
    """Frozen layers at the tuner."""
    train: float
    lots: float = math.inf
    """That one after the other go through a stage."""

    @classmethod
    def of(cls, cut: Cut, work: Work, *, rates: Rates, stores: int) -> Stages:
        """With this cut and so many stores, which share the images evenly."""
        if stores < 1:
            raise WrongUse(f"stores={stores}; features come from at least 1")
        count = work.extractions
        return cls(
            store=count * cut.store_seconds / (stores * rates.store_cores),
            link=count * cut.bytes / rates.link(stores),
            rest=count * cut.tuner_seconds / rates.tuner_cores,
            train=work.training,
            lots=max(1.0, count / (stores * work.lot)),
        )

    @property
    def extract(self) -> float:
        """Seconds until all features are at the tuner, if it does nothing else: S."""
        slowest = max(self.store, self.link, self.rest)
        return slowest + (self.store + self.link + self.rest - slowest) / self.lots

    @property
    def times(self) -> dict[str, float]:
        """Seconds of each, by name; the tuner's are all that it does."""
        return {"stores": self.store, "link": self.link, "tuner": self.rest + self.train}

    @property
    def bottleneck(self) -> str:
        """The slowest of the three; of equals, the first."""
        return max(self.times, key=self.times.__getitem__)

    def seconds(self, runs: int) -> float:
        """In so many overlapped runs."""
        if runs < 1:
            raise WrongUse(f"runs={runs}; there is at least 1")
        overlapped = (runs - 1) / runs * max(self.extract, self.rest + self.train)
        return self.extract / runs + overlapped + self.train / runs
