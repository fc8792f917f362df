"""Versions that are not to be used any more, because they were trained on a sample that is to be forgotten.

A seal is a small file by the version's digest. It outlives the version: who has a copy cannot bring it back.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime

import msgspec

from headwater.errors import ModelRefused
from headwater.models.shelf import Shelf

JOURNALS = "journals"
"""Where journals of training runs lie, beside the versions that came of them."""


class Seal(msgspec.Struct, frozen=True):
    """When a version was sealed."""

    time: str


class Seals:
    """The seals of a registry. Writers hold the shelf's lock."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf

    def __contains__(self, digest: str) -> bool:
        return self._shelf.path("sealed", digest).exists()

    def digests(self) -> set[str]:
        """Of all versions that are sealed, here or not."""
        return set(self._shelf.names("sealed"))

    def put(self, digests: Collection[str]) -> list[str]:
        """Seal versions, and remove their journals and the deltas from and to them; those that are new."""
        fresh = [digest for digest in digests if digest not in self]
        for digest in fresh:
            now = datetime.now(UTC).isoformat(timespec="milliseconds")
            self._shelf.write("sealed", digest, msgspec.json.encode(Seal(now)))
        for digest in digests:
            for journal in (self._shelf.folder / JOURNALS).glob(f"*{digest}.*"):
                journal.unlink(missing_ok=True)
        for name in self._shelf.names("deltas"):
            if not set(name.split("-")).isdisjoint(digests):
                self._shelf.remove("deltas", name)
        return fresh

    def refuse(self, digest: str) -> None:
        """Raise `ModelRefused` for a version that is sealed."""
        if digest in self:
            raise ModelRefused(
                f"version {digest[:12]} is sealed: a sample that it was trained on has been forgotten since; "
                "use the version that came of that, or train another"
            )
