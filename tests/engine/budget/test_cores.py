"""Cores in simulated time: held within 10 % over every 10 s when overrun, unnoticed otherwise.

The threads are real but run one at a time; time passes only when all of them sleep.
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest

from headwater.engine.budget import Cores
from headwater.errors import WrongUse

STEP = 0.02  # seconds; CPU is spent, and waiters wake, in pieces of this size


class Simulation:
    """A clock, and a machine with a core for every actor."""

    def __init__(self, seconds: float) -> None:
        self.now = self.own = 0.0
        self.seconds = seconds
        self.trace = np.zeros(round(seconds / STEP))  # CPU spent by all together, in each step of time
        self._sleepers: list[tuple[float, int, threading.Event]] = []
        self._serial = 0
        self._idle = threading.Semaphore(0)
        self._errors: list[BaseException] = []

    @property
    def running(self) -> bool:
        return self.now < self.seconds

    def cores(self, cores: float) -> Cores:
        return Cores(cores, clock=lambda: self.now, own_cpu=lambda: self.own, doze=self._doze)

    def sleep(self, seconds: float) -> None:
        go = self._at(self.now + seconds)
        self._idle.release()
        go.wait()

    def burn(self, seconds: float, *, own: bool) -> None:
        """Spend CPU, one core at full speed."""
        while seconds > 1e-9:
            piece = min(seconds, STEP)
            self.sleep(piece)
            self.own += piece * own
            self.trace[min(int(self.now / STEP), len(self.trace) - 1)] += piece
            seconds -= piece

    def run(self, actors: list[Callable[[], None]]) -> None:
        threads = [threading.Thread(target=self._act, args=(actor, self._at(0.0))) for actor in actors]
        for thread in threads:
            thread.start()
        while self._sleepers:
            self.now, _, go = heapq.heappop(self._sleepers)
            go.set()
            self._idle.acquire()
        for thread in threads:
            thread.join()
        if self._errors:
            raise self._errors[0]

    def windows(self, seconds: float = 10.0) -> np.ndarray:
        """Cores used in every window of that length; the last step gathers what ran over the end."""
        total = np.concatenate([[0.0], np.cumsum(self.trace[:-1])])
        width = round(seconds / STEP)
        return (total[width:] - total[:-width]) / seconds

    def _at(self, when: float) -> threading.Event:
        self._serial += 1
        go = threading.Event()
        heapq.heappush(self._sleepers, (when, self._serial, go))
        return go

    def _act(self, actor: Callable[[], None], go: threading.Event) -> None:
        go.wait()
        try:
            actor()
        except BaseException as error:
            self._errors.append(error)
        finally:
            self._idle.release()

    def _doze(self, condition: threading.Condition, seconds: float) -> None:
        """As Condition.wait, with an early wake-up instead of a notification."""
        condition.release()
        self.sleep(min(seconds, STEP))
        condition.acquire()


@dataclass
class Store:
    """Actors that ask a store for work as its handler threads do."""

    simulation: Simulation
    cores: Cores
    chunk: float  # CPU seconds of a chunk in a worker
    guess: float = 1.0  # prediction / truth
    pause: float = 0.0  # seconds between two requests of an actor
    sending: float = 0.0  # seconds that the link takes for the raw samples of a chunk
    reserved: int = 0
    pushed_back: int = 0
    paced: list[float] = field(default_factory=list)

    def raw(self) -> None:
        """Requests that cannot be refused: CPU of this process."""
        while self.simulation.running:
            self.paced.append(self.cores.pace(1.0))
            self.simulation.burn(0.02, own=True)
            self.simulation.sleep(self.pause)

    def offloaded(self) -> None:
        """Requests for a worker, answered raw when pushed back."""
        while self.simulation.running:
            reservation = self.cores.reserve(self.chunk * self.guess, 0.2)
            if reservation is None:
                self.pushed_back += 1
                self.paced.append(self.cores.pace(1.0))
                self.simulation.burn(0.005, own=True)
                self.simulation.sleep(self.sending)
            else:
                self.reserved += 1
                with reservation:
                    self.simulation.burn(self.chunk, own=False)
                    reservation.settle(self.chunk)
            self.simulation.sleep(self.pause)


@pytest.mark.parametrize(
    ("cores", "raw", "offloaded", "guess"),
    [
        (1.0, 0, 4, 0.5),
        (1.0, 0, 4, 2.0),
        (1.0, 4, 0, 1.0),
        (2.0, 3, 5, 1.0),
        (2.0, 3, 5, 2.0),
        (0.5, 1, 2, 0.5),
        (0.5, 1, 2, 2.0),
        (3.0, 2, 5, 0.5),
    ],
)
def test_demand_far_above_is_held_within_a_tenth(
    cores: float, raw: int, offloaded: int, guess: float
) -> None:
    simulation = Simulation(13.0)
    store = Store(simulation, simulation.cores(cores), chunk=min(0.2, 0.25 * cores), guess=guess)
    simulation.run([store.raw] * raw + [store.offloaded] * offloaded)
    use = simulation.windows() / cores
    assert len(use) > 100
    assert use.min() >= 0.9
    assert use.max() <= 1.1
    assert store.cores.used == pytest.approx(cores, rel=0.1)


@pytest.mark.parametrize("guess", [0.5, 1.0, 2.0])
def test_demand_below_is_never_held_up(guess: float) -> None:
    """Two actors of each kind, 1.4 cores in all of which 2 are allowed."""
    simulation = Simulation(12.0)
    store = Store(simulation, simulation.cores(2.0), chunk=0.1, guess=guess, pause=0.1)
    slow = Store(simulation, store.cores, chunk=0.1, pause=0.04)
    simulation.run([store.offloaded] * 2 + [slow.raw] * 2)
    assert store.pushed_back == 0
    assert store.reserved > 100
    assert max(slow.paced) == 0
    assert simulation.windows().max() < 1.9


def test_workers_get_what_own_work_leaves() -> None:
    """Own work of 0.4 cores is not slowed by workers that would take everything."""
    simulation = Simulation(12.0)
    store = Store(simulation, simulation.cores(1.0), chunk=0.1, pause=0.03)
    hungry = Store(simulation, store.cores, chunk=0.1, sending=0.5)
    simulation.run([store.raw] + [hungry.offloaded] * 4)
    assert np.mean(store.paced) < 0.01
    assert hungry.reserved * 0.1 > 0.4 * 12
    assert hungry.pushed_back > 0


def never_sleep(condition: threading.Condition, seconds: float) -> None:
    raise AssertionError(f"slept for {seconds} s")


def test_push_back_is_immediate_when_patience_cannot_help() -> None:
    now = 0.0
    cores = Cores(1.0, clock=lambda: now, own_cpu=lambda: 0.0, doze=never_sleep)
    held = cores.reserve(0.4, 0.0)
    assert held is not None
    assert cores.reserve(0.4, 0.2) is None
    with pytest.raises(AssertionError, match=r"slept for 0\.25"):  # it looks again before the 0.3 s are over
        cores.reserve(0.4, 0.5)
    now = 0.31
    assert cores.reserve(0.4, 0.0) is not None


def test_what_is_larger_than_the_bucket_goes_when_it_is_full() -> None:
    now = 0.0
    cores = Cores(1.0, clock=lambda: now, own_cpu=lambda: 0.0, doze=never_sleep)
    assert cores.reserve(3.0, 0.0) is not None
    assert cores.balance == -2.5
    now = 2.9
    assert cores.reserve(3.0, 0.0) is None
    now = 3.0
    assert cores.reserve(3.0, 0.0) is not None


@pytest.mark.parametrize("kept", [0.0, 0.1, 1e-5, 7.0])
def test_what_rounding_leaves_of_reservations_keeps_nobody_waiting(kept: float) -> None:
    """Seconds that are added and taken off do not always come to 0 again, and a full bucket is full."""
    now = 0.0
    cores = Cores(1.0, clock=lambda: now, own_cpu=lambda: 0.0, doze=never_sleep)
    for number in range(200):
        now += 100.0
        held = [cores.reserve(seconds, 0.0) for seconds in (0.1, 0.2 / (1 + number), kept)]
        for reservation in held[:2]:
            assert reservation is not None
            reservation.settle(0.0)
        now += 100.0
        large = cores.reserve(3.0, 0.0)
        assert large is not None
        large.settle(0.0)
        if held[2] is not None and number % 2:
            held[2].settle(0.0)


def test_who_matters_less_leaves_some_in_the_bucket() -> None:
    now = 0.0
    cores = Cores(1.0, clock=lambda: now, own_cpu=lambda: 0.0, doze=never_sleep)
    assert cores.reserve(0.1, 0.0) is not None
    assert cores.reserve(0.25, 0.0, leave=0.2) is None
    assert cores.reserve(0.15, 0.0, leave=0.2) is not None
    assert cores.reserve(0.1, 0.0, leave=0.2) is None
    assert cores.reserve(0.1, 0.0) is not None, "what was left is for others"
    now = 0.4
    assert cores.reserve(3.0, 0.0, leave=0.2) is not None, "what is too large goes when the bucket is full"
    with pytest.raises(WrongUse):
        cores.reserve(0.1, 0.0, leave=-1.0)


def test_a_reservation_is_settled_once_or_given_back() -> None:
    cores = Cores(1.0, clock=lambda: 0.0, own_cpu=lambda: 0.0)
    reservation = cores.reserve(0.3, 0.0)
    assert reservation is not None
    with reservation:
        reservation.settle(0.2)
        reservation.settle(9.0)
    assert cores.balance == pytest.approx(0.3)
    crashed = cores.reserve(0.3, 0.0)
    assert crashed is not None
    with pytest.raises(KeyError), crashed:
        raise KeyError
    assert cores.balance == pytest.approx(0.3)


def test_forgiven_debt_is_not_given_back_with_a_reservation() -> None:
    """A reservation larger than the deepest debt, and own work that goes on meanwhile."""
    own = 0.0
    cores = Cores(1.0, clock=lambda: 0.0, own_cpu=lambda: own)
    reservation = cores.reserve(25.0, 0.0)
    assert reservation is not None
    own = 4.0
    assert cores.balance == pytest.approx(0.5 - 25 - 4)
    reservation.settle(0.0)
    assert cores.balance == pytest.approx(0.5 - 4)
    own = 400.0
    assert cores.balance == -10.0


def test_time_goes_on_filling_the_bucket_beside_a_reservation() -> None:
    now = 0.0
    cores = Cores(1.0, clock=lambda: now, own_cpu=lambda: 0.0)
    reservation = cores.reserve(0.4, 0.0)
    assert reservation is not None
    now = 100.0
    assert cores.balance == pytest.approx(0.5)
    reservation.settle(0.4)
    assert cores.balance == pytest.approx(0.5)


def test_who_is_gone_waits_no_longer() -> None:
    now, asked = 0.0, 0

    def doze(condition: threading.Condition, seconds: float) -> None:
        nonlocal now
        now += seconds

    def gone() -> bool:
        nonlocal asked
        asked += 1
        return asked > 3

    cores = Cores(1.0, clock=lambda: now, own_cpu=lambda: 0.0, doze=doze)
    cores.spent(9.0)
    assert cores.pace(60.0, gone=gone) == pytest.approx(0.75)
    asked = 0
    assert cores.reserve(0.5, 60.0, gone=gone) is None
    assert now == pytest.approx(1.5)


def test_idle_time_fills_the_bucket_and_no_more() -> None:
    now = 0.0
    cores = Cores(2.0, clock=lambda: now, own_cpu=lambda: 0.0)
    cores.spent(1.5)
    assert cores.balance == -0.5
    now = 1000.0
    assert cores.balance == 1.0
    cores.spent(0.0, reserved=50.0)
    assert cores.balance == 1.0


def test_own_work_waits_for_its_debt_but_not_beyond_its_patience() -> None:
    now = own = 0.0

    def doze(condition: threading.Condition, seconds: float) -> None:
        nonlocal now
        now += seconds

    cores = Cores(1.0, clock=lambda: now, own_cpu=lambda: own, doze=doze)
    own = 1.5
    assert cores.pace(0.25) == pytest.approx(0.25)
    assert cores.pace(5.0) == pytest.approx(0.75)
    assert cores.pace(5.0) == 0.0
    own = 1000.0
    assert cores.balance == -10.0  # more debt than the window holds is forgiven


def test_cpu_given_back_wakes_who_waits() -> None:
    """With a clock that stands still only the notification can end the wait."""
    cores = Cores(1.0, clock=lambda: 0.0, own_cpu=lambda: 0.0)
    held = cores.reserve(0.5, 0.0)
    assert held is not None
    asleep = threading.Event()
    got: list[object] = []

    def doze(condition: threading.Condition, seconds: float) -> None:
        asleep.set()
        condition.wait(30)

    cores._doze = doze
    waiter = threading.Thread(target=lambda: got.append(cores.reserve(0.5, 1.0)))
    waiter.start()
    assert asleep.wait(30)
    held.settle(0.0)
    waiter.join(20)
    assert not waiter.is_alive()
    assert got[0] is not None


def test_used_forgets_after_ten_seconds() -> None:
    now = 0.0
    cores = Cores(4.0, clock=lambda: now, own_cpu=lambda: 0.0)
    for _ in range(10):
        now += 1.0
        cores.spent(2.0)
    assert cores.used == pytest.approx(2.0)
    now += 20.0
    assert cores.used == 0.0


@pytest.mark.parametrize("wrong", [0.0, -1.0, float("nan"), float("inf")])
def test_wrong_numbers_are_refused(wrong: float) -> None:
    with pytest.raises(WrongUse, match="cores is"):
        Cores(wrong)
    if wrong:
        with pytest.raises(WrongUse, match="seconds of CPU"):
            Cores(1.0).reserve(wrong, 0.0)
