"""Who is answered together: images that come at about the same time go through a model as one batch.

Three fifths of the bound are for waiting and two for the work: what a batch costs beside its layers is shared
by few images if it is small, and who is turned away and asks again costs more than one who waits. Let in is
who can expect to begin within the first part; a batch is as large as is measured to fit into the second. The
first of a batch waits for others only while some are on their way, and no longer than an image takes. Who is
slow to send keeps nobody waiting, and nobody out. No threads here, and no clock of its own.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Generic, TypeVar

from headwater.engine.budget import Busy
from headwater.errors import WrongUse

T = TypeVar("T")

MOST_TOGETHER = 64
_FIRST_GUESS = 0.01  # seconds that an image takes, until something was measured
_LEARN = 0.3
_WAITING = 0.6  # of the bound
_MOST_AT_ONCE = 4.0  # times what was known: the first batch also loads the model


class Overloaded(Busy):
    """Too many wait already; it may be better in `retry_seconds`."""

    def __init__(self, reason: str, *, retry_seconds: float) -> None:
        super().__init__(reason)
        self.retry_seconds = retry_seconds


@dataclass(eq=False)
class Place(Generic[T]):
    """One who was let in: `group` must be the same for all of a batch, `size` are bytes that have come."""

    group: str
    admitted: float
    size: int = 0
    arrived: float = math.nan
    item: T | None = None
    over: bool = False

    @property
    def here(self) -> T:
        """What has come."""
        assert self.item is not None
        return self.item


class Batches(Generic[T]):
    """Places from when they are let in until they are answered. Not for several threads at once.

    `lanes` batches are worked on at a time. All that is on its way, waits or is worked on has at most
    `most_bytes`, and a batch half of that.
    """

    def __init__(
        self, *, bound_seconds: float, lanes: int, most_bytes: int, clock: Callable[[], float]
    ) -> None:
        if not (math.isfinite(bound_seconds) and bound_seconds > 0) or lanes < 1 or most_bytes < 1:
            raise WrongUse(f"{bound_seconds} s, {lanes} lanes and {most_bytes} bytes answer nobody")
        self._wait, self._work = _WAITING * bound_seconds, (1 - _WAITING) * bound_seconds
        self._lanes, self._most_bytes, self._clock = lanes, most_bytes, clock
        self._coming: dict[Place[T], None] = {}  # in the order in which they were let in
        self._waiting: deque[Place[T]] = deque()
        self._working = self._bytes = 0
        self.seconds = _FIRST_GUESS
        """That an image of a batch takes, as far as that was measured."""

    def __len__(self) -> int:
        """All that were let in and are not over."""
        return len(self._coming) + len(self._waiting) + self._working

    @property
    def fits(self) -> int:
        """Images that a batch may have."""
        return max(1, min(MOST_TOGETHER, int(self._work / self.seconds)))

    @property
    def waiting(self) -> int:
        """Images that are here and that nobody works on yet."""
        return len(self._waiting)

    def admit(self, group: str) -> Place[T]:
        """Let somebody in who will bring something; raises `Overloaded`. A free lane is always open."""
        now = self._clock()
        fresh = takewhile(lambda place: now - place.admitted < self._wait, reversed(self._coming))
        self._check(self.waiting + self._working + sum(1 for _ in fresh))
        place: Place[T] = Place(group, now)
        self._coming[place] = None
        return place

    def grow(self, place: Place[T], size: int) -> None:
        """So many bytes of it have come; raises `Overloaded` where there is no room for them."""
        if self._bytes + size > self._most_bytes and self._bytes > place.size:
            raise self._overload("the images that are here fill the room that there is for them")
        place.size += size
        self._bytes += size

    def bring(self, place: Place[T], item: T) -> None:
        """It has come, and waits from now on; raises `Overloaded` if many came before it meanwhile."""
        self._check(self.waiting + self._working)
        del self._coming[place]
        place.item, place.arrived = item, self._clock()
        self._waiting.append(place)

    def leave(self, place: Place[T]) -> None:
        """It does not come after all, or does not wait any more; nothing to one that is worked on."""
        if place in self._coming:
            del self._coming[place]
        elif place in self._waiting:
            self._waiting.remove(place)
        else:
            return
        self._forget(place)

    def take(self) -> list[Place[T]]:
        """The batch that is due, the oldest first; empty if none is."""
        if self.due_seconds() > 0:
            return []
        taken = self._next()
        for place in taken:
            self._waiting.remove(place)
        self._working += len(taken)
        return taken

    def due_seconds(self) -> float:
        """How long until a batch is due if nothing more happens; 0: now, infinite: never."""
        if not self._waiting:
            return math.inf
        if not self._coming or len(self._next()) >= self.fits:
            return 0.0
        # Who takes long to send is not waited for: what counts is who was let in last.
        begun = min(self._waiting[0].arrived, next(reversed(self._coming)).admitted)
        return max(0.0, begun + self.seconds - self._clock())

    def ended(self, places: Sequence[Place[T]], seconds: float) -> None:
        """A batch is answered, and has taken so long."""
        self._working -= len(places)
        for place in places:
            self._forget(place)
        measured = min(seconds / len(places), _MOST_AT_ONCE * self.seconds)
        self.seconds = max(1e-6, self.seconds + _LEARN * (measured - self.seconds))

    def clear(self) -> list[Place[T]]:
        """Those that wait; they do so no longer."""
        left = list(self._waiting)
        for place in left:
            self.leave(place)
        return left

    def _check(self, before: int) -> None:
        """Raise unless one behind so many begins in time: behind them, and the wait of the first of them."""
        if before >= self._lanes and before * self.seconds / self._lanes + self.seconds > self._wait:
            raise self._overload(f"{before} images are before this one, more than are answered in time")

    def _overload(self, reason: str) -> Overloaded:
        expected = len(self) * self.seconds / self._lanes
        return Overloaded(f"{reason}; ask again", retry_seconds=max(expected, self._wait))

    def _next(self) -> list[Place[T]]:
        """Those that would go together with the oldest."""
        first = self._waiting[0]
        found: list[Place[T]] = []
        size = 0
        for place in self._waiting:
            size += place.size if place.group == first.group else 0
            if len(found) >= self.fits or (found and size > self._most_bytes // 2):
                break
            if place.group == first.group:
                found.append(place)
        return found

    def _forget(self, place: Place[T]) -> None:
        if not place.over:
            place.over = True
            self._bytes -= place.size
