"""How fast is lazy greedy facility location, against apricot and submodlib, at an equal value?

5,000 samples with 64 numbers each, 500 to be taken, by one dense matrix of similarities that all are given.
The peers run in processes that live through all rounds; what they compile is compiled before the first, and
the seconds of their first call are told apart. Two kinds of data: normal, where all samples are about equally
far from one another and bounds help least, and 50 groups. Rates are subsets per minute.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from headwater.select.maximisers import Lazy, Maximiser, Stochastic
from headwater.select.objectives import FacilityLocation, Objective
from headwater.select.parts import Parts, Vectors
from measuring import (
    Bar,
    Cell,
    Options,
    Rates,
    Report,
    Table,
    at_least,
    compare,
    interleave,
    main,
    rate_table,
)
from peers.children import Peer

PEERS = ("apricot", "submodlib")
ASKED = 5.0
EQUAL = 1e-4
WIDTH = 64
OURS = "headwater"
CASES: dict[str, tuple[Objective, Maximiser, bool]] = {
    OURS: (FacilityLocation(given=True), Lazy(), True),
    "headwater, from vectors": (FacilityLocation(), Lazy(), False),
    "headwater, stochastic": (FacilityLocation(given=True), Stochastic(), True),
}


def make_vectors(kind: str, count: int) -> NDArray[np.float32]:
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(count, WIDTH))
    centers = rng.normal(0, 3, (50, WIDTH)) if kind == "groups" else np.zeros((1, WIDTH))
    return (centers[rng.integers(0, len(centers), count)] + noise).astype(np.float32)


def similarities(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """The largest distance less the distance, as CRAIG has it."""
    squares = np.einsum("nd,nd->n", vectors, vectors)
    distances = np.sqrt(np.maximum(squares[:, None] + squares - 2 * vectors @ vectors.T, 0))
    return distances.max() - distances


class Ours:
    """A case of our own: subsets per minute, what was taken, and the seconds of the first call."""

    def __init__(
        self, objective: Objective, maximiser: Maximiser, vectors: Vectors, count: int, *, seconds: float
    ) -> None:
        self._solve = partial(maximiser.maximise, objective, vectors, Parts.whole(len(vectors), count))
        self._seconds = seconds
        begin = time.perf_counter()
        self.places = self._solve().places
        self.first = time.perf_counter() - begin

    def measure(self) -> float:
        begin, solved = time.perf_counter(), 0
        while (spent := time.perf_counter() - begin) < self._seconds:
            self._solve()
            solved += 1
        return 60 * solved / spent


def measure(folder: Path, kind: str, count: int, options: Options) -> tuple[Rates, Table]:
    """Rates of all, and a row for each: value, what it has in common with ours, the first call."""
    vectors, seconds = make_vectors(kind, 10 * count), 0.2 if options.quick else 2.0
    table = similarities(vectors)
    np.save(folder / f"{kind}.npy", table)
    ours = {
        name: Ours(objective, maximiser, table if given else vectors, count, seconds=seconds)
        for name, (objective, maximiser, given) in CASES.items()
    }
    contenders: dict[str, Callable[[], float]] = {name: case.measure for name, case in ours.items()}
    with ExitStack() as stack:
        for name in PEERS:
            words = (name, str(folder / f"{kind}.npy"), str(count))
            peer = stack.enter_context(Peer("coresets.py", *words, seconds=seconds))
            contenders[name] = partial(per_minute, peer)
        rates = interleave(contenders, rounds=options.rounds)
    taken = {name: case.places.tolist() for name, case in ours.items()}
    taken |= {name: json.loads((folder / f"{kind}-{name}.json").read_text()) for name in PEERS}
    first = {name: (0.0, case.first) for name, case in ours.items()}
    first |= {name: read_first(folder / f"{kind}-{name}-first.json") for name in PEERS}
    rows = [row_of(name, table, taken, *first[name]) for name in rates]
    columns = ("contender", "value", "value / ours - 1", "taken by ours too", "import s", "first call s")
    return rates, Table((f"{kind}: {columns[0]}", *columns[1:]), tuple(rows))


def per_minute(peer: Peer) -> float:
    return 60 * peer.measure()


def read_first(path: Path) -> tuple[float, float]:
    found = json.loads(path.read_text())
    return found["import"], found["first"]


def row_of(
    name: str, table: NDArray[np.float32], taken: dict[str, list[int]], imported: float, first: float
) -> tuple[Cell, ...]:
    value, ours = value_of(table, taken[name]), value_of(table, taken[OURS])
    shared = len(set(taken[name]) & set(taken[OURS])) / len(taken[OURS])
    return (
        name,
        f"{value:.3f}",
        f"{value / ours - 1:+.1e}",
        f"{shared:.1%}",
        round(imported, 2),
        round(first, 2),
    )


def value_of(table: NDArray[np.float32], places: list[int]) -> float:
    return float(table[places].max(axis=0).sum(dtype=np.float64))


def run(folder: Path, options: Options) -> Report:
    count = 200 if options.quick else 500
    tables, bars, raw = [], [], {}
    for kind in ("normal", "groups"):
        rates, outcomes = measure(folder, kind, count, options)
        tables += [rate_table(rates, OURS, f"{kind}, subsets/minute"), outcomes]
        raw[kind] = rates
        for name in PEERS:
            faster = at_least(compare(rates, OURS, name), ASKED)
            bars += [Bar(f"{kind}: {faster.what}", faster.asked, faster.found, faster.holds)]
            bars += [equal_value(kind, name, outcomes)]
    return Report(
        f"facility location, {count} of {10 * count:,} samples",
        tuple(tables),
        tuple(bars),
        (f"one call of ours: {60 / statistics.median(raw['normal'][OURS]):.3f} s",),
        raw={"rates": raw},
    )


def equal_value(kind: str, name: str, outcomes: Table) -> Bar:
    found = next(str(row[2]) for row in outcomes.rows if row[0] == name)
    return Bar(
        f"{kind}: value of {name} against ours", f"within {EQUAL:g}", found, abs(float(found)) <= EQUAL
    )


if __name__ == "__main__":
    main(__doc__, run)
