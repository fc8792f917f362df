"""Decisions on records with a virtual clock: no tensors, no time."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest

from headwater.errors import WrongUse
from headwater.plan.memory import (
    AccessRecord,
    Action,
    Rates,
    TensorRecord,
    advance_triggers,
    eviction_score,
    first_needs,
    free_times,
    held_over_time,
    make_plan,
    place_fetches,
    place_triggers,
    recompute_seconds,
    simulate,
)
from headwater.plan.memory.hybrid import _Search
from headwater.plan.memory.recompute import sources

FAST = Rates(write=1000.0, read=1000.0)


def chain_of(
    sizes: list[int], *, step: float = 1.0, seconds: float = 0.1, roots: tuple[int, ...] = (0,)
) -> AccessRecord:
    """Tensors saved in a row and used in reverse; each is made of the one before, roots are not."""
    count = len(sizes)
    tensors = tuple(
        TensorRecord(
            size,
            saved=(place,),
            used=(2 * count - 1 - place,),
            parents=None if place in roots else (place - 1,),
            seconds=seconds,
        )
        for place, size in enumerate(sizes)
    )
    return AccessRecord(tensors, tuple(step * access for access in range(2 * count)))


def test_what_is_held_ends_with_the_step_that_uses_it() -> None:
    tensors = (TensorRecord(3, (0,), (2,)), TensorRecord(5, (1,), (3,)))
    alone = AccessRecord(tensors, (0.0, 1.0, 2.0, 3.0))
    together = AccessRecord(tensors, (0.0, 1.0, 2.0, 3.0), nodes=(-1, -2, 7, 7))
    assert held_over_time(alone) == [3, 8, 8, 5]
    assert held_over_time(together) == [3, 8, 8, 8]
    assert alone.peak() == 8
    with pytest.raises(WrongUse, match="one for each"):
        AccessRecord(tensors, (0.0, 1.0), nodes=(1,))


def test_free_time_counts_both_transfers() -> None:
    record = chain_of([1000, 100])
    free = free_times(record, (), FAST)
    assert free[0] == pytest.approx(3.0 - 2 * 1.0)
    assert free[1] == pytest.approx(1.0 - 2 * 0.1)


def test_lanes_carry_one_at_a_time() -> None:
    record = chain_of([1000, 1000, 1000], step=1.0)
    alone, loaded = free_times(record, (), FAST), free_times(record, (0,), FAST)
    assert loaded[1] == pytest.approx(alone[1] - 0.0)  # out: free again at 1.0; back: must be done by 5 - 1
    busy = free_times(record, (0,), Rates(write=100.0, read=1000.0))
    assert busy[1] == pytest.approx((4.0 - 1.0) - (10.0 + 10.0))


def test_fetches_are_placed_backwards_and_never_overlap() -> None:
    record = chain_of([1000, 1000, 1000, 1000])
    needs = {0: 7, 1: 6, 2: 5}
    triggers = place_triggers(record, needs, FAST)
    assert triggers == {0: 6, 1: 5, 2: 4}
    assert list(triggers) == [2, 1, 0], "what is needed first comes first"
    tight = place_triggers(record, needs, Rates(write=1000.0, read=500.0))
    assert tight == {0: 5, 1: 4, 2: 4}  # not before backward begins
    early = place_triggers(record, {0: 7}, FAST, leads={0: 1.0})
    assert early == {0: 5}


def test_what_another_one_is_made_of_is_fetched_for_that() -> None:
    record = chain_of([10, 10, 10, 10])
    assert first_needs(record, {0: "swap", 1: "swap", 2: "keep"}) == {0: 7, 1: 6}
    assert first_needs(record, {0: "swap", 1: "recompute", 2: "recompute"}) == {0: 5}
    actions: dict[int, Action] = {0: "swap", 1: "recompute", 2: "recompute"}
    triggers = place_triggers(record, first_needs(record, actions), FAST)
    outcome = simulate(record, actions, triggers, budget=100, rates=FAST)
    assert (outcome.late, triggers) == (0, {0: 4})


def test_making_again_must_be_worth_knowing_how() -> None:
    record = chain_of([1000, 1000, 1000, 1000], step=1.0, seconds=0.1)
    slow = Rates(write=500.0, read=500.0)
    free = make_plan(record, budget=2000, rates=slow)
    assert free.bytes_of("recompute") > 0
    little = make_plan(replace(record, noting_seconds=0.01), budget=2000, rates=slow)
    assert little.choices == free.choices
    assert little.overhead_seconds == pytest.approx(free.overhead_seconds + 0.01)
    dear = make_plan(replace(record, noting_seconds=100.0), budget=2000, rates=slow)
    assert dear.bytes_of("recompute") == 0
    assert dear.fits
    assert dear.overhead_seconds < free.overhead_seconds + 100
    alone = make_plan(
        replace(record, noting_seconds=100.0), budget=2000, rates=slow, ways=("keep", "recompute")
    )
    assert alone.bytes_of("recompute") > 0


def test_fetches_are_issued_earlier_where_there_is_room() -> None:
    record = chain_of([1000, 1000, 1000, 1000])
    triggers = {1: 5, 0: 6}
    held = [0, 0, 0, 0, 2000, 1000, 0, 0]
    assert advance_triggers(record, triggers, held, 3000, seconds=9.0) == {1: 4, 0: 5}
    assert advance_triggers(record, triggers, held, 4000, seconds=9.0) == {1: 4, 0: 4}
    assert advance_triggers(record, triggers, held, 4000, seconds=1.0) == {1: 4, 0: 5}
    assert advance_triggers(record, triggers, held, 1500, seconds=9.0) == triggers


@pytest.mark.parametrize("seed", range(20))
def test_fetches_that_come_earlier_pass_no_budget(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = [int(size) for size in rng.integers(50, 400, 12)]
    record = chain_of(sizes, step=0.01, seconds=0.1)
    budget = int(sum(sizes) * rng.uniform(0.5, 0.8))
    rates = Rates(50_000.0, 50_000.0)
    plan = make_plan(record, budget=budget, rates=rates)
    actions = {choice.tensor: choice.action for choice in plan.choices}
    fetches = {choice.tensor: choice.trigger for choice in plan.choices if choice.action == "swap"}
    latest = place_triggers(record, first_needs(record, actions), rates)
    outcome = simulate(record, actions, fetches, budget=budget, rates=rates)
    assert plan.fits
    assert outcome.peak <= budget
    assert outcome.late == 0
    assert all(fetches[place] <= trigger for place, trigger in latest.items())
    assert sum(fetches.values()) < sum(latest.values()), "else none came earlier"


@pytest.mark.parametrize("seed", [351, 1435, 2, 3])
def test_fetches_do_not_come_so_early_that_it_is_worse(seed: int) -> None:
    """While a tensor is still on its way out, or another one waits for its room."""
    rng = np.random.default_rng(seed)
    sizes = [int(size) for size in rng.integers(50, 2000, int(rng.integers(4, 12)))]
    record = chain_of(sizes)
    forward, backward = rng.uniform(0.002, 0.02), rng.uniform(0.002, 0.02)
    turn = len(sizes) * forward
    times = [forward * place for place in range(len(sizes))]
    record = replace(record, times=(*times, *(turn + backward * place for place in range(len(sizes)))))
    budget = int(sum(sizes) * rng.uniform(0.5, 0.95))
    write = rng.uniform(20_000, 400_000)
    rates = Rates(write, write * rng.uniform(1, 4))
    plan = make_plan(record, budget=budget, rates=rates, ways=("keep", "swap"))
    actions = {choice.tensor: choice.action for choice in plan.choices}
    outcomes = [
        simulate(record, actions, triggers, budget=budget, rates=rates)
        for triggers in (
            place_triggers(record, first_needs(record, actions), rates),
            place_fetches(record, actions, budget=budget, rates=rates),
        )
    ]
    assert plan.fits
    assert outcomes[1].peak <= budget
    assert outcomes[1].late <= outcomes[0].late


def test_recomputing_costs_more_when_what_it_starts_from_goes_too() -> None:
    record = chain_of([10, 10, 10, 10])
    assert sources(record, 3, ()) == {2}
    assert sources(record, 3, (2,)) == {1}
    assert recompute_seconds(record, 0, ()) is None
    assert recompute_seconds(record, 2, ()) == pytest.approx(0.1)
    assert recompute_seconds(record, 2, (1,)) == pytest.approx(0.1)
    assert recompute_seconds(record, 2, (3,), collective=False) == pytest.approx(0.2)


def test_what_passes_through_is_made_too_unless_nobody_can() -> None:
    saved = TensorRecord(10, (0,), (3,), parents=None)
    passed = TensorRecord(10, (), (), parents=(0,), seconds=0.3)
    lost = TensorRecord(10, (), (), parents=None)
    made = TensorRecord(10, (1,), (2,), parents=(1,), seconds=0.1)
    times = (0.0, 1.0, 2.0, 3.0)
    assert recompute_seconds(AccessRecord((saved, passed, made), times), 2, ()) == pytest.approx(0.4)
    assert recompute_seconds(AccessRecord((saved, lost, made), times), 2, ()) is None


def test_a_chain_is_made_again_in_linear_time() -> None:
    """What is passed on the way and needed later is kept: n operations for n tensors, not n squared."""
    record = chain_of([10] * 12, roots=(0,))
    actions: dict[int, Action] = dict.fromkeys(range(1, 12), "recompute")
    outcome = simulate(record, actions, {}, budget=10**6, rates=FAST)
    assert outcome.recompute_seconds == pytest.approx(11 * 0.1)


def test_the_simulation_waits_for_lanes_and_holds_back_fetches() -> None:
    record = chain_of([1000, 1000], step=0.1)
    outcome = simulate(record, {0: "swap"}, {0: 2}, budget=1500, rates=FAST)
    assert outcome.peak == 1000  # the fetch had to wait until the other tensor was gone
    assert outcome.late == 1
    assert outcome.stall_seconds == pytest.approx(0.9 + 1.0)


def test_everything_is_kept_where_it_fits() -> None:
    plan = make_plan(chain_of([10, 20, 30]), budget=60, rates=FAST)
    assert {choice.action for choice in plan.choices} == {"keep"}
    assert (plan.peak, plan.overhead_seconds, plan.reason) == (60, 0.0, "everything fits")


def test_transfers_that_hide_come_first_then_the_cheaper_way() -> None:
    hidden = make_plan(chain_of([100] * 6, step=1.0), budget=400, rates=FAST)
    assert hidden.fits
    assert {choice.action for choice in hidden.choices} == {"keep", "swap"}
    assert hidden.overhead_seconds == pytest.approx(0.0)
    slow = Rates(write=10.0, read=10.0)
    dear = make_plan(chain_of([100] * 6, step=1.0, seconds=0.01), budget=400, rates=slow)
    assert dear.fits
    assert {choice.action for choice in dear.choices} == {"keep", "recompute"}


def test_a_transfer_that_takes_a_core_is_not_free() -> None:
    record = chain_of([100] * 6, step=1.0, seconds=0.01)
    plan = make_plan(record, budget=400, rates=Rates(1000.0, 1000.0, taken=1.0))
    assert {choice.action for choice in plan.choices} == {"keep", "recompute"}


def test_a_plan_that_cannot_fit_says_so() -> None:
    plan = make_plan(chain_of([100, 500, 100]), budget=400, rates=FAST)
    assert not plan.fits
    assert "500" in plan.reason
    assert json.loads(json.dumps(plan.to_dict()))["budget"] == 400
    assert "swap" in str(plan)


def test_a_way_that_is_closed_is_not_taken() -> None:
    record = chain_of([100] * 6, seconds=0.01)
    again = make_plan(record, budget=400, rates=FAST, ways=("keep", "recompute"))
    assert again.fits
    assert again.bytes_of("swap") == 0
    assert again.bytes_of("recompute") >= 200
    carried = make_plan(record, budget=400, rates=Rates(1.0, 1.0), ways=("keep", "swap"))
    assert carried.bytes_of("recompute") == 0
    assert carried.bytes_of("swap") >= 200


def test_where_no_plan_fits_a_tensor_is_fetched_rather_than_made() -> None:
    """Making needs what it is made of beside it, and then even less fits."""
    plan = make_plan(chain_of([500, 300, 500, 300], seconds=0.001), budget=450, rates=FAST)
    assert not plan.fits
    assert plan.bytes_of("recompute") == 0


def test_mending_ends_early_and_within_its_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    played = []
    monkeypatch.setattr(
        "headwater.plan.memory.hybrid.simulate",
        lambda *args, **kwargs: played.append(1) or simulate(*args, **kwargs),
    )
    make_plan(chain_of([100] * 6), budget=400, rates=Rates(1e9, 1e9))
    assert len(played) < 20, "a plan that costs nothing cannot be mended"
    played.clear()
    hard = Rates(50.0, 50.0, taken=0.5)
    make_plan(chain_of([100 + place for place in range(200)], seconds=0.3), budget=4000, rates=hard)
    assert len(played) < 400


def test_changes_are_not_gone_through_once_enough_was_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = []
    improves = _Search._improves
    monkeypatch.setattr(_Search, "_improves", lambda self, change: looked.append(1) or improves(self, change))
    sizes = [100 + place for place in range(300)]
    make_plan(chain_of(sizes, seconds=0.3), budget=6000, rates=Rates(50.0, 50.0, taken=0.5))
    assert len(looked) < 1000, "of the choices for three tensors there are a hundred million"


@pytest.mark.parametrize("seed", range(5))
def test_the_on_line_rule_lets_go_what_costs_least_by_byte_and_time(seed: int) -> None:
    rng = np.random.default_rng(seed)
    seconds, sizes, stale = rng.exponential(1, 8), rng.integers(1, 1000, 8), rng.exponential(1, 8)
    found = [
        eviction_score(seconds=float(cost), size=int(size), stale_seconds=float(age))
        for cost, size, age in zip(seconds, sizes, stale, strict=True)
    ]
    assert int(np.argmin(found)) == int(np.argmin(seconds / (sizes * stale)))
    assert eviction_score(seconds=1, size=2, stale_seconds=3) < eviction_score(
        seconds=1, size=2, stale_seconds=2
    )


def best_overhead(record: AccessRecord, budget: int, rates: Rates) -> float | None:
    """The least of all plans that fit."""
    found: list[float] = []
    saved = record.saved
    for ways in itertools.product(("keep", "swap", "recompute"), repeat=len(saved)):
        actions: dict[int, Action] = {place: way for place, way in zip(saved, ways, strict=True)}
        again = {place for place, way in actions.items() if way == "recompute"}
        if any(recompute_seconds(record, place, again) is None for place in again):
            continue
        triggers = place_triggers(record, first_needs(record, actions), rates)
        outcome = simulate(record, actions, triggers, budget=budget, rates=rates)
        if outcome.peak <= budget:
            found.append(outcome.overhead_seconds)
    return min(found, default=None)


@pytest.mark.parametrize("seed", range(40))
def test_plans_are_close_to_the_best_of_all(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = [int(size) for size in rng.integers(50, 400, 6)]
    record = chain_of(sizes, step=0.2, seconds=float(rng.uniform(0.05, 0.4)), roots=(0, 3))
    budget = int(sum(sizes) * rng.uniform(0.5, 0.8))
    rates = Rates(float(rng.uniform(300, 1500)), float(rng.uniform(300, 1500)), float(rng.choice([0.0, 0.5])))
    plan, best = make_plan(record, budget=budget, rates=rates), best_overhead(record, budget, rates)
    assert best is not None
    assert plan.fits
    assert plan.overhead_seconds <= best * 1.05 + 1e-9
