"""What link, store and trainer can do, as a run finds it out: rates that follow what was seen last.

A link is measured by the bytes that came while files were awaited; other answers wait for a store's CPU too.
Where steps run at a store, less than expected is put down to the store's cores.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from headwater.measure.logbook import SiteRates
from headwater.plan.offload import Rates

_FOLLOW = 0.5  # how much of a new finding is believed at once
_MEMORY_SECONDS = 5.0  # of a busy link; replies count when they are whole, so a short time tells little
_STARVED = 0.1  # share of time spent waiting above which the trainer wants more than it gets
_LEAST_SECONDS = 0.02
_LEAST_BYTES = 1 << 20
_RECOVERY = 1.5
_RETREAT = 0.5
_LONGEST_PATIENCE = 64
_LEAST_CORES = 0.01
_PUSHED_BACK = 0.05  # of what was asked for, above which a store is taken to have no more cores
_OWN_CORES = 0.02  # that a store needs to do anything at all, and CPU seconds for each byte that it sends
_SENDING_SECONDS = 3e-9
_MOST_OWN = 0.5


@dataclass(frozen=True)
class Spell:
    """A stretch of a run as it was: wall seconds, how they were spent, and what came from one store.

    `bytes` came in the `busy` seconds in which files were awaited.
    """

    samples: int
    seconds: float
    waited: float
    held: float
    bytes: int
    busy: float
    store_seconds: float
    asked: int = 0
    pushed_back: int = 0

    @property
    def starved(self) -> bool:
        return self.waited > _STARVED * self.seconds


@dataclass
class _Flow:
    """Bytes over seconds, of which older ones count less and less."""

    bytes: float = 0.0
    seconds: float = 0.0

    def add(self, size: float, seconds: float) -> None:
        keep = math.exp(-seconds / _MEMORY_SECONDS)
        self.bytes, self.seconds = self.bytes * keep + size, self.seconds * keep + seconds

    @property
    def rate(self) -> float:
        """0 while too little came to tell."""
        known = self.bytes >= _LEAST_BYTES and self.seconds >= _LEAST_SECONDS
        return self.bytes / self.seconds if known else 0.0


@dataclass
class Gauge:
    """The rates of one store's samples. `cores` is what the store says it has; 0: it does not say."""

    cores: float
    trainer_cores: float
    link: float = 0.0
    trainer: float = math.inf
    store_speed: float = 1.0
    _usable: float = field(init=False)
    _calm: int = 0  # stretches in time since its cores were last changed
    _patience: int = 1  # such stretches before it is believed to have more
    _flow: _Flow = field(default_factory=_Flow)

    def __post_init__(self) -> None:
        self._usable = self.cores or 1.0

    @property
    def known(self) -> bool:
        """Whether there is enough to plan with."""
        return self.link > 0

    @property
    def store_cores(self) -> float:
        """What the store is believed to have for this run's steps.

        Its cores are also for sending: a small store whose steps take all of them sends nothing meanwhile.
        """
        own = min(_OWN_CORES + _SENDING_SECONDS * self.link, _MOST_OWN * self.cores)
        return min(self._usable, self.cores - own) if self.cores else self._usable

    def rates(self, share: float = 1.0) -> Rates:
        """For the samples of one store, which get that share of the trainer."""
        rates = Rates(self.link, self.store_cores, self.trainer_cores, self.trainer, self.store_speed)
        return rates.share(share)

    @property
    def found(self) -> SiteRates:
        """As they are written into a logbook."""
        return SiteRates(self.link, self.store_cores, self.trainer_cores, self.trainer, self.store_speed)

    def remember(self, rates: SiteRates) -> None:
        """Begin with what an earlier run found."""
        self.link, self.trainer, self.store_speed = rates.link, rates.trainer, rates.store_speed

    def learn(self, spell: Spell, *, late: bool = False, slow: bool = False) -> None:
        """Take in a stretch; `late` says that it took longer than believed, `slow` that the store did."""
        self._learn_link(spell)
        self._learn_trainer(spell)
        if spell.asked:
            self._learn_store(spell, late=late, slow=slow)

    def retreat(self, used: float) -> None:
        """The store has the cores that it used, or half of what was believed.

        By half at most: a store that has just begun to load its libraries does nothing for a while. It is
        believed to have more again later and later: trying that costs a stretch that is late.
        """
        self._usable = max(_LEAST_CORES, min(self._usable, max(used, self._usable * _RETREAT)))
        self._calm, self._patience = 0, min(4 * self._patience, _LONGEST_PATIENCE)

    @property
    def believed(self) -> float:
        """The cores that the store has for all that it does."""
        return self._usable

    def believe(self, cores: float) -> None:
        """Take back a retreat."""
        self._usable = cores

    def learn_speed(self, predicted: float, measured: float) -> None:
        """Store seconds that the profile of all stores predicted for some samples, and what they came to."""
        if predicted > _LEAST_SECONDS and measured > _LEAST_SECONDS:
            found = min(max(predicted / measured, 0.1), 10.0)
            self.store_speed += _FOLLOW * (found - self.store_speed)

    def _learn_link(self, spell: Spell) -> None:
        self._flow.add(spell.bytes, spell.busy)
        self.link = self._flow.rate or self.link

    def _learn_trainer(self, spell: Spell) -> None:
        if spell.held <= 0:
            return
        found = spell.samples / spell.held
        old = self.trainer if math.isfinite(self.trainer) else found
        self.trainer = old + _FOLLOW * (found - old)

    def _learn_store(self, spell: Spell, *, late: bool, slow: bool) -> None:
        if spell.pushed_back > _PUSHED_BACK * spell.asked or (slow and spell.starved):
            self.retreat(spell.store_seconds / max(spell.seconds, _LEAST_SECONDS))
        elif not late:
            self._calm += 1
            self._recover()

    def _recover(self) -> None:
        if self.cores and self._usable >= self.cores:
            self._patience = 1
        elif self._calm >= self._patience:
            self._usable, self._calm = min(self.cores or math.inf, self._usable * _RECOVERY), 0
