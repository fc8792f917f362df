"""How many images does a store predict for concurrent clients, against the offline engine, and how soon?

EfficientNet-Lite0, fp32. The store with all that belongs to it (HTTP, decoding, layers) has one core, and so
has the offline engine, the loop that a store's jobs run, which reads, decodes and classifies the same files
in turns with the store. The clients have the other core, each sends one photo after the other over a
connection of its own. A second table asks for more than the store can do: whoever is let in must still be
answered within the bound, and the store must say that it is well all the while.
"""

from __future__ import annotations

import json
import statistics
import threading
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from classifiers import Classifier, open_photos
from headwater.cli.cpu import cpu_seconds, tree_cpu_seconds
from headwater.models.presets import PRESETS
from headwater.models.registry import Registry
from measuring import Bar, Cell, Flag, Options, Report, Table, at_least, compare, interleave, main, rate_table
from serving import CLIENT_CORE, STORE_CORE, Child, Store, demand_two_cores, on_core, serve

FLAGS = {"bound": Flag(500, "milliseconds within which an answer must come; what a store has by default")}
CLIENTS, CROWD = 16, 160
LEAST_RATIO = 0.9
QUANTILES = (50, 90, 99)


class Askers(Child):
    """processes/askers.py, and what it has found."""

    def __init__(self, url: str, photos: Path, clients: int, *, seconds: float) -> None:
        super().__init__("askers.py", url, json.dumps({"photos": str(photos), "clients": clients}))
        self._seconds = seconds
        self.latencies: list[float] = []
        self.refused = self.failed = 0

    def measure(self) -> float:
        """Images per second."""
        found = self.ask(f"measure {self._seconds}")
        self.latencies += found["latencies"]
        self.refused += found["refused"]
        self.failed += found["failed"]
        return float(found["images"] / found["seconds"])

    def forget(self) -> None:
        """What came while the model was loaded."""
        self.latencies, self.refused = [], 0

    def quantile(self, percent: int) -> float:
        """Milliseconds."""
        return 1000 * float(np.percentile(self.latencies, percent))


def start_store(folder: Path, photos: Path, stack: ExitStack, *, bound: int) -> Store:
    """`headwater serve` with the model, until the stack ends."""
    settings = folder / "store.toml"
    settings.write_text(f"predict_milliseconds = {bound}\n")
    further = ["--config", str(settings), "--http", "127.0.0.1:0", "--state", str(folder / "state")]
    with on_core(STORE_CORE):
        return stack.enter_context(serve(photos, cores=1, further=further))


def start_askers(url: str, photos: Path, clients: int, *, seconds: float, stack: ExitStack) -> Askers:
    with on_core(CLIENT_CORE):
        return stack.enter_context(Askers(url, photos, clients, seconds=seconds))


def start_engine(common: Mapping[str, str], *, seconds: float, stack: ExitStack) -> Classifier:
    with on_core(STORE_CORE):
        return stack.enter_context(Classifier({**common, "source": "files"}, seconds=seconds))


@dataclass
class Bill:
    """What measurements took at the store: CPU of its own process, and of those that decode for it."""

    pid: int
    own: float = 0.0
    decoders: float = 0.0
    images: float = 0.0

    def pay(self, measure: Callable[[], float], seconds: float) -> float:
        """Images per second, as measured."""
        own, tree = cpu_seconds([self.pid]), tree_cpu_seconds(self.pid)
        rate = measure()
        spent = cpu_seconds([self.pid]) - own
        self.own, self.images = self.own + spent, self.images + rate * seconds
        self.decoders += tree_cpu_seconds(self.pid) - tree - spent
        return rate

    def table(self, offline: Sequence[float]) -> Table:
        """Beside the engine, which fills its core: an image takes what its rate says."""
        own, decoders = (1000 * part / self.images for part in (self.own, self.decoders))
        columns = ("CPU, ms an image", "process", "decoders", "all")
        rows = (
            ("store", round(own, 2), round(decoders, 2), round(own + decoders, 2)),
            ("offline", "", "", round(1000 / statistics.median(offline), 2)),
        )
        return Table(columns, rows)


class Doctor:
    """Asks a store how it is, five times a second, until the block ends; how many of the answers were bad."""

    def __init__(self, url: str) -> None:
        self._url, self._over = f"{url}/health", threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.asked = self.bad = 0

    def _run(self) -> None:
        while not self._over.wait(0.2):
            self.asked += 1
            try:
                with urllib.request.urlopen(self._url, timeout=10) as answer:
                    answer.read()
            except OSError:
                self.bad += 1

    def __enter__(self) -> Doctor:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def bar(self) -> Bar:
        what = f"health of the store in a crowd, {self.asked} times asked: bad answers"
        return Bar(what, "none", str(self.bad), self.asked > 0 and self.bad == 0)


def latencies(named: Mapping[str, Askers]) -> Table:
    rows: list[tuple[Cell, ...]] = [
        (name, len(one.latencies), one.refused, *(round(one.quantile(percent)) for percent in QUANTILES))
        for name, one in named.items()
    ]
    columns = ("clients", "answered", "turned away", *(f"p{percent}, ms" for percent in QUANTILES))
    return Table(columns, tuple(rows))


def bars(named: Mapping[str, Askers], bound: int) -> Sequence[Bar]:
    found = [
        Bar(
            f"p99, {name}",
            f"within {bound} ms",
            f"{one.quantile(99):.0f} ms",
            one.quantile(99) <= bound,
        )
        for name, one in named.items()
    ]
    failed = sum(one.failed for one in named.values())
    return [*found, Bar("requests that failed otherwise", "none", str(failed), failed == 0)]


def run(folder: Path, options: Options) -> Report:
    demand_two_cores()
    photos, seconds = open_photos(folder, options), 3.0 if options.quick else 10.0
    bound = options.numbers["bound"]
    registry = Registry(folder / "state" / "models")
    version = registry.put(PRESETS["efficientnet-lite0"](), name="lite0", switch=True)
    common = {
        **{"engine": version.digest, "registry": str(registry.folder)},
        **{"photos": str(photos.folder), "pixels": str(photos.save(folder))},
    }
    with ExitStack() as stack:
        store = start_store(folder, photos.folder, stack, bound=bound)
        some = start_askers(store.http, photos.folder, CLIENTS, seconds=seconds, stack=stack)
        some.measure()
        some.forget()
        engine = start_engine(common, seconds=seconds, stack=stack)
        bill = Bill(store.pid)
        contenders = {"store": lambda: bill.pay(some.measure, seconds), "offline": engine.measure}
        rates = interleave(contenders, rounds=options.rounds)
        crowd = start_askers(store.http, photos.folder, CROWD, seconds=seconds, stack=stack)
        with Doctor(store.http) as doctor:
            crowded = [crowd.measure() for _ in range(options.rounds)]
    named = {f"{CLIENTS} clients": some, f"{CROWD} clients": crowd}
    return Report(
        "EfficientNet-Lite0 at 224 pixels: predictions/s of a store against the offline engine, a core each",
        (rate_table(rates, "store", "images/s"), bill.table(rates["offline"]), latencies(named)),
        (at_least(compare(rates, "store", "offline"), LEAST_RATIO), *bars(named, bound), doctor.bar()),
        (
            f"{len(photos.pixels)} photos; {seconds:g} s a measurement",
            f"predict_milliseconds is {bound}",
            "latencies are those that clients see: connection, upload, waiting, work, answer",
            f"with {CROWD} clients {statistics.median(crowded):.0f} images/s; who is turned away asks again "
            "when the store says",
        ),
        raw={"rates": rates, "crowded": crowded},
    )


if __name__ == "__main__":
    main(__doc__, run, flags=FLAGS)
