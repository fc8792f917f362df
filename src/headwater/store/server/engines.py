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
from headwater.errors import ModelNotFound
from headwater.models.registry import Registry
from headwater.models.runtime import Engine
from headwater.models.version import ModelVersion
from headwater.store.server.decoding import Asker
from headwater.store.server.spending import pause, set_aside

log = logging.getLogger("headwater")

AT_ONCE = 16
"""Images that go through the layers between two looks at who else waits."""
_EVERYTHING = 1 << 62
_PATIENCE = 1.0
_FIRST_GUESS = 0.01  # CPU seconds per image, until something was measured
_LEARN = 0.3
_IN_MEMORY = 2  # bytes of a session for each byte of its tensors: ONNX Runtime packs weights anew


@dataclass
class Loaded:
    """An engine and what is known of it: `nbytes` in memory, CPU seconds per image."""

    engine: Engine
    nbytes: int
    seconds: float = _FIRST_GUESS
    lock: threading.Lock = field(default_factory=threading.Lock)

    def learn(self, seconds: float, images: int) -> None:
        """So many images took that long."""
        with self.lock:
            self.seconds += _LEARN * (seconds / images - self.seconds)


class Engines:
    """Sessions by trunk, `most_bytes` together: the one used least recently goes. For many threads."""

    def __init__(self, registry: Registry, cores: Cores, *, most_bytes: int) -> None:
        self._registry, self._cores, self.most_bytes = registry, cores, most_bytes
        self._line = Turnstile(math.ceil(cores.cores), _EVERYTHING)
        self._loaded: OrderedDict[str, Loaded] = OrderedDict()
        self._versions: dict[str, ModelVersion] = {}  # by trunk: manifests need not be read for each request
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
        if known is not None and known.digest in self._registry:
            return known
        for version in self._registry.versions():
            if version.trunk_digest == trunk:
                with self._lock:
                    self._versions[trunk] = version
                return version
        raise ModelNotFound(f"this store holds no model with the trunk {trunk[:12]}; push it first")

    def borrow(self, version: ModelVersion, asker: Asker) -> Borrowed:
        """The frozen layers of a version, loaded if need be, for one asker."""
        return Borrowed(self, self._load(version), asker)

    def _load(self, version: ModelVersion) -> Loaded:
        key = version.trunk_digest
        if (found := self._use(key)) is not None:
            return found
        with self._loading:  # one at a time: who wants the same waits for it, and memory is not taken twice
            if (found := self._use(key)) is not None:
                return found
            model = self._registry.get(version.digest)
            loaded = Loaded(Engine(model, threads=1), _IN_MEMORY * model.nbytes)
            with self._lock:
                self._loaded[key] = loaded
                self._shrink()
            return loaded

    def _use(self, key: str) -> Loaded | None:
        with self._lock:
            if key in self._loaded:
                self._loaded.move_to_end(key)
            return self._loaded.get(key)

    def _shrink(self) -> None:
        """Let the oldest go, but not the last; whoever uses one keeps it until he is done."""
        while len(self._loaded) > 1 and sum(each.nbytes for each in self._loaded.values()) > self.most_bytes:
            key, gone = self._loaded.popitem(last=False)
            log.info("the layers %s (%d bytes) are no longer loaded, to make room", key[:12], gone.nbytes)

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
        with self._engines.turn(self.seconds * len(images), self._asker, memory=images.nbytes):
            begun = time.thread_time()
            found = self._loaded.engine.features(images)
            self._loaded.learn(time.thread_time() - begun, len(images))
        return found
