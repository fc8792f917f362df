"""The public object: a context around training steps."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from types import TracebackType

import torch

from headwater.data.bytecount import parse_bytes
from headwater.errors import WrongUse
from headwater.plan.memory import AccessRecord
from headwater.train.memory.devices import find_device, find_host_bytes
from headwater.train.memory.hosttier import open_host_tier
from headwater.train.memory.ledger import Ledger, Ways
from headwater.train.memory.lineage import Lineage
from headwater.train.memory.outcome import MemoryReport
from headwater.train.memory.parts import Parts
from headwater.train.memory.relief import Relief
from headwater.train.memory.shelf import Shelf
from headwater.train.memory.spill import SpillFile
from headwater.train.memory.streams import Clock, Streams
from headwater.train.memory.tier import Tier
from headwater.train.memory.tracker import Tracker
from headwater.train.memory.transfer import FileTier
from headwater.train.memory.watch import ModuleWatch

_ACTIVE: list[MemoryBudget] = []
_LOCK = threading.Lock()


def _abandon_all() -> None:
    for budget in _ACTIVE:
        budget._abandon()


os.register_at_fork(after_in_child=_abandon_all)


class MemoryBudget:
    """Training steps inside of it hold no more than so many bytes for backward; results stay the same.

    What autograd keeps between forward and backward counts; parameters, gradients, what an optimiser keeps
    and what an operation needs while it runs do not. One at a time in a process.
    """

    def __init__(self, budget: int, open_tier: Callable[[], Tier], *, streams: Streams, ways: Ways) -> None:
        """For the device that has the streams; what leaves its memory goes to the tier."""
        if budget <= 0:
            raise WrongUse(f"a memory budget of {budget} bytes holds nothing; give at least some")
        if not ways.swap and not ways.recompute:
            raise WrongUse("without swap and recompute nothing can leave memory; allow at least one")
        self._budget, self._open_tier, self._streams, self._ways = budget, open_tier, streams, ways
        self._tracker: Tracker | None = None
        self._last: MemoryReport | None = None

    def __enter__(self) -> MemoryBudget:
        with _LOCK:
            if _ACTIVE:
                raise WrongUse("a memory budget is active already; there is one at a time in a process")
            _ACTIVE.append(self)
        try:
            self._open()
        except BaseException:
            _ACTIVE.remove(self)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._close()
        finally:
            _ACTIVE.remove(self)

    def report(self) -> MemoryReport:
        """What was done so far; after the context, what was done in it."""
        if self._tracker is not None:
            self._last = _report(self._tracker)
        if self._last is None:
            raise WrongUse("a memory budget that was not entered has nothing to report; use it with `with`")
        return self._last

    def record(self) -> AccessRecord:
        """The accesses of the iteration that the present plan was made of; raises `WrongUse` without one."""
        if self._tracker is not None:
            self._tracker.finish()
            guide = self._tracker.guides.find(())
            if guide is not None:
                return guide.record
        raise WrongUse("no iteration was measured yet, or the memory budget was left; ask inside of it")

    def _open(self) -> None:
        tier = self._open_tier()
        try:
            self._begin(tier)
        except BaseException:
            tier.close()
            raise
        self._tier = tier

    def _begin(self, tier: Tier) -> None:
        clock = Clock(self._streams)
        lineage = Lineage(clock)
        ledger = Ledger(self._budget, tier, self._ways, clock)
        tracker = Tracker(ledger, lineage, self._streams.device)
        parts = Parts(Shelf(tier.file), tracker.owns) if isinstance(tier, FileTier) else None
        relief = Relief(tracker.relieve, parts)
        self._watch = ModuleWatch(
            lineage,
            lambda: tracker.wants_lineage,
            relief,
            lambda: tracker.wants_relief or relief.runs_apart,
            on_forward=tracker.keep_buffers,
            backwards=lambda: tracker.backwards,
        )
        tracker.on_change = self._watch.update
        self._watch.update()
        self._hooks = torch.autograd.graph.saved_tensors_hooks(tracker.pack, tracker.unpack)
        self._hooks.__enter__()
        self._tracker = tracker

    def _abandon(self) -> None:
        """Train as if there was none, in a child that was forked inside of it."""
        if self._tracker is not None:
            self._tracker.abandon()
            self._watch.close()

    def _close(self) -> None:
        tracker = self._tracker
        assert tracker is not None
        try:
            self._hooks.__exit__(None, None, None)
            self._watch.close()
            self.report()
        finally:
            tracker.close()
            self._tracker = None
            self._tier.close()


def memory_budget(
    budget: int | str,
    *,
    device: str | torch.device | None = None,
    host: int | str | None = None,
    spill: str | os.PathLike[str] | None = None,
    swap: bool = True,
    recompute: bool = True,
) -> MemoryBudget:
    """A context in which training steps hold at most `budget` bytes for backward, such as "6GiB".

    What counts is memory of one `device`; None is torch's current accelerator, and the CPU where there is
    none. What does not fit goes, if it may `swap`, from an accelerator to at most `host` bytes of pinned host
    memory (None: a quarter of the machine's) and beyond that to a nameless file, from RAM to the file; or it
    is computed again, if it may `recompute`. The file is in the folder `spill` (None: the system's folder for
    temporary files). Loss and gradients are those of plain training, bit for bit. Raises `SpillFailed` on
    entry if the folder is missing or cannot be written to, `MemoryTooSmall` in backward if one step of it
    alone needs more, `SavedTensorChanged` where plain training would say that a tensor was modified in place,
    and `WrongUse` for a device that torch does not have, a `spill` that is no path, `host` with a CPU, a
    second budget at the same time and double backward.
    """
    if spill is not None and not (isinstance(spill, str | os.PathLike) and os.fspath(spill)):
        raise WrongUse(f"spill={spill!r} is no folder; give its path, or None for the one of temporary files")
    streams = Streams(find_device(device))
    most = find_host_bytes(host, streams.device)

    def open_tier() -> Tier:
        file = SpillFile(spill)
        try:
            return FileTier(file) if streams.device.type == "cpu" else open_host_tier(file, streams, most)
        except BaseException:
            file.close()
            raise

    return MemoryBudget(parse_bytes(budget), open_tier, streams=streams, ways=Ways(swap, recompute))


def _report(tracker: Tracker) -> MemoryReport:
    tracker.finish()
    done, counts = tracker.done, tracker.done.counts if tracker.done else tracker.totals
    moments = done.moments if done else []
    begin = moments[0].seconds if moments else 0.0
    return MemoryReport(
        budget=tracker.ledger.budget,
        iterations=tracker.passed,
        guided=tracker.guided,
        peak_before=done.peak_before if done else 0,
        peak=done.peak if done else 0,
        swapped=counts.swapped,
        recomputed=counts.recomputed,
        unplanned=counts.evicted,
        stall_seconds=counts.stall_seconds,
        recompute_seconds=counts.recompute_seconds,
        fetches=counts.fetches,
        late_fetches=counts.late,
        fetches_in_all=tracker.totals.fetches,
        late_fetches_in_all=tracker.totals.late,
        disk_closed=tracker.ledger.no_file,
        plan=tracker.plan,
        seconds=tuple(moment.seconds - begin for moment in moments),
        held_before=tuple(moment.whole for moment in moments),
        held=tuple(moment.held for moment in moments),
    )
