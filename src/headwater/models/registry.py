"""Versions of models in a folder, at a store and at a tuner alike: held, in force, or in force before.

A version is there when its manifest is, which is written last. A switch is the replacement of one small file.
So a process that is killed at any moment leaves the old state or the new one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from headwater.errors import ModelNotFound, ModelRefused, WrongUse
from headwater.models.delta import decode, encode, is_whole
from headwater.models.evidence import require_measured
from headwater.models.holdings import Holdings, verify_graph
from headwater.models.lineage import line_of
from headwater.models.model import Model
from headwater.models.pointer import Pointers
from headwater.models.seals import Seals
from headwater.models.shelf import LOCK_SECONDS, Shelf
from headwater.models.version import ABBREVIATED, DIGEST, ModelVersion, digest_of, is_model_name, seal

WHOLE = "whole"
"""What stands for the old version in the name of a delta that needs none."""
PRESET = "preset"
"""What `made.by` is of a version that came from a preset."""


class Registry:
    """All versions below one folder. Threads and processes may use it at once; one of them writes at a time.

    Where a version is asked for, its digest stands, or 8 and more digits of it, or `NAME` for the one in
    force, or `NAME@previous` for the one before. Raises `ModelNotFound` for what is not there.

    int8 layers whose manifest does not say that enough labels stay come into force only as `unmeasured`;
    without that `ModelRefused` is raised, and nothing has changed. What is in force already stays so.

    A version that is sealed, because it was trained on a sample that has been forgotten, neither runs nor
    comes into force again, by a rollback either: `ModelRefused`.
    """

    def __init__(self, folder: str | os.PathLike[str], *, lock_seconds: float = LOCK_SECONDS) -> None:
        self._shelf = Shelf(folder, lock_seconds=lock_seconds)
        self._holdings, self._pointers = Holdings(self._shelf), Pointers(self._shelf)
        self._seals = Seals(self._shelf)

    @property
    def folder(self) -> Path:
        """Where it lies."""
        return self._shelf.folder

    def __contains__(self, digest: str) -> bool:
        return digest in self._holdings.digests()

    def versions(self) -> list[ModelVersion]:
        """All of them, the oldest first. A damaged one is passed over, and told of in the log."""
        # Another process may remove one in the meantime.
        found = [version for digest in self._holdings.digests() if (version := self.find(digest))]
        return sorted(found, key=lambda version: (version.time, version.digest))

    def line(self, version: ModelVersion) -> list[ModelVersion]:
        """A version, behind those here that came before it, oldest first; see `line_of`."""
        return line_of(version, self.versions())

    def find(self, digest: str) -> ModelVersion | None:
        """The manifest of a version, or None if it is not here, or damaged."""
        return self._holdings.find(digest) if DIGEST.fullmatch(digest) else None

    def version(self, reference: str) -> ModelVersion:
        """The manifest of a version; raises `ModelRefused` for a damaged one."""
        digest = self.resolve(reference)
        found = self._holdings.load(digest)
        if found is None:
            raise ModelNotFound(f"version {digest[:12]} is not in the registry {self.folder}; have it sent")
        return found

    def choose(self, reference: str = "") -> ModelVersion:
        """The manifest of a version; without a reference, that of the only model that is in force."""
        names = self.names()
        if not reference and len(names) != 1:
            there = f"name one of {', '.join(names)}" if names else "push one first"
            raise ModelNotFound(f"{len(names)} models are in force; {there}")
        return self.version(reference or names[0])

    def choose_trunk(self) -> ModelVersion:
        """Whose layers a head is trained for unless somebody says whose.

        The only model in force, and of several the only one that a preset made.
        """
        found = [version for digest in self.in_force().values() if (version := self.find(digest))]
        presets = [version for version in found if version.made.get("by") == PRESET]
        return presets[0] if len(presets) == 1 else self.choose()

    def get(self, reference: str) -> Model:
        """The model, its tensors mapped from disk; raises `ModelRefused` unless every digest is right."""
        version = self.version(reference)
        self._seals.refuse(version.digest)
        return self._holdings.assemble(version)

    def sealed(self) -> set[str]:
        """Digests of the versions that are not to be used any more, whether they are still here or not."""
        return self._seals.digests()

    def seal(self, digests: Collection[str]) -> list[str]:
        """Let these versions be used no more, here or not; those that were not sealed before.

        Their journals go, and deltas from and to them; they themselves with the next `collect`. Raises
        `ModelRefused`, and seals none, where one is in force.
        """
        with self._shelf.writing():
            for name, digest in self.in_force().items():
                if digest in digests:
                    raise ModelRefused(
                        f"version {digest[:12]} is in force as {name!r}; put the one that replaces it in "
                        "force, and seal it then"
                    )
            return self._seals.put(digests)

    def graph(self, digest: str) -> bytes:
        """The graph of this digest."""
        return self._holdings.graph(digest)

    def names(self) -> list[str]:
        """Names of which a version is in force."""
        return self._pointers.names()

    def in_force(self) -> dict[str, str]:
        """Digests of the versions in force, by name; names of which that cannot be read are left out."""
        found = self._pointers.read_all()
        return {name: pointer.digest for name, pointer in found.items() if pointer is not None}

    def current(self, name: str) -> ModelVersion:
        """The version in force."""
        return self.version(self._pointers.read(name).digest)

    def history(self, name: str) -> tuple[str, ...]:
        """Digests of the versions that were in force before, the last one first."""
        return self._pointers.read(name).before

    def resolve(self, reference: str) -> str:
        """The digest that a reference stands for; a whole digest need not be in the registry."""
        if DIGEST.fullmatch(reference):
            return reference
        if ABBREVIATED.fullmatch(reference):
            return self._complete(reference)
        name, at, which = reference.partition("@")
        if at and which != "previous":
            raise WrongUse(f"{reference!r}: after @ stands `previous`, and nothing else")
        return self._pointers.previous(name) if at else self._pointers.read(name).digest

    def put(
        self,
        model: Model,
        *,
        name: str,
        parent: str | None = None,
        made: Mapping[str, Any] | None = None,
        switch: bool = False,
        unmeasured: bool = False,
        now: datetime | None = None,
    ) -> ModelVersion:
        """Keep a model as a version of `name`, and with `switch` put it in force in the same stroke.

        Only tensors that no other version has take up space. A version that is there already stays as it is.
        Raises `ModelRefused` for a model whose parts do not fit, or that may not run beside the data.
        """
        _check_name(name)
        version = ModelVersion(
            digest="",
            name=name,
            parent=None if parent is None else self.version(parent).digest,
            made=dict(made or {"by": "push"}),
            graphs={part: digest_of(data) for part, data in model.graphs.items()},
            tensors=model.facts,
            classes=tuple(model.classes),
            steps=tuple(model.steps),
            features=model.check(),
            time=(now or datetime.now(UTC)).isoformat(timespec="milliseconds"),
        )
        return self._keep(seal(version), model, switch=switch, unmeasured=unmeasured)

    def receive(
        self,
        version: ModelVersion,
        delta: bytes,
        *,
        base: str | None = None,
        graphs: Mapping[str, bytes] | None = None,
        switch: bool = False,
        unmeasured: bool = False,
        trial: Callable[[Model], None] = lambda model: None,
    ) -> ModelVersion:
        """Keep a version that was sent: manifest, a delta to `base` or to nothing, and graphs by digest.

        All is verified before anything is written, and last by `trial`, which may refuse the model; raises
        `ModelRefused`. What graphs are here already need not be sent.
        """
        version.check()
        old = None if base is None else self.get(base).tensors
        tensors = decode(old, delta, version)
        sent = {digest: verify_graph(data, digest) for digest, data in (graphs or {}).items()}
        parts = {part: sent.get(digest) or self.graph(digest) for part, digest in version.graphs.items()}
        model = Model(parts["trunk"], parts.get("head"), tensors, version.classes, version.steps)
        features = model.check()
        if features != version.features:
            raise ModelRefused(f"the manifest says {version.features} features, the trunk gives {features}")
        trial(model)
        return self._keep(version, model, switch=switch, unmeasured=unmeasured)

    def switch(self, name: str, reference: str, *, unmeasured: bool = False) -> ModelVersion:
        """Put a version in force; it is verified first."""
        _check_name(name)
        with self._shelf.writing():
            version = self.version(reference)
            self._seals.refuse(version.digest)
            model = self._holdings.assemble(version)
            self._admit(name, version, model, unmeasured=unmeasured)
            self._pointers.move(name, version.digest)
        return version

    def rollback(self, name: str) -> ModelVersion:
        """Put the version in force that was before, as if the last switch had not been; verified first.

        What was in force was measured, or was to be so unmeasured: that is not asked again.
        """
        with self._shelf.writing():
            before = self._pointers.previous(name)
            self._seals.refuse(before)
            version = self.version(before)
            self._holdings.assemble(version)
            self._pointers.move_back(name)
        return version

    def collect(self, *, ancestors: int = 0, keep: Collection[str] = ()) -> int:
        """Remove garbage; the bytes that this frees.

        Kept are versions in force or before that, those that `keep` names, so many `ancestors` of each of
        these, and approximations of kept ones; where it cannot be read what is in force under a name, all
        versions of that name. A pack goes when no kept version has a tensor in it.
        """
        with self._shelf.writing():
            versions = self.versions()
            wanted = self._needed(versions) | {self.resolve(reference) for reference in keep}
            kept = _with_relatives(wanted, versions, ancestors=ancestors)
            kept |= wanted & set(self._holdings.digests())  # damaged ones, too: they may be mended
            kept -= self.sealed()
            freed = self._holdings.remove_all_but(kept)
            lost = [name for name in self._shelf.names("deltas") if name.partition("-")[2] not in kept]
            freed += sum(self._shelf.remove("deltas", name) for name in lost)
            return freed + self._shelf.sweep()

    def drop(self, digests: Collection[str]) -> int:
        """Remove these versions, but none that is in force or was before; the bytes that this frees."""
        with self._shelf.writing():
            gone = set(digests) - self._needed(self.versions())
            freed = self._holdings.remove_all_but(set(self._holdings.digests()) - gone)
            lost = [name for name in self._shelf.names("deltas") if name.partition("-")[2] in gone]
            return freed + sum(self._shelf.remove("deltas", name) for name in lost)

    def _needed(self, versions: Collection[ModelVersion]) -> set[str]:
        """Versions in force or remembered, and those that may be, because a pointer is damaged."""
        pointers = self._pointers.read_all()
        known = [pointer for pointer in pointers.values() if pointer is not None]
        found = {digest for pointer in known for digest in (pointer.digest, *pointer.before)}
        unknown = {name for name, pointer in pointers.items() if pointer is None}
        needed = found | {version.digest for version in versions if version.name in unknown}
        return needed - self.sealed()

    def delta(self, base: str | None, target: str) -> bytes:
        """What makes the tensors of `target` from those of `base`, or from nothing. Kept once it is made."""
        base, target = base and self.resolve(base), self.resolve(target)
        found = self._shelf.read("deltas", f"{base or WHOLE}-{target}")
        if found is not None and is_whole(found):
            return found
        old = None if base is None else self.get(base).tensors
        data = encode(old, self.get(target).tensors)
        self.keep_delta(base, target, data)
        return data

    def keep_delta(self, base: str | None, target: str, data: bytes) -> None:
        """Keep a delta that was made already."""
        base, target = base and self.resolve(base), self.resolve(target)
        with self._shelf.writing():
            self._shelf.write("deltas", f"{base or WHOLE}-{target}", data)

    def deltas(self) -> dict[tuple[str, str], int]:
        """Deltas between versions that are kept, by old and new digest, with their bytes."""
        found = {}
        for name in self._shelf.names("deltas"):
            old, _, new = name.partition("-")
            if old != WHOLE:
                with suppress(FileNotFoundError):  # another process has just removed it
                    found[old, new] = self._shelf.path("deltas", name).stat().st_size
        return found

    def _keep(self, version: ModelVersion, model: Model, *, switch: bool, unmeasured: bool) -> ModelVersion:
        version.check()
        if switch:
            self._admit(version.name, version, model, unmeasured=unmeasured)
        with self._shelf.writing():
            self._seals.refuse(version.digest)
            known = self._holdings.load_sound(version.digest)
            if known is None:
                self._holdings.write(version, model)
            if switch:
                self._pointers.move(version.name, version.digest)
        return known or version

    def _admit(self, name: str, version: ModelVersion, model: Model, *, unmeasured: bool) -> None:
        """Raise `ModelRefused` for what may not come into force."""
        if not unmeasured and self.in_force().get(name) != version.digest:
            require_measured(version, model.trunk)

    def _complete(self, start: str) -> str:
        found = [digest for digest in self._holdings.digests() if digest.startswith(start)]
        if len(found) > 1:
            raise WrongUse(f"{start} is the beginning of {len(found)} digests; give more digits")
        if not found:
            raise ModelNotFound(f"no version in the registry {self.folder} begins with {start}")
        return found[0]


def _check_name(name: str) -> None:
    if not is_model_name(name):
        raise WrongUse(
            f"a model cannot be called {name!r}: letters, digits, `.`, `_` and `-`, 64 at most, "
            "and nothing that reads as a digest"
        )


def _with_relatives(wanted: set[str], versions: Collection[ModelVersion], *, ancestors: int) -> set[str]:
    """The wanted versions that there are, so many generations before them, and approximations of them."""
    kept, known = set(wanted), {version.digest: version for version in versions}
    for _ in range(ancestors):
        kept |= {parent for digest in kept & set(known) if (parent := known[digest].parent)}
    # `made` is what somebody wrote: it may hold anything.
    kept |= {version.digest for version in versions if str(version.made.get("of")) in kept}
    return kept & set(known)
