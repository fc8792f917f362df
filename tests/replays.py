"""What tests of replay share: a small convex problem, runs that are recorded, and how near a result is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional as F

from headwater.train.replay.batches import Batches, FullBatch, Minibatches
from headwater.train.replay.features import Features
from headwater.train.replay.journal import Journal
from headwater.train.replay.outcome import Retrained
from headwater.train.replay.retraining import retrain

COUNT, WIDTH, CLASSES = 600, 12, 4
SPARE = 40
"""Samples that no run is trained on, which may join it."""


def make_features(*, count: int = COUNT, spare: int = 0, seed: int = 0) -> Features:
    """Correlated features of clouds that overlap; ids are of 62 bits, in no order."""
    rng = np.random.default_rng(seed)
    total = count + spare
    turn = rng.normal(size=(WIDTH, WIDTH)) * np.exp(-np.arange(WIDTH) / 4)[:, None]
    values = rng.normal(size=(total, WIDTH)) @ turn
    values /= values.std(0) * np.sqrt(WIDTH)
    scores = values @ rng.normal(size=(WIDTH, CLASSES)) * 5 + rng.gumbel(size=(total, CLASSES))
    ids = rng.permutation(1 << 20)[:total].astype(np.int64) << 40
    return Features(ids, values.astype(np.float32), scores.argmax(1))


def first_rows(features: Features, count: int = COUNT) -> Features:
    """Those that a run is trained on."""
    return features.pick(np.arange(count))


FULL = FullBatch(COUNT, 60)
BATCHES = Minibatches(COUNT, 100, 12, seed=3)


def linear() -> nn.Linear:
    """A head that begins with zeros."""
    layer = nn.Linear(WIDTH, CLASSES)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def record(
    path: Path,
    features: Features,
    batches: Batches = FULL,
    *,
    model: nn.Module | None = None,
    rate: float = 4.0,
    momentum: float = 0.0,
    nesterov: bool = False,
) -> nn.Module:
    """Train on the features, keep a journal of it; the model. The rate falls by half on the way."""
    model = linear() if model is None else model
    optimiser = torch.optim.SGD(
        model.parameters(), lr=rate, momentum=momentum, nesterov=nesterov, weight_decay=1e-3
    )
    with Journal.record(path, model, optimiser, data=features, batches=batches, every=16) as recording:
        for step, rows in enumerate(recording):
            optimiser.param_groups[0]["lr"] = rate if step < 30 else rate / 2
            inputs, targets = features.take(rows)
            optimiser.zero_grad()
            F.cross_entropy(model(inputs), targets).backward()
            optimiser.step()
    return model


def ratio(journal: Journal, found: Retrained, *, remove: object = (), add: object = ()) -> float:
    """Distance to training again over that of doing nothing."""
    exact = retrain(journal, remove, add, method="exact")  # type: ignore[arg-type]
    nothing = float(np.linalg.norm(exact.weights - journal.weights))
    assert nothing > 0
    return float(np.linalg.norm(found.weights - exact.weights)) / nothing


def train_in_double(
    features: Features, batches: Batches, gone: NDArray[np.int64], *, rate: float, momentum: float = 0.0
) -> NDArray[np.float64]:
    """A reference that shares no code: softmax regression in double precision, without some ids."""
    targets = np.eye(CLASSES)[features.targets]
    inputs = np.hstack([features.values, np.ones((len(features), 1))]).astype(np.float64)
    weights, speed, step = np.zeros((CLASSES, WIDTH + 1)), np.zeros((CLASSES, WIDTH + 1)), 0
    for epoch in batches.divide():
        for begin, end in zip(epoch.bounds, epoch.bounds[1:], strict=False):
            rows = epoch.order[begin:end]
            rows = rows[~np.isin(features.ids[rows], gone)]
            if len(rows):
                scores = np.exp(inputs[rows] @ weights.T)
                slopes = scores / scores.sum(1, keepdims=True) - targets[rows]
                speed = momentum * speed + slopes.T @ inputs[rows] / len(rows) + 1e-3 * weights
                weights = weights - (rate if step < 30 else rate / 2) * speed
            step += 1
    return np.concatenate([weights[:, :-1].ravel(), weights[:, -1]])
