"""Trainers as processes beyond a link: what their epochs bring, move over the link, and cost at both ends."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]

from headwater.cli.cpu import cpu_seconds
from local_photos import shards
from measuring import Options
from netns import Ends, Side
from serving import Child

MACHINE_CORES = len(os.sched_getaffinity(0))


def write_tars(folder: Path, options: Options, *, copies: int = 1) -> Path:
    """All photos as tars, so many times under other names; the folder of them."""
    target = folder / "photos"
    target.mkdir()
    for name, content in shards(options):
        for copy in range(copies):
            (target / f"{name}-{copy}.tar").write_bytes(content)
    return target


@dataclass(frozen=True)
class Cost:
    """Seconds of the clock, bytes that reached the trainer, CPU seconds of both ends and of the machine."""

    seconds: float
    bytes: float
    store_cpu: float
    trainer_cpu: float
    machine_cpu: float

    @classmethod
    def read(cls, ends: Ends) -> Cost:
        """As the kernel has counted until now."""
        cpu = cpu_seconds(ends.store.pids()), cpu_seconds(ends.trainer.pids()), cpu_of_all()
        return cls(time.perf_counter(), received(ends.trainer), *cpu)

    def since(self, earlier: Cost, *, seconds: float) -> Cost:
        """`seconds` are those of the work itself: reading the counters takes some too."""
        return Cost(
            seconds,
            self.bytes - earlier.bytes,
            self.store_cpu - earlier.store_cpu,
            self.trainer_cpu - earlier.trainer_cpu,
            self.machine_cpu - earlier.machine_cpu,
        )

    def link_share(self, rate_mbit: float) -> float:
        """Of what the link could have carried; headers of segments that the kernel joins count once."""
        return self.bytes * 8 / 1e6 / self.seconds / rate_mbit

    @property
    def cores(self) -> float:
        """In use at both ends together."""
        return (self.store_cpu + self.trainer_cpu) / self.seconds

    @property
    def other_cores(self) -> float:
        """In use by the kernel's network and by whoever else runs on the machine."""
        return self.machine_cpu / self.seconds - self.cores


def mean(costs: Sequence[Cost]) -> Cost:
    columns = zip(*(vars(cost).values() for cost in costs), strict=True)
    return Cost(*(statistics.fmean(column) for column in columns))


def received(side: Side) -> int:
    """Bytes that have come to its end of the link."""
    words = ["ip", "-netns", side.name, "-json", "-statistics", "link", "show", "dev", side.device]
    found = json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)
    return int(found[0]["stats64"]["rx"]["bytes"])


def cpu_of_all() -> float:
    """CPU seconds that the machine has been busy for."""
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system + times.irq + times.softirq)


@dataclass(frozen=True)
class Epoch:
    """One epoch: what it cost, samples by outcome at the store, and digests by id."""

    images: int
    cost: Cost
    counts: Mapping[str, float] = field(default_factory=dict)
    digests: Mapping[str, str] = field(default_factory=dict)

    @property
    def offloaded(self) -> float:
        """Share of the samples that were cut at the store."""
        return self.counts["cut"] / self.images


@dataclass
class Metered:
    """A contender's rate in images per second, and beside it what each of its epochs cost."""

    ends: Ends
    images: int
    rate: Callable[[], float]
    costs: list[Cost] = field(default_factory=list)

    def measure(self) -> float:
        before, rate = Cost.read(self.ends), self.rate()
        self.costs.append(Cost.read(self.ends).since(before, seconds=self.images / rate))
        return rate


class Trainer(Child):
    """processes/trainer.py at the trainer's end, with a cache of its own; `settings` are its `Settings`."""

    def __init__(self, url: str, settings: Mapping[str, Any], *, ends: Ends, folder: Path) -> None:
        cache = {"HEADWATER_CACHE": tempfile.mkdtemp(prefix="cache-", dir=folder)}
        words = (url, json.dumps(dict(settings)))
        super().__init__("trainer.py", *words, within=ends.trainer.words, settings=cache)
        self._ends = ends

    def epoch(self) -> Epoch:
        """The next epoch; nothing else may use the link meanwhile."""
        counted, before = self.ask("counts"), Cost.read(self._ends)
        found = self.ask("epoch")
        cost = Cost.read(self._ends).since(before, seconds=found["seconds"])
        counts = {name: count - counted[name] for name, count in self.ask("counts").items()}
        return Epoch(found["images"], cost, counts, found["digests"])

    def rate(self) -> float:
        """Images per second of the next epoch."""
        found = self.ask("epoch")
        return float(found["images"] / found["seconds"])

    def stretches(self) -> list[dict[str, Any]]:
        """What its planner has noted."""
        found: list[dict[str, Any]] = self.ask("stretches")
        return found
