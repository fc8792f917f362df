"""`POST /predict`: from a request over HTTP to a question, and from what became of it to an answer.

A request says how long its body is, and that much is let in or turned away before a byte of it is read.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from headwater.engine.budget import Busy, Gone
from headwater.errors import (
    DatasetNotFound,
    HeadwaterError,
    InboxFull,
    LabelError,
    MissingExtra,
    ModelError,
    ModelNotFound,
    Refused,
    SampleError,
    SampleTooLarge,
    WrongUse,
    error_named,
)
from headwater.store.server.audit import AuditLog
from headwater.store.server.guard import Caller, Guard
from headwater.store.server.ledger import Ledger
from headwater.store.server.predicting import Predictor, Question
from headwater.store.server.talk import Talk
from headwater.store.server.workers import WorkersFailed
from headwater.store.wire.messages import Prediction

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

log = logging.getLogger("headwater")

TYPES = ("image/jpeg", "image/png", "image/webp", "application/octet-stream")
"""What an image may be announced as; what it is, its bytes tell."""
STATUS: tuple[tuple[type[HeadwaterError], int], ...] = (
    (Refused, 403),
    (DatasetNotFound, 404),
    (ModelNotFound, 404),
    (SampleTooLarge, 413),
    (SampleError, 422),
    (MissingExtra, 501),
    (WrongUse, 400),
    (Busy, 503),
    (Gone, 503),
    (WorkersFailed, 503),
    (InboxFull, 507),
    (LabelError, 503),
    (ModelError, 501),
)
"""Error > status; the first that fits. All others, and what was not foreseen, are 500."""
MOST_AT_ONCE = 64
"""Predictions under way, from the head of the request on; and, again so many, requests that are turned away
and whose bodies are still coming."""
_RETRY_SECONDS = 1.0
_FLAGS = {"1": True, "0": False, "true": True, "false": False}
_WORDS = ("dataset", "model", "top", "keep")
_MOST_DISCARDED = 128 << 20


class Posting:
    """Answers requests for predictions about images of `datasets`."""

    def __init__(
        self,
        predictor: Predictor,
        guard: Guard,
        talk: Talk,
        *,
        ledger: Ledger,
        audit: AuditLog,
        datasets: Collection[str],
    ) -> None:
        self._predictor, self._guard, self._talk = predictor, guard, talk
        self._ledger, self._audit, self._datasets = ledger, audit, frozenset(datasets)
        self._under_way, self._turning_away = _Places(MOST_AT_ONCE), _Places(MOST_AT_ONCE)

    async def answer(self, request: Request, caller: Caller) -> Response:
        """Whatever happens, as JSON."""
        body = _Body(request)
        try:
            question = self._read_question(request)
            self._check(caller, question)
        except HeadwaterError as error:
            return await self._turn_away(body, error)
        try:
            with self._under_way:
                found = await self._predict(body, question)
        except Exception as error:
            self._note(caller, question, body.size, type(error).__name__)
            return await self._turn_away(body, error)
        self._note(caller, question, body.size, "ok")
        return _json(msgspec.structs.asdict(found), 200)

    async def _turn_away(self, body: _Body, error: Exception) -> Response:
        """Hear out who still sends, unless there are many: each holds a connection until he has ended."""
        with suppress(Busy), self._turning_away:
            await body.discard()
        return _complain(error)

    async def _predict(self, body: _Body, question: Question) -> Prediction:
        stay = self._talk.begin()
        try:
            if self._talk.draining:  # after it was counted: a drain waits for it, or it is refused
                raise Busy("the store is draining; ask a replica, or wait until it is back")
            body.check(self._predictor.most_bytes)
            place = self._predictor.admit(question)
            try:
                image = await body.read(lambda size: self._predictor.grow(place, size))
                return await asyncio.wrap_future(self._predictor.bring(place, question, image))
            finally:
                self._predictor.leave(place)
        finally:
            stay.end()

    def _read_question(self, request: Request) -> Question:
        """Raises `WrongUse` for what is none."""
        items = request.query_params.multi_items()
        given = dict(items)
        if len(given) < len(items) or set(given) - set(_WORDS):
            raise WrongUse(f"a question has {', '.join(_WORDS)}, each once at most")
        top, keep = given.get("top", "1"), given.get("keep", "0")
        if not (top.isascii() and top.isdigit() and len(top) < 4) or keep not in _FLAGS:
            raise WrongUse(f"top={top[:16]!r} and keep={keep[:16]!r}; top is a number, keep is 0 or 1")
        named = given.get("dataset") or (next(iter(self._datasets)) if len(self._datasets) == 1 else "")
        if not named:
            raise WrongUse("this store has several datasets; name one, as dataset=NAME")
        return Question(named, given.get("model", ""), int(top), _FLAGS[keep])

    def _check(self, caller: Caller, question: Question) -> None:
        """Raises `Refused`, and `DatasetNotFound` for who may know that."""
        try:
            self._guard.check(caller, "read", question.dataset)
            if question.keep:
                self._guard.check(caller, "labels", question.dataset)
        except Refused:
            self._ledger.add("headwater_refused_total", 1, "scope")
            raise
        if question.dataset not in self._datasets:
            raise DatasetNotFound(f"no dataset is called {question.dataset[:64]!r} here")
        self._ledger.add("headwater_requests_total", 1, _action(question))

    def _note(self, caller: Caller, question: Question, size: int, outcome: str) -> None:
        made = {"ok": "kept" if question.keep else "made"}.get(outcome, "failed")
        self._ledger.add("headwater_predictions_total", 1, made)
        action = _action(question)
        self._audit.read(caller, question.dataset, samples=1, bytes=size, outcome=outcome, action=action)


class _Places:
    """So many may be inside at once; entering raises `Busy` when they are. For one thread."""

    def __init__(self, most: int) -> None:
        self._most, self._taken = most, 0

    def __enter__(self) -> None:
        if self._taken >= self._most:
            raise Busy(f"{self._taken} requests are under way, the most there may be; ask again")
        self._taken += 1

    def __exit__(self, *_: object) -> None:
        self._taken -= 1


class _Body:
    """The body of a request, which is read once or thrown away."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._begun = False
        written = request.headers.get("content-length", "")
        self.size = int(written) if written.isascii() and written.isdigit() and len(written) < 20 else 0

    def check(self, most: int) -> None:
        """Raises for one that is not to be read."""
        headers = self._request.headers
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind not in TYPES:
            raise _Unusual(415, f"content-type is {kind[:64]!r}; send one of {', '.join(TYPES)}")
        if not self.size:
            raise _Unusual(411, "content-length is missing, or 0; say how long the image is")
        if self.size > most:
            raise SampleTooLarge(f"{self.size:,} bytes; this store takes images of {most:,}")

    async def read(self, grow: Callable[[int], None]) -> bytes:
        """All of it; `grow` is told of each part. HTTP itself sees to the length that was said."""
        from starlette.requests import ClientDisconnect

        self._begun = True
        parts = []
        try:
            async for part in self._request.stream():
                grow(len(part))
                parts.append(part)
        except ClientDisconnect:
            raise _Unusual(400, "the image did not come whole") from None
        return b"".join(parts)

    async def discard(self) -> None:
        """Read what was not, or who is still sending would be cut off before he sees the answer.

        Not what he would send only if he were asked to, nor what has no end.
        """
        from starlette.requests import ClientDisconnect

        if self._begun or "expect" in self._request.headers or self.size > _MOST_DISCARDED:
            return
        self._begun = True
        with suppress(ClientDisconnect):
            async for _ in self._request.stream():
                pass


class _Unusual(HeadwaterError):
    """A request with a status of its own."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


def _action(question: Question) -> str:
    return "keep" if question.keep else "predict"


def _complain(error: Exception) -> Response:
    headers = {}
    status = _status_of(error)
    if status == 503:
        seconds = getattr(error, "retry_seconds", _RETRY_SECONDS)
        headers["Retry-After"] = str(max(1, math.ceil(seconds)))
    if isinstance(error, HeadwaterError):
        text, kind = getattr(error, "reason", None) or str(error), type(error).__name__
        kind = kind if error_named(kind, text) else "HeadwaterError"
        return _json({"error": text, "kind": kind}, status, headers)
    reference = os.urandom(4).hex()
    log.error("a prediction failed (%s)", reference, exc_info=error)
    text = f"the store failed; its log says why at {reference}"
    return _json({"error": text, "kind": "HeadwaterError"}, status, headers)


def _status_of(error: Exception) -> int:
    if isinstance(error, _Unusual):
        return error.status
    return next((status for kind, status in STATUS if isinstance(error, kind)), 500)


def _json(content: dict[str, object], status: int, headers: dict[str, str] | None = None) -> Response:
    from starlette.responses import Response

    return Response(msgspec.json.encode(content), status, headers, "application/json")
