"""The jobs of a store, from afar: begin one, look at it, end it."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import TypeVar

from headwater.errors import HeadwaterError
from headwater.store.client.connection import Connection
from headwater.store.client.opening import act
from headwater.store.wire import messages
from headwater.store.wire.jobmessages import JobFacts, JobList, JobQuery, JobStart, JobStop, SelectionWish
from headwater.store.wire.messages import Message
from headwater.store.wire.payloads import Damaged

M = TypeVar("M", bound=Message)


class JobClient:
    """One store's jobs over one connection. Raises `Unreachable`, `Refused`, or what the store says.

    `bytes_moved` counts the bodies of what was sent and answered.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.bytes_moved = 0

    def start(
        self,
        kind: str,
        *,
        dataset: str,
        model: str,
        opinions: bool = False,
        over_imports: bool = False,
        bound: float = 0.0,
        hold: bool = False,
        selection: SelectionWish | None = None,
        rows: bool = False,
    ) -> JobFacts:
        """Begin a job, or find the unfinished one that does the same; what it takes is in `JobStart`."""
        key = uuid.uuid4().hex
        wish = JobStart(kind, dataset, model, key, opinions, over_imports, bound, hold, selection, rows)
        return self._act("job_start", wish, JobFacts)

    def look(self, ids: Sequence[str] = ()) -> list[JobFacts]:
        """These jobs, or all, the oldest first."""
        return self._act("jobs", JobQuery(list(ids)), JobList).jobs

    def stop(self, ids: Sequence[str]) -> list[JobFacts]:
        """End jobs where they are; those that there are."""
        return self._act("job_stop", JobStop(list(ids)), JobList).jobs

    def close(self) -> None:
        self._connection.close()

    def _act(self, action: str, wish: Message, kind: type[M]) -> M:
        body = messages.encode(wish)
        self.bytes_moved += len(body)
        return act(self._connection, action, body, read=self._reader(kind))

    def _reader(self, kind: type[M]) -> Callable[[bytes], M]:
        def read(answer: bytes) -> M:
            self.bytes_moved += len(answer)
            try:
                found: M = messages.decode(kind, answer)
            except HeadwaterError as error:
                raise Damaged(str(error)) from error
            return found

        return read
