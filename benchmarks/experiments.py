"""Long experiments: runs that are kept one by one and never made twice, and what pairs of them tell."""

from __future__ import annotations

import json
import math
import os
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from measuring import commit

_T95 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
"""Student's t for 95 %, two-sided, with 1, 2, ... degrees of freedom."""


@dataclass(frozen=True)
class Key:
    """What a run is a run of."""

    data: str
    setting: str
    seed: int


@dataclass(frozen=True)
class Run:
    """A training run, epoch by epoch.

    `accuracy` is in percents of the test samples; `effective` is how many samples of equal weight the visited
    ones are worth; `stood_in` counts near-duplicates that were served for others.
    `seconds` are CPU seconds of the run up to the end of an epoch, without judging; `parts` says what they
    were spent on; `wall` is the time by the clock.
    """

    accuracy: list[float]
    steps: list[int]
    visited: list[int]
    effective: list[float]
    stood_in: list[int]
    seconds: list[float]
    parts: dict[str, float]
    wall: float

    @property
    def final(self) -> float:
        """Of the last epoch, which is the one that would be used."""
        return self.accuracy[-1]

    @property
    def cpu(self) -> float:
        return self.seconds[-1]

    def seconds_to(self, accuracy: float) -> float:
        """Until an epoch ended as good as that; infinite if none did."""
        pairs = zip(self.accuracy, self.seconds, strict=True)
        return next((spent for found, spent in pairs if found >= accuracy), math.inf)

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {seconds:.1f}" for name, seconds in self.parts.items())
        return f"{self.final:.2f} % after {sum(self.steps):,} steps; CPU s: {parts}"


def begin_with(**variables: str) -> None:
    """Start this program anew with these in its environment, which libraries read when they load."""
    if any(os.environ.get(name) != value for name, value in variables.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **variables})


class Costed(Protocol):
    """A dataclass of plain values, which says in a line what came of a run, and knows its CPU seconds."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def cpu(self) -> float: ...


R = TypeVar("R", bound=Costed)


class Results(Generic[R]):
    """Runs by key, in a file with a line of JSON for each; one that was cut off is no run.

    Each is kept with the commit that it was made with, which may be older than the one that prints it.
    """

    def __init__(self, path: Path, kind: type[R] = Run) -> None:  # type: ignore[assignment]
        self._path, self.made = path, 0
        self._runs: dict[Key, R] = {}
        self._commits: dict[Key, str] = {}
        self._commit = commit()  # now: the tree may change while a run goes on, the code that runs does not
        self._mend()
        for line in path.read_text().splitlines() if path.exists() else ():
            found = json.loads(line)
            key = Key(**found["key"])
            self._runs[key], self._commits[key] = kind(**found["run"]), found.get("commit", "")

    def _mend(self) -> None:
        content = self._path.read_bytes() if self._path.exists() else b""
        if content and not content.endswith(b"\n"):
            self._path.write_bytes(content[: content.rfind(b"\n") + 1])

    def __contains__(self, key: Key) -> bool:
        return key in self._runs

    def __getitem__(self, key: Key) -> R:
        return self._runs[key]

    def put(self, key: Key, run: R) -> None:
        with self._path.open("a") as file:
            line = {"key": asdict(key), "run": asdict(run), "commit": self._commit}
            file.write(json.dumps(line) + "\n")
        self._runs[key], self._commits[key], self.made = run, self._commit, self.made + 1

    @property
    def cpu(self) -> float:
        """Seconds of all runs, whenever they were made."""
        return sum(run.cpu for run in self._runs.values())

    @property
    def used(self) -> str:
        """What all of it took, how much of it is new, and by which commits it was made."""
        counts = Counter(name or "unknown" for name in self._commits.values()).most_common()
        made = (
            f"; runs by commit: {', '.join(f'{name} {count:,}' for name, count in counts)}" if counts else ""
        )
        return f"{len(self):,} runs of {self.cpu:,.0f} CPU s in all, {self.made:,} of them new{made}"

    def __len__(self) -> int:
        return len(self._runs)


@dataclass(frozen=True)
class Found:
    """The runs on one dataset with some seeds."""

    results: Results[Any]
    data: str
    seeds: Sequence[int]

    def make(self, settings: Iterable[str], train: Callable[[str, int], Any]) -> None:
        """Every setting with every seed, seed by seed: what is compared runs at about the same time."""
        for seed in self.seeds:
            for setting in settings:
                key = Key(self.data, setting, seed)
                if key not in self.results:
                    self.results.put(key, run := train(setting, seed))
                    print(f"{key.data}, seed {key.seed}, {key.setting}: {run}", file=sys.stderr, flush=True)

    def of(self, setting: str) -> list[Any]:
        """In the order of the seeds."""
        return [self.results[Key(self.data, setting, seed)] for seed in self.seeds]

    @property
    def used(self) -> str:
        """What all of it took, and how much of it is new."""
        return self.results.used


@dataclass(frozen=True)
class Difference:
    """The mean of pairwise differences, and half of its 95 % interval."""

    mean: float
    half: float

    @classmethod
    def of(cls, ours: Sequence[float], theirs: Sequence[float]) -> Difference:
        """Seed by seed; the half is infinite for a single pair."""
        apart = [one - other for one, other in zip(ours, theirs, strict=True)]
        if len(apart) < 2:
            return cls(statistics.fmean(apart), math.inf)
        freedom = len(apart) - 1
        times = _T95[freedom - 1] if freedom <= len(_T95) else 1.96 + 2.5 / freedom
        return cls(statistics.fmean(apart), times * statistics.stdev(apart) / math.sqrt(len(apart)))

    def __str__(self) -> str:
        return f"{self.mean:+.2f} ± {self.half:.2f}"

    @property
    def verdict(self) -> str:
        """In one word: whether the interval is on one side of 0."""
        return "ahead" if self.mean > self.half else "behind" if self.mean < -self.half else "equal"


def interpolate(times: Sequence[float], values: Sequence[float], at: float) -> float:
    """Between neighbours on a line, and at the ends the end itself; `times` ascend."""
    if at <= times[0] or at >= times[-1]:
        return values[0] if at <= times[0] else values[-1]
    place = next(place for place, time in enumerate(times) if time >= at)
    share = (at - times[place - 1]) / (times[place] - times[place - 1])
    return values[place - 1] + share * (values[place] - values[place - 1])


def middle(runs: Sequence[Run], of: Callable[[Run], float]) -> float:
    """The median of something over the runs of several seeds."""
    return statistics.median(of(run) for run in runs)


def finals(runs: Sequence[Run]) -> list[float]:
    return [run.final for run in runs]


def sooner(runs: Sequence[Run], full: Sequence[Run], *, lost: float) -> float:
    """How many times less CPU time than full runs it takes to be as good as these end, but for some points.

    Their time is that to the same accuracy, and all of it for one that is never so good; 0 if most of `runs`
    never are.
    """
    wanted = statistics.fmean(finals(full)) - lost
    theirs = middle(full, lambda run: min(run.seconds_to(wanted), run.cpu))
    return theirs / middle(runs, lambda run: run.seconds_to(wanted))
