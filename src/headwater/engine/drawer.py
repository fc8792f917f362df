"""Bytes by sample, appended to two files and never changed: what was once made, or fetched, of samples.

Only what is erased is written over, with zeros. `index` holds a record of fixed length per entry, `data` the
entries themselves. An entry is written before its record, and both carry checksums. So a process that is
killed at any moment leaves entries that are whole, and at most a torn tail, which is cut off when the files
are opened. The format is in docs/reference/formats.md.
"""

from __future__ import annotations

import logging
import mmap
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import xxhash
from numpy.typing import NDArray

from headwater.data.randomness import mix
from headwater.engine.places import Ids, Places

log = logging.getLogger("headwater")

RECORD = np.dtype(
    [
        ("id", "<i8"),
        ("size", "<i8"),
        ("offset", "<i8"),
        ("added", "<i8"),
        ("length", "<u4"),
        ("norm", "<f4"),
        ("check", "<u8"),
        ("guard", "<u8"),
    ]
)
"""Sample, bytes of its file, where its entry lies, when it was added (milliseconds since 1970), its length, a
number that is asked for without the entry, XXH3 of the entry, and a mixture of all these, by which a record
that was never wholly written is known."""

INDEX, DATA = "index", "data"
ERASED = -1
"""The id of a record that was erased: of no sample."""
_AT_ONCE = 1 << 18
Bytes = NDArray[np.uint8]
Entry = bytes | memoryview


class Drawer:
    """The entries of one kind, by sample id. Safe to use from many threads; one process at a time.

    An entry belongs to a file of a certain size: `hold` leaves out what was made of other files. In memory
    are 16 bytes an entry. `clock` gives the time of day.
    """

    def __init__(self, folder: Path, *, clock: Callable[[], float] = time.time) -> None:
        self._lock, self._clock = threading.Lock(), clock
        self._index = os.open(folder / INDEX, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._data = os.open(folder / DATA, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        records = self._recover()
        self._count = len(records)
        (rows,) = np.nonzero(records["id"] != ERASED)
        self._places = Places(records["id"][rows], rows.astype(np.uint32))
        self._erased = np.empty(0, np.int64)
        self._norms = np.array(records["norm"])
        self._maps: dict[int, Bytes] = {}
        # Also of a drawer that was dropped while somebody read from it.
        self._closing = weakref.finalize(self, _close, self._index, self._data)

    def __len__(self) -> int:
        return len(self._places)

    @property
    def nbytes(self) -> int:
        """Bytes of both files."""
        return self._end + self._count * RECORD.itemsize

    def hold(self, ids: Ids, sizes: NDArray[np.int64]) -> None:
        """Forget entries of samples that are not among these, or whose file had another size."""
        with self._lock:
            held, rows = self._places.all()
            if not len(held):
                return
            table = self._table(self._count)
            order = np.argsort(ids)
            ranked = ids[order]
            kept = np.zeros(len(held), np.bool_)
            for begin in range(0, len(held) if len(ids) else 0, _AT_ONCE):
                part = slice(begin, begin + _AT_ONCE)
                spots = np.minimum(np.searchsorted(ranked, held[part]), len(ranked) - 1)
                same = ranked[spots] == held[part]
                kept[part] = same & (sizes[order[spots]] == table["size"][rows[part]])
            if not kept.all():
                self._places = Places(held[kept], rows[kept])

    def find(self, ids: Ids) -> NDArray[np.int64]:
        """The row of each, -1 where there is none."""
        with self._lock:
            return self._places.find(ids)

    def norms(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """The numbers of these rows."""
        return self._norms[rows]

    def added(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """When these rows were added, in milliseconds since 1970."""
        found: NDArray[np.int64] = self._records(rows)["added"]
        return found

    def read(self, rows: NDArray[np.int64]) -> list[Bytes | None]:
        """The entries of these rows; None for one that is damaged."""
        records = self._records(rows)
        data = self._map(self._data, int((records["offset"] + records["length"]).max(initial=0)))
        columns = (records[name].tolist() for name in ("offset", "length", "check"))
        spans = zip(*columns, strict=True)
        return [_checked(data[begin : begin + length], check) for begin, length, check in spans]

    def copy(self, rows: NDArray[np.int64]) -> list[bytes | None]:
        """The same, read into memory: where a disk is slow, or fails, only this thread has to do with it."""
        records = self._records(rows)
        spans = zip(*(records[name].tolist() for name in ("offset", "length", "check")), strict=True)
        return [_copied(self._data, begin, length, check) for begin, length, check in spans]

    def lengths(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Bytes of the entries of these rows."""
        return self._records(rows)["length"].astype(np.int64)

    def all(self) -> tuple[Ids, NDArray[np.uint32]]:
        """The ids of all entries, sorted, and their rows."""
        with self._lock:
            return self._places.all()

    def add(
        self, ids: Ids, sizes: NDArray[np.int64], *, entries: Sequence[Entry], norms: NDArray[np.float32]
    ) -> bool:
        """Keep entries of samples that have none yet; False, and nothing is kept, where the disk is full."""
        with self._lock:
            new = np.flatnonzero((self._places.find(ids) < 0) & ~np.isin(ids, self._erased))
            if not len(new):
                return True
            added = [entries[place] for place in new.tolist()]
            records = np.zeros(len(new), RECORD)
            records["id"], records["size"], records["norm"] = ids[new], sizes[new], norms[new]
            records["length"] = [len(entry) for entry in added]
            records["offset"] = self._end + np.cumsum(records["length"], dtype=np.int64) - records["length"]
            records["check"] = [xxhash.xxh3_64_intdigest(entry) for entry in added]
            records["added"] = int(1000 * self._clock())
            records["guard"] = _guards(records)
            return self._append(records, b"".join(added))

    def erase(self, ids: Ids) -> int:
        """Write over the entries of these samples, on disk when this returns, and take none of them again.

        How many entries there were. Whoever holds one that was read sees it change.
        """
        with self._lock:
            self._erased = np.union1d(self._erased, ids)
            held, rows = self._places.all()
            kept = ~np.isin(held, ids)
            self._places = Places(held[kept], rows[kept])
            return _erase(self._index, self._data, ids)

    def _append(self, records: NDArray[np.void], content: bytes) -> bool:
        try:
            _write(self._data, content, self._end)
            _write(self._index, records.tobytes(), self._count * RECORD.itemsize)
        except OSError as error:
            log.warning("entries of %d samples cannot be kept: %s", len(records), error.strerror)
            return False
        rows = np.arange(self._count, self._count + len(records), dtype=np.uint32)
        self._norms = _extended(self._norms, self._count, records["norm"])
        self._count += len(records)
        self._end += len(content)
        self._places.add(records["id"], rows)
        return True

    def close(self) -> None:
        self._closing()

    def _recover(self) -> NDArray[np.void]:
        """The records that are whole and whose entries are there; both files end with them from now on."""
        content, room = _mapped(self._index), os.fstat(self._data).st_size
        records = content[: len(content) // RECORD.itemsize * RECORD.itemsize].view(RECORD)
        count = _count_whole(records, room)
        found = records[:count]
        self._end = int((found["offset"] + found["length"]).max(initial=0))
        if room > self._end:  # entries whose records were never written
            os.ftruncate(self._data, self._end)
        if len(content) != count * RECORD.itemsize:
            lost = len(records) - count
            log.info("%d of %d kept entries were not wholly written and are left out", lost, len(records))
            os.ftruncate(self._index, count * RECORD.itemsize)
        return found

    def _records(self, rows: NDArray[np.integer]) -> NDArray[np.void]:
        if not len(rows):
            return np.zeros(0, RECORD)
        found: NDArray[np.void] = self._table(int(rows.max()) + 1)[rows]
        return found

    def _table(self, count: int) -> NDArray[np.void]:
        """At least so many records, as they lie in the file."""
        mapped = self._map(self._index, count * RECORD.itemsize)
        return mapped[: len(mapped) // RECORD.itemsize * RECORD.itemsize].view(RECORD)

    def _map(self, descriptor: int, length: int) -> Bytes:
        """At least so much of a file; mapped anew when it has grown."""
        found = self._maps.get(descriptor)
        if found is None or len(found) < length:
            found = self._maps[descriptor] = _mapped(descriptor)
        return found


def erase(folder: Path, ids: Ids) -> int:
    """Erase the entries of these samples in the files of a drawer, which another process may have open.

    How many there were. To that process they are damaged from now on.
    """
    if not (folder / INDEX).is_file() or not (folder / DATA).is_file():
        return 0
    index = os.open(folder / INDEX, os.O_RDWR | os.O_CLOEXEC)
    try:
        data = os.open(folder / DATA, os.O_RDWR | os.O_CLOEXEC)
        try:
            return _erase(index, data, ids)
        finally:
            os.close(data)
    finally:
        os.close(index)


def _erase(index: int, data: int, ids: Ids) -> int:
    """The entry first: what is left of a process that is killed in between is erased the next time."""
    content, room = _mapped(index), os.fstat(data).st_size
    records = content[: len(content) // RECORD.itemsize * RECORD.itemsize].view(RECORD)
    (rows,) = np.nonzero(np.isin(records["id"], ids))
    for row in rows.tolist():
        record = records[row : row + 1].copy()
        begin, length = int(record["offset"][0]), int(record["length"][0])
        if 0 <= begin <= begin + length <= room:
            _write(data, bytes(length), begin)
        _write(index, _blank(record).tobytes(), row * RECORD.itemsize)
    os.fsync(data)
    os.fsync(index)
    return len(rows)


def _blank(record: NDArray[np.void]) -> NDArray[np.void]:
    """A record that says of nothing but where its entry lay, so that what lies behind it is found."""
    found = np.zeros(1, RECORD)
    found["id"], found["offset"], found["length"] = ERASED, record["offset"], record["length"]
    found["guard"] = _guards(found)
    return found


def _mapped(descriptor: int) -> Bytes:
    size = os.fstat(descriptor).st_size
    if not size:
        return np.empty(0, np.uint8)
    return np.frombuffer(mmap.mmap(descriptor, size, prot=mmap.PROT_READ), np.uint8)


def _count_whole(records: NDArray[np.void], room: int) -> int:
    """How many of the first records are as they were written, with entries within `room` bytes."""
    for begin in range(0, len(records), _AT_ONCE):
        part = records[begin : begin + _AT_ONCE]
        inside = (part["offset"] >= 0) & (part["offset"] + part["length"] <= room)
        whole = inside & (part["guard"] == _guards(part))
        if not whole.all():
            return begin + int(np.argmin(whole))
    return len(records)


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _checked(entry: Bytes, check: int) -> Bytes | None:
    return entry if xxhash.xxh3_64_intdigest(entry.data) == check else None


def _copied(descriptor: int, offset: int, length: int, check: int) -> bytes | None:
    try:
        entry = os.pread(descriptor, length, offset)
    except OSError as error:
        log.info("an entry of %d bytes cannot be read: %s", length, error.strerror)
        return None
    return entry if xxhash.xxh3_64_intdigest(entry) == check else None


def _guards(records: NDArray[np.void]) -> NDArray[np.uint64]:
    """A mixture of everything else in each record."""
    words = np.ascontiguousarray(records).view("<u8").reshape(len(records), -1)
    state = np.full(len(records), 0x48574452, np.uint64)
    for column in range(words.shape[1] - 1):
        state = mix(state ^ words[:, column])
    return state


def _write(descriptor: int, content: bytes, offset: int) -> None:
    """At a place, not at the end: what a full disk cut short is written over."""
    rest = memoryview(content)
    while len(rest):
        done = os.pwrite(descriptor, rest, offset)
        rest, offset = rest[done:], offset + done


def _extended(column: NDArray[np.float32], count: int, more: NDArray[np.float32]) -> NDArray[np.float32]:
    """The first `count` and then more; room grows by an eighth, so that adding costs no more as it fills."""
    if count + len(more) > len(column):
        room = np.zeros(max(count + len(more), count + count // 8, 4096), np.float32)
        room[:count] = column[:count]
        column = room
    column[count : count + len(more)] = more
    return column
