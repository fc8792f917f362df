"""Entries by sample: they come back as they were, whatever was cut off, altered or never written."""

from __future__ import annotations

import logging
import os
import resource
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from headwater.engine.drawer import DATA, INDEX, RECORD, Drawer, erase


def fill(drawer: Drawer, ids: NDArray[np.int64], *, size: int = 10) -> list[bytes]:
    """An entry for each id that names it, and half of it as its number."""
    entries = [f"entry {id} ".encode() * (1 + id % 3) for id in ids.tolist()]
    norms = (ids / 2).astype(np.float32)
    assert drawer.add(ids, np.full(len(ids), size), entries=entries, norms=norms)
    return entries


def read(drawer: Drawer, ids: NDArray[np.int64]) -> list[bytes | None]:
    rows = drawer.find(ids)
    return [None if entry is None else entry.tobytes() for entry in drawer.read(rows)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def test_comes_back_now_and_later(folder: Path) -> None:
    ids = np.random.default_rng(0).permutation(5000).astype(np.int64)
    drawer = Drawer(folder)
    entries = [entry for begin in range(0, 5000, 640) for entry in fill(drawer, ids[begin : begin + 640])]
    for opened in (drawer, Drawer(folder)):
        assert read(opened, ids) == entries
        np.testing.assert_array_equal(opened.norms(opened.find(ids)), (ids / 2).astype(np.float32))
        assert opened.find(np.array([5000, -3])).tolist() == [-1, -1]
        assert len(opened) == 5000
        assert opened.nbytes == (folder / INDEX).stat().st_size + (folder / DATA).stat().st_size


def test_what_is_there_is_not_written_again(folder: Path) -> None:
    drawer = Drawer(folder)
    first = fill(drawer, np.array([1, 2]))
    before = drawer.nbytes
    assert drawer.add(np.array([2]), np.array([10]), entries=[b"other"], norms=np.zeros(1, np.float32))
    assert drawer.nbytes == before
    assert read(drawer, np.array([1, 2])) == first


@pytest.mark.parametrize("lost", [1, 7, RECORD.itemsize, RECORD.itemsize + 1, 10 * RECORD.itemsize])
def test_a_torn_index_loses_its_tail_only(folder: Path, lost: int) -> None:
    ids = np.arange(40)
    drawer = Drawer(folder)
    entries = fill(drawer, ids)
    drawer.close()
    os.truncate(folder / INDEX, 40 * RECORD.itemsize - lost)
    kept = 40 - -(-lost // RECORD.itemsize)
    opened = Drawer(folder)
    assert len(opened) == kept
    assert read(opened, ids[:kept]) == entries[:kept]
    fill(opened, ids[kept:])
    assert read(Drawer(folder), ids) == entries


@pytest.mark.parametrize("lost", [1, 30, 300])
def test_torn_data_loses_its_tail_only(folder: Path, lost: int) -> None:
    ids = np.arange(40)
    drawer = Drawer(folder)
    entries = fill(drawer, ids)
    drawer.close()
    os.truncate(folder / DATA, (folder / DATA).stat().st_size - lost)
    opened = Drawer(folder)
    kept = len(opened)
    assert 0 < kept < 40
    assert read(opened, ids[:kept]) == entries[:kept]
    assert (opened.find(ids[kept:]) == -1).all()
    fill(opened, ids[kept:])
    assert read(Drawer(folder), ids) == entries


def test_pages_that_never_reached_the_disk_are_noticed(folder: Path) -> None:
    """After a power cut a file may have its length and zeros in it."""
    ids = np.arange(40)
    drawer = Drawer(folder)
    entries = fill(drawer, ids)
    drawer.close()
    content = bytearray((folder / INDEX).read_bytes())
    content[30 * RECORD.itemsize :] = bytes(10 * RECORD.itemsize)
    (folder / INDEX).write_bytes(content)
    opened = Drawer(folder)
    assert len(opened) == 30
    assert read(opened, ids[:30]) == entries[:30]


def test_altered_bytes_are_never_handed_out(folder: Path) -> None:
    """Any one byte of either file."""
    ids = np.arange(6)
    drawer = Drawer(folder)
    entries = fill(drawer, ids)
    drawer.close()
    whole = {name: (folder / name).read_bytes() for name in (INDEX, DATA)}
    for name in whole:
        for place in range(0, len(whole[name]), 3):
            altered = bytearray(whole[name])
            altered[place] ^= 0x10
            for other in whole:  # opening cuts both off
                (folder / other).write_bytes(whole[other])
            (folder / name).write_bytes(altered)
            opened = Drawer(folder)
            held = ids[opened.find(ids) >= 0]
            for id, entry in zip(held.tolist(), read(opened, held), strict=True):
                assert entry in (None, entries[id])
            np.testing.assert_array_equal(opened.norms(opened.find(held)), (held / 2).astype(np.float32))
            opened.close()


def test_entries_without_a_record_take_no_room(folder: Path) -> None:
    """A process that is killed between the two files leaves an entry that nobody knows of."""
    drawer = Drawer(folder)
    entries = fill(drawer, np.arange(3))
    drawer.close()
    with (folder / DATA).open("ab") as file:
        file.write(b"x" * 10_000)
    opened = Drawer(folder)
    assert opened.nbytes == (folder / INDEX).stat().st_size + (folder / DATA).stat().st_size
    assert read(opened, np.arange(3)) == entries


def test_when_an_entry_was_added_is_known(folder: Path) -> None:
    times = iter([1000.0019, 2000.5])
    drawer = Drawer(folder, clock=lambda: next(times))
    fill(drawer, np.array([5, 3]))
    fill(drawer, np.array([3, 4]))
    for opened in (drawer, Drawer(folder)):
        rows = opened.find(np.array([3, 4, 5]))
        assert opened.added(rows).tolist() == [1_000_001, 2_000_500, 1_000_001]


def test_entries_of_files_that_changed_are_left_out(folder: Path) -> None:
    drawer = Drawer(folder)
    entries = fill(drawer, np.arange(5), size=10)
    drawer.hold(np.array([4, 2, 1, 9]), np.array([10, 11, 10, 10]))
    assert drawer.find(np.arange(5)).tolist()[0] == -1
    assert (drawer.find(np.array([0, 2, 3, 9])) == -1).all()
    assert read(drawer, np.array([1, 4])) == [entries[1], entries[4]]
    assert drawer.add(np.array([2]), np.array([11]), entries=[b"new"], norms=np.ones(1, np.float32))
    opened = Drawer(folder)
    opened.hold(np.array([1, 2]), np.array([10, 11]))
    assert read(opened, np.array([1, 2])) == [entries[1], b"new"]


def test_nothing_fits_an_empty_dataset(folder: Path) -> None:
    drawer = Drawer(folder)
    fill(drawer, np.arange(5))
    drawer.hold(np.empty(0, np.int64), np.empty(0, np.int64))
    assert len(drawer) == 0
    assert drawer.read(np.empty(0, np.int64)) == []


def test_a_full_disk_keeps_nothing_and_breaks_nothing(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    drawer = Drawer(folder)
    entries = fill(drawer, np.arange(3))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (drawer.nbytes - 3 * RECORD.itemsize + 5, hard))
    try:
        with caplog.at_level(logging.WARNING, "headwater"):
            kept = drawer.add(np.array([9]), np.array([1]), entries=[b"x" * 99], norms=np.ones(1, np.float32))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert not kept
    assert "cannot be kept" in caplog.text
    more = fill(drawer, np.arange(3, 6))
    assert read(Drawer(folder), np.arange(6)) == entries + more


def test_many_threads_write_and_read(folder: Path) -> None:
    drawer = Drawer(folder)
    ids = np.arange(4000)

    def work(part: int) -> None:
        for begin in range(part * 1000, (part + 1) * 1000, 50):
            mine = ids[begin : begin + 50]
            assert read(drawer, mine[:0]) == []
            assert fill(drawer, mine) == read(drawer, mine)

    threads = [threading.Thread(target=work, args=(part,)) for part in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(Drawer(folder)) == 4000


def write_for_ever(folder: Path) -> None:
    drawer = Drawer(folder)
    number = len(drawer)
    while True:
        ids = np.arange(number, number + 64)
        entries = [b"%d." % id * 400 for id in ids.tolist()]
        drawer.add(ids, ids + 5, entries=entries, norms=ids.astype(np.float32))
        number += 64


def test_kill_minus_9_leaves_whole_entries(folder: Path) -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        child = os.fork()
        if not child:
            write_for_ever(folder)
        time.sleep(float(rng.uniform(0.005, 0.03)))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        drawer = Drawer(folder)
        ids = np.arange(len(drawer))
        assert read(drawer, ids) == [b"%d." % id * 400 for id in ids.tolist()]
        np.testing.assert_array_equal(drawer.norms(drawer.find(ids)), ids.astype(np.float32))
        drawer.close()
    assert len(Drawer(folder)) > 64


def test_what_is_erased_is_gone_from_the_files_and_does_not_come_back(folder: Path) -> None:
    ids = np.arange(100, dtype=np.int64) + (1 << 40)
    drawer = Drawer(folder)
    entries, gone = fill(drawer, ids), ids[[0, 41, 99]]
    assert drawer.erase(gone) == 3
    assert drawer.erase(gone) == 0
    left = [entry if number not in (0, 41, 99) else None for number, entry in enumerate(entries)]
    for opened in (drawer, Drawer(folder)):
        rows = opened.find(ids)
        assert np.flatnonzero(rows < 0).tolist() == [0, 41, 99]
        assert read(opened, np.delete(ids, [0, 41, 99])) == [entry for entry in left if entry is not None]
    content = (folder / DATA).read_bytes() + (folder / INDEX).read_bytes()
    assert not [id for id in gone.tolist() if id.to_bytes(8, "little") in content]
    assert not [id for id in gone.tolist() if f"entry {id} ".encode() in content]
    fill(drawer, gone)
    assert (drawer.find(gone) < 0).all(), "whoever made it meanwhile is not heard"
    fill(drawer, np.array([7]))
    assert read(Drawer(folder), np.array([7])) == [b"entry 7 entry 7 "]


def test_another_process_may_erase_under_one_that_reads(folder: Path) -> None:
    ids = np.arange(10, dtype=np.int64)
    drawer = Drawer(folder)
    fill(drawer, ids)
    rows = drawer.find(ids)
    assert erase(folder, ids[3:5]) == 2
    assert [place for place, entry in enumerate(drawer.read(rows)) if entry is None] == [3, 4]
    assert [place for place, entry in enumerate(drawer.copy(rows)) if entry is None] == [3, 4]
    fill(drawer, np.array([20]))
    assert Drawer(folder).find(np.array([3, 5, 20])).tolist() == [-1, 5, 10]
    assert erase(folder / "nowhere", ids) == 0


def test_killed_while_erasing_the_rest_is_whole(folder: Path) -> None:
    ids = np.arange(10, dtype=np.int64) + (1 << 40)
    fill(Drawer(folder), ids)
    record = (folder / INDEX).read_bytes()
    with (folder / DATA).open("r+b") as file:  # the entry is gone, and its record is not
        file.write(bytes(len(f"entry {ids[0]} ".encode()) * (1 + int(ids[0]) % 3)))
    assert (folder / INDEX).read_bytes() == record
    drawer = Drawer(folder)
    assert drawer.read(drawer.find(ids[:1])) == [None]
    assert drawer.erase(ids[:1]) == 1
    assert len(read(drawer, ids[1:])) == 9
