"""Before samples are forgotten: which they are, what is there of them, and which versions saw them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from headwater.data.forgetting import Audit, Plans
from headwater.data.forgotten import forgotten_folder
from headwater.data.index import Index, sample_ids
from headwater.engine.fetching import content_digests
from headwater.errors import ModelRefused, WrongUse
from headwater.models.registry import Registry
from headwater.store.dataset import Dataset
from headwater.store.wire.messages import ForgottenThere
from headwater.tune.forget.affected import Affected, Witnesses
from headwater.tune.forget.barred import told
from headwater.tune.forget.cached import find_earlier
from headwater.tune.forget.past import Past
from headwater.tune.forget.places import Models, Place
from headwater.tune.forget.task import Task, find_task
from headwater.tune.forget.turns import PATIENCE_SECONDS, alone

Ids = NDArray[np.int64]

_NOT_HERE = "it is not in force in the registry here: forget where it was trained, or bring another there"
_LATER = "forget them again without --no-model: it is trained again in full, as a replay needs the samples"


@dataclass(frozen=True)
class Wish:
    """What to forget, and how.

    `ids` and `paths` name the samples; without either, what was interrupted is gone on with. `method` is how
    heads are made again, as `hw.retrain` has it. Without `models` no model is made again. `further` are
    folders of caches, or of signals, beside the user's own.
    """

    ids: tuple[int, ...] = ()
    paths: tuple[str, ...] = ()
    delete_files: bool = False
    models: bool = True
    relabel: bool = True
    method: str = "replay"
    further: tuple[Path, ...] = ()

    @property
    def named(self) -> Ids:
        """Ids of all samples that are named, each once."""
        by_path = sample_ids(list(self.paths)) if self.paths else np.empty(0, np.int64)
        return np.unique(np.concatenate([np.array(self.ids, np.int64), by_path]))

    def replaces(self, unended: Task) -> bool:
        """Whether this is another request for the same samples, and comes before any of them is gone."""
        return bool(len(self.named)) and self.models != unended.models and not unended.begun

    def adapt(self, unended: Task) -> Task:
        """What was interrupted, as far as that can still be done otherwise: with files deleted, or not, and
        with paths that are named only now."""
        if not len(self.named):
            return unended
        paths = tuple(sorted({*unended.paths, *self.paths} - set(unended.keys)))
        return msgspec.structs.replace(unended, delete_files=self.delete_files, paths=paths)


@dataclass(frozen=True)
class Scene:
    """Places that together are one dataset, which `open_data` opens whole, and the models that learn from it.

    `folder` is where the task and the audit lie, the user's own unless it is given. Who forgets waits so long
    for others who forget with that folder or that registry.
    """

    places: tuple[Place, ...]
    registry: Registry
    open_data: Callable[[], Dataset]
    folder: Path = field(default_factory=forgotten_folder)
    patience_seconds: float = PATIENCE_SECONDS

    def alone(
        self, *, models: bool = True, tell: Callable[[str], None] = lambda text: None
    ) -> AbstractContextManager[None]:
        """Nobody else forgets with these models, or with this folder, until the block ends.

        Raises `DatasetError` where somebody does for too long, or where a folder cannot be locked; if no
        model is to be made again, the registry may be one of those.
        """
        there = [self.registry.folder] if self.registry.folder.is_dir() else []
        folders, spare = ([self.folder, *there], []) if models else ([self.folder], there)
        patience = self.patience_seconds
        return alone(folders, self.names, spare=spare, patience_seconds=patience, tell=tell)

    @property
    def stamp(self) -> str:
        """Changes when samples are forgotten, or another version comes into force."""
        facts = [
            sorted(self.registry.in_force().items()),
            sorted(self.registry.sealed()),
            Plans(self.folder).digest(),
            Audit(self.folder).size,
        ]
        return hashlib.blake2b(msgspec.json.encode(facts), digest_size=16).hexdigest()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(place.name for place in self.places)

    @cached_property
    def identities(self) -> tuple[str, ...]:
        """The places, the same however they were spelled; raises `WrongUse` for one that is named twice."""
        found = tuple(place.identity for place in self.places)
        if len(set(found)) < len(found):
            raise WrongUse(f"{', '.join(self.names)} are not {len(found)} places; name each place once")
        return found

    @property
    def past(self) -> Past:
        """What was forgotten in these places before."""
        return Past(self.folder, self.identities)

    def hashes(self, ids: Sequence[int]) -> list[str]:
        """Keyed hashes of ids, as the audit has them."""
        return self.past.hashes(ids)


@dataclass(frozen=True)
class Survey:
    """What is there of the samples, place by place, and the task that comes of it.

    `resumed` says that the task was begun before, `stamp` is what that of the scene was.
    """

    task: Task
    there: Mapping[str, ForgottenThere] = field(default_factory=dict)
    resumed: bool = False
    stamp: str = ""

    @property
    def left(self) -> Mapping[str, str]:
        """Versions in force that saw them and stay, because no model is to be made again; with what to do."""
        return self.task.left


def look_around(scene: Scene, wish: Wish) -> Survey:
    """Look, and change nothing.

    Samples that the data have no more are gone from what is kept of them here, if they were forgotten before,
    or if this machine knew them: another may have had the stores forget them.

    Raises `WrongUse` for samples that the dataset does not have, and never had as far as is known, and
    `ModelRefused` or `JournalRefused` where a version in force cannot be made again without them.
    """
    with told("look"):
        stamp = scene.stamp
        unended = find_task(scene.folder, scene.identities, wish.named.tolist())
        if unended is not None and not wish.replaces(unended):
            return Survey(wish.adapt(unended), resumed=True, stamp=stamp)
        with closing(scene.open_data()) as data:
            task, there = _Surveyor(scene, wish, data).survey()
        return Survey(task, there, stamp=stamp)


class _Surveyor:
    def __init__(self, scene: Scene, wish: Wish, data: Dataset) -> None:
        self._scene, self._wish, self._data = scene, wish, data

    def survey(self) -> tuple[Task, dict[str, ForgottenThere]]:
        wish, ids = self._wish, self._ids
        places = self._scene.places
        there = {place.name: place.look(ids.tolist(), delete_files=wish.delete_files) for place in places}
        gone, now = not self._data.index.has(ids).any(), {one.before for one in there.values()}
        before, after = self._scene.past.divide(ids, {self._data.index.version, *now}, gone=gone)
        known = tuple(version.digest for version in self._scene.registry.versions())
        before |= self._earlier[1]
        affected, left = self._judge(before, after - before)
        keys, contents = self._describe()
        task = Task(
            places=self._scene.identities,
            ids=tuple(ids.tolist()),
            keys=keys,
            paths=tuple(sorted(set(wish.paths) - set(keys))),
            contents=contents,
            before=tuple(sorted(before)),
            after=version_without(self._data.index, ids),
            old={name: version.digest for name, version in affected.replay.items()},
            sealed={version.digest: version.name for version in affected.versions},
            left=left,
            untold={version.digest: version.name for version in affected.untold},
            known=known,
            models=wish.models,
            delete_files=wish.delete_files,
            relabel=wish.relabel,
            method=wish.method,
            further=tuple(map(str, wish.further)),
        )
        return task, there

    @cached_property
    def _earlier(self) -> tuple[NDArray[np.bool_], set[str]]:
        """Of those that the data have no more, whom this machine knew, and in which versions."""
        missing = self._wish.named[~self._data.index.has(self._wish.named)]
        return find_earlier(self._data.index, missing) if len(missing) else (missing > 0, set())

    @cached_property
    def _ids(self) -> Ids:
        ids, index = self._wish.named, self._data.index
        if not len(ids):
            raise WrongUse("name the samples to forget, by their ids or with --path; nothing was interrupted")
        missing = ids[~index.has(ids)]
        known = self._scene.past.know(missing) | self._earlier[0]
        for id in missing[~known].tolist():
            raise WrongUse(
                f"dataset {index.version[:8]} of {len(index):,} samples has no sample with id {id}; "
                "`headwater ls` shows ids, and --path takes the path within the dataset"
            )
        if index.has(ids).sum() == len(index):
            raise WrongUse("these are all samples of the dataset; delete the dataset instead")
        return ids

    def _judge(self, before: set[str], after: set[str]) -> tuple[Affected, dict[str, str]]:
        registry = self._scene.registry
        there = {place.name: place.models() for place in self._scene.places}
        versions = [*registry.versions(), *(one for held in there.values() for one in held.versions)]
        witnesses = Witnesses(registry, versions, self._ids, dataset=self._data, data=before, without=after)
        affected = witnesses.judge(registry.in_force())
        stuck = {**affected.stuck, **_stuck_at(there, affected)}
        if not self._wish.models:
            return Affected(untold=affected.untold), {**dict.fromkeys(affected.replay, _LATER), **stuck}
        if stuck:
            name, why = next(iter(stuck.items()))
            digest = registry.in_force().get(name, "")
            if digest in witnesses.refused:
                raise witnesses.refused[digest]
            raise ModelRefused(
                f"the version in force as {name} was trained on these samples, or may have been, and {why}; "
                "or say --no-model to leave all models as they are and forget everything else; when it is "
                "replaced, forget them again"
            )
        return affected, {}

    def _describe(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Keys of the samples, and digests of their files, of those that can be read."""
        index = self._data.index
        positions = index.position_of(self._ids[index.has(self._ids)])
        keys = tuple(index.key(position) for position in positions.tolist())
        return keys, tuple(content_digests(self._data.store, positions))


def _stuck_at(there: Mapping[str, Models], affected: Affected) -> dict[str, str]:
    """Versions in force at stores that saw the samples, and that nothing made here replaces."""
    saw = set(affected.digests)
    replaced = {*affected.replay, *(version.digest for version in affected.replay.values())}
    return {
        f"{name} at {place}": _NOT_HERE
        for place, held in there.items()
        for name, digest in held.in_force.items()
        if digest in saw and name not in replaced and digest not in replaced
    }


def version_without(index: Index, ids: Sequence[int] | Ids) -> str:
    """The version that an index has without these samples."""
    kept = ~np.isin(index.ids, np.array(ids, np.int64))
    digest = hashlib.blake2b(digest_size=16)
    for column in (index.ids[kept], _renumbered(index, index.labels[kept]), index.sizes[kept]):
        digest.update(np.ascontiguousarray(column, dtype="<i8").data)
    return digest.hexdigest()


def _renumbered(index: Index, labels: Ids) -> Ids:
    """Classes that are folders, or names in a column, are those that have samples; others stay."""
    every = np.unique(index.labels[index.labels >= 0])
    if index.notes.get("labels", "names") != "names" or len(every) != len(index.classes):
        return labels
    return np.where(labels < 0, labels, np.searchsorted(np.unique(labels[labels >= 0]), labels))
