"""Which samples a step sees, as a function."""

from __future__ import annotations

from collections import Counter

import msgspec
import numpy as np
import pytest

from headwater.errors import ModelError, WrongUse
from headwater.train.replay.batches import (
    Batches,
    Epoch,
    FullBatch,
    Minibatches,
    OverlappedRuns,
    describe,
    restore,
    split_evenly,
)

KINDS: list[Batches] = [FullBatch(10, 3), Minibatches(103, 10, 4, 7), OverlappedRuns((30, 20), 8, 4, 2, 5)]


def batches_of(epoch: Epoch) -> list[list[int]]:
    pairs = zip(epoch.bounds, epoch.bounds[1:], strict=False)
    return [epoch.order[begin:end].tolist() for begin, end in pairs]


@pytest.mark.parametrize("batches", KINDS, ids=lambda each: type(each).__name__)
def test_what_a_journal_holds_gives_the_same_batches(batches: Batches) -> None:
    spec = msgspec.msgpack.decode(msgspec.msgpack.encode(describe(batches)))
    again = restore(spec)
    assert again == batches
    for one, other in zip(batches.divide(), again.divide(), strict=True):
        assert batches_of(one) == batches_of(other)


@pytest.mark.parametrize("batches", KINDS, ids=lambda each: type(each).__name__)
def test_steps_are_counted_on(batches: Batches) -> None:
    first, seen = 0, 0
    for epoch in batches.divide():
        assert epoch.first == first
        first, seen = first + len(epoch), seen + len(epoch.order)
    assert seen == pytest.approx(batches.seen, abs=len(KINDS))
    assert first == batches.count_steps()
    missing = np.arange(0, batches.count, 3)
    assert batches.count_steps(missing) == sum(map(len, batches.divide(missing)))


def test_every_epoch_goes_once_through_everything_in_another_order() -> None:
    epochs = list(Minibatches(103, 10, 4).divide())
    assert len(epochs) == 4
    for epoch in epochs:
        assert sorted(epoch.order) == list(range(103))
        assert {len(batch) for batch in batches_of(epoch)} == {9, 10}
    assert len({tuple(epoch.order) for epoch in epochs}) == 4


def test_a_seed_is_another_order() -> None:
    one, other = (next(Minibatches(50, 10, 1, seed).divide()).order for seed in (0, 1))
    assert one.tolist() != other.tolist()


@pytest.mark.parametrize("batches", KINDS, ids=lambda each: type(each).__name__)
def test_slots_without_features_are_in_no_batch(batches: Batches) -> None:
    missing = np.array([3, 7])
    for epoch in batches.divide(missing):
        assert not np.isin(missing, epoch.order).any()


def test_who_joins_is_in_one_batch_of_every_epoch_evenly() -> None:
    ids = np.arange(4000, dtype=np.int64) << 20
    seen = [epoch.join(ids) for epoch in Minibatches(100, 10, 3).divide()]
    for places in seen:
        counts = Counter(places.tolist())
        assert set(counts) == set(range(10))
        assert max(counts.values()) < 1.3 * min(counts.values())
    assert (seen[0] != seen[1]).any()


def test_who_joins_depends_on_no_other() -> None:
    ids = np.arange(100, dtype=np.int64)
    epoch = next(Minibatches(100, 10, 1).divide())
    np.testing.assert_array_equal(epoch.join(ids)[40:], epoch.join(ids[40:]))


def test_where_an_epoch_is_a_part_a_part_joins() -> None:
    ids = np.arange(1000, dtype=np.int64)
    parts = [epoch.join(ids) >= 0 for epoch in OverlappedRuns((10, 10), 5, 2).divide()]
    assert [int(part.sum()) for part in parts[:2]] == [1000, 1000]
    assert (parts[2] ^ parts[3]).all()


def test_even_batches() -> None:
    assert split_evenly(10, 4).tolist() == [0, 4, 7, 10]
    assert split_evenly(8, 4).tolist() == [0, 4, 8]
    assert split_evenly(1, 4).tolist() == [0, 1]


def test_variants_take_turns() -> None:
    runs = OverlappedRuns((4,), 4, 2, 2)
    assert runs.pool(0, 0).tolist() == [0, 5, 2, 7]
    assert runs.pool(0, 1).tolist() == [4, 1, 6, 3]


def test_a_run_without_features() -> None:
    with pytest.raises(ModelError, match="none of the 4 samples of run 1 has features"):
        next(OverlappedRuns((4,), 4, 1).divide(np.arange(4)))


@pytest.mark.parametrize(
    "make",
    [
        lambda: FullBatch(0, 1),
        lambda: FullBatch(1, 0),
        lambda: Minibatches(10, 0, 1),
        lambda: Minibatches(10, 1, 0),
        lambda: OverlappedRuns((), 1, 1),
        lambda: OverlappedRuns((3, 0), 1, 1),
    ],
)
def test_batches_that_cannot_be(make: object) -> None:
    with pytest.raises(WrongUse, match="at least 1"):
        make()  # type: ignore[operator]


def test_batches_of_another_kind() -> None:
    with pytest.raises(WrongUse, match="FullBatch, Minibatches, OverlappedRuns"):
        describe(object())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="'spiral'"):
        restore({"kind": "spiral"})
