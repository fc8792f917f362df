"""What samples would cost, by the logbook of an earlier run: for verbs that plan without running."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from headwater.data.pipeline import Pipeline
from headwater.data.steps import catalogue
from headwater.engine.chain import Chain
from headwater.errors import WrongUse
from headwater.measure.key import Key
from headwater.measure.logbook import Logbook, SiteRates, newest
from headwater.measure.profile import Profile
from headwater.plan.offload import Offload, Options
from headwater.report.balance import Balance, balances
from headwater.store import Dataset
from headwater.store.base import Site
from headwater.store.client.address import Address, is_store

Positions = NDArray[np.int64]
Opener = Callable[[str | list[str]], Dataset]
"""Opens addresses with the token and certificates of the command line."""


@dataclass(frozen=True, eq=False)
class Forecast:
    """A dataset, what a run over it has learnt, and the stores that serve it: none where it is local."""

    logbook: Logbook
    dataset: Dataset
    profile: Profile
    sites: tuple[Site, ...] = ()

    @classmethod
    def of(cls, logbook: Logbook, dataset: Dataset) -> Forecast:
        """Raises `StateMismatch` for a logbook of other data or library versions."""
        pipeline, whole = _rebuild(logbook)
        key = logbook.key
        logbook.check(
            Key(dataset.index.version, pipeline.hash if whole else key.pipeline, key.policy, key.ways)
        )
        if not logbook.profile:
            raise WrongUse(f"the logbook holds no measurements; run `headwater profile {dataset.uri}` again")
        samples, seed = len(dataset.index), logbook.seed
        profile = Profile.from_dict(logbook.profile, pipeline, samples=samples, seed=seed)
        return cls(logbook, dataset, profile, dataset.store.sites(Chain(pipeline, seed), _ways(logbook)))

    @classmethod
    def find(cls, where: Sequence[str], open_: Opener, pipeline: Pipeline | None = None) -> Forecast:
        """`where` is a logbook's file, or data of which a logbook is kept; then `pipeline` tells which."""
        if is_logbook(where[0]):
            logbook = Logbook.load(where[0])
            return cls.of(logbook, open_(logbook.uri.splitlines()))
        dataset = open_(address_of(where))
        wanted = "" if pipeline is None else pipeline.samplewise.hash
        version = dataset.index.version
        # that of our own policy has tried every way, those of others only some
        found = newest(dataset=version, pipeline=wanted, policy="hull") or newest(
            dataset=version, pipeline=wanted
        )
        if found is None:
            what = "this dataset" if pipeline is None else f"this dataset and these steps, {pipeline}"
            raise WrongUse(f"there is no logbook of {what}; run `headwater profile {' '.join(where)}` first")
        return cls.of(found, dataset)

    def options(self, positions: Positions, *, epoch: int) -> Options:
        """What the samples at these positions of the index can cost in this epoch, where they are."""
        index = self.dataset.index
        sizes = self.dataset.store.sizes(positions)
        found = self.profile.predict(positions, index.ids[positions], sizes, epoch=epoch)
        if self.sites:
            possible = np.array([site.possible for site in self.sites])
            found.bytes[~possible[self.owners(positions)]] = np.inf
        return Options(_ways(self.logbook), found.bytes, found.store_seconds, found.trainer_seconds)

    def owners(self, positions: Positions) -> NDArray[np.intp]:
        """Which of the stores has each of these."""
        return self.dataset.store.site_of(positions) if self.sites else np.zeros(len(positions), np.intp)

    @property
    def names(self) -> tuple[str, ...]:
        """Of the stores; of local data that from which a run had the most samples stands for all."""
        return tuple(site.name for site in self.sites) or (self._last(0)[0],)

    @property
    def rates(self) -> tuple[SiteRates, ...]:
        """As the run measured them last at each store."""
        return tuple(self._last(number)[1] for number in range(len(self.names)))

    @property
    def assumed(self) -> tuple[SiteRates, ...]:
        """As the last plan for each store took them to be."""
        return tuple(self._last(number)[2] for number in range(len(self.names)))

    @cached_property
    def _balances(self) -> list[Balance]:
        return balances(self.logbook)

    def _last(self, number: int) -> tuple[str, SiteRates, SiteRates]:
        """A store's name, and its rates as found and as assumed.

        Those of the store with the most samples, where the run knew this one by another name or not at all.
        """
        wanted = self.sites[number].name if self.sites else ""
        for balance in sorted(self._balances, key=lambda balance: balance.site != wanted):
            return balance.site, balance.rates, balance.assumed
        if not self.logbook.stretches:
            raise WrongUse("the logbook holds no stretch of a run; run `headwater profile` for longer")
        last = self.logbook.stretches[-1]
        return last.site, last.rates, last.rates


def address_of(where: Sequence[str]) -> str | list[str]:
    """One address as it is, several as a list: what `hw.open` takes."""
    return where[0] if len(where) == 1 else list(where)


def is_logbook(where: str) -> bool:
    """Logbooks are JSON files, data never is."""
    return where.endswith(".json") and Path(where).is_file()


def load_logbook(where: str | None) -> Logbook:
    """The logbook of a file or an address; the newest of all if nothing is given."""
    if where is not None and is_logbook(where):
        return Logbook.load(where)
    uri = "" if where is None else str(Address.parse(where)) if is_store(where) else where
    found = newest(uri=uri)
    if found is None:
        of = "" if where is None else f" of {where}"
        remedy = f"`headwater profile {where or 'URI'}`"
        raise WrongUse(f'there is no logbook{of}; run {remedy}, or train with offload="auto"')
    return found


def _ways(logbook: Logbook) -> tuple[Offload, ...]:
    return tuple(Offload(cut, codec) for cut, codec in logbook.key.ways)


def _rebuild(logbook: Logbook) -> tuple[Pipeline, bool]:
    """The steps up to the first that only its run had, a user's function; and whether these are all."""
    known = catalogue()
    names = [step.get("name") in known for step in logbook.steps]
    count = names.index(False) if False in names else len(names)
    return Pipeline.from_spec(logbook.steps[:count], known), count == len(names)
