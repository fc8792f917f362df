"""NeSSA's medoids: pieces, subset biasing, and a share that shrinks."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from columns import make_samples
from coresets import random_vectors
from headwater.errors import WrongUse
from headwater.select.craig import Craig
from headwater.select.maximisers import MAXIMISERS, Naive
from headwater.select.medoids import Medoids
from headwater.select.objectives import OBJECTIVES, GraphCut, Objective
from headwater.select.parts import Parts, Picks, Vectors
from headwater.select.samples import Samples
from headwater.select.selecting import make_selection
from headwater.select.specs import describe_selector, make_selector


def two_classes(count: int = 400, **facts: Any) -> Samples:
    vectors = random_vectors(np.random.default_rng(0), count)
    return make_samples(count, labels=np.arange(count) % 2, vectors=vectors, **{"epoch": 20, **facts})


def test_whole_classes_are_craigs() -> None:
    ours, theirs = Medoids(0.2, chunk=None).choose(two_classes()), Craig(0.2).choose(two_classes())
    assert ours.places.tolist() == theirs.places.tolist()
    assert ours.weights is not None
    assert theirs.weights is not None
    assert ours.weights.tolist() == theirs.weights.tolist()


@pytest.mark.parametrize("chunk", [20, None])
def test_another_objective_takes_what_is_best_by_it(chunk: int | None) -> None:
    samples = two_classes()
    assert samples.vectors is not None
    chosen = {name: Medoids(0.1, chunk, objective=name).choose(samples) for name in OBJECTIVES}  # type: ignore[arg-type]
    assert chosen["facility_location"].places.tolist() == Medoids(0.1, chunk).choose(samples).places.tolist()
    assert len({tuple(choice.places.tolist()) for choice in chosen.values()}) == len(OBJECTIVES)
    assert {len(choice.places) for choice in chosen.values()} == {40}
    spans = {name: farthest(samples, choice.places) for name, choice in chosen.items()}
    assert spans["k_center"] == min(spans.values())
    assert "by graph_cut" in chosen["graph_cut"].reason
    with pytest.raises(WrongUse, match="objective is 'luck'; choose from facility_location"):
        Medoids(objective="luck")  # type: ignore[arg-type]


class Counted:
    """A maximiser of one's own, which notes the pieces that it was given."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def maximise(self, objective: Objective, vectors: Vectors, parts: Parts) -> Picks:
        self.sizes += parts.sizes.tolist()
        return Naive().maximise(objective, vectors, parts)


@pytest.mark.parametrize("chunk", [20, None])
def test_who_takes_them_is_another_axis_by_name_or_as_an_object(chunk: int | None) -> None:
    samples = two_classes()
    chosen = {
        name: Medoids(0.1, chunk, maximiser=name).choose(samples).places.tolist()  # type: ignore[arg-type]
        for name in MAXIMISERS
    }
    assert chosen["naive"] == chosen["lazy"] == chosen["by_size"]
    # of a piece of 20 it asks all, which is what the naive one does
    assert (chosen["stochastic"] == chosen["naive"]) == (chunk == 20)
    own = Counted()
    found = Medoids(0.1, chunk, objective=GraphCut(), maximiser=own).choose(samples)
    same = Medoids(0.1, chunk, objective="graph_cut", maximiser="naive").choose(samples)
    assert found.places.tolist() == same.places.tolist()
    assert set(own.sizes) == {200 if chunk is None else 20}
    with pytest.raises(WrongUse, match="maximiser is 'luck'; choose from by_size, naive"):
        Medoids(maximiser="luck")  # type: ignore[arg-type]


def test_names_of_objective_and_maximiser_reach_a_store_and_objects_do_not() -> None:
    one = Medoids(objective="graph_cut", maximiser="lazy")
    assert describe_selector(one) == ("medoids", {"objective": "graph_cut", "maximiser": "lazy"})
    assert make_selector(*describe_selector(one)) == one
    with pytest.raises(WrongUse, match="no name or number"):
        describe_selector(Medoids(maximiser=Naive()))
    with pytest.raises(WrongUse, match="parameter 'maximiser' of selector 'medoids' is 3"):
        make_selector("medoids", {"maximiser": 3})


def farthest(samples: Samples, places: np.ndarray) -> float:
    """How far a sample is from the nearest of its class that was taken, at most."""
    assert samples.vectors is not None
    found = 0.0
    for label in (0, 1):
        own = samples.vectors[samples.labels == label].astype(np.float64)
        taken = samples.vectors[places[samples.labels[places] == label]].astype(np.float64)
        apart = np.linalg.norm(own[:, None] - taken[None], axis=2).min(axis=1)
        found = max(found, float(apart.max()))
    return found


def test_a_class_smaller_than_a_piece_is_solved_whole() -> None:
    samples = two_classes(100)
    assert Medoids(0.2).choose(samples).places.tolist() == Craig(0.2).choose(samples).places.tolist()


def test_every_piece_gives_its_share_in_every_epoch() -> None:
    samples = two_classes()
    draws, places = samples.draw(), np.arange(400)
    choice = Medoids(0.25, chunk=20).choose(samples)
    assert choice.weights is not None
    for label in (0, 1):
        order = sorted(places[samples.labels == label].tolist(), key=lambda place: draws[place])
        for piece in (order[begin : begin + 20] for begin in range(0, 200, 20)):
            taken = np.isin(choice.places, piece)
            assert np.count_nonzero(taken) == 5
            assert choice.weights[taken].sum() == 20


def test_pieces_are_drawn_anew_in_every_epoch() -> None:
    chosen = [set(Medoids(0.1).choose(two_classes(epoch=epoch)).places.tolist()) for epoch in range(1, 30)]
    assert all(one != other for one, other in pairwise(chosen))
    assert len(set.union(*chosen)) > 200


def test_a_piece_is_as_large_as_it_takes_to_give_one_sample() -> None:
    choice = Medoids(0.01, chunk=10).choose(two_classes())
    assert choice.weights is not None
    assert choice.weights.tolist() == [100] * 4


def test_without_a_threshold_nothing_is_dropped_whatever_the_losses() -> None:
    samples = two_classes(peak=np.zeros(400))
    choice = Medoids(1.0).choose(samples)
    assert (len(choice.places), choice.buckets) == (400, None)
    assert Medoids().needs == ("vectors",)
    assert Medoids(threshold=0.1).needs == ("vectors", "peak")


def test_what_stayed_below_the_threshold_is_dropped_and_the_unseen_stay() -> None:
    peak = np.where(np.arange(400) < 300, 0.05, 3.0)
    peak[0], peak[1], peak[2] = np.nan, 0.1, np.nextafter(np.float32(0.1), np.float32(1))
    choice = Medoids(1.0, threshold=0.1, floor=0.0).choose(two_classes(peak=peak))
    assert choice.places.tolist() == [0, 2, *range(300, 400)]
    assert choice.buckets is not None
    assert np.flatnonzero(choice.buckets == 1).tolist() == [1, *range(3, 300)]
    assert choice.reason == "100% of each class as medoids of pieces of 64, without 298 that are learned"


def test_a_floor_of_each_class_stays_the_hardest_of_it() -> None:
    peak = np.where(np.arange(400) % 2, 3.0, np.arange(400) / 1e5)
    choice = Medoids(1.0, threshold=0.1, floor=0.1).choose(two_classes(peak=peak))
    assert [place for place in choice.places if place % 2 == 0] == list(range(400 - 40, 400, 2))
    none = Medoids(1.0, threshold=9.0, floor=0.0).choose(two_classes(peak=peak))
    assert sorted(none.places % 2) == [0, 1]


def test_the_weights_are_of_those_that_are_left() -> None:
    peak = np.where(np.arange(400) < 200, 0.05, 3.0)
    choice = Medoids(0.25, threshold=0.1, floor=0.0).choose(two_classes(peak=peak))
    assert choice.weights is not None
    assert (len(choice.places), choice.weights.sum(), choice.places.min() >= 200) == (50, 200, True)


def test_it_drops_every_so_many_epochs_and_keeps_to_that_between() -> None:
    selector = Medoids(1.0, threshold=0.1, every=5, floor=0.0, explore=0.0)
    samples = two_classes(peak=np.where(np.arange(400) < 100, 0.05, 3.0), epoch=0)
    kept = []
    for epoch in range(12):
        if epoch == 6:
            samples = replace(samples, peak=np.where(np.arange(400) < 200, 0.05, 3.0).astype(np.float32))
        found = make_selection(selector, replace(samples, epoch=epoch))
        assert found.buckets is not None
        samples = replace(samples, bucket=found.buckets, state=found.state)
        kept.append(len(found))
    assert kept == [400] * 5 + [300] * 5 + [200] * 2


def test_who_is_hard_again_comes_back() -> None:
    bucket, state = np.array([1] * 100 + [0] * 300, np.uint8), {"dropped": 20}
    samples = two_classes(peak=np.full(400, 3.0), bucket=bucket, state=state, epoch=39)
    assert len(Medoids(1.0, threshold=0.1).choose(samples).places) == 300
    assert len(Medoids(1.0, threshold=0.1).choose(replace(samples, epoch=40)).places) == 400


def test_buckets_of_another_selector_say_nothing() -> None:
    samples = two_classes(peak=np.full(400, 0.0), bucket=np.ones(400, np.uint8), epoch=21)
    assert len(Medoids(1.0, threshold=0.1).choose(samples).places) == 400


@pytest.mark.parametrize(("easy", "count"), [(0, 200), (200, 40)])
def test_the_share_shrinks_once_something_is_dropped(easy: int, count: int) -> None:
    peak = np.where(np.arange(400) < easy, 0.05, 3.0)
    selector = Medoids(0.5, threshold=0.1, shrunk=0.2, floor=0.0)
    assert len(selector.choose(two_classes(peak=peak)).places) == count


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"every": 0}, "every is 0"),
        ({"chunk": 0}, "chunk of 0"),
        ({"floor": 1.5}, "floor is 1.5"),
        ({"shrunk": 0.0, "threshold": 1.0}, "share is 0.0"),
        ({"shrunk": 0.2}, "takes a threshold"),
    ],
)
def test_what_cannot_be(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(WrongUse, match=words):
        Medoids(**wrong)
