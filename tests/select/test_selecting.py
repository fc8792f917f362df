"""From a choice to a selection: classes, exploration, weights, and what a selector was never told."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from numpy.typing import NDArray

from columns import make_samples, random_samples, seeds
from headwater.errors import WrongUse
from headwater.select.samples import Samples
from headwater.select.selecting import SELECTORS, find_selector, make_selection, select_all
from headwater.select.selection import Choice
from headwater.select.uniform import Uniform
from headwater.select.weights import CLIP


@dataclass(frozen=True, eq=False)
class Told:
    """Chooses what it is told to."""

    places: list[int]
    weights: NDArray[np.floating[Any]] | None = None
    chances: NDArray[np.floating[Any]] | None = None
    explore: float = 0.0
    needs: tuple[str, ...] = ()
    name = "told"

    def choose(self, samples: Samples) -> Choice:
        return Choice(np.array(self.places, np.int64), "told so", self.weights, self.chances)


@dataclass(frozen=True)
class Coin:
    """Each sample by a coin of its own."""

    rates: tuple[float, ...]
    explore: float = 0.0
    name = "coin"
    needs = ()

    def choose(self, samples: Samples) -> Choice:
        places = np.flatnonzero(samples.draw() < np.array(self.rates))
        return Choice(places, "by a coin", chances=np.array(self.rates)[places])


@given(seed=seeds)
@settings(max_examples=100, deadline=None)
def test_no_class_vanishes_and_no_more_than_one_sample_of_it_is_added(seed: int) -> None:
    rng = np.random.default_rng(seed)
    samples = random_samples(rng, int(rng.integers(1, 40)), classes=8)
    chosen = np.flatnonzero(rng.random(len(samples)) < 0.3)
    chosen = chosen if len(chosen) else np.array([0])
    found = make_selection(Told(chosen.tolist()), samples)
    assert set(samples.labels[found.places]) >= set(samples.classes)
    added = np.setdiff1d(found.places, chosen)
    lost = set(samples.classes) - set(samples.labels[chosen])
    assert sorted(samples.labels[added]) == sorted(lost)
    assert (np.diff(found.places) > 0).all()
    assert ("to explore or for their class" in found.reason) == bool(lost)


def test_which_sample_of_a_lost_class_is_a_draw_of_every_epoch() -> None:
    samples = make_samples(50, labels=[0] * 10 + [1] * 40)
    found = {make_selection(Told([0]), replace(samples, epoch=epoch)).places[1] for epoch in range(30)}
    assert len(found) > 10


def test_without_a_label_is_no_class() -> None:
    samples = make_samples(5, labels=[0, 0, -1, -1, -1])
    assert make_selection(Told([1]), samples).places.tolist() == [1]


def test_a_share_of_all_is_there_to_explore() -> None:
    samples = make_samples(20_000)
    selector = Told(list(range(10_000)), explore=0.1)
    found = make_selection(selector, samples).places
    assert np.count_nonzero(found >= 10_000) == pytest.approx(1000, rel=0.15)
    assert np.count_nonzero(found < 10_000) == 10_000
    other = make_selection(selector, replace(samples, epoch=1)).places
    assert len(np.intersect1d(found[10_000:], other[10_000:])) == pytest.approx(100, rel=0.5)


def test_nothing_is_explored_where_all_is_chosen_or_nobody_asked() -> None:
    samples = make_samples(100)
    assert len(make_selection(Told([0]), samples)) == 1
    weights = np.arange(1.0, 101)
    found = make_selection(Told(list(range(100)), weights=weights, explore=0.5), samples)
    assert found.weights.tolist() == pytest.approx(weights / weights.mean())


def test_chances_and_weights_become_weights_of_mean_1() -> None:
    choice = Told([0, 2], weights=np.array([3.0, 1.0]), chances=np.array([1.0, 0.5]))
    found = make_selection(choice, make_samples(4))
    assert found.weights.tolist() == pytest.approx([6 / 5, 4 / 5])
    assert make_selection(Told([0, 2]), make_samples(4)).weights.tolist() == [1, 1]


def test_a_sample_for_its_class_counts_once() -> None:
    choice = Told([0], weights=np.array([3.0]))
    found = make_selection(choice, make_samples(2, labels=[0, 1]))
    assert found.weights.tolist() == pytest.approx([1.5, 0.5])


@pytest.mark.parametrize("explore", [0.0, 0.3])
def test_exploring_keeps_weighted_sums_right_in_expectation(explore: float) -> None:
    rng = np.random.default_rng(0)
    values, rates = rng.random(2000), tuple(rng.uniform(0.3, 1, 2000))
    values -= np.array(rates)  # so that who comes seldom is unlike who comes often
    samples = make_samples(2000)
    found = []
    for seed in range(150):
        chosen = make_selection(Coin(rates, explore), replace(samples, seed=seed))
        found.append(values[chosen.places] @ chosen.weights / len(chosen))
    error = np.std(found) / np.sqrt(len(found))
    assert np.mean(found) == pytest.approx(values.mean(), abs=4 * error)
    assert 4 * error < 0.01


def test_the_clip_is_handed_on() -> None:
    weights = np.append(np.ones(99), 1000)
    for clip in (CLIP, 20):
        found = make_selection(Told(list(range(100)), weights=weights), make_samples(100), clip=clip)
        assert found.weights.max() == pytest.approx(clip)


def test_what_was_never_told_is_demanded_after_the_first_epoch() -> None:
    selector = Told([0], needs=("loss", "margin"))
    make_selection(selector, make_samples(3))
    with pytest.raises(WrongUse, match="'told' learns from 'loss', and no number of it is known; call"):
        make_selection(selector, make_samples(3, epoch=1))
    with pytest.raises(WrongUse, match="learns from 'margin'"):
        make_selection(selector, make_samples(3, epoch=1, loss=[1, np.nan, np.nan]))
    make_selection(selector, make_samples(3, epoch=1, loss=[1, np.nan, np.nan], margin=[np.nan, 0, 1]))
    with pytest.raises(WrongUse, match="learns from 'vectors'"):
        make_selection(Told([0], needs=("vectors",)), make_samples(3, epoch=1))


def test_no_samples_and_no_choice_are_refused() -> None:
    with pytest.raises(WrongUse, match="no samples to select from"):
        make_selection(Uniform(), make_samples(0))
    with pytest.raises(WrongUse, match="'told' chose no sample"):
        make_selection(Told([]), make_samples(3))


def test_selectors_by_name() -> None:
    assert find_selector("uniform") == Uniform()
    own = Told([0])
    assert find_selector(own) is own
    with pytest.raises(WrongUse, match="there is no selector 'best'; choose from uniform, fresh"):
        find_selector("best")
    assert all(SELECTORS[name]().name == name for name in SELECTORS)


def test_everything() -> None:
    found = select_all(make_samples(4, epoch=2), name="none", reason="nothing was asked for")
    assert (found.places.tolist(), found.weights.tolist()) == ([0, 1, 2, 3], [1, 1, 1, 1])
    assert (found.effective, found.epoch, len(found)) == (4, 2, 4)
    assert found.served is found.places


def test_stand_ins_are_what_is_read() -> None:
    found = select_all(make_samples(3), name="none", reason="")
    assert replace(found, stand_ins=np.array([-1, 0, -1])).served.tolist() == [0, 0, 2]
