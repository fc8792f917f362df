"""Resuming: each mistake that other loaders made is a test here, named for what went wrong there."""

from __future__ import annotations

import json
import pickle
import shutil
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import headwater as hw
from headwater import transforms as T
from headwater.errors import StateMismatch, WrongUse

TRANSFORM = T.Compose([T.RandomResizedCrop(24), T.RandomHorizontalFlip(), T.ToDtype("float32", scale=True)])


def make(data: hw.Dataset, **options: Any) -> hw.DataLoader:
    settings: dict[str, Any] = {"batch_size": 5, "shuffle": True, "seed": 9, "num_workers": 0}
    return hw.DataLoader(data, TRANSFORM, **(settings | options))


def ids_of(batches: Iterator[hw.Batch] | hw.DataLoader) -> list[int]:
    return [int(id) for batch in batches for id in batch.ids]


def advance(loader: hw.DataLoader, steps: int) -> Iterator[hw.Batch]:
    """Take some batches and leave the iterator open, as a process that is then killed would."""
    batches = iter(loader)
    for _ in range(steps):
        next(batches)
    return batches


def straight(data: hw.Dataset, epochs: int, **options: Any) -> list[list[hw.Batch]]:
    loader = make(data, **options)
    return [list(loader) for _ in range(epochs)]


@pytest.fixture
def data(photo_folder: Path) -> hw.Dataset:
    return hw.open(photo_folder)


def test_restart_from_sample_zero_although_state_was_loaded(data: hw.Dataset) -> None:
    first = make(data)
    advance(first, 3)
    second = make(data)
    second.load_state_dict(first.state_dict())
    assert ids_of(second) == ids_of(make(data))[15:]


def test_second_resume_restarts_from_the_beginning(data: hw.Dataset) -> None:
    whole = ids_of(make(data))
    one = make(data)
    advance(one, 2)
    two = make(data)
    two.load_state_dict(one.state_dict())
    advance(two, 2)
    three = make(data)
    three.load_state_dict(two.state_dict())
    assert ids_of(three) == whole[20:]


def test_state_at_the_end_of_an_epoch_costs_a_whole_epoch(data: hw.Dataset) -> None:
    epochs = straight(data, 2)
    before_stop = make(data)
    advance(before_stop, len(before_stop))  # the last batch is out, the loop has not ended
    after_stop = make(data)
    ids_of(after_stop)
    for loader in (before_stop, after_stop):
        assert (loader.epoch, loader.state_dict()["start"]) == (1, 0)
        resumed = make(data)
        resumed.load_state_dict(loader.state_dict())
        assert ids_of(resumed) == ids_of(epochs[1])


def test_later_epochs_are_as_short_as_the_remainder(data: hw.Dataset) -> None:
    epochs = straight(data, 3)
    first = make(data)
    advance(first, 5)
    resumed = make(data)
    resumed.load_state_dict(first.state_dict())
    assert [len(ids_of(resumed)) for _ in range(3)] == [len(data) - 25, len(data), len(data)]
    resumed.load_state_dict(first.state_dict())
    ids_of(resumed)
    assert ids_of(resumed) == ids_of(epochs[1])


def test_epoch_counter_not_advanced_after_a_completed_resume(data: hw.Dataset) -> None:
    first = make(data)
    ids_of(first)
    advance(first, 4)
    resumed = make(data)
    resumed.load_state_dict(first.state_dict())
    assert resumed.epoch == 1
    ids_of(resumed)
    assert (resumed.epoch, resumed.state_dict()["start"]) == (2, 0)


def test_breaking_out_of_the_loop_then_resuming(data: hw.Dataset) -> None:
    epochs = straight(data, 2)
    broken = make(data)
    for number, _ in enumerate(broken):
        if number == 1:
            break
    state = broken.state_dict()
    resumed = make(data)
    resumed.load_state_dict(state)
    assert ids_of(resumed) == ids_of(epochs[0])[10:]
    assert ids_of(broken) == ids_of(epochs[1])  # without a resume, the next loop is the next epoch


@pytest.mark.parametrize("workers", [0, 1, 4])
@pytest.mark.timeout(60)
def test_loading_the_state_makes_the_iterator_hang(data: hw.Dataset, workers: int) -> None:
    first = make(data, num_workers=workers)
    iterator = advance(first, 2)
    first.load_state_dict(first.state_dict())  # into a loader that is running, too
    assert len(ids_of(first)) == len(data) - 10
    assert len(ids_of(iterator)) == len(data) - 10


def test_state_asked_for_right_after_a_resume_is_whole(data: hw.Dataset) -> None:
    first = make(data)
    advance(first, 3)
    state = first.state_dict()
    resumed = make(data)
    resumed.load_state_dict(state)
    assert resumed.state_dict() == state
    iterator = iter(resumed)
    assert resumed.state_dict() == state  # an iterator that has handed out nothing changes nothing
    again = make(data)
    again.load_state_dict(resumed.state_dict())
    assert ids_of(again) == ids_of(iterator)


def test_resume_past_epoch_one_of_a_subset(data: hw.Dataset) -> None:
    part = data.filter(labels=[0, 2])
    epochs = straight(part, 4)
    first = make(part)
    for _ in range(3):
        ids_of(first)
    advance(first, 2)
    resumed = make(data.filter(labels=[0, 2]))
    resumed.load_state_dict(first.state_dict())
    assert ids_of(resumed) == ids_of(epochs[3])[10:]


def test_resume_after_the_data_moved_to_another_path(data: hw.Dataset, tmp_path: Path) -> None:
    first = make(data)
    advance(first, 3)
    moved = shutil.copytree(data.uri, tmp_path / "elsewhere")
    resumed = make(hw.open(moved))
    resumed.load_state_dict(first.state_dict())
    assert ids_of(resumed) == ids_of(make(data))[15:]


def test_framework_that_calls_only_the_two_state_methods(data: hw.Dataset) -> None:
    """What Lightning and Accelerate call exists under the names they look for, and takes plain data."""
    first = make(data)
    advance(first, 2)
    for carry in (
        lambda state: json.loads(json.dumps(state)),
        lambda state: pickle.loads(pickle.dumps(state)),
    ):
        resumed = make(data)
        resumed.load_state_dict(carry(first.state_dict()))
        assert ids_of(resumed) == ids_of(make(data))[10:]


def test_shuffle_is_not_lost_and_warns_of_nothing(data: hw.Dataset) -> None:
    first = make(data)
    advance(first, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        resumed = make(data)
        resumed.load_state_dict(first.state_dict())
        rest = ids_of(resumed)
    assert rest == ids_of(make(data))[20:]
    assert rest != sorted(rest)


def test_state_of_another_number_of_processes(data: hw.Dataset) -> None:
    one = make(data, batch_size=8)
    advance(one, 1)
    state = one.state_dict()
    ranks = [make(data, batch_size=4, rank=rank, world_size=2) for rank in (0, 1)]
    for loader in ranks:
        loader.load_state_dict(state)
    parts = [list(loader) for loader in ranks]
    together = [int(id) for step in zip(*parts, strict=True) for batch in step for id in batch.ids]
    assert together == ids_of(make(data, batch_size=8))[8:]


def test_dead_rank_comes_back_with_anothers_state(data: hw.Dataset) -> None:
    """All ranks have the same state, so a rank that lost its own takes any other's and is not behind."""
    ranks = [make(data, batch_size=3, rank=rank, world_size=3) for rank in range(3)]
    for loader in ranks:
        advance(loader, 2)
    states = [loader.state_dict() for loader in ranks]
    assert states[0] == states[1] == states[2]
    back = make(data, batch_size=3, rank=2, world_size=3)
    back.load_state_dict(states[0])
    fresh = list(make(data, batch_size=3, rank=2, world_size=3))
    assert ids_of(back) == ids_of(iter(fresh[2:]))


def test_saving_state_at_every_step_is_cheap_and_small(data: hw.Dataset) -> None:
    loader = make(data)
    seconds = 0.0
    for _ in loader:
        begin = time.perf_counter()
        state = loader.state_dict()
        seconds += time.perf_counter() - begin
        assert len(json.dumps(state)) < 4096
    assert seconds / len(loader) < 0.01


@pytest.mark.parametrize("workers", [1, 4])
def test_prefetched_but_unseen_samples_are_not_lost(data: hw.Dataset, workers: int) -> None:
    first = make(data, num_workers=workers, batch_size=2, prefetch_factor=8)
    advance(first, 3)
    resumed = make(data, num_workers=workers, batch_size=2)
    resumed.load_state_dict(first.state_dict())
    assert ids_of(resumed) == ids_of(make(data))[6:]


@pytest.mark.parametrize("workers", [0, 1, 4])
def test_interrupted_and_straight_runs_give_the_same_tensors(data: hw.Dataset, workers: int) -> None:
    """At every step of two epochs, also twice in a row."""
    expected = [batch for epoch in straight(data, 2) for batch in epoch]
    steps = len(expected) // 2
    for stop in range(2 * steps):
        loader = make(data, num_workers=workers)
        seen = []
        for _ in range(2):
            for batch in loader:
                seen.append(batch)
                if len(seen) == stop:
                    break
            if len(seen) == stop:
                break
        resumed = make(data, num_workers=workers)
        resumed.load_state_dict(loader.state_dict())
        while len(seen) < 2 * steps:
            seen += list(resumed)
        for got, wanted in zip(seen, expected, strict=True):
            assert torch.equal(got.inputs, wanted.inputs)
            assert torch.equal(got.targets, wanted.targets)
            assert torch.equal(got.ids, wanted.ids)


@pytest.mark.parametrize("workers", [0, 2])
def test_over_one_two_four_three_one_ranks(data: hw.Dataset, workers: int) -> None:
    """Ids in the global order, each once, and every sample's tensor that of the straight run."""
    straight_run = {
        int(id): image for batch in make(data) for id, image in zip(*(batch.ids, batch.inputs), strict=True)
    }
    state: dict[str, Any] | None = None
    seen: list[int] = []

    def take(batch: hw.Batch) -> None:
        for id, image in zip(batch.ids.tolist(), batch.inputs, strict=True):
            seen.append(id)
            assert torch.equal(image, straight_run[id])

    for world in (1, 2, 4, 3, 1):
        options: dict[str, Any] = {"batch_size": 1, "world_size": world, "num_workers": workers}
        loaders = [make(data, rank=rank, **options) for rank in range(world)]
        for loader in loaders:
            if state is not None:
                loader.load_state_dict(state)
        iterators = [iter(loader) for loader in loaders]
        for _ in range(2):
            for iterator in iterators:
                take(next(iterator))
        state = loaders[0].state_dict()
    last = make(data, batch_size=2)
    last.load_state_dict(state or {})
    for batch in last:
        take(batch)
    assert seen == ids_of(make(data))
    assert len(seen) == len(set(seen)) == len(data)


def test_a_second_iterator_after_a_resume_begins_at_the_same_place(data: hw.Dataset) -> None:
    first = make(data)
    advance(first, 3)
    resumed = make(data)
    resumed.load_state_dict(first.state_dict())
    iter(resumed)
    assert ids_of(resumed) == ids_of(make(data))[15:]
    assert resumed.epoch == 1


def test_states_of_other_data_are_refused_by_name(data: hw.Dataset) -> None:
    state = make(data).state_dict()
    with pytest.raises(StateMismatch, match="saved with dataset"):
        make(data.filter(labels=[0])).load_state_dict(state)
    with pytest.raises(StateMismatch, match=r"seed 9, this loader has 1; pass seed=9"):
        make(data, seed=1).load_state_dict(state)
    with pytest.raises(StateMismatch, match="saved with shuffle full, this loader has no; pass shuffle=True"):
        make(data, shuffle=False).load_state_dict(state)
    with pytest.raises(StateMismatch, match="not a state"):
        make(data).load_state_dict({"format": 1, "epoch": "x"})
    with pytest.raises(StateMismatch, match="format 99"):
        make(data).load_state_dict(state | {"format": 99})
    with pytest.raises(StateMismatch, match="stands at -1"):
        make(data).load_state_dict(state | {"start": -1})


def test_a_refused_state_changes_nothing(data: hw.Dataset) -> None:
    loader = make(data)
    advance(loader, 2)
    state = loader.state_dict()
    with pytest.raises(StateMismatch):
        loader.load_state_dict(state | {"seed": 5})
    assert loader.state_dict() == state


def test_other_transforms_warn_once_and_go_on(data: hw.Dataset) -> None:
    first = make(data)
    advance(first, 2)
    other = hw.DataLoader(data, T.CenterCrop(16), batch_size=5, shuffle=True, seed=9, num_workers=0)
    with pytest.warns(UserWarning, match="other transforms") as caught:
        other.load_state_dict(first.state_dict())
    assert len(caught) == 1
    assert ids_of(other) == ids_of(make(data))[10:]


def test_more_ranks_than_samples_left_is_said_before_training(data: hw.Dataset) -> None:
    loader = make(data, batch_size=len(data) - 2)
    advance(loader, 1)
    many = make(data, batch_size=2, rank=0, world_size=4)
    with pytest.raises(WrongUse, match="2 samples are left for 4 ranks"):
        many.load_state_dict(loader.state_dict())


def test_set_epoch_chooses_the_epoch(data: hw.Dataset) -> None:
    epochs = straight(data, 3)
    loader = make(data)
    loader.set_epoch(2)
    assert ids_of(loader) == ids_of(epochs[2])
    assert np.unique(ids_of(epochs[2])).size == len(data)
