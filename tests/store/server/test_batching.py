"""Who is answered together, and who is turned away: by a clock that the test sets."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Sequence

import pytest

from headwater.errors import WrongUse
from headwater.store.server.batching import MOST_TOGETHER, Batches, Overloaded, Place

BOUND, SECONDS, BYTES = 0.2, 0.01, 1000
WAIT, WORK = 0.6 * BOUND, 0.4 * BOUND


class Clock:
    def __init__(self) -> None:
        self.now = 50.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def make(clock: Clock, *, lanes: int = 2, bound: float = BOUND, seconds: float = SECONDS) -> Batches[str]:
    made: Batches[str] = Batches(bound_seconds=bound, lanes=lanes, most_bytes=100 * BYTES, clock=clock)
    made.seconds = seconds
    return made


def come(batches: Batches[str], *names: str, group: str = "", size: int = BYTES) -> list[Place[str]]:
    places = [batches.admit(group) for _ in names]
    for place, name in zip(places, names, strict=True):
        batches.grow(place, size)
        batches.bring(place, name)
    return places


def names(batch: Sequence[Place[str]]) -> list[str]:
    return [place.here for place in batch]


def test_one_alone_waits_for_nobody(clock: Clock) -> None:
    batches = make(clock)
    assert batches.due_seconds() == math.inf
    assert batches.take() == []
    come(batches, "a")
    assert batches.due_seconds() == 0
    assert names(batches.take()) == ["a"]
    assert (len(batches), batches.waiting) == (1, 0)


def test_the_first_waits_for_those_on_their_way_as_long_as_an_image_takes(clock: Clock) -> None:
    batches = make(clock)
    late = batches.admit("")
    come(batches, "a")
    assert batches.take() == []
    assert batches.due_seconds() == pytest.approx(SECONDS)
    clock.now += 0.6 * SECONDS
    batches.bring(late, "b")
    assert names(batches.take()) == ["a", "b"]


def test_it_waits_no_longer_than_that(clock: Clock) -> None:
    batches = make(clock)
    batches.admit("")
    come(batches, "a")
    clock.now += SECONDS
    assert names(batches.take()) == ["a"]


def test_what_fills_the_bound_alone_waits_for_nobody(clock: Clock) -> None:
    batches = make(clock, seconds=WORK)
    batches.admit("")
    come(batches, "a")
    assert batches.due_seconds() == 0


def test_who_takes_long_to_send_is_not_waited_for(clock: Clock) -> None:
    batches = make(clock)
    batches.admit("")
    clock.now += SECONDS
    come(batches, "a")
    assert names(batches.take()) == ["a"]


def test_who_takes_long_to_send_keeps_nobody_out(clock: Clock) -> None:
    batches = make(clock)
    slow = [batches.admit("") for _ in range(10)]
    clock.now += 1.01 * WAIT
    slow += [batches.admit("") for _ in range(10)]
    clock.now += 1.01 * WAIT
    come(batches, *map(str, range(23)))
    with pytest.raises(Overloaded):  # it would be too late now
        batches.bring(slow[0], "late")
    batches.leave(slow[0])
    assert len(batches) == 42


def test_one_that_leaves_is_waited_for_no_longer(clock: Clock) -> None:
    batches = make(clock)
    gone = batches.admit("")
    come(batches, "a")
    batches.leave(gone)
    batches.leave(gone)
    assert names(batches.take()) == ["a"]


def test_who_waits_may_leave_and_who_is_worked_on_may_not(clock: Clock) -> None:
    batches = make(clock)
    first, second = come(batches, "a", "b")
    batches.leave(first)
    (taken,) = batches.take()
    batches.leave(taken)
    assert (taken, len(batches)) == (second, 1)
    batches.ended([taken], SECONDS)
    assert len(batches) == 0


def test_a_batch_is_what_is_measured_to_fit_into_its_part_of_the_bound(clock: Clock) -> None:
    batches = make(clock, lanes=8)
    assert batches.fits == round(WORK / SECONDS)
    batches.admit("")
    come(batches, *map(str, range(batches.fits + 3)))
    assert len(batches.take()) == batches.fits, "it is full, so it waits for nobody"
    batches.seconds = BOUND
    assert batches.fits == 1
    batches.seconds = 1e-6
    assert batches.fits == MOST_TOGETHER


def test_what_was_measured_is_learned_and_one_batch_does_not_teach_everything(clock: Clock) -> None:
    batches = make(clock)
    come(batches, "a")
    batches.ended(batches.take(), 100.0)  # it loaded the model
    assert SECONDS < batches.seconds <= 2 * SECONDS
    for _ in range(40):
        come(batches, "a", "b")
        batches.ended(batches.take(), 0.004)
    assert batches.seconds == pytest.approx(0.002, rel=0.01)


def test_groups_stay_apart_and_the_oldest_goes_first(clock: Clock) -> None:
    batches = make(clock, lanes=4)
    come(batches, "a1", group="a")
    come(batches, "b1", group="b")
    come(batches, "a2", group="a")
    assert names(batches.take()) == ["a1", "a2"]
    assert names(batches.take()) == ["b1"]


def test_bytes_bound_a_batch_and_all_of_them(clock: Clock) -> None:
    batches = make(clock, lanes=64)
    come(batches, "a", "b", "c", size=30 * BYTES)
    fourth = batches.admit("")
    batches.grow(fourth, 9 * BYTES)
    with pytest.raises(Overloaded, match="fill the room"):
        batches.grow(fourth, 2 * BYTES)
    batches.leave(fourth)
    assert names(batches.take()) == ["a"]
    assert names(batches.take()) == ["b"]
    batches.clear()
    assert batches.waiting == 0
    come(batches, "d", size=40 * BYTES)


def test_one_image_is_let_in_however_large_or_slow(clock: Clock) -> None:
    batches = make(clock, seconds=100.0)
    come(batches, "a", size=1000 * BYTES)
    assert names(batches.take()) == ["a"]


def test_who_would_begin_too_late_is_told_when_to_come_back(clock: Clock) -> None:
    batches = make(clock)
    for _ in range(round(2 * (WAIT - SECONDS) / SECONDS) + 1):
        batches.admit("")
    with pytest.raises(Overloaded) as caught:
        batches.admit("")
    assert WAIT <= caught.value.retry_seconds < BOUND


def test_a_free_lane_is_always_open(clock: Clock) -> None:
    batches = make(clock, lanes=3, seconds=100.0)
    come(batches, "a", "b", "c")
    with pytest.raises(Overloaded):
        batches.admit("")


@pytest.mark.parametrize("change", [{"bound": 0.0}, {"bound": math.nan}, {"bound": math.inf}, {"lanes": 0}])
def test_what_cannot_be(clock: Clock, change: dict[str, float]) -> None:
    with pytest.raises(WrongUse):
        make(clock, **change)  # type: ignore[arg-type]


class Simulation:
    """Lanes that take exactly `seconds` an image, and requests at random times, `rate` a second."""

    def __init__(self, seed: int, *, lanes: int, seconds: float, rate: float) -> None:
        self.dice, self.clock = random.Random(seed), Clock()
        self.batches = make(self.clock, lanes=lanes, seconds=seconds)
        self.seconds, self.rate, self.free = seconds, rate, lanes
        self.events: list[tuple[float, int, str, object]] = []
        self.answered: dict[Place[str], float] = {}
        self.sizes: list[int] = []
        self.refused = self.number = 0

    def plan(self, when: float, what: str, about: object = None) -> None:
        self.number += 1
        heapq.heappush(self.events, (when, self.number, what, about))

    def run(self, requests: int) -> None:
        when = self.clock.now
        for _ in range(requests):
            when += self.dice.expovariate(self.rate)
            self.plan(when, "ask")
        while self.events:
            self.clock.now, _, what, about = heapq.heappop(self.events)
            getattr(self, what)(about)
            self.work()

    def ask(self, _: object) -> None:
        try:
            place = self.batches.admit("")
        except Overloaded:
            self.refused += 1
            return
        self.plan(self.clock.now + self.dice.choice([0, 0.001, 0.02, 0.5]), "come", place)

    def come(self, place: Place[str]) -> None:
        try:
            self.batches.bring(place, "image")
        except Overloaded:
            self.refused += 1
            self.batches.leave(place)

    def look(self, _: object) -> None:
        """Time has passed."""

    def end(self, batch: list[Place[str]]) -> None:
        self.batches.ended(batch, self.seconds * len(batch))
        self.free += 1
        self.answered |= dict.fromkeys(batch, self.clock.now)

    def work(self) -> None:
        while self.free and (batch := self.batches.take()):
            self.free -= 1
            self.sizes.append(len(batch))
            self.plan(self.clock.now + self.seconds * len(batch), "end", batch)
        due = self.batches.due_seconds()
        if self.free and not math.isinf(due):
            self.plan(self.clock.now + max(due, 1e-6), "look")


@pytest.mark.parametrize("seed", range(6))
def test_whoever_is_let_in_is_answered_within_the_bound(seed: int) -> None:
    """Under half, under full, and under thrice the load that the lanes can meet."""
    lanes, load = 1 + seed % 3, (0.5, 1.0, 3.0)[seed // 2]
    run = Simulation(seed, lanes=lanes, seconds=SECONDS, rate=load * lanes / SECONDS)
    run.run(1500)
    waited = [when - place.arrived for place, when in run.answered.items()]
    assert len(waited) + run.refused == 1500
    assert max(waited) <= BOUND + 1e-6
    assert max(run.sizes) <= run.batches.fits
    assert len(run.batches) == 0
    if load > 1:
        assert run.refused > 300
        assert sum(run.sizes) / len(run.sizes) > 2, "under load they are answered together"
    if load < 1:
        assert run.refused < 300
