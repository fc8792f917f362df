"""Which versions came before a version: its ancestors, and those of its name that were made earlier."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from headwater.models.version import ModelVersion


def line_of(version: ModelVersion, versions: Collection[ModelVersion]) -> list[ModelVersion]:
    """The version, behind all of `versions` that came before it and before those, oldest first.

    A parent is older than its children whatever their clocks say.
    """
    known = {one.digest: one for one in (*versions, version)}
    ages = _ages(known)
    found, waiting = {version.digest}, [version]
    while waiting:
        fresh = {one.digest for one in _before(waiting.pop(), known, ages)} - found
        found |= fresh
        waiting.extend(known[digest] for digest in fresh)
    return sorted((known[digest] for digest in found), key=lambda one: (*ages[one.digest], one.digest))


def _before(
    version: ModelVersion, known: Mapping[str, ModelVersion], ages: Mapping[str, tuple[str, int]]
) -> list[ModelVersion]:
    moment, _ = ages[version.digest]
    return [
        one
        for one in known.values()
        if one.digest == version.parent or (one.name == version.name and ages[one.digest][0] < moment)
    ]


def _ages(known: Mapping[str, ModelVersion]) -> dict[str, tuple[str, int]]:
    """When each was made, but not before its parent was, and how many ancestors it has."""
    ages: dict[str, tuple[str, int]] = {}
    for version in known.values():
        line, one = [], known.get(version.digest)
        while one is not None and one.digest not in ages:
            line.append(one)
            one = known.get(one.parent or "")
        moment, depth = ("", 0) if one is None else ages[one.digest]
        for each in reversed(line):
            moment, depth = max(moment, each.time), depth + 1
            ages[each.digest] = moment, depth
    return ages
