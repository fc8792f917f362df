"""Division of a chunk, blame after a crash, and what is not believed of a reply."""

from __future__ import annotations

import os
from typing import Any

import msgspec
import numpy as np
import pytest

from headwater import transforms as T
from headwater.data.buffers import Buffers
from headwater.store.server.arena import FIRST, LOADING, NOBODY, Arena, allocate
from headwater.store.server.chunk import Chunk, Work
from headwater.store.server.frames import FAILED, MADE, WAITING, Reply, pack

SIZE = 4096


def make_chunk(lengths: list[int], codec: str = "none") -> Chunk:
    count = len(lengths)
    ids, cuts = np.arange(count, dtype=np.int64), np.ones(count, np.uint8)
    work = Work(T.Compose([]).samplewise, 0, 0, ids, cuts, [codec] * count)
    return Chunk(
        work, [bytes([place]) * n for place, n in enumerate(lengths)], arena_bytes=SIZE, buffers=Buffers(1)
    )


@pytest.fixture
def arena() -> Arena:
    descriptor = allocate(SIZE)
    try:
        return Arena(descriptor)
    finally:
        os.close(descriptor)


def reply(
    states: list[int], begin: int = 1024, length: int = 12, shape: tuple[int, ...] = (2, 2, 3)
) -> Reply:
    count = len(states)
    return Reply(
        states=pack(states, "u1"),
        begins=pack([begin] * count, "<i8"),
        lengths=pack([length] * count, "<i8"),
        shapes=pack([shape] * count, "<i4"),
        sizes=pack([(8, 9)] * count, "<i4"),
        orientations=pack([6] * count, "u1"),
        seconds=pack([0.125] * count, "<f4"),
        drawn=[b"row"] * count,
        cpu_seconds=0.25,
    )


def test_the_arena_cannot_be_made_smaller_by_either_side() -> None:
    descriptor = allocate(SIZE)
    with pytest.raises(PermissionError):
        os.ftruncate(descriptor, 10)
    os.close(descriptor)


def test_parts_fill_half_of_the_arena_and_what_cannot_fit_is_in_none() -> None:
    chunk = make_chunk([900, 900, 900, 5000, 3900, 10, 0])
    chunk.divide(range(7))
    assert list(chunk.parts) == [[0, 1], [2], [4], [5, 6]]


def test_files_lie_one_behind_the_other(arena: Arena) -> None:
    chunk = make_chunk([5, 0, 7])
    job = chunk.load([2, 1, 0], arena)
    assert bytes(arena.bytes[FIRST : FIRST + 12]) == b"\2" * 7 + b"\0" * 5
    assert (np.frombuffer(job.lengths, "<i8").tolist(), job.room) == ([7, 0, 5], 128)


def test_results_are_copied_and_what_waits_is_planned_again(arena: Arena) -> None:
    chunk = make_chunk([1, 1, 1, 1])
    arena.bytes[1024:1036] = np.arange(12)
    chunk.unload([3, 2, 1, 0], reply([MADE, FAILED, WAITING, WAITING]), arena)
    arena.bytes[:] = 255
    payload = chunk.done.payloads[3]
    assert payload is not None
    assert bytes(payload) == bytes(range(12))
    assert chunk.done.payloads[:3] == [None] * 3
    assert chunk.done.drawn == [b"", b"", b"row", b"row"]
    assert chunk.done.cpu_seconds == 0.25
    assert list(chunk.parts) == [[1, 0]]


def test_without_progress_a_part_is_halved_and_a_single_sample_given_up(arena: Arena) -> None:
    chunk = make_chunk([1, 1, 1])
    chunk.unload([0, 1, 2], reply([WAITING] * 3), arena)
    assert list(chunk.parts) == [[0], [1, 2]]
    chunk.parts.clear()
    chunk.unload([0], reply([WAITING]), arena)
    assert not chunk.parts


LIES: dict[str, dict[str, Any]] = {
    "before the arena": {"begin": -1},
    "over its beginning": {"begin": 0},
    "past its end": {"begin": SIZE - 11},
    "wrapping around": {"begin": 1 << 62, "length": 1 << 62},
    "negative length": {"length": -1},
    "other shape": {"shape": (2, 2, 4)},
    "empty shape": {"shape": (0, 2, 3), "length": 0},
    "shape that wraps around": {"shape": (1 << 30, 1 << 30, 1 << 4), "length": 0},
}


@pytest.mark.parametrize("lie", LIES)
def test_a_reply_is_held_to_the_arena(arena: Arena, lie: str) -> None:
    chunk = make_chunk([1, 1])
    with pytest.raises(ValueError, match=r"in the arena|own shape"):
        chunk.unload([0, 1], reply([MADE, MADE], **LIES[lie]), arena)
    assert chunk.done.payloads == [None, None]


@pytest.mark.parametrize("column", ["states", "begins", "lengths", "shapes", "sizes", "drawn"])
def test_a_reply_has_a_row_for_every_sample(arena: Arena, column: str) -> None:
    short = msgspec.structs.replace(reply([MADE, MADE]), **{column: getattr(reply([MADE]), column)})
    with pytest.raises(ValueError, match=r"reshape|in the arena"):
        make_chunk([1, 1]).unload([0, 1], short, arena)


def test_packed_pixels_have_a_length_of_their_own(arena: Arena) -> None:
    chunk = make_chunk([1], codec="zstd")
    chunk.unload([0], reply([MADE], length=5), arena)
    payload = chunk.done.payloads[0]
    assert payload is not None
    assert len(payload) == 5


def crash(chunk: Chunk, fatal: set[int], *, named: bool) -> tuple[list[int], list[int]]:
    """Run all parts as a worker would that dies of the fatal ones: who was made, who is quarantined."""
    made, guilty = [], []
    while chunk.parts:
        part = chunk.parts.popleft()
        deadly = [number for number, place in enumerate(part) if place in fatal]
        if not deadly:
            made += part
        elif (place := chunk.blame(part, deadly[0] if named else NOBODY)) is not None:
            guilty.append(place)
    return sorted(made), sorted(guilty)


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("fatal", [set(), {0}, {6}, {2, 3}, set(range(7))])
def test_exactly_those_that_kill_are_blamed(fatal: set[int], named: bool) -> None:
    chunk = make_chunk([1] * 7)
    chunk.divide(range(7))
    made, guilty = crash(chunk, fatal, named=named)
    assert (set(made), guilty) == (set(range(7)) - fatal, sorted(fatal))
    assert len(made) == 7 - len(fatal)


@pytest.mark.parametrize("number", [NOBODY, LOADING, 7, 1 << 40])
def test_a_number_that_is_no_sample_names_nobody(number: int) -> None:
    chunk = make_chunk([1] * 4)
    assert chunk.blame([0, 1, 2, 3], number) is None
    assert list(chunk.parts) == [[0, 1], [2, 3]]
