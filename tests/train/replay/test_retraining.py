"""The weights of a run with other samples, against training again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from fulldisk import files_no_larger_than
from headwater.errors import JournalRefused, ModelError, WrongUse
from headwater.plan.replay import Adaptive, Published
from headwater.train.replay.batches import Batches, FullBatch, Minibatches
from headwater.train.replay.comparing import compare_methods
from headwater.train.replay.features import Features
from headwater.train.replay.following import Follower
from headwater.train.replay.journal import Journal
from headwater.train.replay.request import Request
from headwater.train.replay.retraining import METHODS, retrain
from replays import (
    BATCHES,
    CLASSES,
    COUNT,
    FULL,
    SPARE,
    WIDTH,
    first_rows,
    linear,
    make_features,
    ratio,
    record,
    train_in_double,
)

EVERY = make_features(spare=SPARE)
TRAINED = first_rows(EVERY)
IDS, SPARES = EVERY.ids[:COUNT], EVERY.ids[COUNT:]
SETTINGS = [
    pytest.param(batches, momentum, nesterov, id=f"{type(batches).__name__}-{momentum}-{nesterov}")
    for batches in (FULL, BATCHES)
    for momentum, nesterov in ((0.0, False), (0.9, False), (0.9, True))
]
ALL = Published(period=1, burn_in=0)


def make(
    folder: Path,
    batches: Batches = FULL,
    *,
    momentum: float = 0.0,
    nesterov: bool = False,
    name: str = "journal",
) -> Journal:
    rate = 4.0 if momentum == 0 else 0.4
    record(folder / name, TRAINED, batches, rate=rate, momentum=momentum, nesterov=nesterov)
    return Journal(folder / name, EVERY)


REQUESTS = {
    "one goes": (IDS[:1], ()),
    "some go": (IDS[3:12], ()),
    "one comes": ((), SPARES[:1]),
    "some come": ((), SPARES),
    "both": (IDS[20:30], SPARES[:5]),
}


@pytest.mark.parametrize("request_", REQUESTS)
@pytest.mark.parametrize(("batches", "momentum", "nesterov"), SETTINGS)
def test_if_every_step_is_computed_it_is_training_again(
    tmp_path: Path, batches: Batches, momentum: float, nesterov: bool, request_: str
) -> None:
    journal = make(tmp_path, batches, momentum=momentum, nesterov=nesterov)
    remove, add = REQUESTS[request_]
    found = retrain(journal, remove, add, policy=ALL)
    assert ratio(journal, found, remove=remove, add=add) < 1e-3
    assert found.plan is not None
    assert found.plan.approximate == 0
    assert found.error == 0


@pytest.mark.parametrize(("batches", "momentum", "nesterov"), SETTINGS)
def test_training_again_is_what_double_precision_says(
    tmp_path: Path, batches: Batches, momentum: float, nesterov: bool
) -> None:
    if nesterov:
        pytest.skip("the reference does not have it")
    journal = make(tmp_path, batches, momentum=momentum)
    rate = 4.0 if momentum == 0 else 0.4
    nobody = np.empty(0, np.int64)
    before, after = (
        train_in_double(TRAINED, batches, gone, rate=rate, momentum=momentum) for gone in (nobody, IDS[3:12])
    )
    length = np.linalg.norm(after - before)
    assert np.linalg.norm(journal.weights - before) < 1e-4 * np.linalg.norm(before)
    exact = retrain(journal, IDS[3:12], method="exact")
    assert np.linalg.norm(exact.weights - after) < 0.01 * length
    found = retrain(journal, IDS[3:12], policy=ALL)
    assert np.linalg.norm(found.moved - (after - before)) < 0.01 * length


@pytest.mark.parametrize("request_", REQUESTS)
@pytest.mark.parametrize(("batches", "momentum", "nesterov"), SETTINGS)
def test_replay_is_far_nearer_than_doing_nothing(
    tmp_path: Path, batches: Batches, momentum: float, nesterov: bool, request_: str
) -> None:
    journal = make(tmp_path, batches, momentum=momentum, nesterov=nesterov)
    remove, add = REQUESTS[request_]
    tolerance = 0.02 if batches is FULL else 0.2
    found = retrain(journal, remove, add, tolerance=tolerance, limit=0.5)
    assert found.method == "replay"
    assert ratio(journal, found, remove=remove, add=add) < tolerance
    if batches is FULL and momentum == 0:
        assert found.work < 0.5


def test_the_published_settings(tmp_path: Path) -> None:
    journal = make(tmp_path)
    found = retrain(journal, IDS[:6], policy=Published(5, 10))
    assert found.plan is not None
    assert found.plan.exact == (*range(11), *range(15, 60, 5))
    assert ratio(journal, found, remove=IDS[:6]) < 0.05


@pytest.mark.parametrize("method", ["replay", "exact"])
@pytest.mark.parametrize("batches", [FULL, BATCHES], ids=["full", "batches"])
def test_a_loop_that_did_something_else_between_the_looks_of_its_recording_is_refused(
    tmp_path: Path, batches: Batches, method: str
) -> None:
    """It scaled its loss but at steps 0, 1, 2, 4, ... and at the last."""
    model, last = linear(), batches.count_steps() - 1
    optimiser = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9, weight_decay=1e-3)
    with Journal.record(tmp_path / "journal", model, optimiser, data=TRAINED, batches=batches) as recording:
        for number, rows in enumerate(recording):
            inputs, targets = TRAINED.take(rows)
            optimiser.zero_grad()
            factor = 1.0 if number & (number - 1) == 0 or number == last else 0.2
            (factor * nn.functional.cross_entropy(model(inputs), targets)).backward()
            optimiser.step()
    journal = Journal(tmp_path / "journal", EVERY)
    with pytest.raises(
        JournalRefused, match=r"gradient for step \d+ that is .*: the loop did something else"
    ):
        retrain(journal, IDS[:1], method=method, keep=tmp_path / "next")
    assert not (tmp_path / "next").exists()


def test_fewer_steps_for_a_larger_tolerance(tmp_path: Path) -> None:
    journal = make(tmp_path, FullBatch(COUNT, 200))
    work = [retrain(journal, IDS[:6], tolerance=tolerance).work for tolerance in (0.1, 0.001)]
    assert work[0] < work[1] <= 1.3


def test_steps_before_the_first_change_are_taken_over(tmp_path: Path) -> None:
    """From a mark, or from the beginning, where a new journal is written: the same bits."""
    batches = Minibatches(COUNT, 20, 4, seed=3)
    late = next(batches.divide()).order[-3:]  # in the last batch of the first epoch
    journal = make(tmp_path, batches)
    found = retrain(journal, IDS[late])
    assert found.plan is not None
    assert found.plan.first == 29
    kept = retrain(journal, IDS[late], keep=tmp_path / "next")
    np.testing.assert_array_equal(found.weights, kept.weights)
    exact = retrain(journal, IDS[late], method="exact")
    again = retrain(journal, IDS[late], method="exact", keep=tmp_path / "again")
    np.testing.assert_array_equal(exact.weights, again.weights)
    fresh = make(tmp_path, batches, name="fresh")
    assert Follower(Request.make(fresh, IDS[late], ()), Adaptive()).follow().plan.first == 29


@pytest.mark.parametrize("method", ["replay", "exact"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_batches_that_lose_all_their_samples(tmp_path: Path, method: str, momentum: float) -> None:
    """Batches of three in which nobody, one or two are left; then the last of them goes, too."""
    batches = Minibatches(COUNT, 3, 2, seed=1)
    order = next(batches.divide()).order
    journal = make(tmp_path, batches, momentum=momentum)
    gone = IDS[np.concatenate([order[30:33], order[36:38], order[60:66]])]
    found = retrain(journal, gone, method=method, policy=ALL, keep=tmp_path / "next")
    rate = 4.0 if momentum == 0 else 0.4
    expected = train_in_double(TRAINED, batches, gone, rate=rate, momentum=momentum)
    assert np.linalg.norm(found.weights - expected) < 1e-3 * np.linalg.norm(expected)
    second = Journal(tmp_path / "next", EVERY)
    assert [m.number for m in second.file.moments(0) if m.gradient is None][:3] == [10, 20, 21]
    more = IDS[order[[38, 70]]]
    after = retrain(second, more, method=method, policy=ALL)
    both = np.concatenate([gone, more])
    expected = train_in_double(TRAINED, batches, both, rate=rate, momentum=momentum)
    assert np.linalg.norm(after.weights - expected) < 1e-3 * np.linalg.norm(expected)


def test_a_batch_that_had_nobody_is_joined(tmp_path: Path) -> None:
    batches = Minibatches(COUNT, 3, 2, seed=1)
    journal = make(tmp_path, batches)
    gone = IDS[next(batches.divide()).order[:300]]
    retrain(journal, gone, method="exact", keep=tmp_path / "next")
    second = Journal(tmp_path / "next", EVERY)
    found = retrain(second, add=SPARES, policy=ALL)
    exact = retrain(journal, gone, SPARES, method="exact")
    nothing = np.linalg.norm(exact.weights - second.weights)
    assert np.linalg.norm(found.weights - exact.weights) < 1e-2 * nothing


@pytest.mark.parametrize("batches", [FULL, BATCHES], ids=["full", "batches"])
def test_requests_one_after_the_other(tmp_path: Path, batches: Batches) -> None:
    journal, origin = make(tmp_path, batches), None
    for number in range(12):
        remove, add = (
            IDS[10 * number : 10 * number + 2],
            SPARES[number : number + 1] if number % 3 == 0 else (),
        )
        found = retrain(journal, remove, add, tolerance=0.05, limit=0.5, keep=tmp_path / "journal")
        assert found.method == "replay"
        origin = journal.origin if origin is None else origin
        journal = Journal(tmp_path / "journal", EVERY)
        np.testing.assert_array_equal(journal.weights, found.weights)
        np.testing.assert_array_equal(journal.origin, origin)
    assert journal.file.seal.error > 0
    first = make(tmp_path, batches, name="first")
    gone = np.concatenate([IDS[10 * number : 10 * number + 2] for number in range(12)])
    exact = retrain(first, gone, SPARES[[0, 3, 6, 9]], method="exact")
    nothing = np.linalg.norm(exact.weights - first.weights)
    assert np.linalg.norm(journal.weights - exact.weights) < 0.1 * nothing
    assert list(tmp_path.glob(".*part")) == []


def test_who_is_gone_leaves_no_trace_in_the_next_journal(tmp_path: Path) -> None:
    journal = make(tmp_path)
    retrain(journal, IDS[:2], keep=tmp_path / "next")
    content = (tmp_path / "next").read_bytes()
    for gone, stays in zip(IDS[:2], IDS[2:4], strict=True):
        assert int(gone).to_bytes(8, "little") not in content
        assert int(stays).to_bytes(8, "little") in content
    assert not np.isin(IDS[:2], Journal(tmp_path / "next", EVERY).ids).any()


def test_the_next_journal_needs_no_features_of_who_is_gone(tmp_path: Path) -> None:
    retrain(make(tmp_path), IDS[:2], SPARES[:1], policy=ALL, keep=tmp_path / "next")
    left = EVERY.pick(np.arange(2, COUNT + 1))
    second = Journal(tmp_path / "next", left)
    assert ratio(second, retrain(second, IDS[2:4], policy=ALL), remove=IDS[2:4]) < 1e-3


def test_a_sample_that_came_may_go_again(tmp_path: Path) -> None:
    journal = make(tmp_path, BATCHES)
    retrain(journal, add=SPARES[:3], method="exact", keep=tmp_path / "next")
    back = retrain(Journal(tmp_path / "next", EVERY), SPARES[:3], policy=ALL)
    assert np.linalg.norm(back.weights - journal.weights) < 1e-2 * back.change


def test_past_the_limit_it_is_trained_again(tmp_path: Path) -> None:
    journal = make(tmp_path, BATCHES)
    found = retrain(journal, IDS[:6], policy=Published(20, 2), limit=1e-4, keep=tmp_path / "next")
    exact = retrain(journal, IDS[:6], method="exact")
    assert found.method == "exact"
    assert "replay was given up" in found.reason
    assert "limit of 0.0001" in str(found)
    np.testing.assert_array_equal(found.weights, exact.weights)
    assert 1 < found.work < 1.5
    assert Journal(tmp_path / "next", EVERY).file.seal.error == 0
    assert Journal(tmp_path / "next", EVERY).file.origin is None


def test_where_approximating_is_given_up_nothing_is_lost_by_rounding(tmp_path: Path) -> None:
    journal = make(tmp_path, BATCHES)
    found = retrain(journal, IDS[:1], policy=Adaptive(burn_in=0, longest=1))
    assert found.plan is not None
    assert "on all were computed" in found.plan.note
    every = retrain(journal, IDS[:1], policy=ALL)
    assert np.linalg.norm(found.moved - every.moved) < 1e-6 * every.change


def test_a_tolerance_that_cannot_be_kept_ends_in_computing_everything(tmp_path: Path) -> None:
    journal = make(tmp_path, Minibatches(COUNT, 20, 8))
    found = retrain(journal, IDS[:60], tolerance=1e-4)
    assert found.plan is not None
    assert "on all were computed" in found.plan.note
    assert ratio(journal, found, remove=IDS[:60]) < 0.05
    assert found.work < 1.3


def test_errors_add_up_over_requests_until_it_is_trained_again(tmp_path: Path) -> None:
    journal, methods = make(tmp_path, BATCHES), []
    first = retrain(journal, IDS[:1], policy=Published(4, 8), limit=9.0).error
    assert first is not None
    for number in range(12):
        found = retrain(
            journal,
            IDS[5 * number : 5 * number + 1],
            policy=Published(4, 8),
            limit=1.2 * first,
            keep=tmp_path / "journal",
        )
        methods.append(found.method)
        journal = Journal(tmp_path / "journal", EVERY)
    assert methods[0] == "replay"
    assert "exact" in methods


def test_all_methods_side_by_side(tmp_path: Path) -> None:
    found = compare_methods(make(tmp_path), IDS[:12])
    assert list(found.outcomes) == list(METHODS) == ["replay", "exact", "warm", "influence"]
    assert found.ratios["exact"] == 0
    assert found.ratios["replay"] < 0.02
    assert found.outcomes["warm"].work == pytest.approx(0.1, abs=0.02)
    lines = str(found).splitlines()
    assert [line.split()[0] for line in lines[:3]] == ["method", "nothing", "replay"]


def test_influence_finds_the_optimum_of_a_run_that_has_converged(tmp_path: Path) -> None:
    record(tmp_path / "a", TRAINED, FullBatch(COUNT, 3000), rate=4.0)
    journal = Journal(tmp_path / "a", TRAINED)
    found = retrain(journal, IDS[:3], method="influence")
    assert ratio(journal, found, remove=IDS[:3]) < 0.05


def test_what_came_of_it_can_be_used(tmp_path: Path) -> None:
    journal, model = make(tmp_path), linear()
    found = retrain(journal, IDS[:2])
    found.load_into(model)
    np.testing.assert_array_equal(model.weight.detach().numpy(), found.tensors["weight"])
    np.testing.assert_array_equal(model.bias.detach().numpy(), found.tensors["bias"])
    assert "replay: weights moved by" in str(found)
    assert not found.experimental
    with pytest.raises(WrongUse, match="another model"):
        found.load_into(nn.Linear(WIDTH + 1, CLASSES))


def smooth_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, CLASSES))


def test_a_network_is_an_experiment_and_says_so(tmp_path: Path) -> None:
    net = smooth_net()
    record(tmp_path / "a", TRAINED, FULL, model=net, rate=0.5)
    journal = Journal(tmp_path / "a", TRAINED, model=smooth_net())
    found = retrain(journal, IDS[:30], tolerance=0.05, limit=1.0)
    assert found.experimental
    assert "experimental" in str(found)
    assert found.error is not None
    assert ratio(journal, found, remove=IDS[:30]) < 0.3
    all_computed = retrain(journal, IDS[:30], policy=ALL)
    assert ratio(journal, all_computed, remove=IDS[:30]) < 0.02


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({}, "no samples to remove and none to add"),
        ({"remove": [1]}, "1 of the ids to remove are not in the journal, such as 1"),
        ({"remove": [int(IDS[0]), int(IDS[0])]}, "named twice in `remove`"),
        ({"add": [int(IDS[0])]}, "in the run already"),
        ({"remove": IDS}, "no sample would be left"),
        ({"remove": IDS[:1], "method": "magic"}, "'magic'; it may be replay, exact, warm, influence"),
        ({"remove": IDS[:1], "tolerance": 0.1, "policy": ALL}, "give one"),
        ({"remove": IDS[:1], "tolerance": 2.0}, "between 0 and 1"),
        ({"remove": IDS[:1], "tolerance": 0}, 'tolerance is 0; .* for no error at all say method="exact"'),
        ({"remove": IDS[:1], "tolerance": float("nan")}, "between 0 and 1"),
        ({"remove": IDS[:1], "limit": 0.0}, "limit is 0"),
        ({"remove": IDS[:1], "method": "warm", "keep": "x"}, "leave out keep"),
        ({"remove": IDS[:1], "method": "influence", "keep": "x"}, "leave out keep"),
        ({"remove": IDS[:1], "keep": "."}, "keep is ., a folder; name a file in it"),
        ({"remove": IDS[:1], "tolerance": "a"}, "tolerance is 'a'; it must be between 0 and 1"),
        ({"remove": IDS[:1], "limit": "a"}, "limit is 'a'; it must be above 0"),
    ],
)
def test_requests_that_cannot_be(tmp_path: Path, arguments: dict[str, object], says: str) -> None:
    with pytest.raises(WrongUse, match=says):
        retrain(make(tmp_path), **arguments)  # type: ignore[arg-type]


def test_a_failed_request_leaves_the_journal_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = make(tmp_path)
    before = journal.path.read_bytes()

    def fail(self: object, *args: object, **kwargs: object) -> None:
        raise RuntimeError("on purpose")

    monkeypatch.setattr(Features, "parts", fail)
    with pytest.raises(RuntimeError, match="on purpose"):
        retrain(journal, IDS[:2], keep=journal.path)
    assert journal.path.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["journal"]


@pytest.mark.parametrize("method", ["replay", "exact"])
@pytest.mark.parametrize("room", [0, 6_000, 10_000])
def test_a_full_disk_leaves_the_journal_as_it_was(tmp_path: Path, method: str, room: int) -> None:
    journal = make(tmp_path)
    before = journal.path.read_bytes()
    assert len(before) > 10_000
    with files_no_larger_than(room), pytest.raises(ModelError, match=r"cannot write .*make room"):
        retrain(journal, IDS[:2], method=method, keep=journal.path)
    assert journal.path.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["journal"]


def reference_hessian(values: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    scores = np.exp(values @ weights.T)
    shares = scores / scores.sum(1, keepdims=True)
    size = weights.size
    hessian = np.zeros((size, size))
    for x, p in zip(values, shares, strict=True):
        hessian += np.kron(np.diag(p) - np.outer(p, p), np.outer(x, x))
    return hessian / len(values)


def test_the_offset_moves_as_the_closed_form_of_the_hessian_says(tmp_path: Path) -> None:
    """One step after the first: v - rate ((H + l2) v + d), with d what a sample's going does."""
    record(tmp_path / "a", TRAINED, FullBatch(COUNT, 2))
    journal = Journal(tmp_path / "a", TRAINED)
    found = retrain(journal, IDS[:1], policy=ALL).moved
    inputs = np.hstack([TRAINED.values, np.ones((COUNT, 1))]).astype(np.float64)
    targets = np.eye(CLASSES)[TRAINED.targets]

    def slopes(weights: NDArray[np.float64]) -> NDArray[np.float64]:
        scores = np.exp(inputs @ weights.T)
        return scores / scores.sum(1, keepdims=True) - targets

    def kick(weights: NDArray[np.float64]) -> NDArray[np.float64]:
        each = slopes(weights)
        return each[1:].T @ inputs[1:] / (COUNT - 1) - each.T @ inputs / COUNT

    start = np.zeros((CLASSES, WIDTH + 1))
    first = start - 4.0 * (slopes(start).T @ inputs / COUNT)
    v = -4.0 * kick(start)
    bent = (reference_hessian(inputs, first) @ v.ravel()).reshape(v.shape)
    v = v - 4.0 * (bent + 1e-3 * v + kick(first))
    expected = np.concatenate([v[:, :-1].ravel(), v[:, -1]])
    assert np.linalg.norm(found - expected) < 5e-3 * np.linalg.norm(expected)
