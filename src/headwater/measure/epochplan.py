"""The plan of an epoch: which way each sample was to go, what that was to change, and why.

It is kept beside the logbook of its run, a byte and a bit a sample, and written anew at the end of every
epoch. What the next run begins with is the logbook's profile: a plan knows only the crops of its own epoch.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import Struct
from numpy.typing import NDArray

from headwater.data.index import read_batch, write_batch
from headwater.errors import DatasetError
from headwater.measure.key import Key, record_path
from headwater.measure.stretch import Amounts, SiteRates, with_infinity

log = logging.getLogger("headwater")

_HEADER = b"headwater.plan"


class SitePlan(Struct, frozen=True):
    """What was planned for the samples of one store; rates and reason are those of the last stretch."""

    site: str
    before: Amounts
    after: Amounts
    rates: SiteRates
    reason: str

    def joined(self, later: SitePlan) -> SitePlan:
        """Both as one."""
        before, after = self.before + later.before, self.after + later.after
        return msgspec.structs.replace(later, before=before, after=after)


class _Header(Struct, frozen=True):
    key: Key
    seed: int
    epoch: int
    sites: list[SitePlan]


class EpochPlan:
    """Grows stretch by stretch while its epoch goes on. Columns have a row for each sample of the index."""

    def __init__(self, key: Key, *, seed: int, epoch: int, samples: int) -> None:
        self.key, self.seed, self.epoch = key, seed, epoch
        self.sites: dict[str, SitePlan] = {}
        # zeros take no memory before they are written to
        self._ways, self._planned = np.zeros(samples, np.uint8), np.zeros(samples, np.bool_)

    def __len__(self) -> int:
        return len(self._ways)

    def add(self, part: SitePlan, positions: NDArray[np.int64], ways: NDArray[np.uint8]) -> None:
        """A stretch's plan for one store, and the way of each sample that follows it."""
        before = self.sites.get(part.site)
        self.sites[part.site] = part if before is None else before.joined(part)
        self._ways[positions], self._planned[positions] = ways, True

    def way_of(self, position: int) -> int | None:
        """The sample's way; None where it was not planned: tried a way, or came as a file for a reason."""
        return int(self._ways[position]) if self._planned[position] else None

    def counts(self) -> Sequence[int]:
        """How many samples were planned to go each way."""
        counts: list[int] = np.bincount(self._ways[self._planned], minlength=len(self.key.ways)).tolist()
        return counts

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write to `path` so that a reader sees the old file or the new one."""
        header = msgspec.json.encode(_Header(self.key, self.seed, self.epoch, [*self.sites.values()]))
        schema = pa.schema([("way", pa.uint8())], metadata={_HEADER: header})
        column = pa.array(self._ways, mask=~self._planned)
        write_batch(path, pa.RecordBatch.from_arrays([column], schema=schema))

    def keep(self) -> None:
        """Write to its place in the cache; a folder that cannot be written to costs a warning."""
        path = record_path(self.key, ".plan")
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.save(path)
        except OSError as error:
            log.warning("cannot keep the plan in %s (%s); set HEADWATER_CACHE", path.parent, error.strerror)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> EpochPlan:
        """Raises `DatasetError` for a file that is no plan."""
        try:
            return cls._decode(read_batch(path))
        except (OSError, ValueError, KeyError, TypeError, pa.ArrowException, msgspec.MsgspecError) as error:
            raise DatasetError(
                f"{os.fspath(path)} is no plan that can be used: {error}; delete it, the next run writes one"
            ) from error

    @classmethod
    def _decode(cls, batch: pa.RecordBatch) -> EpochPlan:
        batch.validate(full=True)
        plain = with_infinity(msgspec.json.decode(batch.schema.metadata[_HEADER]))
        header, column = msgspec.convert(plain, _Header), batch.column("way")
        found = cls(header.key, seed=header.seed, epoch=header.epoch, samples=len(column))
        found.sites = {part.site: part for part in header.sites}
        found._planned = column.is_valid().to_numpy(zero_copy_only=False)
        found._ways = column.fill_null(0).to_numpy().astype(np.uint8, casting="safe")
        if found._ways.max(initial=0) >= len(header.key.ways):
            raise ValueError(f"a way of {found._ways.max()}, there are {len(header.key.ways)}")
        return found

    @classmethod
    def find(cls, key: Key, *, seed: int) -> EpochPlan | None:
        """The plan that the last run for this very key has kept; None if there is none, or of another seed.

        Raises `StateMismatch` for one that was made for something else.
        """
        path = record_path(key, ".plan")
        if not path.exists():
            return None
        try:
            found = cls.load(path)
        except DatasetError as error:
            log.warning("%s", error)
            return None
        found.key.check(key, what="plan")
        return found if found.seed == seed else None
