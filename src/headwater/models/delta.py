"""What must be sent to make one version's tensors from another's.

Redistribution by version is NDPipe's idea (ASPLOS 2024). Equal tensors are left out, each other one is coded
in the fewest bytes, without the old one where that is fewer; so a delta is never longer than the whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from numpy.typing import NDArray

from headwater.errors import ModelRefused
from headwater.models.coding import are_alike, check_size, largest_change, smallest, unpack
from headwater.models.version import ModelVersion, TensorFacts, as_bytes, digest_of

Tensors = Mapping[str, NDArray[Any]]

MAGIC = b"HWDELTA1"
MOST_HEADER_BYTES = 16 << 20
_LENGTH = 4
_SEAL = 16


class Entry(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One tensor of a delta: how it is coded, and in how many bytes."""

    name: str
    coding: str
    nbytes: int


def encode(old: Tensors | None, new: Tensors, *, lossy: bool = False) -> bytes:
    """What makes `new` of `old`, or of nothing.

    With `lossy` differences of matrices may be rounded to int8: `apply` then gives tensors near `new`, which
    the sender describes as a version of its own before it sends them. `approximate` has them.
    """
    entries, payloads = [], []
    for name, array in sorted(new.items()):
        before = None if old is None else old.get(name)
        if before is None or not _are_equal(before, array):
            coding, payload = smallest(before, array, lossy=lossy)
            entries.append(Entry(name, coding, len(payload)))
            payloads.append(payload)
    header = msgspec.msgpack.encode(entries)
    body = b"".join([MAGIC, len(header).to_bytes(_LENGTH, "little"), header, *payloads])
    return body + bytes.fromhex(digest_of(body))


def decode(old: Tensors | None, data: bytes, version: ModelVersion) -> dict[str, NDArray[Any]]:
    """All tensors of `version`, each with the digest that its manifest says; else raises `ModelRefused`."""
    tensors = apply(old, data, version.tensors)
    for name, facts in version.tensors.items():
        found = TensorFacts.of(tensors[name])
        if found != facts:
            raise ModelRefused(
                f"tensor {name!r} of version {version.digest[:12]} should have the digest {facts.digest} "
                f"and has {found.digest}; have it sent again"
            )
    return tensors


def apply(old: Tensors | None, data: bytes, facts: Mapping[str, TensorFacts]) -> dict[str, NDArray[Any]]:
    """Tensors of these types and shapes; digests are not looked at. Raises `ModelRefused`.

    Every length is checked before anything of a stated size is allocated.
    """
    old, entries = old or {}, read_entries(data)
    payloads = _cut(entries, memoryview(data))
    for name in facts:
        if name not in payloads and name not in old:
            raise ModelRefused(f"the delta lacks tensor {name!r}, and so does what it is applied to")
    for entry in entries:
        _check(entry, payloads[entry.name], facts)
    made = {entry.name: _make(entry, payloads[entry.name], facts, old) for entry in entries}
    return {name: made[name] if name in made else old[name] for name in facts}


def approximate(old: Tensors, new: Tensors) -> tuple[bytes, dict[str, NDArray[Any]], float]:
    """A lossy delta, what it makes of `old`, and the largest error of that against `new`."""
    data = encode(old, new, lossy=True)
    made = apply(old, data, {name: TensorFacts.of(array) for name, array in new.items()})
    return data, made, max((largest_change(new[name], made[name]) for name in new), default=0.0)


def read_entries(data: bytes) -> tuple[Entry, ...]:
    """The header of a delta that is whole; raises `ModelRefused`."""
    if not is_whole(data):
        raise ModelRefused("the delta is damaged, or none: it does not end with its digest")
    start = len(MAGIC) + _LENGTH
    length = int.from_bytes(data[len(MAGIC) : start], "little")
    rest = len(data) - start - length - _SEAL
    if length > MOST_HEADER_BYTES or rest < 0:
        raise ModelRefused(f"the delta, of {len(data):,} bytes, says that its header has {length:,}")
    try:
        entries = msgspec.msgpack.decode(data[start : start + length], type=tuple[Entry, ...])
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ModelRefused(f"the header of the delta cannot be read: {error}") from error
    if len({entry.name for entry in entries}) != len(entries):
        raise ModelRefused("the delta has two tensors of one name")
    if any(entry.nbytes < 0 for entry in entries) or sum(entry.nbytes for entry in entries) != rest:
        raise ModelRefused("the delta is longer or shorter than its header says")
    return entries


def is_whole(data: bytes) -> bool:
    """Whether it begins as a delta and ends with its own digest."""
    body = memoryview(data)[:-_SEAL]
    return data[: len(MAGIC)] == MAGIC and bytes.fromhex(digest_of(body)) == data[-_SEAL:]


def _are_equal(before: NDArray[Any], after: NDArray[Any]) -> bool:
    """To the bit: a zero of the other sign is another tensor."""
    return are_alike(before, after) and as_bytes(before) == as_bytes(after)


def _cut(entries: Sequence[Entry], data: memoryview) -> dict[str, memoryview]:
    start, payloads = len(data) - _SEAL - sum(entry.nbytes for entry in entries), {}
    for entry in entries:
        payloads[entry.name] = data[start : start + entry.nbytes]
        start += entry.nbytes
    return payloads


def _check(entry: Entry, payload: memoryview, facts: Mapping[str, TensorFacts]) -> None:
    if entry.name not in facts:
        raise ModelRefused(f"the delta has a tensor {entry.name!r}, and the version has none")
    facts[entry.name].check(entry.name)
    try:
        check_size(entry.coding, payload, facts[entry.name])
    except ModelRefused as error:
        raise ModelRefused(f"tensor {entry.name!r}: {error}") from error


def _make(entry: Entry, payload: memoryview, facts: Mapping[str, TensorFacts], old: Tensors) -> NDArray[Any]:
    try:
        return unpack(entry.coding, payload, facts[entry.name], old.get(entry.name))
    except (ModelRefused, ValueError) as error:  # numpy has its own limits on shapes of nothing
        raise ModelRefused(f"tensor {entry.name!r}: {error}") from error
