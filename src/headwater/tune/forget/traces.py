"""Looks for what is left of a sample in the files below some folders: by its id, its name, its content."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from headwater.tune.forget.task import Task

_AT_ONCE = 1 << 24
_EXCERPT = 48
"""Bytes of a file that stand for its content: less than any image has, more than chance makes."""
_ENDING = 16
"""Bytes behind them: images of a kind begin and end alike."""


@dataclass(frozen=True)
class Trace:
    """A file, where in it, and what stands there."""

    path: Path
    offset: int
    mark: str


@dataclass(frozen=True)
class Marks:
    """What a sample is known by: names of marks, and the bytes to look for."""

    needles: dict[str, bytes]

    @classmethod
    def of(cls, id: int, key: str = "", content: bytes = b"") -> Marks:
        """The id as numbers are written; the key; digests of the content, and a part of it."""
        found = {
            "id, little-endian": id.to_bytes(8, "little"),
            "id, big-endian": id.to_bytes(8, "big"),
            "id, decimal": str(id).encode(),
            "id, hexadecimal": f"{id:016x}".encode(),
        }
        if key:
            found["key"] = key.encode()
        if content:
            begin = max(0, len(content) - _EXCERPT - _ENDING)
            found["content"] = content[begin : begin + _EXCERPT]
            for name, digest in (
                ("blake2b", hashlib.blake2b(content, digest_size=16)),
                ("sha256", hashlib.sha256(content)),
            ):
                found[f"{name} of the content"] = digest.digest()
                found[f"{name} of the content, hexadecimal"] = digest.hexdigest().encode()
        return cls(found)

    @property
    def longest(self) -> int:
        return max(map(len, self.needles.values()))


def marks_of(task: Task) -> Marks:
    """Of all samples of a task, as far as it knows them."""
    found: dict[str, bytes] = {}
    for id in task.ids:
        found |= {f"{mark} of {id}": needle for mark, needle in Marks.of(id).needles.items()}
    found |= {f"path {key}": key.encode() for key in task.known_paths}
    return Marks(found | {f"content {digest}": digest.encode() for digest in task.contents})


def sought(task: Task) -> dict[str, int]:
    """How many samples of a task are known by each: paths and contents are, as long as the data have them."""
    return {"ids": len(task.ids), "paths": len(task.known_paths), "contents": len(task.contents)}


def find_traces(folders: Iterable[Path], marks: Marks) -> list[Trace]:
    """The first trace of each mark in each file below the folders, and in names of files."""
    found = []
    for path in sorted({path for folder in folders for path in _files(folder)}):
        found += [
            Trace(path, -1, mark) for mark, needle in marks.needles.items() if needle in os.fsencode(path)
        ]
        try:
            with path.open("rb") as file:
                found += _search(path, file, marks)
        except FileNotFoundError:  # gone since
            continue
    return found


def _files(folder: Path) -> Iterator[Path]:
    if folder.is_file():
        yield folder
    for place, _, names in os.walk(folder):
        yield from (path for name in names if (path := Path(place) / name).is_file())


def _search(path: Path, file: BinaryIO, marks: Marks) -> Iterator[Trace]:
    """In parts that overlap, so that no mark falls between two."""
    missing, before, offset = dict(marks.needles), b"", 0
    while missing and (part := file.read(_AT_ONCE)):
        window = before + part
        for mark in [mark for mark, needle in missing.items() if needle in window]:
            yield Trace(path, offset - len(before) + window.index(missing.pop(mark)), mark)
        before, offset = window[-(marks.longest - 1) :], offset + len(part)
