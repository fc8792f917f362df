"""What a store has done and how it stands: every number that it publishes, declared in one table.

Counters are added to by whoever does the work; gauges are asked for when somebody looks.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Literal, NamedTuple

from headwater.data.codecs.excerpts import EXCERPTS
from headwater.errors import MissingExtra, WrongUse

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric as Family

Snapshot = dict[str, float | dict[str, float]]
"""Metric > its value, or label > value where it has a label."""

MOST_LABELS = 64
"""Values of one label that are told apart; a client that invents names cannot fill the memory."""
OTHER = "other"


class Metric(NamedTuple):
    """A metric: its kind, what it means, its label, and the label's values that begin at 0."""

    kind: Literal["counter", "gauge"]
    help: str
    label: str | None = None
    values: tuple[str, ...] = ()


METRICS: dict[str, Metric] = {
    "headwater_bytes_sent_total": Metric(
        "counter",
        "Bytes of payload sent to clients.",
        "kind",
        (
            "raw",
            "pixels",
            "zstd",
            "jxl1",
            "jxl3",
            *EXCERPTS,
            "index",
            "fields",
            "features",
            "labels",
            "selection",
        ),
    ),
    "headwater_bytes_received_total": Metric(
        "counter", "Bytes that clients sent for the store to keep.", "kind", ("model", "image")
    ),
    "headwater_bytes_avoided_total": Metric(
        "counter", "Bytes that did not cross the link, against raw samples.", "cause", ("cut", "codec")
    ),
    "headwater_samples_total": Metric(
        "counter",
        "Samples answered.",
        "outcome",
        ("raw", "cut", "pushed_back", "failed", "quarantined"),
    ),
    "headwater_crops_total": Metric(
        "counter",
        "Crops that were made to score samples, and held for those who ask for the chosen ones.",
        "outcome",
        ("held", "sent"),
    ),
    "headwater_features_total": Metric(
        "counter", "Samples whose features were asked for.", "outcome", ("kept", "made", "failed")
    ),
    "headwater_labels_total": Metric(
        "counter",
        "Samples that jobs have labelled anew.",
        "outcome",
        ("labelled", "unchanged", "changed", "skipped", "failed", "protected"),
    ),
    "headwater_selected_total": Metric(
        "counter",
        "Samples that jobs have looked at to select some of them.",
        "outcome",
        ("scored", "unlabelled", "failed", "chosen"),
    ),
    "headwater_predictions_total": Metric(
        "counter", "Images that were sent for a prediction.", "outcome", ("made", "kept", "failed")
    ),
    "headwater_predict_batches_total": Metric("counter", "Batches that predictions were made in."),
    "headwater_requests_total": Metric("counter", "Requests accepted.", "action"),
    "headwater_refused_total": Metric("counter", "Requests refused.", "reason"),
    "headwater_stall_seconds_total": Metric(
        "counter",
        "Seconds that requests spent in a stage, summed over requests.",
        "stage",
        ("queue", "cores", "read", "steps", "send"),
    ),
    "headwater_model_switches_total": Metric("counter", "Times that another version was put in force."),
    "headwater_worker_restarts_total": Metric("counter", "Worker processes that had to be started again."),
    "headwater_unread_total": Metric(
        "counter", "Connections that were ended because a reply was not read in time."
    ),
    "headwater_audit_lost_total": Metric("counter", "Lines that could not be written to the audit log."),
    "headwater_queue_requests": Metric("gauge", "Requests that wait for their turn."),
    "headwater_active_requests": Metric("gauge", "Requests being worked on."),
    "headwater_clients": Metric("gauge", "Clients that have asked lately."),
    "headwater_cores_used": Metric("gauge", "Cores used over the last seconds."),
    "headwater_cores_budget": Metric("gauge", "Cores that the store may use."),
    "headwater_memory_bytes": Metric("gauge", "Bytes held for requests."),
    "headwater_memory_budget_bytes": Metric("gauge", "Bytes that requests may hold."),
    "headwater_draining": Metric("gauge", "1 while the store finishes its last requests."),
    "headwater_uptime_seconds": Metric("gauge", "Seconds since the store began."),
    "headwater_jobs": Metric("gauge", "Jobs that wait or run."),
    "headwater_models_loaded_bytes": Metric("gauge", "Bytes of the models that are loaded, about."),
    "headwater_kept_bytes": Metric("gauge", "Bytes on disk of features and images that are kept."),
    "headwater_crops_bytes": Metric("gauge", "Bytes of crops that are held in memory."),
    "headwater_predict_waiting": Metric("gauge", "Images that wait for their prediction."),
    "headwater_inbox_bytes": Metric("gauge", "Bytes of images that wait to be sealed."),
    "headwater_quarantined_samples": Metric("gauge", "Samples that are no longer decoded here."),
}


class Ledger:
    """The numbers of one store. Safe to use from many threads."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, dict[str, float]] = {
            name: dict.fromkeys(metric.values if metric.label else ("",), 0)
            for name, metric in METRICS.items()
            if metric.kind == "counter"
        }
        self._gauges: dict[str, Callable[[], float]] = {}
        self._registry: CollectorRegistry | None = None
        begun = clock()
        self.watch("headwater_uptime_seconds", lambda: clock() - begun)

    def add(self, name: str, amount: float = 1, label: str | None = None) -> None:
        """Add to a counter; `label` exactly where its metric has one."""
        counts = self._counts.get(name)
        if counts is None or (label is None) != (METRICS[name].label is None) or amount < 0:
            raise WrongUse(_fault(name, amount, label))
        key = label or ""
        with self._lock:
            if key not in counts and len(counts) >= MOST_LABELS:
                key = OTHER
            counts[key] = counts.get(key, 0) + amount

    def watch(self, name: str, value: Callable[[], float]) -> None:
        """Ask `value` for a gauge whenever somebody looks: in any thread, so it must be quick and safe."""
        metric = METRICS.get(name)
        if metric is None or metric.kind != "gauge":
            raise WrongUse(f"{name!r} is no gauge; known: {', '.join(_named('gauge'))}")
        self._gauges[name] = value

    def snapshot(self) -> Snapshot:
        """Every counter and every watched gauge, as plain data."""
        with self._lock:
            counts = {name: dict(values) for name, values in self._counts.items()}
        found: Snapshot = {
            name: values if METRICS[name].label else values[""] for name, values in counts.items()
        }
        # Outside the lock: what a gauge asks may itself be waiting to add something here.
        return found | {name: value() for name, value in list(self._gauges.items())}

    def prometheus_text(self) -> bytes:
        """The snapshot in Prometheus' text format, version 0.0.4."""
        try:
            from prometheus_client import CollectorRegistry, generate_latest
        except ImportError as error:
            raise MissingExtra(f"metrics need {error.name}; pip install 'headwater[serve]'") from error
        if self._registry is None:
            registry = CollectorRegistry()
            registry.register(_Collector(self.snapshot))
            self._registry = registry
        return generate_latest(self._registry)


class _Collector:
    """What prometheus_client asks; it has no counters of its own, and so no second truth."""

    def __init__(self, snapshot: Callable[[], Snapshot]) -> None:
        self._snapshot = snapshot

    def describe(self) -> list[Family]:
        return []

    def collect(self) -> Iterator[Family]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        families = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily}
        for name, value in self._snapshot().items():
            metric = METRICS[name]
            family = families[metric.kind](name, metric.help, labels=[metric.label] if metric.label else [])
            for label, number in value.items() if isinstance(value, Mapping) else [("", value)]:
                family.add_metric([label] if metric.label else [], number)
            yield family


def _named(kind: str) -> list[str]:
    return [name for name, metric in METRICS.items() if metric.kind == kind]


def _fault(name: str, amount: float, label: str | None) -> str:
    if name not in METRICS or METRICS[name].kind != "counter":
        return f"{name!r} is no counter; known: {', '.join(_named('counter'))}"
    if amount < 0:
        return f"{name} cannot lose {-amount}; a counter only grows"
    wanted = METRICS[name].label
    return f"{name} was given label {label!r}; it has {f'label {wanted!r}' if wanted else 'no label'}"
