"""What a store says of itself, for `headwater top`."""

from __future__ import annotations

import os
from typing import Any

import msgspec

from headwater.errors import HeadwaterError
from headwater.store.client.address import Address, Secret
from headwater.store.client.connection import Connection
from headwater.store.client.link import Link
from headwater.store.client.opening import act


def status(
    uri: str, *, token: str | os.PathLike[str] | None = None, link: Link | None = None
) -> dict[str, Any]:
    """Version, health, datasets, counters and budget. Raises `Unreachable`, `Refused` or `WrongUse`."""
    connection = Connection(Address.parse(uri), Secret(token), link or Link())
    try:
        found: dict[str, Any] = msgspec.json.decode(act(connection, "status"))
    except msgspec.MsgspecError as error:
        raise HeadwaterError(f"{uri} answered something that is no status: {error}") from error
    finally:
        connection.close()
    return found
