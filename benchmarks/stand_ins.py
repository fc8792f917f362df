"""Does a near-duplicate that is held spare bytes over a slow link, and does it cost accuracy?

CIFAR-10 with copies: of every fifth image two more at another quality, one of them shifted by a pixel, in a
store at the far end of a link of 16 Mbit. The trainer holds a fifth of all bytes. The same small network is
trained from the same beginnings: on every sample itself, and with what is held standing in for its
near-duplicates. Accuracy is that of the 10,000 test images, pairwise over the seeds.

Bytes of both are measured, with the product's own cache, which holds what is worth most for its bytes. It has
no policy that lets the least recent go (LRU): what that would have let cross is computed, from the order in
which samples came and their sizes; what messages add to these is counted only where bytes are measured.
"""

from __future__ import annotations

import io
import os
import statistics
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray
from PIL import Image
from torch.nn.functional import cross_entropy

import headwater as hw
from convnets import make_network
from experiments import Difference, Found, Results
from headwater import transforms as T
from headwater.cli.child_store import ChildStore
from headwater.cli.cpu import cpu_seconds
from headwater.cli.proxy import Proxy, Shape
from imagesets import FOLDERS, work_in
from measuring import Bar, Flag, Options, Report, Table, main
from small_files import make_parquet

HELD = 0.2
RATE_BITS = 16e6
IMAGES, EVERY = 6_000, 5
BATCH = 100
FLAGS = {"seeds": Flag(10, "runs of each way"), "epochs": Flag(8, "of each run")}
PATIENCE = 3
RATE = 0.03
LEAST = 30.0
"""Percents that a network gets right which has learned something: what has not tells nothing."""
WIDTH = 16
PLAIN, STAND_IN = WAYS = ("itself", "stand-ins")


@dataclass(frozen=True)
class Trained:
    """A run: bytes that crossed, what a cache of those used last would have let cross, and the rest.

    `cpu` are seconds of trainer and store.
    """

    bytes: int
    bytes_least_recent: int
    stood_in: int
    seconds: float
    cpu: float
    accuracy: float

    def __str__(self) -> str:
        return f"{self.accuracy:.2f} %, {self.bytes / 1e6:.1f} MB in {self.seconds:.1f} s"


def write_copies(source: Path, target: Path, count: int) -> None:
    """Images of a Parquet file, and copies of every few of them, labels and all."""
    table = pq.read_table(source, columns=["image", "label"]).slice(0, count)
    images = [row["bytes"] for row in table["image"].to_pylist()]
    labels = table["label"].to_pylist()
    for place in range(0, count, EVERY):
        images += [_copy(images[place], quality=85, shift=0), _copy(images[place], quality=70, shift=1)]
        labels += [labels[place]] * 2
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    rows = pa.array([{"bytes": image, "path": None} for image in images], kind)
    pq.write_table(pa.table({"image": rows, "label": labels}), target, row_group_size=500)


def _copy(file: bytes, *, quality: int, shift: int) -> bytes:
    with Image.open(io.BytesIO(file)) as image:
        pixels = np.roll(np.asarray(image), shift, axis=1)
    made = io.BytesIO()
    Image.fromarray(pixels).save(made, "JPEG", quality=quality)
    return made.getvalue()


def steps(*, training: bool) -> T.Compose:
    moved = [T.RandomCrop(32, padding=4), T.RandomHorizontalFlip()] if training else []
    return T.Compose([*moved, T.ToDtype("float32", scale=True), T.Normalize(0.47, 0.25)])


@dataclass(frozen=True, eq=False)
class Course:
    """One network after the other, from the same beginnings."""

    remote: hw.Dataset
    store: ChildStore
    duplicates: hw.Duplicates
    test: hw.Dataset
    epochs: int

    def train(self, way: str, seed: int) -> Trained:
        held = int(HELD * self.remote.sizes.sum())
        loader = hw.DataLoader(
            self.remote,
            steps(training=True),
            batch_size=BATCH,
            shuffle=True,
            seed=seed,
            epochs=self.epochs,
            cache=held,
            duplicates=self.duplicates if way == STAND_IN else None,
            progress=False,
        )
        torch.manual_seed(seed)
        network, order, stood_in = make_network(WIDTH), [], 0
        optimiser = torch.optim.SGD(network.parameters(), lr=RATE, momentum=0.9, nesterov=True)
        begin, cpu = time.perf_counter(), self._cpu()
        for _ in range(self.epochs):
            selection = loader.selection
            if selection is not None and selection.stand_ins is not None:
                stood_in += int((selection.stand_ins >= 0).sum())
            order += list(_learn(network, optimiser, loader))
        spent = time.perf_counter() - begin, self._cpu() - cpu
        moved = loader.stats().bytes_moved
        loader.close()
        least = self._least_recent(np.concatenate(order), held)
        return Trained(moved, least, stood_in, *spent, self._judge(network))

    def _cpu(self) -> float:
        return cpu_seconds((os.getpid(), self.store.pid))

    def _least_recent(self, ids: NDArray[np.int64], held: int) -> int:
        """Bytes that cross if what was used least recently goes."""
        sizes = dict(zip(self.remote.ids.tolist(), self.remote.sizes.tolist(), strict=True))
        shelf: OrderedDict[int, int] = OrderedDict()
        moved = used = 0
        for id in ids.tolist():
            if id in shelf:
                shelf.move_to_end(id)
                continue
            shelf[id] = sizes[id]
            moved, used = moved + sizes[id], used + sizes[id]
            while used > held:
                used -= shelf.popitem(last=False)[1]
        return moved

    def _judge(self, network: torch.nn.Module) -> float:
        network.eval()
        loader = hw.DataLoader(self.test, steps(training=False), batch_size=500, progress=False)
        with torch.no_grad():
            right = sum(int((network(x).argmax(1) == y).sum()) for x, y in loader)
        return 100 * right / len(self.test)


def _learn(
    network: torch.nn.Module, optimiser: torch.optim.Optimizer, loader: hw.DataLoader
) -> Iterator[NDArray[np.int64]]:
    """An epoch; the ids that were served."""
    network.train()
    for batch in loader:
        for group in optimiser.param_groups:
            group["lr"] = RATE * (1 - loader.done)
        losses = cross_entropy(network(batch.inputs), batch.targets, reduction="none")
        optimiser.zero_grad()
        torch.autograd.backward((losses * batch.weights).mean())
        optimiser.step()
        yield batch.ids.numpy()


@contextmanager
def far_away(file: Path, folder: Path) -> Iterator[tuple[hw.Dataset, ChildStore]]:
    """The data behind a slow link, and the store that has it."""
    with (
        ChildStore([f"copies={file}"], log=folder / "store.log") as store,
        Proxy(store.address, shape=Shape(bits_per_second=RATE_BITS)) as proxy,
    ):
        remote = hw.open(store.uri("copies", through=proxy.address), progress=False)
        try:
            yield remote, store
        finally:
            remote.close()


def table_of(found: Found) -> Table:
    rows = []
    for way in WAYS:
        some: list[Trained] = found.of(way)
        moved, least = ([getattr(one, name) for one in some] for name in ("bytes", "bytes_least_recent"))
        rows.append(
            (
                way,
                f"{statistics.median(moved) / 1e6:.1f}",
                f"{statistics.median(least) / 1e6:.1f}",
                f"{statistics.median(m / n for m, n in zip(moved, least, strict=True)):.3f}",
                f"{statistics.median(one.stood_in for one in some):,.0f}",
                f"{statistics.median(one.seconds for one in some):.1f}",
                f"{statistics.median(one.cpu for one in some):.1f}",
                f"{statistics.fmean(one.accuracy for one in some):.2f}",
            )
        )
    columns = ("served", "MB", "MB by LRU, computed", "ratio", "stood in", "seconds", "CPU s", "accuracy, %")
    return Table(columns, tuple(rows))


def bars_of(found: Found) -> tuple[Bar, ...]:
    plain, stood = found.of(PLAIN), found.of(STAND_IN)
    ratios = [a.bytes_least_recent / b.bytes for a, b in zip(plain, stood, strict=True)]
    fewer = statistics.median(ratios)
    text = f"{fewer:.3f}x ({min(ratios):.3f}..{max(ratios):.3f})"
    apart = Difference.of([one.accuracy for one in stood], [one.accuracy for one in plain])
    what = "accuracy with stand-ins less without, points"
    least = min(one.accuracy for one in (*plain, *stood))
    return (
        Bar("bytes of samples themselves by LRU, over those with stand-ins", "over 1x", text, fewer > 1),
        Bar(what, "0 in the interval", str(apart), apart.verdict == "equal"),
        Bar("accuracy of the worst run", f"over {LEAST:g} %", f"{least:.1f} %", least > LEAST),
    )


def find_files(folder: Path, options: Options, count: int) -> tuple[Path, Path]:
    """The file to train on, with its copies, and the one to judge by."""
    source = test = folder / "source.parquet"
    if options.data:
        source, test = (options.data / "cifar10" / f"{part}.parquet" for part in ("train", "test"))
    else:
        make_parquet(source, count)
    write_copies(source, folder / "copies.parquet", count)
    return folder / "copies.parquet", test


def run(folder: Path, options: Options) -> Report:
    epochs, seeds = (int(options.numbers[name]) for name in ("epochs", "seeds"))
    images, epochs, seeds = (600, 3, 2) if options.quick else (IMAGES, epochs, seeds)
    file, test = find_files(folder, options, images)
    results = Results(work_in(folder, options) / f"stand-ins-{images}x{epochs}.jsonl", Trained)
    found = Found(results, "CIFAR-10" if options.data else "made", range(seeds))
    with far_away(file, folder) as (remote, store):
        groups = replace(hw.find_duplicates(remote), mode="stand_in", patience=PATIENCE)
        course = Course(remote, store, groups, hw.open(test, progress=False), epochs)
        found.make(WAYS, course.train)
    return Report(
        f"stand-ins from a cache of {HELD:.0%} of the bytes, over {RATE_BITS / 1e6:g} Mbit",
        (table_of(found),),
        bars_of(found) if options.data and not options.quick else (),  # else nothing is learned
        (
            f"{len(remote):,} samples, {len(groups):,} of them found to be near-duplicates in groups; "
            f"{groups.redundant:,} could be left out",
            f"{epochs} epochs, {seeds} seeds, batches of {BATCH}; a sample is itself read at least every "
            f"{PATIENCE + 1} epochs; {found.used}",
            "LRU: what a cache of as many bytes would have let cross that lets the least recent go",
        ),
        raw={way: [vars(one) for one in found.of(way)] for way in WAYS},
    )


if __name__ == "__main__":
    main(__doc__, run, flags=FLAGS, folders={"work": FOLDERS["work"]})
