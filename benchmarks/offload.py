"""How many bytes does each policy send over the link, for the same tensors, and at what cost in CPU?

Store and trainer are in two network namespaces; needs root. The link is so slow that it is always what the
trainer waits for. Bytes are what the trainer's network interface received, so requests, framing, headers and
retries are in them; CPU seconds are those of all processes at either end. The first epoch, in which ways are
tried, is told apart from those that follow. Every sample of every epoch is compared with that of `none`.

The optimum of `efficiency` is exact: for every sample the least of its file and the pixels at each cut, with
the crops of that epoch, and on top what the interface of `none` received beyond the files.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import headwater as hw
from headwater.data.image import read_header
from headwater.data.pipeline import Pipeline
from measuring import Bar, Cell, Options, Report, Table, main
from netns import Ends, demand_root, slow_link
from processes.reader import training_steps
from serving import serve
from trainers import Cost, Epoch, Trainer, mean, write_tars

RATE_MBIT = 25
EPOCHS = 3
SEED = 17
CHANNELS = 3
CAP_SECONDS = 0.001
HULL = {"policy": "hull", "fresh": True}
POLICIES: dict[str, str | dict[str, Any]] = {
    "none": "none",
    "efficiency": {"policy": "efficiency", "fresh": True},
    "fixed, after resize": {"cut": 3},
    "all": "all",
    "hull, cheap codecs": {**HULL, "codecs": ["zstd", "jxl1", "jpeg"]},
    "hull, all codecs": HULL,
    "hull, 1 ms a sample": {**HULL, "store_seconds": CAP_SECONDS},
}
FEWER = {"hull, cheap codecs": 2.4, "hull, all codecs": 2.75, "hull, 1 ms a sample": 2.0}
CLOSE = 0.02
"""How far `efficiency` may be from its optimum."""

Runs = Mapping[str, Sequence[Epoch]]


@dataclass(frozen=True)
class Least:
    """Payload of one epoch: files, best choice of cuts; and the share of samples that a cut makes smaller."""

    files: float
    best: float
    share: float


def find_least(photos: Path, samples: int, *, epochs: int) -> list[Least]:
    data = hw.open(photos, progress=False)
    data = data.select(data.ids[: samples or None])
    pipeline = training_steps().samplewise
    prefix = pipeline.cut(pipeline.longest_prefix)[0]
    headers = [read_header(file) for file in data.store.read(data.positions())]
    shapes = np.array([header.size() for header in headers], np.int64)
    found = []
    for epoch in range(epochs):
        cuts = [CHANNELS * pixels for pixels in pixels_of(prefix, data, shapes, epoch)]
        best = np.minimum.reduce([data.sizes, *cuts])
        share = float(np.mean(best < data.sizes))
        found.append(Least(float(data.sizes.sum()), float(best.sum()), share))
    return found


def pixels_of(
    prefix: Pipeline, data: hw.Dataset, shapes: NDArray[np.int64], epoch: int
) -> Iterator[NDArray[np.int64]]:
    """Pixels of every sample after each of the steps."""
    rows = prefix.draw(data.ids, shapes, seed=SEED, epoch=epoch)
    for step, row in zip(prefix.steps, rows, strict=True):
        shapes = step.out_sizes(shapes, row)
        yield shapes.prod(axis=1)


def measure(
    ends: Ends, url: str, *, folder: Path, samples: int, epochs: int
) -> tuple[dict[str, list[Epoch]], dict[str, Any]]:
    """All epochs of every policy, in a process and with a cache of its own; and what its planner noted."""
    found, stretches = {}, {}
    for name, offload in POLICIES.items():
        settings = {"offload": offload, "samples": samples, "seed": SEED, "digests": True}
        with Trainer(url, settings, ends=ends, folder=folder) as trainer:
            found[name] = [trainer.epoch() for _ in range(epochs)]
            stretches[name] = trainer.stretches()
        sizes = ", ".join(f"{epoch.cost.bytes / 1e6:.1f}" for epoch in found[name])
        print(f"{name}: {sizes} MB", file=sys.stderr, flush=True)
    return found, stretches


def table_of(runs: Runs, epochs: slice, title: str) -> Table:
    rows = []
    for name, found in runs.items():
        some, none = found[epochs], mean([epoch.cost for epoch in runs["none"][epochs]])
        cost = mean([epoch.cost for epoch in some])
        offloaded = sum(epoch.offloaded for epoch in some) / len(some)
        pushed = round(sum(epoch.counts["pushed_back"] for epoch in some))
        rows.append((name, *_cells(cost, none), f"{offloaded:.1%}", pushed))
    columns = (title, "MB", "none / it", "store CPU s", "trainer CPU s", "seconds", "of the link")
    return Table((*columns, "offloaded", "pushed back"), tuple(rows))


def _cells(cost: Cost, none: Cost) -> tuple[Cell, ...]:
    spent = (cost.store_cpu, cost.trainer_cpu, cost.seconds)
    times = f"{none.bytes / cost.bytes:.3f}x"
    share = f"{cost.link_share(RATE_MBIT):.2f}"
    return f"{cost.bytes / 1e6:.2f}", times, *(f"{value:.2f}" for value in spent), share


def total(epochs: Sequence[Epoch]) -> float:
    return sum(epoch.cost.bytes for epoch in epochs)


def fewer_bars(runs: Runs) -> list[Bar]:
    bars = []
    for name, asked in FEWER.items():
        found = total(runs["none"][1:]) / total(runs[name][1:])
        what = f"{name}: fewer bytes than none"
        bars.append(Bar(what, f"at least {asked:g}x", f"{found:.3f}x", found >= asked))
    return bars


def optimum_bar(runs: Runs, least: Sequence[Least]) -> Bar:
    framing = total(runs["none"][1:]) - sum(each.files for each in least[1:])
    optimum = sum(each.best for each in least[1:]) + framing
    found = total(runs["efficiency"][1:]) / optimum - 1
    what = f"efficiency: bytes above the optimum of its options ({optimum / 1e6 / len(least[1:]):.2f} MB)"
    return Bar(what, f"within {CLOSE:.0%}", f"{found:+.2%}", abs(found) <= CLOSE)


def same_bar(runs: Runs) -> Bar:
    """Every id of `none` must be there, with the same digest."""
    compared = differing = 0
    for found in runs.values():
        for ours, theirs in zip(found, runs["none"], strict=True):
            ids = ours.digests.keys() | theirs.digests.keys()
            compared += len(ids)
            differing += sum(ours.digests.get(id) != theirs.digests.get(id) for id in ids)
    what = f"tensors that differ from those of none, {len(runs)} policies, all epochs"
    return Bar(what, "0", f"{differing} of {compared:,}", differing == 0 < compared)


def notes_of(runs: Runs, least: Sequence[Least]) -> list[str]:
    images = runs["none"][0].images
    files, best = (sum(getattr(each, name) for each in least[1:]) for name in ("files", "best"))
    share = sum(each.share for each in least[1:]) / len(least[1:])
    spent = {name: mean([epoch.cost for epoch in runs[name][1:]]).store_cpu for name in ("none", *FEWER)}
    extra = {name: 1e3 * (spent[name] - spent["none"]) / images for name in FEWER}
    framing = total(runs["none"][1:]) / files - 1
    return [
        f"{images} photos, batches of 64, a link of {RATE_MBIT} Mbit; means of an epoch",
        f"a cut makes {share:.1%} of the samples smaller: at best {files / best:.3f}x fewer bytes of payload",
        f"the interface of none received {framing:.2%} more than the files",
        "store CPU beyond that of none, ms a sample: "
        + ", ".join(f"{name} {value:.2f}" for name, value in extra.items()),
    ]


def run(folder: Path, options: Options) -> Report:
    photos = write_tars(folder, options)
    samples, epochs = (128, 2) if options.quick else (0, EPOCHS)
    least = find_least(photos, samples, epochs=epochs)
    with slow_link(rate_mbit=RATE_MBIT) as ends:
        listen = f"{ends.store.address}:7077"
        with serve(photos, listen=listen, within=ends.store.words) as store:
            runs, stretches = measure(ends, store.photos, folder=folder, samples=samples, epochs=epochs)
    # Asked for of as many photos as it takes to know the ways; and made-up ones compress otherwise.
    planned = [] if options.quick else [optimum_bar(runs, least)]
    fewer = fewer_bars(runs) if options.data and not options.quick else []
    return Report(
        f"bytes at the trainer's network interface by policy, link of {RATE_MBIT} Mbit",
        (table_of(runs, slice(1, None), "later epochs"), table_of(runs, slice(1), "first epoch")),
        (*fewer, *planned, same_bar(runs)),
        tuple(notes_of(runs, least)),
        raw={
            "costs": {name: [vars(epoch.cost) for epoch in found] for name, found in runs.items()},
            "stretches": stretches,
        },
    )


if __name__ == "__main__":
    demand_root()
    main(__doc__, run)
