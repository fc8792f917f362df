"""What a worker says is taken for true only as far as it is a frame."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

import msgspec
import numpy as np
import pytest

from headwater.data.image import Limits
from headwater.store.server.frames import Answer, Fault, Hello, Reply, Setup, pack, receive, send, unpack

Pair = tuple[socket.socket, socket.socket]
REPLY = Reply(b"\1", bytes(8), bytes(8), bytes(12), bytes(8), b"\1", bytes(4), [b"drawn"], 0.5)


@pytest.fixture
def pair() -> Iterator[Pair]:
    one, two = socket.socketpair()
    with one, two:
        yield one, two


FRAMES = [Setup(Limits(scans=7), True), Hello({"decode": "abc"}), Answer(REPLY), Answer(Fault("no"))]


@pytest.mark.parametrize("frame", FRAMES, ids=repr)
def test_a_frame_arrives_as_it_was(pair: Pair, frame: msgspec.Struct) -> None:
    send(pair[0], frame)
    send(pair[0], Hello({}))
    assert receive(pair[1], type(frame)) == frame
    assert receive(pair[1], Hello) == Hello({})


@pytest.mark.parametrize(
    "said",
    [
        struct.pack("<I", 0xFFFFFFFF) + b"far too long",
        struct.pack("<I", 4) + b"junk",
        struct.pack("<I", 0),
        struct.pack("<I", 2) + msgspec.msgpack.encode([7]),
    ],
    ids=["long", "junk", "empty", "other type"],
)
def test_anything_else_is_refused(pair: Pair, said: bytes) -> None:
    pair[0].sendall(said)
    with pytest.raises(ValueError, match="a frame"):
        receive(pair[1], Hello)


def test_the_end_of_the_other_side_is_seen_in_the_middle_of_a_frame(pair: Pair) -> None:
    pair[0].sendall(struct.pack("<I", 100) + b"half")
    pair[0].close()
    with pytest.raises(EOFError):
        receive(pair[1], Hello)


def test_silence_calls_the_tick_until_it_raises(pair: Pair) -> None:
    pair[1].settimeout(0.01)
    ticks = []

    def tick() -> None:
        ticks.append(len(ticks))
        if len(ticks) == 3:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        receive(pair[1], Hello, tick)
    assert ticks == [0, 1, 2]


def test_columns_have_the_rows_that_are_expected() -> None:
    column = pack(np.arange(6), "<i4")
    assert unpack(column, "<i4", 2, 3).tolist() == [[0, 1, 2], [3, 4, 5]]
    for count, width in ((3, 3), (5, 1), (0, 1)):
        with pytest.raises(ValueError, match="reshape"):
            unpack(column, "<i4", count, width)
    with pytest.raises(ValueError, match="multiple"):
        unpack(column[:-1], "<i4", 2, 3)
