"""Every sample is in one run or held out, and every feature has a row of its own."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import WrongUse
from headwater.tune.runs import LOT, Runs, take_turns


@st.composite
def divided(draw: st.DrawFn) -> tuple[int, Runs]:
    count = draw(st.integers(2, 700))
    validation = draw(st.sampled_from([0.0, 0.1, 0.5]))
    runs = draw(st.integers(1, min(5, count - round(count * validation))))
    variants, seed = draw(st.integers(1, 3)), draw(st.integers(0, 2**40))
    stores = draw(st.integers(1, 4))
    owners = np.sort(np.random.default_rng(seed).integers(0, stores, count)) if stores > 1 else None
    settings: dict[str, Any] = {"validation": validation, "variants": variants, "owners": owners}
    return count, Runs.divide(count, runs, seed=seed, **settings)


def count_rows(runs: Runs) -> int:
    return runs.variants * sum(map(len, runs.trained)) + len(runs.held)


@given(divided())
def test_each_sample_is_somewhere_once(case: tuple[int, Runs]) -> None:
    count, runs = case
    everywhere = np.concatenate([*runs.trained, runs.held])
    assert np.array_equal(np.sort(everywhere), np.arange(count))
    sizes = [len(places) for places in runs.trained]
    assert max(sizes) - min(sizes) <= 1
    assert all((np.diff(places) > 0).all() for places in (*runs.trained, runs.held))


@given(divided())
def test_lots_fill_the_rows_in_order(case: tuple[int, Runs]) -> None:
    _, runs = case
    ends = [0, *(lot.rows.stop for lot in runs.lots)]
    assert [lot.rows.start for lot in runs.lots] == ends[:-1]
    assert ends[-1] == count_rows(runs)
    assert [lot.number for lot in runs.lots] == list(range(len(runs.lots)))
    assert all(1 <= len(lot.places) <= LOT for lot in runs.lots)


@given(divided())
def test_rows_are_those_of_the_samples(case: tuple[int, Runs]) -> None:
    """What lies in each row, by the lots, is what `rows` and `held_rows` say."""
    _, runs = case
    at = np.full((count_rows(runs), 2), -1)
    for lot in runs.lots:
        at[lot.rows, 0], at[lot.rows, 1] = lot.places, -1 if lot.held else lot.variant
    assert np.array_equal(at[runs.held_rows, 0], runs.held)
    assert (at[runs.held_rows, 1] == -1).all()
    for run, places in enumerate(runs.trained):
        seen = [at[runs.rows(run, epoch)] for epoch in range(runs.variants)]
        assert all(np.array_equal(rows[:, 0], places) for rows in seen)
        turns = np.sort(np.stack([rows[:, 1] for rows in seen], axis=1), axis=1)
        assert (turns == np.arange(runs.variants)).all(), "each sample sees each variant once"


@given(divided())
def test_lots_that_must_be_here_hold_the_rows_that_are_needed(case: tuple[int, Runs]) -> None:
    _, runs = case
    for run in range(len(runs)):
        needed = max(int(runs.rows(run, epoch).max()) for epoch in range(runs.variants))
        before = runs.lots[: runs.lots_before_run(run)]
        assert before[-1].rows.start <= needed < before[-1].rows.stop
    if len(runs.held):
        last = runs.lots[runs.lots_before_validation - 1]
        assert last.held
        assert last.rows.stop == int(runs.held_rows.max()) + 1


@given(divided(), st.data())
def test_a_lot_is_found_from_either_end_and_past_the_ends_is_none(
    case: tuple[int, Runs], data: st.DataObject
) -> None:
    _, runs = case
    everything, number = list(runs.lots), data.draw(st.integers(0, len(runs.lots) - 1))
    for found in (runs.lots[number], runs.lots[number - len(runs.lots)], runs.lots[number : number + 1][0]):
        assert (found.number, found.first) == (number, everything[number].first)
        assert np.array_equal(found.places, everything[number].places)
    with pytest.raises(IndexError):
        runs.lots[len(everything)]


def test_lots_of_many_samples_take_no_memory() -> None:
    """1e8 samples are a million and a half of lots: an object for each would be some hundred megabytes."""
    many = np.broadcast_to(np.int64(0), 10**8)
    tracemalloc.start()
    try:
        lots = Runs((many, many), many[:1000], variants=2).lots
        found = lots[-1]
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(lots) == 4 * 10**8 // LOT + 16
    assert (found.number, found.rows.stop) == (len(lots) - 1, 4 * 10**8 + 1000)
    assert held < 50_000


@given(st.lists(st.integers(0, 300), min_size=1, max_size=5), st.integers(1, 50))
def test_the_samples_of_all_stores_come_evenly_and_each_in_order(sizes: list[int], length: int) -> None:
    owners = np.repeat(np.arange(len(sizes)), sizes).astype(np.intp)
    turns = take_turns(owners)
    assert np.array_equal(np.sort(turns), np.arange(len(owners)))
    for store, size in enumerate(sizes):
        assert (np.diff(turns[owners[turns] == store]) > 0).all()
        came = np.cumsum(owners[turns] == store)
        due = size * np.arange(1, len(owners) + 1) / max(1, len(owners))
        assert np.abs(came - due).max(initial=0) <= len(sizes)


def test_what_is_trained_on_does_not_depend_on_who_has_it() -> None:
    one = Runs.divide(300, 2, validation=0.1, variants=2, seed=5)
    owners = np.repeat(np.arange(3), 100).astype(np.intp)
    three = Runs.divide(300, 2, validation=0.1, variants=2, seed=5, owners=owners)
    assert all(np.array_equal(a, b) for a, b in zip(one.trained, three.trained, strict=True))
    assert np.array_equal(one.held, three.held)
    assert len(np.unique(owners[three.lots[0].places])) == 3


def test_lots_of_one_stretch_are_alike() -> None:
    runs = Runs.divide(500, 2, validation=0.2, variants=2, seed=1)
    found: dict[int, set[tuple[int, bool]]] = {}
    for lot in runs.lots:
        found.setdefault(lot.stretch, set()).add((lot.variant, lot.held))
    assert [next(iter(kinds)) for kinds in found.values()] == [
        (0, False),
        (1, False),
        (0, True),
        (0, False),
        (1, False),
    ]
    assert all(len(kinds) == 1 for kinds in found.values())


def test_the_seed_decides() -> None:
    one, same, other = (Runs.divide(300, 3, validation=0.1, variants=1, seed=seed) for seed in (5, 5, 6))
    assert all(np.array_equal(a, b) for a, b in zip(one.trained, same.trained, strict=True))
    assert not np.array_equal(one.trained[0], other.trained[0])


def test_the_held_out_samples_do_not_depend_on_the_number_of_runs() -> None:
    one, three = (Runs.divide(300, runs, validation=0.1, variants=1, seed=5) for runs in (1, 3))
    assert np.array_equal(one.held, three.held)


@pytest.mark.parametrize("runs", [0, 10])
def test_too_many_runs(runs: int) -> None:
    with pytest.raises(WrongUse, match=f"9 samples to train on cannot be divided into {runs} runs"):
        Runs.divide(10, runs, validation=0.1, variants=1, seed=0)
