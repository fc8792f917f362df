"""The chapter on a memory budget: bytes over one iteration, before and after, and what was decided."""

from __future__ import annotations

from collections.abc import Mapping

from headwater.errors import WrongUse
from headwater.plan.memory import WAYS
from headwater.report.page import Chapter, Figure, Table
from headwater.report.plots import axes, floats
from headwater.train.memory import MemoryReport

TITLE = "A memory budget"
MIB = 2**20


def memory_chapter(report: MemoryReport, *, text: str = "") -> Chapter:
    """Memory over the last iteration as it would have been and as it was; raises `WrongUse` without one."""
    if not report.seconds:
        raise WrongUse("no iteration is over yet; a chapter on memory needs at least one")
    said = f"What autograd keeps took {report.peak_before / MIB:,.1f} MiB, and took {report.peak / MIB:,.1f}."
    return Chapter(
        title=TITLE,
        text=f"{text}\n\n{said}" if text else said,
        figures=(memory_figure(report), *([_choices(report)] if report.plan else [])),
        table=_table(report),
    )


def memory_figure(report: MemoryReport) -> Figure:
    """Bytes held for backward over one iteration, plain and within the budget."""
    seconds = floats(report.seconds)
    traces: list[Mapping[str, object]] = [
        {
            "x": seconds,
            "y": floats([count / MIB for count in values]),
            "mode": "lines",
            "line": {"shape": "hv"},
            "fill": "tozeroy",
            "name": name,
        }
        for name, values in (("before", report.held_before), ("after", report.held))
    ]
    ends = {"x": [seconds[0], seconds[-1]], "y": [report.budget / MIB] * 2, "mode": "lines"}
    traces.append({**ends, "name": "budget", "line": {"dash": "dash"}})
    return Figure("Memory over one iteration", traces, axes("seconds", "MiB"))


def _choices(report: MemoryReport) -> Figure:
    plan = report.plan
    assert plan is not None
    bytes_of = [plan.bytes_of(way) / MIB for way in WAYS]
    trace = {"type": "bar", "x": list(WAYS), "y": floats(bytes_of)}
    return Figure("What happens to what is kept", [trace], axes("", "MiB"))


def _table(report: MemoryReport) -> Table:
    rows = (
        ("budget", f"{report.budget / MIB:,.1f} MiB"),
        ("peak before", f"{report.peak_before / MIB:,.1f} MiB"),
        ("peak after", f"{report.peak / MIB:,.1f} MiB"),
        ("swapped", f"{report.swapped / MIB:,.1f} MiB"),
        ("recomputed", f"{report.recomputed / MIB:,.1f} MiB"),
        ("stalls", f"{report.stall_seconds:.3f} s"),
        ("recomputing", f"{report.recompute_seconds:.3f} s"),
        ("late fetches", f"{report.late_fetches:,} of {report.fetches:,}"),
        ("iterations, by a plan", f"{report.iterations:,}, {report.guided:,}"),
    )
    return Table(("of the last iteration", ""), rows)
