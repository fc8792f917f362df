"""The rules of admission, one by one, and all of them under random traffic."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headwater.engine.budget.admission import Admission, Claim
from headwater.engine.budget.fairness import PRIORITIES
from headwater.errors import WrongUse

PREDICT, READ = PRIORITIES.index("predict"), PRIORITIES.index("read")


def ask(gate: Admission, client: str, memory: int, rank: int = READ) -> Claim:
    claim = Claim(client, rank, memory)
    gate.ask(claim)
    return claim


def test_slots_are_counted_and_memory_outlives_them() -> None:
    gate = Admission(1, 100)
    first, second = ask(gate, "a", 30), ask(gate, "a", 30)
    assert (first.admitted, second.admitted) == (True, False)
    gate.leave_slot(first)
    gate.leave_slot(first)
    assert second.admitted
    assert (gate.active, gate.held) == (1, 60)
    gate.leave(first)
    gate.leave(first)
    assert (gate.active, gate.held) == (1, 30)


def test_a_higher_priority_goes_first_however_late_it_comes() -> None:
    gate = Admission(1, 100)
    inside = ask(gate, "a", 1)
    waiting = [ask(gate, "b", 1, rank) for rank in reversed(range(len(PRIORITIES)))]
    order = []
    while waiting:
        gate.leave(inside)
        (inside,) = [claim for claim in waiting if claim.admitted]
        waiting.remove(inside)
        order.append(PRIORITIES[inside.rank])
    assert order == list(PRIORITIES)


def test_a_large_request_is_not_overtaken_for_ever() -> None:
    gate = Admission(10, 100)
    small = [ask(gate, client, 30) for client in "ab"]
    large = ask(gate, "c", 50)
    later = ask(gate, "d", 10)
    assert not large.admitted
    assert not later.admitted  # it would fit, but then memory would never drain for the large one
    gate.leave(small[0])
    assert large.admitted
    assert later.admitted


def test_one_client_holds_half_while_others_are_there() -> None:
    gate = Admission(10, 100)
    slow = [ask(gate, "slow", 25) for _ in range(2)]
    other = ask(gate, "other", 10)
    third = ask(gate, "slow", 25)
    assert not third.admitted
    assert ask(gate, "new", 30).admitted  # the one that is held back blocks nobody
    assert not gate.grow(slow[0], 1)
    gate.leave(other)
    assert not third.admitted
    gate.leave(slow[0])
    assert third.admitted


def test_one_caller_has_half_of_the_slots_while_others_are_there() -> None:
    gate = Admission(4, 100, halve_slots=True)
    long = [ask(gate, "long", 1) for _ in range(4)]
    assert all(claim.admitted for claim in long)  # it was alone
    short = [ask(gate, "short", 1) for _ in range(2)]
    more = ask(gate, "long", 1)
    gate.leave_slot(long[0])
    gate.leave_slot(long[1])
    assert all(claim.admitted for claim in short)
    gate.leave_slot(short[0])
    assert not more.admitted  # the slot waits for the one who has fewer
    assert ask(gate, "short", 1).admitted
    gate.leave_slot(long[2])
    assert more.admitted


def test_one_client_has_half_of_the_slots_of_its_caller() -> None:
    gate = Admission(4, 100, halve_slots=True)
    one = [ask_as(gate, "a", "one", 1) for _ in range(2)]
    two = ask_as(gate, "a", "two", 1)
    more = ask_as(gate, "a", "one", 1)
    assert two.admitted
    assert not more.admitted
    gate.leave_slot(one[0])
    assert more.admitted


def test_one_client_alone_may_hold_everything() -> None:
    gate = Admission(10, 100)
    claims = [ask(gate, "a", 25) for _ in range(4)]
    assert all(claim.admitted for claim in claims)
    late = ask(gate, "b", 25)
    gate.leave(claims[0])
    assert late.admitted


def ask_as(gate: Admission, caller: str, client: str, memory: int) -> Claim:
    claim = Claim(caller, READ, memory, client)
    gate.ask(claim)
    return claim


def test_invented_names_hold_no_more_memory() -> None:
    """One caller with a name for each request gets half, and the other half is there for the others."""
    gate = Admission(20, 80)
    other = ask(gate, "honest", 1)
    greedy = [ask_as(gate, "greedy", f"name {number}", 10) for number in range(8)]
    assert sum(claim.memory for claim in greedy if claim.admitted) == 40
    assert not gate.grow(next(claim for claim in greedy if claim.admitted), 1)
    assert all(ask(gate, "honest", 10).admitted for _ in range(3))
    gate.leave(other)


def test_invented_names_have_no_more_slots() -> None:
    gate = Admission(8, 80, halve_slots=True)
    ask(gate, "honest", 1)
    greedy = [ask_as(gate, "greedy", f"name {number}", 1) for number in range(8)]
    assert sum(claim.slot for claim in greedy) == 4
    assert all(ask(gate, "honest", 1).slot for _ in range(3))


def test_invented_names_get_no_more_turns() -> None:
    gate = Admission(1, 1_000_000)
    inside = ask(gate, "gate", 5_000)
    waiting = [ask_as(gate, "greedy", f"name {number}", 5_000) for number in range(16)]
    waiting += [ask(gate, "honest", 5_000) for _ in range(4)]
    order = []
    while len(order) < 8:
        gate.leave(inside)
        (inside,) = [claim for claim in waiting if claim.admitted]
        waiting.remove(inside)
        order.append(inside.caller)
    assert order.count("honest") == order.count("greedy") == 4


def test_clients_of_one_caller_share_what_it_may_have() -> None:
    gate = Admission(20, 80)
    one = [ask_as(gate, "a", "one", 10) for _ in range(8)]
    assert all(claim.admitted for claim in one)
    two = ask_as(gate, "a", "two", 10)
    more = ask_as(gate, "a", "one", 10)
    gate.leave(one[0])
    assert two.admitted  # it came later than the waiting one of a client that holds more than half
    assert not more.admitted
    other = ask(gate, "b", 10)
    assert not other.admitted
    for claim in one[1:7]:
        gate.leave(claim)
    assert other.admitted
    assert more.admitted
    third = [ask_as(gate, "a", "one", 10) for _ in range(2)]
    assert not any(claim.admitted for claim in third)  # half of half


def test_small_requests_of_a_caller_do_not_keep_its_large_one_out() -> None:
    gate = Admission(20, 80)
    other = ask(gate, "b", 1)
    small = ask_as(gate, "a", "small", 15)
    large = ask_as(gate, "a", "large", 40)
    assert not large.admitted
    again = ask_as(gate, "a", "small", 5)
    assert not again.admitted
    gate.leave(small)
    assert large.admitted
    gate.leave(other)


def test_more_than_half_enters_alone() -> None:
    gate = Admission(10, 100)
    inside = ask(gate, "a", 10)
    huge = ask(gate, "b", 80)
    behind = ask(gate, "c", 10)
    assert not huge.admitted
    assert not behind.admitted
    gate.leave(inside)
    assert huge.admitted
    assert behind.admitted


def test_more_than_everything_is_refused() -> None:
    gate = Admission(2, 100)
    with pytest.raises(WrongUse, match="needs 101 bytes"):
        ask(gate, "a", 101)
    with pytest.raises(WrongUse, match="-1"):
        ask(gate, "a", -1)
    assert ask(gate, "a", 100).admitted


def test_growth_takes_only_what_is_free() -> None:
    gate = Admission(2, 100)
    claim = ask(gate, "a", 60)
    assert gate.grow(claim, 40)
    assert not gate.grow(claim, 1)
    gate.leave(claim)
    assert gate.held == 0
    assert not gate.grow(claim, 1)


def test_growth_is_paid_for_in_the_order() -> None:
    gate = Admission(1, 100_000)
    greedy = ask(gate, "greedy", 5_000)
    assert gate.grow(greedy, 10_000)
    again, *others = ask(gate, "greedy", 5_000), ask(gate, "b", 5_000), ask(gate, "b", 5_000)
    gate.leave(greedy)
    assert others[0].admitted
    gate.leave(others[0])
    assert others[1].admitted
    assert not again.admitted


@pytest.mark.parametrize(("requests", "memory"), [(0, 1), (1, 0)])
def test_nothing_to_give_is_wrong_use(requests: int, memory: int) -> None:
    with pytest.raises(WrongUse, match="1 or more"):
        Admission(requests, memory)


class Traffic(RuleBasedStateMachine):
    """Requests come, grow, leave their slot, give up and go, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = Admission(3, 100, halve_slots=True)
        self.claims: list[Claim] = []

    @rule(
        client=st.sampled_from("abc"),
        memory=st.integers(0, 100),
        rank=st.integers(0, 3),
        name=st.sampled_from(["", "one", "two"]),
    )
    def ask(self, client: str, memory: int, rank: int, name: str) -> None:
        claim = Claim(client, rank, memory, name)
        self.gate.ask(claim)
        self.claims.append(claim)
        if claim.admitted and memory and len({each.caller for each in self.claims}) > 1:
            assert self.held_by(client) <= 50 or self.gate.held == memory

    @precondition(lambda self: self.claims)
    @rule(data=st.data(), extra=st.integers(0, 60))
    def grow(self, data: st.DataObject, extra: int) -> None:
        claim = data.draw(st.sampled_from(self.claims))
        if claim.admitted:
            self.gate.grow(claim, extra)

    @precondition(lambda self: self.claims)
    @rule(data=st.data())
    def leave_slot(self, data: st.DataObject) -> None:
        self.gate.leave_slot(data.draw(st.sampled_from(self.claims)))

    @precondition(lambda self: self.claims)
    @rule(data=st.data(), twice=st.booleans())
    def leave(self, data: st.DataObject, twice: bool) -> None:
        claim = data.draw(st.sampled_from(self.claims))
        self.gate.leave(claim)
        if twice:
            self.gate.leave(claim)
        self.claims.remove(claim)

    @invariant()
    def nothing_is_over_or_lost(self) -> None:
        inside = [claim for claim in self.claims if claim.admitted]
        assert self.gate.active == sum(claim.slot for claim in inside) <= 3
        assert self.gate.held == sum(claim.memory for claim in inside) <= 100
        assert sum(map(len, self.gate.queues)) == len(self.claims) - len(inside)

    @invariant()
    def nobody_waits_without_a_reason(self) -> None:
        """With a slot free, one of those who wait lacks memory, the free or its own, or has slots already."""
        waiting = [claim for claim in self.claims if not claim.admitted]
        if waiting and self.gate.active < 3:
            assert self.gate.held > 0 or self.gate.active > 0
            assert any(
                self.gate.held + claim.memory > 100
                or self.held_by(claim.caller) + claim.memory > 25
                or any(each.slot for each in self.claims if each.caller == claim.caller)
                for claim in waiting
            )

    def held_by(self, client: str) -> int:
        return sum(claim.memory for claim in self.claims if claim.admitted and claim.caller == client)

    def teardown(self) -> None:
        """When those inside leave, everybody who waits is served."""
        while self.claims:
            inside = [claim for claim in self.claims if claim.admitted]
            assert inside
            for claim in inside:
                self.gate.leave(claim)
            self.claims = [claim for claim in self.claims if not claim.over]
        assert (self.gate.active, self.gate.held) == (0, 0)
        assert not self.gate._callers
        assert not any(queue._clients or queue._callers._flows for queue in self.gate.queues)


TestTraffic = Traffic.TestCase
TestTraffic.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
