"""What does every cut of EfficientNet-Lite0 and ResNet-50 cost, in time and bytes, and which is planned?

The frozen part before the cut runs in the engine on one core, as at a store, the rest in torch on the other,
as at a tuner, forward only. What crosses is the image (110 kB) or the features at the cut, as fp16. Each side
is measured alone; then all run at once, with a link between them that is only a clock. The plan has the
figures of the first kind, and its cut is compared with the best of the second.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from queue import Queue
from typing import Any

import torch
from torch import nn

import headwater as hw
from headwater import transforms as T
from headwater.models.export import export
from headwater.models.model import Model
from headwater.models.presets import load_lite0
from headwater.models.runtime import Engine
from headwater.models.split import IMAGE_BYTES, CutPoint, Split
from headwater.plan.finetune import Convergence, Cut, Rates, Work, make_plan
from measuring import Bar, Cell, Options, Report, Table, best, main
from resnet import ResNet50

IMAGES = 8
"""In a batch."""
MBIT = 100.0
SIZE = 224
LAST = "before the last layer"
SLACK = 0.1
"""By how much the cut of the plan may be slower than the best: what is measured swings as much."""


@dataclass(frozen=True)
class Found:
    """A cut with its cost for one image, and the seconds that one took with everything at work at once."""

    cut: Cut
    together_seconds: float

    @property
    def ships_more(self) -> bool:
        return self.cut.bytes > IMAGE_BYTES


class Link:
    """A link that is only a clock: what crosses takes its time, one after the other."""

    def __init__(self, mbit: float) -> None:
        self._rate, self._free = mbit * 1e6 / 8, 0.0

    def carry(self, count: float) -> None:
        self._free = max(self._free, time.perf_counter()) + count / self._rate
        time.sleep(max(0.0, self._free - time.perf_counter()))


def run_together(store: Callable[[], Any], tuner: Callable[[], Any], cut_bytes: float, batches: int) -> float:
    """Seconds per image in the steady state: the first batch through does not count."""
    sent: Queue[None] = Queue(2)
    came: Queue[None] = Queue(2)
    link = Link(MBIT)

    def at_store() -> None:
        for _ in range(batches):
            store()
            sent.put(None)

    def between() -> None:
        for _ in range(batches):
            sent.get()
            link.carry(IMAGES * cut_bytes)
            came.put(None)

    threads = [threading.Thread(target=part) for part in (at_store, between)]
    for thread in threads:
        thread.start()
    ends = []
    for _ in range(batches):
        came.get()
        tuner()
        ends.append(time.perf_counter())
    for thread in threads:
        thread.join()
    return (ends[-1] - ends[0]) / (batches - 1) / IMAGES


def measure(model: nn.Module, point: CutPoint, options: Options) -> Found:
    parts = hw.split(model, point.at, image_size=SIZE)
    pixels = (
        (torch.rand(IMAGES, SIZE, SIZE, 3, generator=torch.Generator().manual_seed(0)) * 255).byte().numpy()
    )
    engine = Engine(_export(parts), threads=1)
    features = torch.from_numpy(engine.features(pixels))
    return _measure(
        point.at or LAST,
        lambda: engine.features(pixels),
        lambda: _forward(parts.head, features),
        cut_bytes=point.bytes,
        options=options,
    )


def _measure(
    name: str, store: Callable[[], Any], tuner: Callable[[], Any], *, cut_bytes: float, options: Options
) -> Found:
    times, batches = (2, 3) if options.quick else (7, 8)
    cut = Cut(name, best(store, times) / IMAGES, cut_bytes, best(tuner, times) / IMAGES)
    return Found(cut, run_together(store, tuner, cut_bytes, batches))


def _export(parts: Split) -> Model:
    steps = T.Compose([T.Resize(256), T.CenterCrop(SIZE), T.Normalize([0.5] * 3, [0.5] * 3)])
    with torch.no_grad():
        count = parts.head(parts.frozen(torch.zeros(1, 3, SIZE, SIZE))).shape[1]
    # With random weights activations grow from layer to layer, and their rounding with them.
    return export(parts, classes=[str(n) for n in range(count)], steps=steps, tolerance=1e-3).model


def _forward(module: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        done: torch.Tensor = module(batch)
    return done


def measure_all(model: nn.Module, options: Options) -> list[Found]:
    """All cuts, from the image itself to the last layer."""
    model.eval()
    points = hw.split(model, image_size=SIZE).points
    if options.quick:
        points = (points[0], points[len(points) // 2], points[-1])
    images = torch.rand(IMAGES, 3, SIZE, SIZE)
    whole = _measure(
        "images", lambda: None, lambda: _forward(model, images), cut_bytes=IMAGE_BYTES, options=options
    )
    return [whole, *(measure(model, point, options) for point in points)]


def planned(found: list[Found]) -> str:
    """The name of the cut that the plan takes, for one store and a link of `MBIT`."""
    rates = Rates(store_cores=1, store_link=MBIT * 1e6 / 8, tuner_cores=1)
    plan = make_plan(
        [one.cut for one in found],
        Work(images=10_000),
        rates=rates,
        stores=1,
        image_bytes=IMAGE_BYTES,
        convergence=Convergence(weights=1_000_000),
        steps=1_000,
    )
    return plan.cut.name


def table_of(name: str, found: list[Found]) -> Table:
    chosen = planned(found)
    rows: list[tuple[Cell, ...]] = []
    for one in found:
        cut, more = one.cut, "yes" if one.ships_more else ""
        predicted = max(cut.store_seconds, cut.bytes * 8e-6 / MBIT, cut.tuner_seconds)
        times = (cut.store_seconds, cut.tuner_seconds, predicted, one.together_seconds)
        mark = "plan" if cut.name == chosen else ""
        rows.append((cut.name, round(cut.bytes), more, *(f"{1e3 * seconds:.2f}" for seconds in times), mark))
    columns = ("bytes", "more than the image", "store ms", "tuner ms", "slowest ms", "together ms", "")
    return Table((f"{name}: cut after", *columns), tuple(rows))


def holds(name: str, found: list[Found]) -> Bar:
    """Among the cuts that ship no more than the image, as the plan takes no other."""
    allowed = {one.cut.name: one.together_seconds for one in found if not one.ships_more}
    chosen, least = planned(found), min(allowed, key=allowed.__getitem__)
    longer = allowed[chosen] / allowed[least]
    text = f"{chosen}: {longer:.2f} of the best, {least}"
    return Bar(
        f"{name}: time of the plan's cut", f"at most {1 + SLACK:g} of the best", text, longer <= 1 + SLACK
    )


def run(folder: Path, options: Options) -> Report:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    models = {"EfficientNet-Lite0": load_lite0(), "ResNet-50": ResNet50()}
    found = {name: measure_all(model, options) for name, model in models.items()}
    return Report(
        f"time and bytes for every cut, {SIZE} pixels, one core on either side, {MBIT:g} Mbit between them",
        tuple(table_of(name, costs) for name, costs in found.items()),
        tuple(holds(name, costs) for name, costs in found.items()),
        (
            f"per image, in batches of {IMAGES}; store: the engine; tuner: torch, forward only; both in fp32",
            "slowest: of store, link and tuner, each measured alone; together: measured with all at work",
            f"an image is {IMAGE_BYTES:,} bytes, decoded already; ResNet-50 has random weights",
            "`headwater finetune` itself chooses between images and the last cut of a version: a store runs "
            "all frozen layers or none, and where they end is fixed when the version is exported",
        ),
        raw={name: [_raw(one) for one in costs] for name, costs in found.items()},
    )


def _raw(found: Found) -> dict[str, Any]:
    return {**vars(found.cut), "together_seconds": found.together_seconds}


if __name__ == "__main__":
    main(__doc__, run)
