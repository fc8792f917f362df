"""A file names each sample once: said of the second time, with its place, however long the file is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from headwater.errors import LabelFileInvalid
from headwater.store.labels.exchange.sheet import Sheet


class Seen:
    """Ids in sorted arrays, of which two of about one size become one: 8 bytes an id, and little work."""

    def __init__(self) -> None:
        self._known: list[NDArray[np.int64]] = []

    def repeated(self, samples: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of these came before, earlier in this array or in an earlier one; now all of them have."""
        ids, first = np.unique(samples, return_index=True)
        again = np.ones(len(samples), bool)
        again[first] = False
        for known in self._known:
            place = np.minimum(np.searchsorted(known, samples), len(known) - 1)
            again |= known[place] == samples
        self._add(ids)
        return again

    def _add(self, ids: NDArray[np.int64]) -> None:
        if not len(ids):
            return
        self._known.append(ids)
        while len(self._known) > 1 and len(self._known[-2]) <= 2 * len(self._known[-1]):
            self._known[-2:] = [np.unique(np.concatenate(self._known[-2:]))]


def once(sheets: Iterable[Sheet]) -> Iterator[Sheet]:
    """The sheets; raises `LabelFileInvalid` for a sample that comes a second time."""
    seen = Seen()
    for sheet in sheets:
        samples = sheet.table["sample"].to_numpy()
        (again,) = np.nonzero(seen.repeated(samples))
        if len(again):
            place = sheet.place(int(again[0]), "sample")
            raise LabelFileInvalid(f"{place}: sample {samples[again[0]]} was there before; name each once")
        yield sheet
