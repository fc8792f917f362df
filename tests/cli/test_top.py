from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from rich.console import Console, Group

from headwater.cli.top import Row, header, render, rows, watch
from headwater.errors import Refused, Unreachable
from headwater.store.server.ledger import METRICS, Ledger

URL = "grpc+tls://stor-a:7077"


class Store:
    """A ledger with a clock that the test moves, and what a store says of itself."""

    def __init__(self) -> None:
        self.now = 0.0
        self.ledger = Ledger(clock=lambda: self.now)

    def status(self) -> dict[str, Any]:
        return {
            "version": "0.1.0",
            "uptime_seconds": self.now,
            "status": "ok",
            "datasets": {"photos": {"samples": 1_234_567, "bytes": 5_000_000_000, "version": "v1"}},
            "metrics": self.ledger.snapshot(),
            "budget": {},
        }


def by_name(found: list[Row]) -> dict[str, tuple[str, str]]:
    names = [name for name, _, _ in found]
    assert len(set(names)) == len(names)
    return {name: (now, total) for name, now, total in found}


def draw(view: Group) -> str:
    console = Console(file=io.StringIO(), width=120, color_system=None)
    console.print(view)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert isinstance(text, str)
    return text


def test_rates_are_the_difference_of_two_looks() -> None:
    store = Store()
    store.now = 100.0
    store.ledger.add("headwater_bytes_sent_total", 1_000_000, label="raw")
    store.ledger.add("headwater_samples_total", 10, label="cut")
    before = store.status()
    store.now = 102.0
    store.ledger.add("headwater_bytes_sent_total", 3_000_000, label="raw")
    store.ledger.add("headwater_samples_total", 50, label="cut")
    store.ledger.add("headwater_stall_seconds_total", 0.5, label="queue")
    store.ledger.add("headwater_refused_total", 4, label="no token")
    store.ledger.add("headwater_bytes_avoided_total", 500, label="codec")
    found = by_name(rows(before, store.status(), 2.0))
    assert found["sent raw"] == ("1.5 MB/s", "4.0 MB")
    assert found["avoided by codec"] == ("250 B/s", "500 B")
    assert found["samples cut"] == ("25.0/s", "60")
    assert found["in queue"] == ("25% of the time", "0.5 s")
    assert found["refused no token"] == ("2.0/s", "4")
    assert "sent pixels" not in found, "what has never happened has no row"
    assert "worker restarts" not in found


def test_one_look_gives_the_average_since_the_beginning() -> None:
    store = Store()
    store.now = 50.0
    store.ledger.add("headwater_samples_total", 100, label="raw")
    assert by_name(rows(None, store.status(), 0.0))["samples raw"] == ("2.0/s", "100")


def test_a_store_of_this_instant_divides_by_nothing() -> None:
    store = Store()
    store.ledger.add("headwater_samples_total", 100, label="raw")
    assert by_name(rows(None, store.status(), 0.0))["samples raw"] == ("0.0/s", "100")


def test_a_restart_begins_anew() -> None:
    old, new = Store(), Store()
    old.now, new.now = 100.0, 4.0
    old.ledger.add("headwater_samples_total", 1000, label="raw")
    new.ledger.add("headwater_samples_total", 8, label="raw")
    assert by_name(rows(old.status(), new.status(), 10.0))["samples raw"] == ("2.0/s", "8")


def test_gauges_stand_as_they_are() -> None:
    store = Store()
    values = {
        "headwater_queue_requests": 7,
        "headwater_cores_used": 1.234,
        "headwater_cores_budget": 2,
        "headwater_memory_bytes": 5_000_000,
        "headwater_memory_budget_bytes": 1e9,
    }
    for name, value in values.items():
        store.ledger.watch(name, lambda value=value: value)  # type: ignore[misc]
    found = by_name(rows(None, store.status(), 0.0))
    assert found["requests waiting"] == ("7", "")
    assert found["cores"] == ("1.23 of 2", "")
    assert found["memory"] == ("5.0 MB of 1.0 GB", "")
    assert found["clients"] == ("?", ""), "a gauge that the store does not have is unknown, not 0"


def test_every_metric_has_its_place() -> None:
    """With a number of its own in each, every metric shows; uptime and draining stand in the header."""
    store = Store()
    store.now = 1.0
    for number, (name, metric) in enumerate(METRICS.items()):
        if metric.kind == "counter":
            store.ledger.add(name, 701 + number, label="seen" if metric.label else None)
        else:
            store.ledger.watch(name, lambda number=number: 701 + number)  # type: ignore[misc]
    shown = " ".join(" ".join(row) for row in rows(None, store.status(), 0.0))
    for number, (name, _) in enumerate(METRICS.items()):
        if name in ("headwater_uptime_seconds", "headwater_draining"):
            continue
        value = f"{(701 + number) / 60:.1f} min" if "seconds" in name else str(701 + number)
        assert value in shown, name


def test_the_header_says_which_store_this_is() -> None:
    store = Store()
    store.now = 7200.0
    lines = header(URL, store.status() | {"status": "draining"})
    assert lines == [
        f"{URL}, headwater 0.1.0, up 2.0 h, draining",
        "  photos: 1,234,567 samples, 5.0 GB, v1",
    ]


def test_names_cannot_write_to_the_terminal() -> None:
    store = Store()
    store.ledger.add("headwater_requests_total", label="evil\x1b[31m[bold]red")
    status = store.status()
    status["version"] = "0\x1b[2J"
    shown = draw(render(URL, None, status, trouble="no\x07 answer"))
    assert not {"\x1b", "\x07"} & set(shown)
    assert "[bold]red" in shown


class Script:
    """Answers one after the other, a second apart; Ctrl-C when there are no more."""

    def __init__(self, *answers: Callable[[], dict[str, Any]]) -> None:
        self.answers: Iterator[Callable[[], dict[str, Any]]] = iter(answers)
        self.now = 0.0
        self.shown: list[str] = []

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.answer = next(self.answers, None)
        if self.answer is None:
            raise KeyboardInterrupt

    def ask(self) -> dict[str, Any]:
        assert self.answer is not None
        return self.answer()

    def run(self, first: dict[str, Any]) -> list[str]:
        with pytest.raises(KeyboardInterrupt):
            watch(
                URL,
                self.ask,
                first=first,
                interval=1.0,
                draw=lambda view: self.shown.append(draw(view)),
                wait=self.wait,
                clock=lambda: self.now,
            )
        return self.shown


def test_a_store_that_goes_away_is_said_so_and_asked_again() -> None:
    store = Store()
    first = store.status()

    def work() -> dict[str, Any]:
        store.now += 1.0
        store.ledger.add("headwater_samples_total", 6, label="raw")
        return store.status()

    def fail() -> dict[str, Any]:
        raise Unreachable("stor-a does not answer")

    shown = Script(work, fail, fail, work).run(first)
    assert ["no answer" in text for text in shown] == [False, True, True, False]
    assert "no answer for 2 s: stor-a does not answer" in shown[2]
    assert "6.0/s" in shown[0]
    assert "6.0/s" in shown[2], "the last numbers stay"
    assert "2.0/s" in shown[3], "the pause counts: 6 samples in 3 s"


def test_a_refusal_ends_it() -> None:
    def refuse() -> dict[str, Any]:
        raise Refused("token expired")

    with pytest.raises(Refused):
        watch(
            URL,
            refuse,
            first=Store().status(),
            interval=1.0,
            draw=lambda view: None,
            wait=lambda seconds: None,
        )
