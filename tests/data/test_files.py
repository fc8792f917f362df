"""Local files: ranges, descriptors, and files that changed."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from headwater.data.files import LocalFiles, Span
from headwater.errors import DatasetNotFound, DatasetStale


@pytest.fixture(params=[0, 2, 64])
def local(request: pytest.FixtureRequest) -> LocalFiles:
    return LocalFiles(descriptors=request.param)


@pytest.fixture
def shards(tmp_path: Path) -> list[str]:
    paths = [tmp_path / f"{number}.bin" for number in range(6)]
    for number, path in enumerate(paths):
        path.write_bytes(bytes([number]) * 1000 + bytes(range(100)))
    return [str(path) for path in paths]


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_ranges(local: LocalFiles, shards: list[str]) -> None:
    assert local.read_range(shards[3], 998, 4) == b"\x03\x03\x00\x01"
    assert local.read_range(shards[3], 1095, 100) == bytes(range(95, 100))
    assert local.read_whole(shards[1]) == b"\x01" * 1000 + bytes(range(100))


def test_many_spans_in_order(local: LocalFiles, shards: list[str]) -> None:
    spans = [Span(path, 999, 3, 1100) for path in reversed(shards)]
    assert local.read_many(spans) == [bytes([number, 0, 1]) for number in range(5, -1, -1)]


def test_at_most_so_many_descriptors_stay_open(shards: list[str]) -> None:
    local = LocalFiles(descriptors=2)
    before = open_files()
    for path in shards:
        local.read_range(path, 0, 1)
    assert open_files() == before + 2
    local.close()
    assert open_files() == before


def test_eviction_does_not_pull_a_descriptor_from_under_a_reader(shards: list[str]) -> None:
    local = LocalFiles(descriptors=1)
    start = threading.Barrier(4)

    def read(number: int) -> bool:
        start.wait(timeout=30)
        span = Span(shards[number], 0, 1000, 1100)
        return all(local.read_many([span])[0] == bytes([number]) * 1000 for _ in range(500))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(read, range(4)))


@pytest.mark.parametrize("size", [0, 500, 1099, 1101])
def test_another_size_is_stale(local: LocalFiles, shards: list[str], size: int) -> None:
    span = Span(shards[2], 0, 400, 1100)
    assert len(local.read_many([span])[0]) == 400
    os.truncate(shards[2], size)
    with pytest.raises(DatasetStale, match=rf"2\.bin had 1100 bytes .* has {size} bytes now; .*refresh=True"):
        local.read_many([span])


def test_a_missing_file_is_stale_to_a_reader_and_not_found_to_an_opener(tmp_path: Path) -> None:
    local, path = LocalFiles(), str(tmp_path / "gone.jpg")
    with pytest.raises(DatasetStale, match=r"gone\.jpg .* is gone"):
        local.read_many([Span(path, 0, 10, 10)])
    for look in (local.fingerprint, local.read_whole, lambda path: local.read_range(path, 0, 1)):
        with pytest.raises(DatasetNotFound, match=r"gone\.jpg"):
            look(path)


def test_listing_is_sorted_and_leaves_hidden_files_out(tmp_path: Path) -> None:
    for name in ("b/2.tar", "a/1.tar", ".hidden.tar", ".git/3.tar", "0.tar"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x" * len(name))
    listed = LocalFiles().list_files(str(tmp_path))
    names = [os.path.relpath(path, tmp_path) for path in listed.column("path").to_pylist()]
    assert names == ["0.tar", "a/1.tar", "b/2.tar"]
    assert listed.column("size").to_pylist() == [5, 7, 7]


def test_fingerprint_changes_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"1")
    os.utime(path, ns=(1, 1))
    first = LocalFiles().fingerprint(str(path))
    os.utime(path, ns=(2, 2))
    assert LocalFiles().fingerprint(str(path)) != first
