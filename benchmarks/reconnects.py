"""Do 1,000 lost connections leave anything behind, at the trainer or at the store?

The store, the trainer and the proxy between them are three processes. Twenty times an epoch the proxy resets
every connection while replies are on their way, and once it holds all bytes back for longer than the
trainer's deadline, so that the trainer gives its connection up itself. An epoch must still hold every id
once. Memory, threads and descriptors are read at the end of each epoch, of the trainer and of the store with
its workers.
"""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import psutil
import simplejpeg

import headwater as hw
from headwater import transforms as T
from headwater.cli.child_store import ChildStore
from headwater.cli.proxy import Fault, Proxy, Shape
from measuring import Bar, Cell, Options, Report, Table, main
from memory import Reading, growth, read

WARM_UP = 10  # the C library's arenas fill for some epochs, and then stay
EPOCHS = 50
CUTS = 20  # per epoch
PHOTOS, PIXELS, BATCH = 1600, 96, 16
OFFLOAD = hw.Offload(1, "zstd")
LINK = Shape(bits_per_second=100e6, delay_seconds=0.001)
DEADLINE_SECONDS = 1.0
SILENCE = Fault("hold", seconds=1.2)
MOST_GROWTH = 2.0
SPARE_THREADS = {"trainer": 1, "store": 0}
SETTLE_SECONDS = 0.2  # for sockets that were reset to be closed at both ends
STOP_SECONDS = 120.0
REMARK = (
    "The trainer may have one thread more: its pool for calls holds as many as were ever under way at once "
    "(64 at most), and a cut at the wrong moment can make that one more. Descriptors are without the "
    "connections that stand when they are counted."
)


@dataclass(frozen=True)
class Epoch:
    """What was seen at its end: both sides, and how many cuts and connections there had been."""

    trainer: Reading
    store: Reading
    cuts: int
    connections: int
    seconds: float


def write_small(folder: Path) -> Path:
    noise = np.random.default_rng(0).integers(0, 256, (PHOTOS, PIXELS // 4, PIXELS // 4, 3), dtype=np.uint8)
    for number, image in enumerate(noise.repeat(4, axis=1).repeat(4, axis=2)):
        place = folder / str(number % 2) / f"{number}.jpg"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(simplejpeg.encode_jpeg(image, quality=90))
    return folder


def train(uri: str, cache: str, pipe: Connection) -> None:
    """The trainer's process: says when a batch has come, and at the end of an epoch which ids came."""
    import os

    os.environ["HEADWATER_CACHE"] = cache
    steps = T.Compose([T.RandomCrop(64), T.RandomHorizontalFlip()])
    data = hw.open(uri, progress=False, link=hw.Link(deadline_seconds=DEADLINE_SECONDS))
    loader = hw.DataLoader(
        data, steps, batch_size=BATCH, shuffle=True, offload=OFFLOAD, timeout=STOP_SECONDS, progress=False
    )
    ids = np.sort(data.ids)
    while True:
        seen = []
        for batch in loader:
            seen.append(batch.ids.numpy())
            pipe.send(None)
        pipe.send(bool(np.array_equal(np.sort(np.concatenate(seen)), ids)))
        if not pipe.recv():
            return


class Saboteur:
    """Cuts all connections, but only when there is one that was made since the last cut."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self._seen = 0
        self.cuts = 0
        self.allowed = 0

    def strike(self) -> None:
        if self.cuts < self.allowed and self._proxy.connections > self._seen:
            self._seen = self._proxy.connections
            self._proxy.cut()
            self.cuts += 1


@contextmanager
def trainer(uri: str, cache: Path) -> Iterator[tuple[psutil.Process, Connection]]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=train, args=(uri, str(cache), theirs))
    child.start()
    theirs.close()
    try:
        yield psutil.Process(child.pid), ours
    finally:
        ours.close()
        child.join(10)
        if child.is_alive():
            child.kill()
            child.join()


def read_tree(process: psutil.Process) -> Reading:
    """A process and its children together; memory that they share counts in each.

    Connections that stand are not among the descriptors: whether the client's two do is chance, so soon
    after a cut. One that was lost and not closed does count.
    """
    tree = (process, *process.children(recursive=True))
    found = [read(one) for one in tree]
    total = Reading(*(sum(getattr(one, name) for one in found) for name in Reading.__annotations__))
    standing = sum(link.status == psutil.CONN_ESTABLISHED for one in tree for link in one.net_connections())
    return replace(total, descriptors=total.descriptors - standing)


def readings(folder: Path, epochs: int) -> tuple[list[Epoch], bool]:
    """What was seen after each epoch, warm-up included; whether every id came once."""
    found: list[Epoch] = []
    whole = True
    photos = write_small(folder / "small")
    with (
        ChildStore([photos], log=folder / "store.log") as store,
        Proxy(store.address, shape=LINK) as proxy,
        trainer(store.uri("small", through=proxy.address), folder / "trainer") as (child, pipe),
    ):
        saboteur, serving = Saboteur(proxy), psutil.Process(store.pid)
        for number in range(epochs):
            begin = time.perf_counter()
            saboteur.allowed += CUTS
            proxy.inject(SILENCE)
            while (answer := _receive(pipe)) is None:
                saboteur.strike()
            whole &= answer
            seconds = time.perf_counter() - begin
            time.sleep(SETTLE_SECONDS)
            sides = read_tree(child), read_tree(serving)
            found.append(Epoch(*sides, saboteur.cuts, proxy.connections, seconds))
            print(f"epoch {number + 1} of {epochs}: {found[-1]}", file=sys.stderr, flush=True)
            pipe.send(number + 1 < epochs)
        return found, whole


def _receive(pipe: Connection) -> bool | None:
    if not pipe.poll(STOP_SECONDS):
        raise RuntimeError(f"no batch for {STOP_SECONDS:g} s")
    answer: bool | None = pipe.recv()
    return answer


def run(folder: Path, options: Options) -> Report:
    warm_up, epochs = (2, 3) if options.quick else (WARM_UP, EPOCHS)
    everything, whole = readings(folder, warm_up + epochs)
    before, found = everything[warm_up - 1], everything[warm_up:]
    cuts, made = found[-1].cuts - before.cuts, found[-1].connections - before.connections
    memory, counts, bars = [], [], []
    for side in ("trainer", "store"):
        seen = [getattr(epoch, side) for epoch in found]
        line, ends = growth(np.array([reading.rss for reading in seen], dtype=np.float64))
        memory += [_memory_row(side, name, seen) for name in ("rss", "uss")]
        counts += [_count_row(side, name, seen) for name in ("threads", "descriptors")]
        worst = max(line, ends)
        bars.append(Bar(f"growth of the {side}'s rss", "under 2 %", f"{worst:.2f} %", worst < MOST_GROWTH))
        bars += [_flat(side, "threads", seen, SPARE_THREADS[side]), _flat(side, "descriptors", seen, 0)]
    wanted = CUTS * epochs
    bars.append(
        Bar("times that all connections were cut", f"at least {wanted:,}", f"{cuts:,}", cuts >= wanted)
    )
    bars.append(Bar("every id once in every epoch", "yes", "yes" if whole else "no", whole))
    columns = ("side", "memory", "first MiB", "last MiB", "most MiB", "growth % (line)", "growth % (tenths)")
    seconds = sum(epoch.seconds for epoch in everything)
    return Report(
        f"{len(found)} epochs with {CUTS} resets each, after {warm_up} of warm-up",
        (Table(columns, tuple(memory)), Table(("side", "count", "first", "last", "most"), tuple(counts))),
        tuple(bars),
        (f"{PHOTOS} photos of {PIXELS} pixels, {made:,} connections made anew, {seconds:.0f} s", REMARK),
        raw={"epochs": [_plain(epoch) for epoch in everything]},
    )


def _memory_row(side: str, name: str, seen: list[Reading]) -> tuple[Cell, ...]:
    values = np.array([getattr(reading, name) for reading in seen], dtype=np.float64)
    line, ends = growth(values)
    sizes = (round(float(value) / 2**20, 1) for value in (values[0], values[-1], values.max()))
    return (side, name, *sizes, f"{line:+.2f}", f"{ends:+.2f}")


def _count_row(side: str, name: str, seen: list[Reading]) -> tuple[Cell, ...]:
    values = [getattr(reading, name) for reading in seen]
    return (side, name, values[0], values[-1], max(values))


def _flat(side: str, name: str, seen: list[Reading], spare: int) -> Bar:
    """No more than `spare` more at the end than at the beginning."""
    values = np.array([getattr(reading, name) for reading in seen])
    tenth = max(1, len(values) // 10)
    first, last = np.median(values[:tenth]), np.median(values[-tenth:])
    wanted = f"flat, or {spare} more" if spare else "flat"
    return Bar(f"{name} of the {side}", wanted, f"{first:g} to {last:g}", bool(last <= first + spare))


def _plain(epoch: Epoch) -> dict[str, object]:
    sides = {"trainer": vars(epoch.trainer), "store": vars(epoch.store)}
    return {**sides, "cuts": epoch.cuts, "connections": epoch.connections, "seconds": epoch.seconds}


if __name__ == "__main__":
    main(__doc__, run)
