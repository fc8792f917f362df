"""What each address served when it was last opened, so that a replica that is away now is known as one.

An address that does not answer could be a replica, or hold samples that no other store has: only what was
seen before tells, and to train on half of the data without a word would be worse than an error.
"""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path

import msgspec

from headwater.data.atomic import replacing
from headwater.data.indexcache import cache_folder
from headwater.store.client.address import Address

log = logging.getLogger("headwater")


class Seen(msgspec.Struct, frozen=True):
    """A dataset's name at the store, and its version."""

    address: str
    name: str
    version: str


def remember(address: Address, name: str, version: str) -> None:
    """Keep it for the next time; a cache that cannot be written to costs a warning."""
    path = _path(address)
    content = msgspec.json.encode(Seen(str(address), name, version))
    try:
        if path.exists() and path.read_bytes() == content:
            return
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with replacing(path) as file:
            file.write(content)
    except OSError as error:
        log.warning("cannot remember %s in %s: %s", address, path.parent, error.strerror)


def recall(address: Address) -> Seen | None:
    """What the address served when it was last opened from here."""
    try:
        seen = msgspec.json.decode(_path(address).read_bytes(), type=Seen)
    except (OSError, msgspec.MsgspecError):
        return None
    return seen if seen.address == str(address) else None


def _path(address: Address) -> Path:
    digest = hashlib.blake2b(str(address).encode(), digest_size=16).hexdigest()
    return cache_folder() / "stores" / f"{digest}.json"
