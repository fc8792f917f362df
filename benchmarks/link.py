"""How much of a 100 Mbit link do photos fill, and how does that compare with WebDataset and LitData?

Store and trainer are in two network namespaces, joined by a veth pair with a token bucket of 100 Mbit on both
ends; needs root. The store serves the tars that nginx serves to WebDataset; LitData reads the same photos as
its own chunks from an S3 server (SeaweedFS). All decode and transform alike. A measurement is one epoch, from
the start of iterating an opened dataset to the last batch; LitData's cache is emptied before each.

Of several settings of each peer, the best of a qualifying epoch takes part in the interleaved rounds.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import file_servers
from measuring import Bar, Options, Rates, Report, Table, at_least, compare, interleave, main, rate_table
from netns import RATE_MBIT, TCP_SHARE, Ends, demand_root, measure_stream, slow_link
from peers.children import Peer, python
from serving import PROCESSES, Reader, make_tars, serve

BATCH = 128
WEBDATASET = (
    "webdataset, 1 worker",
    "webdataset, 2 workers",
    "webdataset, 2 workers, shuffle 100",
    "webdataset, 2 workers, pipe:curl",
)
LITDATA = (
    "litdata, 1 worker",
    "litdata, 2 workers",
    "litdata, 2 workers, 8 MB chunks",
    "litdata, 2 workers, 8 MB chunks, 4 ahead",
)
PAYLOAD_MBIT = RATE_MBIT * TCP_SHARE
_PEERS = Path(__file__).parent / "peers"
_ONE_EPOCH = 0.01  # seconds; a peer measures whole epochs for at least so long


@dataclass(frozen=True)
class Setting:
    """The running servers as a client needs them."""

    ends: Ends
    photos: str
    settings: Mapping[str, Any]

    def reader(self) -> Reader:
        return Reader(self.photos, {"batch": BATCH}, within=self.ends.trainer.words)

    @contextmanager
    def peer(self, name: str) -> Iterator[Callable[[], float]]:
        """Measures images per second of a cold epoch."""
        words = ("link_photos.py", name, json.dumps(self.settings))
        with Peer(*words, seconds=_ONE_EPOCH, within=self.ends.trainer.words) as peer:

            def measure() -> float:
                _empty(Path(self.settings["cache"]))
                return peer.measure()

            yield measure


def _empty(cache: Path) -> None:
    """Drop LitData's chunks; its index stays, for the dataset was opened before the epoch."""
    for path in cache.rglob("*"):
        if path.is_file() and path.name != "index.json":
            path.unlink()


@contextmanager
def servers(folder: Path, tars: Path) -> Iterator[Setting]:
    """Both namespaces with the store, nginx and S3 at one end; nothing is left of them afterwards."""
    chunks = file_servers.make_chunks(tars, folder)
    with ExitStack() as stack:
        ends = stack.enter_context(slow_link())
        listen = f"{ends.store.address}:7077"
        store = stack.enter_context(serve(tars, listen=listen, within=ends.store.words))
        http = stack.enter_context(file_servers.nginx(tars, folder / "nginx", ends.store))
        settings = {
            "urls": [f"{http}/{tar.name}" for tar in sorted(tars.glob("*.tar"))],
            "endpoint": stack.enter_context(file_servers.s3(folder / "s3", ends.store)),
            "bucket": file_servers.BUCKET,
            "chunks": str(chunks),
            "cache": str(folder / "litdata-cache"),
        }
        upload = [str(python()), str(_PEERS / "link_photos.py"), "upload", json.dumps(settings)]
        subprocess.run([*ends.store.words, *upload], check=True, stdout=sys.stderr)
        yield Setting(ends, store.photos, settings)


def qualify(setting: Setting) -> dict[str, float]:
    """Images per second of the second epoch of every peer's every setting; the first starts its workers."""
    found = {}
    for name in (*WEBDATASET, *LITDATA):
        with setting.peer(name) as measure:
            measure()
            found[name] = measure()
        print(f"qualifying: {name} {found[name]:.1f} images/s", file=sys.stderr, flush=True)
    return found


@dataclass
class Ours:
    """Our loader, and what it filled of the link."""

    reader: Reader
    megabits: list[float]

    def measure(self) -> float:
        found = self.reader.epoch()
        self.megabits.append(found["bytes"] * 8 / 1e6 / found["seconds"])
        return found["images"] / found["seconds"]


def race(
    setting: Setting, names: tuple[str, ...], options: Options
) -> tuple[Rates, list[float], list[float]]:
    """Rates of all, then of our rounds and of a bare stream in the same rounds the Mbit per second."""
    script, streams = str(PROCESSES / "stream.py"), []

    def stream() -> float:
        streams.append(measure_stream(setting.ends, script, seconds=3.0))
        return streams[-1]

    with ExitStack() as stack:
        ours = Ours(stack.enter_context(setting.reader()), [])
        contenders: dict[str, Callable[[], float]] = {"headwater": ours.measure}
        contenders |= {name: stack.enter_context(setting.peer(name)) for name in names}
        rates = interleave({**contenders, "bare stream": stream}, rounds=options.rounds)
    del rates["bare stream"]
    return rates, ours.megabits[1:], streams[1:]


def fill_table(megabits: list[float], streams: list[float]) -> tuple[Table, Bar]:
    """Shares of what TCP could carry, by arithmetic and as measured."""
    against = {f"{PAYLOAD_MBIT:.1f} Mbit, TCP's payload of {RATE_MBIT}": [PAYLOAD_MBIT] * len(megabits)}
    against[f"bare stream, {statistics.median(streams):.1f} Mbit"] = streams
    rows, shares = [], []
    for name, whole in against.items():
        found = [part / all_ for part, all_ in zip(megabits, whole, strict=True)]
        rows.append((name, f"{statistics.median(found):.3f}", f"{min(found):.3f}..{max(found):.3f}"))
        shares.append(statistics.median(found))
    mbit = f"headwater: {statistics.median(megabits):.1f} Mbit/s of image files, as a share of"
    bar = Bar("headwater's share of TCP's payload rate", "at least 0.97", rows[0][1], shares[0] >= 0.97)
    return Table((mbit, "median", "min..max"), tuple(rows)), bar


def run(folder: Path, options: Options) -> Report:
    tars = make_tars(folder, options, megabytes=40 if options.quick else 230)
    with servers(folder, tars) as setting:
        tried = qualify(setting)
        names = tuple(max(family, key=lambda name: tried[name]) for family in (WEBDATASET, LITDATA))
        rates, megabits, streams = race(setting, names, options)
    fills, full = fill_table(megabits, streams)
    best = max(names, key=lambda name: statistics.median(rates[name]))
    qualifying = Table(("peer's setting", "images/s"), tuple((n, f"{rate:.1f}") for n, rate in tried.items()))
    return Report(
        f"photos over a link of {RATE_MBIT} Mbit between two network namespaces",
        (fills, rate_table(rates, "headwater", "images/s"), qualifying),
        (full, at_least(compare(rates, "headwater", best), 0.99)),
        (f"{sum(tar.stat().st_size for tar in tars.iterdir()) / 1e6:.0f} MB of tars, batches of {BATCH}",),
        raw={"rates": rates, "megabits": megabits, "streams": streams, "qualifying": tried},
    )


if __name__ == "__main__":
    demand_root()
    main(__doc__, run)
