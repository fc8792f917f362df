"""What every selector promises, whichever it is and whatever is known."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from columns import make_samples, random_samples, seeds
from headwater.select.active_bias import ActiveBias
from headwater.select.biggest_losers import BiggestLosers
from headwater.select.buckets import Buckets
from headwater.select.craig import Craig
from headwater.select.fresh import Fresh
from headwater.select.infobatch import InfoBatch
from headwater.select.k_center import FarthestFirst
from headwater.select.loss_rank import LossRank
from headwater.select.medoids import Medoids
from headwater.select.proxy import Proxy
from headwater.select.samples import COLUMNS, Samples
from headwater.select.selecting import SELECTORS, Selector, make_selection
from headwater.select.selection import Selection
from headwater.select.uniform import Uniform
from headwater.select.weights import CLIP

BY_NAME = [SELECTORS[name]() for name in SELECTORS]
VARIANTS: list[Selector] = [
    Uniform(0.3),
    Fresh(0.07),
    InfoBatch(0.95, explore=0.1),
    LossRank(0.1, corrected=True),
    ActiveBias(0.1, corrected=True),
    BiggestLosers(8.0, corrected=True),
    Proxy(0.2, by="margin"),
    Proxy(0.2, by="entropy"),
    Buckets(rate=1.0, floor=0.0, published=True, recall="none", whole_end=False),
    FarthestFirst(0.1, chunk=5, weighted=False),
    Craig(0.1, explore=0.2),
    Medoids(0.1, chunk=None, weighted=False),
    Medoids(0.5, chunk=8, threshold=1.0, every=2, floor=0.0, shrunk=0.2),
]
FLOATS = [name for name in COLUMNS if getattr(make_samples(1), name).dtype == np.float32]

every_selector = pytest.mark.parametrize("selector", BY_NAME + VARIANTS, ids=repr)
by_scores = pytest.mark.parametrize(
    "selector", [one for one in BY_NAME + VARIANTS if "vectors" not in one.needs], ids=repr
)
sizes = st.integers(1, 80)


def check(selector: Selector, samples: Samples) -> Selection:
    """What must hold of any choice, and of the selection made of it."""
    choice = selector.choose(samples)
    assert choice.places.dtype == np.int64
    assert len(choice.places) >= 1
    assert (np.diff(choice.places) > 0).all()
    assert choice.places[0] >= 0
    assert choice.places[-1] < len(samples)
    assert choice.reason
    assert "\n" not in choice.reason
    for part in (choice.weights, choice.chances):
        assert part is None or (len(part) == len(choice.places) and (part > 0).all())
    if choice.buckets is not None:
        assert (len(choice.buckets), choice.buckets.dtype) == (len(samples), np.uint8)
    found = make_selection(selector, samples)
    assert np.isin(choice.places, found.places).all()
    assert (np.diff(found.places) > 0).all()
    assert set(samples.labels[found.places]) >= set(samples.classes)
    assert np.isfinite(found.weights).all()
    assert found.weights.mean(dtype=np.float64) == pytest.approx(1, abs=1e-5)
    assert 0 <= found.weights.min() <= found.weights.max() <= CLIP * (1 + 1e-6)
    assert found.selector == selector.name
    return found


def alike(one: Selection, other: Selection) -> bool:
    same = (one.places.tolist(), one.weights.tolist()) == (other.places.tolist(), other.weights.tolist())
    buckets = [None if some.buckets is None else some.buckets.tolist() for some in (one, other)]
    return same and buckets[0] == buckets[1] and (one.reason, one.state) == (other.reason, other.state)


@every_selector
def test_it_is_a_frozen_value_with_a_name(selector: Selector) -> None:
    assert type(SELECTORS[selector.name]()) is type(selector)
    assert dataclasses.is_dataclass(selector)
    assert selector == replace(selector)  # type: ignore[type-var]
    with pytest.raises(dataclasses.FrozenInstanceError):
        selector.explore = 0.5  # type: ignore[misc]
    assert selector.explore is None or 0 <= selector.explore <= 1
    assert set(selector.needs) <= {*COLUMNS, "vectors"}


@every_selector
@given(seed=seeds, count=sizes, epoch=st.integers(1, 20), stalled=st.sampled_from([0.0, 0.5]))
@settings(max_examples=25, deadline=None)
def test_everything_known(selector: Selector, seed: int, count: int, epoch: int, stalled: float) -> None:
    rng = np.random.default_rng(seed)
    check(selector, random_samples(rng, count, epoch=epoch, epochs=21, stalled=stalled, seed=seed))


@every_selector
@given(seed=seeds, count=sizes)
@settings(max_examples=25, deadline=None)
def test_some_unknown_and_some_infinite(selector: Selector, seed: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    samples = random_samples(rng, count, unknown=0.3, classes=20)
    loss = np.array(samples.loss)
    loss[rng.random(count) < 0.1] = np.inf
    loss[0], one = 1.0, {name: np.array(getattr(samples, name)) for name in FLOATS if name != "loss"}
    for column in one.values():
        column[0] = 0.5  # else nothing may be known of a column, which is another test
    check(selector, replace(samples, loss=loss, **one))


@every_selector
@given(seed=seeds, count=sizes)
@settings(max_examples=10, deadline=None)
def test_nothing_known_in_the_first_epoch(selector: Selector, seed: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    samples = make_samples(count, labels=rng.integers(-1, 4, count), seed=seed, epochs=5)
    found = check(selector, samples)
    if selector.needs:
        assert len(found) == count
        assert set(found.weights.tolist()) == {1.0}


@pytest.mark.parametrize("name", SELECTORS)
def test_what_learns_from_visits_explores_unless_all_was_scored(name: str) -> None:
    """`proxy` chooses once and for all, and `infobatch` draws anew among all: neither knows what gets old."""
    selector, facts = SELECTORS[name](), {"epoch": 5, "bucket": np.repeat(np.uint8([1, 0]), 1000)}
    seen = random_samples(np.random.default_rng(0), 2000, **facts)
    own = selector.choose(seen).places
    explored = np.setdiff1d(make_selection(selector, seen).places, own)
    if not selector.needs or name in ("proxy", "infobatch"):
        assert not len(explored)
        return
    assert 0.02 < len(explored) / (len(seen) - len(own)) < 0.08
    assert make_selection(selector, replace(seen, all_scored=True)).places.tolist() == own.tolist()
    asked = make_selection(replace(selector, explore=0.3), replace(seen, all_scored=True))  # type: ignore[type-var]
    assert 0.25 < len(np.setdiff1d(asked.places, own)) / (len(seen) - len(own)) < 0.35
    assert make_selection(replace(selector, explore=0.0), seen).places.tolist() == own.tolist()  # type: ignore[type-var]


@by_scores
def test_all_losses_nan_in_a_later_epoch(selector: Selector) -> None:
    samples = random_samples(np.random.default_rng(0), 50, unknown=1.1, epoch=4)
    choice = selector.choose(samples)
    assert len(choice.places) == 50 or not selector.needs


@by_scores
@given(seed=seeds)
@settings(max_examples=25, deadline=None)
def test_nothing_is_left_out_because_it_is_unknown(selector: Selector, seed: int) -> None:
    rng = np.random.default_rng(seed)
    samples = random_samples(rng, 60, epoch=5, seed=seed)
    unknown = np.zeros(60, np.bool_)
    for name in selector.needs:
        column, some = np.array(getattr(samples, name)), rng.random(60) < 0.15
        column[some] = np.nan
        samples = replace(samples, **{name: column})  # type: ignore[arg-type]
        unknown |= some
    assert np.isin(np.flatnonzero(unknown), selector.choose(samples).places).all()


@every_selector
@given(seed=seeds, count=sizes)
@settings(max_examples=10, deadline=None)
def test_equal_scores(selector: Selector, seed: int, count: int) -> None:
    same: dict[str, Any] = {name: np.full(count, 0.25) for name in FLOATS}
    vectors, last = np.ones((count, 3), np.float32), np.zeros(count, np.int32)
    check(selector, make_samples(count, vectors=vectors, last=last, seed=seed, epoch=1, **same))


@every_selector
def test_one_sample_one_class_and_classes_of_one_sample(selector: Selector) -> None:
    rng = np.random.default_rng(0)
    for epoch in range(1, 9):
        assert len(check(selector, random_samples(rng, 1, epoch=epoch))) == 1
        check(selector, random_samples(rng, 30, classes=1, epoch=epoch))
        alone = random_samples(rng, 12, epoch=epoch)
        assert len(check(selector, replace(alone, labels=np.arange(12)))) == 12


@every_selector
def test_no_labels(selector: Selector) -> None:
    samples = random_samples(np.random.default_rng(0), 30)
    check(selector, replace(samples, labels=np.full(30, -1)))


@every_selector
def test_the_same_of_the_same_whatever_else_ran(selector: Selector) -> None:
    samples = random_samples(np.random.default_rng(1), 200, epoch=6, seed=4)
    columns = {name: getattr(samples, name).copy() for name in (*COLUMNS, "ids", "labels", "vectors")}
    before = check(selector, samples)
    np.random.seed(0)  # what is global must not matter
    for other in BY_NAME:
        make_selection(other, random_samples(np.random.default_rng(2), 50, epoch=2))
    assert alike(before, make_selection(selector, samples))
    assert alike(before, make_selection(replace(selector), samples))  # type: ignore[type-var]
    for name, column in columns.items():
        np.testing.assert_array_equal(getattr(samples, name), column, err_msg=f"{name} was written to")


@by_scores
def test_the_same_samples_in_whatever_rows_they_lie(selector: Selector) -> None:
    samples = random_samples(np.random.default_rng(1), 300, epoch=6, seed=4, stalled=0.5)
    rows = np.random.default_rng(2).permutation(300)
    one, other = (make_selection(selector, some) for some in (samples, samples.take(rows)))
    assert sorted(samples.ids[one.places]) == sorted(samples.ids[rows][other.places])


@every_selector
def test_its_state_and_buckets_can_be_handed_back(selector: Selector) -> None:
    samples = random_samples(np.random.default_rng(1), 200, epoch=0, epochs=30, seed=4)
    for epoch in range(30):
        found = check(selector, replace(samples, epoch=epoch, last=np.full(200, epoch - 1, np.int32)))
        samples = replace(samples, state=found.state)
        if found.buckets is not None:
            samples = replace(samples, bucket=found.buckets)


def test_selectors_load_without_torch() -> None:
    assert find_spec("torch") is not None, "this proves nothing where torch is not installed"
    program = (
        "import sys, headwater.select.selecting\n"
        "sys.exit('torch was loaded' if 'torch' in sys.modules else 0)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", program], check=True, env=environment)
