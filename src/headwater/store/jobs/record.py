"""What is known of a job: a small file that is replaced whole, so that it says how far the job has come."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Set
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from headwater.data.atomic import replacing
from headwater.store.wire.jobmessages import FailedSample, JobFacts, SelectionWish

log = logging.getLogger("headwater")

WAITING, RUNNING, DONE, FAILED, STOPPED = STATES = ("waiting", "running", "done", "failed", "stopped")
UNFINISHED = (WAITING, RUNNING)
RELABEL = "relabel"
"""The kind of job that `store.jobs.relabel` does."""
QUANTISE = "quantise"
"""The kind of job that `store.jobs.quantise` does."""
SELECT = "select"
"""The kind of job that `store.jobs.select` does."""
DUPLICATES = "duplicates"
"""The kind of job that `store.jobs.duplicates` does."""
MOST_FAILURES = 100
"""Samples that a record names; all are counted."""
_FINISHED_KEPT = 100
_SUFFIX = ".json"


class Failing(msgspec.Struct, frozen=True):
    """A sample with which a job could do nothing."""

    id: int
    key: str
    reason: str


class Pending(msgspec.Struct, frozen=True):
    """A write that is about to be made, under which key and number, and what will be true once it is."""

    key: str
    chunk: int
    cursor: int
    counts: dict[str, int]
    failures: tuple[Failing, ...] = ()


class JobRecord(msgspec.Struct, frozen=True):
    """One job. `version` is the dataset's, `model` a digest; positions before `cursor` are settled.

    `counts` add up to the samples that were looked at and needed something. `error` says why it failed, or
    what keeps it waiting. Of a job that makes a version, `bound` is what that must reach, `result` its
    digest, empty where it did not, `said` why, and `figures` what was measured; of one that selects,
    `selection` is how, and `result` the digest of what was selected. Of one that groups, `model` may be
    empty, `bound` says how alike its samples are, and `result` is the digest of the groups.
    """

    id: str
    kind: str
    dataset: str
    version: str
    model: str
    by: str
    begun: str
    options: dict[str, bool] = {}
    bound: float = 0.0
    state: str = WAITING
    error: str = ""
    ended: str = ""
    total: int = 0
    cursor: int = 0
    counts: dict[str, int] = {}
    failures: tuple[Failing, ...] = ()
    pending: Pending | None = None
    result: str = ""
    said: str = ""
    figures: dict[str, float] = {}
    selection: SelectionWish | None = None

    @property
    def unfinished(self) -> bool:
        return self.state in UNFINISHED

    def counting(self, more: Mapping[str, int], failures: tuple[Failing, ...]) -> JobRecord:
        """With more counted, and the first failures named."""
        counts = {name: self.counts.get(name, 0) + more.get(name, 0) for name in (*self.counts, *more)}
        named = (*self.failures, *failures)[:MOST_FAILURES]
        return msgspec.structs.replace(self, counts=counts, failures=named)


def without(record: JobRecord, ids: Set[int]) -> JobRecord:
    """The same record, which names none of these samples among those that failed."""
    kept = tuple(one for one in record.failures if one.id not in ids)
    pending = record.pending
    if pending is not None:
        named = tuple(one for one in pending.failures if one.id not in ids)
        pending = msgspec.structs.replace(pending, failures=named)
    return msgspec.structs.replace(record, failures=kept, pending=pending)


def to_facts(record: JobRecord, *, failures: bool = True) -> JobFacts:
    """What is told of a job; `failures` are told once it is over, because who waits looks again and again."""
    named = record.failures if failures and not record.unfinished else ()
    return JobFacts(
        id=record.id,
        kind=record.kind,
        dataset=record.dataset,
        version=record.version,
        model=record.model,
        state=record.state,
        begun=record.begun,
        ended=record.ended,
        error=record.error,
        done=record.cursor,
        total=record.total,
        counts=dict(record.counts),
        failures=[FailedSample(one.id, one.key, one.reason) for one in named],
        result=record.result,
        said=record.said,
        figures=dict(record.figures),
    )


def models_in_use(folder: Path) -> set[str]:
    """Digests of the models that unfinished jobs need, whose records lie in a folder, if that is there."""
    found = [record for path in folder.glob(f"*{_SUFFIX}") if (record := _read(path))]
    return {record.model for record in found if record.unfinished}


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


class JobFolder:
    """The records of a store's jobs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def load(self) -> list[JobRecord]:
        """All of them, the oldest first; of those that are over, the last hundred stay."""
        found = [record for path in self._folder.glob(f"*{_SUFFIX}") if (record := _read(path))]
        ordered = sorted(found, key=lambda record: (record.begun, record.id))
        over = [record for record in ordered if not record.unfinished]
        for record in over[:-_FINISHED_KEPT]:
            self._path(record.id).unlink(missing_ok=True)
        gone = {record.id for record in over[:-_FINISHED_KEPT]}
        return [record for record in ordered if record.id not in gone]

    def save(self, record: JobRecord) -> None:
        """On disk when this returns."""
        with replacing(self._path(record.id)) as file:
            file.write(msgspec.json.encode(record))

    def _path(self, id: str) -> Path:
        return self._folder / f"{id}{_SUFFIX}"


def _read(path: Path) -> JobRecord | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=JobRecord)
    except (OSError, msgspec.MsgspecError) as error:
        log.error("the record of a job, %s, cannot be read and is left alone: %s", path, error)
        return None
