"""The cheapest way to bring a version to who holds some others: nothing, a delta, a chain of them, the whole.

A single delta is never longer than the whole, because each of its tensors is coded in the fewest bytes of all
ways, those without an old tensor among them.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from headwater.errors import ModelNotFound, ModelRefused
from headwater.models.delta import approximate
from headwater.models.model import Model
from headwater.models.registry import Registry
from headwater.models.version import ModelVersion

_BY = "int8 delta"
_NEAREST = 3
"""From how many of the versions that the other side holds a delta is tried: encoding takes seconds."""


@dataclass(frozen=True)
class Part:
    """One thing to send: what `Registry.receive` takes."""

    version: ModelVersion
    base: str | None
    delta: bytes
    graphs: Mapping[str, bytes]

    @property
    def nbytes(self) -> int:
        """All that must cross the link: manifest, graphs, delta."""
        manifest = len(msgspec.json.encode(self.version))
        return manifest + len(self.delta) + sum(len(data) for data in self.graphs.values())


@dataclass(frozen=True)
class Path:
    """Parts in the order in which they are received; none if the version is there."""

    parts: tuple[Part, ...]

    @property
    def nbytes(self) -> int:
        """All that must cross the link."""
        return sum(part.nbytes for part in self.parts)

    @property
    def kind(self) -> str:
        """nothing, delta, chain or whole."""
        if not self.parts:
            return "nothing"
        if self.parts[0].base is None:
            return "whole"
        return "delta" if len(self.parts) == 1 else "chain"


def cheapest(registry: Registry, held: Collection[str], target: str, *, graphs: Collection[str] = ()) -> Path:
    """How `target` gets with the fewest bytes to who holds the versions `held`, by digest.

    `held` may name versions that the registry has not; a stored delta from one of them still serves. `graphs`
    are digests of graphs that are there besides those of the versions that the registry has, too.
    """
    version = registry.version(target)
    if version.digest in held:
        return Path(())
    known = _nearest_first(registry, held, version)
    graphs = {*graphs, *(graph for holding in known for graph in holding.graphs.values())}
    # Without a common version only the whole remains; with one, the whole is never shorter.
    bases: list[str | None] = [holding.digest for holding in known[:_NEAREST]]
    found = [_to_path(registry, [(base, version.digest)], graphs) for base in bases or [None]]
    chain = _find_chain(registry, held, version.digest)
    if chain:
        # A damaged delta whose old version is gone, or a damaged version on the way.
        with suppress(ModelNotFound, ModelRefused):
            found.append(_to_path(registry, chain, graphs))
    return min(found, key=lambda path: path.nbytes)


def find_approximation(registry: Registry, held: Collection[str], target: str) -> ModelVersion:
    """A version near `target` for who holds the versions `held`: one of these, or made from the nearest.

    `target` itself where nothing that is held is known here, or nothing was worth rounding.
    """
    version = registry.version(target)
    known = _nearest_first(registry, held, version)
    for holding in known:
        if is_approximation(holding, version):
            return holding
    return make_approximation(registry, known[0].digest, version.digest) if known else version


def is_approximation(version: ModelVersion, of: ModelVersion) -> bool:
    """Whether a version was made by `make_approximation` to stand for another."""
    return version.made.get("by") == _BY and version.made.get("of") == of.digest


def make_approximation(registry: Registry, base: str, target: str) -> ModelVersion:
    """A version near `target` that is a few bytes from `base`, in the registry and with its delta kept.

    Its manifest describes the approximate tensors, so it is verified like any other; `made` says what it
    approximates and by how much it is off at most. Where nothing was worth rounding it is `target` itself.
    """
    old, new = registry.version(base), registry.version(target)
    model = registry.get(new.digest)
    data, tensors, error = approximate(registry.get(old.digest).tensors, model.tensors)
    made = {"by": _BY, "of": new.digest, "largest error": error}
    near = Model(model.trunk, model.head, tensors, model.classes, model.steps)
    exact = near.facts == new.tensors
    version = new if exact else registry.put(near, name=new.name, parent=old.digest, made=made)
    registry.keep_delta(old.digest, version.digest, data)
    return version


def differing_bytes(old: ModelVersion, new: ModelVersion) -> int:
    """Bytes of the tensors that are not the same."""
    pairs = ((facts, old.tensors.get(name)) for name, facts in new.tensors.items())
    return sum(facts.nbytes for facts, before in pairs if facts != before)


def _nearest_first(registry: Registry, held: Collection[str], target: ModelVersion) -> list[ModelVersion]:
    """Those of the held versions that are known here, in the order of what lacks to `target`."""
    usable = sorted(set(held) - registry.sealed())
    known = [version for digest in usable if (version := registry.find(digest))]
    return sorted(known, key=lambda version: differing_bytes(version, target))


def _to_path(registry: Registry, edges: list[tuple[str | None, str]], graphs: Collection[str]) -> Path:
    parts, there = [], set(graphs)
    for base, target in edges:
        version = registry.version(target)
        sent = {digest: registry.graph(digest) for digest in version.graphs.values() if digest not in there}
        there |= set(sent)
        parts.append(Part(version, base, registry.delta(base, target), sent))
    return Path(tuple(parts))


def _find_chain(registry: Registry, held: Collection[str], target: str) -> list[tuple[str | None, str]]:
    """The stored deltas that lead from a held version to `target` in the fewest bytes; empty if none do."""
    steps: dict[str, list[tuple[str, int]]] = {}
    for (old, new), size in registry.deltas().items():
        if new in registry:
            steps.setdefault(old, []).append((new, size))
    waiting = [(0, digest, "") for digest in held]
    heapq.heapify(waiting)
    came: dict[str, str] = {}
    while waiting:
        size, digest, before = heapq.heappop(waiting)
        if digest in came:
            continue
        came[digest] = before
        for new, more in steps.get(digest, ()):
            heapq.heappush(waiting, (size + more, new, digest))
    return _trace(came, target)


def _trace(came: Mapping[str, str], target: str) -> list[tuple[str | None, str]]:
    edges: list[tuple[str | None, str]] = []
    while came.get(target):
        edges.insert(0, (came[target], target))
        target = came[target]
    return edges
