"""Access to the bytes of a dataset: list, read a range, read a whole file, take a fingerprint.

`Files` is the seam; `LocalFiles` is here, `sources/objects.py` speaks to S3. Nothing maps a user's
file into memory: a file that is truncated while mapped kills the process with SIGBUS.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Sequence
from itertools import accumulate
from threading import Lock
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headwater.data.buffers import Buffers
from headwater.data.forks import renew_in_children
from headwater.errors import DatasetError, DatasetNotFound, DatasetStale

Buffer = bytes | memoryview | NDArray[np.uint8]

_KEPT_BUFFERS = 16

LISTING = pa.schema([("path", pa.large_string()), ("size", pa.int64()), ("tag", pa.large_string())])
"""What `list_files` returns: a row per file, sorted by path; the tag changes when the file does."""


class Span(NamedTuple):
    """A range of a file that had `size` bytes when it was indexed. A tuple: made once per sample read."""

    path: str
    start: int
    length: int
    size: int


class Fingerprint(NamedTuple):
    """Size and tag (mtime or ETag) of one file."""

    size: int
    tag: str


class Files(Protocol):
    """A place where files lie. Paths are absolute (local) or keys of one bucket. Thread-safe."""

    remote: bool

    def list_files(self, prefix: str) -> pa.Table:
        """Every file below the folder `prefix`, as `LISTING`; hidden ones are left out."""

    def fingerprint(self, path: str) -> Fingerprint:
        """Raises `DatasetNotFound` if there is no such file."""

    def read_range(self, path: str, start: int, length: int) -> Buffer:
        """Up to `length` bytes; fewer at the end of the file."""

    def read_whole(self, path: str) -> Buffer:
        """The file as it is now."""

    def read_many(self, spans: Sequence[Span]) -> list[Buffer]:
        """All spans, in order; raises `DatasetStale` if a file is gone or has another size than indexed."""

    def close(self) -> None:
        """Let go of descriptors, threads and connections."""


class _Descriptor:
    """An open file that closes itself when its last user lets go.

    Eviction from the table must not close a number that another thread is about to read from: the
    number could already belong to another file.
    """

    __slots__ = ("number",)

    def __init__(self, path: str) -> None:
        self.number = -1
        self.number = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def __del__(self) -> None:
        if self.number >= 0:
            os.close(self.number)


class LocalFiles:
    """Files of this machine; up to `descriptors` of them stay open (0 for folders of single images)."""

    remote = False

    def __init__(self, descriptors: int = 64) -> None:
        self._limit = descriptors
        self._buffers = Buffers(_KEPT_BUFFERS)
        self.begin()
        renew_in_children(self)

    def begin(self) -> None:
        """Forget open files, and who holds the lock."""
        self._lock = Lock()
        self._open: OrderedDict[str, _Descriptor] = OrderedDict()

    def list_files(self, prefix: str) -> pa.Table:
        found: list[tuple[str, int, str]] = []
        for folder, folders, names in os.walk(prefix, onerror=_refuse):
            folders[:] = [name for name in folders if not name.startswith(".")]
            for name in names:
                path = os.path.join(folder, name)
                if not name.startswith(".") and os.path.isfile(path):
                    found.append((path, *self.fingerprint(path)))
        return listing(found)

    def fingerprint(self, path: str) -> Fingerprint:
        try:
            status = os.stat(path)
        except FileNotFoundError as error:
            raise DatasetNotFound(f"no file {path}; check the address") from error
        except OSError as error:
            raise DatasetError(f"cannot look at {path}: {error.strerror}; check its permissions") from error
        return Fingerprint(status.st_size, str(status.st_mtime_ns))

    def read_range(self, path: str, start: int, length: int) -> Buffer:
        try:
            descriptor = self._descriptor(path)  # a name of its own: it closes when nothing holds it
            data = bytearray(length)
            done = _fill(memoryview(data), descriptor.number, start)
            return bytes(data) if done == length else bytes(data[:done])
        except FileNotFoundError as error:
            raise DatasetNotFound(f"no file {path}; check the address") from error
        except OSError as error:
            raise _unreadable(path, error) from error

    def read_whole(self, path: str) -> Buffer:
        return self.read_range(path, 0, self.fingerprint(path).size)

    def read_many(self, spans: Sequence[Span]) -> list[Buffer]:
        # a memoryview keeps what it looks at: the memory is lent for as long as any part of it is held
        whole = self._buffers.lend(sum(span.length for span in spans)).data
        ends = list(accumulate(span.length for span in spans))
        parts = [whole[end - span.length : end] for span, end in zip(spans, ends, strict=True)]
        known: dict[str, tuple[_Descriptor, int]] = {}
        for span, part in zip(spans, parts, strict=True):
            self._read_into(part, span, known)
        return list(parts)

    def close(self) -> None:
        with self._lock:
            self._open.clear()

    def _read_into(self, part: memoryview, span: Span, known: dict[str, tuple[_Descriptor, int]]) -> None:
        """`known` remembers the shards of one call and their sizes: each is looked at once."""
        path, start, length, indexed = span
        try:
            descriptor, size = known.get(path) or self._look(path, known)
            done = _fill(part, descriptor.number, start)
        except FileNotFoundError as error:
            raise stale(span, None) from error
        except OSError as error:
            raise _unreadable(path, error) from error
        if size != indexed or done != length:
            raise stale(span, size)

    def _look(self, path: str, known: dict[str, tuple[_Descriptor, int]]) -> tuple[_Descriptor, int]:
        descriptor = self._descriptor(path)
        found = descriptor, os.fstat(descriptor.number).st_size
        if len(known) < self._limit:
            known[path] = found
        return found

    def _descriptor(self, path: str) -> _Descriptor:
        if not self._limit:
            return _Descriptor(path)
        with self._lock:
            held = self._open.get(path)
            if held is not None:
                self._open.move_to_end(path)
                return held
        fresh = _Descriptor(path)
        with self._lock:
            held = self._open.setdefault(path, fresh)
            while len(self._open) > self._limit:
                self._open.popitem(last=False)
        return held


def listing(rows: Sequence[tuple[str, int, str]]) -> pa.Table:
    """Rows of (path, size, tag) as a `LISTING` sorted by path."""
    columns = zip(*sorted(rows), strict=True) if rows else ([], [], [])
    arrays = [pa.array(column, kind.type) for column, kind in zip(columns, LISTING, strict=True)]
    return pa.Table.from_arrays(arrays, schema=LISTING)


def stale(span: Span, size: int | None) -> DatasetStale:
    """The error for a file that is not what was indexed; `size` is None if it is gone."""
    now = "is gone" if size is None else f"has {size} bytes now"
    fact = f"{span.path} had {span.size} bytes when it was indexed and {now}"
    # a file overwritten in place leaves its folder's time, and so the cached index, as they were
    return DatasetStale(f"{fact}; open the dataset again with refresh=True")


def _fill(part: memoryview, number: int, start: int) -> int:
    """Read into `part`; how many bytes there were before the file's end.

    One call reads at most 2 GiB, and fewer bytes than asked for on some network file systems.
    """
    done = os.preadv(number, (part,), start)
    while 0 < done < len(part) and (count := os.preadv(number, (part[done:],), start + done)):
        done += count
    return done


def _refuse(error: OSError) -> None:
    raise DatasetError(f"cannot list {error.filename}: {error.strerror}; check its permissions") from error


def _unreadable(path: str, error: OSError) -> DatasetError:
    return DatasetError(f"cannot read {path}: {error.strerror}; check its permissions and the disk")
