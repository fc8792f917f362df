"""What does every cut of EfficientNet-Lite0 and ResNet-50 cost, in time and bytes, and which one is best?

The frozen part runs in the engine, as at a store; the rest in torch, as at a tuner, forward only. An image
crosses as it is (110 kB), or the features at the cut do, as fp16. With all three at work at once an image
takes as long as the slowest of them: store, link, tuner.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

import headwater as hw
from headwater import transforms as T
from headwater.models.export import export
from headwater.models.presets import load_lite0
from headwater.models.runtime import Engine
from headwater.models.split import IMAGE_BYTES, CutPoint, Split
from measuring import Bar, Cell, Options, Report, Table, best, main
from resnet import ResNet50

IMAGES = 8
LINKS_MBIT = (100, 1000)
SIZE = 224


@dataclass(frozen=True)
class Cost:
    """Of one image at one cut; `at` is "image" if nothing runs at the store."""

    at: str
    bytes: int
    store_seconds: float
    tuner_seconds: float

    def seconds(self, mbit: float) -> float:
        """Of the slowest of store, link and tuner."""
        return max(self.store_seconds, self.bytes * 8e-6 / mbit, self.tuner_seconds)


def measure(model: nn.Module, point: CutPoint, times: int) -> Cost:
    """A cut's cost; both parts on one core."""
    parts = hw.split(model, point.at, image_size=SIZE)
    pixels = (torch.rand(IMAGES, SIZE, SIZE, 3, generator=torch.Generator().manual_seed(0)) * 255).byte()
    engine = Engine(_export(parts), threads=1)
    features = torch.from_numpy(engine.features(pixels.numpy()))
    store = best(lambda: engine.features(pixels.numpy()), times)
    tuner = best(lambda: _forward(parts.head, features), times)
    return Cost(point.at or "before the last layer", point.bytes, store / IMAGES, tuner / IMAGES)


def _export(parts: Split) -> Any:
    steps = T.Compose([T.Resize(256), T.CenterCrop(SIZE), T.Normalize([0.5] * 3, [0.5] * 3)])
    with torch.no_grad():
        count = parts.head(parts.frozen(torch.zeros(1, 3, SIZE, SIZE))).shape[1]
    # With random weights activations grow from layer to layer, and their rounding with them.
    return export(parts, classes=[str(n) for n in range(count)], steps=steps, tolerance=1e-3).model


def _forward(module: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        done: torch.Tensor = module(batch)
    return done


def costs_of(model: nn.Module, options: Options) -> list[Cost]:
    """All cuts, from the image itself to the last layer."""
    model.eval()
    points = hw.split(model, image_size=SIZE).points
    if options.quick:
        points = (points[0], points[len(points) // 2], points[-1])
    images = torch.rand(IMAGES, 3, SIZE, SIZE)
    times = 2 if options.quick else 7
    whole = best(lambda: _forward(model, images), times) / IMAGES
    return [Cost("image", IMAGE_BYTES, 0.0, whole), *(measure(model, point, times) for point in points)]


def table_of(name: str, costs: list[Cost]) -> Table:
    least = {mbit: min(cost.seconds(mbit) for cost in costs) for mbit in LINKS_MBIT}
    rows: list[tuple[Cell, ...]] = []
    for cost in costs:
        times = [1e3 * cost.seconds(mbit) for mbit in LINKS_MBIT]
        marks = ["  best" if cost.seconds(mbit) == least[mbit] else "" for mbit in LINKS_MBIT]
        shown = [f"{time:.2f}{mark}" for time, mark in zip(times, marks, strict=True)]
        more = "yes" if cost.bytes > IMAGE_BYTES else ""
        store, tuner = f"{1e3 * cost.store_seconds:.2f}", f"{1e3 * cost.tuner_seconds:.2f}"
        rows.append((cost.at, cost.bytes, more, store, tuner, *shown))
    links = tuple(f"ms at {mbit} Mbit" for mbit in LINKS_MBIT)
    return Table(
        (f"{name}: cut after", "bytes", "more than the image", "store ms", "tuner ms", *links), tuple(rows)
    )


def wins(name: str, costs: list[Cost]) -> Bar:
    """Interior cuts ship more than the image: the last one, or none, is what a link of 100 Mbit wants."""
    fastest = min(costs, key=lambda cost: cost.seconds(LINKS_MBIT[0]))
    smaller = [cost.at for cost in costs if cost.bytes < IMAGE_BYTES]
    what = f"{name}: best cut at {LINKS_MBIT[0]} Mbit ships less than the image"
    return Bar(what, f"one of {', '.join(smaller)}", fastest.at, fastest.at in smaller)


def run(folder: Path, options: Options) -> Report:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    found = {
        "EfficientNet-Lite0": costs_of(load_lite0(), options),
        "ResNet-50": costs_of(ResNet50(), options),
    }
    return Report(
        f"time and bytes for every cut, {SIZE} pixels, one core on either side",
        tuple(table_of(name, costs) for name, costs in found.items()),
        tuple(wins(name, costs) for name, costs in found.items()),
        (
            f"per image, in batches of {IMAGES}; store: the engine; tuner: torch, forward only; both in fp32",
            f"an image is {IMAGE_BYTES:,} bytes; ResNet-50 has random weights",
        ),
        raw={name: [vars(cost) for cost in costs] for name, costs in found.items()},
    )


if __name__ == "__main__":
    main(__doc__, run)
