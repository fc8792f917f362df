"""Every picture gets its fingerprint or is named, wherever it is decoded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import simplejpeg
from numpy.typing import NDArray

import headwater as hw
from headwater.data.image import Limits
from headwater.data.image.fingerprint import EDGE, VIEWS, WORDS, hash_thumbnails
from headwater.data.image.thumbnail import shrink
from headwater.engine.crew import Crew
from headwater.engine.fingerprints import BATCH, FingerprintBatch, Fingerprinting, fingerprint_chain
from headwater.errors import SampleCorrupt, SampleTooLarge
from headwater.plan.offload import Offload
from headwater.select.duplicates import group_hashes
from pictures import photo
from relabelling import write_photos
from stores import running_daemon

FILES = (Offload(0),)
THUMBNAILS = (Offload(2),)


def fingerprinting(
    data: hw.Dataset, ways: Sequence[Offload] = FILES, *, workers: int = 2, limits: Limits | None = None
) -> Fingerprinting:
    chain = fingerprint_chain(limits or Limits())
    return Fingerprinting(lambda: data.store.reader(chain, ways), Crew(workers, data.store.readers), chain)


def run(made: Fingerprinting, data: hw.Dataset) -> list[FingerprintBatch]:
    try:
        return list(made.run(data.positions(), data.ids))
    finally:
        made.crew.close()


def hashed(data: hw.Dataset, place: int) -> NDArray[np.uint64]:
    """By hand."""
    return hash_thumbnails(shrink(data[place].decode(), EDGE)[None, :, :, 0])[0]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> hw.Dataset:
    return hw.open(write_photos(tmp_path_factory.mktemp("photos"), BATCH + 40, broken=3))


@pytest.mark.parametrize("workers", [0, 2])
def test_every_sample_is_hashed_or_named(data: hw.Dataset, workers: int) -> None:
    batches = run(fingerprinting(data, workers=workers), data)
    assert [len(batch.ids) + len(batch.failures) for batch in batches] == [BATCH, 43]
    lost = [failed for batch in batches for failed in batch.failures]
    assert {data.index.key(failed.position) for failed in lost} == {f"broken-{n}.jpg" for n in range(3)}
    assert all(isinstance(failed.error, SampleCorrupt) for failed in lost)
    positions = np.concatenate([batch.positions for batch in batches])
    ids = np.concatenate([batch.ids for batch in batches])
    np.testing.assert_array_equal(data.index.ids[positions], ids)
    expected = [one for one in data.ids.tolist() if one not in {failed.id for failed in lost}]
    assert ids.tolist() == expected


def test_hashes_are_those_of_the_sample_beside_them(data: hw.Dataset) -> None:
    for batch in run(fingerprinting(data), data):
        assert batch.hashes.shape == (len(batch.ids), len(VIEWS), WORDS)
        for place in (0, len(batch.ids) // 2, -1):
            np.testing.assert_array_equal(batch.hashes[place], hashed(data, int(batch.positions[place])))


def test_a_whole_batch_can_fail(tmp_path: Path) -> None:
    data = hw.open(write_photos(tmp_path, 0, broken=5))
    (batch,) = run(fingerprinting(data), data)
    assert batch.hashes.shape == (0, len(VIEWS), WORDS)
    assert len(batch.failures) == 5


def test_no_samples_no_batches(data: hw.Dataset) -> None:
    made, nothing = fingerprinting(data), np.empty(0, np.int64)
    assert list(made.run(nothing, nothing)) == []
    made.crew.close()


def test_limits_hold_here_too(data: hw.Dataset) -> None:
    batches = run(fingerprinting(data, limits=Limits(pixels=100)), data)
    assert not sum(len(batch.ids) for batch in batches)
    assert any(isinstance(failed.error, SampleTooLarge) for failed in batches[0].failures)


@pytest.mark.slow
def test_a_store_makes_thumbnails_and_the_hashes_are_the_same(tmp_path: Path) -> None:
    for number in range(12):
        image = photo(150, 200, seed=number)
        (tmp_path / f"{number:02d}.jpg").write_bytes(simplejpeg.encode_jpeg(image, quality=90))
    (tmp_path / "broken.jpg").write_bytes(simplejpeg.encode_jpeg(photo(150, 200))[:500])
    here = run(fingerprinting(hw.open(tmp_path)), hw.open(tmp_path))
    with running_daemon({"photos": tmp_path}) as daemon:
        data = hw.open(f"{daemon.serving.address}/photos")
        made = fingerprinting(data, THUMBNAILS)
        there = run(made, data)
    assert [one.hashes.tolist() for one in there] == [one.hashes.tolist() for one in here]
    assert [failed.id for failed in there[0].failures] == [failed.id for failed in here[0].failures]
    assert made.meter.stats().bytes_moved < 0.2 * data.sizes.sum()


def test_the_same_picture_twice_is_a_group(tmp_path: Path) -> None:
    image = photo(150, 200, seed=1)
    for name, pixels, quality in (("a", image, 90), ("b", photo(150, 200, seed=2), 90), ("c", image, 40)):
        (tmp_path / f"{name}.jpg").write_bytes(simplejpeg.encode_jpeg(pixels, quality=quality))
    data = hw.open(tmp_path)
    (batch,) = run(fingerprinting(data), data)
    assert group_hashes(batch.hashes, np.zeros(3, np.int64)).tolist() == [0, -1, 0]
