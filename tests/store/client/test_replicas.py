"""Which store is asked next: rests after failures, returns, and few requests asked twice; by a fake clock."""

from __future__ import annotations

import logging

import pytest

from headwater.errors import Refused
from headwater.store.client.address import Address, Secret
from headwater.store.client.connection import Connection
from headwater.store.client.link import Link
from headwater.store.client.replicas import Replica, Replicas


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def make(clock: Clock, count: int, *, hedge: bool = True) -> Replicas:
    link = Link(hedge=hedge)
    addresses = [Address.parse(f"grpc://stor-{number}:7") for number in range(count)]
    return Replicas([Connection(address, Secret(None, {}), link) for address in addresses], clock)


def fail(replica: Replica, clock: Clock) -> float:
    """How long it rests after one more failure."""
    replica.failed(clock.now)
    return replica.rests_until - clock.now


class TestRest:
    def test_each_failure_doubles_the_rest_up_to_two_seconds(self, clock: Clock) -> None:
        (replica,) = make(clock, 1).all
        for number in range(12):
            longest = min(2.0, 0.05 * 2**number)
            rest = fail(replica, clock)
            assert longest / 2 <= rest <= longest
            clock.now += rest

    def test_an_answer_ends_it(self, clock: Clock) -> None:
        (replica,) = make(clock, 1).all
        for _ in range(5):
            fail(replica, clock)
        replica.answered(0.1)
        assert replica.rests_until < clock.now
        clock.now += 1
        assert fail(replica, clock) <= 0.05

    def test_requests_sent_before_the_last_failure_tell_nothing_new(self, clock: Clock) -> None:
        """Eight requests die with one connection: that is one failure, not 2^8 times the rest."""
        (replica,) = make(clock, 1).all
        sent = clock.now
        clock.now += 1
        fail(replica, clock)
        until = replica.rests_until
        for _ in range(7):
            clock.now += 0.001
            replica.failed(sent)
        assert replica.rests_until == until
        assert replica.failures == 8

    def test_rests_differ_so_that_clients_do_not_return_together(self, clock: Clock) -> None:
        rests = {fail(make(clock, 1).all[0], clock) for _ in range(20)}
        assert len(rests) > 10


class TestAside:
    """A store that complains: a refusal, other data. It may be mended while a run goes on."""

    def complain(self, replicas: Replicas, replica: Replica, clock: Clock) -> float:
        """How long it rests after one more complaint."""
        assert replicas.set_aside(replica, Refused("not you"), clock.now)
        return replica.rests_until - clock.now

    def test_it_rests_longer_each_time_but_not_for_ever(self, clock: Clock) -> None:
        replicas = make(clock, 2)
        first, second = replicas.all
        for number in range(8):
            longest = min(60.0, 5.0 * 2**number)
            rest = self.complain(replicas, first, clock)
            assert longest / 2 <= rest <= longest
            assert replicas.choose() == (second, 0.0)
            clock.now += rest
            second.under_way = 9
            assert replicas.choose()[0] is first
            second.under_way = 0

    def test_an_answer_makes_it_one_like_others(self, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
        replicas = make(clock, 2)
        first, _ = replicas.all
        for _ in range(3):
            clock.now += self.complain(replicas, first, clock)
        assert caplog.messages == ["stor-0:7 is not asked for a while: not you"]
        with caplog.at_level(logging.INFO, logger="headwater"):
            first.answered(0.1)
        assert caplog.messages[1:] == ["stor-0:7 answers again"]
        assert first.known
        assert self.complain(replicas, first, clock) <= 5.0
        assert not first.known

    def test_requests_sent_before_tell_nothing_new(self, clock: Clock) -> None:
        replicas = make(clock, 2)
        first, _ = replicas.all
        sent = clock.now
        clock.now += 1
        self.complain(replicas, first, clock)
        until = first.rests_until
        for _ in range(7):
            clock.now += 0.001
            assert replicas.set_aside(first, Refused("not you"), sent)
        assert first.rests_until == until

    def test_what_the_last_one_says_stands(self, clock: Clock) -> None:
        replicas = make(clock, 2)
        first, second = replicas.all
        rest = self.complain(replicas, first, clock)
        assert not replicas.set_aside(second, Refused("not you"), clock.now)
        clock.now += rest  # by now the first may have been mended
        assert replicas.set_aside(second, Refused("not you"), clock.now)
        alone = make(clock, 1)
        assert not alone.set_aside(alone.all[0], Refused("not you"), clock.now)


class TestOthers:
    def of(self, replicas: Replicas, replica: Replica) -> list[Replica]:
        return [one for other in replicas.others(replica) for one in other.all]

    def test_each_by_itself_shares_what_is_known_of_it(self, clock: Clock) -> None:
        replicas = make(clock, 3)
        first, second, third = replicas.all
        one, two = replicas.others(second)
        assert (one.all, two.all) == ([first], [third])
        assert one.link.give_up_seconds == replicas.link.deadline_seconds
        one.choose()
        assert replicas.asked == 1
        assert len(replicas.all) == 3
        assert not list(one.others(first))

    def test_one_failure_is_not_failing(self, clock: Clock) -> None:
        """It may be one connection that broke; but silence for a while is, as a deadline that passed."""
        replicas = make(clock, 2)
        first, second = replicas.all
        fail(second, clock)
        assert self.of(replicas, first) == [second]
        sent = clock.now
        clock.now += 10.0
        second.failed(sent)
        assert self.of(replicas, first) == []

    def test_until_it_answers_or_it_is_long_ago(self, clock: Clock) -> None:
        replicas = make(clock, 2)
        first, second = replicas.all
        for _ in range(8):
            clock.now += fail(second, clock)
        assert self.of(replicas, first) == []  # its rest is over, and nobody has tried it yet
        second.answered(0.1)
        assert self.of(replicas, first) == [second]
        fail(second, clock)
        clock.now += 1.0
        fail(second, clock)
        assert self.of(replicas, first) == []
        clock.now = second.rests_until + replicas.link.deadline_seconds
        assert self.of(replicas, first) == [second]

    def test_what_complained_is_failing_and_what_was_overtaken_is_not(self, clock: Clock) -> None:
        replicas = make(clock, 3)
        first, second, third = replicas.all
        assert replicas.set_aside(second, Refused("not you"), clock.now)
        for _ in range(3):
            clock.now += 1.0
            third.overtaken(0.9)
        assert self.of(replicas, first) == [third]


class TestChoice:
    def test_a_resting_store_is_not_asked(self, clock: Clock) -> None:
        replicas = make(clock, 2)
        first, second = replicas.all
        fail(first, clock)
        assert [replicas.choose()[0] for _ in range(5)] == [second] * 5

    def test_when_all_rest_the_first_to_return_is_told(self, clock: Clock) -> None:
        replicas = make(clock, 2)
        first, second = replicas.all
        for _ in range(6):
            fail(first, clock)
        rest = fail(second, clock)
        found, seconds = replicas.choose()
        assert found is None
        assert seconds == pytest.approx(rest)
        clock.now += rest
        assert replicas.choose() == (second, 0.0)

    def test_a_store_that_returns_is_used_again(self, clock: Clock) -> None:
        replicas = make(clock, 2)
        first, second = replicas.all
        clock.now += fail(first, clock)
        second.under_way = 3
        assert replicas.choose()[0] is first

    def test_the_one_that_will_answer_first(self, clock: Clock) -> None:
        replicas = make(clock, 2)
        first, second = replicas.all
        first.answered(0.4)
        second.answered(0.1)
        chosen = []
        for _ in range(10):
            replica, _ = replicas.choose()
            assert replica is not None
            replica.under_way += 1
            chosen.append(replica)
        assert chosen.count(second) == 8  # four times as fast, four times as many

    def test_not_one_that_was_asked_already(self, clock: Clock) -> None:
        replicas = make(clock, 2)
        first, second = replicas.all
        second.under_way = 50
        assert replicas.choose((first,)) == (second, 0.0)
        assert replicas.choose((first, second)) == (None, 0.0)


class TestHedge:
    def ask(self, replicas: Replicas, times: int) -> None:
        for _ in range(times):
            replicas.choose()

    def test_one_in_ten_and_one_more(self, clock: Clock) -> None:
        replicas = make(clock, 2)
        first, second = replicas.all
        granted = []
        for _ in range(400):
            replicas.choose()
            granted.append(replicas.choose_hedge((first,), 0))
        assert replicas.hedged == sum(found is not None for found in granted)
        assert set(granted) == {second, None}
        assert 400 / 10 <= replicas.hedged <= 1 + 0.1 * replicas.asked

    def test_not_the_same_store_and_not_a_resting_one(self, clock: Clock) -> None:
        replicas = make(clock, 2)
        first, second = replicas.all
        self.ask(replicas, 100)
        assert replicas.choose_hedge((first, second), 0) is None
        fail(second, clock)
        assert replicas.choose_hedge((first,), 0) is None
        assert replicas.hedged == 0

    def test_never_if_the_link_says_so(self, clock: Clock) -> None:
        replicas = make(clock, 2, hedge=False)
        self.ask(replicas, 100)
        assert replicas.choose_hedge(replicas.all[:1], 0) is None

    def test_what_is_slow_is_not_known_before_some_answers(self, clock: Clock) -> None:
        (replica,) = make(clock, 1).all
        for _ in range(7):
            replica.answered(0.1)
        assert replica.slow_after == float("inf")
        replica.answered(0.1)
        assert replica.slow_after == pytest.approx(0.2)

    def test_slow_is_twice_the_slowest_usual_answer(self, clock: Clock) -> None:
        (replica,) = make(clock, 1).all
        for _ in range(62):
            replica.answered(0.1)
        for _ in range(2):
            replica.answered(9.0)  # two in sixty-four are not usual
        assert replica.slow_after == pytest.approx(0.2)
        for _ in range(10):
            replica.answered(1.0)
        assert replica.slow_after == pytest.approx(2.0)

    def test_answers_in_no_time_are_not_slow_after_none(self, clock: Clock) -> None:
        (replica,) = make(clock, 1).all
        for _ in range(64):
            replica.answered(1e-6)
        assert replica.slow_after == 0.05


def test_names_are_those_of_the_stores(clock: Clock) -> None:
    assert make(clock, 2).names == "stor-0:7, stor-1:7"
