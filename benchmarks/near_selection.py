"""Selection beside the data against selection at the trainer, over 100 Mbit: seconds, bytes, and for what?

Photos of about 110 kB in a store at the far end of a link, of which medoids choose three tenths for every
epoch. Beside the data, the store scores its own photos with an int8 proxy that training feeds back, and only
the chosen ones cross. At the trainer, all photos cross to be scored by the network itself, and the chosen
ones cross again to be trained on. A third run trains on everything. The first epochs, which visit everything
until there is a selection, count in all of them. Bytes are those of the link, both ways, feedback included.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import headwater as hw
from headwater import transforms as T
from headwater.cli.child_store import ChildStore
from headwater.cli.proxy import Proxy, Shape
from headwater.cli.training import small_network
from headwater.data.synthetic import write_photos
from headwater.loader.beside import Beside
from headwater.loader.reporting import Shown
from headwater.select.medoids import Medoids
from headwater.select.samples import Samples
from headwater.select.selecting import make_selection
from measuring import Bar, Options, Report, Table, main

RATE_BITS = 100e6
SHARE, CLASSES, PIXELS, BATCH = 0.3, 8, 64, 32
PHOTOS, EPOCHS, ROUNDS = 1200, 8, 3
NEAR, HERE, ALL = "beside the data", "at the trainer", "everything"
LEAST_BYTES = 3.0
LEAST_RANK, LEAST_FEEDBACK = 0.95, 4.0


@dataclass
class Run:
    """One training run: seconds in all and by part, bytes over the link, and how well it labels."""

    seconds: float = 0.0
    bytes: int = 0
    selecting: list[float] = field(default_factory=list)
    epochs: list[float] = field(default_factory=list)
    accuracy: float = 0.0
    feedback: list[int] = field(default_factory=list)
    correlations: list[float] = field(default_factory=list)
    precisions: list[str] = field(default_factory=list)


def steps(*, training: bool) -> T.Compose:
    first = [T.RandomResizedCrop(PIXELS, scale=(0.6, 1.0))] if training else [T.Resize((PIXELS, PIXELS))]
    return T.Compose([*first, T.ToDtype("float32", scale=True), T.Normalize(0.45, 0.25)])


@dataclass(frozen=True, eq=False)
class Bench:
    """The data behind its link, and some that was held back."""

    remote: hw.Dataset
    proxy: Proxy
    held_back: hw.Dataset
    epochs: int

    def run(self, way: str, seed: int) -> Run:
        torch.manual_seed(seed)
        network, found = small_network(CLASSES), Run()
        optimiser = torch.optim.AdamW(network.parameters(), lr=3e-3)
        before, begin = self._bytes(), time.perf_counter()
        {NEAR: self._near, HERE: self._here, ALL: self._everything}[way](network, optimiser, found, seed)
        found.seconds, found.bytes = time.perf_counter() - begin, self._bytes() - before
        found.accuracy = self._judge(network)
        return found

    def _bytes(self) -> int:
        return self.proxy.bytes_down + self.proxy.bytes_up

    def _loader(self, data: hw.Dataset, seed: int, select: Beside | None = None) -> hw.DataLoader:
        return hw.DataLoader(
            data,
            steps(training=True),
            batch_size=BATCH,
            shuffle=True,
            seed=seed,
            select=select,
            epochs=self.epochs,
            progress=False,
        )

    def _everything(
        self, network: nn.Module, optimiser: torch.optim.Optimizer, found: Run, seed: int
    ) -> None:
        with closing(self._loader(self.remote, seed)) as loader:
            for _ in range(self.epochs):
                found.epochs.append(learn(network, optimiser, loader))

    def _near(self, network: nn.Module, optimiser: torch.optim.Optimizer, found: Run, seed: int) -> None:
        with (
            closing(Beside("medoids", self.remote, steps(training=False), share=SHARE)) as beside,
            closing(self._loader(self.remote, seed, beside)) as loader,
        ):
            for _ in range(self.epochs):
                found.epochs.append(learn(network, optimiser, loader))
                beside.feed(network)
            used = [one for one in beside.rounds if one.chosen]
            found.selecting = [one.scored_seconds for one in used]
            found.feedback = [one.bytes_moved for one in used]
            found.precisions = [one.fed.precision for one in used if one.fed]
            found.correlations = [
                1.0 if one.fed.correlation is None else one.fed.correlation for one in used if one.fed
            ]

    def _here(self, network: nn.Module, optimiser: torch.optim.Optimizer, found: Run, seed: int) -> None:
        """The first two epochs are whole, as those of the other are."""
        chosen = self.remote
        for epoch in range(self.epochs):
            if epoch >= 2:
                begin = time.perf_counter()
                chosen = self._select(network, epoch, seed)
                found.selecting.append(time.perf_counter() - begin)
            with closing(self._loader(chosen, seed)) as loader:
                loader.set_epoch(epoch)
                found.epochs.append(learn(network, optimiser, loader))

    def _select(self, network: nn.Module, epoch: int, seed: int) -> hw.Dataset:
        """Score every photo here, and choose."""
        loader = hw.DataLoader(self.remote, steps(training=False), batch_size=64, progress=False)
        network.eval()
        parts = []
        with torch.no_grad(), closing(loader):
            for batch in loader:
                logits = network(batch.inputs)
                loss = cross_entropy(logits, batch.targets, reduction="none")
                parts.append(Shown.of(loss, logits, batch.targets, vectors=True).columns)
        columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        labels = self.remote.labels.astype(np.int64)
        samples = Samples.of(self.remote.ids, labels, seed=seed, epoch=epoch, **columns)
        return self.remote.select(self.remote.ids[make_selection(Medoids(SHARE), samples).places])

    def _judge(self, network: nn.Module) -> float:
        network.eval()
        loader = hw.DataLoader(self.held_back, steps(training=False), batch_size=64, progress=False)
        with torch.no_grad():
            right = sum(int((network(x).argmax(1) == y).sum()) for x, y in loader)
        return 100 * right / len(self.held_back)


def learn(network: nn.Module, optimiser: torch.optim.Optimizer, loader: hw.DataLoader) -> float:
    """An epoch; the seconds that it took."""
    network.train()
    begin = time.perf_counter()
    for batch in loader:
        loss = cross_entropy(network(batch.inputs), batch.targets, reduction="none")
        optimiser.zero_grad()
        torch.autograd.backward((loss * batch.weights).mean())
        optimiser.step()
    return time.perf_counter() - begin


@contextmanager
def opened(folder: Path, count: int, epochs: int) -> Iterator[Bench]:
    photos, others = folder / "photos", folder / "others"
    write_photos(photos, count=count, classes=CLASSES, seed=1, threads=2)
    write_photos(others, count=max(64, count // 4), classes=CLASSES, seed=2, threads=2)
    flags = ["--state", folder / "state"]
    with (
        ChildStore([f"photos={photos}"], log=folder / "store.log", flags=flags) as store,
        Proxy(store.address, shape=Shape(bits_per_second=RATE_BITS)) as proxy,
        closing(hw.open(store.uri("photos", through=proxy.address), progress=False)) as remote,
    ):
        yield Bench(remote, proxy, hw.open(others, progress=False), epochs)


def middle(runs: Sequence[Run], of: Callable[[Run], float]) -> float:
    return statistics.median(of(run) for run in runs)


def mean(values: Sequence[float]) -> float:
    return statistics.fmean(values) if values else 0.0


def table_of(runs: dict[str, list[Run]]) -> Table:
    rows = tuple(
        (
            way,
            f"{middle(some, lambda run: run.seconds):.1f}",
            f"{middle(some, lambda run: run.bytes) / 1e6:.1f}",
            f"{middle(some, lambda run: mean(run.epochs[:2])):.2f}",
            f"{middle(some, lambda run: mean(run.epochs[2:])):.2f}",
            f"{middle(some, lambda run: mean(run.selecting)):.2f}",
            f"{mean([run.accuracy for run in some]):.1f}",
        )
        for way, some in runs.items()
    )
    columns = (
        "selected",
        "s",
        "MB",
        "s of a whole epoch",
        "s of a later epoch",
        "s of a selection",
        "right, %",
    )
    return Table(columns, rows)


def feedback_table(near: Sequence[Run], weights: int) -> Table:
    rows = tuple(
        (number + 1, f"{sent / 1e3:.1f}", f"{weights / sent:.2f}x", precision, f"{rank:.3f}")
        for number, (sent, precision, rank) in enumerate(
            zip(near[0].feedback, near[0].precisions, near[0].correlations, strict=True)
        )
    )
    return Table(("round", "kB, both ways", "fp32 weights / it", "proxy", "rank of losses"), rows)


def bars_of(runs: dict[str, list[Run]], weights: int) -> tuple[Bar, ...]:
    near, here = runs[NEAR], runs[HERE]
    fewer = statistics.median(b.bytes / a.bytes for a, b in zip(near, here, strict=True))
    quicker = statistics.median(b.seconds / a.seconds for a, b in zip(near, here, strict=True))
    late = [part for run in near for part in run.correlations[1:]]
    saved = [weights / sent for run in near for sent in run.feedback[1:]]
    rank, feedback = (min(late) if late else 0.0), (statistics.median(saved) if saved else 0.0)
    return (
        Bar(
            "bytes at the trainer over those beside the data",
            f"at least {LEAST_BYTES:g}x",
            f"{fewer:.2f}x",
            fewer >= LEAST_BYTES,
        ),
        Bar("seconds at the trainer over those beside the data", "over 1x", f"{quicker:.2f}x", quicker > 1),
        Bar(
            "rank correlation of the proxy's losses with fp32, the least",
            f"at least {LEAST_RANK}",
            f"{rank:.3f}",
            rank >= LEAST_RANK,
        ),
        Bar(
            "fp32 weights over a round's feedback, from the second on",
            f"at least {LEAST_FEEDBACK:g}x",
            f"{feedback:.2f}x",
            feedback >= LEAST_FEEDBACK,
        ),
    )


def run(folder: Path, options: Options) -> Report:
    count, epochs, rounds = (128, 4, 1) if options.quick else (PHOTOS, EPOCHS, ROUNDS)
    weights = 4 * sum(tensor.numel() for tensor in small_network(CLASSES).state_dict().values())
    runs: dict[str, list[Run]] = {NEAR: [], HERE: [], ALL: []}
    with opened(folder, count, epochs) as bench:
        for number in range(rounds):
            for way, some in runs.items():
                some.append(bench.run(way, number))
                print(f"round {number}, {way}: {some[-1].seconds:.1f} s", file=sys.stderr, flush=True)
    return Report(
        f"medoids for {SHARE:.0%} of {count:,} photos, {RATE_BITS / 1e6:g} Mbit: beside the data, and not",
        (table_of(runs), feedback_table(runs[NEAR], weights)),
        bars_of(runs, weights),
        (
            f"{epochs} epochs, batches of {BATCH}, {PIXELS} pixels; {rounds} rounds; a network of "
            f"{weights / 1e3:,.0f} kB in fp32",
            "store, link and trainer share two cores; a selection beside the data overlaps training",
        ),
        raw={way: [vars(one) for one in some] for way, some in runs.items()},
    )


if __name__ == "__main__":
    main(__doc__, run)
