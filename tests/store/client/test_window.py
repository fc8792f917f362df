"""How much is asked for at once, on a simulated link: long ones stay full, slow ones get small requests."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field

import pytest

from headwater.store.client.window import Window

MBIT = 125_000.0


@dataclass
class Link:
    """A pipe: replies follow each other, each begun a round trip after its ask at the soonest.

    One that has not ended within the deadline is cancelled, and has used the pipe in vain.
    """

    rate: float
    latency: float
    most: int = 64 << 20
    deadline: float = 10.0
    now: float = 0.0
    free_at: float = 0.0
    held: int = 0
    most_held: int = 0
    delivered: int = 0
    cancelled: int = 0
    window: Window = field(init=False)
    under_way: deque[tuple[float, int]] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self.window = Window(self.most, deadline_seconds=self.deadline, clock=lambda: self.now)

    def ask(self, size: int) -> bool:
        """Send a request unless the window would make it wait."""
        if not self.window._fits(size):
            return False
        assert self.window.enter(size, lambda: False)
        self.under_way.append((self.now, size))
        self.held += size
        self.most_held = max(self.most_held, self.held)
        return True

    def receive(self) -> None:
        sent, size = self.under_way.popleft()
        begin = max(sent + self.latency, self.free_at)
        end, latest = begin + size / self.rate, sent + self.deadline
        self.held -= size
        self.window.leave(size)
        if end > latest:
            self.now, self.free_at = max(self.now, latest), max(self.free_at, latest)
            self.cancelled += 1
            self.window.timed_out()
        else:
            self.now = self.free_at = end
            self.delivered += size
            self.window.answered(size, begin - sent)

    def run(self, seconds: float, size: int | None = None) -> None:
        """Ask for as much as is allowed, in requests of the wished size, or of `size` bytes."""
        end = self.now + seconds
        while self.now < end:
            while self.ask(min(size or self.window.request_bytes, self.window.request_bytes)):
                pass
            self.receive()


def share(link: Link, *, size: int | None, warm: float = 5.0, seconds: float = 20.0) -> float:
    """Of what the link could carry after a start."""
    link.run(warm, size)
    begun, before = link.now, link.delivered
    link.run(seconds, size)
    return (link.delivered - before) / (link.rate * (link.now - begun))


@pytest.mark.parametrize("latency", [0.001, 0.05, 0.2])
@pytest.mark.parametrize("size", [64 << 10, 300_000, 2 << 20, None])
def test_a_hundred_megabits_are_kept_busy_whatever_the_delay(latency: float, size: int | None) -> None:
    link = Link(100 * MBIT, latency)
    assert share(link, size=size) > 0.95


@pytest.mark.parametrize("latency", [0.001, 0.05])
def test_a_short_link_is_not_asked_for_much(latency: float) -> None:
    """More than a few requests, or twice what the link holds, would only wait in a queue."""
    size = 256 << 10
    link = Link(100 * MBIT, latency)
    link.run(9.0, size)
    link.most_held = 0
    link.run(0.5, size)
    assert link.most_held <= max(4 * size, 2.5 * link.rate * latency)


@pytest.mark.parametrize("most", [100_000, 1 << 20, 8 << 20])
def test_no_more_than_the_bound_is_ever_under_way(most: int) -> None:
    link = Link(1000 * MBIT, 0.2, most=most)
    link.run(5.0, 40_000)
    assert 0.5 * most < link.most_held <= most


def test_one_request_past_the_bound_goes_alone() -> None:
    window = Window(1000, deadline_seconds=1)
    assert window.enter(5000, lambda: False)
    assert not window._fits(1)
    window.leave(5000)
    assert window.enter(10, lambda: False)
    assert not window._fits(5000)


@pytest.mark.parametrize(
    ("rate", "deadline"), [(0.1 * MBIT, 10.0), (0.4 * MBIT, 2.0), (MBIT, 2.0), (MBIT, 10.0), (5 * MBIT, 10.0)]
)
def test_a_slow_link_gets_small_requests_that_end_in_time(rate: float, deadline: float) -> None:
    link = Link(rate, 0.02, deadline=deadline)
    link.run(100.0)
    link.cancelled = 0
    assert share(link, size=None, warm=0.0, seconds=200.0) > 0.95
    assert link.cancelled == 0
    assert link.window.request_bytes <= max(rate * deadline / 4, 1 << 14)


def test_time_outs_halve_what_is_asked_for_and_answers_bring_it_back() -> None:
    window = Window(64 << 20, deadline_seconds=10, clock=lambda: 0.0)
    first = window.request_bytes
    for _ in range(4):
        window.timed_out()
    assert window.request_bytes < first
    for _ in range(100):
        window.timed_out()
    assert window.request_bytes == 1 << 14
    for _ in range(500):
        window.answered(1 << 20, 0.01)
    assert window.request_bytes >= first


def test_a_link_that_becomes_fast_is_used() -> None:
    link = Link(2 * MBIT, 0.05)
    link.run(30.0)
    link.rate = 200 * MBIT
    assert share(link, size=None, warm=15.0) > 0.95


def test_a_link_that_becomes_slow_is_asked_for_less() -> None:
    link = Link(200 * MBIT, 0.05)
    link.run(10.0)
    link.rate = MBIT
    assert share(link, size=None, warm=100.0, seconds=100.0) > 0.95
    link.cancelled = 0
    link.run(100.0)
    assert link.cancelled == 0


def test_before_anything_is_known() -> None:
    window = Window(64 << 20, deadline_seconds=10)
    assert window.rate == 0
    assert window.target == 4 << 20
    assert window.request_bytes == 1 << 20
    assert Window(1000, deadline_seconds=10).request_bytes >= 1000


def test_whoever_waits_is_woken_when_it_is_abandoned() -> None:
    window = Window(1000, deadline_seconds=10)
    assert window.enter(1000, lambda: False)
    over = threading.Event()
    answers: list[bool] = []
    waiter = threading.Thread(target=lambda: answers.append(window.enter(10, over.is_set)))
    waiter.start()
    over.set()
    window.wake()
    waiter.join(10)
    assert answers == [False]
    window.leave(1000)
    assert window.enter(1000, lambda: False)  # nothing was left behind


def test_whoever_is_abandoned_does_not_stand_in_the_way() -> None:
    window = Window(1000, deadline_seconds=10)
    assert window.enter(600, lambda: False)
    over = threading.Event()
    large = threading.Thread(target=lambda: window.enter(900, over.is_set))
    large.start()
    over.set()
    window.wake()
    large.join(10)
    assert not large.is_alive()
    assert window.enter(300, lambda: False)


def test_a_large_request_is_not_overtaken() -> None:
    """Small ones that always find a little room must not keep out one that needs much."""
    window = Window(1000, deadline_seconds=10)
    order: list[str] = []

    def enter(name: str, size: int, looked: threading.Event) -> None:
        def wanted() -> bool:
            looked.set()
            return False

        assert window.enter(size, wanted)
        order.append(name)
        window.leave(size)

    assert window.enter(600, lambda: False)
    threads = []
    for name, size in (("large", 1000), ("small", 300)):
        looked = threading.Event()
        threads.append(threading.Thread(target=enter, args=(name, size, looked)))
        threads[-1].start()
        assert looked.wait(10)
    window.leave(600)
    for thread in threads:
        thread.join(10)
    assert order == ["large", "small"]
