"""The time model against figures worked out by hand, and against a simulation of the pipeline."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import WrongUse
from headwater.plan.finetune import Cut, Rates, Stages, Work

seconds = st.floats(0.001, 1000)


def stages(extract: float, train: float, rest: float = 0.0) -> Stages:
    return Stages(store=extract, link=0.0, rest=rest, train=train)


def test_one_run_is_one_after_the_other() -> None:
    assert stages(30, 20).seconds(1) == 50


def test_figures_of_the_published_readme() -> None:
    """31.4 s of extraction and 43.8 s of training: 75.2, 59.5 and 54.3 s for one, two and three runs."""
    found = [stages(31.4, 43.8).seconds(runs) for runs in (1, 2, 3)]
    assert found == pytest.approx([75.2, 59.5, 54.27], abs=0.01)


@given(seconds, seconds, st.integers(1, 20))
def test_the_formula_is_the_published_one_where_stores_do_all_layers(
    extract: float, train: float, runs: int
) -> None:
    by_hand = extract / runs + (runs - 1) / runs * max(extract, train) + train / runs
    assert stages(extract, train).seconds(runs) == pytest.approx(by_hand)


@given(seconds, seconds, st.integers(1, 20))
def test_it_is_what_a_pipeline_of_equal_runs_takes(extract: float, train: float, runs: int) -> None:
    here = done = 0.0
    for _ in range(runs):
        here += extract / runs
        done = max(here, done) + train / runs
    assert stages(extract, train).seconds(runs) == pytest.approx(done)


@given(seconds, seconds, st.integers(1, 20))
def test_more_runs_never_take_longer(extract: float, train: float, runs: int) -> None:
    one = stages(extract, train)
    assert one.seconds(runs + 1) <= one.seconds(runs) * (1 + 1e-12)
    assert one.seconds(runs) >= max(extract, train) * (1 - 1e-12)


@given(seconds, seconds, st.integers(1, 20))
def test_a_tuner_that_does_everything_gains_nothing_from_runs(rest: float, train: float, runs: int) -> None:
    alone = Stages(store=0, link=0, rest=rest, train=train)
    assert alone.seconds(runs) == pytest.approx(rest + train)


def test_stores_share_the_work_until_the_tuners_link_is_full() -> None:
    cut, work = Cut("features", 0.01, 2_000), Work(1000)
    rates = Rates(store_cores=0.5, store_link=1e5, tuner_link=3e5)
    one, two, four = (Stages.of(cut, work, rates=rates, stores=n) for n in (1, 2, 4))
    assert (one.store, two.store, four.store) == (20, 10, 5)
    assert (one.link, two.link) == (20, 10)
    assert four.link == pytest.approx(2e6 / 3e5)
    assert (one.bottleneck, four.bottleneck) == ("stores", "link")


def test_variants_and_held_out_samples_are_extracted_and_epochs_trained() -> None:
    work = Work(images=100, held=10, variants=3, epochs=5, train_seconds=0.1)
    found = Stages.of(Cut("c", 1.0, 10, 2.0), work, rates=Rates(2.0, 5.0, 5.0, 4.0), stores=1)
    assert (found.store, found.link, found.rest, found.train) == (155, 620, 155, 50)
    assert found.extract == 621, "and the first image has to go through the two others"


@given(seconds, seconds, seconds, st.integers(1, 40))
def test_extraction_is_what_a_pipeline_of_equal_lots_takes(
    store: float, link: float, rest: float, lots: int
) -> None:
    ends = [0.0, 0.0, 0.0]
    for _ in range(lots):
        before = 0.0
        for stage, whole in enumerate((store, link, rest)):
            ends[stage] = before = max(before, ends[stage]) + whole / lots
    found = Stages.of(
        Cut("c", store / lots, link / lots, rest / lots),
        Work(lots),
        rates=Rates(1.0, 1.0, 1.0, 1.0),
        stores=1,
    )
    assert found.extract == pytest.approx(ends[-1])


def test_what_is_not_known_is_never_the_slowest() -> None:
    found = Stages.of(Cut("c", 1.0, 10, 2.0), Work(100), rates=Rates(), stores=1)
    assert (found.extract, found.seconds(3)) == (0, 0)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Work(0), "must be at least 1"),
        (lambda: Work(1, held=-1), "held=-1 at least 0"),
        (lambda: Work(1, train_seconds=math.inf), "train_seconds is inf"),
        (lambda: Rates(store_cores=0), "store_cores is 0"),
        (lambda: Rates(tuner_link=math.nan), "tuner_link is nan"),
        (lambda: Cut("c", -1, 0), "store_seconds of cut 'c' is -1"),
        (lambda: Cut("c", 0, math.nan), "bytes of cut 'c' is nan"),
        (lambda: Stages.of(Cut("c", 0, 0), Work(1), rates=Rates(), stores=0), "stores=0"),
        (lambda: stages(1, 1).seconds(0), "runs=0"),
    ],
)
def test_wrong_numbers_are_named(make: object, says: str) -> None:
    with pytest.raises(WrongUse, match=says):
        make()  # type: ignore[operator]
