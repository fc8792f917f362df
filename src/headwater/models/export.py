"""From a torch model to a `Model`: its two parts as ONNX graphs, tensors apart, checked against torch."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from headwater.data.pipeline import Pipeline, describe
from headwater.errors import MissingExtra, ModelError, WrongUse
from headwater.models.graph import split_tensors
from headwater.models.layers import evaluating, probe
from headwater.models.model import Model
from headwater.models.runtime import Engine, Session
from headwater.models.split import Split
from headwater.models.trial import ANY_SIZE

TOLERANCE = 1e-4
"""How far the exported model may be from torch's, as a share of the largest logit (or of 1)."""

_BATCH = 3


@dataclass(frozen=True, eq=False)
class Exported:
    """A model, and how far its logits are from torch's on a batch of noise."""

    model: Model
    difference: float


def export(
    parts: Split, *, classes: Sequence[str], steps: Pipeline, tolerance: float = TOLERANCE
) -> Exported:
    """The parts of `hw.split` as a model with these class names, after these steps.

    Batch norms are folded into convolutions; other parameters keep their names. Raises `WrongUse` if `steps`
    do not end with images of the model's size, or names are missing or given twice, and `ModelError` if
    torch cannot export a part or the result is not `tolerance` close to it.
    """
    _check_steps(steps, parts.image_size)
    images = probe(_BATCH, (3, parts.image_size, parts.image_size))
    with evaluating(parts.frozen, parts.head), torch.no_grad():
        features: torch.Tensor = parts.frozen(images)
        logits: torch.Tensor = parts.head(features)
        _check_names(classes, logits.shape[1])
        trunk, tensors = _to_graph(parts.frozen, images, names=("images", "features"))
        head, head_tensors = _head_graph(parts.head, features)
    named = _prefixed("trunk", tensors) | _prefixed("head", head_tensors)
    model = Model(trunk, head, named, tuple(classes), tuple(steps.spec()))
    return Exported(model, compare(model, images, logits, tolerance))


def export_head(
    head: nn.Module, features: int, *, tolerance: float = TOLERANCE
) -> tuple[bytes | None, dict[str, NDArray[Any]]]:
    """A head alone, for so many features: its graph, None for a linear layer, and its tensors by name.

    Raises `ModelError` if torch cannot export it or the result is not `tolerance` close to it.
    """
    batch = torch.rand(_BATCH, features, generator=torch.Generator().manual_seed(0))
    with evaluating(head), torch.no_grad():
        logits: torch.Tensor = head(batch)
        graph, tensors = _head_graph(head, batch)
    if graph is not None:
        _check_close(Session(graph, tensors, threads=1).run(batch.numpy()), logits, tolerance)
    return graph, tensors


def _head_graph(head: nn.Module, features: torch.Tensor) -> tuple[bytes | None, dict[str, NDArray[Any]]]:
    """No graph for a linear layer, whose product numpy makes."""
    if type(head) is not nn.Linear:
        return _to_graph(head, features, names=("features", "logits"))
    bias = torch.zeros(head.out_features) if head.bias is None else head.bias
    return None, {"weight": _to_array(head.weight), "bias": _to_array(bias)}


def _to_graph(
    module: nn.Module, example: torch.Tensor, *, names: tuple[str, str]
) -> tuple[bytes, dict[str, NDArray[Any]]]:
    batch = {0: torch.export.Dim("n", min=1)}
    try:
        with warnings.catch_warnings(action="ignore"):
            program = torch.onnx.export(
                module,
                (example,),
                input_names=names[:1],
                output_names=names[1:],
                dynamo=True,
                external_data=False,
                dynamic_shapes=(batch,),
                verbose=False,
            )
    except ImportError as error:
        raise MissingExtra(f"the export needs {error.name}; pip install onnx onnxscript") from error
    except Exception as error:
        reason = str(error).strip().partition("\n")[0]
        raise ModelError(f"torch cannot export the layers from {names[0]} to {names[1]}: {reason}") from error
    assert program is not None
    found = program.model_proto
    found.ClearField("producer_name")
    found.ClearField("producer_version")
    return split_tensors(found.SerializeToString())


def compare(model: Model, images: torch.Tensor, logits: torch.Tensor, tolerance: float) -> float:
    """How far a model's logits are from torch's at most; raises `ModelError` if that is too far."""
    engine = Engine(model)
    return _check_close(engine.logits(engine.features(images.numpy())), logits, tolerance)


def _check_close(found: NDArray[np.float32], logits: torch.Tensor, tolerance: float) -> float:
    """The largest difference."""
    difference = float(np.abs(found - logits.numpy()).max())
    allowed = tolerance * max(1.0, float(logits.abs().max()))
    if not difference <= allowed:
        raise ModelError(
            f"the exported model differs from torch's by {difference:.2g}, allowed is {allowed:.2g}; "
            "raise `tolerance` if that is near enough"
        )
    return difference


def _check_names(classes: Sequence[str], count: int) -> None:
    if isinstance(classes, str) or not all(isinstance(name, str) for name in classes):
        raise WrongUse(f"classes is {classes!r}; give a list of names")
    twice = [name for name, times in Counter(classes).items() if times > 1]
    if twice:
        raise WrongUse(f"{twice[0]!r} is the name of more than one class; each needs its own")
    if len(classes) != count:
        raise WrongUse(f"the model tells {count} classes apart, and {len(classes)} have names")


def _check_steps(steps: Pipeline, image_size: int) -> None:
    """That images of any size arrive in the one that the layers take."""
    own = [describe(step) for step in steps.steps if step.opaque]
    if own:
        raise WrongUse(
            f"{own[0]} is a function of yours, which a store does not have; use named transforms only"
        )
    sizes = steps.out_sizes(ANY_SIZE)
    if not (sizes == image_size).all():
        raise WrongUse(
            f"after {steps} images have {' and '.join('x'.join(map(str, size)) for size in sizes.tolist())} "
            f"pixels, the model takes {image_size}x{image_size}; end with a crop or a resize to that"
        )


def _prefixed(part: str, tensors: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    return {f"{part}/{name}": array for name, array in tensors.items()}


def _to_array(tensor: torch.Tensor) -> NDArray[np.float32]:
    """A copy: training goes on in the tensor, and the model must not change with it."""
    array: NDArray[np.float32] = tensor.detach().numpy().copy()
    return array
