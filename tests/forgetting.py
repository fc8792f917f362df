"""What tests of forgetting share: local data with a head, labels, caches, and all that may hold a trace."""

from __future__ import annotations

import os
import shutil
import signal
import traceback
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import headwater as hw
from headwater.data.forgetting import Audit
from headwater.data.forgotten import forgotten_folder
from headwater.models.registry import Registry
from headwater.store.labels import open_labels
from headwater.tune.again import HeadAgain
from headwater.tune.forget.places import Here
from headwater.tune.forget.survey import Scene, Wish, look_around
from headwater.tune.forget.traces import Marks, Trace, find_traces
from headwater.tune.forget.work import Forgot, Watch, forget
from headwater.tune.here import relabel_here
from headwater.tune.recipe import Recipe
from headwater.tune.relabel import Wish as RelabelWish
from headwater.tune.tuner import Tuner
from tunings import make_registry, write_colours

RECIPE = Recipe(epochs=3, runs=2, batch_size=32, seed=7)
NAME = "colours"
FEATURE_BYTES = 1 << 24
STEPS = (
    *("record", "replay", f"keep {NAME}", f"note {NAME}", "bring", "forget", "relabel", "seal", "seal here"),
    *("caches", "meanwhile", "files", "audit", "end"),
)
"""Of forgetting, as a watch is told of them."""


@dataclass(frozen=True)
class Home:
    """One user's folders: data, registry, labels, cache and what was forgotten, all below one folder."""

    folder: Path

    @property
    def data(self) -> Path:
        return self.folder / "colours"

    @property
    def registry(self) -> Registry:
        return Registry(self.folder / "models")

    @property
    def labels(self) -> Path:
        return self.folder / "labels.db"

    @property
    def scene(self) -> Scene:
        here = Here(str(self.data), self.registry, NAME, str(self.labels), FEATURE_BYTES)
        return Scene((here,), self.registry, lambda: hw.open(self.data))

    @property
    def kept(self) -> list[Path]:
        """All that Headwater keeps, and not the data."""
        return [path for path in self.folder.iterdir() if path != self.data]

    def use(self, patch: pytest.MonkeyPatch) -> None:
        """Let this process keep everything here, and torch use one thread: on a busy machine those of a team
        wait for each other for long."""
        patch.setenv("HEADWATER_CACHE", str(self.folder / "cache"))
        patch.setenv("HEADWATER_FORGOTTEN", str(self.folder / "forgotten"))
        torch.set_num_threads(1)

    def set_up(self) -> None:
        """A head that was fine-tuned with a journal, labels that it gave, and features that were kept."""
        write_colours(self.data, count=20)
        make_registry(self.folder / "models")
        self.scene.hashes([0])  # so that all copies have one key
        with closing(hw.open(self.data)) as data:
            Tuner(data, "plain", registry=self.registry, recipe=RECIPE).fit(NAME, journal=True)
            self.relabel()

    def relabel(self) -> None:
        with closing(hw.open(self.data)) as data, closing(open_labels(self.labels)) as labels:
            wish = RelabelWish(dataset=NAME, model=NAME)
            relabel_here(data, self.registry, labels, wish, feature_bytes=FEATURE_BYTES)

    def forget(self, wish: Wish, *, watch: Watch = lambda step: None) -> Forgot:
        return forget(self.scene, look_around(self.scene, wish), watch=watch)

    def marks(self, id: int) -> Marks:
        """What a sample is known by, while it is there."""
        with closing(hw.open(self.data)) as data:
            sample = data.select([id])[0]
            return Marks.of(id, sample.key, bytes(sample.data))

    def traces(self, marks: Marks) -> list[Trace]:
        return find_traces(self.kept, marks)


@contextmanager
def copied(template: Path, patch: pytest.MonkeyPatch) -> Iterator[Home]:
    """A copy of the home that lies in a template's `kept`, in use until the end."""
    home = Home(template / "home")
    shutil.copytree(template / "kept", home.folder)
    home.use(patch)
    yield home
    shutil.rmtree(home.folder)


def choose_ids(home: Home) -> tuple[int, ...]:
    with closing(hw.open(home.data)) as data:
        return tuple(HeadAgain(data, NAME, registry=home.registry).ids[[3, 40]].tolist())


def state_of(home: Home) -> dict[str, Any]:
    """All that may be told of it afterwards; times and random keys aside."""
    registry = home.registry
    with closing(hw.open(home.data)) as data, closing(open_labels(home.labels)) as labels:
        rows = labels.search(NAME, limit=1000)
        return {
            "data": (data.version, len(data)),
            "in force": registry.in_force(),
            "sealed": registry.sealed(),
            "versions": {version.digest for version in registry.versions()},
            "journals": sorted(path.name for path in (registry.folder / "journals").iterdir()),
            "labels": [rows.samples.tolist(), rows.labels.tolist(), rows.sources.tolist()],
            "by": labels.count_by(NAME, registry.in_force().values()),
            "audit": [len(line["hashes"]) for line in Audit(forgotten_folder()).lines()],
            "plans": sorted((forgotten_folder() / "plans").iterdir()),
        }


def kill_at(step: str, home: Home, wish: Wish) -> None:
    """Forget in a child that kills itself when a step begins."""

    def watch(begun: str) -> None:
        if begun == step:
            os.kill(os.getpid(), signal.SIGKILL)

    child = os.fork()
    if not child:
        try:
            home.forget(wish, watch=watch)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status), f"not killed at {step!r}"
