"""What was forgotten before in the places that are concerned now, as far as the audit knows."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headwater.data.forgetting import Audit
from headwater.data.forgotten import Forgotten
from headwater.tune.forget.task import key_of

Ids = NDArray[np.int64]
Line = Mapping[str, Any]


@dataclass(frozen=True)
class Past:
    """Requests that had one of these places, alone or with others; their hashes are those of their places."""

    folder: Path
    places: Collection[str]

    def hashes(self, ids: Iterable[int]) -> list[str]:
        """Keyed hashes of ids, as a request in just these places has them."""
        return self._hashes(self.places, ids)

    def when(self, id: int) -> str | None:
        """When a sample was forgotten; None if it never was."""
        wanted = np.array([id], np.int64)
        return next((str(line.get("time")) for line in self._lines if self._named(line, wanted)[0]), None)

    def know(self, ids: Ids) -> NDArray[np.bool_]:
        """Which of these were forgotten."""
        found = np.zeros(len(ids), np.bool_)
        for line in self._lines:
            rest = np.flatnonzero(~found)
            found[rest[self._named(line, ids[rest])]] = True
        return found

    def divide(self, ids: Ids, now: set[str], *, gone: bool) -> tuple[set[str], set[str]]:
        """Versions that the data had with the samples, and those without them, as far as they are known.

        `now` are those that they have. Without are those after the last sample was forgotten, so none unless
        all of them are `gone`.
        """
        known = now | {version for line in self._lines for version in _versions(line)}
        if not gone:
            return known, set()
        waiting, had = ids, set[str]()
        for line in self._lines:
            if len(waiting):
                had |= set(map(str, line.get("before", ())))
                waiting = waiting[~self._named(line, waiting)]
        return had, known - had

    @cached_property
    def _lines(self) -> list[Line]:
        places = set(self.places)
        return [line for line in Audit(self.folder).lines() if places & set(line.get("places", ()))]

    def _named(self, line: Line, ids: Ids) -> NDArray[np.bool_]:
        hashes = set(line.get("hashes", ()))
        there = (hash in hashes for hash in self._hashes(line["places"], ids.tolist()))
        return np.fromiter(there, np.bool_, len(ids))

    def _hashes(self, places: Collection[str], ids: Iterable[int]) -> list[str]:
        forgotten = Forgotten(self.folder, key_of(places))
        return [forgotten.hash(id) for id in ids]


def _versions(line: Line) -> set[str]:
    return {str(version) for name in ("before", "versions") for version in line.get(name, ())}
