"""Do index, its way over the wire, order and draws cost the same per sample at 1e4, 1e6 and 1e7 ids?

Synthetic keys such as a folder of a thousand classes has. Seconds are the best of several: what is compared
is the cost per sample at one size with that at another, in one process. Only peaks that Arrow has a part in
are found in processes of their own, because its pool cannot be told to forget an earlier peak.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.flight as flight
from numpy.typing import NDArray

from headwater import transforms as T
from headwater.data.index import Index
from headwater.data.indexcache import cache_folder
from headwater.data.randomness import derive_key
from headwater.engine.permutation import Shuffled
from headwater.store.client.address import Address, Secret
from headwater.store.client.connection import Connection
from headwater.store.client.index import open_index
from headwater.store.client.link import Link
from headwater.store.client.replicas import Replicas
from headwater.store.fleet import _unite
from headwater.store.wire import messages, pages
from headwater.store.wire.messages import DatasetFacts
from measuring import Bar, Cell, Options, Report, Table, best, main, peak

SIZES = (10_000, 1_000_000, 10_000_000)
LOOKED_UP = 4096
SLICE = 256
SHARDS = 2
TIMES = 3
FLAT = 3.0
"""How much dearer a sample may be at the largest size: the caches of a CPU end somewhere."""
_BLOCK = 1 << 16


def peak_apart(call: Callable[..., float], *arguments: object) -> float:
    """What `call` finds in a new process."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as child:
        return child.submit(call, *arguments).result()


def peak_with_arrow(call: Callable[[], object]) -> float:
    """Also of Arrow's pool, in a new process. At most: the two need not be highest at once."""
    return peak(call) + float(pa.default_memory_pool().max_memory())


def make_keys(count: int) -> pa.Array:
    """class-000/00000000.jpg and so on, made in bulk."""
    numbers = np.arange(count)
    classes = pc.utf8_lpad(pa.array(numbers % 1000).cast(pa.large_string()), 3, "0")
    names = pc.utf8_lpad(pa.array(numbers).cast(pa.large_string()), 8, "0")
    text = [pa.scalar(piece, pa.large_string()) for piece in ("class-", "/", ".jpg", "")]
    return pc.binary_join_element_wise(text[0], classes, text[1], names, text[2], text[3])


def draw_all(ids: NDArray[np.int64]) -> None:
    """Every crop of an epoch, by the block, as a planner would ask for them."""
    pipeline = T.Compose([T.RandomResizedCrop(224)])
    for start in range(0, len(ids), _BLOCK):
        some = ids[start : start + _BLOCK]
        pipeline.draw(some, np.broadcast_to(np.array([400, 470]), (len(some), 2)), seed=1, epoch=2)


def take_all(order: Shuffled) -> None:
    """A whole epoch's order, by the block."""
    for start in range(0, order.count, _BLOCK):
        order.take(start, min(start + _BLOCK, order.count))


class PageServer(flight.FlightServerBase):  # type: ignore[misc]
    """Sends the pages of one index as a store does, to anybody."""

    def __init__(self, index: Index) -> None:
        super().__init__("grpc://127.0.0.1:0")
        self._index = index

    def do_get(self, context: object, ticket: flight.Ticket) -> flight.GeneratorStream:
        request = messages.decode_request(ticket.ticket)
        assert isinstance(request, messages.IndexRequest)
        schema = pages.index_schema(self._index, first=not request.start)
        page = pages.index_page(self._index, request.start, request.rows, schema)
        return flight.GeneratorStream(
            schema, iter([page]), options=pa.ipc.IpcWriteOptions(compression="zstd")
        )


def make_pages(index: Index) -> list[tuple[pa.RecordBatch, bytes]]:
    starts = range(0, len(index), pages.ROWS)
    return [
        pages.index_page(index, start, pages.ROWS, pages.index_schema(index, first=not start))
        for start in starts
    ]


def join_pages(made: Sequence[tuple[pa.RecordBatch, bytes]]) -> Index:
    """What a client does with pages once they are there."""
    start = 0
    for batch, digest in made:
        pages.check_page(batch, digest, start)
        start += len(batch)
    return pages.join_pages([batch for batch, _ in made], pages.read_header(made[0][0]))


def fetch(port: int, facts: DatasetFacts) -> Index:
    """The index of a store, by a client that has none of it."""
    (cache_folder() / f"remote-{facts.content}.arrow").unlink(missing_ok=True)
    address = Address.parse(f"grpc://127.0.0.1:{port}")
    replicas = Replicas([Connection(address, Secret(None, {}), Link())])
    try:
        return open_index(replicas, "scale", facts, progress=False)
    finally:
        replicas.close()


def fetch_peak(port: int, facts: DatasetFacts) -> float:
    return peak_with_arrow(lambda: fetch(port, facts))


def unite_peak(paths: Sequence[Path]) -> float:
    shards = [Index.load(path, verify=False) for path in paths]
    return peak_with_arrow(lambda: unite(shards))


def unite(shards: Sequence[Index]) -> Index:
    return _unite(shards, [f"store-{number}" for number in range(len(shards))])


def save_shards(index: Index, folder: Path) -> list[Path]:
    """The index as that of several stores: a file for each."""
    paths: list[Path] = []
    for rows in np.array_split(np.arange(len(index)), SHARDS):
        some = slice(int(rows[0]), int(rows[-1]) + 1)
        keys = index.keys.slice(some.start, len(rows))
        shard = Index.build(keys, index.sizes[some], labels=index.labels[some], ids=index.ids[some])
        paths.append(folder / f"{len(index)}-{len(paths)}.arrow")
        shard.save(paths[-1])
    return paths


def measure_wire(index: Index) -> dict[str, float]:
    """The index in pages: made at a store, joined at a client, and all of it over loopback."""
    found = {"pages": best(lambda: make_pages(index), TIMES)}
    made = make_pages(index)
    found["join"] = best(lambda: join_pages(made), TIMES)
    facts = DatasetFacts(len(index), int(index.sizes.sum()), index.version, pages.content_of(index))
    with PageServer(index) as server:
        found["fetch"] = best(lambda: fetch(server.port, facts), TIMES)
        found["fetch peak"] = peak_apart(fetch_peak, server.port, facts) / len(index)
    return found


def measure_fleet(index: Index, folder: Path) -> dict[str, float]:
    """The indexes of several stores as one."""
    paths = save_shards(index, folder)
    shards = [Index.load(path) for path in paths]
    found = {"unite": best(lambda: unite(shards), TIMES)}
    found["unite peak"] = peak_apart(unite_peak, paths) / len(index)
    for path in paths:
        path.unlink()
    return found


def measure(count: int, folder: Path) -> dict[str, float]:
    """Seconds of each operation, and bytes per sample in memory and on disk."""
    keys, sizes, path = make_keys(count), np.full(count, 110_000, np.int64), folder / f"{count}.arrow"
    labels = np.arange(count) % 1000
    found = {"build": best(lambda: Index.build(keys, sizes, labels=labels), TIMES)}
    index = Index.build(keys, sizes, labels=labels)
    found["save"] = best(lambda: index.save(path), TIMES)
    found["open"] = best(lambda: Index.load(path), TIMES)
    wanted = np.random.default_rng(0).choice(index.ids, LOOKED_UP)
    found["position_of"] = best(lambda: index.position_of(wanted), 5)
    middle = count // 2
    # a new order each time: below 2^16 ids it is a table, which is made by the first who asks
    found["slice"] = best(lambda: Shuffled(count, derive_key(count)).take(middle, middle + SLICE), 5)
    found["order"] = best(lambda: take_all(Shuffled(count, derive_key(count))), TIMES)
    found["draws"] = best(lambda: draw_all(index.ids), TIMES)
    found["order peak"] = peak(lambda: take_all(Shuffled(count, derive_key(count)))) / count
    found["draws peak"] = peak(lambda: draw_all(index.ids)) / count
    found["memory"], found["file"] = index.nbytes / count, path.stat().st_size / count
    path.unlink()
    return found | measure_wire(index) | measure_fleet(index, folder)


PER_SAMPLE = {
    "build": "index: build, hashes included (ns/sample)",
    "save": "index: save, with fsync (ns/sample)",
    "open": "index: open, digest checked (ns/sample)",
    "pages": "pages: made at the store, with digests (ns/sample)",
    "join": "pages: checked and joined at the client (ns/sample)",
    "fetch": "pages: a client opens the index: made, sent over loopback, joined, kept (ns/sample)",
    "unite": f"fleet: indexes of {SHARDS} stores joined to one (ns/sample)",
    "order": "order: a whole epoch (ns/sample)",
    "draws": "draws: RandomResizedCrop boxes of an epoch (ns/sample)",
}


PEAKS = {
    "fetch peak": "pages: most bytes/sample held while a client opens the index",
    "unite peak": f"fleet: most bytes/sample held while {SHARDS} mapped indexes are joined",
    "order peak": f"order: most bytes/sample held while an epoch is made by blocks of {_BLOCK}",
    "draws peak": f"draws: most bytes/sample held while an epoch is made by blocks of {_BLOCK}",
}


def rows_of(found: dict[int, dict[str, float]]) -> tuple[tuple[Cell, ...], ...]:
    rows: list[tuple[Cell, ...]] = []
    for name, title in PER_SAMPLE.items():
        rows.append((title, *(f"{1e9 * found[count][name] / count:.0f}" for count in found)))
    looked = (f"{1e9 * found[count]['position_of'] / LOOKED_UP:.0f}" for count in found)
    rows.append((f"index: position_of {LOOKED_UP} ids (ns/id)", *looked))
    slices = (f"{1e6 * found[n]['slice']:.0f}" for n in found)
    rows.append((f"order: {SLICE} places in mid-epoch (us)", *slices))
    rows.append(("index: bytes/sample in memory", *(f"{found[n]['memory']:.1f}" for n in found)))
    rows.append(("index: bytes/sample on disk", *(f"{found[n]['file']:.1f}" for n in found)))
    for name, title in PEAKS.items():
        rows.append((title, *(f"{found[n][name]:.1f}" for n in found)))
    return tuple(rows)


def bars_of(found: dict[int, dict[str, float]]) -> list[Bar]:
    """The largest size against the cheapest of the smaller ones."""
    *smaller, largest = found
    bars = []
    for name in (*PER_SAMPLE, "position_of", "slice"):
        costs = {count: found[count][name] / (count if name in PER_SAMPLE else 1) for count in found}
        factor = costs[largest] / min(costs[count] for count in smaller)
        what = f"{name}: seconds at {largest:.0e} over the least at fewer ids"
        bars.append(Bar(what, f"under {FLAT:g}x", f"{factor:.2f}x", factor < FLAT))
    ratio = found[largest]["memory"] / min(found[count]["memory"] for count in smaller)
    bars.append(Bar("bytes per sample, the same", "under 1.05x", f"{ratio:.3f}x", ratio < 1.05))
    return bars


def run(folder: Path, options: Options) -> Report:
    found = {count: measure(count, folder) for count in (SIZES[:2] if options.quick else SIZES)}
    table = Table(("what", *(f"{count:.0e}" for count in found)), rows_of(found))
    raw = {str(count): values for count, values in found.items()}
    return Report("index, its pages, order and draws per sample", (table,), tuple(bars_of(found)), raw=raw)


if __name__ == "__main__":
    main(__doc__, run)
