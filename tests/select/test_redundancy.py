"""One of a group for all, turn by turn; and who may be served for whom."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from numpy.typing import NDArray

from columns import make_samples, random_samples, seeds
from headwater.errors import WrongUse
from headwater.select.fresh import Fresh
from headwater.select.redundancy import representatives, stand_ins
from headwater.select.samples import Samples
from headwater.select.selecting import SELECTORS, find_selector, make_selection
from headwater.select.selection import Choice
from headwater.select.uniform import Uniform

GROUPS = [0, -1, 0, 1, -1, 1, 0, 1]
Ints = NDArray[np.int64]


def grouped(groups: list[int] | Ints = GROUPS, **facts: object) -> Samples:
    return make_samples(len(groups), group=np.array(groups, np.int32), **facts)


def test_one_of_each_group_stands_for_all_of_it() -> None:
    places, stood = representatives(grouped())
    assert set(places.tolist()) >= {1, 4}
    assert sorted(GROUPS[place] for place in places) == [-1, -1, 0, 1]
    assert (np.diff(places) > 0).all()
    assert [count for place, count in zip(places, stood, strict=True) if GROUPS[place] >= 0] == [3, 3]
    assert stood.sum() == len(GROUPS)


def test_every_member_has_its_turn() -> None:
    for seed in range(5):
        visits = np.zeros(len(GROUPS), np.int64)
        for epoch in range(6):
            places, _ = representatives(grouped(seed=seed, epoch=epoch))
            visits[places] += 1
        assert visits.tolist() == [6 if group < 0 else 2 for group in GROUPS]


def test_turns_depend_on_the_seed_and_on_the_members_alone() -> None:
    samples = grouped(epoch=4)
    first = representatives(samples)[0]
    others = {tuple(representatives(replace(samples, seed=seed))[0].tolist()) for seed in range(20)}
    assert len(others) > 3
    part = np.array([0, 1, 2, 6])
    assert set(representatives(samples.take(part))[0].tolist()) == {
        int(np.searchsorted(part, place)) for place in first if place in part
    }


def test_only_what_was_chosen_is_stood_for() -> None:
    chosen = np.array([0, 3, 4, 6])
    places, stood = representatives(grouped(), chosen)
    assert set(places.tolist()) <= set(chosen.tolist())
    assert dict(zip((GROUPS[place] for place in places), stood.tolist(), strict=True)) == {0: 2, 1: 1, -1: 1}


def test_nobody_stands_for_another_label() -> None:
    places, stood = representatives(grouped([0, 0, 0, 0], labels=[1, 2, 1, 2]))
    assert len(places) == 2
    assert stood.tolist() == [2, 2]


def test_without_groups_everything_stays() -> None:
    samples = make_samples(5)
    places, stood = representatives(samples)
    assert places.tolist() == [0, 1, 2, 3, 4]
    assert stood.tolist() == [1] * 5
    dropped, kept = (make_selection(Uniform(), samples, redundancy=way) for way in ("drop", "keep"))
    np.testing.assert_array_equal(dropped.places, kept.places)
    np.testing.assert_array_equal(dropped.weights, kept.weights)
    assert representatives(samples.take(np.empty(0, np.int64)))[0].tolist() == []


def test_a_selection_without_near_duplicates_weighs_their_groups() -> None:
    selection = make_selection(Uniform(), grouped(), redundancy="drop")
    by_group = dict(zip((GROUPS[place] for place in selection.places), selection.weights, strict=True))
    assert len(selection) == 4
    assert by_group[0] == by_group[1] == 3 * by_group[-1]
    assert selection.weights.mean() == pytest.approx(1)
    assert selection.reason.endswith("; 4 near-duplicates left out")


@pytest.mark.parametrize("name", sorted(SELECTORS))
def test_every_selector_can_be_freed_of_near_duplicates(name: str) -> None:
    rng = np.random.default_rng(7)
    samples = random_samples(rng, 200, group=rng.integers(-1, 40, 200).astype(np.int32))
    kept = make_selection(find_selector(name), samples)
    dropped = make_selection(find_selector(name), samples, redundancy="drop")
    assert set(dropped.places.tolist()) <= set(kept.places.tolist())
    assert (np.diff(dropped.places) > 0).all()
    members = dropped.places[samples.group[dropped.places] >= 0]
    pairs = list(zip(samples.group[members].tolist(), samples.labels[members].tolist(), strict=True))
    assert len(set(pairs)) == len(pairs)
    assert set(samples.labels[dropped.places].tolist()) == set(samples.labels[kept.places].tolist())


def test_weights_of_selection_and_group_multiply() -> None:
    groups = np.repeat(np.arange(50), 2)
    samples = grouped(groups, epoch=1)
    selection = make_selection(Fresh(share=0.5), samples, redundancy="drop")
    chosen = make_selection(Fresh(share=0.5), samples).places
    counts = np.bincount(groups[chosen], minlength=50)[groups[selection.places]]
    np.testing.assert_allclose(selection.weights, counts / counts.mean(), rtol=1e-6)


class Uneven:
    """Chooses all but the last, with weights, and with chances of being visited at all."""

    name, needs, explore = "uneven", (), 0.0

    def choose(self, samples: Samples) -> Choice:
        places = np.arange(len(samples) - 1)
        return Choice(places, "uneven", weights=1.0 + places % 3, chances=np.where(places % 2, 0.5, 1.0))


def test_weights_of_selection_visit_and_group_multiply() -> None:
    samples = grouped(epoch=1)
    found = make_selection(Uneven(), samples, redundancy="drop", clip=50.0)
    sizes = np.bincount(np.array(GROUPS)[:-1] + 1)  # of what was chosen
    counts = []
    for place in found.places.tolist():
        group = sizes[GROUPS[place] + 1] if GROUPS[place] >= 0 else 1
        counts.append((1 + place % 3) * (2 if place % 2 else 1) * group)
    assert len(found) == 4
    np.testing.assert_allclose(found.weights, np.array(counts) / np.mean(counts), rtol=1e-6)


def test_a_wish_that_there_is_not_is_refused() -> None:
    with pytest.raises(WrongUse, match="choose from keep, drop"):
        make_selection(Uniform(), grouped(), redundancy="repeat")


def serve(samples: Samples, cached: list[int], *, read: int | list[int] = 4, patience: int = 3) -> list[int]:
    """Who stands in for each sample."""
    marks = np.zeros(len(samples), np.bool_)
    marks[cached] = True
    last = np.broadcast_to(np.array(read, np.int32), len(samples))
    places = np.arange(len(samples))
    return stand_ins(samples, places, cached=marks, read=last, patience=patience).tolist()


def test_a_cached_member_is_served_for_one_that_is_not() -> None:
    assert serve(grouped(epoch=5), [1, 2, 5]) == [2, -1, -1, 5, -1, -1, 2, 5]


def test_without_a_cached_member_everybody_serves_himself() -> None:
    assert serve(grouped(epoch=5), []) == [-1] * 8
    assert serve(grouped(epoch=5), [1, 4]) == [-1] * 8
    assert serve(make_samples(3, epoch=5), [0]) == [-1] * 3
    assert serve(make_samples(0, epoch=5), []) == []


def test_a_member_of_another_label_is_not_served() -> None:
    samples = grouped([0, 0, 0], labels=[1, 2, 1], epoch=5)
    assert serve(samples, [0]) == [-1, -1, 0]


@pytest.mark.parametrize(("epoch", "allowed"), [(5, True), (6, True), (7, True), (8, False), (20, False)])
def test_a_sample_waits_so_many_epochs_and_no_longer(epoch: int, allowed: bool) -> None:
    """It was read in epoch 4, and may be stood in for in the three that follow."""
    assert serve(grouped([0, 0], epoch=epoch), [0], read=[0, 4]) == [-1, 0 if allowed else -1]


def test_without_patience_and_before_the_first_read_nobody_stands_in() -> None:
    assert serve(grouped([0, 0], epoch=5), [0], patience=0) == [-1, -1]
    assert serve(grouped([0, 0], epoch=1), [0], read=-1, patience=100) == [-1, -1]
    with pytest.raises(WrongUse, match="patience is -1"):
        serve(grouped([0, 0]), [0], patience=-1)


def test_no_sample_starves() -> None:
    """Whatever is cached, each is read itself at least once in patience + 1 epochs."""
    rng, patience = np.random.default_rng(3), 4
    read = np.full(len(GROUPS), -1, np.int32)
    for epoch in range(60):
        samples = grouped(epoch=epoch)
        cached, places = rng.random(len(GROUPS)) < 0.5, np.arange(len(GROUPS))
        served = stand_ins(samples, places, cached=cached, read=read, patience=patience)
        read[served < 0] = epoch
        assert (epoch - read <= patience).all()


@given(seeds)
def test_stand_ins_are_cached_members_and_of_the_sample_alone(seed: int) -> None:
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 60))
    samples = make_samples(
        count,
        labels=rng.integers(-1, 3, count),
        group=rng.integers(-1, 6, count).astype(np.int32),
        epoch=9,
        seed=seed,
    )
    cached = rng.random(count) < rng.random()
    read, places = rng.integers(-1, 9, count), np.flatnonzero(rng.random(count) < 0.7)
    found = stand_ins(samples, places, cached=cached, read=read, patience=5)
    for place, other in zip(places.tolist(), found.tolist(), strict=True):
        mates = cached & (samples.group == samples.group[place]) & (samples.labels == samples.labels[place])
        due = read[place] < 0 or 9 - read[place] > 5
        if cached[place] or samples.group[place] < 0 or due or not mates.any():
            assert other == -1
        else:
            assert mates[other]
    one = rng.integers(0, len(places)) if len(places) else 0
    alone = stand_ins(samples, places[one : one + 1], cached=cached, read=read, patience=5)
    assert alone.tolist() == found[one : one + 1].tolist()


def test_of_several_members_all_are_drawn_sometimes() -> None:
    samples = grouped([0] * 400, epoch=5)
    found = np.array(serve(samples, [0, 1, 2]))
    assert found[:3].tolist() == [-1, -1, -1]
    assert np.bincount(found[3:]).min() > 90
    assert serve(replace(samples, epoch=6), [0, 1, 2]) != found.tolist()
