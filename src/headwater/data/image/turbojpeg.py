"""A binding to TurboJPEG through ctypes, which releases the GIL: decode a part of a JPEG, or cut it out.

The library is the system's where that has the TurboJPEG 3 calls, else the one inside the `turbojpeg`
wheel. The wheel's own module is not used: it holds the GIL. The cut is also in TurboJPEG 2, which is
taken where no library has the newer calls.

Every call has a handle of its own, which takes some 5 us: a handle keeps the Huffman and quantisation
tables of the file before, and gives them to a file that lacks its own, without a warning.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from ctypes import byref, c_int, c_size_t, c_ulong, c_void_p
from functools import cache
from importlib.metadata import PackageNotFoundError, files

import numpy as np
from numpy.typing import NDArray

from headwater.data.image.header import Data

Pixels = NDArray[np.uint8]
Corner = tuple[int, int]
Size = tuple[int, int]

RGB, GREY = 0, 6
"""Pixel formats."""

PROGRESSIVE, ARITHMETIC, OPTIMISED = 32, 128, 256
"""How a cut is coded; 0 is sequential, with the standard's Huffman tables."""

_CROP, _WITHOUT_MARKERS = 4, 64
_INIT_DECOMPRESS, _INIT_TRANSFORM = 1, 2
_STOP_ON_WARNING, _WIDTH, _HEIGHT, _SCAN_LIMIT = 0, 5, 6, 13
_OLD_FLAGS = 8192 | 32768
"""TurboJPEG 2: stop on a warning, and after 500 scans; that cap cannot be set."""
_SYSTEM_NAMES = {"darwin": "libturbojpeg.dylib", "win32": "turbojpeg.dll"}


class _Region(ctypes.Structure):
    _fields_ = [("x", c_int), ("y", c_int), ("w", c_int), ("h", c_int)]


class _Transform(ctypes.Structure):
    _fields_ = [
        ("region", _Region),
        ("op", c_int),
        ("options", c_int),
        ("data", c_void_p),
        ("filter", c_void_p),
    ]


_Signatures = Mapping[str, tuple[type | None, list[type]]]

_SIGNATURES: _Signatures = {
    "tj3Init": (c_void_p, [c_int]),
    "tj3Destroy": (None, [c_void_p]),
    "tj3Set": (c_int, [c_void_p, c_int, c_int]),
    "tj3Get": (c_int, [c_void_p, c_int]),
    "tj3DecompressHeader": (c_int, [c_void_p, c_void_p, c_size_t]),
    "tj3SetCroppingRegion": (c_int, [c_void_p, _Region]),
    "tj3Decompress8": (c_int, [c_void_p, c_void_p, c_size_t, c_void_p, c_int, c_int]),
    "tj3Transform": (c_int, [c_void_p, c_void_p, c_size_t, c_int, c_void_p, c_void_p, c_void_p]),
    "tj3Free": (None, [c_void_p]),
}
_OLD_SIGNATURES: _Signatures = {
    "tjInitTransform": (c_void_p, []),
    "tjDestroy": (c_int, [c_void_p]),
    "tjTransform": (c_int, [c_void_p, c_void_p, c_ulong, c_int, c_void_p, c_void_p, c_void_p, c_int]),
    "tjFree": (None, [c_void_p]),
}


class Decoder:
    """Decodes parts of JPEG files; threads may share it."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    def decode(self, data: Data, pixels: Pixels, *, corner: Corner, size: Size, form: int) -> bool:
        """Fill `pixels` with the part of the image that begins at `corner`; False if the library complains.

        The corner is (top, left), left on a border of MCUs. `size` is what the image must have. `form` is
        `RGB` or `GREY`.
        """
        library, source = self._library, np.frombuffer(data, np.uint8)
        address, length = source.ctypes.data, source.size
        region = _Region(corner[1], corner[0], pixels.shape[1], pixels.shape[0])
        with _open(library, _INIT_DECOMPRESS) as handle:
            if library.tj3DecompressHeader(handle, address, length):
                return False
            if (library.tj3Get(handle, _HEIGHT), library.tj3Get(handle, _WIDTH)) != size:
                return False
            if library.tj3SetCroppingRegion(handle, region):
                return False
            target = pixels.ctypes.data
            return not library.tj3Decompress8(handle, address, length, target, pixels.strides[0], form)


class Transformer:
    """Cuts parts out of JPEG files with TurboJPEG 3; threads may share it."""

    optimises = True

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    def cut(self, data: Data, *, corner: Corner, size: Size, options: int, scans: int) -> bytes | None:
        """The part of a JPEG at `corner` (top, left; on borders of MCUs) as a JPEG without its markers.

        None if the library complains, or meets more than `scans` scans. `options` is 0 or made of
        `PROGRESSIVE`, `ARITHMETIC` and `OPTIMISED`. No pixel is decoded: coefficients are copied.
        """
        library, source = self._library, np.frombuffer(data, np.uint8)
        task, target, length = _order(corner, size, options), c_void_p(), c_size_t()
        out = byref(target), byref(length), byref(task)
        with _open(library, _INIT_TRANSFORM) as handle:
            library.tj3Set(handle, _SCAN_LIMIT, scans)
            failed = library.tj3Transform(handle, source.ctypes.data, source.size, 1, *out)
        return _take(target, length.value, free=library.tj3Free, failed=failed)


class OldTransformer:
    """The same with TurboJPEG 2, which passes over `ARITHMETIC` and `OPTIMISED` without a word."""

    optimises = False

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    def cut(self, data: Data, *, corner: Corner, size: Size, options: int, scans: int) -> bytes | None:
        """As `Transformer.cut`, but the library's own cap on scans, 500, stands for `scans`."""
        library, source = self._library, np.frombuffer(data, np.uint8)
        task, target, length = _order(corner, size, options), c_void_p(), c_ulong()
        out = byref(target), byref(length), byref(task)
        handle = library.tjInitTransform()
        if not handle:
            raise MemoryError("tjInitTransform gave no handle")
        failed = library.tjTransform(handle, source.ctypes.data, source.size, 1, *out, _OLD_FLAGS)
        library.tjDestroy(handle)
        return _take(target, length.value, free=library.tjFree, failed=failed)


@contextmanager
def _open(library: ctypes.CDLL, kind: int) -> Iterator[int]:
    handle = library.tj3Init(kind)
    if not handle:
        raise MemoryError("tj3Init gave no handle")
    try:
        library.tj3Set(handle, _STOP_ON_WARNING, 1)
        yield handle
    finally:
        library.tj3Destroy(handle)


def _order(corner: Corner, size: Size, options: int) -> _Transform:
    region = _Region(corner[1], corner[0], size[1], size[0])
    return _Transform(region, 0, options | _CROP | _WITHOUT_MARKERS, None, None)


def _take(target: c_void_p, length: int, *, free: Callable[[c_void_p], None], failed: int) -> bytes | None:
    """The library's buffer as bytes of ours; it is freed, also when only a part of it was written."""
    try:
        return None if failed or not target else ctypes.string_at(target, length)
    finally:
        free(target)


@cache
def decoder() -> Decoder | None:
    """The decoder of this process; None where no library has the calls."""
    library = load()
    return None if library is None else Decoder(library)


@cache
def transformer() -> Transformer | OldTransformer | None:
    """The transformer of this process; None where no library has the calls, new or old."""
    new, old = load(), load_old()
    if new is not None:
        return Transformer(new)
    return None if old is None else OldTransformer(old)


@cache
def load() -> ctypes.CDLL | None:
    """The library of this process, or None where no candidate has the TurboJPEG 3 calls."""
    return load_first(_candidates())


@cache
def load_old() -> ctypes.CDLL | None:
    """The library of this process for the TurboJPEG 2 calls, which newer ones have too, or None."""
    return load_first(_candidates(), old=True)


def load_first(names: Iterable[str], *, old: bool = False) -> ctypes.CDLL | None:
    """The first library of these names or paths that has the TurboJPEG 3 calls (`old`: 2), or None."""
    for name in names:
        try:
            return _declare(ctypes.CDLL(name), _OLD_SIGNATURES if old else _SIGNATURES)
        except (OSError, AttributeError):  # not there, or too old
            continue
    return None


def _candidates() -> Iterator[str]:
    yield _SYSTEM_NAMES.get(sys.platform, "libturbojpeg.so.0")
    try:
        carried = files("turbojpeg") or []
    except PackageNotFoundError:
        return
    for file in carried:
        if file.name.startswith(("libturbojpeg", "turbojpeg.dll")):
            yield str(file.locate())


def _declare(library: ctypes.CDLL, signatures: _Signatures) -> ctypes.CDLL:
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library
