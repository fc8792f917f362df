"""Datasets and models on which tests select: labelled photos, features without files, and proxies of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets import make_photo
from headwater.models.model import Model
from headwater.models.runtime import make_head
from headwater.select.samples import Samples
from headwater.select.scoring import Gradients, score, widest_for
from relabelling import CLASSES, small_model

NAMES = CLASSES[:3]


def write_labelled(folder: Path, count: int, *, broken: int = 0, classes: tuple[str, ...] = NAMES) -> Path:
    """So many photos of each class in a folder of its name, and some files that only look like one."""
    rng = np.random.default_rng(11)
    for name in classes:
        (folder / name).mkdir(parents=True)
        for number in range(count):
            (folder / name / f"{number:05d}.jpg").write_bytes(make_photo(rng, 24, 32))
    for number in range(broken):
        (folder / classes[0] / f"broken-{number}.jpg").write_bytes(make_photo(rng, 24, 32)[:200])
    return folder


def proxy(seed: int = 0) -> Model:
    """A small model whose logits tell samples well apart."""
    model = small_model(seed)
    weight = model.tensors["head/weight"] * 4
    return replace(model, tensors={**model.tensors, "head/weight": weight})


def columns(
    model: Model, features: NDArray[np.float16], targets: NDArray[np.int64], *, vectors: str = ""
) -> dict[str, Any]:
    """What a store should know of samples with these features."""
    logits = make_head(model).run(features.astype(np.float32))
    found = score(logits, targets)
    known: dict[str, Any] = {"loss": found.loss, "probability": found.probability, "margin": found.margin}
    if vectors:
        classes, wide = logits.shape[1], features.shape[1]
        weights = vectors == "weights"
        makes = Gradients(classes, wide, width=widest_for(len(features))) if weights else Gradients(classes)
        known["vectors"] = makes.make(logits, targets, features)
    return known


def samples(
    ids: NDArray[np.int64], labels: NDArray[np.int64], known: dict[str, Any], **facts: Any
) -> Samples:
    """As a selector would see them at a store in the first round of a run."""
    first = {"smoothed": known["loss"], "peak": known["loss"], "seen": np.ones(len(ids), np.int32)}
    first["last"] = np.full(len(ids), facts.get("epoch", 0), np.int32)
    return Samples.of(ids, labels, **{**first, **known}, all_scored=True, **facts)
