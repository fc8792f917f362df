"""The chapter on offloading: what crossed the link in which form, what that cost, and why."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from headwater.measure.logbook import Amounts, Histogram, Logbook, SiteRates
from headwater.report.advice import advise, format_link, format_trainer
from headwater.report.balance import RESOURCES, Balance, balances
from headwater.report.page import Chapter, Figure, Table
from headwater.report.plots import axes, floats
from headwater.report.ways import Ways, way_names

_QUANTITIES = {
    "bytes over the link": ("bytes", 1e-6, "MB"),
    "store CPU": ("store_seconds", 1.0, "s"),
    "trainer CPU": ("trainer_seconds", 1.0, "s"),
    "time": ("seconds", 1.0, "s"),
}
"""Field of `Amounts`, scale and unit."""


def offload_chapter(logbook: Logbook, *, text: str = "") -> Chapter:
    """Predicted against measured, with plots of ways, bytes, efficiency, resources and idle time."""
    found = balances(logbook)
    return Chapter(
        title="Offloading",
        text="\n\n".join(part for part in (text, summarise(logbook, found)) if part),
        figures=(
            _cuts(logbook),
            _bytes(logbook),
            _efficiency(logbook.efficiency),
            _resources(found),
            _busy(logbook),
        ),
        table=comparison(found),
    )


def explain(logbook: Logbook) -> tuple[Chapter, ...]:
    """In words and tables: predicted against measured, the four resources, the ways."""
    found = balances(logbook)
    return (
        Chapter("Predicted and measured", summarise(logbook, found), table=comparison(found)),
        Chapter("The four resources", _advice(found), table=resources(found)),
        Chapter("Ways", _about_ways(logbook), table=ways_table(logbook)),
    )


def _about_ways(logbook: Logbook) -> str:
    """The steps; and, of data whose index has only means, that lengths of files are estimates."""
    words = f"Steps: {logbook.pipeline_text}."
    if any(total.estimated for total in logbook.totals):
        words += (
            " The index does not have the length of each file, as with Parquet: where a sample did not come"
            " as a file, that is estimated from what came, and so is the saving."
        )
    return words


def summarise(logbook: Logbook, found: Sequence[Balance]) -> str:
    """What was planned, by which policy and why, in a paragraph per store."""
    head = f"Policy {logbook.policy}, {logbook.uri.replace(chr(10), ', ')}."
    if logbook.failure:
        head += f" Planning failed ({logbook.failure}), and files were sent from then on; the log has more."
    if not found:
        seen = sum(stretch.measured.samples for stretch in logbook.stretches)
        head += f" Nothing was planned yet: {seen:,} samples were measured."
    return "\n\n".join([head, *(_paragraph(logbook, balance) for balance in found)])


def _paragraph(logbook: Logbook, balance: Balance) -> str:
    last = [stretch for stretch in logbook.stretches if stretch.site == balance.site][-1]
    words = [
        f"{balance.site}: {'the last plan: ' if balance.predicted else ''}{balance.reason}.",
        f"Without offloading the {balance.bottleneck_before} is the slowest"
        + (f", with the plans the {balance.bottleneck_after}." if balance.predicted else "."),
    ]
    if last.reason != balance.reason:
        words.append(f"Since then: {last.reason}.")
    return " ".join(words)


def comparison(found: Sequence[Balance]) -> Table:
    """A row per store and quantity; the ratio is measured over predicted."""
    rows = [
        (balance.site, name, *_cells(balance, balance.predicted, quantity))
        for balance in found
        if balance.predicted is not None
        for name, quantity in _QUANTITIES.items()
    ]
    columns = ("store", "quantity", "without offloading", "predicted", "measured", "measured / predicted")
    return Table(columns, tuple(rows))


def _cells(balance: Balance, predicted: Amounts, quantity: tuple[str, float, str]) -> tuple[str, ...]:
    name, scale, unit = quantity
    before, expected, came = (
        float(getattr(each, name)) * scale for each in (balance.before, predicted, balance.measured)
    )
    ratio = f"{came / expected:.2f}" if expected > 0 else ""
    return (*(f"{value:,.2f} {unit}" for value in (before, expected, came)), ratio)


def resources(found: Sequence[Balance]) -> Table:
    """Rates, and seconds that each resource needs before and after."""
    rows = [
        (balance.site, name, _rate(balance, name), *_seconds(balance, name))
        for balance in found
        for name in RESOURCES
    ]
    return Table(("store", "resource", "rate", "without offloading", "with the plans", ""), tuple(rows))


def _rate(balance: Balance, name: str) -> str:
    """As found last, and as the last plan took it to be, if that was something else."""
    found, assumed = (_rate_text(rates, name) for rates in (balance.rates, balance.assumed))
    return found if found == assumed else f"{found}, planned with {assumed}"


def _rate_text(rates: SiteRates, name: str) -> str:
    if name == "link":
        return format_link(rates.link)
    if name == "trainer":
        return format_trainer(rates.trainer)
    cores = rates.store_cores if name == "store CPU" else rates.trainer_cores
    speed = rates.store_speed if name == "store CPU" else 1.0
    if not math.isfinite(cores):
        return "not measured"
    return f"{cores:.3g} cores" + ("" if f"{speed:.2f}" == "1.00" else f" of speed {speed:.2f}")


def _seconds(balance: Balance, name: str) -> tuple[str, ...]:
    marks = [
        mark
        for mark, slowest in (
            ("slowest before", balance.bottleneck_before),
            ("slowest after", balance.bottleneck_after),
        )
        if slowest == name
    ]
    return f"{balance.times_before[name]:.2f} s", f"{balance.times_after[name]:.2f} s", ", ".join(marks)


def _advice(found: Sequence[Balance]) -> str:
    return "\n\n".join(
        f"{balance.site}: {advise(balance.times_after, balance.assumed)}." for balance in found
    )


def ways_table(logbook: Logbook) -> Table:
    """A row per way: samples, bytes against the files', CPU milliseconds a sample, and why."""
    ways = Ways(logbook)
    rows = []
    for way, total in enumerate(logbook.totals):
        about = "about " if total.estimated else ""
        share = f"{about}{total.bytes / total.file_bytes:.1%}" if total.file_bytes else ""
        expected = f"{total.foreseen_bytes / total.predicted_bytes:.2f}" if total.predicted_bytes else ""
        each = (
            [f"{1e3 * seconds / total.done:.2f}" for seconds in (total.store_seconds, total.trainer_seconds)]
            if total.done
            else ["", ""]
        )
        counts = (f"{total.asked:,}", f"{total.done:,}")
        rows.append((ways.names[way], *counts, share, expected, *each, ways.why(way)))
    columns = (
        "way",
        "asked",
        "came",
        "of the files",
        "measured / predicted",
        "store ms",
        "trainer ms",
        "why",
    )
    return Table(columns, tuple(rows))


def _cuts(logbook: Logbook) -> Figure:
    names = way_names(logbook)
    asked = {"type": "bar", "x": names, "y": [total.asked for total in logbook.totals], "name": "asked for"}
    came = {"type": "bar", "x": names, "y": [total.done for total in logbook.totals], "name": "came"}
    return Figure("Samples by way", [asked, came], {**axes("", "samples"), "barmode": "group"})


def _bytes(logbook: Logbook) -> Figure:
    names = way_names(logbook)
    traces = [
        {"type": "bar", "x": names, "y": floats([value / 1e6 for value in values]), "name": name}
        for name, values in (
            ("as files", [total.file_bytes for total in logbook.totals]),
            ("as they crossed", [total.bytes for total in logbook.totals]),
        )
    ]
    return Figure("Bytes by way", traces, {**axes("", "MB"), "barmode": "group"})


def _efficiency(histogram: Histogram) -> Figure:
    """On a logarithmic axis; what saved nothing, or less than all edges, stands left of them."""
    edges = np.array(histogram.edges) / 1e6
    ratio = edges[1] / edges[0]
    middles = np.concatenate([[edges[0] / np.sqrt(ratio)], edges * np.sqrt(ratio)])
    trace = {"type": "bar", "x": floats(middles), "y": histogram.counts, "name": "samples"}
    layout = axes("MB saved per second of store CPU", "samples")
    layout["xaxis"] = {"title": {"text": "MB saved per second of store CPU"}, "type": "log"}
    return Figure("Efficiency of offloading", [trace], layout)


def _resources(found: Sequence[Balance]) -> Figure:
    """Seconds that each resource needs by the model, all stores together."""
    traces = [
        {"type": "bar", "x": list(RESOURCES), "y": floats(values), "name": name}
        for name, values in (
            ("without offloading", [sum(one.times_before[name] for one in found) for name in RESOURCES]),
            ("with the plans", [sum(one.times_after[name] for one in found) for name in RESOURCES]),
        )
    ]
    return Figure("The four resources", traces, {**axes("", "seconds"), "barmode": "group"})


def _busy(logbook: Logbook) -> Figure:
    """Share of time in which the training loop had work, store by store, stretch by stretch."""
    sites: dict[str, tuple[list[int], list[float]]] = {}
    for place, stretch in enumerate(logbook.stretches):
        if stretch.busy is not None:
            places, shares = sites.setdefault(stretch.site, ([], []))
            places.append(place)
            shares.append(100 * stretch.busy)
    traces = [
        {"x": places, "y": floats(shares), "mode": "lines+markers", "name": site}
        for site, (places, shares) in sites.items()
    ]
    return Figure("Share of time in which the trainer was busy", traces, axes("stretch", "%"))
