"""Who decides, while a run goes on, how far each sample goes at its store.

A run begins with samples that come as files, and between them some in every other way. They are samples of
the run like all others; what they take is the profile. Then stretches of the coming batches are planned, each
with the crops of its epoch and the rates as they were seen last; see `headwater.loader.phases`.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from headwater.engine.cache import SampleCache
from headwater.engine.chain import Chain
from headwater.engine.meter import Meter
from headwater.engine.run import Task
from headwater.errors import HeadwaterError
from headwater.loader.explorer import ENOUGH, Explorer
from headwater.loader.gauge import Gauge, Spell
from headwater.loader.learner import Fleet, Learner
from headwater.loader.offloading import Auto, ways_of
from headwater.loader.phases import CHECK, Phases
from headwater.loader.stretch import Found, Stretch
from headwater.measure.epochplan import EpochPlan
from headwater.measure.logbook import Logbook, logbook_path
from headwater.measure.profile import Predicted, Seen
from headwater.plan.offload import Offload, Options, plan_each
from headwater.store.dataset import Dataset

log = logging.getLogger("headwater")

T = TypeVar("T")

_LATE = 1.3  # times what the rates say that it should have taken
_DOUBTFUL = 0.8  # of what files would have taken
_QUICKER = 0.97
_LONGEST_CALM = 64
_OWN = 0.25  # share of the time waited for the trainer's own steps, above which it may be late by itself


@dataclass(frozen=True)
class _Clock:
    """Readings of all that only grows, taken at the end of a stretch."""

    now: float
    waited: dict[str, float]
    traffic: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class _Doubted:
    """What came in a time that was longer than it should have been."""

    found: Sequence[Found]
    seconds: float
    waited_for_steps: float


@dataclass
class _Trial:
    """Stores are taken to have fewer cores than `before`, to see whether a plan for those is quicker.

    `pace` is what it has to beat, in seconds a sample; `stretch` the first that was planned so.
    """

    before: list[float]
    pace: float
    stretch: Stretch | None = None


class Planner:
    """Gives every task its ways, and learns from what is seen. One thread asks; several report.

    It never ends a run: what goes wrong in planning is logged once, with its traceback, and files are sent
    from then on. `failure` says in a line what it was, and is empty until then.
    """

    def __init__(
        self,
        dataset: Dataset,
        chain: Chain,
        auto: Auto,
        *,
        meter: Meter,
        cores: int,
        world_size: int = 1,
        cache: SampleCache | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.ways = ways_of(chain.pipeline, auto)
        self.failure = ""
        self._auto, self._dataset, self._meter, self._clock = auto, dataset, meter, clock
        self._cache = cache
        sites = dataset.store.sites(chain, self.ways)
        self._fleet = Fleet(sites, tuple(Gauge(site.cores / world_size, cores) for site in sites))
        self.logbook = Logbook.begin(
            chain.pipeline,
            [(way.cut, way.codec) for way in self.ways],
            dataset=dataset.index.version,
            uri=dataset.uri,
            policy=auto.policy,
            seed=chain.seed,
        )
        self._learner = Learner(dataset, chain, fleet=self._fleet, logbook=self.logbook)
        self._phases = Phases()
        if auto.logbook is not None:
            self._remember(auto.logbook)
        elif not auto.fresh:
            self._survive(self._recall, None)
        self._explorer = Explorer(
            self.ways, [site.possible for site in sites], [gauge.store_cores for gauge in self._fleet.gauges]
        )
        self._tried = 0  # samples among which ways were tried
        self._plan: EpochPlan | None = None
        self._stretches: deque[Stretch] = deque()
        self._held: list[float] = []  # by batch, since the last stretch ended
        self._read = self._look()
        self._doubted = _Doubted((), 0.0, 0.0)
        self._trial: _Trial | None = None
        self._calm = self._calms = 0  # late stretches that are put down to nobody

    def assign(self, tasks: Iterable[Task]) -> Iterator[Task]:
        """The tasks of one epoch, each with its ways. Planned when asked for, so as late as can be."""
        self._attempt(self._begin, None)
        source = iter(tasks)
        while first := next(source, None):
            phase, samples = self._attempt(self._next_phase, ("", 1))
            more = islice(source, max(0, -(-samples // max(len(first.ids), 1)) - 1))
            together = [first, *more]
            yield from self._attempt(partial(self._plan_stretch, together, phase), together)

    def see(self, task: Task, seen: Seen) -> None:
        """What some samples took. Called from the threads that made them."""
        if not self.failure:
            self._learner.report(task.plan, seen)

    def delivered(self, held: float) -> None:
        """The next task's batch was taken, and kept for `held` seconds."""
        self._attempt(partial(self._deliver, held), None)

    def keep(self) -> None:
        """Write logbook and plan into the cache, for the next run and for `headwater explain`."""
        self._survive(self._keep, None)

    def _attempt(self, work: Callable[[], T], otherwise: T) -> T:
        """The same unless planning has failed already."""
        return otherwise if self.failure else self._survive(work, otherwise)

    def _survive(self, work: Callable[[], T], otherwise: T) -> T:
        """What the work gives, or this if it fails: training is worth more than a plan."""
        try:
            return work()
        except Exception as error:
            if not self.failure:
                self.failure = self.logbook.failure = f"{type(error).__name__}: {error}"
                log.error("planning failed, files are sent from now on: %s", self.failure, exc_info=True)
            return otherwise

    def _keep(self) -> None:
        self.logbook.profile = self._learner.profile.to_dict()
        self.logbook.keep()
        if self._plan is not None:
            self._plan.keep()

    def _recall(self) -> None:
        """Begin with what an earlier run has left in the cache, if that can be used."""
        path = logbook_path(self.logbook.key)
        try:
            if path.exists():
                self._remember(Logbook.load(path))
        except HeadwaterError as error:
            log.warning("%s: %s", path, error)

    def _remember(self, logbook: Logbook) -> None:
        self._learner.remember(logbook)
        self._phases.measure_first()

    def _begin(self) -> None:
        """What was under way in a loop that was left early will not come any more."""
        self._stretches.clear()
        if self._trial is not None:
            self._trial.stretch = None
        self._explorer.forget_unanswered()
        self._phases.begin()
        self._learner.forget_recent()
        self._held, self._read, self._plan = [], self._look(), None

    def _next_phase(self) -> tuple[str, int]:
        return self._phases.next(self._is_ready) if self._fleet.sites else ("link", CHECK)

    def _is_ready(self) -> bool:
        """Whether there is something to plan with: all ways, or after a while some; and a link's rate."""
        known = self._learner.profile.counts()
        some = self._tried >= CHECK and bool((known[1:] >= ENOUGH).any())
        return (some or self._explorer.done(known)) and bool(self._fleet.known)

    def _plan_stretch(self, tasks: Sequence[Task], phase: str) -> list[Task]:
        positions = np.concatenate([task.positions for task in tasks])
        ids = np.concatenate([task.ids for task in tasks])
        owners = self._dataset.store.site_of(positions)
        ways, nothing = np.zeros(len(ids), np.uint8), self._fleet.nothing()
        stretch = Stretch(tasks[0].epoch, phase, owners, ways, len(tasks), nothing, len(self.ways))
        if phase == "plan":
            self._make_plans(stretch, positions, ids)
            if self._trial is not None and self._trial.stretch is None:
                self._trial.stretch = stretch
        tried = np.zeros_like(ways)
        if phase == "explore" or stretch.is_relievable:
            free = np.where(self._settled(positions), np.intp(-1), owners)
            tried = self._explorer.take(free, self._learner.profile.counts())
            ways[:] = np.where(tried, tried, ways)
            self._tried += len(ids)
        self._note_plans(stretch, positions, tried == 0)
        self._stretches.append(stretch)
        ends = np.cumsum([len(task.ids) for task in tasks])[:-1]
        parts = zip(tasks, np.split(ways, ends), strict=True)
        return [replace(task, ways=part, plan=stretch) for task, part in parts]

    def _make_plans(self, stretch: Stretch, positions: NDArray[np.int64], ids: NDArray[np.int64]) -> None:
        """One plan for each store; files from one whose link is not known yet."""
        found = self._learner.predict(positions, ids, owners=stretch.owners, epoch=stretch.epoch)
        if self._cache is not None:
            _mind(self._cache, found, positions, self.ways)
        options = Options(self.ways, found.bytes, found.store_seconds, found.trainer_seconds)
        rates = {
            number: replace(gauge.rates(), store_seconds_per_visit=self._auto.store_seconds)
            for number, gauge in self._fleet.known.items()
        }
        stretch.plans = plan_each(self._auto.policy, options, owners=stretch.owners, rates=rates)
        for number, plan in stretch.plans.items():
            stretch.ways[stretch.owners == number] = plan.choice

    def _settled(self, positions: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which samples will not come, or come as files, because a cache holds them or wants to."""
        if self._cache is None:
            return np.zeros(len(positions), np.bool_)
        return self._cache.contains(positions) | self._cache.wants(positions)

    def _note_plans(
        self, stretch: Stretch, positions: NDArray[np.int64], followed: NDArray[np.bool_]
    ) -> None:
        if self._plan is None:
            key, seed, samples = self.logbook.key, self.logbook.seed, len(self._dataset.index)
            self._plan = EpochPlan(key, seed=seed, epoch=stretch.epoch, samples=samples)
        for number in stretch.plans:
            rows = followed & (stretch.owners == number)
            part = stretch.planned(number, self._fleet.sites[number].name)
            self._plan.add(part, positions[rows], stretch.ways[rows])

    def _look(self) -> _Clock:
        waited = dict(self._meter.stats().wait_seconds)
        return _Clock(self._clock(), waited, tuple(site.traffic() for site in self._fleet.sites))

    def _deliver(self, held: float) -> None:
        self._held.append(held)
        for seen in self._learner.take():
            self._explorer.came(seen)
        if not self._stretches:  # of another loop over the same loader
            return
        stretch = self._stretches[0]
        stretch.left -= 1
        if not stretch.left:
            self._close(self._stretches.popleft())

    def _close(self, stretch: Stretch) -> None:
        """A stretch was handed over whole: learn from the time since the last one.

        Its own samples may have come long before: what is judged is all that came in that time.
        """
        last, self._read = self._read, self._look()
        recent = self._learner.forget_recent()
        self._learner.learn()
        # a pause of the training loop, such as a validation, is not its usual pace
        held, self._held = self._held, []
        usual = float(np.median(held)) * len(held)
        seconds = self._read.now - last.now - max(0.0, sum(held) - usual)
        loads = self._learner.loads(recent)
        late = bool(loads) and seconds > _LATE * max(load.seconds for load in loads.values())
        for number, found in enumerate(recent):
            spell = self._spell(number, last, found, samples=len(stretch.ways), seconds=seconds, held=usual)
            slow = late and number in loads and loads[number].bottleneck == "store CPU"
            self._fleet.gauges[number].learn(spell, late=late, slow=slow)
            self._note(stretch, number, spell, last)
        if self._trial is not None and self._trial.stretch is stretch:
            self._end_trial(self._trial, seconds / len(stretch.ways))
        if stretch.phase in ("link", "explore"):
            self._phases.judge_trainer(len(stretch.ways), seconds, max(0.0, seconds - usual))
        elif stretch.phase == "guard" and self._phases.in_doubt:
            self._settle(self._doubted)
        elif late and not self._phases.in_doubt and any(found.asked for found in recent):
            self._doubt(_Doubted(recent, seconds, self._waited_for_steps(last)))

    def _doubt(self, doubted: _Doubted) -> None:
        """Look at the link, unless that has taught nothing lately and files would have taken much longer."""
        if self._calm and doubted.seconds <= _DOUBTFUL * self._as_files(doubted.found):
            self._calm -= 1
            return
        self._doubted = doubted
        self._phases.doubt()

    def _settle(self, doubted: _Doubted) -> None:
        """The link was measured anew: whose fault it was, and whether files would have been quicker.

        What neither the link nor the trainer's own CPU explains may be that stores have fewer cores than they
        say, as where both ends share a machine.
        """
        loads, seconds = self._learner.loads(doubted.found), doubted.seconds
        late = bool(loads) and seconds > _LATE * max(load.seconds for load in loads.values())
        if late and not self._calm and doubted.waited_for_steps < _OWN * seconds:
            gauges = self._fleet.gauges
            samples = sum(found.samples for found in doubted.found)
            self._trial = _Trial([gauge.believed for gauge in gauges], seconds / samples)
            for gauge, found in zip(gauges, doubted.found, strict=True):
                if found.asked:
                    gauge.retreat(found.store_seconds / seconds)
        self._phases.judge_plans(seconds, files=self._as_files(doubted.found))

    def _end_trial(self, trial: _Trial, pace: float) -> None:
        """Fewer cores stay believed only if that was quicker."""
        self._trial = None
        if pace < _QUICKER * trial.pace:
            self._calms = 0
            return
        self._calm = self._calms = min(max(1, 2 * self._calms), _LONGEST_CALM)
        for gauge, cores in zip(self._fleet.gauges, trial.before, strict=True):
            gauge.believe(cores)

    def _waited_for_steps(self, last: _Clock) -> float:
        return self._read.waited.get("steps", 0.0) - last.waited.get("steps", 0.0)

    def _as_files(self, found: Sequence[Found]) -> float:
        """Seconds that the same samples would have taken as files."""
        return max(load.seconds for load in self._learner.loads(found, files=True).values())

    def _spell(
        self, number: int, last: _Clock, found: Found, *, samples: int, seconds: float, held: float
    ) -> Spell:
        (before, busy_before), (after, busy_after) = last.traffic[number], self._read.traffic[number]
        return Spell(
            samples=samples,
            seconds=seconds,
            waited=max(0.0, seconds - held),
            held=held,
            bytes=after - before,
            busy=busy_after - busy_before,
            store_seconds=found.store_seconds,
            asked=found.asked,
            pushed_back=found.pushed_back,
        )

    def _note(self, stretch: Stretch, number: int, spell: Spell, last: _Clock) -> None:
        """In the logbook, unless the stretch had no sample of this store."""
        if not (stretch.owners == number).any():
            return
        waited = {name: total - last.waited.get(name, 0.0) for name, total in self._read.waited.items()}
        site, rates = self._fleet.sites[number].name, self._fleet.gauges[number].found
        self.logbook.add(stretch.entry(number, site, spell=spell, rates=rates, waited=waited))


def _mind(
    cache: SampleCache, found: Predicted, positions: NDArray[np.int64], ways: Sequence[Offload]
) -> None:
    """What the cache holds costs the link nothing; what it wants to hold comes in a form that it can."""
    held, wanted = cache.contains(positions), cache.wants(positions)
    passing = np.array([way.cut > cache.steady for way in ways], np.bool_)
    found.bytes[np.ix_(wanted & ~held, passing)] = np.inf
    found.bytes[held, 1:] = np.inf
    found.bytes[held, 0] = 0.0
