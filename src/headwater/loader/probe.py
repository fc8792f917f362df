"""`hw.profile`: a short run with the user's own step, to find out which resource is the slowest."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from headwater.errors import Refused, Unreachable, WrongUse
from headwater.loader.batch import Batch
from headwater.loader.loader import DataLoader
from headwater.measure.logbook import Amounts, Stretch
from headwater.measure.stats import Stats
from headwater.measure.verdict import Resource, Verdict
from headwater.store.base import Store
from headwater.store.client import status
from headwater.store.client.remote import RemoteStore
from headwater.store.fleet import ShardedStore

Step = Callable[[Batch], object]

_CALLS, _SECONDS = 20, 2.0  # of the step on one batch, whichever comes first
_LEAST = 1e-9
_STAGES = "headwater_stall_seconds_total"
_ANSWERED = "headwater_samples_total"


def profile(loader: DataLoader, step: Step, *, samples: int = 1024) -> Verdict:
    """Load at least so many samples, each batch with `step`, and measure what every resource has to do.

    `step` is called as in training, so it changes what it trains; afterwards it is timed on one batch that
    stays in memory. The loader then stands where it stood before, and what its planner learnt remains.
    Raises `WrongUse` if the loader gives no samples, and whatever loader and step raise.
    """
    if samples < 1:
        raise WrongUse(f"samples is {samples}; it must be at least 1")
    iter(loader)  # if the last loop was left early, its epoch is over: the state says so from here on
    state = loader.state_dict()
    known = 0 if loader.logbook is None else len(loader.logbook.stretches)
    before = _look(loader)
    try:
        ran = _run(loader, step, samples)
    finally:
        loader.load_state_dict(state)
    after = _look(loader)
    each = _time_step(step, ran.last)
    found = {
        "trainer": Resource(1 / each, "samples/s", each),
        **_from_counters(loader, before, after),
    }
    if loader.logbook is not None and loader.logbook.stretches:
        stretches = loader.logbook.stretches
        found |= _from_stretches(stretches[known:] or stretches)
    return Verdict(found, ran.seconds, ran.samples)


@dataclass(frozen=True)
class _Run:
    """Samples and seconds per sample of a run, and its last batch."""

    samples: int
    seconds: float
    last: Batch


@dataclass(frozen=True)
class _Counters:
    """All that only grows: the loader's; bytes and seconds of each link; what each store says of itself."""

    stats: Stats
    links: Sequence[tuple[int, float]]
    stores: Mapping[str, tuple[float, float, float]]
    """Samples answered, seconds of reading and of steps, by the store's name."""


def _run(loader: DataLoader, step: Step, samples: int) -> _Run:
    """The first batch, for which everything starts up, is not timed if there are more."""
    batches = _batches(loader, samples)
    begin = time.perf_counter()
    last = next(batches)
    step(last)
    first = served = len(last)
    begun = time.perf_counter()
    for last in batches:
        step(last)
        served += len(last)
    _synchronise(last)
    end = time.perf_counter()
    seconds = (end - begun) / (served - first) if served > first else (end - begin) / first
    return _Run(served, seconds, last)


def _batches(loader: DataLoader, samples: int) -> Iterator[Batch]:
    """Epoch after epoch until so many samples came; an epoch that ends with them ends as any other."""
    served = 0
    while served < samples:
        before = served
        for batch in loader:
            if served >= samples:
                return
            served += len(batch)
            yield batch
        if served == before:
            raise WrongUse("the loader gives no samples, so there is nothing to measure")


def _time_step(step: Step, batch: Batch) -> float:
    """Seconds per sample, of a batch that need not be loaded."""
    step(batch)
    _synchronise(batch)
    begin, calls = time.perf_counter(), 0
    while calls < _CALLS and time.perf_counter() - begin < _SECONDS:
        step(batch)
        calls += 1
    _synchronise(batch)
    return max(_LEAST, (time.perf_counter() - begin) / calls / max(1, len(batch)))


def _synchronise(batch: Batch) -> None:
    """Wait for what the step left running: on the batch's GPU, or on the current one if it moves batches."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize(batch.inputs.device if batch.inputs.is_cuda else None)


def _look(loader: DataLoader) -> _Counters:
    parts = _remote_parts(loader.dataset.store)
    stores: dict[str, tuple[float, float, float]] = {}
    for part in parts:
        for replica in part.replicas.all:
            try:
                stores[replica.name] = _read_metrics(status.ask(replica.connection)["metrics"])
            except (Refused, Unreachable, KeyError):
                continue  # its disk remains unknown
    return _Counters(loader.stats(), [part.traffic.read() for part in parts], stores)


def _read_metrics(metrics: Mapping[str, Mapping[str, float]]) -> tuple[float, float, float]:
    stages, outcomes = metrics[_STAGES], metrics[_ANSWERED]
    answered = sum(count for outcome, count in outcomes.items() if outcome != "failed")
    return answered, stages["read"], stages["steps"]


def _remote_parts(store: Store) -> list[RemoteStore]:
    parts = store.stores if isinstance(store, ShardedStore) else (store,)
    return [part for part in parts if isinstance(part, RemoteStore)]


def _from_counters(loader: DataLoader, before: _Counters, after: _Counters) -> dict[str, Resource]:
    """Trainer CPU, link, disk and store CPU, as far as they are there and known."""
    samples = max(1, after.stats.samples - before.stats.samples)
    cores = max(1, loader.num_workers)
    found = {"trainer CPU": Resource(cores, "cores", _worked(before, after, "steps") / samples / cores)}
    if not loader.dataset.store.remote:
        return found | _disk(loader, _worked(before, after, "read") / samples)
    links = [
        (busy - busy_before, size - size_before)
        for (size_before, busy_before), (size, busy) in zip(before.links, after.links, strict=True)
    ]
    busy, size = max(links)
    if busy > 0 and size:
        found["link"] = Resource(size / busy, "bytes/s", busy / samples)
    return found | _beyond_the_link(loader, before, after)


def _beyond_the_link(loader: DataLoader, before: _Counters, after: _Counters) -> dict[str, Resource]:
    """What stores say of their reading and steps, with that of other trainers in it.

    Steps are the seconds that requests spent there: more than their CPU if they waited for a worker.
    """
    names = before.stores.keys() & after.stores.keys()
    answered, read, steps = (
        sum(after.stores[name][place] - before.stores[name][place] for name in names) for place in range(3)
    )
    if answered <= 0:
        return {}
    found = _disk(loader, read / answered)
    parts = _remote_parts(loader.dataset.store)
    cores = sum(part.known.cores * len(part.replicas.all) for part in parts)
    if cores:
        found["store CPU"] = Resource(cores, "cores", steps / answered / cores)
    return found


def _worked(before: _Counters, after: _Counters, stage: str) -> float:
    return after.stats.work_seconds.get(stage, 0.0) - before.stats.work_seconds.get(stage, 0.0)


def _disk(loader: DataLoader, seconds: float) -> dict[str, Resource]:
    """The rate is what one reader sees; the time is that of all readers side by side."""
    readers = loader.dataset.store.readers if loader.num_workers else 1
    mean = float(loader.dataset.sizes.mean())
    rate = mean / seconds if seconds > 0 else math.inf
    return {"disk": Resource(rate, "bytes/s", seconds / readers, at_least=readers > 1)}


def _from_stretches(stretches: Sequence[Stretch]) -> dict[str, Resource]:
    """Trainer CPU, link and store CPU: amounts of what was planned, or else of all; rates as found last."""
    planned = [stretch for stretch in stretches if stretch.predicted is not None] or stretches
    rates = {stretch.site: stretch.rates for stretch in stretches}
    sums = dict.fromkeys(rates, Amounts())
    for stretch in planned:
        sums[stretch.site] += stretch.measured
    total = sum(each.samples for each in sums.values())
    if not total:
        return {}
    cores = stretches[-1].rates.trainer_cores
    seconds = sum(each.trainer_seconds for each in sums.values()) / cores
    stores = [(sums[site].store_seconds, its.store_cores) for site, its in rates.items()]
    found = {
        "trainer CPU": Resource(cores, "cores", seconds / total),
        "store CPU": _slowest_of(stores, "cores", total),
    }
    if all(its.link > 0 for its in rates.values()):
        links = [(sums[site].bytes, its.link) for site, its in rates.items()]
        found["link"] = _slowest_of(links, "bytes/s", total)
    return found


def _slowest_of(stores: Sequence[tuple[float, float]], unit: str, samples: int) -> Resource:
    """Of stores that work side by side; each is an amount and a rate."""
    amount, rate = max(stores, key=lambda store: store[0] / store[1])
    return Resource(rate, unit, amount / rate / samples)
