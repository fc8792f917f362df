"""What replay says of its own error, against training again, for each loss."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from headwater.plan.replay import Published
from headwater.train.replay.batches import Batches, FullBatch, Minibatches
from headwater.train.replay.features import Features
from headwater.train.replay.journal import Journal
from headwater.train.replay.retraining import retrain
from replays import ratio

COUNT, WIDTH, OUTPUTS = 1_000, 12, 3
TOLERANCE = 0.05
RUNS = {"full batch": FullBatch(COUNT, 60), "batches": Minibatches(COUNT, 100, 20, seed=1)}


def squares(outputs: Tensor, targets: Tensor) -> Tensor:
    return 0.5 * (outputs - targets).square().sum(1).mean()


def logistic(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(outputs, targets, reduction="none").sum(1).mean()


LOSSES = {"squares": squares, "logistic": logistic, "softmax": F.cross_entropy}


def make(loss: str, seed: int) -> Features:
    """Features of variance 1, so that with momentum most directions swing."""
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(COUNT, WIDTH)).astype(np.float32)
    scores = values @ rng.normal(size=(WIDTH, OUTPUTS)) + rng.normal(size=(COUNT, OUTPUTS))
    kinds: dict[str, NDArray[np.generic]] = {
        "squares": scores.astype(np.float32),
        "logistic": (scores > 0).astype(np.float32),
        "softmax": scores.argmax(1),
    }
    return Features(np.arange(COUNT), values, kinds[loss])


def train(
    path: Path,
    data: Features,
    batches: Batches,
    loss: str,
    momentum: float,
    *,
    rate: Callable[[int], float] = lambda step: 0.1,
    decay: float = 1e-2,
) -> Journal:
    torch.manual_seed(0)
    model = nn.Linear(WIDTH, OUTPUTS)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum, weight_decay=decay)
    with Journal.record(path, model, optimiser, data=data, batches=batches, loss=loss) as recording:
        for step, rows in enumerate(recording):
            optimiser.param_groups[0]["lr"] = rate(step)
            inputs, targets = data.take(rows)
            optimiser.zero_grad()
            LOSSES[loss](model(inputs), targets).backward()
            optimiser.step()
    return Journal(path, data, model=model)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("loss", LOSSES)
def test_what_is_found_is_as_near_as_was_asked_and_said(
    loss: str, run: str, momentum: float, tmp_path: Path
) -> None:
    methods = []
    for seed, count in ((0, 3), (1, 20)):
        journal = train(tmp_path / str(seed), make(loss, seed), RUNS[run], loss, momentum)
        gone = journal.data.ids[7 : 7 + count]
        found = retrain(journal, gone, tolerance=TOLERANCE)
        apart = ratio(journal, found, remove=gone)
        methods.append(found.method)
        if found.method == "exact":
            continue
        assert found.error is not None
        assert apart < TOLERANCE
        assert apart < max(2 * found.error, 0.005), "the estimate must tell"
    assert "replay" in methods, "else nothing was told"


@pytest.mark.parametrize("gone", range(OUTPUTS))
@pytest.mark.parametrize("rate", [0.1, 0.3])
@pytest.mark.parametrize(("run", "tolerance"), [("full batch", 0.01), ("batches", TOLERANCE)])
def test_the_estimate_tells_of_a_class_that_goes(
    run: str, tolerance: float, rate: float, gone: int, tmp_path: Path
) -> None:
    """Nothing is left that keeps its weights where they were: they go far, and nothing pulls errors back."""
    data, batches = make("softmax", 3), RUNS[run]
    journal = train(tmp_path / "a", data, batches, "softmax", 0.9, rate=lambda step: rate, decay=1e-3)
    leaving = data.ids[data.targets == gone]
    found = retrain(journal, leaving, tolerance=tolerance, limit=9.0)
    apart = ratio(journal, found, remove=leaving)
    assert found.error is not None
    assert apart < 2 * found.error + 0.005


def jumping(step: int) -> float:
    """Velocity that is gathered at the low rate is let go in three steps at the high one."""
    return 1.0 if step % 20 < 3 else 0.02


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("count", [1, 30])
def test_rates_that_blow_errors_up_are_trained_again_at_once(run: str, count: int, tmp_path: Path) -> None:
    data = make("softmax", 3)
    journal = train(tmp_path / "a", data, RUNS[run], "softmax", 0.9, rate=jumping)
    found = retrain(journal, data.ids[:count], tolerance=TOLERANCE, keep=tmp_path / "next")
    assert found.method == "exact"
    assert "steps blow up errors" in found.reason
    assert found.error == 0 == ratio(journal, found, remove=data.ids[:count])
    assert found.work < 1.1, "nothing was tried first"
    assert Journal(tmp_path / "next", data).file.seal.error == 0


@pytest.mark.filterwarnings("ignore")
def test_weights_that_ran_away_are_an_error_beyond_any_limit(tmp_path: Path) -> None:
    """A policy that asks for no estimate is not kept from it beforehand."""
    data = make("softmax", 3)
    journal = train(
        tmp_path / "a", data, FullBatch(COUNT, 600), "softmax", 0.9, rate=lambda step: 3 * jumping(step)
    )
    found = retrain(journal, data.ids[:300], policy=Published(period=10, burn_in=2), limit=1e30)
    assert found.method == "exact"
    assert "estimated error, inf of the change" in found.reason
    assert np.isfinite(found.weights).all()


def test_an_estimate_beyond_the_limit_trains_again(tmp_path: Path) -> None:
    journal = train(tmp_path / "journal", make("squares", 0), RUNS["batches"], "squares", 0.9)
    gone = journal.data.ids[:5]
    found = retrain(journal, gone, tolerance=TOLERANCE)
    assert found.method == "replay"
    assert found.error is not None
    again = retrain(journal, gone, tolerance=TOLERANCE, limit=found.error / 2)
    assert again.method == "exact"
    assert ratio(journal, again, remove=gone) == 0
