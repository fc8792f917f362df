"""Who decides, while a run goes on, how far each sample goes at its store.

A run begins with samples that come as files, and between them some in every other way. They are samples of
the run like all others; what they take is the profile. Then stretches of the coming batches are planned,
short ones first, each with the crops of its epoch and the rates as they were seen last. A stretch that took
longer than its plan said, and perhaps than files, is followed by a short one of files, which measures the
link anew and tells whether files are quicker: then files are sent for a while.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from headwater.data.codecs.excerpts import EXCERPTS, known_codecs
from headwater.data.pipeline import Pipeline
from headwater.engine.chain import Chain
from headwater.engine.meter import Meter
from headwater.engine.run import Task
from headwater.errors import HeadwaterError
from headwater.loader.explorer import ENOUGH, Explorer
from headwater.loader.gauge import Gauge, Spell
from headwater.loader.offloading import Auto
from headwater.loader.stretch import Found, Stretch, join
from headwater.measure.logbook import Amounts, Logbook, SiteRates, logbook_path
from headwater.measure.logbook import Stretch as Entry
from headwater.measure.profile import Predicted, Profile, Seen
from headwater.plan.offload import Load, Offload, OffloadPlan, Options, Rates, make_plan
from headwater.plan.offload.ways import list_ways
from headwater.store.base import Site
from headwater.store.dataset import Dataset

log = logging.getLogger("headwater")

_FIRST_STRETCH, _LONGEST_STRETCH = 512, 16_384
_CHECK = 256  # samples after which it is judged who is waited for
_GUARD = 128  # samples that come as files to see whether that is quicker
_LATE = 1.3  # times what the rates say that it should have taken
_DOUBTFUL = 0.8  # of what files would have taken
_SLOWER = 1.05
_LONGEST_REST = 64
_REFRESH = 8  # plans after which some files are sent, to see whether the link is what it was
_IDLE = 0.03  # share of time waiting below which nothing but the trainer itself is waited for
_REASONS = {
    "link": "the trainer itself is the slowest, so no way is worth a try",
    "explore": "ways are tried",
    "guard": "files are sent for a while, to measure the link or because a plan took longer than it said",
}
_EXPLORED = 64  # samples of a stretch in which ways are tried


@dataclass(frozen=True)
class _Clock:
    """Readings of all that only grows, taken at the end of a stretch."""

    now: float
    waited: dict[str, float]
    traffic: tuple[tuple[int, float], ...]


class Planner:
    """Gives every task its ways, and learns from what is seen. One thread asks; several report."""

    def __init__(
        self,
        dataset: Dataset,
        chain: Chain,
        auto: Auto,
        *,
        meter: Meter,
        cores: int,
        world_size: int = 1,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._auto = auto
        self._dataset, self._chain, self._meter, self._clock = dataset, chain, meter, clock
        self.ways = ways_of(chain.pipeline, auto)
        self.sites: tuple[Site, ...] = dataset.store.sites(chain, self.ways)
        self._gauges = [Gauge(site.cores / world_size, cores) for site in self.sites]
        pairs = [(way.cut, way.codec) for way in self.ways]
        self.logbook = Logbook.begin(
            chain.pipeline,
            pairs,
            dataset=dataset.index.version,
            uri=dataset.uri,
            policy=auto.policy,
            seed=chain.seed,
        )
        self.profile = Profile(chain.pipeline, pairs, samples=len(dataset.index), seed=chain.seed)
        self._since = 0  # plans since files were last sent on purpose
        if auto.logbook is not None:
            self._remember(auto.logbook)
        elif not auto.fresh:
            self._recall()
        self._explorer = Explorer(
            self.ways, [site.possible for site in self.sites], [gauge.store_cores for gauge in self._gauges]
        )
        self._reports: deque[tuple[Stretch, Seen]] = deque()
        self._new: dict[int, list[Seen]] = {}  # by epoch
        self._excerpts = np.array([way.codec in EXCERPTS for way in self.ways])
        self._whole = np.zeros(len(dataset.index), np.bool_)  # of which no excerpt can be made
        self._found = self._nothing()
        self._stretches: deque[Stretch] = deque()
        self._held: list[float] = []  # by batch, since the last stretch ended
        self._read = self._look()
        self._length = _FIRST_STRETCH
        self._tried = 0  # samples among which ways were tried
        self._rest = self._rests = 0
        self._check = ""  # "due", "under way", or nothing
        self._doubted: tuple[Sequence[Found], float] = ((), 0.0)  # what came in which time
        self._idle = False
        self._span = np.zeros(3)  # samples, seconds and waiting since it was last judged who is waited for

    def assign(self, tasks: Iterable[Task]) -> Iterator[Task]:
        """The tasks of one epoch, each with its ways. Planned when asked for, so as late as can be.

        What was under way in a loop that was left early will not come any more.
        """
        self._stretches.clear()
        self._explorer.forget_unanswered()
        self._check = "due" if self._check else ""
        self._found, self._held, self._read = self._nothing(), [], self._look()
        source = iter(tasks)
        while first := next(source, None):
            phase, samples = self._next_phase()
            more = islice(source, max(0, -(-samples // max(len(first.ids), 1)) - 1))
            yield from self._plan_stretch([first, *more], phase)

    def see(self, task: Task, seen: Seen) -> None:
        """What some samples took. Called from the threads that made them."""
        self._reports.append((task.plan, seen))

    def delivered(self, held: float) -> None:
        """The next task's batch was taken, and kept for `held` seconds."""
        self._held.append(held)
        self._take_reports()
        if not self._stretches:  # of another loop over the same loader
            return
        stretch = self._stretches[0]
        stretch.left -= 1
        if not stretch.left:
            self._close(self._stretches.popleft())

    def keep(self) -> None:
        """Write the logbook into the cache, for the next run and for `headwater explain`."""
        self.logbook.profile = self.profile.to_dict()
        self.logbook.keep()

    def _recall(self) -> None:
        """Begin with what an earlier run has left in the cache, if that can be used."""
        path = logbook_path(self.logbook.key)
        try:
            if path.exists():
                self._remember(Logbook.load(path))
        except HeadwaterError as error:
            log.warning("%s: %s", path, error)

    def _remember(self, logbook: Logbook) -> None:
        logbook.check(self.logbook.key)
        self._since = _REFRESH  # the link may be another one by now
        self.profile = Profile.from_dict(
            logbook.profile, self._chain.pipeline, samples=len(self._dataset.index), seed=self._chain.seed
        )
        last = {entry.site: entry.rates for entry in logbook.stretches}
        for site, gauge in zip(self.sites, self._gauges, strict=True):
            if site.name in last:
                gauge.remember(last[site.name])

    def _next_phase(self) -> tuple[str, int]:
        """What the coming stretch is for, and how many samples it should have."""
        if self._idle or not self.sites:
            return "link", _CHECK
        if self._rest:
            self._rest -= 1
            return "guard", _GUARD
        if self._check == "due":
            self._check = "under way"
            return "guard", _GUARD
        if not self._is_ready():
            return "explore", _EXPLORED
        if self._since >= _REFRESH:
            self._since = 0
            return "guard", _GUARD
        self._since += 1
        length, self._length = self._length, min(2 * self._length, _LONGEST_STRETCH)
        return "plan", length

    def _is_ready(self) -> bool:
        """Whether there is something to plan with: all ways, or after a while some; and a link's rate."""
        known = self.profile.counts()
        some = self._tried >= _CHECK and bool((known[1:] >= ENOUGH).any())
        return (some or self._explorer.done(known)) and any(gauge.known for gauge in self._gauges)

    def _plan_stretch(self, tasks: Sequence[Task], phase: str) -> Iterator[Task]:
        positions = np.concatenate([task.positions for task in tasks])
        ids = np.concatenate([task.ids for task in tasks])
        owners = self._dataset.store.site_of(positions)
        ways = np.zeros(len(ids), np.uint8)
        stretch = Stretch(tasks[0].epoch, phase, owners, ways, len(tasks), self._nothing())
        if phase == "plan":
            self._make_plans(stretch, positions, ids)
        if phase == "explore" or stretch.is_relievable:
            tried = self._explorer.take(owners, self.profile.counts())
            stretch.ways[:] = np.where(tried, tried, stretch.ways)
            self._tried += len(ids)
        self._stretches.append(stretch)
        begin = 0
        for task in tasks:
            end = begin + len(task.ids)
            yield replace(task, ways=stretch.ways[begin:end], plan=stretch)
            begin = end

    def _make_plans(self, stretch: Stretch, positions: NDArray[np.int64], ids: NDArray[np.int64]) -> None:
        """One plan for each store; files from one whose link is not known yet."""
        sizes = self._dataset.store.sizes(positions)
        found = self.profile.predict(positions, ids, sizes, epoch=stretch.epoch)
        found.bytes[np.ix_(self._whole[positions], self._excerpts)] = np.inf
        for number, (site, gauge) in enumerate(zip(self.sites, self._gauges, strict=True)):
            (rows,) = np.nonzero(stretch.owners == number)
            if not len(rows) or not gauge.known:
                continue
            options = Options(
                self.ways,
                np.where(site.possible, found.bytes[rows], np.float32(np.inf)),
                found.store_seconds[rows],
                found.trainer_seconds[rows],
            )
            rates = replace(
                gauge.rates(len(rows) / len(ids)), store_seconds_per_visit=self._auto.store_seconds
            )
            plan = make_plan(self._auto.policy, options, rates=rates)
            stretch.ways[rows] = plan.choice
            stretch.plans[number] = plan

    def _take_reports(self) -> None:
        while self._reports:
            stretch, seen = self._reports.popleft()
            owners = self._dataset.store.site_of(seen.positions)
            for number, founds in enumerate(zip(self._found, stretch.found, strict=True)):
                for found in founds:
                    found.add(seen, owners == number)
            self._explorer.came(seen)
            self._new.setdefault(seen.epoch, []).append(seen)

    def _learn(self) -> None:
        """Take what came into profile and logbook: many samples at once, which costs much less."""
        for parts in self._new.values():
            seen = join(parts)
            found = self.profile.predict(seen.positions, seen.ids, seen.file_bytes, epoch=seen.epoch)
            self.logbook.count(seen, found.bytes[np.arange(len(seen.ids)), seen.ways])
            self._learn_speeds(seen, found)
            self.profile.add(seen)
            self._whole[seen.positions[~seen.able]] = True
        self._new.clear()

    def _learn_speeds(self, seen: Seen, found: Predicted) -> None:
        """A store whose CPU takes longer or shorter than that of the others."""
        owners, done = self._dataset.store.site_of(seen.positions), seen.done & (seen.ways > 0)
        for number, gauge in enumerate(self._gauges):
            (rows,) = np.nonzero(done & (owners == number))
            expected = float(found.store_seconds[rows, seen.ways[rows]].sum())
            gauge.learn_speed(expected, float(seen.store_seconds[rows].sum()))

    def _look(self) -> _Clock:
        waited = dict(self._meter.stats().wait_seconds)
        return _Clock(self._clock(), waited, tuple(site.traffic() for site in self.sites))

    def _close(self, stretch: Stretch) -> None:
        """A stretch was handed over whole: learn from the time since the last one.

        Its own samples may have come long before: what is judged is all that came in that time.
        """
        last, self._read = self._read, self._look()
        recent, self._found = self._found, self._nothing()
        self._learn()
        # a pause of the training loop, such as a validation, is not its usual pace
        held, self._held = self._held, []
        usual = float(np.median(held)) * len(held)
        seconds = self._read.now - last.now - max(0.0, sum(held) - usual)
        waited = {name: total - last.waited.get(name, 0.0) for name, total in self._read.waited.items()}
        loads = self._loads(recent)
        late = bool(loads) and seconds > _LATE * max(load.seconds for load in loads.values())
        for number, (gauge, found) in enumerate(zip(self._gauges, recent, strict=True)):
            (before, busy_before), (after, busy_after) = last.traffic[number], self._read.traffic[number]
            spell = Spell(
                samples=len(stretch.ways),
                seconds=seconds,
                waited=max(0.0, seconds - usual),
                held=usual,
                bytes=after - before,
                busy=busy_after - busy_before,
                store_seconds=found.store_seconds,
                asked=found.asked,
                pushed_back=found.pushed_back,
            )
            slow = late and number in loads and loads[number].bottleneck == "store CPU"
            gauge.learn(spell, late=slow)
            self._note(stretch, number, spell, waited)
        if stretch.phase in ("link", "explore"):
            self._judge_trainer(len(stretch.ways), seconds, max(0.0, seconds - usual))
        elif stretch.phase == "guard" and self._check:
            self._judge_plans()
        elif late and not self._check and any(found.asked for found in recent):
            self._doubt(recent, seconds)

    def _loads(self, found: Sequence[Found], *, files: bool = False) -> dict[int, Load]:
        """What came from each store, or would have come as files, at the rates that are believed now."""
        total, loads = sum(some.samples for some in found), {}
        for number, (some, gauge) in enumerate(zip(found, self._gauges, strict=True)):
            if some.samples and gauge.known:
                rates = gauge.rates(some.samples / total)
                loads[number] = (
                    some.load_of_files(rates, self.logbook.totals[0]) if files else some.load(rates)
                )
        return loads

    def _doubt(self, found: Sequence[Found], seconds: float) -> None:
        """Plans took longer than they should: unless files would have taken much longer, look at the link."""
        files = max(load.seconds for load in self._loads(found, files=True).values())
        if seconds > _DOUBTFUL * files:
            self._doubted, self._check, self._length = (found, seconds), "due", _FIRST_STRETCH

    def _judge_plans(self) -> None:
        """The link was measured anew: whether files would have been quicker than the plans that were late."""
        self._check = ""
        found, seconds = self._doubted
        files = max(load.seconds for load in self._loads(found, files=True).values())
        self._rests = min(max(1, 2 * self._rests), _LONGEST_REST) if files * _SLOWER < seconds else 0
        self._rest = self._rests

    def _judge_trainer(self, samples: int, seconds: float, waited: float) -> None:
        """Whether the trainer is what the run waits for, so that no way is worth a try."""
        self._span += (samples, seconds, waited)
        if self._span[0] >= _CHECK:
            self._idle = bool(self._span[2] < _IDLE * self._span[1])
            self._span[:] = 0

    def _nothing(self) -> list[Found]:
        return [Found() for _ in self.sites]

    def _note(self, stretch: Stretch, number: int, spell: Spell, waited: dict[str, float]) -> None:
        plan, gauge, found = stretch.plans.get(number), self._gauges[number], stretch.found[number]
        rows = stretch.owners == number
        self.logbook.add(
            Entry(
                epoch=stretch.epoch,
                site=self.sites[number].name,
                phase=stretch.phase,
                measured=Amounts(
                    found.samples, found.bytes, found.store_seconds, found.trainer_seconds, spell.seconds
                ),
                rates=SiteRates(
                    gauge.link, gauge.store_cores, gauge.trainer_cores, gauge.trainer, gauge.store_speed
                ),
                ways=np.bincount(stretch.ways[rows], minlength=len(self.ways)).tolist(),
                assumed=None if plan is None else _rates(plan.before.rates),
                predicted=None if plan is None else _amounts(plan, after=True),
                none=None if plan is None else _amounts(plan, after=False),
                waited=waited,
                held=spell.held,
                pushed_back=found.pushed_back,
                reason=_REASONS[stretch.phase] if plan is None else plan.reason,
            )
        )


def ways_of(pipeline: Pipeline, auto: Auto) -> tuple[Offload, ...]:
    """What a policy chooses from: published ones know no codecs; for ours, decoder and crop are one step."""
    wished = (
        known_codecs() if auto.codecs is None else [name for name in known_codecs() if name in auto.codecs]
    )
    ways = list_ways(pipeline, wished)
    if auto.policy != "hull":
        return tuple(way for way in ways if way.codec == "none")
    fused = len(pipeline) > 1 and pipeline.steps[1].crops and Offload(2) in ways
    return tuple(way for way in ways if not (fused and way.cut == 1))


def _rates(rates: Rates) -> SiteRates:
    return SiteRates(rates.link, rates.store_cores, rates.trainer_cores, rates.trainer, rates.store_speed)


def _amounts(plan: OffloadPlan, *, after: bool) -> Amounts:
    load = plan.after if after else plan.before
    return Amounts(len(plan), load.bytes, load.store_seconds, load.trainer_seconds, load.seconds)
