"""What does every cut of EfficientNet-Lite0 and ResNet-50 cost, in time and bytes, and which is planned?

The layers before the cut run in the engine on one core, as at a store, the others on the other core, as at a
tuner. What crosses is the image (110 kB), or the tensor at the cut as fp16. Each side is measured alone; then
all run at once, with a link between them that is only a clock: the cuts that a plan may take in turns, for
five rounds, and the others once. The plan is made as `headwater finetune` makes it: from the time of all
layers, and the share of it before those cuts that are worth a look. Its cut is compared with the best of
those that took turns, and with what that one's own rounds differ by.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import Queue
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

import headwater as hw
from headwater import transforms as T
from headwater.models.crossing import Crossing, Crossings
from headwater.models.cutting import find_crossings
from headwater.models.export import export
from headwater.models.model import Model
from headwater.models.parts import FirstLayers, LastLayers
from headwater.models.presets import load_lite0
from headwater.models.runtime import Engine
from headwater.models.split import IMAGE_BYTES
from headwater.plan.finetune import Convergence, Cut, Rates, Work, make_plan
from headwater.tune.inside import Pace, shares, worthwhile
from headwater.tune.runs import LOT
from measuring import Bar, Cell, Options, Report, Table, best, interleave, main
from resnet import ResNet50

IMAGES = 8
"""In a batch."""
MBIT = 100.0
SIZE = 224
ROUNDS = 5


@dataclass(frozen=True)
class Found:
    """A cut with its cost for one image, and the seconds that one took with everything at work at once.

    `together` has those of each round; of cuts that ship more than the image there was one.
    """

    cut: Cut
    together: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.together)

    @property
    def spread(self) -> str:
        """In milliseconds; empty for one round."""
        low, high = min(self.together), max(self.together)
        return f"{1e3 * low:.2f}..{1e3 * high:.2f}" if len(self.together) > 1 else ""


@dataclass(frozen=True)
class Outcome:
    """All cuts of a network, and the one that the plan takes."""

    costs: list[Found]
    planned: str


class Link:
    """A link that is only a clock: what crosses takes its time, one after the other."""

    def __init__(self, mbit: float) -> None:
        self._rate, self._free = mbit * 1e6 / 8, 0.0

    def carry(self, count: float) -> None:
        self._free = max(self._free, time.perf_counter()) + count / self._rate
        time.sleep(max(0.0, self._free - time.perf_counter()))


@dataclass(frozen=True, eq=False)
class Ready:
    """A cut whose layers are loaded on both sides: what store and tuner do with a batch, and what crosses."""

    name: str
    store: Callable[[], Any]
    tuner: Callable[[], Any]
    cut_bytes: float

    def alone(self, options: Options) -> Cut:
        """What an image costs each side, with nothing else at work."""
        times = 2 if options.quick else 5
        there, here = (best(side, times) / IMAGES for side in (self.store, self.tuner))
        return Cut(self.name, there, self.cut_bytes, here)

    def together(self, batches: int) -> float:
        """Seconds per image with both sides and the link at work."""
        return run_together(self.store, self.tuner, self.cut_bytes, batches)


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


def measure_all(network: nn.Module, options: Options) -> Outcome:
    """All cuts, from the image itself to the features."""
    model = _export(network)
    crossings = find_crossings(model.trunk)
    pixels = np.random.default_rng(0).integers(0, 256, (IMAGES, SIZE, SIZE, 3)).astype(np.uint8)
    engine = Engine(model)

    def whole() -> Any:
        return engine.features(pixels)

    ends = Ready("images", _nothing, whole, IMAGE_BYTES), Ready("features", whole, _nothing, 2 * engine.width)
    costs = {end.name: end.alone(options) for end in ends}
    chosen = planned(model, crossings, pixels, costs["images"], costs["features"])
    inside = distinct(crossings)
    if options.quick:
        inside = [one for one in inside if one.name in (inside[0].name, chosen)]
    found, racing = {}, [*ends]
    for crossing in inside:
        ready = prepare(model, crossing, pixels)
        costs[ready.name] = ready.alone(options)
        if ships_more(costs[ready.name]):
            found[ready.name] = (ready.together(3 if options.quick else 4),)
        else:
            racing.append(ready)
    found |= race(racing, options)
    names = ["images", *(one.name for one in inside), "features"]
    return Outcome([Found(costs[name], found[name]) for name in names], chosen)


def race(cuts: list[Ready], options: Options) -> dict[str, tuple[float, ...]]:
    """Seconds per image of each cut in each round, in which they take turns."""
    batches = 3 if options.quick else 8
    contenders = {one.name: partial(_rate, one, batches) for one in cuts}
    rates = interleave(contenders, rounds=2 if options.quick else ROUNDS)
    return {name: tuple(1 / rate for rate in values) for name, values in rates.items()}


def _rate(cut: Ready, batches: int) -> float:
    return 1 / cut.together(batches)


def distinct(crossings: Crossings) -> list[Crossing]:
    """Of cuts with the same work before them the one that ships least, and of equals the last."""
    levels: dict[int, Crossing] = {}
    for one in crossings:
        if one.work < crossings.work and (one.work not in levels or one.bytes <= levels[one.work].bytes):
            levels[one.work] = one
    return list(levels.values())


def prepare(model: Model, crossing: Crossing, pixels: NDArray[np.uint8]) -> Ready:
    """The layers up to a cut between them, and those behind it."""
    first, last = FirstLayers(model, crossing), LastLayers(model, crossing)

    def store() -> NDArray[np.float16]:
        with np.errstate(over="ignore"):  # random weights make values of any size; they cost the same
            return first.features(pixels).astype(np.float16)

    vectors = store()
    return Ready(crossing.name, store, lambda: last.features(vectors), crossing.bytes)


def _nothing() -> None:
    return None


def _export(network: nn.Module) -> Model:
    steps = T.Compose([T.Resize(256), T.CenterCrop(SIZE), T.Normalize([0.5] * 3, [0.5] * 3)])
    classes = [str(n) for n in range(1000)]
    # With random weights activations grow from layer to layer, and their rounding with them.
    return export(
        hw.split(network.eval(), image_size=SIZE), classes=classes, steps=steps, tolerance=1e-3
    ).model


def planned(model: Model, crossings: Crossings, pixels: NDArray[np.uint8], images: Cut, features: Cut) -> str:
    """The name of the cut that the plan takes, for one store and a link of `MBIT`."""
    pace = Pace(layers=images.tuner_seconds, steps=0.0, store=features.store_seconds)
    chosen = worthwhile(crossings, most_bytes=IMAGE_BYTES)
    found = shares(model, chosen, pixels)
    inside = [pace.cut(one, found[one.name]) for one in chosen if one.name in found]
    plan = make_plan(
        [images, *inside, features],
        Work(images=10_000, lot=LOT),
        rates=Rates(store_cores=1, store_link=MBIT * 1e6 / 8, tuner_cores=1),
        stores=1,
        image_bytes=IMAGE_BYTES,
        convergence=Convergence(weights=1_000_000),
        steps=1_000,
    )
    return plan.cut.name


def table_of(name: str, outcome: Outcome) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for one in outcome.costs:
        cut, more = one.cut, "yes" if ships_more(one.cut) else ""
        predicted = max(cut.store_seconds, cut.bytes * 8e-6 / MBIT, cut.tuner_seconds)
        times = (cut.store_seconds, cut.tuner_seconds, predicted, one.median)
        mark = "plan" if cut.name == outcome.planned else ""
        shown = (f"{1e3 * seconds:.2f}" for seconds in times)
        rows.append((cut.name, round(cut.bytes), more, *shown, one.spread, mark))
    columns = ("bytes", "more than the image", "store ms", "tuner ms", "slowest ms", "together ms")
    return Table((f"{name}: cut at", *columns, "min..max", ""), tuple(rows))


def ships_more(cut: Cut) -> bool:
    return cut.bytes > IMAGE_BYTES


def holds(name: str, outcome: Outcome) -> Bar:
    """Among the cuts that ship no more than the image, as the plan takes no other."""
    allowed = {one.cut.name: one for one in outcome.costs if not ships_more(one.cut)}
    least, taken = min(allowed.values(), key=lambda one: one.median), allowed[outcome.planned]
    text = (
        f"{taken.cut.name} {1e3 * taken.median:.2f} ms ({taken.spread}), "
        f"{taken.median / least.median:.2f} of the best, "
        f"{least.cut.name} {1e3 * least.median:.2f} ms ({least.spread})"
    )
    inside = taken.median <= max(least.together)
    return Bar(f"{name}: time of the plan's cut", "median within the spread of the best", text, inside)


def run(folder: Path, options: Options) -> Report:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    models = {"EfficientNet-Lite0": load_lite0(), "ResNet-50": ResNet50()}
    found = {name: measure_all(model, options) for name, model in models.items()}
    rounds = len(next(iter(found.values())).costs[0].together)
    return Report(
        f"time and bytes for every cut, {SIZE} pixels, one core on either side, {MBIT:g} Mbit between them",
        tuple(table_of(name, outcome) for name, outcome in found.items()),
        tuple(holds(name, outcome) for name, outcome in found.items()),
        (
            f"per image, in batches of {IMAGES}; the engine on both sides, in fp32, forward only",
            "slowest: of store, link and tuner, each measured alone; together: measured with all at work",
            f"together: the median of {rounds} rounds in turns; of cuts that ship more, one run",
            f"an image is {IMAGE_BYTES:,} bytes, decoded already; ResNet-50 has random weights",
            "of cuts with the same multiplications before them, the one that ships least",
            "the plan is made as `headwater finetune` makes it, from the time of all layers and shares of it",
        ),
        raw={name: [_raw(one) for one in outcome.costs] for name, outcome in found.items()},
    )


def _raw(found: Found) -> dict[str, Any]:
    return {**vars(found.cut), "together_seconds": found.together}


if __name__ == "__main__":
    main(__doc__, run)
