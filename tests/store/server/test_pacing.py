"""The line for cores: fair, left by those who hang up, and no cores kept by those who wait for memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from headwater.engine.budget import Busy, Cores, Gone, Turnstile
from headwater.store.server.pacing import Pacing, Wish

ENOUGH = 30.0  # seconds; a test that needs them fails


def here() -> bool:
    return False


def until(reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + ENOUGH
    while not reached():
        assert time.monotonic() < deadline, "never happened"
        time.sleep(0.0005)


class Clock:
    """Time that passes when somebody sleeps in `Cores`."""

    def __init__(self) -> None:
        self.now = self.own = 0.0

    def doze(self, condition: threading.Condition, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def cores(clock: Clock) -> Cores:
    return Cores(1.0, clock=lambda: clock.now, own_cpu=lambda: clock.own, doze=clock.doze)


@pytest.fixture
def pacing(cores: Cores, clock: Clock) -> Pacing:
    return Pacing(cores, clock=lambda: clock.now, own_cpu=lambda: clock.own)


@pytest.fixture
def turnstile() -> Iterator[Turnstile]:
    made = Turnstile(4, 1000)
    yield made
    assert (made.active, made.held, made.waiting) == (0, 0, 0)


def wish(size: int = 100, gone: Callable[[], bool] = here, caller: str = "a") -> Wish:
    return Wish(caller, "c", size, gone)


def test_it_waits_for_the_debt_and_says_how_long(
    pacing: Pacing, cores: Cores, clock: Clock, turnstile: Turnstile
) -> None:
    cores.spent(2.5)
    with pacing.begin(wish(), turnstile, patience=ENOUGH) as begun:
        assert begun.waited == pytest.approx(2.0, abs=0.01)
        assert (begun.turn.memory, turnstile.held) == (100, 100)
    assert pacing.waiting == 0


def test_cores_are_set_aside_until_they_are_released(
    pacing: Pacing, cores: Cores, turnstile: Turnstile
) -> None:
    pacing._seconds_per_byte = 1e-3
    before = cores.balance
    with pacing.begin(wish(), turnstile, patience=ENOUGH) as begun:
        assert cores.balance == pytest.approx(before - 0.1)
        begun.release()
        begun.release()
        assert cores.balance == pytest.approx(before)
        assert begun.turn.memory == 100  # memory is another matter
    assert cores.balance == pytest.approx(before)


def test_who_hangs_up_leaves_the_line(
    pacing: Pacing, cores: Cores, clock: Clock, turnstile: Turnstile
) -> None:
    cores.spent(9.0)
    asked = 0

    def gone() -> bool:
        nonlocal asked
        asked += 1
        return asked > 2

    with pytest.raises(Gone), pacing.begin(wish(gone=gone), turnstile, patience=60.0):
        raise AssertionError("it began")
    assert clock.now < 1.0  # and not after its patience, or the debt
    assert (pacing._line.active, pacing.waiting) == (0, 0)
    assert cores.balance == pytest.approx(0.5 - 9 + clock.now)


def test_who_waits_for_memory_keeps_neither_cores_nor_the_line(
    pacing: Pacing, cores: Cores, turnstile: Turnstile
) -> None:
    pacing._seconds_per_byte = 1e-3
    before, began = cores.balance, threading.Event()

    def large() -> None:
        with pacing.begin(wish(400, caller="large"), turnstile, patience=ENOUGH) as begun:
            began.set()
            assert begun.reserved is not None

    with turnstile.enter("slow", memory=900, patience=0, gone=here):
        thread = threading.Thread(target=large)
        thread.start()
        until(lambda: turnstile.waiting == 1 and not pacing._line.active)
        assert not began.is_set()
        assert cores.balance == pytest.approx(before)
    thread.join(ENOUGH)
    assert began.is_set()
    assert cores.balance == pytest.approx(before)


def test_patience_is_for_the_line_and_the_turn_together(cores: Cores, turnstile: Turnstile) -> None:
    pacing = Pacing(cores)
    begin = time.monotonic()
    with (
        turnstile.enter("slow", memory=1000, patience=0, gone=here),
        pytest.raises(Busy),
        pacing.begin(wish(), turnstile, patience=0.2),
    ):
        raise AssertionError("it began")
    assert time.monotonic() - begin < 5


def test_an_error_inside_gives_everything_back(pacing: Pacing, cores: Cores, turnstile: Turnstile) -> None:
    pacing._seconds_per_byte = 1e-3
    before = cores.balance
    with pytest.raises(KeyError), pacing.begin(wish(), turnstile, patience=ENOUGH):
        raise KeyError
    assert cores.balance == pytest.approx(before)


def test_callers_begin_in_fair_order(pacing: Pacing, turnstile: Turnstile) -> None:
    """Eight requests of one caller under eight names wait before four of another; they alternate."""
    order: list[str] = []

    def work(caller: str, name: str) -> None:
        with pacing.begin(Wish(caller, name, 10_000, here), Turnstile(1, 1 << 20), patience=ENOUGH):
            order.append(caller)

    threads = []
    with pacing._line.enter("gate", memory=1, patience=0, gone=here):
        for number in range(12):
            who = ("greedy", str(number)) if number < 8 else ("modest", "")
            threads.append(threading.Thread(target=work, args=who))
            threads[-1].start()
            until(lambda number=number: pacing.waiting == number + 1)  # type: ignore[misc]
    for thread in threads:
        thread.join(ENOUGH)
    assert order[:8].count("modest") >= 3


def test_a_prediction_overtakes_reads_in_the_line(pacing: Pacing) -> None:
    order: list[str] = []

    def work(priority: str) -> None:
        asked = Wish("a", "c", 10_000, here, priority)
        with pacing.begin(asked, Turnstile(1, 1 << 20), patience=ENOUGH):
            order.append(priority)

    with pacing._line.enter("gate", memory=1, patience=0, gone=here):
        threads = _start_in_order(work, ["relabel", "read", "read", "predict"], lambda: pacing.waiting)
    for thread in threads:
        thread.join(ENOUGH)
    assert order == ["predict", "read", "read", "relabel"]


def test_and_in_the_turnstile(pacing: Pacing, turnstile: Turnstile) -> None:
    order: list[str] = []

    def work(priority: str) -> None:
        with pacing.begin(Wish("a", "c", 600, here, priority), turnstile, patience=ENOUGH):
            order.append(priority)

    with turnstile.enter("slow", memory=1000, patience=0, gone=here):
        threads = _start_in_order(work, ["read", "predict"], lambda: turnstile.waiting)
    for thread in threads:
        thread.join(ENOUGH)
    assert order == ["predict", "read"]


def _start_in_order(
    work: Callable[[str], None], names: list[str], waiting: Callable[[], int]
) -> list[threading.Thread]:
    """Each begins to wait before the next one starts."""
    threads = []
    for number, name in enumerate(names):
        threads.append(threading.Thread(target=work, args=(name,)))
        threads[-1].start()
        until(lambda number=number: waiting() == number + 1)  # type: ignore[misc]
    return threads
