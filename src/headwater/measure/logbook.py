"""What a run expected of offloading and what it found, as a small JSON file that outlives the run.

A logbook is keyed by what it was made for: see `headwater.measure.key`. A way is the number of steps at the
store and the name of a codec.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from headwater.data.atomic import replacing
from headwater.data.pipeline import Pipeline
from headwater.errors import DatasetError, WrongUse
from headwater.measure.key import FORMAT, Key, record_path, records_folder
from headwater.measure.profile import Seen
from headwater.measure.stretch import Amounts, SiteRates, Stretch, pair_up, with_infinity
from headwater.measure.tally import Files, Histogram, WayTotals, add_up, efficiencies

__all__ = [
    "Amounts",
    "Histogram",
    "Key",
    "Logbook",
    "SiteRates",
    "Stretch",
    "WayTotals",
    "logbook_path",
    "newest",
]

log = logging.getLogger("headwater")

_STRETCHES = 400


class Logbook(Struct):
    """All that `headwater explain` and `headwater plan` need of a run.

    `efficiency` counts offloaded samples by bytes saved per store second; `profile` is what a
    `headwater.measure.profile.Profile` has learnt, as plain data; `steps` is the pipeline's spec. `failure`
    says why planning ended before the run did.
    """

    key: Key
    uri: str
    pipeline_text: str = ""
    steps: list[dict[str, Any]] = []
    seed: int = 0
    stretches: list[Stretch] = []
    totals: list[WayTotals] = []
    efficiency: Histogram = field(default_factory=Histogram)
    profile: dict[str, Any] = {}
    failure: str = ""
    saved_at: str = ""

    def __post_init__(self) -> None:
        self.totals = self.totals or [WayTotals() for _ in self.key.ways]

    @classmethod
    def begin(
        cls,
        pipeline: Pipeline,
        ways: Sequence[tuple[int, str]],
        *,
        dataset: str,
        uri: str,
        policy: str,
        seed: int,
    ) -> Logbook:
        """An empty one for a run over `dataset`, a version, that lies at `uri`."""
        return cls(
            Key(dataset, pipeline.hash, policy, list(ways)),
            uri,
            pipeline_text=str(pipeline),
            steps=pipeline.spec(),
            seed=seed,
        )

    @property
    def policy(self) -> str:
        return self.key.policy

    def add(self, stretch: Stretch) -> None:
        """Note a stretch; when there are many, old ones of one store and phase become one, two by two."""
        self.stretches.append(stretch)
        if len(self.stretches) > _STRETCHES:
            half = _STRETCHES // 2
            self.stretches = [*pair_up(self.stretches[:half]), *self.stretches[half:]]

    def count(
        self, seen: Seen, predicted: NDArray[np.floating[Any]] | None = None, *, files: Files | None = None
    ) -> None:
        """Add up samples by way; `predicted` bytes are not finite where nothing was expected.

        `files` are lengths of the files as far as they can be told, for data whose index has only means.
        """
        add_up(self.totals, seen, predicted, files=files)
        self.efficiency.add(efficiencies(seen, files))

    def save(self, path: str | os.PathLike[str], *, now: datetime | None = None) -> None:
        """Write to `path` so that a reader sees the old file or the new one."""
        self.saved_at = (now or datetime.now(UTC)).isoformat(timespec="seconds")
        with replacing(path) as file:
            file.write(msgspec.json.encode(self))

    def keep(self) -> None:
        """Write to its place in the cache; a folder that cannot be written to costs a warning."""
        path = logbook_path(self.key)
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.save(path)
        except OSError as error:
            log.warning(
                "cannot keep the logbook in %s (%s); set HEADWATER_CACHE", path.parent, error.strerror
            )

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Logbook:
        """Raises `WrongUse` for a file that cannot be read, `DatasetError` for one that is no logbook."""
        name = os.fspath(path)
        try:
            content = Path(path).read_bytes()
        except OSError as error:
            raise WrongUse(f"cannot read {name}: {error.strerror}; check the path") from error
        try:
            return _decode(content)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise DatasetError(
                f"{name} is no logbook that can be used: {error}; delete it, the next run writes a new one"
            ) from error

    def check(self, key: Key) -> None:
        """Raise `StateMismatch` unless the logbook was made for `key`, and say what differs."""
        self.key.check(key, what="logbook", steps=self.pipeline_text)


def logbook_path(key: Key) -> Path:
    """Where the logbook of a key is kept."""
    return record_path(key, ".json")


def newest(*, uri: str = "", dataset: str = "", pipeline: str = "", policy: str = "") -> Logbook | None:
    """The last kept logbook of this dataset version, pipeline and policy, as far as they are given.

    `uri` is the address that the run opened, or one of several, or the beginning of one up to a `/`.
    """
    for found in _kept():
        key = found.key
        pairs = ((dataset, key.dataset), (pipeline, key.pipeline), (policy, found.policy))
        if all(wanted in ("", has) for wanted, has in pairs) and _has_address(found, uri):
            return found
    return None


def _has_address(logbook: Logbook, uri: str) -> bool:
    addresses = (logbook.uri, *logbook.uri.splitlines())
    return not uri or any(each == uri or each.startswith(f"{uri}/") for each in addresses)


def _kept() -> Iterator[Logbook]:
    """All that can be read, the last written first."""
    written = []
    for path in records_folder().glob("*.json"):
        try:
            written.append((path.stat().st_mtime_ns, path))
        except FileNotFoundError:
            continue
    for _, path in sorted(written, reverse=True):
        try:
            yield Logbook.load(path)
        except (DatasetError, WrongUse) as error:
            log.warning("%s", error)


def _decode(content: bytes) -> Logbook:
    plain = msgspec.json.decode(content, type=dict[str, Any])
    plain["stretches"] = with_infinity(plain.get("stretches", []))
    found = msgspec.convert(plain, Logbook)
    if found.key.format != FORMAT:
        raise ValueError(f"format {found.key.format}, this version reads {FORMAT}")
    ways = len(found.key.ways)
    if len(found.totals) != ways or any(len(stretch.ways) != ways for stretch in found.stretches):
        raise ValueError(f"it has {ways} ways, and totals of another number")
    if len(found.efficiency.counts) != len(found.efficiency.edges) + 1:
        raise ValueError("its histogram has not one count more than edges")
    return found
