"""The members of a tar archive, from its headers alone: ustar, GNU long names, PAX.

Nothing is extracted, and a name is only ever a key. Whatever a header claims is checked against
the archive's real size before it is believed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from headwater.data.files import Buffer
from headwater.errors import DatasetError

BLOCK = 512
SMALLEST_WINDOW = 8 << 10
LARGEST_WINDOW = 1 << 20
LARGEST_EXTENSION = 1 << 20
"""A GNU long name or a PAX header above this is an attack or damage."""

_REGULAR = b"\x0007"
_WITHOUT_DATA = b"123456"
_EXTENSIONS = b"xgLK"
_ZEROS = bytes(BLOCK)
_COMPRESSED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstandard"}


class Member(NamedTuple):
    """A regular file in an archive: its name as written, where its data begins, its length."""

    name: str
    offset: int
    size: int


class Window:
    """A range of an archive that moves forward; it grows where headers are dense and shrinks where not."""

    def __init__(self, read: Callable[[int, int], Buffer], size: int) -> None:
        self._read = read
        self.size = size
        self._start = 0
        self._data = memoryview(b"")
        self._length = SMALLEST_WINDOW

    def bytes(self, start: int, length: int) -> bytes:
        """Exactly these bytes; the caller has checked that they lie inside the archive."""
        begin = start - self._start
        if begin < 0 or begin + length > len(self._data):
            self._move(start, length)
            begin = 0
        return bytes(self._data[begin : begin + length])

    def _move(self, start: int, length: int) -> None:
        dense = start - self._start <= 2 * len(self._data)
        doubled = min(2 * self._length, LARGEST_WINDOW)
        self._length = doubled if dense else max(self._length // 2, SMALLEST_WINDOW)
        wanted = min(max(length, self._length), self.size - start)
        self._start, self._data = start, memoryview(self._read(start, wanted))  # type: ignore[arg-type]
        if len(self._data) < min(length, wanted):
            raise ValueError(f"ends at byte {start + len(self._data)} instead of {self.size}")


def read_members(window: Window, shard: str) -> Iterator[Member]:
    """Every regular member; raises `DatasetError` naming shard and offset where the archive is unreadable."""
    offset = 0
    try:
        extension = _Extension()
        while offset + BLOCK <= window.size:
            header = window.bytes(offset, BLOCK)
            if not offset:
                _refuse_compressed(header)
            if header == _ZEROS:
                return
            kind, size = _checked(header)
            if extension.size is not None and kind not in _EXTENSIONS:
                size = extension.size
            data = offset + BLOCK
            following = data if kind in _WITHOUT_DATA else data + -(-size // BLOCK) * BLOCK
            _refuse_beyond_end(kind, data + size, end=window.size)
            if kind in _EXTENSIONS:
                extension = extension.extended(kind, _extension_bytes(window, data, size))
            else:
                name = extension.name or _name(header)
                # The oldest archives have no type for folders, only the slash.
                if kind in _REGULAR and (kind or not name.endswith("/")):
                    yield Member(name, data, size)
                extension = _Extension()
            offset = following
        if offset < window.size:
            raise ValueError(f"{window.size - offset} bytes are left, too few for a header")
    except ValueError as error:
        raise DatasetError(f"tar {shard} is unreadable at byte {offset}: {error}; write it again") from error


class _Extension(NamedTuple):
    """What an extended header says about the member after it."""

    name: str | None = None
    size: int | None = None

    def extended(self, kind: int, content: bytes) -> _Extension:
        if kind == ord("L"):
            return _Extension(_text(content.split(b"\0", 1)[0]), self.size)
        if kind in b"gK":
            return self  # global records and long link targets say nothing about a regular member's place
        records = _pax_records(content)
        if any(key.startswith("GNU.sparse.") for key in records):
            raise ValueError("a sparse member, which cannot be read in place")
        size = records.get("size")
        if size is not None and not size.isdigit():
            raise ValueError(f"a PAX size of {size[:20]!r}")
        return _Extension(records.get("path", self.name), self.size if size is None else int(size))


def _checked(header: bytes) -> tuple[int, int]:
    """Type and size of a member, after its checksum."""
    claimed = _number(header[148:156])
    blank = header[:148] + b" " * 8 + header[156:]
    total = sum(blank)
    if claimed != total and claimed != total - 256 * sum(byte > 127 for byte in blank):
        raise ValueError(f"header checksum is {total}, {claimed} is written there")
    kind = header[156]
    if kind == ord("S"):
        raise ValueError("a sparse member, which cannot be read in place")
    return kind, _number(header[124:136])


def _refuse_compressed(start: bytes) -> None:
    for magic, name in _COMPRESSED.items():
        if start.startswith(magic):
            raise ValueError(f"it is compressed with {name} and cannot be read in place; decompress it")


def _number(field: bytes) -> int:
    """A number in octal text, or in base 256 where the first byte says so."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    if field[0] == 0xFF:
        raise ValueError("a negative number in a header")
    text = field.split(b"\0", 1)[0].strip()
    if text.strip(b"01234567"):
        raise ValueError(f"{text!r} where an octal number belongs")
    return int(text or b"0", 8)


def _refuse_beyond_end(kind: int, stop: int, *, end: int) -> None:
    if kind not in _WITHOUT_DATA and stop > end:
        raise ValueError(f"a member ends at byte {stop}, the archive at {end}: truncated, or a lying header")


def _extension_bytes(window: Window, start: int, size: int) -> bytes:
    if size > LARGEST_EXTENSION:
        raise ValueError(f"an extended header of {size} bytes, at most {LARGEST_EXTENSION} are read")
    return window.bytes(start, size)


def _name(header: bytes) -> str:
    name = header[:100].split(b"\0", 1)[0]
    # GNU's magic is "ustar  "; there the bytes of the prefix mean something else.
    if header[257:263] == b"ustar\0" and header[345]:
        name = header[345:500].split(b"\0", 1)[0] + b"/" + name
    return _text(name)


def _pax_records(content: bytes) -> dict[str, str]:
    """`length key=value\\n` records, each length checked before it is used."""
    records = {}
    place = 0
    while place < len(content) and content[place]:
        space = content.find(b" ", place, place + 12)
        digits = content[place : max(space, place)]
        if not digits.isdigit():
            raise ValueError("a PAX record without a length")
        stop = place + int(digits)
        if stop > len(content) or stop <= space + 1:
            raise ValueError(f"a PAX record of {int(digits)} bytes in {len(content) - place}")
        key, equals, value = content[space + 1 : stop - 1].partition(b"=")
        if not equals:
            raise ValueError("a PAX record without a value")
        records[_text(key)] = _text(value)
        place = stop
    return records


def _text(name: bytes) -> str:
    return name.decode("utf-8", errors="replace")
