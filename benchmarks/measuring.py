"""How a benchmark compares and prints: interleaved rounds, medians, spread, the machine. Nothing else.

Rates of one run are compared with rates of the same run only: on a shared machine one pair swings
threefold, the median of several interleaved pairs does not.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import MappingProxyType
from typing import NoReturn

Rates = dict[str, list[float]]
Cell = str | int | float


@dataclass(frozen=True)
class Flag:
    """A number that one benchmark can be told: what it usually is, and what it means."""

    usual: float
    help: str


@dataclass(frozen=True)
class Options:
    """What every benchmark can be told, and the `numbers`, `folders` and `names` of one's own flags."""

    data: Path | None
    quick: bool
    json: bool
    numbers: Mapping[str, float] = field(default_factory=dict)
    folders: Mapping[str, Path | None] = field(default_factory=dict)
    names: Mapping[str, str | None] = field(default_factory=dict)

    @property
    def rounds(self) -> int:
        return 2 if self.quick else 7


@dataclass(frozen=True)
class Ratio:
    """A contender's rate over another's, round by round."""

    name: str
    against: str
    rounds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.rounds)

    @property
    def spread(self) -> str:
        return f"{min(self.rounds):.2f}..{max(self.rounds):.2f}"


@dataclass(frozen=True)
class Bar:
    """What was asked for and what was found."""

    what: str
    asked: str
    found: str
    holds: bool


@dataclass(frozen=True)
class Table:
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True)
class Report:
    """A benchmark's answer; `bars` may be empty where the question asks for none."""

    question: str
    tables: tuple[Table, ...]
    bars: tuple[Bar, ...] = ()
    notes: tuple[str, ...] = ()
    raw: Mapping[str, object] = field(default_factory=dict)


def read_options(
    description: str | None,
    flags: Mapping[str, Flag],
    folders: Mapping[str, str] = MappingProxyType({}),
    names: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> Options:
    """The command line of a benchmark; `folders` are further ones that it takes, with what they are for.

    `names` are what it can be told to choose, each with what there is.
    """
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, help="folder with imagenet_sample/ and cifar10/")
    parser.add_argument("--quick", action="store_true", help="a sanity run: little data, two rounds")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    for name, flag in flags.items():
        text = f"{flag.help} ({flag.usual:g})"
        parser.add_argument(f"--{name}", type=float, default=flag.usual, metavar="NUMBER", help=text)
    for name, text in folders.items():
        parser.add_argument(f"--{name}", type=Path, metavar="FOLDER", help=text)
    for name, known in names.items():
        text = f"one of: {'; '.join(known)}".replace("%", "%%")  # for argparse, it is a format
        parser.add_argument(f"--{name}", choices=known, metavar="NAME", help=text)
    found = parser.parse_args()
    numbers = {name: getattr(found, name.replace("-", "_")) for name in flags}
    own = ({name: getattr(found, name) for name in some} for some in (folders, names))
    return Options(found.data, found.quick, found.json, numbers, *own)


def interleave(contenders: Mapping[str, Callable[[], float]], *, rounds: int) -> Rates:
    """Rates of every contender in every round, A B A B ...; one round before the first is not counted."""
    for measure in contenders.values():
        measure()
    rates: Rates = {name: [] for name in contenders}
    for number in range(rounds):
        for name, measure in contenders.items():
            rates[name].append(measure())
        print(f"round {number + 1} of {rounds}: {_one_round(rates)}", file=sys.stderr, flush=True)
    return rates


def compare(rates: Rates, name: str, against: str) -> Ratio:
    """How `name` did against another contender in the same rounds."""
    pairs = zip(rates[name], rates[against], strict=True)
    return Ratio(name, against, tuple(ours / theirs for ours, theirs in pairs))


def rate_table(rates: Rates, name: str, unit: str) -> Table:
    """One row per contender: its median rate, and how `name` did against it."""
    rows: list[tuple[Cell, ...]] = []
    for other, found in rates.items():
        ratio = compare(rates, name, other)
        against = ("", "") if other == name else (f"{ratio.median:.2f}", ratio.spread)
        rows.append((other, round(statistics.median(found)), f"{min(found):.0f}..{max(found):.0f}", *against))
    columns = ("contender", f"median {unit}", "min..max", f"{name} / it", "spread of the ratio")
    return Table(columns, tuple(rows))


def close_to_one(what: str, ratios: Sequence[float], within: float) -> Bar:
    """The bar of a prediction: found over predicted, the median over the rounds."""
    middle = statistics.median(ratios)
    found = f"{middle:.3f} ({min(ratios):.3f}..{max(ratios):.3f})"
    return Bar(what, f"within {within:.0%}", found, abs(middle - 1) <= within)


def at_least(ratio: Ratio, asked: float) -> Bar:
    """The bar of a ratio: the median over the rounds."""
    what = f"{ratio.name} / {ratio.against}"
    return Bar(what, f"at least {asked:g}", f"{ratio.median:.2f} ({ratio.spread})", ratio.median >= asked)


def show(report: Report, options: Options) -> None:
    """Print the report; Markdown, so that the page beside a benchmark holds it as printed."""
    if options.json:
        content = asdict(report) | {"date": _now(), "machine": machine(), "command": command(options)}
        print(json.dumps(content, indent=1))
        return
    print(f"{report.question}\n\n    {command(options)}\n\n{_now()}; {machine()}\n")
    for table in report.tables:
        print(_markdown(table))
    if report.bars:
        rows = tuple((bar.what, bar.asked, bar.found, "yes" if bar.holds else "NO") for bar in report.bars)
        print(_markdown(Table(("bar", "asked", "found", "holds"), rows)))
    for note in report.notes:
        print(f"* {note}")


def images_per_second(loader: Iterable[Sized], seconds: float) -> float:
    """Whole epochs of a loader, for at least this long."""
    begin, images = time.perf_counter(), 0
    while (spent := time.perf_counter() - begin) < seconds:
        images += sum(len(batch) for batch in loader)
    return images / spent


def best(call: Callable[[], object], times: int, clock: Callable[[], float] = time.perf_counter) -> float:
    """The least seconds that `call` took."""
    found = []
    for _ in range(times):
        begin = clock()
        call()
        found.append(clock() - begin)
    return min(found)


def peak(call: Callable[[], object]) -> float:
    """Most bytes that were allocated at once; numpy tells tracemalloc of its arrays."""
    gc.collect()
    tracemalloc.start()
    try:
        call()
        return float(tracemalloc.get_traced_memory()[1])
    finally:
        tracemalloc.stop()


def main(
    description: str | None,
    run: Callable[[Path, Options], Report],
    *,
    flags: Mapping[str, Flag] | None = None,
    folders: Mapping[str, str] | None = None,
    names: Mapping[str, Sequence[str]] | None = None,
) -> NoReturn:
    """Run a benchmark in a folder that is gone afterwards; exit 1 if a bar does not hold."""
    options = read_options(description, flags or {}, folders or {}, names or {})
    with tempfile.TemporaryDirectory(prefix="headwater-", ignore_cleanup_errors=True) as folder:
        os.environ["HEADWATER_CACHE"] = str(Path(folder) / "cache")
        report = run(Path(folder), options)
    show(report, options)
    sys.exit(0 if all(bar.holds for bar in report.bars) else 1)


def machine() -> str:
    """Cores, CPU model, versions, the commit, and how busy the machine is."""
    cores = len(os.sched_getaffinity(0))
    load = "/".join(f"{value:.1f}" for value in os.getloadavg())
    named = f", commit {found}" if (found := commit()) else ""
    versions = f"Python {platform.python_version()}, torch {_torch()}{named}"
    return f"{cores} cores, {_cpu_model()}, {versions}, load {load}"


def command(options: Options) -> str:
    """How this run was started, without the machine's paths."""
    script = f"benchmarks/{Path(sys.argv[0]).name}"
    hidden = {"--data", *(f"--{name}" for name in options.folders)}
    pairs = zip(sys.argv, sys.argv[1:], strict=False)
    words = ["FOLDER" if before in hidden else word for before, word in pairs]
    return shlex.join([".venv/bin/python", script, *words])


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else ():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _torch() -> str:
    try:
        return version("torch")
    except PackageNotFoundError:
        return "absent"


def commit() -> str:
    """The tree's commit, with a "+" if the tree is changed; nothing where git does not know."""
    try:
        name, changed = _git("rev-parse", "--short", "HEAD"), _git("status", "--porcelain")
    except (OSError, subprocess.CalledProcessError):
        return ""
    return f"{name}{'+' if changed else ''}"


def _git(*words: str) -> str:
    folder = Path(__file__).parent
    done = subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def _one_round(rates: Rates) -> str:
    return ", ".join(f"{name} {found[-1]:.0f}" for name, found in rates.items())


def _markdown(table: Table) -> str:
    cells = [table.columns, *([_text(cell) for cell in row] for row in table.rows)]
    widths = [max(len(row[place]) for row in cells) for place in range(len(table.columns))]
    lines = ["| " + " | ".join(_padded(row, widths)) + " |" for row in cells]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines) + "\n"


def _padded(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    return [text.ljust(width) for text, width in zip(row, widths, strict=True)]


def _text(cell: Cell) -> str:
    if isinstance(cell, int):
        return f"{cell:,}"
    return f"{cell:.4g}" if isinstance(cell, float) else cell
