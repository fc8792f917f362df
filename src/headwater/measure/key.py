"""What a run's records were made for: those for another dataset version, pipeline or library are refused."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec import Struct, field

from headwater.data.indexcache import cache_folder
from headwater.data.pipeline import PIXEL_LIBRARIES, library_versions
from headwater.errors import StateMismatch

FORMAT = 1
LIBRARIES = (*PIXEL_LIBRARIES, "imagecodecs", "pyarrow")
"""Those that make pixels, and those that pack them: by their version a way costs other bytes and seconds."""


class Key(Struct, frozen=True):
    """`pipeline` is the hash, which depends on the libraries too; a way is a cut and the name of a codec."""

    dataset: str
    pipeline: str
    policy: str
    ways: list[tuple[int, str]]
    libraries: dict[str, str] = field(default_factory=lambda: library_versions(LIBRARIES))
    format: int = FORMAT

    def check(self, other: Key, *, what: str, steps: str = "") -> None:
        """Raise `StateMismatch` unless a logbook or a plan (`what`) for this key can be used for the other.

        Policies may differ: what one has measured is as true for another. `steps` is the pipeline in words.
        """
        made, again = f"the {what} was made", "run `headwater profile` again"
        if self.dataset != other.dataset:
            raise StateMismatch(
                f"{made} for dataset version {self.dataset}, this is {other.dataset}; {again}"
            )
        if self.libraries != other.libraries:
            theirs, ours = _differing(self.libraries, other.libraries)
            raise StateMismatch(f"{made} with {theirs}, here is {ours}; {again}")
        if self.pipeline != other.pipeline:
            known = f"{steps} ({self.pipeline})" if steps else self.pipeline
            raise StateMismatch(f"{made} for other steps, {known}, than these ({other.pipeline}); {again}")
        if self.ways != other.ways:
            raise StateMismatch(f"{made} for {_list(self.ways)}, possible are {_list(other.ways)}; {again}")


def records_folder() -> Path:
    """Where what runs have found is kept."""
    return cache_folder() / "logbooks"


def record_path(key: Key, suffix: str) -> Path:
    """Where one kind of record of a key is kept."""
    digest = hashlib.blake2b(msgspec.json.encode(key), digest_size=16).hexdigest()
    return records_folder() / f"{digest}{suffix}"


def _differing(first: dict[str, str], second: dict[str, str]) -> tuple[str, str]:
    """The libraries whose versions differ, on both sides."""
    names = [name for name in first | second if first.get(name) != second.get(name)]
    texts = [", ".join(f"{name} {each.get(name, 'absent')}" for name in names) for each in (first, second)]
    return texts[0], texts[1]


def _list(ways: Sequence[tuple[int, str]]) -> str:
    return ", ".join(f"cut {cut}" + ("" if codec == "none" else f" + {codec}") for cut, codec in ways)
