"""The versions that a registry holds: manifests, graphs, tensors in packs; verified when they are read.

A pack holds what was new with a version, each tensor under its own digest. Beside the manifest lies a list
that says in which pack each tensor is, so a version of a new head adds one small pack.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cache
from typing import Any

import msgspec
from numpy.typing import NDArray

from headwater.errors import ModelError, ModelNotFound, ModelRefused
from headwater.models import weights
from headwater.models.model import Model
from headwater.models.shelf import Shelf
from headwater.models.version import DIGEST, ModelVersion, TensorFacts, digest_of

log = logging.getLogger("headwater")


class Holdings:
    """Versions by digest, on a shelf. What it writes, it writes while the caller holds the shelf's lock."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf

    def digests(self) -> list[str]:
        """Of all versions, sorted."""
        return self._shelf.names("versions")

    def load(self, digest: str) -> ModelVersion | None:
        """A manifest, or None if there is no such version; raises `ModelRefused` for a damaged one."""
        data, path = self._shelf.read("versions", digest), self._shelf.path("versions", digest)
        if data is None:
            return None
        try:
            found = ModelVersion.from_json(data)
        except ModelRefused as error:
            raise ModelRefused(f"{path}: {error}") from error
        if found.digest != digest:
            raise ModelRefused(f"{path} is the manifest of {found.digest}")
        return found

    def find(self, digest: str) -> ModelVersion | None:
        """A manifest, or None if there is no such version, or only a damaged one, which the log tells of."""
        try:
            return self.load(digest)
        except ModelRefused as error:
            log.warning("a version is passed over: %s", error)
            return None

    def load_sound(self, digest: str) -> ModelVersion | None:
        """A manifest whose version is here whole; one that is damaged is as good as none."""
        try:
            found = self.load(digest)
            if found is not None:
                self.assemble(found)
        except ModelError:
            return None
        return found

    def assemble(self, version: ModelVersion) -> Model:
        """The model; raises `ModelRefused` for a wrong digest, `ModelNotFound` for what lacks."""
        graphs = {part: self.graph(digest) for part, digest in version.graphs.items()}
        tensors = self._read_tensors(version)
        return Model(graphs["trunk"], graphs.get("head"), tensors, version.classes, version.steps)

    def graph(self, digest: str) -> bytes:
        """The bytes of a graph."""
        data = self._shelf.read("graphs", digest) if DIGEST.fullmatch(digest) else None
        if data is None:
            raise ModelNotFound(
                f"graph {digest[:12]} is not in the registry {self._shelf.folder}; have it sent"
            )
        return verify_graph(data, digest)

    def places(self, digest: str) -> dict[str, str]:
        """In which pack each tensor of a version lies."""
        data, path = self._shelf.read("places", digest), self._shelf.path("places", digest)
        if data is None:
            raise ModelNotFound(f"there is no {path}; have version {digest[:12]} sent again")
        try:
            found = msgspec.json.decode(data, type=dict[str, str])
        except (msgspec.MsgspecError, ValueError) as error:
            raise ModelRefused(f"{path} cannot be read: {error}") from error
        if not all(DIGEST.fullmatch(pack) for pack in found.values()):
            raise ModelRefused(f"{path} names a pack that is no digest")
        return found

    def write(self, version: ModelVersion, model: Model) -> None:
        """Keep a version: packs and graphs, then places, and the manifest, by which it is there, last."""
        places = self._find_places(version.tensors.values())
        facts = version.tensors.items()
        new = {fact.digest: model.tensors[name] for name, fact in facts if fact.digest not in places}
        if new:
            pack = weights.dump(new)
            self._shelf.write("packs", digest_of(pack), pack)
            places |= dict.fromkeys(new, digest_of(pack))
        for graph in model.graphs.values():
            self._shelf.write("graphs", digest_of(graph), graph)
        self._shelf.write("places", version.digest, msgspec.json.encode(places, order="sorted"))
        self._shelf.write("versions", version.digest, version.to_json())

    def remove_all_but(self, kept: set[str]) -> int:
        """Remove other versions and what only they need; the bytes that this frees."""
        versions = [version for digest in kept if (version := self.find(digest))]
        needed = {
            "versions": kept,
            "places": kept,
            "packs": {pack for digest in kept for pack in self._packs(digest)},
            "graphs": {graph for version in versions for graph in version.graphs.values()},
        }
        # Manifests go first: without one, the rest of a version is nothing that is looked at.
        return sum(
            self._shelf.remove(kind, name)
            for kind, names in needed.items()
            for name in self._shelf.names(kind)
            if name not in names
        )

    def _packs(self, digest: str) -> set[str]:
        """The packs that a version needs; none if the list of them is damaged, because then it finds none."""
        try:
            return set(self.places(digest).values())
        except (ModelNotFound, ModelRefused) as error:
            log.warning("the packs of a version are passed over: %s", error)
            return set()

    def _read_tensors(self, version: ModelVersion) -> dict[str, NDArray[Any]]:
        places = self.places(version.digest)
        read = cache(self._read_pack)
        tensors = {}
        for name, facts in version.tensors.items():
            array = read(places[facts.digest]).get(facts.digest) if facts.digest in places else None
            tensors[name] = _verify(array, facts, f"{name!r} of {version.digest[:12]}")
        return tensors

    def _read_pack(self, digest: str) -> Mapping[str, NDArray[Any]]:
        return weights.read(self._shelf.path("packs", digest))

    def _find_places(self, wanted: Iterable[TensorFacts]) -> dict[str, str]:
        """Packs of other versions that hold some of these tensors, intact."""
        known: dict[str, str] = {}
        for digest in self.digests():
            with suppress(ModelError):  # of a damaged version nothing is used
                known |= self.places(digest)
        read = cache(self._read_pack)

        def is_intact(facts: TensorFacts) -> bool:
            try:
                return TensorFacts.of(read(known[facts.digest])[facts.digest]) == facts
            except (ModelError, KeyError):
                return False

        return {facts.digest: known[facts.digest] for facts in wanted if is_intact(facts)}


def verify_graph(data: bytes, digest: str) -> bytes:
    """The bytes, if they have this digest; else raises `ModelRefused`."""
    found = digest_of(data)
    if found != digest:
        raise ModelRefused(f"a graph should have the digest {digest} and has {found}; have it sent again")
    return data


def _verify(array: NDArray[Any] | None, facts: TensorFacts, of: str) -> NDArray[Any]:
    if array is None:
        raise ModelNotFound(f"tensor {of} is in no pack; have the version sent again")
    found = TensorFacts.of(array)
    if found != facts:
        raise ModelRefused(
            f"tensor {of} should have the digest {facts.digest} and has {found.digest}: damaged; "
            "have the version sent again"
        )
    return array
