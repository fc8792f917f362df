"""Images for models: decoded in workers, failed where they cannot be, in turn and with all given back."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headwater import transforms as T
from headwater.data.image.fingerprint import hash_thumbnails
from headwater.data.pipeline import Pipeline
from headwater.data.steps.decode import Decode
from headwater.engine.budget import Gone
from headwater.engine.chain import Chain
from headwater.engine.fetching import Fetched, Wanted
from headwater.errors import SampleCorrupt
from headwater.store.cabinet import Cabinet
from headwater.store.features import Pictures
from headwater.store.fingerprints import Fingerprints, thumbnail_steps
from headwater.store.server.decoding import Asker, Decoding
from headwater.store.server.workers import _digest
from relabelling import write_photos
from workshops import Lot, Workshop, open_workshop

PIPELINE = T.Compose([T.RandomCrop(8), T.RandomHorizontalFlip()]).samplewise


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workshop]:
    folder = tmp_path_factory.mktemp("decoding")
    with open_workshop(write_photos(folder / "photos", 30, broken=2), folder / "state") as made:
        made.workers.start()
        yield made


def never() -> bool:
    return False


def reader(
    workshop: Workshop,
    *,
    gone: Callable[[], bool] = never,
    pictures: Pictures | None = None,
    priority: str = "relabel",
) -> Decoding:
    asker = Asker("the store", "job", priority, gone)
    return Decoding(workshop.desk, workshop.store, pipeline=PIPELINE, asker=asker, seed=5, pictures=pictures)


def wanted(workshop: Workshop, places: np.ndarray, epoch: int = 2) -> Wanted:
    return Wanted(places, workshop.store.index.ids[places], epoch)


def locally(workshop: Workshop, wish: Wanted) -> Lot:
    lot = Lot(wish.ids, wish.epoch)
    Chain(PIPELINE, seed=5).run(workshop.store.read(wish.positions), lot)
    return lot


def check(found: Fetched, expected: Lot) -> None:
    assert set(found.failed) == expected.failed
    for place, image in expected.made.items():
        np.testing.assert_array_equal(found.values[place], image)


@pytest.mark.parametrize("priority", ["read", "relabel"])
def test_the_same_pixels_as_here_and_broken_files_fail(workshop: Workshop, priority: str) -> None:
    wish = wanted(workshop, np.arange(32))
    found = reader(workshop, priority=priority).fetch(wish)
    check(found, locally(workshop, wish))
    assert len(found.failed) == 2
    assert all(isinstance(error, SampleCorrupt) for error in found.failed.values())
    assert found.bytes_moved == sum(path.stat().st_size for path in files(workshop))


def files(workshop: Workshop) -> list[Path]:
    return list(Path(workshop.store.uri).iterdir())


def test_kept_images_are_not_decoded_again(workshop: Workshop, tmp_path: Path) -> None:
    cabinet = Cabinet(tmp_path, most_bytes=1 << 20)
    index = workshop.store.index
    pictures = Pictures(cabinet, index, dataset="photos", pipeline=PIPELINE)
    first = reader(workshop, pictures=pictures).fetch(wanted(workshop, np.arange(20)))
    assert len(pictures) == 20 - len(first.failed)
    wish = wanted(workshop, np.arange(10, 32))
    second = reader(workshop, pictures=pictures).fetch(wish)
    check(second, locally(workshop, wish))
    assert second.bytes_moved < first.bytes_moved
    third = reader(workshop, pictures=pictures).fetch(wanted(workshop, np.arange(2, 20)))
    assert third.bytes_moved <= 400, "only a broken file, if there is one among them, is read again"


def test_what_is_decoded_is_fingerprinted_by_the_way(
    workshop: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same hashes as without anything else, and no second decode for them."""
    cabinet, index = Cabinet(tmp_path, most_bytes=1 << 20), workshop.store.index
    prints = Fingerprints(cabinet, index, dataset="photos")
    wish = wanted(workshop, np.arange(32))
    plain = reader(workshop)
    also: list[int] = []
    original = workshop.workers.run

    def count(work: Any, files: Any) -> Any:
        also.append(len(work.also))
        return original(work, files)

    monkeypatch.setattr(workshop.workers, "run", count)
    seeing = Decoding(
        workshop.desk, workshop.store, pipeline=PIPELINE, asker=plain._asker, seed=5, prints=prints
    )
    found = seeing.fetch(wish)
    check(found, locally(workshop, wish))
    sound = np.array([place for place in range(32) if place not in found.failed])
    places, hashes = prints.get(index.ids)
    np.testing.assert_array_equal(places, sound)
    lot = Lot(index.ids, 0)
    Chain(thumbnail_steps()).run(workshop.store.read(np.arange(32)), lot)
    made = np.stack([lot.made[place][:, :, 0] for place in sound.tolist()])
    np.testing.assert_array_equal(hashes, hash_thumbnails(made))
    seeing.fetch(wanted(workshop, sound))
    assert also == [1, 0], "the second time they are there"
    grey = Pipeline((Decode("L"), *PIPELINE.steps[1:]))
    Decoding(workshop.desk, workshop.store, pipeline=grey, asker=plain._asker, prints=prints).fetch(wish)
    assert also[2:] == [0], "what decodes otherwise shares nothing"
    cabinet.close()


def test_all_broken(workshop: Workshop) -> None:
    index = workshop.store.index
    places = np.array([place for place in range(32) if "broken" in index.key(place)])
    found = reader(workshop).fetch(wanted(workshop, places))
    assert set(found.failed) == {0, 1}


def test_a_file_that_vanished_is_a_failure_of_its_own(tmp_path: Path) -> None:
    photos = write_photos(tmp_path / "photos", 6)
    with open_workshop(photos, tmp_path / "state") as workshop:
        next(iter(photos.glob("*3.jpg"))).unlink()
        found = reader(workshop).fetch(wanted(workshop, np.arange(6)))
        assert len(found.failed) == 1
        assert sum(value is not None for value in found.values) == 5


def test_a_quarantined_sample_is_named(workshop: Workshop) -> None:
    index = workshop.store.index
    file = np.frombuffer(workshop.store.read(np.array([4]))[0], np.uint8)
    workshop.workers._quarantine[int(index.ids[4])] = _digest(file)
    try:
        found = reader(workshop).fetch(wanted(workshop, np.arange(8)))
    finally:
        workshop.workers.release()
    assert "quarantine" in str(found.failed[4])


@pytest.mark.parametrize("how", ["gone", "abandoned"])
def test_nobody_waits_for_what_nobody_wants(workshop: Workshop, how: str) -> None:
    over = threading.Event()
    decoding = reader(workshop, gone=over.is_set)
    workshop.cores.spent(workshop.cores.cores * 3)  # in debt, so it waits; the last test, so nobody minds
    failed: list[BaseException] = []

    def run() -> None:
        try:
            decoding.fetch(wanted(workshop, np.arange(16)))
        except Gone as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(0.1)
    assert thread.is_alive()
    over.set() if how == "gone" else decoding.abandon()
    thread.join(10)
    assert failed
