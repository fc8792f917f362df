"""Frames: how a journal lies in its file. What is in them is told in `records`.

    magic   8 bytes, HWJRNL1 and a line feed
    frame   kind (4 letters), length of the body (uint32), check (uint64), body; numbers little-endian
    frame   ...

A check is XXH3 with 64 bits of kind, length and body, seeded with the check of the frame before it, or with
0: a frame that was lost, moved or altered breaks all checks after it. Nothing is allocated that a length
asks for.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

import xxhash

MAGIC = b"HWJRNL1\n"
_HEAD = struct.Struct("<4sIQ")
MOST_BODY = 1 << 31


@dataclass(frozen=True)
class Frame:
    """One that is whole: where its body lies in the file, and where the file goes on."""

    kind: str
    begin: int
    end: int
    check: int


class FrameWriter:
    """Appends frames to a file; `begin` is the last one that is there, or None for an empty file."""

    def __init__(self, file: BinaryIO, after: Frame | None = None) -> None:
        self._file = file
        self._check = after.check if after is not None else 0
        if after is None:
            file.write(MAGIC)

    def put(self, kind: str, *pieces: bytes | memoryview) -> None:
        """One frame whose body is the pieces, one after the other."""
        length = sum(map(len, pieces))
        self._check = check_of(kind, pieces, before=self._check)
        self._file.write(_HEAD.pack(kind.encode("ascii"), length, self._check))
        for piece in pieces:
            self._file.write(piece)

    def sync(self) -> None:
        """What was put is on disk when this returns."""
        self._file.flush()
        os.fsync(self._file.fileno())


def check_of(kind: str, pieces: tuple[bytes | memoryview, ...], *, before: int) -> int:
    """The check of a frame with this body after one with the check `before`."""
    state = xxhash.xxh3_64(seed=before)
    state.update(kind.encode("ascii") + struct.pack("<I", sum(map(len, pieces))))
    for piece in pieces:
        state.update(piece)
    return state.intdigest()


def find_frames(content: memoryview) -> Iterator[Frame]:
    """The whole frames from the first on, up to one that is cut short or altered; none of no journal."""
    if bytes(content[: len(MAGIC)]) != MAGIC:
        return
    place, check = len(MAGIC), 0
    while place + _HEAD.size <= len(content):
        name, length, said = _HEAD.unpack_from(content, place)
        begin = place + _HEAD.size
        if length > MOST_BODY or begin + length > len(content) or not name.isalpha():
            return
        check = check_of(name.decode("ascii"), (content[begin : begin + length],), before=check)
        if check != said:
            return
        place = begin + length
        yield Frame(name.decode("ascii"), begin, place, check)
