"""What a training step shows of its samples, from loss and logits to columns."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from headwater.errors import WrongUse
from headwater.select.scoring import Gradients


@dataclass(frozen=True, eq=False)
class Shown:
    """Columns by the names that `Signals.record` has for them, and what all but the loss took to make."""

    columns: Mapping[str, Any]
    seconds: float = 0.0

    @classmethod
    def of(cls, loss: torch.Tensor, logits: torch.Tensor | None, targets: Any, *, vectors: bool) -> Shown:
        """`vectors` are the gradients of the loss by the logits, which tell samples of a class apart."""
        found: dict[str, Any] = {"loss": _numbers(loss)}
        begun = time.perf_counter()  # by now a device has done what comes before the loss
        if logits is not None:
            probabilities = logits.detach().float().softmax(dim=1)
            classes = _classes(targets, probabilities)
            found |= _chances(probabilities, classes)
            found |= {"vectors": _gradients(probabilities, classes)} if vectors else {}
        return cls(found, time.perf_counter() - begun)


def _numbers(values: torch.Tensor) -> NDArray[np.float32]:
    found: NDArray[np.float32] = values.detach().to("cpu", torch.float32).numpy()
    return found


def _classes(targets: Any, probabilities: torch.Tensor) -> torch.Tensor:
    labels = targets["label"] if isinstance(targets, dict) else targets
    if not isinstance(labels, torch.Tensor) or len(labels) != len(probabilities):
        raise WrongUse(f"logits of {len(probabilities)} samples do not go with the batch's targets")
    labels = labels.to(probabilities.device)
    return (labels.argmax(dim=1) if labels.ndim > 1 else labels).long()  # mixed ones are mostly of one class


def _chances(probabilities: torch.Tensor, classes: torch.Tensor) -> dict[str, NDArray[np.float32]]:
    """Of samples that have a class; NaN for others."""
    has, column = classes >= 0, classes.clamp(min=0).unsqueeze(1)
    own = probabilities.gather(1, column).squeeze(1)
    other = probabilities.scatter(1, column, -1.0).amax(dim=1).clamp(min=0.0)
    unknown = torch.full_like(own, float("nan"))
    return {
        "probability": _numbers(torch.where(has, own, unknown)),
        "margin": _numbers(torch.where(has, own - other, unknown)),
    }


def _gradients(probabilities: torch.Tensor, classes: torch.Tensor) -> NDArray[np.float16]:
    """`p - y`, with fewer numbers where there are many classes, as a store makes them of its samples."""
    errors = probabilities.clone()
    labelled = (classes >= 0).nonzero(as_tuple=True)[0]
    errors[labelled, classes[labelled]] -= 1.0
    return Gradients(errors.shape[1]).project(_numbers(errors))
