"""What the daemon and a worker process say to each other, and how it goes over their socket.

A frame is four bytes of length and a msgspec struct. Files and pixels do not go this way: they lie in the
arena, and frames say where. Columns are the bytes of little-endian arrays.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from headwater.data.image import Limits

WAITING, MADE, FAILED = range(3)
"""What became of a sample: no room was left for it, it lies in the arena, it cannot be made."""

_LENGTH = struct.Struct("<I")
_LONGEST = 1 << 26

T = TypeVar("T")


class Setup(msgspec.Struct, array_like=True, frozen=True):
    """The daemon's first frame: caps on images, and whether it wants the digests of the steps."""

    limits: Limits
    digests: bool


class Hello(msgspec.Struct, array_like=True, frozen=True):
    """The worker's answer when it is ready."""

    catalogue: dict[str, str]


class Job(msgspec.Struct, array_like=True, frozen=True):
    """Samples to make. `lengths` are those of the files, which lie one behind the other; `room` is where
    results may begin; `limits` hold beside the worker's own. Of each sample's decoded picture the steps of
    `also`, which begin behind the decoder, make something more."""

    spec: list[dict[str, Any]]
    offset: int
    seed: int
    epoch: int
    ids: bytes
    cuts: bytes
    codecs: list[str]
    lengths: bytes
    room: int
    limits: Limits | None = None
    also: list[list[dict[str, Any]]] = []


class Reply(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """What became of every sample of a job, and where in the arena its payload lies.

    Behind the rows of all samples stand as many for each of what was also made.
    """

    states: bytes
    begins: bytes
    lengths: bytes
    shapes: bytes
    sizes: bytes
    orientations: bytes
    seconds: bytes
    drawn: list[bytes]
    cpu_seconds: float


class Fault(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """The job as a whole could not be run."""

    reason: str


class Answer(msgspec.Struct, array_like=True, frozen=True):
    """What a worker says to a job."""

    content: Reply | Fault


def pack(values: Any, kind: str) -> bytes:
    """A column as bytes; `kind` is a numpy type such as "<i8"."""
    return np.ascontiguousarray(values, kind).tobytes()


def unpack(column: bytes, kind: str, count: int, width: int = 1) -> NDArray[Any]:
    """The column again; raises `ValueError` if it has not `count` rows of `width`."""
    values = np.frombuffer(column, kind)
    return values.reshape(count, width) if width > 1 else values.reshape(count)


def send(link: socket.socket, frame: msgspec.Struct) -> None:
    content = msgspec.msgpack.encode(frame)
    link.sendall(_LENGTH.pack(len(content)) + content)


def receive(link: socket.socket, kind: type[T], tick: Callable[[], None] | None = None) -> T:
    """The next frame. `tick` is called whenever the socket's timeout passes, and may raise.

    Raises `EOFError` when the other side is gone, `ValueError` for anything but such a frame.
    """
    (length,) = _LENGTH.unpack(_take(link, _LENGTH.size, tick))
    if length > _LONGEST:
        raise ValueError(f"a frame of {length} bytes, the longest allowed has {_LONGEST}")
    try:
        return msgspec.msgpack.decode(_take(link, length, tick), type=kind)
    except msgspec.MsgspecError as error:
        raise ValueError(f"a frame that is no {kind.__name__}: {error}") from error


def _take(link: socket.socket, count: int, tick: Callable[[], None] | None) -> bytearray:
    content = bytearray(count)
    view = memoryview(content)
    got = 0
    while got < count:
        try:
            received = link.recv_into(view[got:])
        except TimeoutError:
            if tick is None:
                raise
            tick()
            continue
        if not received:
            raise EOFError("the other side is gone")
        got += received
    return content
