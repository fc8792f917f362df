"""A binding to the TurboJPEG 3 calls that decode a part of a JPEG, through ctypes, which releases the GIL.

The library is the system's where that has these calls, else the one inside the `turbojpeg` wheel.
The wheel's own module is not used: it holds the GIL.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import weakref
from collections.abc import Iterable, Iterator
from ctypes import c_int, c_size_t, c_void_p
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

_INIT_DECOMPRESS = 1
_STOP_ON_WARNING, _WIDTH, _HEIGHT = 0, 5, 6
_SYSTEM_NAMES = {"darwin": "libturbojpeg.dylib", "win32": "turbojpeg.dll"}


class _Region(ctypes.Structure):
    _fields_ = [("x", c_int), ("y", c_int), ("w", c_int), ("h", c_int)]


_SIGNATURES = {
    "tj3Init": (c_void_p, [c_int]),
    "tj3Destroy": (None, [c_void_p]),
    "tj3Set": (c_int, [c_void_p, c_int, c_int]),
    "tj3Get": (c_int, [c_void_p, c_int]),
    "tj3DecompressHeader": (c_int, [c_void_p, c_void_p, c_size_t]),
    "tj3SetCroppingRegion": (c_int, [c_void_p, _Region]),
    "tj3Decompress8": (c_int, [c_void_p, c_void_p, c_size_t, c_void_p, c_int, c_int]),
}


class Decoder:
    """One decompressor; not to be shared by threads at the same time."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._handle = library.tj3Init(_INIT_DECOMPRESS)
        if not self._handle:
            raise MemoryError("tj3Init gave no decompressor")
        weakref.finalize(self, library.tj3Destroy, self._handle)
        library.tj3Set(self._handle, _STOP_ON_WARNING, 1)

    def decode(self, data: Data, pixels: Pixels, *, corner: Corner, size: Size, form: int) -> bool:
        """Fill `pixels` with the part of the image that begins at `corner`; False if the library complains.

        The corner is (top, left), left on a border of MCUs. `size` is what the image must have. `form` is
        `RGB` or `GREY`.
        """
        library, handle = self._library, self._handle
        source = np.frombuffer(data, np.uint8)
        address, length = source.ctypes.data, source.size
        if library.tj3DecompressHeader(handle, address, length):
            return False
        if (library.tj3Get(handle, _HEIGHT), library.tj3Get(handle, _WIDTH)) != size:
            return False
        region = _Region(corner[1], corner[0], pixels.shape[1], pixels.shape[0])
        if library.tj3SetCroppingRegion(handle, region):
            return False
        target = pixels.ctypes.data
        return not library.tj3Decompress8(handle, address, length, target, pixels.strides[0], form)


_of_thread = threading.local()


def decoder() -> Decoder | None:
    """This thread's decoder, freed when the thread ends; None where no library has the calls."""
    found: Decoder | None = getattr(_of_thread, "decoder", None)
    if found is None:
        library = load()
        if library is not None:
            found = _of_thread.decoder = Decoder(library)
    return found


@cache
def load() -> ctypes.CDLL | None:
    """The library of this process, or None where no candidate has the TurboJPEG 3 calls."""
    return load_first(_candidates())


def load_first(names: Iterable[str]) -> ctypes.CDLL | None:
    """The first library of these names or paths that has the TurboJPEG 3 calls, or None."""
    for name in names:
        try:
            return _declare(ctypes.CDLL(name))
        except (OSError, AttributeError):  # not there, or older than TurboJPEG 3
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


def _declare(library: ctypes.CDLL) -> ctypes.CDLL:
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library
