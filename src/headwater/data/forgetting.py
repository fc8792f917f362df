"""What is being forgotten, and what was: a plan in clear until it is done, and a line in an audit for ever.

Both lie in a folder of forgotten samples, see `forgotten`. A plan is what a process that was killed is gone
on with. A line of the audit names samples by their keyed hashes only.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from headwater.data.atomic import replacing, sync_folder
from headwater.data.forgotten import locked
from headwater.errors import DatasetError

P = TypeVar("P")

_PLANS, _AUDIT = "plans", "audit.jsonl"


class Plans:
    """The plans of one folder, by name."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / _PLANS

    def load(self, name: str, kind: type[P]) -> P | None:
        """The plan that was not carried out to its end; raises `DatasetError` for one that cannot be read."""
        return _read(self._path(name), kind)

    def unended(self, kind: type[P]) -> list[P]:
        """All plans that were not carried out to their end; raises `DatasetError` as `load` does.

        Drafts of plans that were never acknowledged are deleted, so nobody may be writing one meanwhile.
        """
        for draft in self._folder.glob(".*"):
            draft.unlink(missing_ok=True)
        return self.all(kind)

    def all(self, kind: type[P]) -> list[P]:
        """The same, while others may be writing."""
        found = (_read(path, kind) for path in sorted(self._folder.glob("[!.]*")))
        return [plan for plan in found if plan is not None]

    def digest(self) -> str:
        """Of all plans; it changes when one of them does."""
        text = hashlib.blake2b(digest_size=16)
        for path in sorted(self._folder.glob("[!.]*")):
            with suppress(FileNotFoundError):  # carried out since
                text.update(path.name.encode() + path.read_bytes())
        return text.hexdigest()

    def keep(self, name: str, plan: object) -> None:
        """On disk when this returns."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with replacing(self._path(name)) as file:
            file.write(msgspec.json.encode(plan))

    def drop(self, name: str) -> None:
        """It is carried out; nothing is left of it."""
        path = self._path(name)
        for left in (path, *self._folder.glob(f".{path.name}.*")):
            left.unlink(missing_ok=True)
        if self._folder.exists():
            sync_folder(self._folder)

    def _path(self, name: str) -> Path:
        return self._folder / hashlib.blake2b(name.encode(), digest_size=16).hexdigest()


def _read(path: Path, kind: type[P]) -> P | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        raise DatasetError(
            f"{path} says what was being forgotten, and cannot be read: {error}; delete it, and forget again"
        ) from error


def _all(lines: Sequence[Mapping[str, Any]], name: str) -> set[str]:
    return {one for line in lines for one in line.get(name, ())}


class Audit:
    """What was forgotten in a folder, the oldest first."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._path = folder, folder / _AUDIT

    @property
    def size(self) -> int:
        """Bytes; it grows with every line."""
        try:
            return self._path.stat().st_size
        except FileNotFoundError:
            return 0

    def lines(self) -> Iterator[dict[str, Any]]:
        """All that can be read."""
        try:
            content = self._path.read_bytes()
        except FileNotFoundError:
            return
        for line in content.splitlines():
            try:
                found = msgspec.json.decode(line)
            except msgspec.MsgspecError:  # torn by a power cut
                continue
            if isinstance(found, dict):
                yield found

    def note(self, hashes: Sequence[str], facts: Mapping[str, Any]) -> bool:
        """Add a line, on disk when this returns, unless it would say nothing new.

        That is so if all these hashes stand in lines already, and in those all versions of models that the
        facts have as `sealed`: a second request may seal what the first one left.
        """
        with locked(self._folder):
            mine = [line for line in self.lines() if not set(hashes).isdisjoint(line.get("hashes", ()))]
            known, sealed = _all(mine, "hashes"), _all(mine, "sealed")
            if known.issuperset(hashes) and sealed.issuperset(facts.get("sealed", ())):
                return False
            now = datetime.now(UTC).isoformat(timespec="milliseconds")
            line = msgspec.json.encode({"time": now, **facts, "hashes": sorted(hashes)})
            handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            with os.fdopen(handle, "r+b") as file:
                size = file.seek(0, os.SEEK_END)
                torn = size and os.pread(handle, 1, size - 1) != b"\n"
                file.write((b"\n" if torn else b"") + line + b"\n")
                file.flush()
                os.fsync(file.fileno())
            sync_folder(self._folder)
        return True
