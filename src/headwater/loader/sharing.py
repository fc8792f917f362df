"""What one rank has found out, told to all: bytes that torch.distributed sends, no pickles."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from dataclasses import replace

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from headwater.errors import HeadwaterError
from headwater.loader.exchange import gather
from headwater.select.selection import Selection

log = logging.getLogger("headwater")


class Verdict(msgspec.Struct, frozen=True):
    """What the first rank says of an epoch: ids with weights, or none that are new, or why it all ends.

    `model` is the version of the proxy that they were chosen with, `run` what stores know the run by.
    """

    ids: NDArray[np.int64] | None = None
    weights: NDArray[np.float32] | None = None
    reason: str = ""
    dropped: str = ""
    model: str = ""
    run: str = ""


class _Header(msgspec.Struct, frozen=True):
    """`count` is how many ids follow, -1 for none that are new."""

    count: int
    reason: str
    dropped: str
    model: str = ""
    run: str = ""
    error: str = ""


def share(find: Callable[[], Verdict], ranks: Callable[[], tuple[int, int]]) -> Verdict:
    """What `find` says on the first rank; all must call it. What it raises there, all raise."""
    rank, world = ranks()
    distributed = torch.distributed
    if world == 1 or not (distributed.is_available() and distributed.is_initialized()):
        return find()
    if rank:
        return _decode(_broadcast(None))
    try:
        found = find()
    except Exception as error:
        _broadcast(_encode(Verdict(), error=f"{type(error).__name__}: {error}"))
        raise
    _broadcast(_encode(found))
    return found


def agree(selection: Selection, ranks: Callable[[], tuple[int, int]]) -> Selection:
    """What all ranks go by: the first one's samples and weights, where another came to others.

    Each selects for itself, of the same table, and kinds of CPU may decide what is nearly equal otherwise;
    ranks that visit different samples may wait for each other for ever. All must call it.
    """
    content = hashlib.blake2b(selection.places.tobytes(), digest_size=16)
    content.update(selection.weights.tobytes())
    if len(set(gather(content.digest()))) == 1:
        return selection
    log.warning("ranks selected differently for epoch %d; all take what the first one did", selection.epoch)
    found = share(lambda: Verdict(selection.places, selection.weights, selection.reason), ranks)
    assert found.ids is not None
    assert found.weights is not None
    return replace(selection, places=found.ids.copy(), weights=found.weights.copy(), reason=found.reason)


def _encode(verdict: Verdict, *, error: str = "") -> bytes:
    ids, weights = verdict.ids, verdict.weights
    count = -1 if ids is None else len(ids)
    header = _Header(count, verdict.reason, verdict.dropped, verdict.model, verdict.run, error)
    written = msgspec.json.encode(header)
    body = b"" if ids is None or weights is None else ids.tobytes() + weights.tobytes()
    return len(written).to_bytes(8, "little") + written + body


def _decode(data: bytes) -> Verdict:
    end = 8 + int.from_bytes(data[:8], "little")
    header = msgspec.json.decode(data[8:end], type=_Header)
    if header.error:
        raise HeadwaterError(f"the first rank could not select: {header.error}")
    if header.count < 0:
        return Verdict(reason=header.reason, dropped=header.dropped)
    ids = np.frombuffer(data, np.int64, header.count, end)
    weights = np.frombuffer(data, np.float32, header.count, end + ids.nbytes)
    return Verdict(ids, weights, header.reason, header.dropped, header.model, header.run)


def _broadcast(payload: bytes | None) -> bytes:
    """The first rank's bytes."""
    distributed = torch.distributed
    device = torch.device("cuda") if distributed.get_backend() == "nccl" else torch.device("cpu")
    size = torch.tensor([0 if payload is None else len(payload)], dtype=torch.int64, device=device)
    distributed.broadcast(size, 0)
    if payload is None:
        data = torch.empty(int(size), dtype=torch.uint8, device=device)
    else:
        data = torch.frombuffer(bytearray(payload), dtype=torch.uint8).to(device)
    distributed.broadcast(data, 0)
    return data.cpu().numpy().tobytes()
