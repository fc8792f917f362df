"""Sample ids and a number for each: sorted arrays, 12 bytes an entry, to which more can be added."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]
Rows = NDArray[np.uint32]

_NO_IDS, _NO_ROWS = np.empty(0, np.int64), np.empty(0, np.uint32)
_LEAST_TAIL = 4096
_TAIL_SHARE = 64


class Places:
    """Where each id lies. Not for several threads at once.

    What was added lately stands in a short array of its own, so that adding costs little however many there
    are.
    """

    def __init__(self, ids: Ids = _NO_IDS, rows: Rows = _NO_ROWS) -> None:
        """Of equal ids the row that comes last counts."""
        self._ids, self._rows = _merge(_NO_IDS, _NO_ROWS, ids, rows)
        self._new_ids, self._new_rows = _NO_IDS, _NO_ROWS

    def __len__(self) -> int:
        return len(self._ids) + len(self._new_ids)

    def add(self, ids: Ids, rows: Rows) -> None:
        """More entries; an id that is there already gets the later row."""
        self._new_ids, self._new_rows = _merge(self._new_ids, self._new_rows, ids, rows)
        if len(self._new_ids) > max(_LEAST_TAIL, len(self._ids) // _TAIL_SHARE):
            self._ids, self._rows = self.all()
            self._new_ids, self._new_rows = _NO_IDS, _NO_ROWS

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
    found = np.empty(len(wanted), np.int64)
    # In order, so that neighbours share cache lines: three times as fast among ten million.
    order = np.argsort(wanted)
    ranked = wanted[order]
    spots = np.minimum(np.searchsorted(ids, ranked), len(ids) - 1)
    found[order] = np.where(ids[spots] == ranked, rows[spots].astype(np.int64), -1)
    return found


def _merge(ids: Ids, rows: Rows, more_ids: Ids, more_rows: Rows) -> tuple[Ids, Rows]:
    if not len(more_ids):
        return ids, rows
    joined = np.concatenate([ids, more_ids])
    order = np.argsort(joined, kind="stable")
    joined, numbers = joined[order], np.concatenate([rows, more_rows])[order]
    del order
    last = np.append(joined[1:] != joined[:-1], True)  # of equal ids the one that came last
    return (joined, numbers) if last.all() else (joined[last], numbers[last])
