"""How one tensor of a delta is coded: four ways, of which the one with the fewest bytes is taken.

Planes hold the same byte of every value, so signs and exponents, which repeat, lie together. XOR with the old
tensor makes the bits that did not change zero. int8 is for who says that an approximation will do.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headwater.errors import MissingExtra, ModelRefused
from headwater.models.version import MOST_BYTES, TensorFacts, as_bytes

CODINGS = ("raw", "planes", "xor", "int8")
_LEVEL = 9
_MOST_PER_BYTE = 1 << 15
"""A block of zstd takes at least 4 bytes and makes at most 128 KiB (RFC 8878)."""
_STEPS = 127
_ROUNDED = ("float32", "float16")

Bytes = NDArray[np.uint8]


def smallest(before: NDArray[Any] | None, after: NDArray[Any], *, lossy: bool) -> tuple[str, bytes]:
    """The name of the coding that takes the fewest bytes, and these bytes."""
    values = _bytes_of(after)
    found = {"raw": values.tobytes(), "planes": _compress(_to_planes(values, after.itemsize))}
    if before is not None and are_alike(before, after):
        found["xor"] = _compress(_to_planes(values ^ _bytes_of(before), after.itemsize))
        rounded = _round(before, after) if lossy else None
        if rounded is not None:
            found["int8"] = _compress(rounded)
    coding = min(found, key=lambda name: len(found[name]))
    return coding, found[coding]


def check_size(coding: str, payload: memoryview, facts: TensorFacts) -> None:
    """Raise `ModelRefused` unless the payload says that it unpacks to the bytes that the tensor has."""
    if coding not in CODINGS:
        raise ModelRefused(f"coded as {coding[:32]!r}; known: {', '.join(CODINGS)}")
    size = _plain_bytes(coding, facts)
    said = len(payload) if coding == "raw" else _content_size(payload)
    if said != size or size > min(MOST_BYTES, len(payload) * _MOST_PER_BYTE):
        raise ModelRefused(f"{len(payload):,} bytes that unpack to {said:,}, and the tensor has {size:,}")


def unpack(coding: str, payload: memoryview, facts: TensorFacts, before: NDArray[Any] | None) -> NDArray[Any]:
    """The tensor, after `check_size` had nothing to say; raises `ModelRefused`."""
    dtype = np.dtype(facts.dtype)
    if coding == "raw":
        return np.frombuffer(payload, dtype).reshape(facts.shape)
    plain = _decompress(payload, _plain_bytes(coding, facts))
    if coding == "planes":
        return _from_planes(plain, dtype.itemsize).view(dtype).reshape(facts.shape)
    if before is None or (before.dtype.name, before.shape) != (facts.dtype, facts.shape):
        raise ModelRefused("coded as a difference to a tensor of another shape or type than there is")
    if coding == "int8":
        return _unround(before, plain)
    values = _from_planes(plain, dtype.itemsize) ^ _bytes_of(before)
    return values.view(dtype).reshape(facts.shape)


def are_alike(before: NDArray[Any], after: NDArray[Any]) -> bool:
    """Whether both have one type and one shape."""
    return before.dtype == after.dtype and before.shape == after.shape


def largest_change(before: NDArray[Any], after: NDArray[Any]) -> float:
    """The largest difference of two values at one place; infinite for tensors of other shapes."""
    if before.shape != after.shape:
        return math.inf
    with np.errstate(invalid="ignore"):
        difference = np.abs(after.astype(np.float64) - before.astype(np.float64))
    return float(difference.max(initial=0.0))


def _bytes_of(array: NDArray[Any]) -> Bytes:
    return np.frombuffer(as_bytes(array), np.uint8)


def _to_planes(values: Bytes, itemsize: int) -> Bytes:
    return np.ascontiguousarray(values.reshape(-1, itemsize).T).reshape(-1)


def _from_planes(planes: Bytes, itemsize: int) -> Bytes:
    return np.ascontiguousarray(planes.reshape(itemsize, -1).T).reshape(-1)


def _round(before: NDArray[Any], after: NDArray[Any]) -> Bytes | None:
    """Scales, float32, then differences in steps of them, int8; None where that is not to be done.

    Vectors stay exact: they are few bytes, and a bias shifts everything after it.
    """
    if not _is_rounded(after.dtype.name, after.shape):
        return None
    difference = (after.astype(np.float32) - before.astype(np.float32)).reshape(len(after), -1)
    scales = np.abs(difference).max(axis=1, keepdims=True) / np.float32(_STEPS)
    if not np.isfinite(scales).all():
        return None
    steps = np.divide(difference, scales, out=np.zeros_like(difference), where=scales > 0)
    # A scale among the smallest floats is rounded so far down that its steps run over.
    whole = np.clip(np.rint(steps), -_STEPS, _STEPS).astype(np.int8)
    plain = np.concatenate([scales.reshape(-1).view(np.uint8), whole.reshape(-1).view(np.uint8)])
    return plain if np.isfinite(_unround(before, plain)).all() else None


def _unround(before: NDArray[Any], plain: Bytes) -> NDArray[Any]:
    """One multiplication and one addition in float32, each rounded as IEEE says: the same on every CPU."""
    channels = before.shape[0]
    scales = plain[: 4 * channels].view(np.float32).reshape(-1, 1)
    steps = plain[4 * channels :].view(np.int8).reshape(channels, -1)
    with np.errstate(over="ignore", invalid="ignore"):
        values = before.astype(np.float32).reshape(channels, -1) + steps.astype(np.float32) * scales
        made: NDArray[Any] = values.astype(before.dtype).reshape(before.shape)
    return made


def _is_rounded(dtype: str, shape: tuple[int, ...]) -> bool:
    return dtype in _ROUNDED and len(shape) > 1 and math.prod(shape) > 0


def _plain_bytes(coding: str, facts: TensorFacts) -> int:
    if coding != "int8":
        return facts.nbytes
    if not _is_rounded(facts.dtype, facts.shape):
        raise ModelRefused(f"{facts.dtype} {facts.shape} is never rounded to int8")
    return 4 * facts.shape[0] + math.prod(facts.shape)


def _compress(plain: Bytes) -> bytes:
    packed: bytes = _zstandard().ZstdCompressor(level=_LEVEL).compress(plain)
    return packed


def _content_size(payload: memoryview) -> int:
    """What the frame says: `decompress` allocates that, whatever limit it is given."""
    try:
        size: int = _zstandard().get_frame_parameters(payload).content_size
    except _zstandard().ZstdError as error:
        raise ModelRefused(f"no frame of zstd: {error}") from error
    return size


def _decompress(payload: memoryview, size: int) -> Bytes:
    try:
        plain = _zstandard().ZstdDecompressor().decompress(payload, allow_extra_data=False)
    except _zstandard().ZstdError as error:
        raise ModelRefused(f"zstd cannot unpack it: {error}") from error
    if len(plain) != size:
        raise ModelRefused(f"zstd unpacks {len(plain):,} bytes, and the tensor has {size:,}")
    return np.frombuffer(plain, np.uint8)


def _zstandard() -> Any:
    try:
        import zstandard
    except ImportError as error:
        raise MissingExtra(f"deltas need {error.name}; pip install 'headwater[models]'") from error
    return zstandard
