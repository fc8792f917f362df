"""The life of the buckets: regular, sampling out, stagnation, re-sampling, and a whole end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from columns import make_samples, random_samples
from headwater.errors import WrongUse
from headwater.select.buckets import Buckets, training_accuracy
from headwater.select.samples import Samples
from headwater.select.selecting import make_selection
from headwater.select.selection import Choice


def trained(count: int = 1000, *, accuracy: float = 1.0, seed: int = 0, **facts: Any) -> Samples:
    """Samples after an epoch in which this share was right."""
    rng = np.random.default_rng(seed)
    probability = rng.permutation(np.arange(1, count + 1)) / (count + 1)
    right = rng.permutation(count) < round(accuracy * count)
    return make_samples(
        count,
        labels=facts.pop("labels", np.arange(count) % 4),
        probability=probability,
        margin=np.where(right, 0.1, -0.1),
        last=np.full(count, facts.get("epoch", 1) - 1, np.int32),
        **facts,
    )


def after(samples: Samples, choice: Choice, **facts: Any) -> Samples:
    """The same samples an epoch later."""
    assert choice.buckets is not None
    return replace(samples, epoch=samples.epoch + 1, bucket=choice.buckets, state=choice.state, **facts)


def waiting(choice: Choice) -> int:
    assert choice.buckets is not None
    return int(np.count_nonzero(choice.buckets))


def test_regular_epochs_are_one_in_twenty_and_at_least_one() -> None:
    for epochs, regular in ((None, 1), (10, 1), (60, 3), (200, 10)):
        for epoch in range(regular + 1):
            choice = Buckets().choose(trained(epoch=epoch, epochs=epochs))
            assert (waiting(choice) > 0) == (epoch == regular)
            assert ("regular" in choice.reason) == (epoch < regular)


@pytest.mark.parametrize("accuracy", [0.0, 0.3, 1.0])
def test_as_many_go_to_wait_as_training_does_well_and_the_least_important(accuracy: float) -> None:
    samples = trained(accuracy=accuracy, epoch=1)
    choice = Buckets(rate=0.1).choose(samples)
    assert waiting(choice) == round(100 * accuracy)
    assert choice.buckets is not None
    assert choice.places.tolist() == np.flatnonzero(choice.buckets == 0).tolist()
    if accuracy:
        for label in range(4):
            own = samples.labels == label
            gone, kept = own & (choice.buckets == 1), own & (choice.buckets == 0)
            assert samples.probability[gone].min() > samples.probability[kept].max()


def test_a_share_of_those_in_process_goes_not_of_all() -> None:
    samples, counts = trained(epoch=1), []
    for _ in range(3):
        choice = Buckets(rate=0.1, patience=9).choose(samples)
        counts.append(len(choice.places))
        samples = after(samples, choice)
    assert counts == [900, 810, 729]


@pytest.mark.parametrize("recall", ["random", "none"])
def test_the_whole_life(recall: str) -> None:
    selector = Buckets(rate=0.1, patience=2, recall=recall)  # type: ignore[arg-type]
    samples, said, waits = trained(epoch=0, epochs=16), [], []
    for epoch in range(16):
        rising = 0.5 + 0.05 * min(epoch, 4)
        fresh = trained(accuracy=rising, epoch=epoch, epochs=16, seed=epoch)
        samples = replace(fresh, bucket=samples.bucket, state=samples.state)
        choice = selector.choose(samples)
        said.append(choice.reason.split(":")[0])
        waits.append(waiting(choice))
        samples = after(samples, choice)
    assert said[0] == "everything"
    assert said[1:6] == ["sampling out"] * 5
    assert said[14:] == ["everything"] * 2
    assert waits[14] == waits[13]
    if recall == "none":
        assert set(said[1:14]) == {"sampling out"}
        assert waits[:14] == sorted(waits[:14])
    else:
        # the last rise is in epoch 4: two epochs without one, then half of those that wait
        assert said[6] == "re-sampling"
        assert waits[6] == waits[5] - -(-waits[5] // 2)
        assert said[6:11] == ["re-sampling", "sampling out"] * 2 + ["re-sampling"]


def test_who_comes_back_is_drawn_and_not_the_most_important() -> None:
    bucket = np.repeat(np.uint8([1, 0]), 500)
    found = []
    for seed in range(2):
        samples = trained(epoch=5, bucket=bucket, state={"best": 2.0, "stale": 2})
        choice = Buckets(patience=3).choose(replace(samples, seed=seed))
        assert choice.state == {"best": 2.0, "stale": 0}
        assert "re-sampling: 250 come back, 250 of 1,000 wait" in choice.reason
        found.append(choice.places[choice.places < 500])
    mean = samples.probability[:500].mean()
    assert samples.probability[found[0]].mean() == pytest.approx(mean, abs=0.05)
    assert found[0].tolist() != found[1].tolist()


def test_one_that_waits_alone_comes_back() -> None:
    bucket = np.zeros(1000, np.uint8)
    bucket[7] = 1
    choice = Buckets().choose(trained(epoch=5, bucket=bucket, state={"best": 2.0, "stale": 2}))
    assert len(choice.places) == 1000


def test_standing_still_with_nobody_waiting_is_not_counted() -> None:
    samples = trained(epoch=5, state={"best": 2.0, "stale": 2})
    choice = Buckets(patience=3).choose(samples)
    assert "sampling out: 100 go to wait" in choice.reason
    assert choice.state == {"best": 2.0, "stale": 0}


def test_a_gain_too_small_to_count() -> None:
    bucket = np.repeat(np.uint8([1, 0]), 500)
    for accuracy, stale in ((0.5, 1), (0.501, 1), (0.502, 0)):
        samples = trained(accuracy=accuracy, epoch=5, bucket=bucket, state={"best": 0.5, "stale": 0})
        assert Buckets().choose(samples).state["stale"] == stale


def test_floors_of_each_class_hold_however_long_it_goes_on() -> None:
    labels = np.array([0] * 900 + [1] * 7 + [2] + [3] * 92)
    samples = trained(labels=labels, epoch=1)
    for _ in range(60):
        choice = Buckets(rate=0.3, floor=0.3, recall="none").choose(samples)
        samples = after(samples, choice)
    assert np.bincount(labels[choice.places]).tolist() == [270, 3, 1, 28]
    assert "sampling out: 0 go to wait" in choice.reason


def test_unknown_samples_never_wait() -> None:
    samples = trained(epoch=1)
    probability = np.array(samples.probability)
    probability[::2] = np.nan
    samples = replace(samples, probability=probability)
    for _ in range(40):
        choice = Buckets(rate=0.5, floor=0.01, recall="none").choose(samples)
        samples = after(samples, choice)
    assert choice.buckets is not None
    assert not choice.buckets[::2].any()
    assert choice.buckets[1::2].mean() > 0.9


def test_the_end_is_whole_unless_not_wanted() -> None:
    bucket = np.repeat(np.uint8([1, 0]), 500)
    samples = trained(epoch=15, epochs=16, bucket=bucket)
    choice = Buckets().choose(samples)
    assert len(choice.places) == 1000
    assert waiting(choice) == 500
    assert len(Buckets(whole_end=False).choose(samples).places) < 500


def test_the_published_score_sends_out_what_is_most_wrong() -> None:
    samples = make_samples(
        10,
        probability=[0.001, *np.linspace(0.3, 0.9, 9)],
        margin=np.ones(10),
        last=np.zeros(10, np.int32),
        epoch=1,
    )
    gone = [np.flatnonzero(Buckets(published=flag).choose(samples).buckets) for flag in (True, False)]
    assert [places.tolist() for places in gone] == [[0], [9]]


def test_what_loads_fast_stays_where_training_waits_and_the_reason_says_what_that_shifts() -> None:
    rng = np.random.default_rng(0)
    facts = {"seconds": rng.random(1000), "bytes": 1 + rng.random(1000), "epoch": 1}
    facts["seconds"] = facts["bytes"]
    busy, idle = (Buckets(rate=0.4).choose(trained(stalled=stalled, **facts)) for stalled in (0.0, 1.0))
    sizes = [facts["bytes"][choice.places].mean() / facts["bytes"].mean() for choice in (busy, idle)]
    assert sizes[0] == pytest.approx(1, abs=0.02)
    assert sizes[1] < 0.97
    assert f"the mean size to {sizes[1]:.3g} times that of all" in idle.reason
    assert "training waits for data 100% of its time" in idle.reason
    assert "waits for data" not in busy.reason


def test_classes_of_few_samples_are_sampled_out_too() -> None:
    # a tenth of five rounds to nothing in each class, and to a hundred over all of them
    samples = trained(labels=np.arange(1000) // 5, epoch=1)
    assert waiting(Buckets(rate=0.1).choose(samples)) == 100


def test_accuracy_is_of_the_last_epoch_and_by_margins_where_there_are_any() -> None:
    last = np.array([4, 4, 4, 3, -1], np.int32)
    margins = [0.5, -0.5, np.nan, 0.5, 0.5]
    samples = make_samples(5, margin=margins, probability=[0.6, 0.2, 0.4, 1, 1], last=last)
    assert training_accuracy(samples) == 0.5
    unknown = np.full(5, np.nan, np.float32)
    assert training_accuracy(replace(samples, margin=unknown)) == pytest.approx(0.4)
    assert np.isnan(training_accuracy(replace(samples, margin=unknown, probability=unknown)))
    assert np.isnan(training_accuracy(make_samples(3)))


def test_margins_from_before_the_last_losses_are_not_of_the_last_epoch() -> None:
    """Two were reported again without logits, so that their margins are older than their losses."""
    last = np.array([4, 4, 4, 4], np.int32)
    samples = make_samples(4, last=last, margin=np.array([1, 1, -1, 1], np.float32))
    assert training_accuracy(samples) == 0.75
    assert training_accuracy(replace(samples, judged=np.array([3, 3, 4, 4], np.int32))) == 0.5
    assert training_accuracy(replace(samples, judged=np.array([3, 2, 2, 2], np.int32))) == 1.0


def test_without_any_accuracy_nothing_moves() -> None:
    bucket = np.repeat(np.uint8([1, 0]), 500)
    samples = replace(
        trained(epoch=5, bucket=bucket, state={"best": 0.5, "stale": 1}), last=make_samples(1000).last
    )
    choice = Buckets().choose(samples)
    assert len(choice.places) == 500
    assert choice.state == {"best": 0.5, "stale": 1}


def test_who_waits_is_explored_and_still_waits() -> None:
    samples = random_samples(
        np.random.default_rng(0), 2000, epoch=5, bucket=np.repeat(np.uint8([1, 0]), 1000)
    )
    found = make_selection(Buckets(), samples)
    assert 20 < np.count_nonzero(found.places < 1000) < 90
    assert found.buckets is not None
    assert found.buckets[:1000].all()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"patience": 0}, "patience is 0"),
        ({"recall": "all"}, "choose from random, none"),
        ({"rate": 2}, "rate is 2"),
        ({"floor": -1}, "floor is -1"),
    ],
)
def test_wrong_numbers_are_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(WrongUse, match=said):
        Buckets(**wrong)
