"""All data at the tuner: features by torch in single precision, and a plain loop over all of them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

import headwater as hw
from classifiers import pixels_of
from headwater import transforms as T
from headwater.data.pipeline import Pipeline
from headwater.models.presets import lite0_steps
from headwater.tune.labels import Labelled

SIZE = 64
"""Pixels of an edge, as the layers get them."""
_AT_ONCE = 256


@dataclass(frozen=True, eq=False)
class Features:
    """Of all samples of a part, and their classes."""

    values: torch.Tensor
    labels: torch.Tensor


def small_steps() -> Pipeline:
    """Up to the size that the layers take, and normalised as they are used to."""
    return T.Compose([T.Resize(SIZE), T.CenterCrop(SIZE), *lite0_steps().batchwise.steps])


def extract(trunk: nn.Module, labelled: Labelled) -> Features:
    """By torch, in single precision."""
    parts, steps, positions = [], small_steps(), labelled.dataset.positions()
    for begin in range(0, len(positions), _AT_ONCE):
        pixels = pixels_of(labelled.dataset, positions[begin : begin + _AT_ONCE], steps)
        # Strided as it is, the batch is channels_last already; its normalisation is that of the steps.
        images = torch.from_numpy(pixels).permute(0, 3, 1, 2).float().sub_(127).div_(128)
        with torch.no_grad():
            parts.append(trunk(images))
    return Features(torch.cat(parts), torch.from_numpy(labelled.labels))


def train(known: Features, recipe: hw.Recipe, classes: int) -> nn.Module:
    """A plain loop over all samples; features are scaled as the recipe's learning rate wants them."""
    torch.manual_seed(recipe.seed)
    deviation, mean = torch.std_mean(known.values, dim=0, correction=0)
    deviation[deviation < 1e-6] = 1.0
    scale = 1 / (deviation * known.values.shape[1] ** 0.5)
    layer = nn.Linear(known.values.shape[1], classes)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    optimiser = torch.optim.SGD(
        layer.parameters(), lr=recipe.learning_rate, momentum=recipe.momentum, weight_decay=recipe.l2
    )
    inputs = (known.values - mean) * scale
    for epoch in range(recipe.epochs):
        optimiser.param_groups[0]["lr"] = recipe.learning_rate * recipe.rate(0, epoch, runs=1)
        for some in torch.randperm(len(inputs)).split(recipe.batch_size):
            loss = F.cross_entropy(layer(inputs[some]), known.labels[some])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    return nn.Sequential(_Scaled(mean, scale), layer)


class _Scaled(nn.Module):
    def __init__(self, mean: torch.Tensor, scale: torch.Tensor) -> None:
        super().__init__()
        self.mean, self.scale = mean, scale

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return (values - self.mean) * self.scale


def judge(head: nn.Module, test: Features) -> float:
    """Points of test accuracy."""
    with torch.no_grad():
        return 100 * float((head(test.values).argmax(1) == test.labels).float().mean())
