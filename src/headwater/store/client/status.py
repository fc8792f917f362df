"""What a store says of itself, for `headwater top`."""

from __future__ import annotations

import os
from typing import Any

import msgspec

from headwater.store.client.address import Address, Secret
from headwater.store.client.connection import Connection
from headwater.store.client.link import Link
from headwater.store.client.opening import act
from headwater.store.wire.payloads import Damaged


def status(
    uri: str, *, token: str | os.PathLike[str] | None = None, link: Link | None = None
) -> dict[str, Any]:
    """Version, health, datasets, counters and budget. Raises `Unreachable`, `Refused` or `WrongUse`."""
    connection = Connection(Address.parse(uri), Secret(token), link or Link())
    try:
        return act(connection, "status", read=_read)
    finally:
        connection.close()


def _read(answer: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(answer, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise Damaged(f"something that is no status: {error}") from error
