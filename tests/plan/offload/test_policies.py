"""What every policy holds to, whatever the numbers; and the simple policies by example."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings

from headwater.errors import WrongUse
from headwater.plan.offload import POLICIES, Offload, Options, Rates, make_plan
from headwater.plan.offload.fixed import Fixed
from headwater.plan.offload.workload import Policy
from plan.offload.cases import WAYS, make_options, make_photos, random_options, random_rates, seeds

INF = float("inf")
LINK_BOUND = Rates(link=1e6, store_cores=4)
FREE = ("throughput", "efficiency", "hull")
EVERY: list[str | Policy] = [*(name for name in POLICIES if name != "fixed"), Fixed(WAYS[2])]


@pytest.mark.parametrize("policy", EVERY, ids=str)
@given(seed=seeds)
@settings(max_examples=40, deadline=None)
def test_the_contract(policy: str | Policy, seed: int) -> None:
    rng = np.random.default_rng(seed)
    options, rates = random_options(rng, int(rng.integers(0, 40))), random_rates(rng)
    plan = make_plan(policy, options, rates=rates)
    chosen = options.bytes[np.arange(len(options)), plan.choice]
    assert plan.choice.dtype == np.uint8
    assert not plan.choice.flags.writeable
    assert np.isfinite(chosen).all()
    assert plan.after.bytes == pytest.approx(chosen.sum())
    assert plan.before.bytes == pytest.approx(options.bytes[:, 0].sum())
    assert plan.reason
    assert "\n" not in plan.reason
    assert plan.counts.sum() == len(options)
    again = make_plan(policy, options, rates=rates)
    assert (again.choice == plan.choice).all()
    assert again.reason == plan.reason


@pytest.mark.parametrize("policy", FREE)
@given(seed=seeds)
@settings(max_examples=150, deadline=None)
def test_never_predicted_slower_than_none_nor_over_budget(policy: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    options, rates = random_options(rng, int(rng.integers(0, 30))), random_rates(rng)
    weights = rng.choice([0, 0.5, 1, 7], len(options)) if seed % 2 else None
    plan = make_plan(policy, options, rates=rates, weights=weights)
    assert plan.after.seconds <= plan.before.seconds
    assert plan.after.times["store CPU"] <= plan.before.seconds


@pytest.mark.parametrize("policy", FREE)
@given(seed=seeds)
@settings(max_examples=60, deadline=None)
def test_a_cap_on_store_seconds_holds(policy: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    options = random_options(rng, 30)
    rates = Rates(link=1e3, store_cores=64, store_speed=0.5, store_seconds_per_visit=rng.uniform(0, 4e-3))
    plan = make_plan(policy, options, rates=rates)
    assert plan.after.store_seconds / 0.5 <= rates.store_seconds_per_visit * 30
    assert plan.after.seconds <= plan.before.seconds


@pytest.mark.parametrize("policy", EVERY, ids=str)
def test_no_samples_and_one(policy: str | Policy) -> None:
    empty = make_options(np.zeros((0, len(WAYS))), 0.0, ways=WAYS)
    plan = make_plan(policy, empty, rates=LINK_BOUND)
    assert (len(plan), plan.offloaded, plan.speedup, plan.saving) == (0, 0, 1, 1)
    assert plan.reason.startswith("nothing is offloaded")
    one = make_options([[1e6, INF, INF, INF, INF]], 0.0, ways=WAYS)
    assert make_plan(policy, one, rates=LINK_BOUND).choice.tolist() == [0]


@pytest.mark.parametrize("policy", FREE)
def test_samples_that_are_not_visited_stay_as_they_are(policy: str) -> None:
    options = make_options([[1e6, 1e3]] * 3, [[0, 1e-3]] * 3)
    plan = make_plan(policy, options, rates=LINK_BOUND, weights=np.array([1, 0, 2]))
    assert plan.after.bytes == 3e3
    assert plan.before.visits == 3
    if policy != "throughput":
        assert plan.choice.tolist() == [1, 0, 1]


@pytest.mark.parametrize("policy", ["efficiency", "hull"])
def test_visits_decide_how_much_a_store_can_take(policy: str) -> None:
    options = make_options([[1e6, 1e3]] * 4, [[0, 0.5]] * 4)
    rates = Rates(link=1e6, store_cores=0.5)
    once = make_plan(policy, options, rates=rates)
    often = make_plan(policy, options, rates=rates, weights=np.array([1, 3, 1, 1]))
    assert once.offloaded == 0.5
    assert often.after.seconds <= often.before.seconds


@pytest.mark.parametrize("policy", FREE)
@pytest.mark.parametrize(
    ("rates", "words"),
    [
        (Rates(link=1e9, store_cores=4, trainer=1), "the trainer is the slowest"),
        (Rates(link=1e6, store_cores=0), "no cores to spare"),
        (Rates(link=1e6, store_cores=4, store_seconds_per_visit=0), "no cores to spare"),
        (Rates(link=1e6, store_cores=1e-9), "makes an epoch shorter"),
    ],
)
def test_nothing_is_done_and_the_reason_says_why(policy: str, rates: Rates, words: str) -> None:
    options = make_options([[1e6, 1e3]] * 5, [[0, 1e-3]] * 5)
    plan = make_plan(policy, options, rates=rates)
    assert not plan.choice.any()
    assert plan.reason.startswith("nothing is offloaded: ")
    assert words in plan.reason


@pytest.mark.parametrize("policy", FREE)
def test_no_smaller_option_is_a_reason(policy: str) -> None:
    plan = make_plan(policy, make_options([[1e6, 1e6, 2e6]] * 5, [[0, 0, 1e-3]] * 5), rates=LINK_BOUND)
    assert not plan.choice.any()
    assert "no option relieves it" in plan.reason


def test_the_reason_names_share_and_times() -> None:
    options = make_options([[1e6, 1e5]] * 3 + [[1e5, 1e5]], [[0, 1e-3]] * 4)
    plan = make_plan("hull", options, rates=LINK_BOUND)
    assert "75.0% of visits are offloaded" in plan.reason
    assert "from 3.1 s (link) to 0.4 s (link)" in plan.reason


def test_all_takes_the_deepest_cut_that_a_sample_has_and_no_codec() -> None:
    options = make_options([[9, 20, 30, 1, 1], [9, 20, INF, 1, 1], [9, INF, INF, 1, 1]], 0.0, ways=WAYS)
    assert make_plan("all", options, rates=LINK_BOUND).choice.tolist() == [2, 1, 0]


def test_fixed_takes_one_option_where_there_is_one() -> None:
    options = make_options([[9, 20, 30, 1, 1], [9, 20, 30, INF, 1]], 0.0, ways=WAYS)
    assert make_plan(Fixed(WAYS[3]), options, rates=LINK_BOUND).choice.tolist() == [3, 0]
    with pytest.raises(WrongUse, match="cut 7 is not among the options"):
        make_plan(Fixed(Offload(7)), options, rates=LINK_BOUND)
    with pytest.raises(WrongUse, match="give `Fixed"):
        make_plan("fixed", options, rates=LINK_BOUND)


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(WrongUse, match="none, all, fixed, throughput, efficiency, hull"):
        make_plan("best", make_options([[1.0]], 0.0), rates=LINK_BOUND)


def test_throughput_takes_one_cut_for_all_or_none() -> None:
    options = make_options(
        [[100, 300, 50, 1, 1]] * 3 + [[10, 300, 50, 1, 1]], [[0, 1, 2, 2, 2]] * 4, ways=WAYS
    )
    ample = Rates(link=1, store_cores=100)
    assert make_plan("throughput", options, rates=ample).choice.tolist() == [2] * 4
    assert not make_plan("throughput", options, rates=Rates(link=1, store_cores=0.01)).choice.any()


def test_throughput_leaves_a_trainer_alone_that_hardly_waits() -> None:
    options = make_options([[100, 50]] * 4, [[0, 1]] * 4)
    hardly, much = (Rates(link=100, store_cores=100, trainer=rate) for rate in (1.2, 1.4))
    assert not make_plan("throughput", options, rates=hardly).choice.any()
    assert make_plan("throughput", options, rates=much).choice.all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("order", ["C", "F"])
def test_types_and_memory_order_do_not_change_the_plan(dtype: type[Any], order: Literal["C", "F"]) -> None:
    options, _ = make_photos(300)
    sent, store = (np.array(column, dtype, order=order) for column in (options.bytes, options.store_seconds))
    other = Options(options.ways, sent, store, np.array(options.trainer_seconds, dtype, order=order))
    rates = Rates(link=5e7, store_cores=1)
    expected, found = make_plan("hull", options, rates=rates), make_plan("hull", other, rates=rates)
    assert found.after.seconds == pytest.approx(expected.after.seconds, rel=1e-3)
    assert (found.choice != expected.choice).mean() < 0.02
