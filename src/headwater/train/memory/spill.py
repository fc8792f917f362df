"""One file for what left memory. It has no name, so nothing is left behind, whatever ends the process."""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import resource
import tempfile
import threading
from functools import cache
from pathlib import Path

from headwater.errors import SpillFailed
from headwater.train.memory.places import Extent, FreeList

PAGE = 4096
GROWTH = 64 * 2**20
"""The file grows by at least so much; disk space is taken when it grows, never while a tensor is written."""
MOST_PER_CALL = 2**30

logger = logging.getLogger(__name__)


class SpillFile:
    """Places in a file, first fit. Safe for threads."""

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        """Raises `SpillFailed` for a folder that is missing or that cannot be written to."""
        self.folder = Path(folder) if folder is not None else Path(tempfile.gettempdir())
        self._file = _open_nameless(self.folder)
        _warn_if_memory(self.folder)
        self._size = 0
        self._places = FreeList()
        self._lock = threading.RLock()

    @property
    def size(self) -> int:
        """Bytes of disk that are taken."""
        return self._size

    @property
    def used(self) -> int:
        """Bytes of places that are taken."""
        with self._lock:
            return self._size - self._places.free

    def prepare(self, size: int) -> int:
        """Take so much disk, if it is not taken yet; how much could be had in all, without taking it.

        Raises `SpillFailed` if the disk is full.
        """
        with self._lock:
            if size:
                self.release(self.reserve(size))
            disk, most = os.fstatvfs(self._file), resource.getrlimit(resource.RLIMIT_FSIZE)[0]
            growth = disk.f_bavail * disk.f_frsize
            if most != resource.RLIM_INFINITY:
                growth = min(growth, max(most - self._size, 0))
            return self._size - self.used + growth

    def reserve(self, size: int) -> Extent:
        """A place for so many bytes; raises `SpillFailed` if the disk is full."""
        room = -(-max(size, 1) // PAGE) * PAGE
        with self._lock:
            offset = self._places.take(room)
            if offset is not None:
                return Extent(offset, size, room)
            self._grow(room)
            return self.reserve(size)

    def release(self, extent: Extent) -> None:
        """Give a place back."""
        with self._lock:
            self._places.give(extent.offset, extent.room)

    def write(self, extent: Extent, address: int) -> None:
        """Copy memory into the file; the interpreter is free meanwhile."""
        buffer = memoryview((ctypes.c_char * extent.size).from_address(address)).cast("B")
        done = 0
        while done < extent.size:
            done += os.pwrite(self._file, buffer[done : done + MOST_PER_CALL], extent.offset + done)

    def read(self, extent: Extent, address: int) -> None:
        """Copy a part of the file into memory."""
        buffer = memoryview((ctypes.c_char * extent.size).from_address(address)).cast("B")
        done = 0
        while done < extent.size:
            try:
                count = os.preadv(self._file, [buffer[done : done + MOST_PER_CALL]], extent.offset + done)
            except OSError as error:
                raise SpillFailed(f"the spill file in {self.folder} cannot be read: {error}") from error
            if count == 0:
                raise SpillFailed(f"the spill file in {self.folder} ends too early; was it cut?")
            done += count

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _grow(self, room: int) -> None:
        """By a step, or by what is asked for if a step is more than the disk has."""
        reason = ""
        for step in (max(room, GROWTH), room):
            try:
                os.posix_fallocate(self._file, self._size, step)
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT):
                    raise SpillFailed(f"the spill file in {self.folder} cannot grow: {error}") from error
                reason = str(error.strerror)  # not the error: with its frames it would hold what forward made
            else:
                self._places.give(self._size, step)
                self._size += step
                return
        raise SpillFailed(
            f"no room for {room:,} more bytes in {self.folder}, {self._size:,} are taken: {reason}"
        )


def _open_nameless(folder: Path) -> int:
    try:
        return os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise SpillFailed(f"the spill folder {folder} is not there; make it, or give another") from error
    except OSError:
        return _open_unlinked(folder)


def _open_unlinked(folder: Path) -> int:
    """For file systems without nameless files, such as some network ones."""
    try:
        file, name = tempfile.mkstemp(prefix="headwater-spill-", dir=folder)
    except OSError as error:
        raise SpillFailed(f"the spill folder {folder} cannot be written to: {error.strerror}") from error
    os.unlink(name)
    return file


@cache
def _warn_if_memory(folder: Path) -> None:
    """Once for a folder: what goes to a file system in memory is not out of memory."""
    device = os.stat(folder).st_dev
    number, mounts = f"{os.major(device)}:{os.minor(device)}", Path("/proc/self/mountinfo")
    lines = mounts.read_text(errors="replace").splitlines() if mounts.exists() else []
    kinds = {line.split()[2]: line.partition(" - ")[2].split()[0] for line in lines}
    if kinds.get(number) in ("tmpfs", "ramfs"):
        logger.warning("the spill folder %s is in memory itself; give one on a disk: spill=", folder)
