"""A store's desk and its studios without a daemon around them, over photos that tests write."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from headwater.data.image import Limits
from headwater.data.sources import SourceOptions, open_source
from headwater.engine.budget import Budget, Cores, Turnstile
from headwater.store.local import LocalStore
from headwater.store.server.desk import Desk
from headwater.store.server.ledger import Ledger
from headwater.store.server.pacing import Pacing
from headwater.store.server.prefix import Prefix
from headwater.store.server.state import State
from headwater.store.server.studios import Studios
from headwater.store.server.workers import Workers


class Lot:
    """What a chain makes of files, kept."""

    def __init__(self, ids: NDArray[np.int64], epoch: int) -> None:
        self.ids, self.epoch = ids, epoch
        self.made: dict[int, NDArray[np.uint8]] = {}
        self.failed: set[int] = set()

    def emit(self, place: int, image: NDArray[np.uint8]) -> None:
        self.made[place] = image

    def fail(self, place: int, stage: str, error: Exception) -> None:
        self.failed.add(place)


@dataclass(frozen=True)
class Workshop:
    """The parts that tests look at."""

    desk: Desk
    cores: Cores
    workers: Workers
    state: State
    studios: Studios

    @property
    def store(self) -> LocalStore:
        return self.desk.datasets["photos"]


@contextmanager
def open_workshop(
    photos: Path,
    state: Path,
    *,
    labels: str | None = None,
    cores: float = 64,
    feature_bytes: int = 1 << 20,
    image_bytes: int = 0,
) -> Iterator[Workshop]:
    """A dataset `photos`, one worker, and as many cores as are named, which need not be there.

    `labels` is the URL of a label database; without it there is one in the state's folder.
    """
    budget, ledger, bucket = Budget(cores=2), Ledger(), Cores(cores)
    workers = Workers(1, limits=Limits(), arena_bytes=16 << 20)
    workers.catalogue = {"decode": "not compared"}  # or the first worker would load torch to find out
    store = LocalStore(open_source(str(photos), options=SourceOptions()))
    turnstile = Turnstile(budget.requests, budget.memory)
    desk = Desk({"photos": store}, budget, turnstile, Pacing(bucket), Prefix(workers, bucket, ledger), ledger)
    with State(state, labels=labels) as held:
        studios = Studios(held, desk, bucket, feature_bytes=feature_bytes, image_bytes=image_bytes)
        try:
            yield Workshop(desk, bucket, workers, held, studios)
        finally:
            studios.close()
            workers.close()
            store.close()
    assert (turnstile.held, turnstile.active) == (0, 0), "everything was given back"
