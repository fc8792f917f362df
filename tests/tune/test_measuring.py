"""What a few samples tell of how long all of them will take."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import headwater as hw
from headwater.data.pipeline import Pipeline
from headwater.engine.inference import FeatureBatch
from headwater.tune.head import Head
from headwater.tune.measuring import SAMPLES, seconds_per_image, seconds_per_row
from headwater.tune.runs import LOT, Places


class _Slow:
    """Takes a second to begin, and then so long for each sample."""

    bytes_moved = 0

    def __init__(self, seconds: float) -> None:
        self.seconds, self.asked = seconds, 0

    def run(self, positions: Places, ids: Places, *, steps: Pipeline, variant: int) -> Iterator[FeatureBatch]:
        time.sleep(0.0 if self.asked else 1.0)
        self.asked += len(ids)
        for start in range(0, len(ids), LOT):
            some = slice(start, start + LOT)
            time.sleep(self.seconds * len(ids[some]))
            yield FeatureBatch(positions[some], ids[some], np.zeros((len(ids[some]), 2), np.float16))

    def close(self) -> None:
        return None


def test_warming_up_does_not_count(colours: Path) -> None:
    source = _Slow(0.002)
    found = seconds_per_image(source, hw.open(colours), Pipeline(()))
    assert source.asked == min(SAMPLES, 180)
    assert 0.002 <= found < 0.006


def test_small_data_is_measured_whole(colours: Path) -> None:
    data = hw.open(colours)
    source = _Slow(0.0)
    found = seconds_per_image(source, data.select(np.asarray(data.ids)[:10]), Pipeline(()))
    assert (source.asked, found) == (10, pytest.approx(0.1, rel=0.5))


class _Sleepy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        time.sleep(0.01)
        logits: torch.Tensor = self.layer(features)
        return logits


def test_a_pass_of_training_is_timed_by_the_row() -> None:
    head = Head.custom(_Sleepy(), lambda parameters: torch.optim.SGD(parameters, lr=0.1))
    found = seconds_per_row(head, width=4, classes=3, batch_size=50)
    assert 0.01 / 50 <= found < 0.05 / 50
