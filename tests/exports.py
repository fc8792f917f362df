"""Exported models for tests, made once: torch takes a second or two for each."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from torch import nn

import headwater as hw
from headwater import transforms as T
from headwater.data.pipeline import Pipeline
from headwater.models.export import Exported, export
from headwater.models.model import Model
from nets import CLASSES, SIZE, Residual, plain

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def steps(size: int = SIZE) -> Pipeline:
    """What the small models expect."""
    return T.Compose([T.Resize(size + 8), T.CenterCrop(size), T.Normalize(MEAN, STD)])


@cache
def exported_plain() -> Exported:
    """Convolutions and a linear head."""
    return export(hw.split(plain(), image_size=SIZE), classes=CLASSES, steps=steps())


@cache
def exported_inside() -> Exported:
    """Cut inside, so that the head is a graph."""
    return export(hw.split(Residual(), "layer1", image_size=SIZE), classes=CLASSES, steps=steps())


def as_they_are(model: Model) -> Model:
    """The model for images that have its size already: to make them takes no torch."""
    return replace(model, steps=tuple(T.Compose([T.CenterCrop(SIZE), T.Normalize(MEAN, STD)]).spec()))


def coloured(count: int, seed: int = 0) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Noisy images of the class's colour, as the steps per sample leave them, and their classes."""
    rng = np.random.default_rng(seed)
    colours = np.array([[200, 60, 60], [60, 200, 60], [60, 60, 200], [128, 128, 128], [30, 30, 30]])
    labels = rng.integers(0, len(colours), count)
    noise = rng.normal(0, 25, (count, SIZE, SIZE, 3))
    return (colours[labels][:, None, None] + noise).clip(0, 255).astype(np.uint8), labels


def normalised(pixels: NDArray[np.uint8]) -> torch.Tensor:
    """The batch as torch's users make it."""
    batch = torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous().float() / 255
    return (batch - torch.tensor(MEAN).view(-1, 1, 1)) / torch.tensor(STD).view(-1, 1, 1)


def logits_of(model: nn.Module, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
    """What torch says."""
    with torch.no_grad():
        found: NDArray[np.float32] = model.eval()(normalised(pixels)).numpy()
    return found


@cache
def fitted() -> Model:
    """The plain model with a head that knows the colours, by least squares."""
    from headwater.models.runtime import Engine

    model = exported_plain().model
    pixels, labels = coloured(400, seed=1)
    features = Engine(model).features(pixels)
    wide = np.concatenate((features, np.ones((len(features), 1), np.float32)), axis=1)
    solved = np.linalg.lstsq(wide, np.eye(len(CLASSES), dtype=np.float32)[labels], rcond=None)[0]
    weight, bias = (10 * solved[:-1].T).astype(np.float32), (10 * solved[-1]).astype(np.float32)
    return replace(model, tensors={**model.tensors, "head/weight": weight, "head/bias": bias})


def brittle() -> Model:
    """One feature is so large that int8 steps swallow the others; the head looks at the others alone."""
    model = fitted()
    name = next(name for name in model.tensors if name.startswith("trunk/6."))
    weight, head = model.tensors[name].copy(), model.tensors["head/weight"].copy()
    weight[0] = 0
    weight[0, 0] = 1e4
    head[:, 0] = 0
    return replace(unclipped(model), tensors={**model.tensors, name: weight, "head/weight": head})


def unclipped(model: Model) -> Model:
    """Without the last bound on activations, which would hold the large one."""
    whole = onnx.load_from_string(model.trunk)
    clips = [node for node in whole.graph.node if node.op_type == "Clip"]
    last = clips[-1]
    last.op_type = "Relu"
    unused = list(last.input[1:])
    del last.input[1:]
    left = {name for node in whole.graph.node for name in node.input}
    assert all(name in left for name in unused), "the bounds are shared by all"
    return replace(model, trunk=whole.SerializeToString(deterministic=True))
