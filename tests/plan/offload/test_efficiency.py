"""The published greedy: against a plain loop, the optimum of its candidates, and the published shape."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from numpy.typing import NDArray

from headwater.plan.offload import Offload, OffloadPlan, Options, Rates, make_plan
from headwater.plan.offload.fixed import Fixed
from headwater.plan.offload.workload import Workload
from plan.offload.cases import WAYS, make_options, make_photos, optimum, random_options, seeds

CUTS = WAYS[:3]


def greedy(options: Options, rates: Rates) -> NDArray[np.uint8]:
    """As the paper has it, sample by sample, for link and store CPU; ways are cuts without codec."""
    sent, store = options.bytes, options.store_seconds
    best = sent.argmin(axis=1)
    rows = np.arange(len(sent))
    reduction, seconds = sent[:, 0] - sent[rows, best], store[rows, best]
    with np.errstate(divide="ignore", invalid="ignore"):
        efficiency = np.where(reduction > 0, reduction / seconds, 0)
    choice, net, cpu = np.zeros(len(sent), np.uint8), sent[:, 0].sum(), 0.0
    for row in np.argsort(-efficiency, kind="stable"):
        net, cpu = net - reduction[row], cpu + seconds[row]
        if reduction[row] == 0 or net / rates.link < cpu / rates.store_cores:
            break
        choice[row] = best[row]
    return choice


@given(seed=seeds)
@settings(max_examples=150, deadline=None)
def test_the_same_as_the_published_loop(seed: int) -> None:
    rng = np.random.default_rng(seed)
    options = random_options(rng, int(rng.integers(1, 60)), ways=CUTS, trainer=False)
    # not round, so that no rule hangs on the last bit
    rates = Rates(link=rng.uniform(1e3, 1e7), store_cores=rng.uniform(0.01, 8))
    found = make_plan("efficiency", options, rates=rates).choice
    assert found.tolist() == greedy(options, rates).tolist()


@given(seed=seeds)
@settings(max_examples=150, deadline=None)
def test_at_most_one_samples_link_time_behind_the_best_of_its_candidates(seed: int) -> None:
    rng = np.random.default_rng(seed)
    options = random_options(rng, 6, ways=WAYS[:2], trainer=False)
    rates = Rates(link=rng.uniform(1e3, 1e6), store_cores=rng.uniform(0.01, 2))
    work = Workload.of(options, rates=rates, weights=None)
    best = optimum(work)
    saved = np.where(np.isfinite(options.bytes[:, 1]), options.bytes[:, 0] - options.bytes[:, 1], 0)
    plan = make_plan("efficiency", options, rates=rates)
    assert best * (1 - 1e-9) <= plan.after.seconds <= best + max(saved.max(), 0) / rates.link + 1e-9


def test_the_earliest_of_equally_small_forms() -> None:
    options = make_options([[9e6, 1e3, 1e3]], [[0, 1e-3, 2e-3]])
    assert make_plan("efficiency", options, rates=Rates(link=1e6, store_cores=1)).choice.tolist() == [1]


def test_codecs_are_not_candidates() -> None:
    options = make_options([[9e6, 1e6, 1e3]], 0.0, ways=(Offload(0), Offload(1), Offload(1, "zstd")))
    assert make_plan("efficiency", options, rates=Rates(link=1e6, store_cores=1)).choice.tolist() == [1]


def test_it_starts_only_if_the_link_is_the_bottleneck() -> None:
    options = make_options([[1e6, 1e3]] * 4, [[0, 1e-3]] * 4, [[3, 0]] * 4)
    assert not make_plan("efficiency", options, rates=Rates(1e6, 4, trainer_cores=1)).choice.any()
    assert make_plan("efficiency", options, rates=Rates(1e6, 4, trainer_cores=16)).choice.all()


def test_the_sample_at_which_it_stops_is_not_counted() -> None:
    # two samples; the second would need more store time than link time is left
    options = make_options([[10, 1], [10, 2]], [[0, 5], [0, 20]])
    plan = make_plan("efficiency", options, rates=Rates(link=1, store_cores=1))
    assert plan.choice.tolist() == [1, 0]
    assert (plan.after.bytes, plan.after.store_seconds) == (11, 5)


def plans(cores: float) -> dict[str, OffloadPlan]:
    options, _ = make_photos(2000)
    rates = Rates(link=430e6 / 8, store_cores=cores)
    policies = {name: name for name in ("all", "efficiency", "hull")} | {"fixed": Fixed(Offload(2))}
    return {name: make_plan(policy, options, rates=rates) for name, policy in policies.items()}


def test_the_published_shape_with_ample_cores() -> None:
    found, (_, raw) = plans(64), make_photos(2000)
    assert found["efficiency"].offloaded == pytest.approx((raw > 150_528).mean())
    assert found["efficiency"].saving == pytest.approx(raw.sum() / np.minimum(raw, 150_528).sum())
    assert found["fixed"].saving == pytest.approx(raw.mean() / 150_528)
    assert found["all"].speedup < 1 < found["fixed"].speedup < found["efficiency"].speedup
    assert found["hull"].speedup == pytest.approx(found["efficiency"].speedup)


@pytest.mark.parametrize("cores", [0.5, 1, 2, 4])
def test_the_published_shape_with_few_cores(cores: float) -> None:
    found = plans(cores)
    for name in ("efficiency", "hull"):
        assert found[name].speedup >= max(1, found["fixed"].speedup)
    assert (found["fixed"].speedup < 1) == (cores <= 1)
    assert found["hull"].speedup >= found["efficiency"].speedup * 0.999
