"""CPU seconds as a token bucket: what holds a store to its cores.

Time refills the bucket by `cores` seconds of CPU each second, up to half a second's worth. Two kinds of
work empty it. This process's own CPU, all threads together, is charged whenever anyone looks; it cannot
be refused, only paced. A worker process's CPU is reserved by prediction before the work begins and
corrected when it ends; it can be refused, and the store then sends the raw sample.

A reservation waits until the bucket holds all of it; own work goes on while the bucket is not in debt. So
own work comes first, and workers get what it leaves. Over any 10 s the use is the refill, plus at most
what the bucket held (5 %), plus the errors of the predictions that are under way.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType

from headwater.errors import WrongUse

WINDOW_SECONDS = 10.0  # over which the use is held, and shown
_BURST_SECONDS = 0.5
_SLICE_SECONDS = 0.5
_SHORTEST_DOZE = 0.001  # rounding must not make a waiter spin
_LONGEST_DOZE = 0.25  # then a waiter is asked whether he is still there
_ROUNDING = 1e-9  # what sums of seconds leave: a bucket that lacks no more is full


def _never() -> bool:
    return False


class Cores:
    """Keeps CPU use to `cores` for any number of threads.

    `clock` and `own_cpu` give seconds; `doze(condition, seconds)` waits as `threading.Condition.wait` does,
    and may wake early.
    """

    def __init__(
        self,
        cores: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        own_cpu: Callable[[], float] = time.process_time,
        doze: Callable[[threading.Condition, float], object] = threading.Condition.wait,
    ) -> None:
        if not (math.isfinite(cores) and cores > 0):
            raise WrongUse(f"cores is {cores}; give a number above 0, such as 0.5 or 4")
        self.cores = cores
        self._clock, self._own_cpu, self._doze = clock, own_cpu, doze
        self._changed = threading.Condition()
        self._queue: deque[Reservation] = deque()  # who waits for a reservation, in order
        self._most = self._balance = cores * _BURST_SECONDS
        self._reserved = 0.0  # set aside and not settled; not taken off the balance yet
        self._seen, self._own = clock(), own_cpu()
        self._recent = _Recent(self._seen)

    def reserve(
        self, seconds: float, patience: float, *, gone: Callable[[], bool] = _never, leave: float = 0.0
    ) -> Reservation | None:
        """Set CPU aside for work in a worker process, first come first served.

        None pushes back: the bucket will not hold that much within `patience` seconds, or `gone()` says that
        nobody wants it any more. It is said at once when it is plain, rather than after the wait. Who does
        not matter as much as others asks to `leave` some in the bucket for them.
        """
        _check(seconds)
        _check(leave)
        wish = Reservation(self, seconds)
        with self._changed:
            self._queue.append(wish)
            try:
                return wish if self._obtain(wish, self._clock() + patience, gone, leave) else None
            finally:
                self._queue.remove(wish)
                self._changed.notify_all()

    def pace(self, patience: float, *, gone: Callable[[], bool] = _never) -> float:
        """Hold work of this process back while the bucket is in debt, at most `patience` seconds.

        For work that cannot be refused, but may be `gone()`. Returns the seconds that it waited.
        """
        with self._changed:
            began = now = self._look()
            while self._free < 0 and now - began < patience and not gone():
                self._sleep(-self._free, patience - (now - began))
                now = self._look()
        return now - began

    def spent(self, seconds: float, *, reserved: float = 0.0) -> None:
        """A worker used `seconds` of CPU, for which `reserved` had been set aside."""
        _check(seconds)
        with self._changed:
            if seconds:
                self._recent.add(self._look(), seconds)
                self._balance = max(self._balance - seconds, self._deepest)
            self._reserved = max(self._reserved - reserved, 0.0)
            self._changed.notify_all()

    @property
    def used(self) -> float:
        """Cores in use, on average over the last ten seconds or since the start."""
        with self._changed:
            return self._recent.rate(self._look())

    @property
    def balance(self) -> float:
        """CPU seconds that could be spent now; below 0 is debt."""
        with self._changed:
            self._look()
            return self._free

    @property
    def _free(self) -> float:
        return self._balance - self._reserved

    @property
    def _deepest(self) -> float:
        """Debt beyond the window is forgiven: work that cannot be refused may exceed any budget."""
        return -self.cores * WINDOW_SECONDS

    def _obtain(self, wish: Reservation, deadline: float, gone: Callable[[], bool], leave: float) -> bool:
        while True:
            left = deadline - self._look()
            ahead = 0.0
            for other in self._queue:
                if other is wish:
                    break
                ahead += other.seconds
            # What is larger than the bucket goes when the bucket is full.
            missing = ahead + min(wish.seconds + leave, self._most) - self._free
            if missing <= _ROUNDING and self._queue[0] is wish:
                self._reserved += wish.seconds
                return True
            if left <= 0 or missing > left * self.cores or gone():
                return False
            self._sleep(missing, left)

    def _sleep(self, missing: float, longest: float) -> None:
        """Until time has made up for what is missing, or somebody gives CPU back."""
        self._doze(self._changed, max(min(missing / self.cores, longest, _LONGEST_DOZE), _SHORTEST_DOZE))

    def _look(self) -> float:
        """Bring the balance up to now.

        Own CPU is set against the refill before the bucket overflows: after a long time without a look
        it has mostly been spent while the bucket was full. Forgiving debt touches the balance alone: what is
        reserved comes back whole, however much was forgiven meanwhile.
        """
        now, own = self._clock(), self._own_cpu()
        net = (now - self._seen) * self.cores - (own - self._own)
        # CPU that a reservation gave back may exceed the bucket while somebody waits for it.
        most = self._most + self._reserved
        most = max(most, self._balance) if self._queue else most
        self._balance = max(min(self._balance + net, most), self._deepest)
        self._recent.add(now, own - self._own)
        self._seen, self._own = now, own
        return now


class Reservation:
    """CPU set aside for one piece of work. Leaving the `with` block unsettled gives all of it back."""

    __slots__ = ("_cores", "_settled", "seconds")

    def __init__(self, cores: Cores, seconds: float) -> None:
        self._cores, self.seconds, self._settled = cores, seconds, False

    def settle(self, seconds: float) -> None:
        """The work is done and took `seconds` of CPU. Only the first call counts."""
        if not self._settled:
            self._cores.spent(seconds, reserved=self.seconds)
            self._settled = True

    def __enter__(self) -> Reservation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.settle(0.0)


class _Recent:
    """CPU spent in the last window, in slices."""

    def __init__(self, began: float) -> None:
        self._began = began
        self._slices: deque[tuple[float, float]] = deque()  # when the slice began, CPU seconds

    def add(self, now: float, seconds: float) -> None:
        if self._slices and now - self._slices[-1][0] < _SLICE_SECONDS:
            start, before = self._slices.pop()
            self._slices.append((start, before + seconds))
        else:
            self._slices.append((now, seconds))
        while self._slices[0][0] <= now - WINDOW_SECONDS:
            self._slices.popleft()

    def rate(self, now: float) -> float:
        span = min(max(now - self._began, _SLICE_SECONDS), WINDOW_SECONDS)
        return sum(seconds for _, seconds in self._slices) / span


def _check(seconds: float) -> None:
    if not (math.isfinite(seconds) and seconds >= 0):
        raise WrongUse(f"{seconds} seconds of CPU; give a number of 0 or more")
