"""`headwater top`: what a store is doing, live in the terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from headwater.cli.linking import Ca, Cert, Key, TokenFile
from headwater.cli.printing import JsonFlag, format_bytes, print_json, printable
from headwater.errors import Unreachable
from headwater.store.client.link import Link

_DEADLINE_SECONDS = 3.0

Status = Mapping[str, Any]
"""What a store says of itself: version, uptime_seconds, status, datasets, quarantined, metrics, budget."""
Row = tuple[str, str, str]
"""What, how much of it per second or now, and how much since the store began."""


def top(
    url: Annotated[str, typer.Argument(help="grpc://HOST:PORT or grpc+tls://HOST:PORT.")],
    token_file: TokenFile = None,
    ca: Ca = None,
    cert: Cert = None,
    key: Key = None,
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between two looks.")] = 1.0,
    once: Annotated[
        bool, typer.Option("--once", help="One table; also where the output is no terminal.")
    ] = False,
    json: JsonFlag = False,
) -> None:
    """Bytes, samples, stalls, queue and budget of a store, second by second, until Ctrl-C."""
    ask = _asker(url, token_file, link=Link(ca=ca, cert=cert, key=key, deadline_seconds=_DEADLINE_SECONDS))
    first = ask()
    if json:
        print_json(first)
    elif once or not sys.stdout.isatty():
        Console(markup=False, highlight=False).print(render(url, None, first))
    else:
        with Live(render(url, None, first), auto_refresh=False) as live:
            watch(url, ask, first=first, interval=interval, draw=lambda view: live.update(view, refresh=True))


def watch(
    url: str,
    ask: Callable[[], Status],
    *,
    first: Status,
    interval: float,
    draw: Callable[[Group], None],
    wait: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Ask and draw for ever; a store that does not answer is said so and asked again."""
    before, after, seconds = None, first, 0.0
    seen = clock()
    while True:
        wait(interval)
        try:
            status = ask()
        except Unreachable as error:
            trouble = f"no answer for {clock() - seen:.0f} s: {error}"
            draw(render(url, before, after, seconds=seconds, trouble=trouble))
            continue
        before, after, seconds = after, status, clock() - seen
        seen = clock()
        draw(render(url, before, after, seconds=seconds))


def render(
    url: str, before: Status | None, after: Status, *, seconds: float = 0.0, trouble: str = ""
) -> Group:
    """Header and table of one look."""
    table = Table(box=box.SIMPLE_HEAD)
    for name in ("", "now" if before else "on average", "since it began"):
        table.add_column(name, justify="right" if name else "left")
    for row in rows(before, after, seconds):
        table.add_row(*(Text(printable(cell)) for cell in row))
    lines = [Text(printable(line)) for line in header(url, after)]
    return Group(*lines, *([Text(printable(trouble), style="bold red")] if trouble else []), table)


def header(url: str, status: Status) -> list[str]:
    """Which store this is, how long it runs, and what it serves."""
    state = "" if status["status"] == "ok" else f", {status['status']}"
    uptime = _format_duration(status["uptime_seconds"])
    datasets = [
        f"  {name}: {dataset['samples']:,} samples, {format_bytes(dataset['bytes'])}, {dataset['version']}"
        for name, dataset in status["datasets"].items()
    ]
    return [f"{url}, headwater {status['version']}, up {uptime}{state}", *datasets]


def rows(before: Status | None, after: Status, seconds: float) -> list[Row]:
    """The table: rates from two looks `seconds` apart; from one look, or after a restart, since it began.

    What has never happened has no row, so that the table fits on a small terminal.
    """
    uptime = float(after["uptime_seconds"])
    if before is None or uptime < before["uptime_seconds"]:
        before, seconds = {"metrics": {}}, uptime
    old, new = before["metrics"], after["metrics"]
    found = _gauges(new)
    for metric, (title, form) in _COUNTERS.items():
        earlier = _by_label(old.get(metric, {}))
        for label, count in _by_label(new.get(metric, {})).items():
            rate = (count - earlier.get(label, 0)) / seconds if seconds > 0 else 0.0
            if count:
                found.append((f"{title} {label}".strip(), *form(rate, count)))
    return found


def _asker(url: str, token: Path | None, *, link: Link) -> Callable[[], Status]:
    from headwater.store.client.status import status

    return lambda: status(url, token=token, link=link)


def _bytes(rate: float, count: float) -> tuple[str, str]:
    return f"{format_bytes(rate)}/s", format_bytes(count)


def _number(rate: float, count: float) -> tuple[str, str]:
    return f"{rate:,.1f}/s", f"{count:,.0f}"


def _share(rate: float, count: float) -> tuple[str, str]:
    """Seconds per second; past 100 % where several requests wait side by side."""
    return f"{rate:.0%} of the time", _format_duration(count)


_COUNTERS: dict[str, tuple[str, Callable[[float, float], tuple[str, str]]]] = {
    "headwater_bytes_sent_total": ("sent", _bytes),
    "headwater_bytes_received_total": ("received", _bytes),
    "headwater_bytes_avoided_total": ("avoided by", _bytes),
    "headwater_samples_total": ("samples", _number),
    "headwater_crops_total": ("crops of a selection", _number),
    "headwater_features_total": ("features", _number),
    "headwater_labels_total": ("labels", _number),
    "headwater_selected_total": ("looked at to select", _number),
    "headwater_predictions_total": ("predictions", _number),
    "headwater_predict_batches_total": ("batches of predictions", _number),
    "headwater_requests_total": ("requests", _number),
    "headwater_refused_total": ("refused", _number),
    "headwater_stall_seconds_total": ("in", _share),
    "headwater_model_switches_total": ("model switches", _number),
    "headwater_worker_restarts_total": ("worker restarts", _number),
    "headwater_unread_total": ("replies not read", _number),
    "headwater_audit_lost_total": ("audit lines lost", _number),
}


def _gauges(metrics: Mapping[str, Any]) -> list[Row]:
    def now(name: str, form: Callable[[float], str] = "{:,.0f}".format) -> str:
        return form(metrics[name]) if name in metrics else "?"

    used, cores = now("headwater_cores_used", "{:.2f}".format), now("headwater_cores_budget", "{:g}".format)
    held, memory = (
        now("headwater_memory_bytes", format_bytes),
        now("headwater_memory_budget_bytes", format_bytes),
    )
    return [
        ("requests waiting", now("headwater_queue_requests"), ""),
        ("requests active", now("headwater_active_requests"), ""),
        ("clients", now("headwater_clients"), ""),
        ("cores", f"{used} of {cores}", ""),
        ("memory", f"{held} of {memory}", ""),
        ("samples in quarantine", now("headwater_quarantined_samples"), ""),
        ("jobs", now("headwater_jobs"), ""),
        ("models loaded", now("headwater_models_loaded_bytes", format_bytes), ""),
        ("features and images kept", now("headwater_kept_bytes", format_bytes), ""),
        ("crops held", now("headwater_crops_bytes", format_bytes), ""),
        ("predictions waiting", now("headwater_predict_waiting"), ""),
        ("in the inbox", now("headwater_inbox_bytes", format_bytes), ""),
    ]


def _by_label(value: Any) -> dict[str, float]:
    return dict(value) if isinstance(value, Mapping) else {"": value}


def _format_duration(seconds: float) -> str:
    for unit, length, most in (("s", 1, 120), ("min", 60, 120), ("h", 3600, 72)):
        if seconds < most * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds / 86400:.1f} d"
