"""Does each of two clients of one store get its share, however much the other asks for?

The store is held to few cores and is the bottleneck. Both clients only fetch, in processes of their own: the
greedy one has eight threads that ask for 256 photos each, the modest one two that ask for 32. Half of the
bytes for each is fair. With photos as the files they are, and cut at the store, where most must really be
cut; as two clients of one caller, and as two callers, each with a token of its own.
"""

from __future__ import annotations

import secrets
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from measuring import Bar, Cell, Options, Report, Table, main
from serving import CpuWatch, Reader, Store, fetch_together, make_tars, serve

WARM_SECONDS = 2.0
GREEDY: dict[str, float] = {"threads": 8, "batch": 256, "in_flight": 64 << 20}
MODEST: dict[str, float] = {"threads": 2, "batch": 32, "in_flight": 64 << 20}
_FAIR = (0.45, 0.55)
_BUSY = 0.85
_MOSTLY = 0.5

Clients = dict[str, dict[str, float]]


@dataclass(frozen=True)
class Case:
    """What is asked for, as the number of steps at the store, and what the store has for it."""

    cut: int = 0
    cores: float = 0.25
    tokens: bool = False


CASES = {
    "raw": Case(),
    "raw, two tokens": Case(tokens=True),
    "offload": Case(cut=4, cores=1.0),  # decode, crop, resize, flip; with less, nearly all are pushed back
    "offload, two tokens": Case(cut=4, cores=1.0, tokens=True),
}


@dataclass(frozen=True)
class Found:
    """One round: what the clients got, and the cores that the store used meanwhile."""

    clients: Clients
    cores: float

    @property
    def share(self) -> float:
        """The modest client's part of the bytes."""
        return self.clients["modest"]["bytes"] / sum(client["bytes"] for client in self.clients.values())


def write_tokens(path: Path, names: Sequence[str]) -> dict[str, str]:
    """A token file for the store; the secrets by name."""
    found = {name: secrets.token_hex(16) for name in names}
    entries = [f'[[token]]\nname = "{name}"\nsecret = "{secret}"\n' for name, secret in found.items()]
    path.touch(mode=0o600)
    path.write_text("".join(entries))
    return found


def measure(store: Store, case: Case, tokens: Mapping[str, str], options: Options) -> list[Found]:
    """What the two got, round by round."""
    rounds, seconds = (2, 5.0) if options.quick else (5, 12.0)
    found = []
    with ExitStack() as stack:
        readers = {
            name: stack.enter_context(
                Reader(store.photos, {**how, "cut": case.cut}, token=tokens[name] if case.tokens else "")
            )
            for name, how in (("greedy", GREEDY), ("modest", MODEST))
        }
        for number in range(rounds):
            found.append(_measure_once(store, readers, seconds))
            text = f"modest {found[-1].share:.3f}, store {found[-1].cores:.2f} cores"
            print(f"round {number + 1} of {rounds}: {text}", file=sys.stderr, flush=True)
    return found


def _measure_once(store: Store, readers: Mapping[str, Reader], seconds: float) -> Found:
    begin = time.monotonic() + WARM_SECONDS
    with CpuWatch(store.pid) as watch:
        clients = fetch_together(readers, begin, begin + seconds)
    return Found(clients, watch.windows(begin, seconds - 1.0)[0])


def _row(work: str, name: str, found: Sequence[Found]) -> tuple[Cell, ...]:
    got = [one.clients[name] for one in found]
    rates = [client["bytes"] / 1e6 / client["seconds"] for client in got]
    spread = f"{min(rates):.0f}..{max(rates):.0f}"
    return work, name, f"{statistics.median(rates):.1f}", spread, f"{_cut(name, found):.0%}"


def _cut(name: str, found: Sequence[Found]) -> float:
    """The part of a client's photos that were cut at the store."""
    got = [one.clients[name] for one in found]
    return sum(client["cut"] for client in got) / sum(client["images"] for client in got)


def _bars(work: str, found: Sequence[Found]) -> tuple[Bar, ...]:
    case = CASES[work]
    shares, cores = [one.share for one in found], [one.cores / case.cores for one in found]
    fair = all(_FAIR[0] <= share <= _FAIR[1] for share in shares)
    busy = statistics.median(cores) >= _BUSY
    least = min(_cut(name, found) for name in ("greedy", "modest"))
    mostly = Bar(f"{work}: photos cut, each client's", f"{_MOSTLY:.0%}", f"{least:.0%}", least >= _MOSTLY)
    return (
        Bar(
            f"{work}: modest client's share of the bytes",
            "0.45 to 0.55 in every round",
            _spread(shares),
            fair,
        ),
        Bar(f"{work}: the store is the bottleneck", f"uses {_BUSY:g} of its cores", _spread(cores), busy),
        *([mostly] if case.cut else []),
    )


def _spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f}..{max(values):.2f})"


def run(folder: Path, options: Options) -> Report:
    photos = make_tars(folder, options, megabytes=80)
    file, found = folder / "tokens.toml", {}
    tokens = write_tokens(file, ("greedy", "modest"))
    for work, case in CASES.items():
        with serve(photos, cores=case.cores, tokens=file if case.tokens else None) as store:
            found[work] = measure(store, case, tokens, options)
    rows = tuple(_row(work, name, rounds) for work, rounds in found.items() for name in ("greedy", "modest"))
    columns = ("asked for", "client", "median MB/s", "min..max", "cut at the store")
    seconds = found["raw"][0].clients["greedy"]["seconds"]
    held = ", ".join(f"{case.cores:g} ({work})" for work, case in CASES.items())
    notes = f"cores: {held}; {seconds:g} s a round after {WARM_SECONDS:g} s of both running"
    return Report(
        "two clients on one store: each one's share of the bytes",
        (Table(columns, rows),),
        tuple(bar for work, rounds in found.items() for bar in _bars(work, rounds)),
        (notes,),
        raw={"rounds": {work: [asdict(one) for one in rounds] for work, rounds in found.items()}},
    )


if __name__ == "__main__":
    main(__doc__, run)
