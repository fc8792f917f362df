"""Forgetting, from the first step to the last; killed at any of them, it goes on when it is asked again.

The order is what makes that so. The replay needs the samples' features and comes first; the new version is in
force everywhere before the samples go; labels are renewed before the versions that gave them are sealed; and
what names the samples in clear, the task itself, goes last.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from headwater.data.forgetting import Audit
from headwater.engine.together import all_at_once
from headwater.errors import StateMismatch
from headwater.store.dataset import Dataset
from headwater.store.wire.messages import ForgottenThere
from headwater.tune.forget.barred import told
from headwater.tune.forget.cached import purge_cache
from headwater.tune.forget.newcomers import find_newcomers
from headwater.tune.forget.places import Place
from headwater.tune.forget.survey import Ids, Scene, Survey
from headwater.tune.forget.task import Desk, Task

Watch = Callable[[str], None]
"""Told of each step when it begins."""

_NAMED = 64


@dataclass
class Forgot:
    """What became of it: what was found and is gone, by place; how new versions got there; labels that were
    renewed; seconds by step."""

    task: Task
    found: dict[str, ForgottenThere] = field(default_factory=dict)
    brought: dict[str, dict[str, str | int]] = field(default_factory=dict)
    relabelled: dict[str, dict[str, int]] = field(default_factory=dict)
    cached: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    resumed: bool = False


def forget(scene: Scene, survey: Survey, *, watch: Watch = lambda step: None) -> Forgot:
    """Do what a survey says, or what is left of it. Raises what a place does; asked again, it goes on.

    Raises `StateMismatch` where others have forgotten samples since the survey, or put a version in force.
    """
    with scene.alone(models=survey.task.models):
        return carry_out(scene, survey, watch=watch)


def carry_out(scene: Scene, survey: Survey, *, watch: Watch = lambda step: None) -> Forgot:
    """The same for who is `alone` already."""
    if survey.stamp != scene.stamp:
        raise StateMismatch(
            "since it was looked at what is to be forgotten, other samples have been forgotten, or another "
            "version of a model came into force; look again"
        )
    return _Work(scene, survey, watch).run()


class _Work:
    def __init__(self, scene: Scene, survey: Survey, watch: Watch) -> None:
        self._scene, self._registry, self._watch = scene, scene.registry, watch
        self._desk = Desk(scene.folder, survey.task)
        self._done = Forgot(survey.task, resumed=survey.resumed)

    @property
    def _task(self) -> Task:
        return self._desk.task

    def run(self) -> Forgot:
        steps: list[tuple[str, Callable[[], None]]] = [
            ("record", self._record),
            ("replay", self._replay),
            ("bring", self._bring),
            ("forget", self._forget),
            ("relabel", self._relabel),
            ("seal", self._seal),
            ("caches", self._purge),
            ("meanwhile", self._seal_newcomers),
            ("files", self._delete_files),
            ("audit", self._note),
            ("end", self._desk.end),
        ]
        for name, step in steps:
            with self._timed(name):
                step()
        self._done.task = self._task
        return self._done

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        begun = time.monotonic()
        with told(name):
            self._watch(name)
            yield
        self._done.seconds[name] = time.monotonic() - begun

    def _record(self) -> None:
        self._desk.save()

    def _replay(self) -> None:
        """Nothing has changed yet: a request whose replay fails is dropped, and may be made otherwise."""
        waiting = {name: old for name, old in self._task.old.items() if name not in self._task.new}
        if not waiting:
            return
        try:
            with closing(self._scene.open_data()) as data:
                for name, old in waiting.items():
                    self._replay_one(data, name, old)
        except Exception:
            self._desk.end()
            raise

    def _replay_one(self, data: Dataset, name: str, old: str) -> None:
        from headwater.tune.again import HeadAgain

        task = self._task
        again = HeadAgain(data, old, registry=self._registry)
        gone = self._gone_from(again.ids, data)
        new = again.without(gone.tolist(), method=task.method)
        done = new.retrained
        facts = {"samples": len(gone), "method": done.method, "error": done.error}
        made = {
            "by": "forget",
            "from": old,
            "data": task.after,
            "samples": int(again.version.made.get("samples", 0)) - len(gone),
            "accuracy": [],  # nobody has measured this head
            "forgot": {**facts, "hashes": sorted(self._scene.hashes(gone.tolist()))[:_NAMED]},
        }
        self._watch(f"keep {name}")
        version = again.keep(new, name=name, made=made)
        facts |= {"reason": done.reason, "work": done.work, "seconds": done.seconds}
        self._watch(f"note {name}")
        self._desk.save(new={**task.new, name: version.digest}, facts={**task.facts, name: facts})

    def _gone_from(self, ids: Ids, data: Dataset) -> Ids:
        """Who of these goes; also who was forgotten before while models were left as they are."""
        named = np.intersect1d(np.array(self._task.ids, np.int64), ids)
        missing = ids[~data.index.has(ids)]
        return np.union1d(named, missing[self._scene.past.know(missing)])

    def _bring(self) -> None:
        """In force here, and wherever one that saw the samples is."""
        for name, new in self._task.new.items():
            now = self._registry.in_force().get(name)
            if now is None or now in self._task.sealed:  # else somebody has put another in force since
                # What replaces a version in force may be as little measured as that one was.
                self._registry.switch(name, new, unmeasured=True)
        if self._task.new:
            self._everywhere(self._bring_to)

    def _bring_to(self, place: Place) -> None:
        for name, digest in place.models().in_force.items():
            if digest in self._task.sealed:
                self._watch(f"bring {name} to {place.name}")
                new = self._replacement(name, digest)
                self._done.brought[f"{name} at {place.name}"] = place.bring(name, new)

    def _replacement(self, name: str, digest: str) -> str:
        """What comes instead of a version, by its name, or by what it was in force as here."""
        task = self._task
        return task.new.get(name) or next(task.new[here] for here, old in task.old.items() if old == digest)

    def _forget(self) -> None:
        self._desk.save(begun=True)
        self._everywhere(self._forget_at)

    def _forget_at(self, place: Place) -> None:
        self._watch(f"forget at {place.name}")
        self._done.found[place.name] = place.forget(self._task)

    def _relabel(self) -> None:
        if self._task.relabel:
            self._everywhere(self._relabel_at)

    def _relabel_at(self, place: Place) -> None:
        """Only where a version that is to be sealed has given labels."""
        for name, new in self._task.new.items():
            gone = [digest for digest, called in self._task.sealed.items() if called == name]
            if place.look(self._task.ids, gone).labelled:
                self._watch(f"relabel at {place.name}")
                self._done.relabelled[f"{name} at {place.name}"] = place.relabel(new)

    def _seal(self) -> None:
        digests = sorted(self._task.sealed)
        if not digests:
            return
        self._everywhere(lambda place: self._seal_at(place, digests))
        self._watch("seal here")
        self._registry.seal(digests)

    def _seal_at(self, place: Place, digests: list[str]) -> None:
        self._watch(f"seal at {place.name}")
        place.seal(digests)

    def _seal_newcomers(self) -> None:
        """Once no fine-tuning over the old data is under way here any more."""
        found = find_newcomers(self._registry, self._task, self._scene.open_data)
        if found.seal or found.left:
            task = self._task
            self._desk.save(sealed={**task.sealed, **found.seal}, left={**task.left, **found.left})
        if found.seal:
            self._seal()

    def _delete_files(self) -> None:
        """Last, as it may fail in the middle: nothing else of them is left then."""
        for place in self._scene.places if self._task.delete_files else ():
            there, deleted = self._done.found[place.name], place.delete_files(self._task)
            found = {**there.found, **deleted}
            self._done.found[place.name] = msgspec.structs.replace(there, found=found)

    def _everywhere(self, do: Callable[[Place], None]) -> None:
        """At all places at once; what fails at one keeps the others from nothing, and is raised then."""
        if len(self._scene.places) == 1:
            do(self._scene.places[0])
        else:
            all_at_once([partial(do, place) for place in self._scene.places], name="headwater-forget")

    def _purge(self) -> None:
        ids, further = np.array(self._task.ids, np.int64), [Path(path) for path in self._task.further]
        self._done.cached = purge_cache(ids, self._task.before, further)

    def _note(self) -> None:
        task = self._task
        facts: dict[str, Any] = {
            "places": list(task.places),
            "samples": len(task.ids),
            "before": list(task.before),
            "versions": sorted({task.after, *(one.version for one in self._done.found.values())}),
            "models": {name: {"from": old, "to": task.new.get(name)} for name, old in task.old.items()},
            "sealed": sorted(task.sealed),
            "left": sorted(task.left),
            "delete_files": task.delete_files,
        }
        Audit(self._scene.folder).note(self._scene.hashes(task.ids), facts)
