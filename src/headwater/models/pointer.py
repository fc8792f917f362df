"""Which version of each name is in force: one small file per name, and its replacement is the switch."""

from __future__ import annotations

import logging

import msgspec

from headwater.errors import ModelError, ModelNotFound, ModelRefused
from headwater.models.shelf import Shelf
from headwater.models.version import DIGEST, is_model_name

log = logging.getLogger("headwater")

HISTORY = 16
"""How many versions that were in force are remembered, per name."""


class Pointer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The version in force, and those before it, the last one first."""

    digest: str
    before: tuple[str, ...] = ()

    def moved(self, digest: str) -> Pointer:
        """The pointer after a switch; to where it stands, it does not move."""
        if digest == self.digest:
            return self
        return Pointer(digest, (self.digest, *self.before)[:HISTORY])


class Pointers:
    """The pointers of a registry by name. Writers hold the shelf's lock."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf

    def names(self) -> list[str]:
        """All names, sorted."""
        return self._shelf.names("current")

    def read(self, name: str) -> Pointer:
        """Raises `ModelNotFound` for a name of which nothing is in force."""
        data = self._shelf.read("current", name) if is_model_name(name) else None
        if data is None:
            known = ", ".join(self.names()) or "none"
            raise ModelNotFound(f"no version of {name!r} is in force in {self._shelf.folder}; known: {known}")
        path = self._shelf.path("current", name)
        try:
            found = msgspec.json.decode(data, type=Pointer)
        except (msgspec.MsgspecError, ValueError) as error:
            raise ModelRefused(f"{path} cannot be read: {error}") from error
        if not all(DIGEST.fullmatch(digest) for digest in (found.digest, *found.before)):
            raise ModelRefused(f"{path} names what is no digest")
        return found

    def previous(self, name: str) -> str:
        """What was in force before; raises `ModelError` if nothing was."""
        found = self.read(name)
        if not found.before:
            raise ModelError(f"no version of {name!r} was in force before {found.digest[:12]}")
        return found.before[0]

    def move(self, name: str, digest: str) -> None:
        """Put a version in force; a pointer that is damaged is as good as none."""
        before = self._find(name)
        self._write(name, Pointer(digest) if before is None else before.moved(digest))

    def move_back(self, name: str) -> None:
        """Put in force what was before, as if the last switch had not been."""
        found = self.read(name)
        self._write(name, Pointer(self.previous(name), found.before[1:]))

    def read_all(self) -> dict[str, Pointer | None]:
        """Every name and its pointer; None for one that is damaged, which the log tells of."""
        return {name: self._find(name) for name in self.names()}

    def _find(self, name: str) -> Pointer | None:
        try:
            return self.read(name)
        except ModelNotFound:
            return None
        except ModelRefused as error:
            log.warning("what is in force as %s is not known: %s", name, error)
            return None

    def _write(self, name: str, pointer: Pointer) -> None:
        self._shelf.write("current", name, msgspec.json.encode(pointer))
