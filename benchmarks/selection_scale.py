"""Do signals, selectors and the order of a selection cost the same per sample at 1e4, 1e6 and 1e7 ids?

Made-up reports, a thousand samples in a class, so that classes are more where samples are; and selectors once
more with ten classes, which grow. Seconds are CPU seconds, the best of several; bytes of a selector are the
most that it holds at once, without the columns that it is given. What `craig` and `k_center` cost grows with
the square of a class, up to a size at which they do otherwise: they are measured where classes stay as large
as they are. A selection by `craig` would take minutes with 1e7 samples, so it ends at 1e6.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from headwater.data.index import Index
from headwater.data.randomness import derive_key
from headwater.engine.permutation import Chosen, Shuffled
from headwater.measure.signalfile import as_batch
from headwater.measure.signals import Signals
from headwater.select.fresh import Fresh
from headwater.select.samples import Samples
from headwater.select.selecting import SELECTORS, make_selection
from headwater.select.specs import make_selector
from headwater.select.uniform import Uniform
from measuring import Bar, Cell, Options, Report, Table, best, main, peak
from scale import make_keys

SIZES = (10_000, 1_000_000, 10_000_000)
QUICK = (10_000, 100_000)
PER_CLASS, CLASSES = 1000, 10
WIDTH = 10
BATCH = 256
BATCHES = 400
EPOCHS, EPOCH = 30, 3
TIMES = 3
FLAT = 3.0
"""How much dearer a sample may be at the largest size: the caches of a CPU end somewhere."""
BYTES_FLAT = 1.2
_BLOCK = 1 << 16
_OF_A_CLASS = ("craig", "k_center")
_MOST = {"craig": 1_000_000}

Found = dict[int, dict[str, float]]


def make_index(count: int, classes: int) -> Index:
    labels = np.arange(count) % classes
    return Index.build(make_keys(count), np.full(count, 110_000, np.int64), labels=labels)


def fill(signals: Signals, index: Index) -> None:
    """What three epochs have left in the table, made in bulk."""
    rng, count = np.random.default_rng(0), len(index)
    signals.column("loss")[:] = rng.exponential(1, count)
    signals.column("smoothed")[:] = signals.loss
    signals.column("losses")[:, :EPOCH] = signals.loss[:, None]
    signals.column("probability")[:] = rng.random(count, np.float32)
    signals.column("probability_mean")[:] = signals.probability
    signals.column("probability_count")[:] = EPOCH
    signals.column("probability_spread")[:] = rng.random(count, np.float32) / 4
    signals.column("margin")[:] = 2 * signals.probability - 1
    signals.column("seconds")[:] = rng.random(count, np.float32)
    signals.column("bytes")[:] = rng.random(count, np.float32)
    for name, value in (("seen", EPOCH), ("epoch", EPOCH - 1), ("model", 0), ("read", EPOCH - 1)):
        signals.column(name)[:] = value


def report_batches(signals: Signals, index: Index) -> None:
    """Batches from all over the data, as a training loop reports them."""
    rng = np.random.default_rng(1)
    losses = rng.random(BATCH, np.float32)
    for _ in range(BATCHES):
        ids = index.ids[rng.integers(0, len(index), BATCH)]
        signals.record(ids, losses, epoch=EPOCH, probability=losses, margin=losses)


def make_samples(signals: Signals, index: Index) -> Samples:
    """The table as selectors see it; training waits for data half of its time, so that all scores count."""
    names = ("loss", "smoothed", "probability", "margin", "seconds", "bytes", "seen", "peak", "deviation")
    known = {name: getattr(signals, name) for name in names}
    facts = {"last": signals.epoch, "epoch": EPOCH, "epochs": EPOCHS, "stalled": 0.5}
    return Samples.of(index.ids, np.asarray(index.labels, np.int64), **known, **facts)


def with_vectors(samples: Samples) -> Samples:
    made = np.empty((len(samples), WIDTH), np.float16)
    rng = np.random.default_rng(2)
    for start in range(0, len(made), _BLOCK):
        rows = made[start : start + _BLOCK]
        rows[:] = rng.standard_normal(rows.shape, np.float32)
    return replace(samples, vectors=made)


def take_all(order: Chosen) -> None:
    """A whole epoch's order, by the block."""
    for start in range(0, order.count, _BLOCK):
        order.take(start, min(start + _BLOCK, order.count))


def measure_signals(signals: Signals, index: Index) -> dict[str, float]:
    """Seconds of a report, of what follows from columns and of a table to be saved; bytes per sample."""
    count = len(index)
    report_batches(signals, index)  # the first makes the columns
    found = {"report": best(lambda: report_batches(signals, index), TIMES, time.process_time)}
    found["report"] *= count / (BATCH * BATCHES)
    fill(signals, index)
    found["derived"] = best(lambda: (signals.peak, signals.deviation), TIMES, time.process_time)
    found["table"] = best(lambda: as_batch(signals, dataset=index.version), TIMES, time.process_time)
    found["columns: bytes"] = float(signals.nbytes)
    return found


def measure_selector(name: str, samples: Samples, title: str) -> dict[str, float]:
    """CPU seconds and the most bytes of one selection."""
    selector = Uniform(0.3) if name == "uniform" else SELECTORS[name]()
    if "vectors" in selector.needs:
        selector = make_selector(name, {"explore": 0.0})  # all have a vector of this epoch
    reasons = set()

    def call() -> None:
        reasons.add(make_selection(selector, samples).reason)

    seconds = best(call, 1 if "vectors" in selector.needs else TIMES, time.process_time)
    found = {title: seconds, f"{title}: bytes": peak(call)}
    print(f"{len(samples):,}: {title}: {' '.join(reasons)}", file=sys.stderr, flush=True)
    return found


def measure_order(samples: Samples) -> dict[str, float]:
    """A whole epoch over half of the samples, per sample of the data."""
    places = make_selection(Fresh(0.5), samples).places

    def call() -> None:
        take_all(Chosen(Shuffled(len(places), derive_key(len(places))), places))

    return {"order": best(call, TIMES, time.process_time), "order: bytes": peak(call) + places.nbytes}


def measure(count: int) -> dict[str, float]:
    index = make_index(count, count // PER_CLASS)
    signals = Signals(index)
    found = measure_signals(signals, index)
    samples = make_samples(signals, index)
    found |= measure_order(samples)
    names = [name for name in SELECTORS if count <= _MOST.get(name, count)]
    found |= measure_selectors(samples, {name: name for name in names})
    few = replace(samples, labels=np.arange(count) % CLASSES)
    return found | measure_selectors(few, with_few())


def measure_selectors(samples: Samples, named: Mapping[str, str]) -> dict[str, float]:
    """All of these, each by what it is called."""
    found: dict[str, float] = {}
    for title, name in named.items():
        wants = "vectors" in SELECTORS[name]().needs
        found |= measure_selector(name, with_vectors(samples) if wants else samples, title)
    return found


def with_few() -> dict[str, str]:
    """Those selectors whose cost does not depend on how large a class is."""
    return {f"{name}, {CLASSES} classes": name for name in SELECTORS if name not in _OF_A_CLASS}


def titles() -> dict[str, str]:
    """What is measured, in words; each has a cost in seconds."""
    known = {
        "report": f"signals: a report, in batches of {BATCH}",
        "derived": "signals: the columns that follow from others",
        "table": "signals: the table for a file, with its digest",
        "order": "order: a whole epoch over half of the samples",
    }
    return known | {name: f"select: {name}" for name in (*SELECTORS, *with_few())}


def table_of(found: Found) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for name, title in titles().items():
        rows.append((f"{title} (CPU ns/sample)", *(_each(found[n], name, n, 1e9, ".0f") for n in found)))
    for name in found[min(found)]:
        if name.endswith(": bytes"):
            rows.append((f"{name}/sample", *(_each(found[n], name, n, 1, ".1f") for n in found)))
    return Table(("what", *(f"{count:.0e}" for count in found)), tuple(rows))


def _each(values: Mapping[str, float], name: str, count: int, scale: float, form: str) -> str:
    """Per sample; empty where it was not measured."""
    return format(scale * values[name] / count, form) if name in values else ""


def bars_of(found: Found) -> list[Bar]:
    """The largest size that was measured against the cheapest of the smaller ones."""

    def bar(name: str, limit: float) -> Bar:
        costs = {count: values[name] / count for count, values in found.items() if name in values}
        *smaller, largest = costs
        factor = costs[largest] / min(costs[count] for count in smaller)
        what = f"{name}, per sample at {largest:.0e} over the least at fewer"
        return Bar(what, f"under {limit:g}x", f"{factor:.2f}x", factor < limit)

    return [bar(name, BYTES_FLAT if name.endswith("bytes") else FLAT) for name in found[min(found)]]


def run(folder: Path, options: Options) -> Report:
    found = {count: measure(count) for count in (QUICK if options.quick else SIZES)}
    raw = {str(count): values for count, values in found.items()}
    return Report(
        "signals, selectors and order per sample", (table_of(found),), tuple(bars_of(found)), raw=raw
    )


if __name__ == "__main__":
    main(__doc__, run)
