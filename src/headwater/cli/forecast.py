"""What samples would cost, by the logbook of an earlier run: for verbs that plan without running."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from headwater.data.pipeline import Pipeline
from headwater.data.steps import catalogue
from headwater.errors import WrongUse
from headwater.measure.logbook import Key, Logbook, SiteRates, newest
from headwater.measure.profile import Profile
from headwater.plan.offload import Offload, Options
from headwater.report.balance import balances
from headwater.store import Dataset
from headwater.store.client.address import Address, is_store

Positions = NDArray[np.int64]
Opener = Callable[[str | list[str]], Dataset]
"""Opens addresses with the token and certificates of the command line."""


@dataclass(frozen=True, eq=False)
class Forecast:
    """A dataset, and what a run over it has learnt."""

    logbook: Logbook
    dataset: Dataset
    profile: Profile

    @classmethod
    def of(cls, logbook: Logbook, dataset: Dataset) -> Forecast:
        """Raises `StateMismatch` for a logbook of other data or library versions."""
        pipeline, whole = _rebuild(logbook)
        key = logbook.key
        logbook.check(Key(dataset.index.version, pipeline.hash if whole else key.pipeline, key.ways))
        if not logbook.profile:
            raise WrongUse(f"the logbook holds no measurements; run `headwater profile {dataset.uri}` again")
        samples = len(dataset.index)
        profile = Profile.from_dict(logbook.profile, pipeline, samples=samples, seed=logbook.seed)
        return cls(logbook, dataset, profile)

    @classmethod
    def find(cls, where: str, open_: Opener, pipeline: Pipeline | None = None) -> Forecast:
        """`where` is a logbook's file, or data of which a logbook is kept; then `pipeline` tells which."""
        if is_logbook(where):
            logbook = Logbook.load(where)
            return cls.of(logbook, open_(logbook.uri.splitlines()))
        dataset = open_(where)
        wanted = "" if pipeline is None else pipeline.samplewise.hash
        version = dataset.index.version
        # that of our own policy has tried every way, those of others only some
        found = newest(dataset=version, pipeline=wanted, policy="hull") or newest(
            dataset=version, pipeline=wanted
        )
        if found is None:
            what = "this dataset" if pipeline is None else f"this dataset and these steps, {pipeline}"
            raise WrongUse(f"there is no logbook of {what}; run `headwater profile {where}` first")
        return cls.of(found, dataset)

    def options(self, positions: Positions, *, epoch: int) -> Options:
        """What the samples at these positions of the index can cost in this epoch."""
        index = self.dataset.index
        sizes = self.dataset.store.sizes(positions)
        found = self.profile.predict(positions, index.ids[positions], sizes, epoch=epoch)
        ways = tuple(Offload(cut, codec) for cut, codec in self.logbook.key.ways)
        return Options(ways, found.bytes, found.store_seconds, found.trainer_seconds)

    @property
    def rates(self) -> SiteRates:
        """As the run measured them last, at the store with the most samples."""
        found = balances(self.logbook)
        if found:
            return found[0].rates
        if not self.logbook.stretches:
            raise WrongUse("the logbook holds no stretch of a run; run `headwater profile` for longer")
        return self.logbook.stretches[-1].rates


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


def _rebuild(logbook: Logbook) -> tuple[Pipeline, bool]:
    """The steps up to the first that only its run had, a user's function; and whether these are all."""
    known = catalogue()
    names = [step.get("name") in known for step in logbook.steps]
    count = names.index(False) if False in names else len(names)
    return Pipeline.from_spec(logbook.steps[:count], known), count == len(names)
