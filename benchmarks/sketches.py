"""How near projected gradients of a last layer are to the exact ones, by how many numbers they have.

A softmax head on frozen features, some steps into its training. The gradients of samples of one class by its
weights are outer products, too large to be kept; distances among their projections are compared with theirs,
and so are those of gradients by the logits, which are what there is without features.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from experiments import begin_with
from frozen import CLASSES, Frozen, open_frozen
from headwater.select.scoring import WIDEST, WIDTH, Gradients, rank_correlation
from imagesets import FOLDERS
from measuring import Bar, Cell, Options, Report, Table, main

Floats = NDArray[np.float32]

WIDTHS = (WIDTH, 64, 128, 256, WIDEST)
SAMPLES, STEPS, RATE = 400, 100, 0.5
LEAST = 0.9
"""Rank correlation with the exact distances."""


def train_head(frozen: Frozen, steps: int) -> Floats:
    """Weights after some steps over everything."""
    weights = np.zeros((frozen.train.shape[1], CLASSES), np.float32)
    targets = np.eye(CLASSES, dtype=np.float32)[frozen.labels]
    for _ in range(steps):
        weights -= RATE * frozen.train.T @ (_softmax(frozen.train @ weights) - targets) / len(targets)
    return weights


def _softmax(logits: Floats) -> Floats:
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    found: Floats = powers / powers.sum(axis=1, keepdims=True)
    return found


def distances(products: NDArray[np.float64]) -> NDArray[np.float64]:
    """Between all pairs, of the products of all pairs."""
    lengths = np.diag(products)
    squares = lengths[:, None] + lengths[None, :] - 2 * products
    found: NDArray[np.float64] = np.sqrt(np.maximum(squares, 0))[np.triu_indices(len(products), 1)]
    return found


def compare(frozen: Frozen, weights: Floats, label: int) -> dict[str, tuple[float, float]]:
    """Rank correlation of distances, and their median relative error, of samples of one class."""
    places = np.flatnonzero(frozen.labels == label)[:SAMPLES]
    features, targets = frozen.train[places], frozen.labels[places]
    logits = features @ weights
    errors = (_softmax(logits) - np.eye(CLASSES, dtype=np.float32)[targets]).astype(np.float64)
    wide = features.astype(np.float64)
    exact = distances((errors @ errors.T) * (wide @ wide.T))  # of outer products, which are never made
    told = {"logits": Gradients(CLASSES).make(logits, targets)}
    for width in WIDTHS:
        makes = Gradients(CLASSES, features.shape[1], width=width)
        told[str(width)] = makes.make(logits, targets, features)
    found = {}
    for name, vectors in told.items():
        rows = vectors.astype(np.float64)
        near = distances(rows @ rows.T)
        near *= 1.0 if name != "logits" else np.median(exact) / np.median(near)  # of another length
        found[name] = rank_correlation(near, exact), float(np.median(np.abs(near - exact) / exact))
    return found


def run(folder: Path, options: Options) -> Report:
    frozen = open_frozen(folder, options)
    steps = 10 if options.quick else STEPS
    weights = train_head(frozen, steps)
    classes = range(2 if options.quick else CLASSES)
    found = [compare(frozen, weights, label) for label in classes]
    rows: list[tuple[Cell, ...]] = []
    for name in found[0]:
        ranks, errors = zip(*(one[name] for one in found), strict=True)
        span = f"{min(ranks):.3f}..{max(ranks):.3f}"
        rows.append((name, f"{float(np.mean(ranks)):.3f}", span, f"{float(np.mean(errors)):.1%}"))
    least = min(one[str(WIDEST)][0] for one in found)
    bar = Bar(
        f"{WIDEST} numbers: least rank correlation", f"at least {LEAST}", f"{least:.3f}", least >= LEAST
    )
    return Report(
        f"projected gradients of a softmax head on {frozen.train.shape[1]} features ({frozen.name})",
        (Table(("numbers of a vector", "rank correlation", "by class", "median error"), tuple(rows)),),
        (bar,) if options.data and not options.quick else (),
        (f"{SAMPLES} samples of each class, compared with each other; the head after {steps} steps",),
    )


if __name__ == "__main__":
    begin_with(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")
    main(__doc__, run, folders={"work": FOLDERS["work"]})
