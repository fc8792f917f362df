"""A tar that grows: images are appended, and on disk before anybody is told so.

A member is called by the digest of its bytes. So what a process that was killed has left at the end is
known for what it is: a header or data that is not whole, or not what its name says, is cut off.
"""

from __future__ import annotations

import hashlib
import os
import tarfile
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from headwater.data.atomic import replacing, sync_folder
from headwater.data.sources.tar import split_name
from headwater.data.sources.tarheaders import BLOCK, Member, Window, read_members
from headwater.errors import DatasetError

_END = bytes(2 * BLOCK)


@dataclass(frozen=True)
class Arrival:
    """An image that came: its bytes, and what files of its format are called."""

    data: bytes
    suffix: str

    @property
    def digest(self) -> str:
        """BLAKE2b-128 of the bytes, in hex."""
        return hashlib.blake2b(self.data, digest_size=16).hexdigest()


class GrowingShard:
    """A tar that is being written, by one thread at a time. Opening it cuts off a torn end."""

    def __init__(self, path: Path, *, clock: Callable[[], float]) -> None:
        """Raises `OSError`."""
        self.path, self._clock = path, clock
        is_new = not path.exists()
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self.digests = list(self._recover())
        """Of all members, in order."""
        if is_new:
            sync_folder(path.parent)

    def __len__(self) -> int:
        return len(self.digests)

    @property
    def nbytes(self) -> int:
        """Bytes up to the end of the last member."""
        return self._end

    def append(self, arrivals: Sequence[Arrival]) -> None:
        """Put images behind the others, on disk when this returns. Raises `OSError`: none is there."""
        names = [arrival.digest for arrival in arrivals]
        parts = zip(names, arrivals, strict=True)
        content = b"".join(part for name, arrival in parts for part in self._member(name, arrival))
        try:
            _write(self._file, content, self._end)
            os.fsync(self._file)
        except OSError:
            os.ftruncate(self._file, self._end)
            raise
        self._end += len(content)
        self.digests += names

    def finish(self) -> None:
        """Write the end of the archive, and let go of the file. Raises `OSError`."""
        _write(self._file, _END, self._end)
        os.fsync(self._file)
        self.close()

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _member(self, name: str, arrival: Arrival) -> Iterator[bytes]:
        facts = tarfile.TarInfo(f"{name}.{arrival.suffix}")
        facts.size, facts.mtime, facts.mode = len(arrival.data), int(self._clock()), 0o600
        yield facts.tobuf(tarfile.USTAR_FORMAT)
        yield arrival.data
        yield bytes(-len(arrival.data) % BLOCK)

    def _recover(self) -> Iterator[str]:
        """The digests of the members that are whole; the file ends with them from now on."""
        self._end = 0
        for member in _members(self._file):
            name = split_name(member.name)[0]
            data = os.pread(self._file, member.size, member.offset)
            if Arrival(data, "").digest != name:
                break
            self._end = member.offset + member.size + -member.size % BLOCK
            yield name
        if os.fstat(self._file).st_size > self._end:
            os.ftruncate(self._file, self._end)
            os.fsync(self._file)


def digests_in(path: Path) -> list[str]:
    """What the images of a shard are called, from its headers alone."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return [split_name(member.name)[0] for member in _members(file)]
    finally:
        os.close(file)


def remove_members(path: Path, digests: Collection[str]) -> int:
    """Write a finished shard anew without these images, or remove it if none is left; how many it had.

    Readers see the old file or the new one. Raises `OSError`.
    """
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        members = list(_members(file))
        kept = [member for member in members if split_name(member.name)[0] not in digests]
        if len(kept) < len(members) and kept:
            with replacing(path) as shard:
                for member in kept:
                    size = BLOCK + member.size + -member.size % BLOCK
                    shard.write(os.pread(file, size, member.offset - BLOCK))
                shard.write(_END)
        elif len(kept) < len(members):
            path.unlink()
            sync_folder(path.parent)
        return len(members) - len(kept)
    finally:
        os.close(file)


def _members(file: int) -> Iterator[Member]:
    """As far as the archive can be read."""
    window = Window(lambda start, length: os.pread(file, length, start), os.fstat(file).st_size)
    try:
        yield from read_members(window, "of the inbox")
    except DatasetError:
        return


def _write(file: int, content: bytes, offset: int) -> None:
    rest = memoryview(content)
    while len(rest):
        done = os.pwrite(file, rest, offset)
        rest, offset = rest[done:], offset + done
