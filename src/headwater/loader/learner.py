"""What samples took, made into what the coming ones will take: the profile, and the rates of every store."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headwater.data.codecs.excerpts import EXCERPTS
from headwater.engine.chain import Chain
from headwater.loader.gauge import Gauge
from headwater.loader.stretch import Found, Stretch, join
from headwater.measure.logbook import Logbook
from headwater.measure.profile import Predicted, Profile, Seen
from headwater.plan.offload import Load
from headwater.store.base import Site
from headwater.store.dataset import Dataset

Integers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Fleet:
    """The stores of a run: each a site, and what is believed of it."""

    sites: tuple[Site, ...]
    gauges: tuple[Gauge, ...]

    @property
    def possible(self) -> NDArray[np.bool_]:
        """Which ways each store has: a row per store."""
        return np.array([site.possible for site in self.sites], np.bool_)

    @property
    def known(self) -> dict[int, Gauge]:
        """By number of the store, where there is enough to plan with."""
        return {number: gauge for number, gauge in enumerate(self.gauges) if gauge.known}

    def remember(self, logbook: Logbook) -> None:
        """Begin with the rates that an earlier run found last."""
        last = {entry.site: entry.rates for entry in logbook.stretches}
        for site, gauge in zip(self.sites, self.gauges, strict=True):
            if site.name in last:
                gauge.remember(last[site.name])

    def nothing(self) -> list[Found]:
        """Nothing came from any store yet."""
        return [Found() for _ in self.sites]


class Learner:
    """One thread asks and takes; several report."""

    def __init__(self, dataset: Dataset, chain: Chain, *, fleet: Fleet, logbook: Logbook) -> None:
        self._dataset, self._chain, self._fleet, self._logbook = dataset, chain, fleet, logbook
        ways = logbook.key.ways
        self.profile = Profile(chain.pipeline, ways, samples=len(dataset.index), seed=chain.seed)
        self._reports: deque[tuple[Stretch, Seen]] = deque()
        self._new: dict[int, list[Seen]] = {}  # by epoch
        self._recent = fleet.nothing()
        self._excerpts = np.array([codec in EXCERPTS for _, codec in ways])
        self._whole = np.zeros(len(dataset.index), np.bool_)  # of which no excerpt can be made

    def remember(self, logbook: Logbook) -> None:
        """Begin with what an earlier run has learnt; raises `StateMismatch` if that was something else."""
        logbook.check(self._logbook.key)
        samples, pipeline = len(self._dataset.index), self._chain.pipeline
        self.profile = Profile.from_dict(logbook.profile, pipeline, samples=samples, seed=self._chain.seed)
        self._fleet.remember(logbook)

    def predict(
        self, positions: Integers, ids: Integers, *, owners: NDArray[np.intp], epoch: int
    ) -> Predicted:
        """What these samples would cost each way; infinite bytes for what they, or their stores, do not have.

        `owners` says which store has each.
        """
        sizes = self._dataset.store.sizes(positions)
        found = self.profile.predict(positions, ids, sizes, epoch=epoch)
        found.bytes[np.ix_(self._whole[positions], self._excerpts)] = np.inf
        found.bytes[~self._fleet.possible[owners]] = np.inf
        return found

    def report(self, stretch: Stretch, seen: Seen) -> None:
        """What some samples took. Called from the threads that made them."""
        self._reports.append((stretch, seen))

    def take(self) -> Iterator[Seen]:
        """What was reported since, counted for its stretch and for what came recently."""
        while self._reports:
            stretch, seen = self._reports.popleft()
            owners = self._dataset.store.site_of(seen.positions)
            for number, founds in enumerate(zip(self._recent, stretch.found, strict=True)):
                for found in founds:
                    found.add(seen, owners == number)
            if (crossed := seen.crossed).any():  # what a cache held tells nothing of ways
                part = seen if seen.held is None else seen.take(crossed)
                self._new.setdefault(seen.epoch, []).append(part)
            yield seen

    def forget_recent(self) -> list[Found]:
        """What came from each store since this was last asked."""
        recent, self._recent = self._recent, self._fleet.nothing()
        return recent

    def learn(self) -> None:
        """Take what came into profile and logbook: many samples at once, which costs much less."""
        for parts in self._new.values():
            seen = join(parts)
            found = self.profile.predict(seen.positions, seen.ids, seen.file_bytes, epoch=seen.epoch)
            self._learn_speeds(seen, found)
            self.profile.add(seen)
            files = self.profile.file_bytes(seen.positions, seen.file_bytes)
            self._logbook.count(seen, found.bytes[np.arange(len(seen.ids)), seen.ways], files=files)
            self._whole[seen.positions[~seen.able]] = True
        self._new.clear()

    def _learn_speeds(self, seen: Seen, found: Predicted) -> None:
        """A store whose CPU takes longer or shorter than that of the others."""
        owners, done = self._dataset.store.site_of(seen.positions), seen.done & (seen.ways > 0)
        for number, gauge in enumerate(self._fleet.gauges):
            (rows,) = np.nonzero(done & (owners == number))
            expected = float(found.store_seconds[rows, seen.ways[rows]].sum())
            gauge.learn_speed(expected, float(seen.store_seconds[rows].sum()))

    def loads(self, found: Sequence[Found], *, files: bool = False) -> dict[int, Load]:
        """What came from each store, or would have come as files, at the rates that are believed now."""
        total, loads, usual = sum(some.samples for some in found), {}, self._logbook.totals[0]
        for number, gauge in self._fleet.known.items():
            some = found[number]
            if some.samples:
                rates = gauge.rates(some.samples / total)
                loads[number] = some.load_of_files(rates, usual) if files else some.load(rates)
        return loads
