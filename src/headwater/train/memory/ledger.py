"""The account of bytes: what is held, what may stay, what leaves and how it comes back."""

from __future__ import annotations

import logging
import math
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from headwater.errors import MemoryTooSmall, SavedTensorChanged, SpillFailed
from headwater.plan.memory import Action, Rates, eviction_score
from headwater.train.memory.holding import CHANGED, Holding, Obituary
from headwater.train.memory.iteration import Counts
from headwater.train.memory.replay import (
    check_digest,
    find_sources,
    replay,
    replay_bytes,
    replay_seconds,
    take_digest,
)
from headwater.train.memory.shortage import is_out_of_memory
from headwater.train.memory.storages import WeakStorage
from headwater.train.memory.streams import Clock
from headwater.train.memory.tier import Move, Tier

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Ways:
    """How a tensor may leave memory."""

    swap: bool = True
    recompute: bool = True


@dataclass(frozen=True, slots=True)
class _Asked:
    """A fetch of a device's that somebody waited for, and of which tensor of which iteration it was."""

    turn: int
    number: int
    reading: Move


class Ledger:
    """Holds at most `budget` bytes of what autograd saved. Not safe for threads by itself: its user locks."""

    def __init__(self, budget: int, tier: Tier, ways: Ways, clock: Clock) -> None:
        self.budget = budget
        self.clock = clock
        self.held = 0
        self.whole = 0
        self.alive = 0
        self.counts = Counts()
        self.lost_seconds = 0.0
        self.obituaries: deque[Obituary] = deque()
        self.next_use: Callable[[Holding], int] | None = None
        self.on_late: Callable[[int, int, float], None] | None = None
        self.lasting: dict[int, WeakStorage] = {}
        self._tier, self.recomputes = tier, ways.recompute
        self._resident: dict[int, weakref.ref[Holding]] = {}
        self._writing: deque[weakref.ref[Holding]] = deque()
        self._dying: list[Obituary] = []
        self._pinned: set[int] = set()
        self._given: set[int] = set()
        self._asked: list[_Asked] = []
        self.disk_closed = not ways.swap
        self._disk_full = False
        self.disk_short = False

    @property
    def rates(self) -> Rates:
        """Of both lanes."""
        return self._tier.rates

    @property
    def ways(self) -> frozenset[Action]:
        """What may be done with a tensor as things are."""
        open_ways: dict[Action, bool] = {"swap": not self.disk_closed, "recompute": self.recomputes}
        return frozenset(("keep", *(way for way, is_open in open_ways.items() if is_open)))

    @property
    def no_file(self) -> bool:
        """Whether nothing goes to the file any more."""
        return self.disk_closed or self._disk_full

    def settle(self) -> None:
        """Take note of what is gone, and of transfers that are done."""
        while self.obituaries:
            self._bury(self.obituaries.popleft())
        for obituary in [one for one in self._dying if one.transfer is None or one.transfer.done]:
            self._dying.remove(obituary)
            self._clear(obituary)
        while self._writing and ((first := self._writing[0]()) is None or first.written):
            self._writing.popleft()
            if first is not None:
                self._finish(first)
        if self._asked:
            self._judge()

    def note(self, holding: Holding) -> None:
        """Know of something new, which is held once it is admitted."""
        holding.noted = True
        self.whole += holding.size
        self.alive += 1

    def admit(self, holding: Holding) -> None:
        """Hold something new; if nothing else can go, it goes itself."""
        if holding.size <= self.budget and self._make_room(holding.size):
            self._count(holding)
        elif not self._leave(holding):
            raise MemoryTooSmall(
                f"forward has saved {self.held + holding.size:,} bytes that cannot leave memory, "
                f"the budget is {self.budget:,}; give it more, or take a smaller batch",
                needed=self.held + holding.size,
            )

    def swap_out(self, holding: Holding) -> None:
        """Begin to write it; it goes when that is done."""
        if holding.captured or not self._write(holding):
            return
        holding.leaving = True
        self._writing.append(weakref.ref(holding))

    def forget(self, holding: Holding) -> bool:
        """Let it go, because it can be made again; whether it can."""
        sources = find_sources(holding.node) if self.recomputes and holding.node is not None else None
        if sources is None or holding.also or holding.tensor is None or holding.extent is not None:
            return False
        holding.sources = sources
        for source in sources:
            source.needed = True
        holding.digest = take_digest(holding.tensor)
        self._drop(holding)
        return True

    def prefetch(self, holding: Holding) -> bool:
        """Begin to bring it back, unless that would pass the budget."""
        if holding.tensor is not None:
            holding.leaving = False  # it would have to come back at once
            return True
        if not holding.clean:
            return True
        if self.held + holding.size > self.budget:
            return False
        self._count(holding)
        try:
            self._read(holding)
        except (MemoryError, RuntimeError) as error:
            self._uncount(holding)
            if not is_out_of_memory(error):
                raise
            return False
        return True

    def bring(self, holding: Holding) -> torch.Tensor:
        """Its content, in memory, where it stays until it is let go.

        Raises `MemoryTooSmall` where there is no room even for what is in use.
        """
        holding.touched = time.perf_counter()
        self._pinned.add(holding.key)
        if holding.reading is not None:
            self._wait_for(holding)
        if holding.emptied and holding.clean:
            self._drop(holding)
        if holding.tensor is None:
            self._return(holding)
        holding.leaving = False
        return holding.content()

    def outlives(self, storage: torch.UntypedStorage) -> bool:
        """Whether it was there after the graph that saved it, so that nothing is won by letting it go."""
        weak = self.lasting.get(storage._cdata)
        return weak is not None and not weak.gone

    def stay(self, storage: torch.UntypedStorage) -> None:
        """It is somebody's who keeps it, whatever becomes of graphs: it is never to leave."""
        if storage._cdata not in self.lasting:
            self.lasting[storage._cdata] = WeakStorage(storage)

    def begin(self, counts: Counts) -> None:
        """Another iteration."""
        self.counts = counts
        self.lasting = {key: weak for key, weak in self.lasting.items() if not weak.gone}
        self._add_up()

    def give(self, holding: Holding) -> torch.Tensor:
        """Its content, for the present step of the backward pass."""
        self._given.add(holding.key)
        return self.bring(holding)

    def owns(self, tensor: torch.Tensor) -> bool:
        """Whether it was given to the present step of the backward pass, and its memory was made for that."""
        address = tensor.untyped_storage()._cdata
        given = (ref() for key, ref in self._resident.items() if key in self._given)
        return any(one.address == address and one.weak.gone for one in given if one is not None)

    def next_step(self) -> None:
        """Another step of the backward pass: what the last one was given may leave."""
        self._pinned.clear()
        self._given.clear()

    def lend(self, size: int) -> None:
        """Make room for something that passes through."""
        self._require_room(size)
        self.held += size

    def give_back(self, size: int) -> None:
        """It is gone."""
        self.held -= size

    def take_room(self, size: int, *, at_most: int) -> bool:
        """Have so many bytes of disk; if there are none, nothing is swapped any more.

        More than planned may have to leave, `at_most` all; a disk without room for that is `disk_short`.
        """
        if self.disk_closed or not size:
            return True
        try:
            self.disk_short = self._tier.prepare(size) < at_most
        except SpillFailed as error:
            self._give_up_disk(error)
        return not self.disk_closed

    def relieve(self) -> bool:
        """Let go all that may leave, and wait for it; whether anything left."""
        before = self.held
        self.settle()
        with self._stalling():
            while self._await_write() or self._evict_one():
                pass
        return self.held < before

    def let_go(self, holding: Holding) -> None:
        """It may leave again, unless the present step of the backward pass was given it."""
        if holding.key not in self._given:
            self._pinned.discard(holding.key)

    def _return(self, holding: Holding) -> None:
        if holding.spoiled:
            raise SavedTensorChanged(CHANGED)
        if holding.extent is None:
            self._make_again(holding)
            return
        self._require_room(holding.size)
        self._count(holding)
        self._read(holding)
        self._wait_for(holding)

    def _make_again(self, holding: Holding) -> None:
        if holding.node is None or holding.sources is None:
            raise SavedTensorChanged("a saved tensor is gone: its memory budget was left before backward ran")
        begin, lost = self.clock(), self.lost_seconds
        made = replay(holding.node, self)
        self.give_back(holding.size)  # it was lent, and is held from now on
        if holding.digest is not None:
            check_digest(made, holding.digest, holding.size)
        holding.tensor, holding.version, holding.sources = made, made._version, None
        self._count(holding)
        seconds = self.clock() - begin - (self.lost_seconds - lost)
        self.counts.recompute_seconds += seconds
        self.counts.recomputed += holding.size
        self.lost_seconds += seconds

    def _read(self, holding: Holding) -> None:
        assert holding.extent is not None
        holding.tensor, holding.reading = self._tier.read(holding.extent, holding.device)
        holding.version = holding.tensor._version
        self.counts.fetches += 1

    def _wait_for(self, holding: Holding) -> None:
        reading = holding.reading
        assert reading is not None
        with self._stalling():
            reading.wait()
        holding.reading = None
        if reading.waited is None:
            self._asked.append(_Asked(holding.turn, holding.number, reading))
        else:
            self._note_wait(holding.turn, holding.number, reading.waited)

    def _judge(self) -> None:
        """Fetches that a device was told to wait for: whether it had to is known when it got there."""
        asked, self._asked = self._asked, []
        for one in asked:
            waited = one.reading.waited
            if waited is None:
                self._asked.append(one)
            else:
                self.counts.stall_seconds += waited
                self._note_wait(one.turn, one.number, waited)

    def _note_wait(self, turn: int, number: int, waited: float) -> None:
        if waited > 0:
            self.counts.late += 1
            if self.on_late is not None:
                self.on_late(turn, number, waited)

    def _require_room(self, size: int) -> None:
        if not self._make_room(size):
            needed = self.held + size
            raise MemoryTooSmall(
                f"one step of the backward pass needs {needed:,} bytes at once, "
                f"the budget is {self.budget:,}; give it more, or take a smaller batch",
                needed=needed,
            )

    def _make_room(self, size: int) -> bool:
        """Wait for what leaves anyway; then let go what costs least."""
        if self.held + size <= self.budget:
            return True
        with self._stalling():
            while self.held + size > self.budget:
                if not self._await_write() and not self._evict_one():
                    return False
        return True

    def _await_write(self) -> bool:
        while self._writing:
            holding = self._writing.popleft()()
            if holding is not None and holding.writing is not None and holding.leaving:
                self._finish(holding)
                return True
        for obituary in self._dying:
            if obituary.transfer is not None and not obituary.transfer.done:
                obituary.transfer.wait()
                self.settle()
                return True
        return False

    def _evict_one(self) -> bool:
        found = [holding for ref in self._resident.values() if (holding := ref()) is not None]
        able = [holding for holding in found if self._may_leave(holding)]
        for holding in sorted(able, key=self._order):
            size = holding.size
            if self._leave(holding):
                self.counts.evicted += size
                return True
        return False

    def _may_leave(self, holding: Holding) -> bool:
        return holding.key not in self._pinned and holding.tensor is not None and not holding.emptied

    def _order(self, holding: Holding) -> float:
        if self.next_use is not None:
            return -self.next_use(holding)
        stale = time.perf_counter() - holding.touched
        return eviction_score(seconds=self._way_back(holding), size=holding.size, stale_seconds=stale)

    def _way_back(self, holding: Holding) -> float:
        """Seconds that letting go costs, by the cheaper way."""
        if holding.clean:
            return holding.size / self.rates.read
        again = self._seconds_again(holding)
        return self._swap_seconds(holding) if again is None else min(self._swap_seconds(holding), again)

    def _swap_seconds(self, holding: Holding) -> float:
        rates = self.rates
        return math.inf if self.disk_closed else holding.size / rates.write + holding.size / rates.read

    def _seconds_again(self, holding: Holding) -> float | None:
        """Of letting it go without a plan.

        As long as there is a disk, nothing is made of what must be made itself, and there must be ample
        room: a plan knows the room for such chains, here it would be found out too late.
        """
        node = holding.node if self.recomputes and not holding.also else None
        sources = find_sources(node) if node is not None else None
        if node is None or sources is None:
            return None
        chained = holding.needed or any(source.sources is not None for source in sources)
        ample = holding.size + replay_bytes(node) <= self.budget // 2
        return replay_seconds(node) if self.no_file or (ample and not chained) else None

    def _leave(self, holding: Holding) -> bool:
        """Let it go now, the cheaper way; false if there is none."""
        if holding.clean or holding.worthless:
            if holding.reading is not None:
                holding.reading.wait()
                holding.reading = None
            self._drop(holding)
            return True
        again = self._seconds_again(holding)
        if again is not None and again < self._swap_seconds(holding) and self.forget(holding):
            return True
        if holding.writing is None and not self._write(holding):
            return again is not None and self.forget(holding)
        holding.leaving = True
        self._finish(holding)
        return holding.tensor is None or self.forget(holding)

    def _write(self, holding: Holding) -> bool:
        if self.disk_closed:
            return False
        assert holding.tensor is not None
        try:
            holding.extent = self._tier.reserve(holding.size)
        except SpillFailed as error:
            self._give_up_disk(error)
            return False
        try:
            holding.writing = self._tier.write(holding.extent, holding.tensor)
        except BaseException as error:
            self._tier.release(holding.extent)
            holding.extent = None  # else nothing would pass for a copy of it
            if not is_out_of_memory(error):
                raise
            return False
        self.counts.swapped += holding.size
        return True

    def _finish(self, holding: Holding) -> None:
        """The write is over, or is waited for."""
        if holding.writing is None:
            return
        try:
            holding.writing.wait()
        except (OSError, MemoryError) as error:
            assert holding.extent is not None
            self._tier.release(holding.extent)
            holding.extent, holding.writing, holding.leaving = None, None, False
            if isinstance(error, OSError):
                self._give_up_disk(error)
            return
        holding.writing = None
        if holding.tensor is not None:
            # Bytes that were written while they changed are worth nothing; backward will say so.
            holding.spoiled = holding.changed
            if holding.leaving:
                self._drop(holding)

    def _give_up_disk(self, error: Exception) -> None:
        if not self.no_file:
            logger.warning("nothing more leaves memory for the disk, what can be is recomputed: %s", error)
        self._disk_full = True
        self.disk_closed = not self._tier.has_memory

    def _count(self, holding: Holding) -> None:
        holding.counted = True
        self.held += holding.size
        self._resident[holding.key] = weakref.ref(holding)

    def _uncount(self, holding: Holding) -> None:
        if holding.counted:
            holding.counted = False
            self.held -= holding.size
            self._resident.pop(holding.key, None)

    def _drop(self, holding: Holding) -> None:
        # Whoever reads it next would be given what was saved, where plain training raises.
        holding.spoiled = holding.spoiled or (holding.changed and not holding.emptied)
        holding.drop()
        holding.leaving = False
        self._uncount(holding)

    def _add_up(self) -> None:
        """What is held, anew: whoever is interrupted in between has counted one half of what he did."""
        resident = [holding for ref in self._resident.values() if (holding := ref()) is not None]
        leaving = [obituary for obituary in self._dying if obituary.counted]
        self.held = sum(one.size for one in resident) + sum(one.size for one in leaving)

    def _bury(self, obituary: Obituary) -> None:
        if obituary.noted:
            self.whole -= obituary.size
            self.alive -= 1
        if not obituary.weak.gone:  # somebody else holds it: a buffer, or data
            self.lasting[obituary.weak.address] = obituary.weak
        self._resident.pop(obituary.key, None)
        self._pinned.discard(obituary.key)
        if obituary.transfer is not None and not obituary.transfer.done:
            self._dying.append(obituary)
        else:
            self._clear(obituary)

    def _clear(self, obituary: Obituary) -> None:
        if obituary.counted:
            self.held -= obituary.size
        if obituary.extent is not None:
            self._tier.release(obituary.extent)

    @contextmanager
    def _stalling(self) -> Iterator[None]:
        begin, lost = self.clock(), self.lost_seconds
        try:
            yield
        finally:
            seconds = self.clock() - begin - (self.lost_seconds - lost)
            self.counts.stall_seconds += seconds
            self.lost_seconds += seconds
