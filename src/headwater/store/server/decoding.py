"""Images for models at a store: read in their turn, and decoded and stepped in worker processes.

A decoder that crashes costs a worker, never the store: a sample that no worker could make has failed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headwater.data.image import Limits
from headwater.data.image.fingerprint import hash_thumbnails
from headwater.data.pipeline import Pipeline
from headwater.engine.budget import Busy, Gone
from headwater.engine.fetching import Fetched, Wanted
from headwater.errors import SampleCorrupt
from headwater.store.features import Pictures
from headwater.store.fingerprints import Fingerprints, thumbnail_steps
from headwater.store.local import LocalStore
from headwater.store.server.crops import Tray
from headwater.store.server.desk import Desk
from headwater.store.server.pacing import Wish
from headwater.store.server.workers import Done, Work

Images = dict[int, NDArray[np.uint8]]

_LOST = "no image could be made of it: damaged, past a limit, or of a kind that is not read"
_ILL = "it crashed two decoders and is in quarantine; `headwater release` lets it be tried again"


@dataclass(frozen=True)
class Asker:
    """For whom a store works: its caller and client in all queues, with which priority, and until when."""

    caller: str
    client: str
    priority: str
    gone: Callable[[], bool]


class Decoding:
    """A `Reader` that gives images after all steps of a pipeline, or why there is none.

    With `pictures`, images are taken from there, and kept there. With `prints`, what is decoded is
    fingerprinted by the way, unless it was before, or the pipeline decodes otherwise. With a `tray`, they are
    held there too.
    """

    def __init__(
        self,
        desk: Desk,
        store: LocalStore,
        *,
        pipeline: Pipeline,
        asker: Asker,
        seed: int = 0,
        pictures: Pictures | None = None,
        prints: Fingerprints | None = None,
        tray: Tray | None = None,
    ) -> None:
        self._desk, self._store, self._pipeline, self._tray = desk, store, pipeline, tray
        self._asker, self._seed, self._pictures = asker, seed, pictures
        self._prints = prints if thumbnail_steps().steps[:1] == pipeline.steps[:1] else None
        self._over = False

    def sizes(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._store.sizes(positions)

    def key(self, position: int) -> str:
        return self._store.key(position)

    def abandon(self) -> None:
        self._over = True

    def fetch(self, wanted: Wanted) -> Fetched:
        """Raises `Gone` if the asker is, and `WorkersFailed`."""
        kept = self._pictures.get(wanted.ids) if self._pictures is not None else {}
        values: list[Any] = [kept.get(place) for place in range(len(wanted.ids))]
        missing = np.array([place for place, value in enumerate(values) if value is None], np.intp)
        failed: dict[int, Exception] = {}
        moved = 0
        if len(missing):
            made, lost, moved = self._make(wanted.take(missing))
            for place, image in made.items():
                values[missing[place]] = image
            failed = {int(missing[place]): error for place, error in lost.items()}
            self._keep(wanted.positions[missing], made)
        return Fetched(values, failed=failed, bytes_moved=moved)

    def _make(self, wanted: Wanted) -> tuple[Images, dict[int, Exception], int]:
        """The images of those that can be made, why others cannot, and the bytes that were read."""
        asker, size = self._asker, self._desk.weigh(self._store, wanted.positions)
        wish = Wish(asker.caller, asker.client, size, self._gone, asker.priority)
        while not self._gone():
            try:
                with self._desk.files(self._store, wanted.positions, wish) as (turn, found):
                    turn.leave_slot()  # workers and cores have lines of their own
                    places = [place for place in range(len(found.values)) if place not in found.failed]
                    work = self._work(wanted, places)
                    files = [found.values[place] for place in places]
                    done = self._desk.prefix.insist(work, files, turn, gone=self._gone) if places else None
            except Busy:
                continue
            made, lost = ({}, {}) if done is None else sort_out(done, places, work.ids)
            if done is not None and done.further and self._prints is not None:
                self._fingerprint(self._prints, wanted.positions[places], done.further[0])
            if done is not None and self._tray is not None:
                self._tray.put(work.ids, done)
            return made, {**found.failed, **lost}, found.bytes_moved
        raise Gone("nobody waits for these images any more")

    def _work(self, wanted: Wanted, places: Sequence[int]) -> Work:
        ids = wanted.ids[list(places)]
        work = all_steps(self._pipeline, ids, seed=self._seed, epoch=wanted.epoch, limits=self._desk.limits)
        if self._prints is None or not self._prints.missing(ids).any():
            return work
        return replace(work, also=(thumbnail_steps(),))

    def _fingerprint(
        self,
        prints: Fingerprints,
        positions: NDArray[np.int64],
        thumbnails: Sequence[NDArray[np.uint8] | None],
    ) -> None:
        missing = prints.missing(self._store.index.ids[positions])
        at = [place for place, one in enumerate(thumbnails) if one is not None and missing[place]]
        if at:
            made = np.stack([thumbnails[place][:, :, 0] for place in at])  # type: ignore[index]
            prints.put(positions[at], hash_thumbnails(made))

    def _keep(self, positions: NDArray[np.int64], made: Images) -> None:
        if self._pictures is not None and made:
            self._pictures.put(positions[list(made)], list(made.values()))

    def _gone(self) -> bool:
        return self._over or self._asker.gone()


def all_steps(
    pipeline: Pipeline, ids: NDArray[np.int64], *, seed: int = 0, epoch: int = 0, limits: Limits
) -> Work:
    """To take samples through a whole pipeline, to plain pixels."""
    return Work(
        pipeline=pipeline,
        seed=seed,
        epoch=epoch,
        ids=ids,
        cuts=np.full(len(ids), len(pipeline), np.uint8),
        codecs=["none"] * len(ids),
        limits=limits,
    )


def sort_out(
    done: Done, places: Sequence[int], ids: NDArray[np.int64]
) -> tuple[Images, dict[int, Exception]]:
    """Images and errors by place, of what workers made of them."""
    made: Images = {}
    lost: dict[int, Exception] = {}
    for number, place in enumerate(places):
        payload = done.payloads[number]
        if payload is None:
            lost[place] = SampleCorrupt(_ILL if int(ids[number]) in done.quarantined else _LOST)
        else:
            made[place] = np.frombuffer(payload, np.uint8).reshape(done.shapes[number].tolist())
    return made, lost
