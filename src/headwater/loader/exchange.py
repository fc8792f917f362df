"""What ranks tell each other at the end of an epoch: bytes that torch.distributed gathers, no pickles."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from headwater.measure.signals import COLUMNS, Rows

ROWS_AT_ONCE = 1 << 20


def gather(payload: bytes) -> list[bytes]:
    """Everybody's bytes, in order of rank. All ranks must call it."""
    distributed = torch.distributed
    device = torch.device("cuda") if distributed.get_backend() == "nccl" else torch.device("cpu")
    world = distributed.get_world_size()
    sizes = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(world)]
    distributed.all_gather(sizes, torch.tensor([len(payload)], dtype=torch.int64, device=device))
    most = max(int(size) for size in sizes)
    own = torch.zeros(most, dtype=torch.uint8)
    own[: len(payload)] = torch.frombuffer(bytearray(payload or b"\0"), dtype=torch.uint8)[: len(payload)]
    found = [torch.empty(most, dtype=torch.uint8, device=device) for _ in range(world)]
    distributed.all_gather(found, own.to(device))
    return [each.cpu().numpy()[: int(size)].tobytes() for each, size in zip(found, sizes, strict=True)]


def exchange_rows(rows: Rows) -> Iterator[Rows]:
    """The rows of all ranks, rank by rank, a part at a time. All ranks must use it up."""
    parts = iter(_divide(rows))
    for _ in range(max(_counts(-(-len(rows.positions) // ROWS_AT_ONCE)))):
        part = next(islice(parts, 1), Rows(rows.positions[:0]))
        yield from (_decode(each) for each in gather(_encode(part)))


def _counts(own: int) -> Sequence[int]:
    return [int.from_bytes(each, "little") for each in gather(own.to_bytes(8, "little"))]


def mean_of(value: float) -> float:
    """The mean over all ranks, the same on each."""
    return float(np.mean([np.frombuffer(each, "<f8")[0] for each in gather(np.float64(value).tobytes())]))


def _divide(rows: Rows) -> Iterator[Rows]:
    for begin in range(0, len(rows.positions), ROWS_AT_ONCE):
        part = slice(begin, begin + ROWS_AT_ONCE)
        yield Rows(rows.positions[part], {name: values[part] for name, values in rows.columns.items()})


def _encode(rows: Rows) -> bytes:
    columns: dict[str, NDArray[Any]] = {"": rows.positions, **rows.columns}
    header = msgspec.json.encode([(name, list(values.shape)) for name, values in columns.items()])
    body = b"".join(np.ascontiguousarray(values).tobytes() for values in columns.values())
    return len(header).to_bytes(8, "little") + header + body


def _decode(payload: bytes) -> Rows:
    end = 8 + int.from_bytes(payload[:8], "little")
    columns, begin = {}, end
    for name, shape in msgspec.json.decode(payload[8:end]):
        dtype = np.dtype(COLUMNS[name].dtype if name else np.int64)
        count = int(np.prod(shape))
        columns[name] = np.frombuffer(payload, dtype, count, begin).reshape(shape)
        begin += count * dtype.itemsize
    return Rows(columns.pop(""), columns)
