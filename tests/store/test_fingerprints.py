"""Fingerprints that are kept: what was put is there, in a new process too, and nothing else is."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from headwater.data.image.fingerprint import VIEWS, WORDS
from headwater.data.index import Index
from headwater.store.cabinet import Cabinet
from headwater.store.fingerprints import Fingerprints

COUNT = 20
HASHES = np.random.default_rng(0).integers(0, 1 << 63, (COUNT, len(VIEWS), WORDS)).astype(np.uint64)


def index(*, grown: int = 0) -> Index:
    sizes = np.arange(1, COUNT + 1)
    sizes[0] += grown
    return Index.build([f"{number}.jpg" for number in range(COUNT)], sizes)


def test_what_was_put_is_there_in_a_new_process_too(tmp_path: Path) -> None:
    own = index()
    cabinet = Cabinet(tmp_path, most_bytes=1 << 20)
    some = np.array([3, 1, 9])
    Fingerprints(cabinet, own, dataset="photos").put(some, HASHES[some])
    Fingerprints(cabinet, own, dataset="photos").put(some[:0], HASHES[:0])
    assert len(Fingerprints(cabinet, own, dataset="others")) == 0
    cabinet.close()
    cabinet = Cabinet(tmp_path, most_bytes=1 << 20)
    kept = Fingerprints(cabinet, own, dataset="photos")
    places, found = kept.get(own.ids)
    assert places.tolist() == [1, 3, 9]
    np.testing.assert_array_equal(found, HASHES[places])
    assert (np.flatnonzero(~kept.missing(own.ids)) == places).all()
    assert cabinet.nbytes < 3 * 200, "a hash has 96 bytes, and little stands beside it"
    cabinet.close()


def test_a_file_of_another_size_has_none(tmp_path: Path) -> None:
    cabinet = Cabinet(tmp_path, most_bytes=1 << 20)
    Fingerprints(cabinet, index(), dataset="photos").put(np.arange(COUNT), HASHES)
    cabinet.close()
    cabinet = Cabinet(tmp_path, most_bytes=1 << 20)
    changed = index(grown=1)
    places, _ = Fingerprints(cabinet, changed, dataset="photos").get(changed.ids)
    assert places.tolist() == list(range(1, COUNT))
    cabinet.close()
