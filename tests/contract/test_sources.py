"""What every source promises, for each layout on disk and in a bucket."""

from __future__ import annotations

import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from datasets import CLASSES, Photo
from headwater.data.sources import Source, SourceOptions, open_source
from headwater.errors import DatasetError, DatasetNotFound, WrongUse
from seaweed import S3Server


class Place(NamedTuple):
    """A dataset somewhere, and how to open it."""

    uri: str
    options: SourceOptions
    layout: str

    def open(self) -> Source:
        return open_source(self.uri, options=self.options)


FIELDS: dict[str, tuple[str, ...]] = {"folder": (), "tar": ("json", "cls"), "parquet": ("number", "camera")}


@pytest.fixture(scope="module", params=["folder", "tar", "parquet"])
def layout(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def local(layout: str, request: pytest.FixtureRequest) -> Path:
    fixture = {"folder": "photo_folder", "tar": "photo_tars", "parquet": "photo_parquet"}[layout]
    return Path(request.getfixturevalue(fixture))


@pytest.fixture(scope="module", params=["local", "s3"])
def place(layout: str, local: Path, request: pytest.FixtureRequest) -> Place:
    if request.param == "local":
        return Place(str(local), SourceOptions(fields=FIELDS[layout]), layout)
    server: S3Server = request.getfixturevalue("s3")
    uri = server.upload(local, f"contract/{layout}")
    return Place(uri, SourceOptions(fields=FIELDS[layout], storage=server.storage), layout)


@pytest.fixture
def source(place: Place) -> Source:
    opened = place.open()
    yield opened
    opened.close()


def expected(source: Source, photos: list[Photo]) -> list[Photo]:
    """The photo at each position, found through the key alone."""
    by_name = {photo.name: photo for photo in photos}
    out = []
    for position in range(len(source.index)):
        key = source.index.key(position)
        stem, _, name = key.rpartition("/")
        if stem.startswith("train-"):
            half = int(stem.split("-")[1])
            name = f"{half * len(photos) // 2 + int(name):04d}"
        out.append(by_name[name.partition(".")[0]])
    return out


class TestSource:
    def test_every_sample_is_there_once(self, source: Source, photos: list[Photo]) -> None:
        assert sorted(photo.name for photo in expected(source, photos)) == [photo.name for photo in photos]

    def test_bytes_are_those_that_were_written(self, source: Source, photos: list[Photo]) -> None:
        read = source.read(np.arange(len(source.index)))
        assert [np.frombuffer(data, np.uint8).tobytes() for data in read] == [
            photo.data for photo in expected(source, photos)
        ]

    def test_reads_in_the_order_asked_for_and_repeats(self, source: Source, photos: list[Photo]) -> None:
        positions = np.array([35, 0, 17, 17, 3])
        wanted = expected(source, photos)
        assert [bytes(data) for data in source.read(positions)] == [wanted[p].data for p in positions]

    def test_no_positions_no_bytes(self, source: Source) -> None:
        assert source.read(np.array([], np.int64)) == []

    def test_heads_are_beginnings(self, source: Source, photos: list[Photo]) -> None:
        positions = np.array([2, 30])
        wanted = expected(source, photos)
        heads = source.read_heads(positions, 100)
        assert [bytes(head) for head in heads] == [wanted[p].data[:100] for p in positions]
        whole = source.read_heads(positions, 1 << 30)
        assert [bytes(head) for head in whole] == [wanted[p].data for p in positions]

    def test_labels_name_their_classes(self, source: Source, photos: list[Photo]) -> None:
        assert source.index.classes == CLASSES
        assert source.index.labels.tolist() == [photo.label for photo in expected(source, photos)]

    def test_sizes_are_bytes_of_the_files(self, source: Source, photos: list[Photo]) -> None:
        sizes = np.array([len(photo.data) for photo in expected(source, photos)])
        if source.index.exact_sizes:
            assert source.index.sizes.tolist() == sizes.tolist()
        else:
            # Means per row group; page headers with the smallest and largest value weigh on tiny groups.
            assert 1 <= source.index.sizes.sum() / sizes.sum() < 1.25

    def test_fields_are_passed_through(self, source: Source, place: Place, photos: list[Photo]) -> None:
        wanted = expected(source, photos)
        positions = np.array([11, 4])
        fields = source.read_fields(positions)
        numbers = [int(wanted[p].name) for p in positions]
        names = [CLASSES[wanted[p].label] for p in positions]
        assert (
            fields
            == {
                "folder": {},
                "tar": {
                    "json": [{"class": c, "number": n} for c, n in zip(names, numbers, strict=True)],
                    "cls": names,
                },
                "parquet": {"number": numbers, "camera": [("north", "south")[n % 2] for n in numbers]},
            }[place.layout]
        )

    def test_blocks_begin_at_zero_and_rise(self, source: Source, place: Place) -> None:
        blocks = source.blocks()
        if place.layout != "parquet":
            assert blocks is None
            return
        assert blocks is not None
        assert blocks.tolist() == [0, 5, 10, 15, 18, 23, 28, 33]

    def test_opening_again_gives_the_same_version(self, source: Source, place: Place) -> None:
        again = place.open()
        assert again.index.version == source.index.version
        assert again.index.ids.tolist() == source.index.ids.tolist()
        again.close()

    def test_refresh_gives_the_same_version(self, source: Source, place: Place) -> None:
        options = SourceOptions(fields=place.options.fields, storage=place.options.storage, refresh=True)
        again = open_source(place.uri, options=options)
        assert again.index.version == source.index.version
        again.close()

    def test_a_copy_elsewhere_has_the_same_version(self, source: Source, local: Path, tmp_path: Path) -> None:
        copy = open_source(shutil.copytree(local, tmp_path / "elsewhere"))
        assert copy.index.version == source.index.version
        assert [copy.index.key(p) for p in range(36)] == [source.index.key(p) for p in range(36)]

    def test_many_threads_read_the_right_bytes(self, source: Source, photos: list[Photo]) -> None:
        wanted = [photo.data for photo in expected(source, photos)]
        start = threading.Barrier(8)

        def read(seed: int) -> bool:
            positions = np.random.default_rng(seed).integers(0, 36, 50)
            start.wait(timeout=30)
            return [bytes(data) for data in source.read(positions)] == [wanted[p] for p in positions]

        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(read, range(8)))

    def test_remote_says_so(self, source: Source, place: Place) -> None:
        assert source.remote == place.uri.startswith("s3://")
        assert source.uri == place.uri


class TestNothingThere:
    def test_missing(self, place: Place) -> None:
        with pytest.raises(DatasetNotFound, match="missing"):
            open_source(f"{place.uri}/missing", options=place.options)

    def test_missing_shard(self, place: Place) -> None:
        with pytest.raises(DatasetNotFound, match=r"missing\.tar"):
            open_source(f"{place.uri}/missing.tar", options=place.options)

    def test_missing_split(self, place: Place) -> None:
        options = SourceOptions(split="nowhere", storage=place.options.storage)
        with pytest.raises(DatasetNotFound, match="nowhere"):
            open_source(place.uri, options=options)


@pytest.mark.parametrize(
    ("uri", "error"),
    [("gopher://x/y", WrongUse), ("s3://", WrongUse), ([], WrongUse), ("a-{0..99999999}.tar", WrongUse)],
)
def test_addresses_that_cannot_be_right(uri: str, error: type[DatasetError]) -> None:
    with pytest.raises(error):
        open_source(uri)
