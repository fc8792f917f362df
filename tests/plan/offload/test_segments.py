"""Hulls of many samples at once, against one sample at a time."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings

from headwater.plan.offload import Options, Rates
from headwater.plan.offload.segments import Block, hulls
from headwater.plan.offload.workload import Workload
from plan.offload.cases import make_options, random_options, seeds


def hull_of(sent: np.ndarray, store: np.ndarray) -> list[int]:
    """Options that are best at some price of a store second, by trying many prices."""
    prices = np.concatenate([[0], np.logspace(2, 8, 300), [1e12]])[::-1]
    order: list[int] = []
    for price in prices:
        value = sent + price * store
        best = int(np.lexsort((store, sent, value))[0])
        if not order or order[-1] != best:
            order.append(best)
    return order


def walk(options: Options) -> tuple[list[list[int]], list[list[float]]]:
    """Options that each sample passes, and the efficiency of each step."""
    work = Workload.of(options, rates=Rates(link=1, store_cores=1), weights=None)
    block = Block.of(work, slice(0, len(options)))
    passed: list[list[int]] = [[0] for _ in range(len(options))]
    slopes: list[list[float]] = [[] for _ in range(len(options))]
    for some in hulls(block, block.cost(1.0, 0.0)):
        for row, target, slope in zip(some.rows, some.targets, some.efficiency, strict=True):
            passed[row].append(int(target))
            slopes[row].append(float(slope))
    return passed, slopes


@given(seed=seeds)
@settings(max_examples=25, deadline=None)
def test_a_hull_holds_what_is_best_at_some_price(seed: int) -> None:
    options = random_options(np.random.default_rng(seed), 6)
    passed, slopes = walk(options)
    for sent, store, found, slope in zip(options.bytes, options.store_seconds, passed, slopes, strict=True):
        points = {(sent[option], store[option]) for option in hull_of(sent, store)}
        assert points <= {(sent[option], store[option]) for option in found}
        assert slope == sorted(slope, reverse=True)
        assert [sent[option] for option in found] == sorted((sent[option] for option in found), reverse=True)


def test_samples_that_are_not_visited_have_no_segments() -> None:
    options = make_options([[9, 5, 1]] * 50, [[0, 1, 3]] * 50)
    visits = np.zeros(50)
    visits[7] = 2
    work = Workload.of(options, rates=Rates(link=1, store_cores=1), weights=visits)
    block = Block.of(work, slice(0, 50))
    rows = np.concatenate([some.rows for some in hulls(block, block.cost(1.0, 0.0))])
    assert rows.tolist() == [7, 7]
