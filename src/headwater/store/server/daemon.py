"""The store as a process: put together, announced, drained on SIGTERM."""

from __future__ import annotations

import logging
import math
import os
import signal
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from types import FrameType
from typing import Any

import pyarrow as pa

from headwater.data.forgotten import Forgotten
from headwater.data.sources import SourceOptions, open_source
from headwater.engine.budget import Cores, Turnstile
from headwater.errors import HeadwaterError, WrongUse
from headwater.store.local import LocalStore
from headwater.store.server.audit import AuditLog
from headwater.store.server.config import ServeConfig, split_address
from headwater.store.server.crops import SHARE as CROPS_SHARE
from headwater.store.server.crops import Crops
from headwater.store.server.desk import Desk
from headwater.store.server.features import FeatureDesk
from headwater.store.server.forgetdesk import Belongings, ForgetDesk, leave_out_begun
from headwater.store.server.guard import ANONYMOUS, Caller, Guard
from headwater.store.server.http import HttpServer
from headwater.store.server.jobdesk import JobDesk
from headwater.store.server.keeping import Keeper
from headwater.store.server.labeldesk import LabelDesk
from headwater.store.server.ledger import Ledger
from headwater.store.server.modeldesk import ModelDesk
from headwater.store.server.pacing import Pacing
from headwater.store.server.posting import Posting
from headwater.store.server.predicting import Predictor
from headwater.store.server.prefix import Prefix
from headwater.store.server.selected import SelectionDesk
from headwater.store.server.sending import Sending, hang_up
from headwater.store.server.service import Service
from headwater.store.server.state import FORGOTTEN, State
from headwater.store.server.studios import Studios
from headwater.store.server.talk import Talk
from headwater.store.server.tls import TlsFiles, check_exposure
from headwater.store.server.tokens import Tokens
from headwater.store.server.workers import Workers
from headwater.store.wire.messages import SCOPE_OF_ACTION

log = logging.getLogger("headwater")

_TICK_SECONDS = 2.0
_LAST_SECONDS = 1.0
_ITSELF = Caller(ANONYMOUS, "")


@dataclass(frozen=True)
class Serving:
    """What is being served, and where; a dataset is (samples, version, bytes), `state` a folder."""

    address: str
    http: str | None
    datasets: Mapping[str, tuple[int, str, int]]
    state: str | None = None


def serve(config: ServeConfig, *, ready: Callable[[Serving], None]) -> None:
    """Serve until SIGTERM or SIGINT, then finish what is under way. Raises `Refused` for an open door.

    A second signal ends it at once. Must be called in the main thread.
    """
    stop = _Stop()
    with Daemon(config) as daemon, stop:
        ready(daemon.serving)
        while not stop.asked.wait(_TICK_SECONDS):
            daemon.tick()
        daemon.drain()


class Daemon:
    """All parts of a store. `with` starts and ends them; safe to use in any thread."""

    def __init__(self, config: ServeConfig) -> None:
        self._config = config
        self._tls = TlsFiles(config.tls_cert, config.tls_key, config.tls_client_ca)
        self._tls.check()
        self._tokens = Tokens.load(config.token_file, os.environ)
        for address in (config.listen, *([config.http] if config.http else [])):
            host, _ = split_address(address)
            check_exposure(host, tls=bool(self._tls), tokens=bool(self._tokens), plaintext=config.plaintext)
        self._ending = ExitStack()
        self._state: State | None = None
        self._carried: dict[str, int] = {}
        self._inboxes: dict[str, LocalStore] = {}

    def __enter__(self) -> Daemon:
        with ExitStack() as stack:
            self._start(stack)
            self._ending = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.close()

    def tick(self) -> None:
        """What is done now and then."""
        self._audit.flush()
        self._talk.clients()
        self._ledger.add("headwater_unread_total", self._sending.end_late(self._service.port))
        self._carry("headwater_worker_restarts_total", self._workers.restarts)
        self._carry("headwater_audit_lost_total", self._audit.lost)

    def _carry(self, name: str, total: int) -> None:
        """Add to a counter what somebody else has counted since the last time."""
        self._ledger.add(name, total - self._carried.get(name, 0))
        self._carried[name] = total

    def drain(self) -> None:
        """Take nothing new and let what is under way end, for as long as the configuration says."""
        self._audit.event("drain", _ITSELF)
        if not self._talk.drain(self._config.drain_seconds):
            log.warning(
                "requests were still under way after %g s; they are cut off", self._config.drain_seconds
            )

    def _start(self, stack: ExitStack) -> None:
        config = self._config
        budget = config.budget()
        if config.state is not None:
            self._state = stack.enter_context(State(config.state, labels=config.labels))
            leave_out_begun(self._state)
        self._stores = stores = self._open_all(stack)
        self._keeper = keeper = Keeper(
            self._state, list(config.datasets), self._publish, most_bytes=config.inbox_bytes
        )
        stack.callback(self._close_inboxes)
        self._add_inboxes()
        self._ledger = Ledger()
        self._audit = AuditLog(config.audit_log)
        stack.callback(self._audit.close)
        self._workers = Workers(math.ceil(budget.cores), limits=config.limits)
        stack.callback(self._workers.close)
        self._start_workers()
        turnstile = Turnstile(budget.requests, budget.memory, halve_slots=True)
        cores = Cores(budget.cores)
        crops = Crops(int(budget.memory * CROPS_SHARE))
        prefix = Prefix(self._workers, cores, self._ledger, crops=crops)
        desk = Desk(stores, budget, turnstile, Pacing(cores), prefix, self._ledger, config.limits)
        models = ModelDesk(
            self._state,
            self._ledger,
            most_bytes=config.model_bytes,
            withdraw=lambda version: self._jobs.withdraw(version),
        )
        self._studios = studios = Studios(
            self._state,
            desk,
            cores,
            feature_bytes=config.feature_bytes,
            image_bytes=config.image_bytes,
        )
        stack.callback(studios.close)
        self._jobs = JobDesk(self._state, desk, studios)
        forgetting = self._forget_desk(desk)
        self._talk = Talk(
            desk,
            self._workers,
            {**models.answers, **self._jobs.answers, **keeper.answers, **forgetting.answers},
        )
        forgetting.finish()
        self._predictor = Predictor(
            self._state, desk, studios, keeper, bound_seconds=config.predict_milliseconds / 1000
        )
        stack.enter_context(self._predictor)
        self._watch(desk, cores)
        guard = Guard(self._tokens, open_to_all=not self._tokens, audit=self._audit)
        self._sending = Sending(config.send_seconds)
        self._service = service = self._listen(
            desk,
            guard,
            features=FeatureDesk(desk, studios.answer),
            labels=LabelDesk(self._state, desk),
            selections=SelectionDesk(desk, self._jobs.selection),
        )
        stack.callback(_shut_down, service)
        http = self._listen_http(guard, stack)
        self._talk.http = http or 0
        self.serving = Serving(
            _address("grpc+tls" if self._tls else "grpc", config.listen, service.port),
            None if http is None else _address("https" if self._tls else "http", config.http or "", http),
            {name: _facts(store) for name, store in stores.items()},
            None if config.state is None else os.fspath(config.state),
        )
        stack.enter_context(self._jobs)

    def _open_all(self, stack: ExitStack) -> dict[str, LocalStore]:
        stores = {}
        for name in self._config.datasets:
            stores[name] = self._open(name)
            stack.callback(stores[name].close)
        return stores

    def _open(self, name: str) -> LocalStore:
        """A dataset without what is forgotten of it."""
        if name not in self._config.datasets:
            return self._keeper.reopen(name)
        wanted = self._config.datasets[name]
        options = SourceOptions(
            split=wanted.split,
            image=wanted.image,
            label=wanted.label,
            fields=wanted.fields,
            storage=wanted.storage,
            forgotten=_forgotten(self._state, name),
        )
        uri = wanted.uri if isinstance(wanted.uri, str) else list(wanted.uri)
        return LocalStore(open_source(uri, options=options), fields=wanted.fields)

    def _forget_desk(self, desk: Desk) -> ForgetDesk:
        return ForgetDesk(
            self._state,
            desk,
            Belongings(self._studios, self._jobs, self._workers.release, self._keeper),
            reopen=self._open,
            publish=self._replace,
            may_delete=self._config.may_delete,
        )

    def _replace(self, name: str, store: LocalStore) -> None:
        """Serve a dataset anew; whoever reads from the one before goes on, and lets go of it when he ends."""
        if name in self._inboxes:
            self._publish(name, store)
            return
        self._stores[name] = store
        self._ending.callback(store.close)
        self._talk.serve(name)

    def _add_inboxes(self) -> None:
        """Serve what was kept and sealed; raises `WrongUse` where a dataset has the name of an inbox."""
        for name, store in self._keeper.restore():
            self._inboxes[name] = store
            if name in self._stores:
                raise WrongUse(f"{name!r} is the inbox that the store keeps; serve the dataset as another")
            self._stores[name] = store

    def _publish(self, name: str, store: LocalStore) -> None:
        """Whoever reads from the version before goes on: it opens its files again, and goes when he ends."""
        before = self._inboxes.get(name)
        self._inboxes[name] = self._stores[name] = store
        self._talk.serve(name)
        if before is not None:
            before.close()

    def _close_inboxes(self) -> None:
        self._keeper.close()
        for store in self._inboxes.values():
            store.close()

    def _start_workers(self) -> None:
        try:
            self._workers.start()
        except HeadwaterError as error:
            log.error("%s; samples go out as the files they are", error)

    def _watch(self, desk: Desk, cores: Cores) -> None:
        gauges: dict[str, Callable[[], float]] = {
            "headwater_queue_requests": lambda: desk.turnstile.waiting + desk.pacing.waiting,
            "headwater_active_requests": lambda: desk.turnstile.active,
            "headwater_clients": lambda: self._talk.clients(),
            "headwater_cores_used": lambda: cores.used,
            "headwater_cores_budget": lambda: desk.budget.cores,
            "headwater_memory_bytes": lambda: desk.turnstile.held,
            "headwater_memory_budget_bytes": lambda: desk.budget.memory,
            "headwater_draining": lambda: float(self._talk.draining),
            "headwater_quarantined_samples": lambda: len(self._workers.quarantined),
            "headwater_jobs": lambda: self._jobs.unfinished,
            "headwater_models_loaded_bytes": lambda: self._studios.loaded_bytes,
            "headwater_kept_bytes": lambda: self._studios.kept_bytes,
            "headwater_crops_bytes": lambda: desk.prefix.crops.nbytes,
            "headwater_predict_waiting": lambda: self._predictor.waiting,
            "headwater_inbox_bytes": lambda: self._keeper.unsealed_bytes,
        }
        for name, value in gauges.items():
            self._ledger.watch(name, value)

    def _listen(
        self,
        desk: Desk,
        guard: Guard,
        *,
        features: FeatureDesk,
        labels: LabelDesk,
        selections: SelectionDesk,
    ) -> Service:
        location = _address("grpc+tls" if self._tls else "grpc", self._config.listen, None)
        arguments: dict[str, Any] = dict(self._tls.flight_arguments())
        try:
            return Service(
                location,
                desk,
                self._talk,
                guard,
                features=features,
                labels=labels,
                selections=selections,
                audit=self._audit,
                sending=self._sending,
                **arguments,
            )
        except (pa.ArrowException, OSError) as error:
            raise HeadwaterError(
                f"cannot listen on {self._config.listen}: {error}; is the port taken?"
            ) from error

    def _check_metrics(self, guard: Guard, caller: Caller) -> None:
        """As for the action `status`, which tells the same."""
        guard.check_any(caller, SCOPE_OF_ACTION["status"])
        self._audit.read(caller, "", samples=0, bytes=0, action="metrics")

    def _listen_http(self, guard: Guard, stack: ExitStack) -> int | None:
        if self._config.http is None:
            return None
        server = HttpServer(
            self._config.http,
            identify=guard.identify,
            metrics=self._ledger.prometheus_text,
            draining=lambda: self._talk.draining,
            check=lambda caller: self._check_metrics(guard, caller),
            predict=self._posting(guard).answer,
            tls=self._tls.ssl_context(),
        )
        port = server.start()
        stack.callback(server.close)
        return port

    def _posting(self, guard: Guard) -> Posting:
        return Posting(
            self._predictor,
            guard,
            self._talk,
            ledger=self._ledger,
            audit=self._audit,
            datasets=self._config.datasets,
        )


class _Stop:
    """Turns the first SIGTERM or SIGINT into an event; the second ends the process."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self._before: dict[int, Any] = {}

    def __enter__(self) -> _Stop:
        for number in (signal.SIGTERM, signal.SIGINT):
            self._before[number] = signal.signal(number, self._ask)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.asked.is_set():
            os._exit(1)
        self.asked.set()


def _forgotten(state: State | None, name: str) -> Forgotten | None:
    """A store without a state serves what the user who runs it has not forgotten."""
    return None if state is None else Forgotten(state.folder / FORGOTTEN, name)


def _shut_down(service: Service) -> None:
    """Flight waits for calls under way without end, a stalled client among them: after a second, hang up."""
    ending = threading.Thread(target=service.shutdown, daemon=True)
    ending.start()
    ending.join(_LAST_SECONDS)
    if ending.is_alive():
        hang_up(None, service.port)
        ending.join(_LAST_SECONDS)


def _facts(store: LocalStore) -> tuple[int, str, int]:
    return len(store.index), store.index.version, int(store.index.sizes.sum())


def _address(scheme: str, written: str, port: int | None) -> str:
    host, asked = split_address(written)
    shown = f"[{host}]" if ":" in host else host
    return f"{scheme}://{shown}:{asked if port is None else port}"
