"""Fingerprints that a store keeps: near-duplicates are then looked for without reading a picture again."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headwater.data.image.fingerprint import VIEWS, WORDS, Hashes
from headwater.data.index import Index
from headwater.data.pipeline import Pipeline
from headwater.engine.fingerprints import fingerprint_chain
from headwater.engine.places import Ids
from headwater.store.cabinet import Cabinet, Key

_SHAPE = len(VIEWS), WORDS
_FORMAT = 1


def thumbnail_steps() -> Pipeline:
    """From a file to what is hashed."""
    return fingerprint_chain().pipeline


class Fingerprints:
    """Hashes of the pictures of one dataset, by sample: 96 bytes each. Safe to use from many threads.

    Keyed by the steps to the thumbnail, and by the versions of the libraries that make pixels.
    """

    def __init__(self, cabinet: Cabinet, index: Index, *, dataset: str) -> None:
        self._index = index
        self._loan = cabinet.open(Key("hashes", dataset, f"{thumbnail_steps().hash} {_FORMAT}"), index)

    def __len__(self) -> int:
        return len(self._loan)

    def missing(self, ids: Ids) -> NDArray[np.bool_]:
        """Which have none, told without reading."""
        found: NDArray[np.bool_] = self._loan.find(ids) < 0
        return found

    def get(self, ids: Ids) -> tuple[NDArray[np.intp], Hashes]:
        """The places of those that there are, and their hashes; a damaged row is not there."""
        rows = self._loan.find(ids)
        (places,) = np.nonzero(rows >= 0)
        entries = self._loan.read(rows[places])
        size = 8 * _SHAPE[0] * _SHAPE[1]
        sound = [number for number, entry in enumerate(entries) if entry is not None and len(entry) == size]
        found = np.empty((len(sound), *_SHAPE), np.uint64)
        for at, number in enumerate(sound):
            entry = entries[number]
            assert entry is not None
            found[at] = entry.view("<u8").reshape(_SHAPE)
        return places[sound], found

    def put(self, positions: Ids, hashes: Hashes) -> None:
        """Keep the hashes of the samples at these positions."""
        rows = np.ascontiguousarray(hashes.reshape(len(hashes), _SHAPE[0] * _SHAPE[1]), "<u8")
        entries = [memoryview(row) for row in rows.view(np.uint8)]
        ids, sizes = self._index.ids[positions], self._index.sizes[positions]
        self._loan.add(ids, sizes, entries=entries, norms=np.zeros(len(ids), np.float32))
