"""Near-duplicates of a dataset: found from fingerprints of its pictures, and what a loader does with them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from headwater.data.image import DEFAULT_LIMITS, Limits
from headwater.data.progress import bar
from headwater.engine.crew import Crew, available_cores
from headwater.engine.fingerprints import FingerprintBatch, Fingerprinting, fingerprint_chain
from headwater.engine.inference import Failed
from headwater.errors import WrongUse
from headwater.plan.offload import Offload
from headwater.select.duplicates import ALIKE, group_hashes
from headwater.select.importance import STALLED
from headwater.store.dataset import Dataset

MODES = ("auto", "drop", "stand_in")
_THUMBNAILS = Offload(2)


@dataclass(frozen=True, eq=False)
class Duplicates:
    """Groups of near-duplicates of one label: a number for each sample of a dataset, -1 for what is alone.

    As `mode` says, one of a group is visited for all and counts as many ("drop"); or a member that the cache
    holds is served for one that it does not, unless that was not truly read for `patience` epochs
    ("stand_in"); or the second where training waits for data and there is a cache, and the first elsewhere
    ("auto"). `failed` are samples of which no fingerprint could be made.
    """

    groups: NDArray[np.int32]
    mode: str = "auto"
    patience: int = 3
    failed: tuple[Failed, ...] = field(default=())

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise WrongUse(f"mode is {self.mode!r}; choose from {', '.join(MODES)}")
        if self.patience < 0:
            raise WrongUse(f"patience is {self.patience}; it is a number of epochs, at least 0")

    def __len__(self) -> int:
        """Samples that are in a group."""
        return int(np.count_nonzero(self.groups >= 0))

    @property
    def redundant(self) -> int:
        """Samples that could be left out if one of each group stays."""
        grouped = self.groups[self.groups >= 0]
        return len(grouped) - len(np.unique(grouped))

    def serves(self, stalled: float, *, cached: bool) -> bool:
        """Whether members stand in for others, where training waits for data a share of its time."""
        if self.mode == "auto":
            return cached and stalled > STALLED
        return self.mode == "stand_in"


def find_duplicates(
    dataset: Dataset, *, most: int = ALIKE, limits: Limits | None = None, progress: bool | None = None
) -> Duplicates:
    """Look at every picture, beside the data where a store can: 1.6 kB of each cross the link.

    `most` bits of 128 may differ between two of one label that are alike.
    """
    chain = fingerprint_chain(limits or DEFAULT_LIMITS)
    store, positions = dataset.store, dataset.positions()
    ids = dataset.index.ids[positions]
    ways = (_THUMBNAILS,) if store.remote else (Offload(0),)
    batches: list[FingerprintBatch] = []
    with (
        closing(Crew(available_cores(), store.readers, patient=store.remote)) as crew,
        bar("looking for near-duplicates", len(ids), wanted=progress) as advance,
    ):
        for batch in Fingerprinting(lambda: store.reader(chain, ways), crew, chain).run(positions, ids):
            batches.append(batch)
            advance(len(batch.ids) + len(batch.failures))
    failed = tuple(failure for batch in batches for failure in batch.failures)
    return Duplicates(_group(dataset, batches, most), failed=failed)


def _group(dataset: Dataset, batches: Sequence[FingerprintBatch], most: int) -> NDArray[np.int32]:
    """Groups of those that have a fingerprint; the others are alone."""
    groups = np.full(len(dataset), -1, np.int32)
    if batches:
        made = np.isin(dataset.ids, np.concatenate([batch.ids for batch in batches]))
        hashes = np.concatenate([batch.hashes for batch in batches])  # in the dataset's order
        groups[made] = group_hashes(hashes, dataset.labels[made].astype(np.int64), most=most)
    return groups
