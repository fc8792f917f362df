"""Sample ids and a number for each: sorted arrays, 12 bytes an entry, to which more can be added."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]
Rows = NDArray[np.uint32]

_LEAST_TAIL = 4096
_TAIL_SHARE = 64


class Places:
    """Where each id lies. Not for several threads at once.

    What was added lately stands in a short array of its own, so that adding costs little however many there
    are.
    """

    def __init__(self) -> None:
        self._ids, self._rows = np.empty(0, np.int64), np.empty(0, np.uint32)
        self._new_ids, self._new_rows = self._ids, self._rows

    def __len__(self) -> int:
        return len(self._ids) + len(self._new_ids)

    def add(self, ids: Ids, rows: Rows) -> None:
        """More entries; an id that is there already gets the later row."""
        self._new_ids, self._new_rows = _merge(self._new_ids, self._new_rows, ids, rows)
        if len(self._new_ids) > max(_LEAST_TAIL, len(self._ids) // _TAIL_SHARE):
            self._ids, self._rows = self.all()
            self._new_ids, self._new_rows = np.empty(0, np.int64), np.empty(0, np.uint32)

    def find(self, ids: Ids) -> NDArray[np.int64]:
        """The row of each id, -1 where there is none."""
        found = _find(self._ids, self._rows, ids)
        later = _find(self._new_ids, self._new_rows, ids)
        return np.where(later >= 0, later, found)

    def all(self) -> tuple[Ids, Rows]:
        """All ids, sorted, and their rows."""
        return _merge(self._ids, self._rows, self._new_ids, self._new_rows)


def _find(ids: Ids, rows: Rows, wanted: Ids) -> NDArray[np.int64]:
    if not len(ids):
        return np.full(len(wanted), -1, np.int64)
    spots = np.minimum(np.searchsorted(ids, wanted), len(ids) - 1)
    return np.where(ids[spots] == wanted, rows[spots].astype(np.int64), -1)


def _merge(ids: Ids, rows: Rows, more_ids: Ids, more_rows: Rows) -> tuple[Ids, Rows]:
    if not len(more_ids):
        return ids, rows
    joined, numbers = np.concatenate([ids, more_ids]), np.concatenate([rows, more_rows])
    order = np.argsort(joined, kind="stable")
    joined, numbers = joined[order], numbers[order]
    last = np.append(joined[1:] != joined[:-1], True)  # of equal ids the one that came last
    return (joined, numbers) if last.all() else (joined[last], numbers[last])
