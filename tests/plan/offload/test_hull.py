"""Ours: against the true optimum, and what more cores, more options and a starved trainer CPU change."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings

from headwater.plan.offload import Offload, Options, Rates, make_plan
from headwater.plan.offload.hull import _SEARCHED, _Trial
from headwater.plan.offload.segments import Block, hulls
from headwater.plan.offload.workload import Workload
from plan.offload.cases import WAYS, make_options, optimum, random_options, random_rates, seeds


def one_segment(work: Workload) -> float:
    """The most that one segment can move: its link time or its store time, whichever is less."""
    block, rates, most = Block.of(work, slice(0, len(work.options))), work.rates, 0.0
    for some in hulls(block, block.cost(1 / rates.link, 0)):
        cores = rates.store_cores * rates.store_speed
        with np.errstate(divide="ignore", invalid="ignore"):
            store = np.where(some.change[2] > 0, some.change[2] / cores, 0)
        most = max(most, float(np.minimum(-some.change[0] / rates.link, store).max()))
    return most


@given(seed=seeds)
@settings(max_examples=150, deadline=None)
def test_at_most_one_segment_behind_the_optimum(seed: int) -> None:
    rng = np.random.default_rng(seed)
    options, rates = random_options(rng, 5, trainer=False), random_rates(rng, trainer=False)
    work = Workload.of(options, rates=rates, weights=rng.choice([0.5, 1, 3], 5))
    best = optimum(work)
    plan = make_plan("hull", options, rates=rates, weights=work.visits)
    assert best * (1 - 1e-9) <= plan.after.seconds <= best + one_segment(work) + 1e-9


@given(seed=seeds)
@settings(max_examples=60, deadline=None)
def test_the_bound_is_a_bound(seed: int) -> None:
    rng = np.random.default_rng(seed)
    options, rates = random_options(rng, 4), random_rates(rng)
    work = Workload.of(options, rates=rates, weights=None)
    best = optimum(work)
    for weight in (0.0, 0.2, 0.5, 0.9, 1.0):
        assert _Trial.of(work, weight).bounds()[0] <= best * (1 + 1e-9)


@pytest.mark.parametrize("alike", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_near_the_bound_whichever_of_the_four_binds(seed: int, alike: bool) -> None:
    rng = np.random.default_rng(seed)
    options, rates = random_options(rng, 2000), random_rates(rng)
    if alike:
        first = (options.bytes[0], options.store_seconds[0], options.trainer_seconds[0])
        options = make_options(*(np.tile(row, (2000, 1)) for row in first), ways=WAYS)
    work = Workload.of(options, rates=rates, weights=None)
    bound = max(_Trial.of(work, weight).bounds()[0] for weight in np.linspace(0, 1, 21))
    assert make_plan("hull", options, rates=rates).after.seconds <= 1.05 * bound


def test_near_the_bound_where_the_weight_is_sought_on_some_samples_only() -> None:
    # smaller forms cost the trainer more, and the other way round: neither end of the weights will do
    rng = np.random.default_rng(2)
    size, work = rng.uniform(50, 150, 70_000), rng.uniform(50, 150, 70_000)
    sent, trainer = np.stack([size, size / 9, size], axis=1), np.stack([work, work, work / 9], axis=1)
    options = make_options(sent, [[0, 1, 1]], trainer)
    rates = Rates(link=1, store_cores=0.02, trainer_cores=1)
    plan = make_plan("hull", options, rates=rates)
    whole = Workload.of(options, rates=rates, weights=None)
    assert len(options) > 2 * _SEARCHED
    assert min(plan.counts) > 1000
    assert plan.after.seconds <= 1.01 * max(
        _Trial.of(whole, weight).bounds()[0] for weight in (0.4, 0.5, 0.6)
    )


@given(seed=seeds)
@settings(max_examples=60, deadline=None)
def test_more_cores_or_options_do_no_harm_beyond_one_segment(seed: int) -> None:
    rng = np.random.default_rng(seed)
    options, rates = random_options(rng, 20, trainer=False), random_rates(rng, trainer=False)
    more = Rates(rates.link, rates.store_cores * 1.5 + 0.1, store_speed=rates.store_speed)
    fewer = Options(
        WAYS[:3], options.bytes[:, :3], options.store_seconds[:, :3], options.trainer_seconds[:, :3]
    )
    base = make_plan("hull", options, rates=rates).after.seconds
    allowed = one_segment(Workload.of(options, rates=more, weights=None)) + 1e-9
    assert make_plan("hull", options, rates=more).after.seconds <= base + allowed
    allowed = one_segment(Workload.of(options, rates=rates, weights=None)) + 1e-9
    assert base <= make_plan("hull", fewer, rates=rates).after.seconds + allowed


def test_options_off_the_hull_are_never_taken() -> None:
    # the second lies above the line from the first to the third
    options = make_options([[100, 80, 10]] * 50, [[0, 1, 2]] * 50)
    for cores in (0.1, 0.5, 1, 5, 50):
        plan = make_plan("hull", options, rates=Rates(link=100, store_cores=cores))
        assert plan.counts[1] == 0
        assert plan.counts[2] > 0


def test_cheap_segments_of_all_come_before_dear_segments_of_one() -> None:
    ways = (Offload(0), Offload(2), Offload(2, "jxl1"))
    options = make_options([[100, 40, 30]] * 10, [[0, 1, 4]] * 10, ways=ways)
    few, some, many = (make_plan("hull", options, rates=Rates(1, cores)) for cores in (0.01, 0.05, 1))
    assert few.counts[2] == 0 < few.counts[0]
    assert some.counts[0] == 0 < some.counts[1] * some.counts[2]
    assert many.counts[2] == 10


def test_it_stops_when_the_trainer_is_the_slowest() -> None:
    options = make_options([[100, 10]] * 10, [[0, 1]] * 10)
    plan = make_plan("hull", options, rates=Rates(link=100, store_cores=1e6, trainer=2))
    assert plan.after.seconds == 5
    assert plan.offloaded == pytest.approx(0.6)


def test_a_starved_trainer_cpu_is_relieved() -> None:
    options = make_options([[100, 300]] * 10, [[0, 1]] * 10, [[4, 1]] * 10)
    plan = make_plan("hull", options, rates=Rates(link=1e5, store_cores=100, trainer_cores=1))
    assert plan.before.bottleneck == "trainer CPU"
    assert plan.choice.all()
    assert plan.speedup == 4


def test_smaller_bytes_are_refused_where_they_starve_the_trainers_cpu() -> None:
    options = make_options([[100, 50]] * 10, [[0, 1]] * 10, [[0.9, 3]] * 10)
    plan = make_plan("hull", options, rates=Rates(link=100, store_cores=100, trainer_cores=1))
    assert plan.after.seconds <= plan.before.seconds
    assert plan.offloaded < 0.2


def test_link_and_trainer_cpu_are_relieved_together_where_no_single_option_does() -> None:
    # alike, so only a mixture of the second and third option meets both
    options = make_options([[100, 10, 90]] * 100, [[0, 1, 1]] * 100, [[100, 90, 10]] * 100)
    plan = make_plan("hull", options, rates=Rates(link=1, store_cores=1e6, trainer_cores=1))
    assert plan.before.seconds == 10_000
    assert plan.after.seconds == pytest.approx(5_000, rel=0.02)


def test_ties_keep_the_order_within_a_sample_and_between_samples() -> None:
    # three hull points of one slope, and equal samples: taken in order of samples
    options = make_options([[30, 20, 10]] * 8, [[0, 1, 2]] * 8)
    plan = make_plan("hull", options, rates=Rates(link=10, store_cores=1))
    assert plan.choice.tolist() == sorted(plan.choice.tolist(), reverse=True)
    assert 0 < plan.offloaded < 1


def test_options_that_cost_the_store_nothing_are_taken_even_without_cores() -> None:
    options = make_options([[100, 50, 20], [100, math.inf, 20]], [[0, 0, 1], [0, 0, 1]])
    plan = make_plan("hull", options, rates=Rates(link=1, store_cores=0))
    assert plan.choice.tolist() == [1, 0]


def test_a_plan_over_many_blocks_is_that_of_the_parts_with_ample_cores() -> None:
    options = random_options(np.random.default_rng(3), 40_000, trainer=False)
    rates = Rates(link=1e3, store_cores=1e6)
    plan = make_plan("hull", options, rates=rates)
    smallest = options.bytes.min(axis=1)
    assert plan.after.bytes == smallest.sum()
