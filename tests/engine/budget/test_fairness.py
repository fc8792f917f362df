"""Clients that wait get equal bytes, idleness earns nothing, names of the past are forgotten."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from headwater.engine.budget.fairness import _MOST_FLOWS, FairQueue, NestedQueue


@dataclass(eq=False)
class Wish:
    client: str
    cost: int


def nobody(wish: Wish) -> bool:
    return False


def push(queue: FairQueue[Wish], client: str, cost: int, times: int = 1) -> None:
    for _ in range(times):
        queue.push(client, Wish(client, cost))


def serve(queue: FairQueue[Wish], times: int) -> list[str]:
    """Serve requests, each client asking for the same again."""
    order = []
    for _ in range(times):
        wish = queue.first(nobody)
        assert wish is not None
        assert queue.serve(wish.client, wish.cost) is wish
        push(queue, wish.client, wish.cost)
        order.append(wish.client)
    return order


def test_many_requests_do_not_buy_more_than_few() -> None:
    queue: FairQueue[Wish] = FairQueue()
    push(queue, "many", 10, times=16)
    push(queue, "few", 10, times=2)
    assert Counter(serve(queue, 200)) == {"many": 100, "few": 100}


def test_first_come_first_served_among_equals() -> None:
    queue: FairQueue[Wish] = FairQueue()
    for client in "cab":
        push(queue, client, 5)
    assert serve(queue, 6) == list("cabcab")


@given(st.dictionaries(st.sampled_from("abcd"), st.integers(1, 50), min_size=2), st.integers(1, 5))
def test_bytes_are_equal_to_within_one_request_each(costs: dict[str, int], depth: int) -> None:
    queue: FairQueue[Wish] = FairQueue()
    for client, cost in costs.items():
        push(queue, client, cost, times=depth)
    served: Counter[str] = Counter()
    for client in serve(queue, 300):
        served[client] += costs[client]
        for one, other in [(a, b) for a in costs for b in costs if a < b]:
            assert abs(served[one] - served[other]) <= costs[one] + costs[other]


def test_an_idle_client_gains_no_credit() -> None:
    queue: FairQueue[Wish] = FairQueue()
    push(queue, "late", 10)
    queue.serve("late", 10)
    push(queue, "busy", 10, times=2)
    serve(queue, 1_000)
    push(queue, "late", 10, times=2)
    assert Counter(serve(queue, 20)) == {"busy": 10, "late": 10}


def test_who_is_held_back_by_himself_gains_no_credit_either() -> None:
    queue: FairQueue[Wish] = FairQueue()
    push(queue, "slow", 10, times=2)
    push(queue, "busy", 10, times=2)
    for _ in range(100):
        wish = queue.first(lambda wish: wish.client == "slow")
        assert wish is not None
        assert wish.client == "busy"
        push(queue, queue.serve("busy", 10).client, 10)
    assert 10 <= Counter(serve(queue, 20))["slow"] <= 11


def test_what_is_given_up_costs_nothing() -> None:
    queue: FairQueue[Wish] = FairQueue()
    first, middle, last = (Wish("a", 10) for _ in range(3))
    for wish in (first, middle, last):
        queue.push("a", wish)
    queue.drop("a", middle)
    queue.drop("a", first)
    assert len(queue) == 1
    assert queue.first(nobody) is last
    push(queue, "b", 10)
    assert serve(queue, 4) == ["a", "b", "a", "b"]
    queue.drop("b", queue._flows["b"].waiting[0])
    assert [client for client, flow in queue._flows.items() if flow.waiting] == ["a"]


def test_later_cost_is_charged_too() -> None:
    queue: FairQueue[Wish] = FairQueue()
    push(queue, "a", 10)
    push(queue, "b", 10)
    assert serve(queue, 1) == ["a"]
    queue.charge("a", 20)
    assert serve(queue, 4) == ["b", "b", "b", "a"]


def test_clients_that_never_return_are_forgotten() -> None:
    queue: FairQueue[Wish] = FairQueue()
    push(queue, "stays", 10, times=2)
    for number in range(5_000):
        push(queue, f"once-{number}", 10)
        for _ in range(2):
            wish = queue.first(nobody)
            assert wish is not None
            queue.serve(wish.client, wish.cost)
            if wish.client == "stays":
                push(queue, "stays", 10)
    assert len(queue._flows) < 300


def test_names_that_come_once_are_forgotten_although_they_owe() -> None:
    queue: FairQueue[Wish] = FairQueue()
    for number in range(3 * _MOST_FLOWS):
        push(queue, str(number), 1)
        queue.serve(str(number), 1)
    assert len(queue._flows) <= 2 * _MOST_FLOWS + 1


def test_callers_share_first_and_their_clients_within() -> None:
    queue: NestedQueue[Wish] = NestedQueue()
    for caller, client in (("a", "one"), ("a", "two"), ("a", "three"), ("b", "one")):
        queue.push(caller, client, Wish(f"{caller}/{client}", 10))
    assert len(queue) == 4
    served: Counter[str] = Counter()
    for _ in range(120):
        wish = queue.first(nobody, nobody)
        assert wish is not None
        caller, client = wish.client.split("/")
        assert queue.serve(caller, client, wish.cost) is wish
        served[wish.client] += 1
        queue.push(caller, client, Wish(wish.client, 10))
    assert served == {"a/one": 20, "a/two": 20, "a/three": 20, "b/one": 60}


def test_callers_of_the_past_are_forgotten() -> None:
    queue: NestedQueue[Wish] = NestedQueue()
    for number in range(1000):
        queue.push("busy", "c", Wish("busy", 10))
        queue.push(str(number), "c", Wish(str(number), 1))
        queue.serve(str(number), "c", 1)
        queue.serve("busy", "c", 10)
    assert len(queue._clients) <= 200
