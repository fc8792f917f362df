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
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from classifiers import Classifier, open_photos
from headwater.models.presets import PRESETS
from headwater.models.registry import Registry
from measuring import Bar, Cell, Options, Report, Table, at_least, compare, interleave, main, rate_table
from serving import CLIENT_CORE, PROCESSES, STORE_CORE, demand_two_cores, end, on_core, serve

BOUND_MILLISECONDS = 500.0
CLIENTS, CROWD = 16, 160
LEAST_RATIO = 0.9
QUANTILES = (50, 90, 99)


@dataclass
class Askers:
    """processes/askers.py on a core of its own, and what it has found."""

    child: subprocess.Popen[str]
    seconds: float
    latencies: list[float] = field(default_factory=list)
    refused: int = 0
    failed: int = 0

    def measure(self) -> float:
        """Images per second."""
        assert self.child.stdin is not None
        self.child.stdin.write(f"measure {self.seconds}\n")
        self.child.stdin.flush()
        found = hear(self.child)
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


def hear(child: subprocess.Popen[str]) -> dict[str, Any]:
    assert child.stdout is not None
    line = child.stdout.readline()
    if not line:
        raise RuntimeError(f"a process ended with code {child.wait()}; its error is above")
    found: dict[str, Any] = json.loads(line)
    return found


def start_store(folder: Path, photos: Path, stack: ExitStack) -> str:
    """`headwater serve` with the model, until the stack ends; the address of its HTTP."""
    settings = folder / "store.toml"
    settings.write_text(f"predict_milliseconds = {BOUND_MILLISECONDS}\n")
    further = ["--config", str(settings), "--http", "127.0.0.1:0", "--state", str(folder / "state")]
    with on_core(STORE_CORE):
        return stack.enter_context(serve(photos, cores=1, further=further)).http


def start_askers(url: str, photos: Path, clients: int, *, seconds: float, stack: ExitStack) -> Askers:
    settings = json.dumps({"photos": str(photos), "clients": clients})
    words = [sys.executable, str(PROCESSES / "askers.py"), url, settings]
    with on_core(CLIENT_CORE):
        child = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
    stack.callback(end, child)
    hear(child)
    return Askers(child, seconds)


def start_engine(common: Mapping[str, str], *, seconds: float, stack: ExitStack) -> Classifier:
    with on_core(STORE_CORE):
        child = Classifier({**common, "source": "files"}, seconds=seconds)
    return stack.enter_context(child)


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


def bars(named: Mapping[str, Askers]) -> Sequence[Bar]:
    found = [
        Bar(
            f"p99, {name}",
            f"within {BOUND_MILLISECONDS:g} ms",
            f"{one.quantile(99):.0f} ms",
            one.quantile(99) <= BOUND_MILLISECONDS,
        )
        for name, one in named.items()
    ]
    failed = sum(one.failed for one in named.values())
    return [*found, Bar("requests that failed otherwise", "none", str(failed), failed == 0)]


def run(folder: Path, options: Options) -> Report:
    demand_two_cores()
    photos, seconds = open_photos(folder, options), 3.0 if options.quick else 10.0
    registry = Registry(folder / "state" / "models")
    version = registry.put(PRESETS["efficientnet-lite0"](), name="lite0", switch=True)
    common = {
        **{"engine": version.digest, "registry": str(registry.folder)},
        **{"photos": str(photos.folder), "pixels": str(photos.save(folder))},
    }
    with ExitStack() as stack:
        url = start_store(folder, photos.folder, stack)
        some = start_askers(url, photos.folder, CLIENTS, seconds=seconds, stack=stack)
        some.measure()
        some.forget()
        engine = start_engine(common, seconds=seconds, stack=stack)
        rates = interleave({"store": some.measure, "offline": engine.measure}, rounds=options.rounds)
        crowd = start_askers(url, photos.folder, CROWD, seconds=seconds, stack=stack)
        with Doctor(url) as doctor:
            crowded = [crowd.measure() for _ in range(options.rounds)]
    named = {f"{CLIENTS} clients": some, f"{CROWD} clients": crowd}
    return Report(
        "EfficientNet-Lite0 at 224 pixels: predictions/s of a store against the offline engine, a core each",
        (rate_table(rates, "store", "images/s"), latencies(named)),
        (at_least(compare(rates, "store", "offline"), LEAST_RATIO), *bars(named), doctor.bar()),
        (
            f"{len(photos.pixels)} photos; {seconds:g} s a measurement",
            f"predict_milliseconds is {BOUND_MILLISECONDS:g}",
            "latencies are those that clients see: connection, upload, waiting, work, answer",
            f"with {CROWD} clients {statistics.median(crowded):.0f} images/s; who is turned away asks again "
            "when the store says",
        ),
        raw={"rates": rates, "crowded": crowded},
    )


if __name__ == "__main__":
    main(__doc__, run)
