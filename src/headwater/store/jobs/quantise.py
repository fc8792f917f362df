"""int8 layers for a version of a model, calibrated and judged on the data where they will run.

Nothing of it is kept until the end, so a process that is killed begins anew, and puts the same version.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headwater.data.index import Index
from headwater.engine.budget import Gone
from headwater.engine.inference import Extraction, Extractor
from headwater.errors import DatasetStale
from headwater.models.quantise import MOST_IMAGES, Pixels, Quantised, Turn
from headwater.models.quantise import quantise as make_int8
from headwater.models.registry import Registry
from headwater.models.version import ModelVersion
from headwater.store.jobs.record import JobRecord
from headwater.store.jobs.runner import Running

HOLD = "hold"
"""Of a job's options: keep the int8 version, but do not put it in force."""


@dataclass(frozen=True)
class Kiln:
    """Where it is done: a dataset, the models, how images come to the layers, and whose turn it is.

    `extraction` puts something else in the place of the layers, and does without threads, so that images
    come in order.
    """

    dataset: str
    index: Index
    registry: Registry
    extraction: Callable[[Extractor], Extraction]
    turn: Turn = nullcontext
    threads: int = 1


def quantise(kiln: Kiln, running: Running) -> None:
    """Make the layers of the job's version int8, and keep that as a version if it gives the same labels.

    Its parent is the job's version, and where that is in force it takes its place, unless it is to be held.
    The record says what was found. Raises `DatasetStale`, `ModelNotFound`, `WrongUse` for a version that is
    int8 already, and `ModelError` for layers that cannot be.
    """
    record = running.record
    if record.version != kiln.index.version:
        raise DatasetStale(f"dataset {kiln.dataset!r} has another version by now; start another job")
    version = kiln.registry.version(record.model)
    try:
        images = _look_at(kiln, running)
        found = make_int8(
            kiln.registry.get(version.digest),
            images,
            bound=record.bound,
            threads=kiln.threads,
            turn=kiln.turn,
        )
    except Gone:
        if not running.over():
            raise
        return
    if not running.over():
        kept = _keep(kiln.registry, version, found, record) if found.accepted else ""
        running.save(result=kept, said=found.reason, figures=_figures(found))


def _look_at(kiln: Kiln, running: Running) -> list[Pixels]:
    """Images from all over the data, in no particular order, as the layers would get them."""
    count = min(MOST_IMAGES, len(kiln.index))
    positions = np.arange(count) * len(kiln.index) // max(count, 1)
    running.save(total=count, cursor=0)
    album = Album()
    for batch in kiln.extraction(album).run(positions, kiln.index.ids[positions]):
        running.save(cursor=running.record.cursor + len(batch.ids) + len(batch.failures))
        if running.over():
            raise Gone("nobody waits for this version any more")
    return [album.images[place] for place in np.random.default_rng(0).permutation(len(album.images))]


class Album:
    """An `Extractor` that keeps images and makes nothing of them."""

    width = 0

    def __init__(self) -> None:
        self.images: list[Pixels] = []

    def features(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        self.images.extend(images)
        return np.empty((len(images), 0), np.float32)


def _keep(registry: Registry, version: ModelVersion, found: Quantised, record: JobRecord) -> str:
    """The digest of the new version."""
    in_force = registry.in_force().get(version.name) == version.digest
    kept = registry.put(
        found.model,
        name=version.name,
        parent=version.digest,
        made={**found.made, "data": record.version},
        switch=in_force and not record.options.get(HOLD, False),
    )
    return kept.digest


def _figures(found: Quantised) -> dict[str, float]:
    measured = {"agreement": found.agreement, "correlation": found.correlation, "speedup": found.speedup}
    return {name: value for name, value in measured.items() if value is not None}
