"""Where images become features: in this process, at the stores that hold them, or in part at either."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from headwater.data.pipeline import Pipeline
from headwater.data.steps import catalogue
from headwater.engine.chain import Chain
from headwater.engine.crew import Crew, available_cores
from headwater.engine.fetching import Reader
from headwater.engine.inference import Extraction, FeatureBatch, Gathering
from headwater.engine.meter import Meter
from headwater.errors import StoreLost
from headwater.loader.threads import use_one_core
from headwater.models.crossing import Crossing, Crossings
from headwater.models.cutting import find_crossings
from headwater.models.model import Model
from headwater.models.parts import LastLayers
from headwater.models.runtime import Engine
from headwater.models.version import ModelVersion
from headwater.plan.offload import Offload
from headwater.store.base import Store
from headwater.store.client.remote import RemoteStore
from headwater.store.client.replicas import Replicas
from headwater.store.dataset import Dataset
from headwater.store.gathering import feature_reader
from headwater.tune.runs import LOT, Places

GLIMPSE = 8
"""How many images are kept to time parts of the layers on."""


class _Watched:
    """Layers, how long they have worked, and some of the first images that they saw."""

    def __init__(self, layers: Engine) -> None:
        self._layers, self._lock = layers, threading.Lock()
        self.seconds = 0.0
        self.images: NDArray[np.uint8] | None = None

    @property
    def width(self) -> int:
        return self._layers.width

    def features(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        begun = time.perf_counter()
        found = self._layers.features(images)
        with self._lock:
            self.seconds += time.perf_counter() - begun
            if self.images is None:
                self.images = images[:GLIMPSE].copy()
        return found


class Here:
    """All layers run in this process: on a laptop, and where images cross the link after all."""

    def __init__(self, dataset: Dataset, model: Model, *, seed: int) -> None:
        self._store, self._seed = dataset.store, seed
        # Several batches at once, a core each: a session that shares cores with others waits for them.
        self._engine = _Watched(Engine(model, threads=1))
        self._meter, self._made = Meter(), 0
        self._crew = Crew(
            available_cores(), self._store.readers, prepare=use_one_core, patient=self._store.remote
        )

    @property
    def bytes_moved(self) -> int:
        return self._meter.stats().bytes_moved

    @property
    def seconds(self) -> float:
        """What steps and layers have taken for an image so far, on one core."""
        return self._meter.stats().work_seconds.get("steps", 0.0) / max(1, self._made)

    @property
    def layer_seconds(self) -> float:
        """The layers' part of that."""
        return self._engine.seconds / max(1, self._made)

    @property
    def glimpse(self) -> NDArray[np.uint8] | None:
        """A few images as the layers got them; None until there were some."""
        return self._engine.images

    def run(self, positions: Places, ids: Places, *, steps: Pipeline, variant: int) -> Iterator[FeatureBatch]:
        chain = Chain(steps.samplewise, self._seed)
        extraction = Extraction(
            lambda: self._store.reader(chain, (Offload(0),)), chain, self._engine, self._crew, self._meter
        )
        for batch in extraction.run(positions, ids, epoch=variant):
            self._made += len(batch.ids)
            yield batch

    def close(self) -> None:
        self._crew.close()


@dataclass(frozen=True, eq=False)
class Behind:
    """A cut, and the layers behind it, which run in this process."""

    cut: Crossing
    layers: LastLayers

    @classmethod
    def of(cls, model: Model, cut: Crossing) -> Behind:
        return cls(cut, LastLayers(model, cut, threads=1))


class AtStores:
    """Stores run the layers, and features cross; of replicas as many are asked as were planned for.

    If those are lost, all are asked. With a `behind`, stores run the layers up to its cut, what they give
    crosses, and the others run here, on several batches at once, a core each.
    """

    def __init__(
        self,
        dataset: Dataset,
        version: ModelVersion,
        *,
        seed: int,
        stores: int,
        behind: Behind | None = None,
    ) -> None:
        self._version, self._seed, self._behind = version, seed, behind
        self._width = version.features if behind is None else behind.cut.width
        self._all, self._asked = dataset.store, _some(dataset.store, stores)
        self._meter, self._made = Meter(), 0
        self._crew = Crew(1 if behind is None else available_cores(), dataset.store.readers, patient=True)

    @property
    def bytes_moved(self) -> int:
        return self._meter.stats().bytes_moved

    @property
    def bytes_each(self) -> float:
        """What crossed for an image so far; until there was one, what it has unpacked."""
        return self.bytes_moved / self._made if self._made else 2.0 * self._width

    def run(self, positions: Places, ids: Places, *, steps: Pipeline, variant: int) -> Iterator[FeatureBatch]:
        done = 0
        try:
            for batch in self._gather(positions, ids, steps, variant):
                self._made += len(batch.ids)
                yield batch
                done += LOT
        except StoreLost:
            if self._asked is self._all:
                raise
            self._asked = self._all
            yield from self._gather(positions[done:], ids[done:], steps, variant)

    def _gather(
        self, positions: Places, ids: Places, steps: Pipeline, variant: int
    ) -> Iterator[FeatureBatch]:
        # The model's own steps draw nothing: without a seed their features are those that stores keep.
        own = steps == Pipeline.from_spec(self._version.steps, catalogue())
        asked, trunk, width = self._asked, self._version.trunk_digest, self._width
        cut, rest = ("", None) if self._behind is None else (self._behind.cut.name, self._behind.layers)

        def reader() -> Reader:
            spec, seed = ((), 0) if own else (steps.samplewise.spec(), self._seed)
            return feature_reader(asked, trunk, width=width, steps=spec, seed=seed, cut=cut)

        gathering = Gathering(reader, width, self._crew, self._meter, rest)
        return gathering.run(positions, ids, epoch=variant)

    def close(self) -> None:
        self._crew.close()


def _some(store: Store, count: int) -> Store:
    """The first so many replicas; of shards all, because each has what the others lack."""
    if not isinstance(store, RemoteStore) or count >= len(store.replicas.all):
        return store
    few = [replica.connection for replica in store.replicas.all[:count]]
    return RemoteStore(Replicas(few), store.known)


@dataclass(frozen=True, eq=False)
class Sources:
    """Makes all kinds for one model and dataset."""

    dataset: Dataset
    version: ModelVersion
    model: Model
    seed: int

    def among(self, stores: int) -> Sources:
        """The same with so many of the replicas."""
        few = _some(self.dataset.store, stores)
        return replace(self, dataset=Dataset(few, self.dataset.positions()))

    def here(self) -> Here:
        return Here(self.dataset, self.model, seed=self.seed)

    def at_stores(self, stores: int) -> AtStores:
        """With so many of the replicas."""
        return AtStores(self.dataset, self.version, seed=self.seed, stores=stores)

    def behind(self, cut: str, stores: int) -> AtStores:
        """With so many of the replicas, which end at this cut; raises `ModelNotFound` for an unknown one."""
        behind = Behind.of(self.model, self.crossings.find(cut))
        return AtStores(self.dataset, self.version, seed=self.seed, stores=stores, behind=behind)

    @cached_property
    def crossings(self) -> Crossings:
        """Where the layers may be cut."""
        return find_crossings(self.model.trunk)
