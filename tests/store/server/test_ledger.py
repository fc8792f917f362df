from __future__ import annotations

import json
import threading

import pytest
from prometheus_client import REGISTRY
from prometheus_client.parser import text_string_to_metric_families

from headwater.errors import WrongUse
from headwater.store.server.ledger import METRICS, MOST_LABELS, OTHER, Ledger


def parse(text: bytes) -> dict[tuple[str, str], float]:
    """Sample > value, from the text that Prometheus would read; the label's value is part of the key."""
    return {
        (sample.name, ",".join(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def test_counters_add_up_by_label() -> None:
    ledger = Ledger()
    ledger.add("headwater_bytes_sent_total", 100, label="raw")
    ledger.add("headwater_bytes_sent_total", 11, label="raw")
    ledger.add("headwater_worker_restarts_total")
    ledger.add("headwater_stall_seconds_total", 0.25, label="queue")
    found = ledger.snapshot()
    kinds = METRICS["headwater_bytes_sent_total"].values
    assert set(kinds) > {"raw", "pixels", "zstd", "jpeg", "index", "fields"}
    assert found["headwater_bytes_sent_total"] == {**dict.fromkeys(kinds, 0), "raw": 111}
    assert found["headwater_worker_restarts_total"] == 1
    assert json.loads(json.dumps(found)) == found


def test_gauges_are_asked_when_somebody_looks() -> None:
    now = [100.0]
    ledger = Ledger(clock=lambda: now[0])
    queue = [3]
    ledger.watch("headwater_queue_requests", lambda: queue[0])
    now[0], queue[0] = 107.5, 4
    found = ledger.snapshot()
    assert (found["headwater_queue_requests"], found["headwater_uptime_seconds"]) == (4, 7.5)
    assert "headwater_clients" not in found, "a gauge that nobody watches has no value"


def test_a_gauge_may_use_the_ledger_itself() -> None:
    ledger = Ledger()

    def count() -> float:
        ledger.add("headwater_requests_total", label="look")
        return 1

    ledger.watch("headwater_clients", count)
    assert ledger.snapshot()["headwater_clients"] == 1


def test_the_text_holds_the_snapshot_and_every_help() -> None:
    ledger = Ledger(clock=lambda: 5.0)
    for name, metric in METRICS.items():
        if metric.kind == "gauge":
            ledger.watch(name, lambda: 2.0)
        else:
            ledger.add(name, 3, label='a"b\n' if metric.label else None)
    text = ledger.prometheus_text()
    found = parse(text)
    for name, metric in METRICS.items():
        key = 'a"b\n' if metric.label else ""
        assert found[name, key] == (2.0 if metric.kind == "gauge" else 3.0)
        assert f"# HELP {name} {metric.help}\n".encode() in text
        assert f"# TYPE {name} {metric.kind}\n".encode() in text
        assert all(found[name, value] == 0 for value in metric.values)
    ledger.add("headwater_worker_restarts_total")
    assert parse(ledger.prometheus_text())["headwater_worker_restarts_total", ""] == 4.0


def test_two_ledgers_share_nothing_and_touch_no_global_registry() -> None:
    one, two = Ledger(), Ledger()
    one.add("headwater_worker_restarts_total")
    one.prometheus_text()
    assert parse(two.prometheus_text())["headwater_worker_restarts_total", ""] == 0
    assert not any(family.name.startswith("headwater") for family in REGISTRY.collect())


def test_invented_labels_are_bounded_and_nothing_is_lost() -> None:
    ledger = Ledger()
    for number in range(1000):
        ledger.add("headwater_requests_total", label=f"action-{number}")
    counts = ledger.snapshot()["headwater_requests_total"]
    assert isinstance(counts, dict)
    assert len(counts) <= MOST_LABELS + 1
    assert sum(counts.values()) == 1000
    assert counts[OTHER] == 1000 - MOST_LABELS


def test_many_threads_lose_nothing() -> None:
    ledger = Ledger()
    begin = threading.Barrier(8)

    def work() -> None:
        begin.wait()
        for _ in range(2000):
            ledger.add("headwater_samples_total", 2, label="cut")

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    counts = ledger.snapshot()["headwater_samples_total"]
    assert isinstance(counts, dict)
    assert counts["cut"] == 8 * 2000 * 2


@pytest.mark.parametrize(
    ("name", "amount", "label", "fact"),
    [
        ("headwater_nonsense_total", 1, None, "no counter"),
        ("headwater_clients", 1, None, "no counter"),
        ("headwater_worker_restarts_total", 1, "x", "no label"),
        ("headwater_requests_total", 1, None, "label 'action'"),
        ("headwater_worker_restarts_total", -1, None, "only grows"),
    ],
)
def test_a_slip_is_wrong_use(name: str, amount: float, label: str | None, fact: str) -> None:
    with pytest.raises(WrongUse, match=fact):
        Ledger().add(name, amount, label=label)


def test_only_gauges_can_be_watched() -> None:
    with pytest.raises(WrongUse, match="no gauge"):
        Ledger().watch("headwater_requests_total", lambda: 1.0)


def test_names_say_their_kind() -> None:
    for name, metric in METRICS.items():
        assert name.endswith("_total") == (metric.kind == "counter")
        assert metric.kind == "counter" or metric.label is None
