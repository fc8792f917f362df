"""Models that are loaded at a store, and their turn at its cores.

A session has one thread, the caller's, so parallelism comes from several batches at once, at most one for
each core, and the thread's own clock tells what a batch took. The CPU itself is seen by `Cores` as the
process's own; what is set aside before a batch only keeps the next from beginning before it was spent.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from headwater.engine.budget import Busy, Cores, Gone, Turnstile
from headwater.engine.inference import Extractor
from headwater.errors import ModelNotFound
from headwater.models.crossing import Crossings
from headwater.models.cutting import find_crossings
from headwater.models.model import Model
from headwater.models.parts import FirstLayers
from headwater.models.registry import Registry
from headwater.models.runtime import Engine
from headwater.models.version import ModelVersion
from headwater.store.server.decoding import Asker
from headwater.store.server.spending import pause, set_aside

log = logging.getLogger("headwater")

AT_ONCE = 16
"""Images that go through the layers between two looks at who else waits."""
MOST_CUT = 4
"""How many sessions that end at a cut are loaded: their activations count for more than their tensors."""
_EVERYTHING = 1 << 62
_PATIENCE = 1.0
_FIRST_GUESS = 0.01  # CPU seconds per image, until something was measured
_LEARN = 0.3
_IN_MEMORY = 2  # bytes of a session for each byte of its tensors: ONNX Runtime packs weights anew
_FLOAT = 4  # bytes of a value that layers give

Key = tuple[str, str]
"""A trunk's digest and the name of a cut; empty: all layers."""


@dataclass
class Loaded:
    """Layers and what is known of them: `nbytes` in memory, CPU seconds per image."""

    engine: Extractor
    nbytes: int
    seconds: float = _FIRST_GUESS
    lock: threading.Lock = field(default_factory=threading.Lock)

    def learn(self, seconds: float, images: int) -> None:
        """So many images took that long."""
        with self.lock:
            self.seconds += _LEARN * (seconds / images - self.seconds)


class Engines:
    """Sessions by trunk and cut, `most_bytes` together: the one used least recently goes.

    Safe to use from many threads.
    """

    def __init__(self, registry: Registry, cores: Cores, *, most_bytes: int) -> None:
        self._registry, self._cores, self.most_bytes = registry, cores, most_bytes
        self._line = Turnstile(math.ceil(cores.cores), _EVERYTHING)
        self._loaded: OrderedDict[Key, Loaded] = OrderedDict()
        self._versions: dict[str, ModelVersion] = {}  # by trunk: manifests need not be read for each request
        self._crossings: dict[str, Crossings] = {}  # by trunk
        self._lock, self._loading = threading.Lock(), threading.Lock()

    @property
    def nbytes(self) -> int:
        """Bytes of all sessions that are loaded, about."""
        with self._lock:
            return sum(loaded.nbytes for loaded in self._loaded.values())

    def find(self, trunk: str) -> ModelVersion:
        """A version with this trunk; raises `ModelNotFound`."""
        with self._lock:
            known = self._versions.get(trunk)
        sealed = self._registry.sealed()
        if known is not None and known.digest in self._registry and known.digest not in sealed:
            return known
        for version in self._registry.versions():
            if version.trunk_digest == trunk and version.digest not in sealed:
                with self._lock:
                    self._versions[trunk] = version
                return version
        raise ModelNotFound(f"this store holds no model with the trunk {trunk[:12]}; push it first")

    def width(self, version: ModelVersion, cut: str = "") -> int:
        """Numbers for an image; raises `ModelNotFound` for a cut that the layers do not have."""
        return self.crossings(version).find(cut).width if cut else version.features

    def crossings(self, version: ModelVersion) -> Crossings:
        """Where the frozen layers of a version may be cut."""
        trunk = version.trunk_digest
        if trunk not in self._crossings:
            self._crossings[trunk] = find_crossings(self._registry.graph(version.graphs["trunk"]))
        return self._crossings[trunk]

    def borrow(self, version: ModelVersion, asker: Asker, cut: str = "") -> Borrowed:
        """The frozen layers of a version, up to a cut if one is named, loaded if need be, for one asker."""
        return Borrowed(self, self._load(version, cut), asker)

    def _load(self, version: ModelVersion, cut: str) -> Loaded:
        key = version.trunk_digest, cut
        if (found := self._use(key)) is not None:
            return found
        with self._loading:  # one at a time: who wants the same waits for it, and memory is not taken twice
            if (found := self._use(key)) is not None:
                return found
            loaded = self._make(self._registry.get(version.digest), version, cut)
            with self._lock:
                self._loaded[key] = loaded
                self._shrink()
            return loaded

    def _make(self, model: Model, version: ModelVersion, cut: str) -> Loaded:
        if not cut:
            return Loaded(Engine(model, threads=1), _IN_MEMORY * model.nbytes)
        first = FirstLayers(model, self.crossings(version).find(cut), threads=1)
        return Loaded(first, _IN_MEMORY * first.nbytes)

    def _use(self, key: Key) -> Loaded | None:
        with self._lock:
            if key in self._loaded:
                self._loaded.move_to_end(key)
            return self._loaded.get(key)

    def _shrink(self) -> None:
        """Let the oldest go, but not the last; whoever uses one keeps it until he is done."""
        for key in [key for key in self._loaded if key[1]][:-MOST_CUT]:
            self._drop(key)
        while len(self._loaded) > 1 and sum(each.nbytes for each in self._loaded.values()) > self.most_bytes:
            self._drop(next(iter(self._loaded)))

    def _drop(self, key: Key) -> None:
        gone = self._loaded.pop(key)
        log.info("the layers %s (%d bytes) are no longer loaded, to make room", key[0][:12], gone.nbytes)

    @contextmanager
    def turn(self, seconds: float, asker: Asker, *, memory: int) -> Iterator[None]:
        """Wait for the line and for cores, however long that takes; raises `Gone`."""
        while not asker.gone():
            enter = partial(self._line.enter, asker.caller, asker.client, priority=asker.priority)
            try:
                turn = enter(memory=memory, patience=_PATIENCE, gone=asker.gone)
            except Busy:
                continue
            with turn:
                reserved = set_aside(self._cores, seconds, priority=asker.priority, gone=asker.gone)
                if reserved is not None:
                    with reserved:
                        yield
                    return
            pause()  # outside of the line: who matters more goes first
        raise Gone("nobody waits for this model's answer any more")

    @contextmanager
    def spend(self, seconds: float, asker: Asker) -> Iterator[None]:
        """Wait for cores only: what runs no layers keeps nobody from the line. Raises `Gone`."""
        while not asker.gone():
            reserved = set_aside(self._cores, seconds, priority=asker.priority, gone=asker.gone)
            if reserved is not None:
                with reserved:
                    yield
                return
            pause()
        raise Gone("nobody waits for this work any more")


class Borrowed:
    """An `Extractor` that takes its turn."""

    def __init__(self, engines: Engines, loaded: Loaded, asker: Asker) -> None:
        self._engines, self._loaded, self._asker = engines, loaded, asker

    @property
    def width(self) -> int:
        return self._loaded.engine.width

    @property
    def seconds(self) -> float:
        """CPU that an image takes, as far as that was measured."""
        return self._loaded.seconds

    def features(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        parts = [self._run(images[begin : begin + AT_ONCE]) for begin in range(0, len(images), AT_ONCE)]
        return np.concatenate(parts) if parts else np.empty((0, self.width), np.float32)

    def _run(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        memory = images.nbytes + _FLOAT * self.width * len(images)
        with self._engines.turn(self.seconds * len(images), self._asker, memory=memory):
            begun = time.thread_time()
            found = self._loaded.engine.features(images)
            self._loaded.learn(time.thread_time() - begun, len(images))
        return found
