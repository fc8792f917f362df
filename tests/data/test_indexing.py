"""Building, caching, resuming and refreshing an index, on layouts made of plain numbers."""

from __future__ import annotations

import logging
import os
import stat
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from headwater.data import indexing
from headwater.data.index import FORMAT, Index
from headwater.data.indexcache import cache_folder
from headwater.data.indexing import open_index
from headwater.data.scans import Scan, Unit, joined, make_rows
from headwater.errors import DatasetError


class Numbers:
    """A layout whose units are named lists of sizes; counts what is scanned, and can fail."""

    numeric_labels = True
    exact_sizes = True
    workers = 2
    batch = 1

    def __init__(
        self, units: Mapping[str, Sequence[int]], labels: Mapping[str, str | None] | None = None
    ) -> None:
        self.identity = "numbers"
        self.content = {name: list(sizes) for name, sizes in units.items()}
        self.labels = labels or {}
        self.scanned: list[str] = []
        self.failing: BaseException | None = None
        self.fails_at = ""

    def units(self, known: Mapping[str, str]) -> list[Unit]:
        return [Unit(name, repr(sizes)) for name, sizes in self.content.items()]

    def scan(self, units: Sequence[Unit]) -> Scan:
        (unit,) = units
        if self.failing is not None and unit.name == self.fails_at:
            raise self.failing
        self.scanned.append(unit.name)
        sizes = self.content[unit.name]
        labels = pa.array([self.labels.get(unit.name)] * len(sizes), pa.large_string())
        rows = make_rows(
            [f"{unit.name}/{place}" for place in range(len(sizes))],
            sizes,
            unit=np.zeros(len(sizes), np.int32),
            labels=labels,
            offsets=np.arange(len(sizes)),
        )
        return Scan((unit,), rows)


UNITS = {"a": [1, 2, 3], "b": [4], "c": [], "d": [5, 6]}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("HEADWATER_CACHE", str(folder))
    return folder


def content(index: Index) -> list[tuple[str, int, int, str]]:
    shards = [index.places.shards[shard] for shard in index.shard]
    return list(zip(index.keys.to_pylist(), index.sizes.tolist(), index.offset.tolist(), shards, strict=True))


EXPECTED = [
    ("a/0", 1, 0, "a"),
    ("a/1", 2, 1, "a"),
    ("a/2", 3, 2, "a"),
    ("b/0", 4, 0, "b"),
    ("d/0", 5, 0, "d"),
    ("d/1", 6, 1, "d"),
]


def test_everything_is_scanned_once_and_then_never_again() -> None:
    layout = Numbers(UNITS)
    first = open_index(layout)
    assert content(first) == EXPECTED
    assert sorted(layout.scanned) == ["a", "b", "c", "d"]
    again = Numbers(UNITS)
    assert content(open_index(again)) == EXPECTED
    assert again.scanned == []


def test_only_what_is_new_is_scanned() -> None:
    open_index(Numbers(UNITS))
    layout = Numbers({**UNITS, "bb": [9, 9], "e": [7]})
    index = open_index(layout)
    assert sorted(layout.scanned) == ["bb", "e"]
    fresh = open_index(Numbers({**UNITS, "bb": [9, 9], "e": [7]}), refresh=True)
    assert content(index) == content(fresh)
    assert index.version == fresh.version


def test_only_what_changed_is_scanned_and_what_is_gone_disappears() -> None:
    open_index(Numbers(UNITS))
    layout = Numbers({"a": [1, 2, 3], "d": [5]})
    assert content(open_index(layout)) == [*EXPECTED[:3], ("d/0", 5, 0, "d")]
    assert layout.scanned == ["d"]


def test_refresh_scans_everything() -> None:
    open_index(Numbers(UNITS))
    layout = Numbers(UNITS)
    open_index(layout, refresh=True)
    assert sorted(layout.scanned) == ["a", "b", "c", "d"]


def test_a_unit_without_a_fingerprint_is_always_scanned() -> None:
    class Unsure(Numbers):
        def units(self, known: Mapping[str, str]) -> list[Unit]:
            return [Unit(u.name, "" if u.name == "b" else u.fingerprint) for u in super().units(known)]

    for scanned in (["a", "b", "c", "d"], ["b"], ["b"]):
        layout = Unsure(UNITS)
        assert content(open_index(layout)) == EXPECTED
        assert sorted(layout.scanned) == scanned


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), DatasetError("unreadable")])
def test_an_interrupted_build_goes_on_where_it_stopped(failure: BaseException, cache: Path) -> None:
    many = {f"{number:03d}": [number] for number in range(40)}
    layout = Numbers(many)
    layout.workers = 1
    layout.failing, layout.fails_at = failure, "020"
    with pytest.raises(type(failure)):
        open_index(layout)
    again = Numbers(many)
    index = open_index(again)
    assert index.sizes.tolist() == list(range(40))
    assert not set(again.scanned) & set(layout.scanned)
    assert len(again.scanned) + len(layout.scanned) == 40
    assert len(layout.scanned) >= 20
    assert [path.suffix for path in cache.iterdir()] == [".arrow"]


class Waiting(Numbers):
    """Its last unit is not scanned before a part of the others is on disk."""

    def scan(self, units: Sequence[Unit]) -> Scan:
        deadline = time.monotonic() + 30
        while units[0].name == "d" and not list(cache_folder().rglob("*.parts/*.arrow")):
            assert time.monotonic() < deadline, "no part was written while the build went on"
        return super().scan(units)


def test_finished_units_are_written_while_the_build_goes_on(
    monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    """What a kill -9 finds: parts on disk before the build ends, gone once it has."""
    monkeypatch.setattr(indexing, "FLUSH_SECONDS", -1.0)
    assert content(open_index(Waiting(UNITS))) == EXPECTED
    assert not list(cache.rglob("*.parts"))


def test_a_damaged_part_is_left_aside(caplog: pytest.LogCaptureFixture, cache: Path) -> None:
    layout = Numbers(UNITS)
    layout.workers = 1
    layout.failing, layout.fails_at = KeyboardInterrupt(), "d"
    with pytest.raises(KeyboardInterrupt):
        open_index(layout)
    (part,) = cache.rglob("*.parts/*.arrow")
    part.write_bytes(part.read_bytes()[:100])
    again = Numbers(UNITS)
    assert content(open_index(again)) == EXPECTED
    assert sorted(again.scanned) == ["a", "b", "c", "d"]
    assert "cannot be used" in caplog.text


@pytest.mark.parametrize("damage", [b"", b"not an index", None])
def test_a_damaged_cache_is_rebuilt_with_one_line(
    damage: bytes | None, caplog: pytest.LogCaptureFixture, cache: Path
) -> None:
    open_index(Numbers(UNITS))
    (path,) = cache.glob("*.arrow")
    whole = path.read_bytes()
    path.unlink()
    path.write_bytes(whole[: len(whole) // 2] if damage is None else damage)
    layout = Numbers(UNITS)
    with caplog.at_level(logging.WARNING):
        assert content(open_index(layout)) == EXPECTED
    assert len(layout.scanned) == 4
    assert len(caplog.records) == 1
    assert "indexing again" in caplog.text


@pytest.mark.parametrize("column", ["offset", "shard", "order", "key"])
def test_a_flipped_bit_in_any_column_is_indexed_again(
    column: str, caplog: pytest.LogCaptureFixture, cache: Path
) -> None:
    open_index(Numbers(UNITS))
    (path,) = cache.glob("*.arrow")
    content = pa.py_buffer(path.read_bytes())
    damaged = bytearray(content)
    values = pa.ipc.open_file(content).get_batch(0).column(column).buffers()[-1]
    damaged[values.address - content.address] ^= 1
    path.unlink()
    path.write_bytes(damaged)
    layout = Numbers(UNITS)
    assert content_of(layout) == EXPECTED
    assert sorted(layout.scanned) == ["a", "b", "c", "d"]
    assert "indexing again" in caplog.text


def content_of(layout: Numbers) -> list[tuple[str, int, int, str]]:
    return content(open_index(layout))


def test_few_units_are_scanned_one_by_one_and_many_together() -> None:
    class Batches(Numbers):
        batch = 64

        def scan(self, units: Sequence[Unit]) -> Scan:
            lengths.append(len(units))
            return joined([super(Batches, self).scan([unit]) for unit in units])

    for count, longest in ((1, 1), (10, 1), (127, 1), (1000, 15), (5000, 64)):
        lengths: list[int] = []
        index = open_index(Batches({f"{number:04d}": [number] for number in range(count)}), refresh=True)
        assert index.sizes.tolist() == list(range(count))
        assert (sum(lengths), max(lengths)) == (count, longest)
        assert len(lengths) >= min(count, 64)


def test_a_part_of_another_format_is_left_aside(caplog: pytest.LogCaptureFixture, cache: Path) -> None:
    layout = Numbers(UNITS)
    layout.workers = 1
    layout.failing, layout.fails_at = KeyboardInterrupt(), "d"
    with pytest.raises(KeyboardInterrupt):
        open_index(layout)
    (part,) = cache.rglob("*.parts/*.arrow")
    written = f'"format":{FORMAT}'.encode()
    assert written in part.read_bytes()
    part.write_bytes(part.read_bytes().replace(written, b'"format":1'))
    again = Numbers(UNITS)
    assert content_of(again) == EXPECTED
    assert sorted(again.scanned) == ["a", "b", "c", "d"]
    assert "format 1, this version reads" in caplog.text


def test_a_cache_that_cannot_be_written_costs_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("HEADWATER_CACHE", str(tmp_path / "file" / "cache"))
    assert content(open_index(Numbers(UNITS))) == EXPECTED
    assert "set HEADWATER_CACHE" in caplog.text


def test_the_cache_is_private(cache: Path) -> None:
    open_index(Numbers(UNITS))
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700


def test_where_the_cache_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    monkeypatch.setenv("HOME", "/home/someone")
    assert cache_folder() == Path(os.environ["HEADWATER_CACHE"])
    monkeypatch.delenv("HEADWATER_CACHE")
    assert cache_folder() == Path("/xdg/headwater")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path("/home/someone/.cache/headwater")


@pytest.mark.parametrize(
    ("labels", "numbers", "classes"),
    [
        ({"a": "7", "b": "-2", "d": None}, [7, 7, 7, -2, -1, -1], ()),
        ({"a": "dog", "b": "cat", "d": "10"}, [2, 2, 2, 1, 0, 0], ("10", "cat", "dog")),
        ({"a": None, "b": None, "d": None}, [-1] * 6, ()),
    ],
)
def test_labels(labels: dict[str, str | None], numbers: list[int], classes: tuple[str, ...]) -> None:
    index = open_index(Numbers(UNITS, labels))
    assert index.labels.tolist() == numbers
    assert index.classes == classes


def test_labels_become_names_when_a_new_unit_brings_a_name_and_numbers_again_without_it() -> None:
    labels = {"a": "1", "b": "2", "d": "3", "e": "cat"}
    assert open_index(Numbers(UNITS, labels)).labels.tolist() == [1, 1, 1, 2, 3, 3]
    named = Numbers({**UNITS, "e": [7]}, labels)
    index = open_index(named)
    assert (index.classes, index.labels.tolist()) == (("1", "2", "3", "cat"), [0, 0, 0, 1, 2, 2, 3])
    assert named.scanned == ["e"]
    assert open_index(Numbers(UNITS, labels)).labels.tolist() == [1, 1, 1, 2, 3, 3]


def test_bar_is_drawn_only_when_asked_for(capfd: pytest.CaptureFixture[str]) -> None:
    open_index(Numbers(UNITS), progress=None)
    assert capfd.readouterr().err == ""
    open_index(Numbers(UNITS), refresh=True, progress=True)
    assert "indexing" in capfd.readouterr().err


def test_two_processes_at_once_leave_one_good_index(tmp_path: Path, photo_folder: Path) -> None:
    program = (
        "import sys; from headwater.data.sources import open_source, SourceOptions\n"
        "anew = SourceOptions(refresh=True)\n"
        "print({open_source(sys.argv[1], options=anew).index.version for _ in range(20)})"
    )
    command = [sys.executable, "-c", program, str(photo_folder)]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    outputs = [process.communicate(timeout=60)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert outputs[0] == outputs[1]
    assert outputs[0].count("'") == 2
