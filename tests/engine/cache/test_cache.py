"""What a cache holds: within its bounds, the best of what came, and whole, whatever happens to its disk."""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from headwater import transforms as T
from headwater.data.image import Limits
from headwater.data.index import Index
from headwater.data.pipeline import Pipeline
from headwater.engine.cache import Cache, SampleCache
from headwater.engine.cache.disk import FILES
from headwater.engine.cache.entry import pack
from headwater.engine.cache.table import OVERHEAD
from headwater.engine.chain import Chain
from headwater.engine.drawer import DATA
from headwater.errors import HeadwaterError, WrongUse

Positions = NDArray[np.int64]

COUNT = 400
SIZES = 300 + np.arange(COUNT, dtype=np.int64) % 7 * 40
INDEX = Index.build([f"{number}.jpg" for number in range(COUNT)], SIZES)
ALL = np.arange(COUNT)
STEPS = T.Compose([T.Resize(8), T.CenterCrop(8), T.RandomHorizontalFlip()])


def make(
    folder: Path | None = None,
    *,
    memory: int = 0,
    disk: int = 0,
    index: Index = INDEX,
    steps: Pipeline = STEPS,
    limits: Limits | None = None,
) -> SampleCache:
    chain = Chain(steps, limits=limits or Limits())
    cache = SampleCache(Cache(memory, disk or None, folder), index, chain)
    cache.begin()
    return cache


def entry_of(position: int, index: Index = INDEX) -> bytes:
    """A file of the size that the index says, which names its sample."""
    text = b"%d." % position
    size = int(index.sizes[position])
    return pack((text * size)[:size])


def offer(cache: SampleCache, positions: Positions, kind: str = FILES) -> None:
    """As a reader does: what is wanted of these is admitted."""
    wanted = positions[cache.look(positions).wanted]
    cache.admit(wanted, [entry_of(position) for position in wanted.tolist()], [kind] * len(wanted))


def read(cache: SampleCache, positions: Positions) -> list[bytes | None]:
    """The entries that are held, None for others and for what is damaged."""
    look = cache.look(positions)
    return [
        entry if at is None else at[0].copy(np.array([at[1]]))[0]
        for entry, at in zip(look.entries, look.drawers, strict=True)
    ]


def check(cache: SampleCache, *, memory: int = 0, disk: int = 0) -> int:
    """Bounds hold, and every entry is that of its sample; how many there are."""
    holdings = cache.holdings()
    assert holdings.memory_bytes <= memory
    assert holdings.disk_bytes <= disk
    held = ALL[cache.contains(ALL)]
    assert len(held) == holdings.samples
    assert read(cache, held) == [entry_of(position) for position in held.tolist()]
    return holdings.samples


def file_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.name in ("index", "data"))


def test_the_best_that_fit_are_held_and_the_others_are_not_wanted() -> None:
    room = int((SIZES + OVERHEAD).sum()) // 5
    cache = make(memory=room)
    for begin in range(0, COUNT, 16):
        offer(cache, ALL[begin : begin + 16])
    held = cache.contains(ALL)
    assert 0.9 * room < cache.holdings().memory_bytes <= room
    assert held.sum() == check(cache, memory=room)
    assert SIZES[held].max() <= SIZES[~held].min()  # all hits are worth the same, so the small ones
    assert not cache.look(ALL).wanted.any()
    assert cache.holdings().evicted == 0


def test_nothing_is_held_before_an_epoch_begins() -> None:
    cache = SampleCache(Cache(1 << 20), INDEX, Chain(STEPS))
    assert not cache.look(ALL).wanted.any()
    assert not cache.contains(ALL).any()


def test_what_is_no_longer_worth_it_goes_when_room_is_needed_and_the_least_first() -> None:
    size = int(SIZES[0]) + OVERHEAD + 4
    same = np.flatnonzero(SIZES[0] == SIZES)[:8]
    cache = make(memory=4 * size)
    values = np.zeros(COUNT, np.float32)
    values[same[:4]] = [4, 3, 2, 1]
    cache.value(values)
    cache.begin()
    offer(cache, same)
    assert cache.contains(same).tolist() == [True] * 4 + [False] * 4
    values = values.copy()
    values[same[4:6]] = [9, 8]
    cache.value(values)
    cache.begin()
    assert cache.contains(same[:4]).all()  # nothing goes before there is something better
    offer(cache, same[4:5])
    assert cache.contains(same).tolist() == [True, True, True, False, True, False, False, False]
    offer(cache, same[5:])
    assert cache.contains(same).tolist() == [True, True, False, False, True, True, False, False]
    assert (cache.holdings().admitted, cache.holdings().evicted) == (6, 2)


def test_what_nobody_values_is_not_held() -> None:
    cache = make(memory=1 << 20)
    cache.value(np.full(COUNT, np.nan, np.float32))
    cache.begin()
    offer(cache, ALL)
    assert cache.holdings().samples == 0


def test_one_that_is_larger_than_all_room_sends_nobody_away() -> None:
    cache = make(memory=2000)
    offer(cache, ALL[:4])
    before = cache.holdings()
    cache.admit(ALL[9:10], [b"x" * 5000], [FILES])
    assert cache.holdings() == before


def test_a_sample_that_comes_twice_is_held_once() -> None:
    cache = make(memory=1 << 20)
    twice = np.array([3, 3, 5])
    cache.admit(twice, [entry_of(3), entry_of(3), entry_of(5)], [FILES] * 3)
    cache.admit(np.array([5]), [entry_of(5)], [FILES])
    assert cache.holdings().samples == cache.holdings().admitted == 2
    assert check(cache, memory=1 << 20) == 2


def lru_hits(trace: Positions, room: int) -> int:
    held: OrderedDict[int, int] = OrderedDict()
    hits = used = 0
    for position in trace.tolist():
        if position in held:
            hits += 1
            held.move_to_end(position)
            continue
        held[position] = int(SIZES[position]) + OVERHEAD
        used += held[position]
        while used > room:
            used -= held.popitem(last=False)[1]
    return hits


def count_hits(cache: SampleCache, trace: Positions) -> int:
    hits = 0
    for begin in range(0, len(trace), 16):
        lot = trace[begin : begin + 16]
        hits += int(cache.contains(lot).sum())
        offer(cache, lot)
    return hits


def test_on_a_skewed_trace_it_beats_the_least_recently_used() -> None:
    rng = np.random.default_rng(0)
    shares = 1 / (1 + rng.permutation(COUNT))
    trace = rng.choice(COUNT, 6000, p=shares / shares.sum())
    room = int((SIZES + OVERHEAD).sum()) // 10
    cache = make(memory=room)
    cache.value(shares.astype(np.float32))
    cache.begin()
    assert count_hits(cache, trace) > 1.2 * lru_hits(trace, room)


def test_over_shuffled_epochs_it_beats_the_least_recently_used() -> None:
    rng = np.random.default_rng(0)
    trace = np.concatenate([rng.permutation(COUNT) for _ in range(6)])
    room = int((SIZES + OVERHEAD).sum()) // 5
    found = count_hits(make(memory=room), trace)
    assert found >= 5 * COUNT * 0.19  # a fifth of every epoch but the first
    assert found > 3 * lru_hits(trace, room)


@pytest.mark.parametrize("disk", [0, 60_000])
def test_bounds_hold_whatever_many_threads_do(tmp_path: Path, disk: int) -> None:
    memory = 20_000
    cache = make(tmp_path if disk else None, memory=memory, disk=disk)
    over, failures = threading.Event(), []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        try:
            while not over.is_set():
                lot = rng.integers(0, COUNT, 12)
                offer(cache, lot)
                cache.forget(lot[:1])
                for position, found in zip(lot.tolist(), read(cache, lot), strict=True):
                    assert found in (None, entry_of(position))
                holdings = cache.holdings()
                assert holdings.memory_bytes <= memory
                assert holdings.disk_bytes <= disk
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    rng = np.random.default_rng(9)
    for _ in range(30):
        cache.value(rng.random(COUNT).astype(np.float32))
        cache.begin()
        threading.Event().wait(0.02)
    over.set()
    for thread in threads:
        thread.join()
    assert not failures
    check(cache, memory=memory, disk=disk)
    assert cache.holdings().evicted > 0
    if disk:
        assert file_bytes(tmp_path) == cache.holdings().disk_bytes


def test_memory_is_filled_first_and_then_the_disk(tmp_path: Path) -> None:
    cache = make(tmp_path, memory=30_000, disk=60_000)
    for begin in range(0, COUNT, 16):
        offer(cache, ALL[begin : begin + 16])
        if cache.holdings().memory_bytes < 29_000:
            assert cache.holdings().disk_bytes == 0
    check(cache, memory=30_000, disk=60_000)
    assert cache.holdings().disk_bytes > 50_000


def fill_disk(folder: Path, **options: Any) -> tuple[Positions, bytes | None]:
    """Samples that one run has left on disk."""
    cache = make(folder, disk=1 << 20, **options)
    offer(cache, ALL[::2])
    cache.close()
    return ALL[cache.contains(ALL)], read(cache, ALL[:1])[0]


def test_the_next_run_finds_what_is_on_disk(tmp_path: Path) -> None:
    held, first = fill_disk(tmp_path)
    again = make(tmp_path, disk=1 << 20)
    assert (again.contains(ALL) == np.isin(ALL, held)).all()
    assert read(again, ALL[:1]) == [first]
    assert check(again, disk=1 << 20) == len(held) == COUNT // 2
    assert again.holdings().admitted == again.holdings().evicted == 0
    offer(again, ALL)
    assert check(again, disk=1 << 20) == COUNT


def test_samples_of_other_data_are_discarded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fill_disk(tmp_path)
    other = Index.build([f"{number}.jpg" for number in range(COUNT)], SIZES + 1)
    with caplog.at_level(logging.INFO, "headwater"):
        cache = make(tmp_path, disk=1 << 20, index=other)
    assert "of other data" in caplog.text
    assert not cache.contains(ALL).any()
    assert file_bytes(tmp_path) == 0
    cache.close()
    assert not make(tmp_path, disk=1 << 20).contains(ALL).any()  # and so are theirs


@pytest.mark.parametrize(
    ("steps", "limits", "same"),
    [
        (STEPS, None, True),
        (T.Compose([T.Resize(8), T.CenterCrop(8), T.RandomResizedCrop(4)]), None, True),
        (T.Compose([T.Resize(9), T.CenterCrop(8), T.RandomHorizontalFlip()]), None, False),
        (T.Compose([T.Resize(8), T.RandomHorizontalFlip()]), None, False),
        (STEPS, Limits(pixels=99), False),
    ],
    ids=["same", "other draws", "other size", "fewer steps", "other limits"],
)
def test_images_that_other_steps_made_are_discarded_and_files_are_not(
    tmp_path: Path, steps: Pipeline, limits: Limits | None, same: bool
) -> None:
    first = make(tmp_path, disk=1 << 20)
    offer(first, ALL[:10])
    offer(first, ALL[10:30], first.kind)
    first.close()
    again = make(tmp_path, disk=1 << 20, steps=steps, limits=limits)
    assert again.contains(ALL[:10]).all()
    assert (again.contains(ALL[10:30]) == same).all()


def test_two_at_once_have_a_folder_each(tmp_path: Path) -> None:
    first, second = make(tmp_path, disk=1 << 20), make(tmp_path, disk=1 << 20)
    offer(first, ALL[:10])
    offer(second, ALL[10:30])
    assert (check(first, disk=1 << 20), check(second, disk=1 << 20)) == (10, 20)
    second.close()
    third = make(tmp_path, disk=1 << 20)
    assert third.contains(ALL[10:30]).all()
    first.close()
    assert make(tmp_path, disk=1 << 20).contains(ALL[:10]).all()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["samples-0", "samples-1"]


def test_a_folder_of_its_data_comes_before_one_of_others(tmp_path: Path) -> None:
    other = Index.build([f"{number}.png" for number in range(COUNT)], SIZES)
    first, second = make(tmp_path, disk=1 << 20, index=other), make(tmp_path, disk=1 << 20)
    offer(second, ALL[:10])
    first.close()
    second.close()
    assert make(tmp_path, disk=1 << 20).contains(ALL[:10]).all()
    assert (tmp_path / "samples-0" / "key.json").read_bytes() != (
        tmp_path / "samples-1" / "key.json"
    ).read_bytes()


def test_less_room_than_before_keeps_what_fits(tmp_path: Path) -> None:
    cache = make(tmp_path, disk=1 << 17)
    for begin in range(0, COUNT, 8):
        offer(cache, ALL[begin : begin + 8])
    before = cache.holdings()
    cache.close()
    again = make(tmp_path, disk=1 << 16)
    assert 0 < check(again, disk=1 << 16) < before.samples
    assert file_bytes(tmp_path) <= 1 << 16


def test_other_files_in_the_folder_stay(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "samples-0").mkdir()
    for path in (tmp_path / "mine" / "files-0001", tmp_path / "samples-0" / "notes"):
        path.write_text("mine")
    cache = make(tmp_path, disk=1 << 20)
    offer(cache, ALL[:5])
    assert (tmp_path / "mine" / "files-0001").read_text() == "mine"
    assert (tmp_path / "samples-0" / "notes").read_text() == "mine"


def test_a_damaged_entry_is_not_handed_out_and_can_be_held_again(tmp_path: Path) -> None:
    fill_disk(tmp_path)
    (path,) = tmp_path.rglob(DATA)
    content = bytearray(path.read_bytes())
    content[4] ^= 1  # the first entry's first byte
    path.write_bytes(content)
    cache = make(tmp_path, disk=1 << 20)
    found = read(cache, ALL[::2])
    (damaged,) = (place for place, entry in enumerate(found) if entry is None)
    position = ALL[::2][[damaged]]
    cache.forget(position)
    assert not cache.contains(position).any()
    offer(cache, position)
    assert read(cache, position) == [entry_of(int(position[0]))]
    cache.close()
    assert read(make(tmp_path, disk=1 << 20), position) == [entry_of(int(position[0]))]


def test_a_torn_file_loses_its_tail_only(tmp_path: Path) -> None:
    held, _ = fill_disk(tmp_path)
    (path,) = tmp_path.rglob(DATA)
    os.truncate(path, path.stat().st_size - 100)
    assert check(make(tmp_path, disk=1 << 20), disk=1 << 20) == len(held) - 1


def refuse(*_: object) -> Any:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("call", ["pwrite", "mkdir"])
def test_a_full_disk_is_survived_and_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, call: str
) -> None:
    cache = make(tmp_path, memory=3000, disk=1 << 20)
    offer(cache, ALL[:20])
    before = check(cache, memory=3000, disk=1 << 20)
    if call == "mkdir":
        cache.forget(ALL[19:20])  # an entry that is written again needs a drawer of its own
    monkeypatch.setattr(os, call, refuse)
    for _ in range(3):
        offer(cache, ALL[19:60])
    assert caplog.text.count("takes no more samples") == 1
    assert check(cache, memory=3000, disk=1 << 20) == before - (call == "mkdir")
    assert not cache.look(ALL).wanted.any()  # it is no use to ask for files
    cache.value(np.ones(COUNT, np.float32))
    cache.begin()
    monkeypatch.undo()
    assert check(make(tmp_path / "more", disk=1 << 20), disk=1 << 20) == 0


def test_a_disk_that_is_full_from_the_start_is_survived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(os, "mkdir", refuse)
    cache = make(tmp_path / "new", memory=3000, disk=1 << 20)
    assert "takes no more samples" in caplog.text
    offer(cache, ALL)
    assert check(cache, memory=3000) > 0
    cache.close()


def test_a_folder_that_cannot_be_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(HeadwaterError, match=r"cannot hold samples in .*another folder"):
        make(tmp_path / "file", disk=1 << 20)


def test_drawers_that_are_worth_little_make_room_for_better(tmp_path: Path) -> None:
    disk = 1 << 16
    cache = make(tmp_path, disk=disk)
    first, second = np.arange(COUNT) < COUNT // 2, np.arange(COUNT) >= COUNT // 2
    kept = first & (ALL % 5 == 0)  # of the first, these stay worth most
    cache.value((first + 5.0 * kept).astype(np.float32))
    cache.begin()
    for begin in range(0, COUNT, 8):
        offer(cache, ALL[begin : begin + 8])
    before, stay = cache.contains(ALL), ALL[kept]
    assert before[stay].all()
    cache.value((second + 5.0 * kept).astype(np.float32))
    cache.begin()
    for begin in range(0, COUNT, 8):
        offer(cache, ALL[begin : begin + 8])
        check(cache, disk=disk)
    after = cache.contains(ALL)
    assert after[stay].all()  # they were moved
    assert after[second].sum() > 0.5 * before[first].sum()
    assert file_bytes(tmp_path) == cache.holdings().disk_bytes <= disk
    cache.close()
    assert (make(tmp_path, disk=disk).contains(ALL) == after).all()


def test_a_drawer_of_which_more_than_half_is_worth_it_stays(tmp_path: Path) -> None:
    disk = 1 << 16
    cache = make(tmp_path, disk=disk)
    for begin in range(0, COUNT, 8):
        offer(cache, ALL[begin : begin + 8])
    held = ALL[cache.contains(ALL)]
    values = np.zeros(COUNT, np.float32)
    values[held] = 1
    values[held[::4]] = 0
    values[~cache.contains(ALL)] = 0.9
    cache.value(values)
    cache.begin()
    offer(cache, ALL)
    assert cache.contains(held).all()
    assert cache.holdings().evicted == 0


@pytest.mark.parametrize("given", [5, "3MB", None, Cache(7, 9, "here")])
def test_what_may_be_given(given: Any) -> None:
    found = Cache.of(given)
    if given is None or isinstance(given, Cache):
        assert found is given
    else:
        assert found is not None
        assert (found.memory_bytes, found.disk_bytes) == ({5: 5, "3MB": 3_000_000}[given], 0)


def test_where_the_disk_is_unless_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWATER_CACHE", str(tmp_path))
    assert Cache(disk="1GiB").place == tmp_path / "samples"


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"memory": 0}, "some bytes"),
        ({"memory": None}, "some bytes"),
        ({"memory": -5, "disk": 9}, "some bytes"),
        ({"memory": "2G"}, "no number of bytes"),
        ({"folder": "here"}, "say how much with disk="),
    ],
)
def test_what_may_not_be_given(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(WrongUse, match=reason):
        Cache(**settings)
