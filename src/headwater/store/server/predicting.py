"""Predictions for images that are sent to a store: who asks at about the same time is answered together.

A few threads take batches as they become due. A request that cannot expect its answer within the bound is
turned away at once; none waits in a queue without end.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from headwater.data.image.reading import read_header
from headwater.engine.budget import Gone
from headwater.errors import HeadwaterError, InboxFull, ModelError, Unreachable, WrongUse
from headwater.store.prediction import MOST_TOP
from headwater.store.server.batching import Batches, Overloaded, Place
from headwater.store.server.desk import Desk
from headwater.store.server.judging import Judged, Judges
from headwater.store.server.keeping import Keeper, Opinion
from headwater.store.server.shard import Arrival
from headwater.store.server.state import State
from headwater.store.server.studios import Studios
from headwater.store.wire.messages import Prediction

log = logging.getLogger("headwater")

ANSWER_SECONDS = 10.0
"""After which nobody waits any more: a connection lives as long."""
_SUFFIX = {"jpeg": "jpg"}


@dataclass(frozen=True)
class Question:
    """What is asked of an image: `model` is a name or digest, empty for the only one in force."""

    dataset: str
    model: str = ""
    top: int = 1
    keep: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.top <= MOST_TOP:
            raise WrongUse(f"top is {self.top}; ask for 1 to {MOST_TOP} classes")


@dataclass(eq=False)
class Asked:
    """An image that has come, and who waits for what is said of it until `deadline`."""

    question: Question
    image: bytes
    deadline: float
    answer: Future[Prediction] = field(default_factory=Future)
    suffix: str = ""

    def fail(self, error: Exception) -> None:
        """Only where it was not answered before."""
        if not self.answer.done():
            self.answer.set_exception(error)


class Predictor:
    """Answers images. Safe to use from many threads; `with` ends its own threads.

    `bound_seconds` is how long an answer may take once its image is here. Raises `ModelError` at a store
    that keeps no models.
    """

    def __init__(
        self,
        state: State | None,
        desk: Desk,
        studios: Studios,
        keeper: Keeper,
        *,
        bound_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._state, self._desk, self._keeper, self._clock = state, desk, keeper, clock
        self._judges = None if state is None else Judges(state, desk, studios)
        self._lanes = math.ceil(desk.budget.cores) + 1  # one more, so that images are decoded meanwhile
        self._batches: Batches[Asked] = Batches(
            bound_seconds=bound_seconds,
            lanes=self._lanes,
            most_bytes=2 * desk.budget.request_bytes,
            clock=clock,
        )
        self._changed = threading.Condition()
        self._threads: list[threading.Thread] = []
        self._closed = False

    def __enter__(self) -> Predictor:
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        for place in self._batches.clear():
            place.here.fail(Gone("the store ends"))

    @property
    def waiting(self) -> int:
        """Images that nobody works on yet."""
        return self._batches.waiting

    @property
    def most_bytes(self) -> int:
        """That an image may have."""
        return min(self._desk.limits.bytes, self._desk.budget.request_bytes)

    def admit(self, question: Question) -> Place[Asked]:
        """Let in an image, which is to be brought, or to leave.

        Raises `Overloaded`, and what is wrong with the question as far as that is known without the image.
        """
        if self._judges is None:
            raise ModelError("this store keeps no models; start it with --state FOLDER")
        if question.keep:
            self._keeper.check(question.dataset)
        with self._changed:
            return self._batches.admit(question.model)

    def grow(self, place: Place[Asked], size: int) -> None:
        """So many bytes of it have come; raises `Overloaded`."""
        with self._changed:
            self._batches.grow(place, size)

    def bring(self, place: Place[Asked], question: Question, image: bytes) -> Future[Prediction]:
        """The image has come; what is said of it comes through the future.

        Raises `Overloaded`, and `InboxFull` for one that is to be kept and has no room; it has left then.
        """
        if question.keep:
            self._check_room(place, question, image)
        asked = Asked(question, image, self._clock() + ANSWER_SECONDS)
        with self._changed:
            self._batches.bring(place, asked)
            self._start()
            self._changed.notify()
        return asked.answer

    def _check_room(self, place: Place[Asked], question: Question, image: bytes) -> None:
        try:
            self._keeper.check(question.dataset, [Arrival(image, "")])
        except InboxFull:
            self.leave(place)
            raise

    def leave(self, place: Place[Asked]) -> None:
        """It does not come, or nobody waits for it; nothing to one that is worked on, or answered."""
        with self._changed:
            self._batches.leave(place)
            self._changed.notify()  # whoever waited for it to come waits no more

    def _start(self) -> None:
        """Threads begin with the first image."""
        if self._threads or self._closed:
            return
        for number in range(self._lanes):
            name = f"headwater-predict-{number}"
            self._threads.append(threading.Thread(target=self._work, name=name, daemon=True))
            self._threads[-1].start()

    def _work(self) -> None:
        while batch := self._next():
            begun = self._clock()
            self._answer([place.here for place in batch])
            with self._changed:
                self._batches.ended(batch, self._clock() - begun)

    def _next(self) -> list[Place[Asked]]:
        """The next batch; empty when all is over."""
        with self._changed:
            while not self._closed:
                if batch := self._batches.take():
                    self._changed.notify()  # there may be another
                    return batch
                seconds = self._batches.due_seconds()
                self._changed.wait(None if math.isinf(seconds) else seconds)
        return []

    def _answer(self, batch: Sequence[Asked]) -> None:
        """All of a batch, whatever happens: an error is an answer too."""
        there = [asked for asked in batch if asked.answer.set_running_or_notify_cancel()]
        try:
            sound = [asked for asked in there if self._is_sound(asked)]
            if sound:
                self._judge(sound)
        except Exception as error:
            told = self._tell(error)
            for asked in there:
                asked.fail(told)

    def _is_sound(self, asked: Asked) -> bool:
        """Whether it is an image by its header, within the limits, that somebody still waits for."""
        try:
            if self._clock() >= asked.deadline:
                raise Overloaded("no answer in time; ask again", retry_seconds=1.0)
            header = read_header(asked.image, self._desk.limits)
        except HeadwaterError as error:
            asked.fail(error)
            return False
        asked.suffix = _SUFFIX.get(header.format, header.format)
        return True

    def _judge(self, batch: Sequence[Asked]) -> None:
        assert self._judges is not None
        latest = max(asked.deadline for asked in batch)
        judged = self._judges.judge(
            [asked.image for asked in batch],
            batch[0].question.model,
            gone=lambda: self._closed or self._clock() >= latest,
        )
        self._desk.ledger.add("headwater_predict_batches_total")
        for place, error in judged.errors.items():
            batch[place].fail(error)
        rows = list(enumerate(judged.places.tolist()))
        for row, place in rows:
            if not batch[place].question.keep:
                batch[place].answer.set_result(judged.said.prediction(row, top=batch[place].question.top))
        wanted = [(row, batch[place]) for row, place in rows if batch[place].question.keep]
        for dataset in sorted({asked.question.dataset for _, asked in wanted}):
            self._keep(dataset, [pair for pair in wanted if pair[1].question.dataset == dataset], judged)

    def _keep(self, dataset: str, wanted: Sequence[tuple[int, Asked]], judged: Judged) -> None:
        """Keep images of one dataset, and only then answer."""
        rows = [row for row, _ in wanted]
        said = judged.said.found
        opinion = Opinion(judged.said.version, said.labels[rows], said.scores[rows], said.margins[rows])
        arrivals = [Arrival(asked.image, asked.suffix) for _, asked in wanted]
        kept = self._keeper.keep(dataset, arrivals, opinion)
        self._desk.ledger.add("headwater_bytes_received_total", sum(len(a.data) for a in arrivals), "image")
        for (row, asked), place in zip(wanted, kept, strict=True):
            found = judged.said.prediction(row, top=asked.question.top, id=place.id, key=place.key)
            asked.answer.set_result(found)

    def _tell(self, error: Exception) -> HeadwaterError:
        """What callers may know of it; the log has the rest, once for a batch."""
        assert self._state is not None
        if isinstance(error, Unreachable):
            log.warning("predictions failed: %s", error)
            return Overloaded("the label database does not answer; ask again", retry_seconds=5.0)
        if isinstance(error, HeadwaterError):
            return self._state.hide(error)
        reference = os.urandom(4).hex()
        log.error("predictions failed (%s)", reference, exc_info=error)
        return HeadwaterError(f"the store failed; its log says why at {reference}")
