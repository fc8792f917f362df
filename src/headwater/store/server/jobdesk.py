"""What a store answers about its jobs: which there are, beginning one, ending one; and where they work."""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from headwater.engine.budget import Busy
from headwater.engine.crew import Crew
from headwater.engine.inference import Extraction
from headwater.errors import (
    DatasetNotFound,
    DatasetStale,
    HeadwaterError,
    LabelError,
    LabelRefused,
    Refused,
    Unreachable,
    WrongUse,
)
from headwater.models.version import ModelVersion
from headwater.store.features import OWN, Variation
from headwater.store.jobs.duplicates import (
    ROWS,
    ByFeatures,
    ByPictures,
    Gallery,
    Look,
    check_bound,
    find_groups,
)
from headwater.store.jobs.quantise import HOLD, Kiln, quantise
from headwater.store.jobs.record import (
    DUPLICATES,
    QUANTISE,
    RELABEL,
    SELECT,
    JobFolder,
    JobRecord,
    models_in_use,
    now,
    to_facts,
)
from headwater.store.jobs.relabel import Workplace, relabel
from headwater.store.jobs.runner import Jobs, Paused, Running
from headwater.store.jobs.select import Sieve, check_wish, select
from headwater.store.jobs.selections import Kept, Selections
from headwater.store.server.crops import Tray
from headwater.store.server.decoding import Asker
from headwater.store.server.desk import Desk
from headwater.store.server.engines import AT_ONCE
from headwater.store.server.guard import Caller
from headwater.store.server.state import State
from headwater.store.server.studios import Studio, Studios
from headwater.store.server.talk import Answer
from headwater.store.server.workers import WorkersFailed
from headwater.store.wire import messages
from headwater.store.wire.jobmessages import JobFacts, JobList, JobQuery, JobStart, JobStop
from headwater.store.wire.messages import Message

log = logging.getLogger("headwater")

M = TypeVar("M", bound=Message)

_ITSELF = "the store"
_SCOPE = "jobs"
_FURTHER_SCOPES = {RELABEL: ("labels",), QUANTISE: ("models",), SELECT: ("read",), DUPLICATES: ("read",)}
"""What a kind of job takes beside that: it writes labels, puts a model in force, or tells of samples."""
_PRIORITIES = {SELECT: "select", DUPLICATES: "select"}
_PRIORITY = "relabel"
_END_SECONDS = 5.0


class JobDesk:
    """The jobs of a store. Safe to use from many threads. Without a state there are none.

    `with` begins and ends its thread; jobs that were unfinished when the last process ended go on.
    """

    def __init__(self, state: State | None, desk: Desk, studios: Studios) -> None:
        self._state, self._desk, self._studios = state, desk, studios
        threads = math.ceil(desk.budget.cores)
        self._crew, self._selecting = Crew(threads, threads + 1), Crew(threads, threads + 1)
        self._jobs = None if state is None else self._open_jobs(state)

    def _open_jobs(self, state: State) -> Jobs:
        kinds = {RELABEL: self._relabel, QUANTISE: self._quantise}
        # somebody waits for these: they do not stand behind a relabel of hours
        waited = {SELECT: self._select, DUPLICATES: self._group}
        return Jobs(JobFolder(state.subfolder("jobs")), {**kinds, **waited}, apart=tuple(waited))

    def __enter__(self) -> JobDesk:
        if self._jobs is not None:
            self._jobs.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._jobs is not None:
            self._jobs.close()
        self._crew.close()
        self._selecting.close()

    @property
    def answers(self) -> Mapping[str, Answer]:
        """Action > what answers it."""
        return {
            "jobs": self._answer(JobQuery, self._list),
            "job_start": self._answer(JobStart, self._start),
            "job_stop": self._answer(JobStop, self._stop),
        }

    @property
    def unfinished(self) -> int:
        """Jobs that wait or run."""
        return 0 if self._jobs is None else self._jobs.unfinished

    def selection(self, job: str) -> Kept:
        """What a job has selected; raises `WrongUse` where that is not, or no longer, kept."""
        if self._state is None:
            raise WrongUse("this store keeps no jobs; start it with --state FOLDER")
        return selections_of(self._state).get(job)

    def withdraw(self, model: str) -> list[str]:
        """End the jobs that label with a version; their ids."""
        if self._jobs is None:
            return []
        using = [job for job in self._jobs.list() if job.kind == RELABEL and job.model == model]
        return [self._jobs.stop(job.id).id for job in using if job.unfinished]

    def forget(self, dataset: str, ids: Collection[int]) -> dict[str, int]:
        """Forget what jobs have kept of samples of a dataset; how many `selections` and `jobs` that were.

        Raises `Busy` where a job of the dataset that was told to end is still at it.
        """
        assert self._state is not None
        if not self.jobs.end(dataset, _END_SECONDS):
            raise Busy(f"a job is still at work on {dataset!r}; ask again")
        known = {store.index.version for store in list(self._desk.datasets.values())}
        selected = selections_of(self._state).forget(dataset, known)
        return {"selections": selected, "jobs": self.jobs.forget(dataset, ids)}

    @property
    def jobs(self) -> Jobs:
        assert self._jobs is not None
        return self._jobs

    def _answer(self, kind: type[M], answer: Callable[[M, Caller], Message]) -> Answer:
        def run(body: bytes, caller: Caller) -> bytes:
            asked: M = messages.decode(kind, body)
            if self._state is None:
                raise WrongUse("this store keeps no jobs; start it with --state FOLDER")
            try:
                return messages.encode(answer(asked, caller))
            except HeadwaterError as error:
                raise self._state.hide(error) from error

        return run

    def _list(self, query: JobQuery, caller: Caller) -> JobList:
        wanted = set(query.ids)
        seen = [record for record in self.jobs.list() if caller.may(_SCOPE, record.dataset)]
        return JobList(
            [to_facts(record, failures=bool(wanted)) for record in seen if not wanted or record.id in wanted]
        )

    def _start(self, asked: JobStart, caller: Caller) -> JobFacts:
        _check(caller, asked.dataset, *_FURTHER_SCOPES.get(asked.kind, ()))
        if asked.dataset not in self._desk.datasets:
            raise DatasetNotFound(f"no dataset is called {asked.dataset!r} here")
        index = self._desk.datasets[asked.dataset].index
        assert self._state is not None
        named = asked.model or asked.kind != DUPLICATES  # which needs none, if it goes by pictures
        model = self._state.registry.choose(asked.model).digest if named else ""
        if asked.kind == SELECT:
            check_wish(asked.selection)
        if asked.kind == DUPLICATES:
            check_bound(model, asked.bound)
        if asked.kind == RELABEL:
            # A database that is away is waited for; one that cannot be opened at all is told of now.
            with suppress(Unreachable):
                _ = self._state.labels
        record = JobRecord(
            id=_id_of(asked, caller),
            kind=asked.kind,
            dataset=asked.dataset,
            version=index.version,
            model=model,
            by=caller.name,
            begun=now(),
            options=_options(asked),
            bound=asked.bound,
            total=len(index),
            selection=asked.selection if asked.kind == SELECT else None,
        )
        return to_facts(self.jobs.add(record))

    def _stop(self, asked: JobStop, caller: Caller) -> JobList:
        """Those of the jobs that there are, as they stand then."""
        wanted = set(asked.ids)
        seen = [record for record in self.jobs.list() if record.id in wanted]
        for record in seen:
            _check(caller, record.dataset)
        return JobList([to_facts(self.jobs.stop(record.id)) for record in seen])

    def _relabel(self, running: Running) -> None:
        self._do(running, lambda: relabel(self._workplace(running), running))

    def _quantise(self, running: Running) -> None:
        self._do(running, lambda: quantise(self._kiln(running), running))

    def _select(self, running: Running) -> None:
        trays: list[Tray] = []
        try:
            self._do(running, lambda: select(self._sieve(running, trays), running))
        finally:
            for tray in trays if not running.record.result else ():
                tray.drop()  # nobody will ask for them

    def _group(self, running: Running) -> None:
        self._do(running, lambda: find_groups(self._gallery(running), running))

    def _do(self, running: Running, work: Callable[[], None]) -> None:
        """Raises `Paused` for what passes, and errors without where the store's folder lies."""
        assert self._state is not None
        record = running.record
        if record.dataset not in self._desk.datasets:
            raise DatasetNotFound(f"dataset {record.dataset!r} is no longer served here")
        try:
            work()
        except (WorkersFailed, Unreachable) as error:
            raise Paused(_away(error)) from error
        except LabelError as error:
            if isinstance(error, LabelRefused):
                raise
            raise Paused(str(self._state.hide(error))) from error  # locked, or its disk is full
        except HeadwaterError as error:
            raise self._state.hide(error) from error

    def _workplace(self, running: Running) -> Workplace:
        assert self._state is not None
        record = running.record
        asker = _asker(running)
        return Workplace(
            dataset=record.dataset,
            index=self._desk.datasets[record.dataset].index,
            labels=self._state.labels,
            registry=self._state.registry,
            features=lambda version: self._studio(record, version).kept(),
            extraction=lambda version: self._studio(record, version).extraction(asker, self._crew),
            counted=lambda counts: self._count("headwater_labels_total", counts),
        )

    def _kiln(self, running: Running) -> Kiln:
        assert self._state is not None
        record, registry = running.record, self._state.registry
        asker = _asker(running)
        studio = self._studio(record, registry.version(record.model))
        layers = studio.engines.borrow(studio.version, asker)
        return Kiln(
            dataset=record.dataset,
            index=studio.store.index,
            registry=registry,
            extraction=lambda album: replace(studio.extraction(asker), extractor=album),
            turn=lambda: studio.engines.turn(AT_ONCE * layers.seconds, asker, memory=0),
        )

    def _sieve(self, running: Running, trays: list[Tray]) -> Sieve:
        """What is held of its samples is in `trays`, once there is any."""
        assert self._state is not None
        record, state, asker = running.record, self._state, _asker(running)

        def extraction(version: ModelVersion, variation: Variation) -> Extraction:
            studio = self._studio(record, version, variation)
            tray = None if variation.is_own else studio.tray()
            trays.extend(() if tray is None else (tray,))
            prints = self._studios.fingerprints(record.dataset)
            return studio.extraction(asker, self._selecting, prints=prints, tray=tray)

        def settle(chosen: NDArray[np.int64]) -> None:
            self._count("headwater_crops_total", {"held": sum(tray.keep(chosen) for tray in trays)})

        return Sieve(
            dataset=record.dataset,
            index=self._desk.datasets[record.dataset].index,
            registry=state.registry,
            selections=selections_of(state),
            features=lambda version: self._studio(record, version).kept(),
            extraction=extraction,
            settle=settle,
            turn=lambda seconds: self._studios.engines.turn(seconds, asker, memory=0),
            spend=lambda seconds: self._studios.engines.spend(seconds, asker),
            in_use=lambda: models_in_use(state.subfolder("jobs")),
            counted=lambda counts: self._count("headwater_selected_total", counts),
            loads=lambda: self._desk.loads.of(self._desk.datasets[record.dataset].index),
        )

    def _gallery(self, running: Running) -> Gallery:
        assert self._state is not None
        record, asker = running.record, _asker(running)
        return Gallery(
            dataset=record.dataset,
            index=self._desk.datasets[record.dataset].index,
            look=self._look(record, asker),
            selections=selections_of(self._state),
            spend=lambda seconds: self._studios.engines.spend(seconds, asker),
        )

    def _look(self, record: JobRecord, asker: Asker) -> Look:
        assert self._state is not None
        index = self._desk.datasets[record.dataset].index
        if record.model:
            studio = self._studio(record, self._state.registry.version(record.model))
            return ByFeatures(index, studio.extraction(asker, self._selecting), record.bound, studio.kept())
        prints = self._studios.fingerprinting(record.dataset, asker, self._selecting)
        return ByPictures(index, prints, int(record.bound), self._studios.fingerprints(record.dataset))

    def _studio(self, record: JobRecord, version: ModelVersion, variation: Variation = OWN) -> Studio:
        """Raises `DatasetStale`: an inbox that is sealed meanwhile has another version."""
        studio = self._studios.open(record.dataset, version, variation)
        if studio.store.index.version != record.version:
            raise DatasetStale(f"dataset {record.dataset!r} has another version by now; start another job")
        return studio

    def _count(self, metric: str, counts: Mapping[str, int]) -> None:
        for name, count in counts.items():
            self._desk.ledger.add(metric, count, name)


def selections_of(state: State) -> Selections:
    """What the jobs of a store have selected."""
    return Selections(state.subfolder("selections"))


def _asker(running: Running) -> Asker:
    record = running.record
    return Asker(_ITSELF, record.id, _PRIORITIES.get(record.kind, _PRIORITY), running.over)


def _away(error: HeadwaterError) -> str:
    """What is told of something that does not answer: not where it is."""
    if not isinstance(error, Unreachable):
        return str(error)
    log.warning("a job waits: %s", error)
    return "the label database, or the data, does not answer; the store's log says more"


def _check(caller: Caller, dataset: str, *further: str) -> None:
    for scope in (_SCOPE, *further):
        if not caller.may(scope):
            raise Refused(f"token {caller.name!r} lacks scope {scope!r}; ask for a token that has it")
    if not caller.may(_SCOPE, dataset):
        raise Refused(f"token {caller.name!r} is not good for dataset {dataset[:64]!r}; ask for one that is")


def _options(asked: JobStart) -> dict[str, bool]:
    """What a job of this kind can be told."""
    if asked.kind == QUANTISE:
        return {HOLD: asked.hold}
    if asked.kind == DUPLICATES:
        return {ROWS: asked.rows}
    if asked.kind == SELECT:
        return {}
    return {"opinions": asked.opinions, "over_imports": asked.over_imports}


def _id_of(asked: JobStart, caller: Caller) -> str:
    """The same for the same wish of the same caller, sent again."""
    content = "\n".join([caller.name, asked.kind, asked.dataset, asked.model, asked.key])
    return hashlib.blake2b(content.encode(), digest_size=8).hexdigest()
