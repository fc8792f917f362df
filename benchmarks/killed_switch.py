"""A store that is killed while versions are sent to it and switched, and what its registry holds then."""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from headwater.errors import HeadwaterError
from headwater.models.path import cheapest
from headwater.models.presets import PRESETS
from headwater.models.registry import Registry
from headwater.models.version import ModelVersion
from headwater.store.client.link import Link
from headwater.store.client.models import models_of
from headwater.store.pushing import push
from redistribution import new_head
from serving import Store, kill, serve
from tuners import TRUNK, state_of

LONGEST = 1.5
"""Seconds of a life, at most, from when the store is ready."""
CLASSES = 10
END_SECONDS = 60
QUICK = Link(deadline_seconds=2.0, give_up_seconds=0.2)
"""Whoever speaks to a store that is being killed does not wait for it."""


@dataclass
class Switches:
    """What became of a store's versions: kills, those in the midst of an answer, and what was wrong after."""

    kills: int = 0
    unanswered: int = 0
    answered: int = 0
    sent: set[str] = field(default_factory=set)
    broken: int = 0
    gone: int = 0
    neither: int = 0


class Changing:
    """Switches as fast as it can between two versions until it is stopped; if `sending`, sends new ones too.

    `asked` and `answered` are the last version that a switch to was asked for, and answered; `sent` are the
    versions of which the store said that it has them, `known` all that it may have got.
    """

    def __init__(self, store: Store, tuner: Tuner, *, sending: bool) -> None:
        self._store, self._tuner = store, tuner
        self.asked = self.answered = ""
        self.known, self.sent = {tuner.first.digest, tuner.second.digest}, set[str]()
        self.switches = 0
        self._over = threading.Event()
        works = (self._switch, self._send) if sending else (self._switch,)
        self._threads = [threading.Thread(target=work, daemon=True) for work in works]

    def __enter__(self) -> Changing:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(END_SECONDS)

    def _switch(self) -> None:
        with models_of(self._store.address, link=QUICK) as models, suppress(HeadwaterError):
            while not self._over.is_set():
                for version in (self._tuner.first, self._tuner.second):
                    self.asked = version.digest
                    self.answered = models.switch(TRUNK, self.asked).current
                    self.switches += 1

    def _send(self) -> None:
        with models_of(self._store.address, link=QUICK) as models, suppress(HeadwaterError):
            while not self._over.is_set():
                version = self._tuner.another()
                self.known.add(version.digest)
                (part,) = cheapest(self._tuner.registry, [self._tuner.first.digest], version.digest).parts
                models.send(part, switch=True)
                self.sent.add(version.digest)


class Tuner:
    """A registry with two versions that differ in their heads, and more as they are asked for."""

    def __init__(self, folder: Path) -> None:
        self.registry = Registry(folder)
        self._base, self._seed = PRESETS["efficientnet-lite0"](), 0
        self.first, self.second = self.another(), self.another()

    def another(self) -> ModelVersion:
        self._seed += 1
        model = new_head(self._base, CLASSES, seed=self._seed)
        return self.registry.put(model, name=TRUNK, switch=True)


class Switching:
    """A store whose versions change while it is killed."""

    def __init__(self, folder: Path, photos: Path) -> None:
        self._photos, self._tuner = photos, Tuner(folder / "tuner")
        self._held, flags = state_of(folder / "state")
        self._start = {"further": flags, "within": without_torch(folder)}
        self.found = Switches()

    def run(self, kills: int) -> Switches:
        dice = random.Random(1)
        with self._life() as store:
            for version in (self._tuner.first, self._tuner.second):
                (delivery,) = push(self._tuner.registry, [store.address], version.digest)
                if delivery.error is not None:
                    raise delivery.error
        for number in range(kills):
            self._kill(dice.uniform(0.0, LONGEST), sending=number % 2 == 0)
            print(f"switch, kill {number + 1} of {kills}", file=sys.stderr, flush=True)
        self._verify({version.digest for version in self._held.versions()})
        return self.found

    @contextmanager
    def _life(self) -> Iterator[Store]:
        """A store that says that what is in force is what its folder says, and that it verifies."""
        with serve(self._photos, **self._start) as store:
            with models_of(store.address) as models:
                for name in self._held.names():
                    digest = self._held.current(name).digest
                    agrees = models.inventory().current[name][0] == digest
                    self.found.neither += not (agrees and models.switch(name, digest).current == digest)
            yield store

    def _kill(self, seconds: float, *, sending: bool) -> None:
        before = self._held.current(TRUNK).digest
        with self._life() as store, Changing(store, self._tuner, sending=sending) as changing:
            time.sleep(seconds)
            kill(store)
        found = self.found
        found.kills += 1
        found.unanswered += changing.asked != changing.answered
        found.answered += changing.switches
        found.sent |= changing.sent
        in_force = self._held.current(TRUNK).digest
        answered = {changing.answered or before, changing.asked or before}
        found.neither += in_force not in (changing.known | {before} if sending else answered)
        there = {version.digest for version in self._held.versions()}
        found.gone += len(changing.sent - there)
        self._verify({in_force} | (changing.known & there))

    def _verify(self, digests: set[str]) -> None:
        """Count those that are not what their manifest says."""
        for digest in digests:
            try:
                model = self._held.get(digest)
                whole = model.facts == self._held.version(digest).tensors
            except HeadwaterError:
                whole = False
            self.found.broken += not whole


def without_torch(folder: Path) -> tuple[str, ...]:
    """Words before the command of a store that finds no torch: it starts in half the time."""
    stub = folder / "without" / "torch"
    stub.mkdir(parents=True)
    (stub / "__init__.py").write_text("raise ImportError('not installed')")
    paths = (str(stub.parent), os.environ.get("PYTHONPATH", ""))
    return ("env", f"PYTHONPATH={os.pathsep.join(filter(None, paths))}")
