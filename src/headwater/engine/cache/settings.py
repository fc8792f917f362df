"""What a user may say of a cache."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from headwater.data.bytecount import parse_bytes
from headwater.data.indexcache import cache_folder
from headwater.errors import WrongUse


@dataclass(frozen=True)
class Cache:
    """How many bytes of samples may be held: in `memory`, and on `disk` below `folder`.

    Bytes are numbers, or texts such as "2GiB"; None is nothing. What is on disk serves the next run with the
    same data, too. Without a folder it lies in that of `HEADWATER_CACHE`.
    """

    memory: int | str | None = "2GiB"
    disk: int | str | None = None
    folder: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        if min(self.memory_bytes, self.disk_bytes) < 0 or not self.memory_bytes + self.disk_bytes:
            raise WrongUse(
                f"a cache of {self.memory!r} in memory and {self.disk!r} on disk; give one of them some bytes"
            )
        if self.folder is not None and not self.disk_bytes:
            raise WrongUse(f"the cache may hold nothing in {os.fspath(self.folder)}; say how much with disk=")

    @property
    def memory_bytes(self) -> int:
        return parse_bytes(self.memory or 0)

    @property
    def disk_bytes(self) -> int:
        return parse_bytes(self.disk or 0)

    @property
    def place(self) -> Path:
        """The folder of what is on disk."""
        return cache_folder() / "samples" if self.folder is None else Path(self.folder)

    @classmethod
    def of(cls, given: Cache | int | str | None) -> Cache | None:
        """As given; a number or a text is what may be held in memory."""
        return given if given is None or isinstance(given, Cache) else cls(given)
