"""The turnstile with real threads: fair, told in time, and nothing is kept by those who leave."""

from __future__ import annotations

import gc
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.engine.budget import Busy, Gone, Turnstile
from headwater.errors import WrongUse

ENOUGH = 30.0  # seconds; a test that needs them fails


def here() -> bool:
    return False


def until(reached: Callable[[], bool]) -> None:
    """Wait for what other threads will certainly do."""
    deadline = time.monotonic() + ENOUGH
    while not reached():
        assert time.monotonic() < deadline, "never happened"
        time.sleep(0.0002)


def run_all(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.join(ENOUGH)
    assert not any(thread.is_alive() for thread in threads)


@pytest.fixture
def turnstile() -> Iterator[Turnstile]:
    turnstile = Turnstile(2, 100)
    yield turnstile
    assert (turnstile.active, turnstile.held, turnstile.waiting) == (0, 0, 0)


def test_a_turn_gives_back_what_it_holds(turnstile: Turnstile) -> None:
    with turnstile.enter("a", memory=40, patience=0, gone=here) as turn:
        assert (turnstile.active, turnstile.held, turn.memory) == (1, 40, 40)
        turn.leave_slot()
        turn.leave_slot()
        assert (turnstile.active, turnstile.held) == (0, 40)
        assert turn.grow(60)
        assert not turn.grow(1)
        turn.leave()
        assert (turnstile.held, turn.memory) == (0, 0)
        assert not turn.grow(1)


def test_in_a_further_queue_it_is_the_same_client_with_the_same_priority() -> None:
    first, further = Turnstile(2, 100), Turnstile(1, 100)
    order: list[str] = []

    def work(priority: str) -> None:
        with (
            first.enter("a", "c", priority=priority, memory=1, patience=0, gone=here) as turn,
            turn.enter(further, memory=70, patience=ENOUGH, gone=here) as inner,
        ):
            assert (inner._claim.caller, inner._claim.client, inner.memory) == ("a", "c", 70)
            order.append(priority)

    threads = [threading.Thread(target=work, args=(priority,)) for priority in ("read", "predict")]
    with further.enter("gate", memory=1, patience=0, gone=here):
        for number, thread in enumerate(threads):
            thread.start()
            until(lambda number=number: further.waiting == number + 1)  # type: ignore[misc]
    run_all(threads)
    assert order == ["predict", "read"]
    assert (first.held, further.held) == (0, 0)


def test_a_caller_that_raises_keeps_nothing(turnstile: Turnstile) -> None:
    with pytest.raises(KeyError), turnstile.enter("a", memory=40, patience=0, gone=here):
        raise KeyError


def test_wrong_requests_are_refused_and_forgotten(turnstile: Turnstile) -> None:
    with pytest.raises(WrongUse, match="no priority 'urgent'; there are predict, read, select, relabel"):
        turnstile.enter("a", priority="urgent", memory=1, patience=0, gone=here)
    with pytest.raises(WrongUse, match="needs 101 bytes"):
        turnstile.enter("a", memory=101, patience=0, gone=here)
    turn = turnstile.enter("a", memory=1, patience=0, gone=here)
    with turn, pytest.raises(WrongUse, match="grow by -1"):
        turn.grow(-1)


def test_no_patience_is_told_at_once(turnstile: Turnstile) -> None:
    with (
        turnstile.enter("a", memory=60, patience=0, gone=here),
        pytest.raises(Busy, match=r"within 0 s: 1 requests are worked on, 60 bytes are held, 1 wait"),
    ):
        turnstile.enter("b", memory=60, patience=0, gone=here)


def test_patience_is_measured_by_the_clock_that_was_given() -> None:
    now = 0.0

    def an_hour_later() -> bool:
        nonlocal now
        now += 3600
        return False

    turnstile = Turnstile(1, 100, clock=lambda: now)
    with (
        turnstile.enter("a", memory=1, patience=0, gone=here),
        pytest.raises(Busy, match="within 9000 s"),
    ):
        turnstile.enter("b", memory=1, patience=9000, gone=an_hour_later)
    assert now == 4 * 3600
    assert turnstile.waiting == 0


def test_who_hangs_up_is_let_go_and_unblocks_the_rest(turnstile: Turnstile) -> None:
    """A large request blocks a small one; when its caller hangs up, the small one gets in."""
    hung_up = threading.Event()
    ends: list[str] = []

    def large() -> None:
        with pytest.raises(Gone, match="hung up"):
            turnstile.enter("large", memory=100, patience=ENOUGH, gone=hung_up.is_set)
        ends.append("large")

    def small() -> None:
        with turnstile.enter("small", memory=10, patience=ENOUGH, gone=here):
            ends.append("small")

    with turnstile.enter("a", memory=10, patience=0, gone=here):
        threads = []
        for depth, target in enumerate((large, small), 1):
            threads.append(threading.Thread(target=target))
            threads[-1].start()
            until(lambda depth=depth: turnstile.waiting == depth)
        hung_up.set()
        run_all(threads)
    assert sorted(ends) == ["large", "small"]


def test_an_error_while_asking_the_caller_leaks_nothing(turnstile: Turnstile) -> None:
    def broken() -> bool:
        raise WrongUse("no such call")

    with (
        turnstile.enter("a", memory=100, patience=0, gone=here),
        pytest.raises(WrongUse, match="no such call"),
    ):
        turnstile.enter("b", memory=1, patience=ENOUGH, gone=broken)


def test_sixteen_threads_get_no_more_bytes_than_two() -> None:
    """Each turn ends only when all the others wait, so the order is the queue's and not the scheduler's."""
    turnstile = Turnstile(1, 1 << 30)
    sizes = {"many": 3_000_000, "few": 1_000_000}
    served: list[str] = []
    turns = 120

    def ask(client: str) -> None:
        while len(served) < turns:
            with turnstile.enter(client, memory=sizes[client], patience=ENOUGH, gone=here):
                served.append(client)
                until(lambda: turnstile.waiting == 17 or len(served) > turns)

    crew = [("many", 16), ("few", 2)]
    threads = [threading.Thread(target=ask, args=(client,)) for client, count in crew for _ in range(count)]
    with turnstile.enter("gate", memory=1, patience=0, gone=here):
        for thread in threads:
            thread.start()
        until(lambda: turnstile.waiting == len(threads))
        served.append("gate")
    until(lambda: len(served) >= turns)
    counted = Counter(served[1:turns])
    run_all(threads)
    difference = counted["many"] * sizes["many"] - counted["few"] * sizes["few"]
    assert abs(difference) <= sum(sizes.values())
    assert (turnstile.active, turnstile.held, turnstile.waiting) == (0, 0, 0)


Call = tuple[str, str, int, str]
calls = st.tuples(
    st.sampled_from("abc"),
    st.sampled_from(["predict", "read"]),
    st.integers(0, 100),
    st.sampled_from(["finish", "raise", "hang up", "impatient", "slow reply"]),
)


@settings(max_examples=25, deadline=None)
@given(st.lists(calls, min_size=1, max_size=14))
def test_everybody_is_served_or_told_and_nothing_is_exceeded(plan: list[Call]) -> None:
    turnstile = Turnstile(2, 100)
    outcomes: list[str] = []
    seen: list[tuple[int, int]] = []

    def work(client: str, priority: str, memory: int, manner: str) -> None:
        patience = 0.0 if manner == "impatient" else ENOUGH
        gone = (lambda: True) if manner == "hang up" else here
        try:
            with turnstile.enter(
                client, priority=priority, memory=memory, patience=patience, gone=gone
            ) as turn:
                seen.append((turnstile.active, turnstile.held))
                if manner == "slow reply":
                    turn.leave_slot()
                    turn.grow(10)
                    seen.append((turnstile.active, turnstile.held))
                if manner == "raise":
                    raise KeyError(manner)
            outcomes.append("served")
        except (Busy, Gone, KeyError) as error:
            outcomes.append(type(error).__name__)

    threads = [threading.Thread(target=work, args=call) for call in plan]
    for thread in threads:
        thread.start()
    run_all(threads)
    assert len(outcomes) == len(plan)
    told = sum(manner in ("raise", "hang up", "impatient") for *_, manner in plan)
    assert sum(outcome != "served" for outcome in outcomes) <= told
    assert all(active <= 2 and held <= 100 for active, held in seen)
    assert (turnstile.active, turnstile.held, turnstile.waiting) == (0, 0, 0)


def test_a_turn_that_the_garbage_collector_ends_does_not_stop_the_gate(turnstile: Turnstile) -> None:
    """A reply in a reference cycle is closed by the collector, perhaps while this thread has the lock."""

    def reply() -> Iterator[None]:
        with turnstile.enter("a", memory=10, patience=0, gone=here):
            yield

    cycle: list[object] = [reply()]
    next(cycle[0])  # type: ignore[call-overload]
    cycle.append(cycle)
    del cycle
    with turnstile._lock:
        gc.collect()
        assert turnstile.held == 10
    turnstile.enter("b", memory=100, patience=0, gone=here).leave()


def test_a_queue_has_an_end_for_one_and_for_all() -> None:
    turnstile = Turnstile(1, 100, most_waiting=3, most_each=2)
    hung_up = threading.Event()

    def wait(caller: str) -> None:
        with pytest.raises(Gone):
            turnstile.enter(caller, memory=1, patience=ENOUGH, gone=hung_up.is_set)

    with turnstile.enter("a", "one", memory=1, patience=0, gone=here):
        threads = [threading.Thread(target=wait, args=(caller,)) for caller in ("a", "b", "b")]
        for thread in threads:
            thread.start()
        until(lambda: turnstile.waiting == 3)
        with pytest.raises(Busy, match="2 requests of this caller are under way"):
            turnstile.enter("a", "two", memory=1, patience=ENOUGH, gone=here)
        with pytest.raises(Busy, match="3 requests wait, the most there may be"):
            turnstile.enter("c", memory=1, patience=ENOUGH, gone=here)
        hung_up.set()
        run_all(threads)
    assert (turnstile.active, turnstile.held, turnstile.waiting) == (0, 0, 0)


def test_who_waits_long_is_asked_less_often() -> None:
    turnstile = Turnstile(1, 100)
    asked = 0

    def gone() -> bool:
        nonlocal asked
        asked += 1
        return False

    with turnstile.enter("a", memory=1, patience=0, gone=here), pytest.raises(Busy):
        turnstile.enter("b", memory=1, patience=1.2, gone=gone)
    assert 3 <= asked <= 7
