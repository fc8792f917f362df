"""Drawers within a limit: the least recently used one goes, as a whole, also across restarts."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import msgspec
import numpy as np
import pytest

from headwater.data.index import Index
from headwater.engine.drawer import RECORD
from headwater.store.cabinet import MOST_DRAWERS, Cabinet, Key

INDEX = Index.build([f"{number}.jpg" for number in range(100)], np.full(100, 10))
ENTRY = b"x" * (1000 - RECORD.itemsize)


def key(name: str) -> Key:
    return Key("features", "photos", name)


class Clock:
    def __init__(self, now: float = 1e9) -> None:
        self.now = now

    def __call__(self) -> float:
        self.now += 100.0
        return self.now


def add(cabinet: Cabinet, name: str, count: int, first: int = 0) -> None:
    """So many kilobytes."""
    ids, sizes = INDEX.ids[first : first + count], INDEX.sizes[first : first + count]
    loan = cabinet.open(key(name), INDEX)
    loan.add(ids, sizes, entries=[ENTRY] * count, norms=np.ones(count, np.float32))


def held(cabinet: Cabinet, name: str) -> int:
    return int((cabinet.open(key(name), INDEX).find(INDEX.ids) >= 0).sum())


def test_drawers_are_apart_and_come_back(tmp_path: Path) -> None:
    cabinet = Cabinet(tmp_path, most_bytes=1 << 20)
    add(cabinet, "a", 3)
    add(cabinet, "b", 5)
    assert cabinet.nbytes == 8000
    cabinet.close()
    again = Cabinet(tmp_path, most_bytes=1 << 20)
    assert again.nbytes == 8000
    assert (held(again, "a"), held(again, "b"), held(again, "c")) == (3, 5, 0)


def test_the_least_recently_used_goes_first(tmp_path: Path) -> None:
    cabinet = Cabinet(tmp_path, most_bytes=10_500, clock=Clock())
    for name in ("a", "b", "c"):
        add(cabinet, name, 3)
    held(cabinet, "a")
    add(cabinet, "d", 3)
    assert cabinet.nbytes == 9000
    assert [held(cabinet, name) for name in ("a", "b", "c", "d")] == [3, 0, 3, 3]


def test_a_restart_remembers_what_was_used(tmp_path: Path) -> None:
    clock = Clock()
    cabinet = Cabinet(tmp_path, most_bytes=10_500, clock=clock)
    for name in ("a", "b", "c"):
        add(cabinet, name, 3)
    held(cabinet, "a")
    cabinet.close()
    again = Cabinet(tmp_path, most_bytes=10_500, clock=Clock(clock.now))
    add(again, "d", 3)
    assert [held(again, name) for name in ("a", "b", "c", "d")] == [3, 0, 3, 3]


def test_never_past_the_limit_even_alone(tmp_path: Path) -> None:
    cabinet = Cabinet(tmp_path, most_bytes=5500)
    add(cabinet, "a", 5)
    add(cabinet, "a", 5, first=5)
    assert held(cabinet, "a") == 5
    add(cabinet, "b", 6)
    assert cabinet.nbytes <= 5500
    used = sum(file.stat().st_size for file in tmp_path.rglob("*") if file.name in ("index", "data"))
    assert used <= 5500


def test_what_would_not_fit_alone_sends_nobody_away(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cabinet = Cabinet(tmp_path, most_bytes=10_500, clock=Clock())
    add(cabinet, "b", 3)
    add(cabinet, "a", 7)
    with caplog.at_level(logging.WARNING, "headwater"):
        for _ in range(2):
            add(cabinet, "a", 4, first=7)
    assert [held(cabinet, name) for name in "ab"] == [7, 3]
    assert caplog.text.count("no more of them are kept") == 1
    add(cabinet, "a", 3, first=7)
    assert [held(cabinet, name) for name in "ab"] == [10, 0], "what fits takes the room of who is idle"


def test_room_that_one_thread_was_given_is_not_given_to_the_next(tmp_path: Path) -> None:
    cabinet = Cabinet(tmp_path, most_bytes=10_500, clock=Clock())
    drawer = cabinet.open(key("a"), INDEX)._drawer
    with cabinet.room(key("a"), drawer, 6000) as first, cabinet.room(key("a"), drawer, 6000) as second:
        assert (first, second) == (True, False)
    assert cabinet.nbytes == 0
    with cabinet.room(key("a"), drawer, 6000) as third:
        assert third, "it was given back"


def test_whoever_reads_from_a_drawer_that_goes_may_go_on(tmp_path: Path) -> None:
    cabinet = Cabinet(tmp_path, most_bytes=5500, clock=Clock())
    add(cabinet, "a", 5)
    loan = cabinet.open(key("a"), INDEX)
    add(cabinet, "b", 5)
    assert held(cabinet, "a") == 0
    rows = loan.find(INDEX.ids[:5])
    assert [entry.tobytes() for entry in loan.read(rows) if entry is not None] == [ENTRY] * 5
    loan.add(INDEX.ids[5:6], INDEX.sizes[5:6], entries=[ENTRY], norms=np.ones(1, np.float32))
    assert len(loan) == 5, "it takes nothing more, though another has its name by now"


def test_dropped_drawers_leave_no_open_files(tmp_path: Path) -> None:
    cabinet = Cabinet(tmp_path, most_bytes=2500, clock=Clock())
    add(cabinet, "first", 2)
    before = len(os.listdir("/proc/self/fd"))
    for number in range(20):
        add(cabinet, f"drawer {number}", 2)
    assert len(os.listdir("/proc/self/fd")) <= before + 1


def test_what_is_no_drawer_goes(tmp_path: Path) -> None:
    (tmp_path / "strange").mkdir()
    (tmp_path / "strange" / "key.json").write_text("{")
    (tmp_path / "half").mkdir()
    (tmp_path / "another's").mkdir()
    (tmp_path / "another's" / "key.json").write_bytes(msgspec.json.encode(key("a")))
    Cabinet(tmp_path, most_bytes=1)
    assert not list(tmp_path.iterdir())


def test_samples_whose_files_changed_are_made_anew(tmp_path: Path) -> None:
    cabinet = Cabinet(tmp_path, most_bytes=1 << 20)
    add(cabinet, "a", 10)
    cabinet.close()
    sizes = INDEX.sizes.copy()
    sizes[:4] += 1
    changed = Index.build(INDEX.keys, sizes)
    found = Cabinet(tmp_path, most_bytes=1 << 20).open(key("a"), changed).find(INDEX.ids[:10])
    assert (found >= 0).tolist() == [False] * 4 + [True] * 6


@pytest.mark.parametrize(
    "other",
    [Key("pictures", "photos", "a"), Key("features", "others", "a"), Key("features", "photos", "a", "1")],
)
def test_every_part_of_a_key_counts(tmp_path: Path, other: Key) -> None:
    cabinet = Cabinet(tmp_path, most_bytes=1 << 20)
    add(cabinet, "a", 2)
    assert (cabinet.open(other, INDEX).find(INDEX.ids) == -1).all()


def test_variants_without_end_do_not_push_out_what_models_need(tmp_path: Path) -> None:
    cabinet = Cabinet(tmp_path, most_bytes=1 << 30, clock=Clock())
    add(cabinet, "a", 3)
    before = len(os.listdir("/proc/self/fd"))
    for number in range(2 * MOST_DRAWERS):
        cabinet.open(Key("features", "photos", "a", f"own {number} 0"), INDEX)
    assert len(list(tmp_path.iterdir())) <= MOST_DRAWERS
    assert len(os.listdir("/proc/self/fd")) <= before + 2 * MOST_DRAWERS
    assert held(cabinet, "a") == 3


def test_a_smaller_limit_than_before_holds_from_the_start(tmp_path: Path) -> None:
    cabinet = Cabinet(tmp_path, most_bytes=1 << 20, clock=Clock())
    for name in ("a", "b", "c"):
        add(cabinet, name, 3)
    cabinet.close()
    assert Cabinet(tmp_path, most_bytes=4000).nbytes == 3000


def test_samples_of_a_dataset_are_erased_in_open_drawers_and_in_others(tmp_path: Path) -> None:
    cabinet = Cabinet(tmp_path, most_bytes=1 << 20)
    for name in ("a", "b"):
        add(cabinet, name, 5)
    loan = cabinet.open(Key("features", "others", "a"), INDEX)
    loan.add(INDEX.ids[:5], INDEX.sizes[:5], entries=[ENTRY] * 5, norms=np.ones(5, np.float32))
    cabinet.close()
    cabinet = Cabinet(tmp_path, most_bytes=1 << 20)
    add(cabinet, "a", 1)  # this one is open now
    assert cabinet.erase("photos", INDEX.ids[1:3]) == 4
    assert (held(cabinet, "a"), held(cabinet, "b")) == (3, 3)
    assert int((cabinet.open(Key("features", "others", "a"), INDEX).find(INDEX.ids) >= 0).sum()) == 5
