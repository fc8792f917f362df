"""What an operator asks of a store: how it is, and to let samples out of quarantine."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import msgspec

from headwater.store.client.address import Address, Secret
from headwater.store.client.connection import Connection
from headwater.store.client.link import Link
from headwater.store.client.opening import act
from headwater.store.wire import messages
from headwater.store.wire.messages import Release
from headwater.store.wire.payloads import Damaged


def status(
    uri: str, *, token: str | os.PathLike[str] | None = None, link: Link | None = None
) -> dict[str, Any]:
    """Version, health, datasets, quarantine, counters, budget.

    Raises `Unreachable`, `Refused` or `WrongUse`.
    """
    connection = Connection(Address.parse(uri), Secret(token), link or Link())
    try:
        return ask(connection)
    finally:
        connection.close()


def ask(connection: Connection) -> dict[str, Any]:
    """`status` over a connection that is open already."""
    return act(connection, "status", read=_read)


def release(
    uri: str,
    ids: Sequence[int] = (),
    *,
    token: str | os.PathLike[str] | None = None,
    link: Link | None = None,
) -> list[int]:
    """Let these samples be decoded again, or all; which were in quarantine. Raises as `status` does."""
    connection = Connection(Address.parse(uri), Secret(token), link or Link())
    try:
        asked = messages.encode(Release(list(ids)))
        released: list[int] = act(connection, "release", asked, read=_read).get("released", [])
        return released
    finally:
        connection.close()


def _read(answer: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(answer, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise Damaged(f"something that is no answer to it: {error}") from error
