"""Where features are made at a store: a dataset, frozen layers, and what is kept of both."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TypeVar

from headwater.data.pipeline import Pipeline
from headwater.engine.budget import Cores
from headwater.engine.chain import Chain
from headwater.engine.crew import Crew
from headwater.engine.fingerprints import Fingerprinting
from headwater.engine.inference import Extraction, crossing_at
from headwater.engine.places import Ids
from headwater.errors import HeadwaterError, ModelError
from headwater.models.version import ModelVersion
from headwater.store.cabinet import Cabinet
from headwater.store.features import OWN, Features, Pictures, Variation
from headwater.store.fingerprints import Fingerprints, thumbnail_steps
from headwater.store.local import LocalStore
from headwater.store.server.crops import Tray
from headwater.store.server.decoding import Asker, Decoding
from headwater.store.server.desk import Desk
from headwater.store.server.engines import Engines
from headwater.store.server.state import State
from headwater.store.wire.messages import FeatureRequest

log = logging.getLogger("headwater")

T = TypeVar("T")

MODELS_SHARE = 0.5
"""Of a store's memory, and on top of it: what the layers that are loaded may have."""


@dataclass(frozen=True)
class Studio:
    """Frozen layers over the samples of one dataset, at a store and within its budget.

    `store` holds the samples: that of the dataset when the studio was opened, whatever is served under its
    name since. `cabinet` keeps features, `pictures` what they are made of; None keeps none. With a `cut` the
    layers end there: what they give is larger than features, serves one fine-tuning, and is never kept.
    """

    desk: Desk
    engines: Engines
    dataset: str
    store: LocalStore
    version: ModelVersion
    variation: Variation = OWN
    cabinet: Cabinet | None = None
    pictures: Cabinet | None = None
    cut: str = ""

    @property
    def width(self) -> int:
        """Numbers for an image; raises `ModelNotFound` for a cut that the layers do not have."""
        return self.engines.width(self.version, self.cut)

    def kept(self) -> Features | None:
        """The features that are kept, and where more can be; None also where their files cannot be used."""
        if self.cabinet is None or self.cut:
            return None
        try:
            return Features(
                self.cabinet,
                self.store.index,
                dataset=self.dataset,
                version=self.version,
                variation=self.variation,
            )
        except (OSError, HeadwaterError) as error:
            _tell_unkept("features", error)
            return None

    def extraction(
        self,
        asker: Asker,
        crew: Crew | None = None,
        *,
        prints: Fingerprints | None = None,
        tray: Tray | None = None,
    ) -> Extraction:
        """From files to features; in the caller's thread unless there is a crew.

        What is decoded for it is fingerprinted too, where `prints` are given to keep that, and held at the
        cut of a `tray`.
        """
        pipeline = self.variation.pipeline(self.version)
        kept = self._pictures(pipeline)
        first, rest = pipeline.cut(len(pipeline) if tray is None else tray.cut)

        def reader() -> Decoding:
            return Decoding(
                self.desk,
                self.store,
                pipeline=first,
                asker=asker,
                seed=self.variation.seed,
                pictures=kept,
                prints=prints,
                tray=tray,
            )

        left = Chain(rest, self.variation.seed, self.desk.limits)
        layers = self.engines.borrow(self.version, asker, self.cut)
        crew = crew or Crew(workers=0, readers=0)
        return Extraction(reader, left, layers, crew, of=crossing_at(self.cut))

    def tray(self) -> Tray | None:
        """Where images are held on their way, if a trainer asks for them as they are there."""
        return self.desk.prefix.crops.open(
            self.store.index.version,
            self.variation.pipeline(self.version),
            seed=self.variation.seed,
            epoch=self.variation.epoch,
            limits=self.desk.limits,
        )

    def _pictures(self, pipeline: Pipeline) -> Pictures | None:
        if self.pictures is None or not self.variation.is_own:
            return None
        try:
            return Pictures(self.pictures, self.store.index, dataset=self.dataset, pipeline=pipeline)
        except (OSError, HeadwaterError) as error:
            _tell_unkept("images", error)
            return None


class Studios:
    """Opens studios. Engines, and the folders of what is kept, are opened when they are first asked for.

    `feature_bytes` and `image_bytes` bound what is kept of features and of the images that they are made
    of; 0 keeps none. Safe to use from many threads.
    """

    def __init__(
        self, state: State | None, desk: Desk, cores: Cores, *, feature_bytes: int, image_bytes: int = 0
    ) -> None:
        self._state, self._desk, self._cores = state, desk, cores
        self._bytes = {"features": feature_bytes, "images": image_bytes}
        self._lock = threading.RLock()
        self._engines: Engines | None = None
        self._cabinets: dict[str, Cabinet] = {}

    @property
    def engines(self) -> Engines:
        """The models that are loaded; raises `ModelError` at a store that keeps none."""
        if self._state is None:
            raise ModelError("this store keeps no models; start it with --state FOLDER")
        with self._lock:
            if self._engines is None:
                most = int(self._desk.budget.memory * MODELS_SHARE)
                self._engines = Engines(self._state.registry, self._cores, most_bytes=most)
            return self._engines

    @property
    def loaded_bytes(self) -> int:
        """Bytes of the models that are loaded."""
        return 0 if self._engines is None else self._engines.nbytes

    @property
    def kept_bytes(self) -> int:
        """Bytes on disk of all that is kept."""
        return sum(cabinet.nbytes for cabinet in list(self._cabinets.values()))

    def open(self, dataset: str, version: ModelVersion, variation: Variation = OWN) -> Studio:
        return Studio(
            self._desk,
            self.engines,
            dataset,
            self._desk.datasets[dataset],
            version,
            variation,
            cabinet=self._cabinet("features"),
            pictures=self._cabinet("images"),
        )

    def fingerprints(self, dataset: str) -> Fingerprints | None:
        """Those that are kept, beside features, and where more can be; None where none are."""
        cabinet = self._cabinet("features")
        if cabinet is None:
            return None
        try:
            return Fingerprints(cabinet, self._desk.datasets[dataset].index, dataset=dataset)
        except (OSError, HeadwaterError) as error:
            _tell_unkept("fingerprints", error)
            return None

    def fingerprinting(self, dataset: str, asker: Asker, crew: Crew) -> Fingerprinting:
        """From files to fingerprints."""
        desk, store = self._desk, self._desk.datasets[dataset]
        nothing_left = Chain(Pipeline(()), limits=desk.limits)
        return Fingerprinting(
            lambda: Decoding(desk, store, pipeline=thumbnail_steps(), asker=asker), crew, nothing_left
        )

    def erase(self, dataset: str, ids: Ids) -> dict[str, int]:
        """Write over what is kept of samples of a dataset; how many entries, of `features` and of `images`.

        Fingerprints of pictures lie with features. Of `crops`, which are in memory, all are let go of.
        """
        cabinets = {name: self._cabinet(name) for name in self._bytes}
        found = {
            name: cabinet.erase(dataset, ids) for name, cabinet in cabinets.items() if cabinet is not None
        }
        return {**found, "crops": self._desk.prefix.crops.forget(ids)}

    def answer(self, request: FeatureRequest) -> Studio:
        """For a request; raises `ModelNotFound` where the store does not hold its trunk, or no such cut."""
        variation = Variation(request.steps, request.seed, request.epoch)
        engines = self.engines
        version = self._hiding(lambda: engines.find(request.model))
        self._hiding(lambda: engines.width(version, request.cut))
        return replace(self.open(request.dataset, version, variation), cut=request.cut)

    def close(self) -> None:
        with self._lock, ExitStack() as stack:
            for cabinet in self._cabinets.values():
                stack.callback(cabinet.close)

    def _cabinet(self, name: str) -> Cabinet | None:
        """None where nothing is to be kept, or can be."""
        if not self._bytes[name] or self._state is None:
            return None
        with self._lock:
            try:
                if name not in self._cabinets:
                    folder = self._state.subfolder(name)
                    self._cabinets[name] = Cabinet(folder, most_bytes=self._bytes[name])
            except (OSError, HeadwaterError) as error:
                _tell_unkept(name, error)
            return self._cabinets.get(name)

    def _hiding(self, call: Callable[[], T]) -> T:
        """Errors do not tell where the store's folder lies."""
        assert self._state is not None
        try:
            return call()
        except HeadwaterError as error:
            raise self._state.hide(error) from error


def _tell_unkept(what: str, error: Exception) -> None:
    log.warning("%s are made and not kept: %s", what, error)
