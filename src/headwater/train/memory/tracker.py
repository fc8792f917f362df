"""The hooks: every tensor that autograd saves goes through here, and again when backward asks for it."""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable

import torch

from headwater.errors import SavedTensorChanged, WrongUse
from headwater.plan.memory import Action, MemoryPlan
from headwater.train.memory.guide import Guide, Guides
from headwater.train.memory.holding import CHANGED, Handle, Holding, Plain
from headwater.train.memory.iteration import Counts, Iteration, Moment
from headwater.train.memory.ledger import Ledger
from headwater.train.memory.lineage import SMALL, Lineage, is_outside
from headwater.train.memory.routine import Light, Routine, Sights
from headwater.train.memory.storages import is_loose, is_ordinary
from headwater.train.memory.unfinished import Operations

_LEFT = "backward must run before its memory budget is left; call it inside of the `with`"

TRUSTED = 2
"""Iterations by a plan without an operation that finds no memory, after which none is waited for."""
SLICE = 4
"""A tensor without history that is a smaller part of its storage than one in so many is a slice of data."""


class Tracker:
    """Packs and unpacks, finds where an iteration begins, and follows its plan."""

    def __init__(self, ledger: Ledger, lineage: Lineage, device: torch.device) -> None:
        self.ledger = ledger
        self._device = device
        self.guides = Guides()
        self.done: Iteration | None = None
        self.guided = 0
        self.passed = self.backwards = 0
        self.tight = False
        self.totals = Counts()
        self._lineage = lineage
        self._lock = threading.RLock()
        self._iteration: Iteration | None = None
        self._guide: Guide | None = None
        self._turn = 0
        self._step = -1
        self._issued = 0
        self._waiting: deque[weakref.ref[Holding]] = deque()
        self._operations = Operations()
        self._known: dict[int, weakref.ref[Holding]] = {}
        self._keys = 0
        self._closed = self._foreign = False
        self._measured = True
        self._routine: Routine | None = None
        self._next: Routine | None = None  # what the next iteration goes by, if it is that at its start
        self._sights = Sights()
        self._past = Sights()  # of the iteration before, until it is looked at
        self._backward = False
        self._woken = False
        self._again = False  # whether the times of the next iteration must be exact, although there is a plan
        self._before: Guide | None = None
        self.wants_lineage = ledger.recomputes
        self._news = True  # whether the next iteration is to be measured
        self.on_change: Callable[[], None] | None = None
        self.plan: MemoryPlan | None = None
        ledger.on_late = self._note_late

    def pack(self, tensor: torch.Tensor) -> Handle | Plain | Light:
        """What autograd keeps instead of the tensor."""
        if torch._C._current_graph_task_id() != -1:
            raise WrongUse(
                "a graph is built inside backward; a memory budget takes no create_graph=True, "
                "and of checkpoint only use_reentrant=False"
            )
        if tensor.is_nested or self._foreign:
            return Plain(tensor, tensor._version)
        if self._backward:
            self._turn_over()
        if self._routine is not None:
            light = self._routine.save(tensor)
            if light is not None:
                return light
            self._wake(self._routine)
        handle = self._pack(tensor, alone=self._may_be_left(tensor))
        self._sights.add(tensor, alone=isinstance(handle, Plain))
        return handle

    def _pack(self, tensor: torch.Tensor, *, alone: bool) -> Handle | Plain:
        if self._closed or alone:
            return Plain(tensor, tensor._version)
        with self._lock:
            self._lineage.quiet = True  # what is done to a tensor here is no part of how it was made
            try:
                return self._save(tensor)
            finally:
                self._lineage.quiet = False

    def _may_be_left(self, tensor: torch.Tensor) -> bool:
        return _is_left_alone(tensor, self._device) or self.ledger.outlives(tensor.untyped_storage())

    def _turn_over(self) -> None:
        """The first tensor after a backward pass: perhaps of an iteration that needs nothing."""
        if self._routine is not None:
            self._pass_lightly(self._routine)
            return
        if self._next is not None:
            self.finish()  # which may take it back
            self._routine, self._next = self._next, None
        self._past, self._sights, self._backward = self._sights, Sights(), False

    def _pass_lightly(self, routine: Routine) -> None:
        self._backward = False
        self.passed += 1
        self.guided += 1
        if self.guided == TRUSTED and self.on_change is not None:
            self.on_change()
        if not routine.begin():
            self._wake(routine)

    def _wake(self, routine: Routine) -> None:
        """Take account of what was saved without; how long that took to be made is not known."""
        self._routine, self._woken, self._sights = None, True, Sights()
        for light in routine.saved:
            tensor, light.tensor = light.tensor, None
            assert tensor is not None
            changed = tensor._version != light.version
            if light.alone or changed:  # of which backward will say so
                light.handle = Plain(tensor, light.version)
            else:
                light.handle = self._pack(tensor, alone=self.ledger.outlives(tensor.untyped_storage()))
            self._sights.add(tensor, alone=isinstance(light.handle, Plain))

    def _save(self, tensor: torch.Tensor) -> Handle:
        self._before_save()
        holding = self._holding_of(tensor)
        self._note_save(holding, tensor)
        offset = int(tensor.storage_offset())
        return Handle(holding, tensor.dtype, tuple(tensor.shape), tensor.stride(), offset)

    def unpack(self, handle: Handle | Plain | Light) -> torch.Tensor:
        """The tensor, as it was."""
        begun = torch._C._current_graph_task_id() != -1
        if begun and not self._backward:
            self._backward, self.backwards = True, self.backwards + 1
        if isinstance(handle, Light) and handle.handle is not None:
            handle = handle.handle
        if isinstance(handle, Light | Plain):
            if handle.tensor is None:
                raise WrongUse(_LEFT)
            return _unchanged(handle.tensor, handle.version)
        if self._closed:
            raise WrongUse(_LEFT)
        with self._lock:
            return self._use(handle) if begun else self._show(handle)

    def _show(self, handle: Handle) -> torch.Tensor:
        """To somebody who looks at a graph, as `grad_fn._saved_self` does; no pass of it has begun."""
        self.ledger.settle()
        self._end_operations()
        tensor = handle.of(self.ledger.bring(handle.holding))
        self.ledger.let_go(handle.holding)
        return tensor

    def relieve(self) -> bool:
        """An operation found no memory: let go what may leave; whether anything did."""
        with self._lock:
            self.tight, quiet, self._lineage.quiet = True, self._lineage.quiet, True
            try:
                self._end_operations()
                return self.ledger.relieve()
            finally:
                self._lineage.quiet = quiet

    def keep_buffers(self, module: torch.nn.Module) -> None:
        """They outlive every graph, and operations change them without a version that tells."""
        with self._lock:
            for buffer in module.buffers():
                if type(buffer) is torch.Tensor and buffer.layout is torch.strided and not buffer.is_nested:
                    self.ledger.stay(buffer.untyped_storage())

    def owns(self, tensor: torch.Tensor) -> bool:
        """Whether only the present step of the backward pass, and the budget, hold it."""
        with self._lock:
            return self.ledger.owns(tensor)

    @property
    def wants_relief(self) -> bool:
        """Whether an operation may find no memory, as far as is known: it did before, or this is new."""
        return self.tight or self._news or self.guided < TRUSTED

    def abandon(self) -> None:
        """In a forked child, which has no threads that carry anything: what it saves is left alone."""
        self._closed = self._foreign = True
        self._routine = None

    def finish(self) -> None:
        """Take note of an iteration that is over."""
        if self._foreign:
            return
        with self._lock:
            if self._routine is not None and self._backward:
                self._pass_lightly(self._routine)
            self.ledger.settle()
            if self._iteration is not None and (self._iteration.backward or not self.ledger.alive):
                self._end()

    def close(self) -> None:
        """Nothing is packed any more; graphs that are left cannot run backward."""
        self.finish()
        with self._lock:
            self._closed = True
            for light in self._routine.saved if self._routine is not None else ():
                light.tensor = None
            self._routine = None
            self._waiting.clear()
            self._operations.clear()
            for ref in self._known.values():
                if (holding := ref()) is not None:
                    holding.tensor = holding.node = holding.sources = None
            self._known.clear()
            self._iteration = None
            self._lineage.clear()

    def _before_save(self) -> None:
        self.ledger.settle()
        self._end_operations()
        if self._iteration is not None and (self._iteration.backward or not self.ledger.alive):
            self._end()
        if self._iteration is None:
            self._begin()

    def _begin(self) -> None:
        self._iteration = Iteration()
        self._turn += 1
        self._issued = 0
        self._step = -1
        self._before, self._guide = self._guide, self.guides.find(())
        self.ledger.clock.exact, self._again = self._guide is None or self._again, False
        self._known = {key: ref for key, ref in self._known.items() if ref() is not None}
        self.ledger.begin(self._iteration.counts)
        self._measured = self.wants_lineage

    def _end(self) -> None:
        iteration = self._iteration
        assert iteration is not None
        self._iteration = None
        self._waiting.clear()
        again = self._learn(iteration) if iteration.backward else self.wants_lineage
        if iteration.backward:
            self.done = iteration
        self._lineage.clear()
        self._want_lineage(again)

    def _want_lineage(self, again: bool) -> None:
        """Noting how tensors are made takes time: it is left where nothing is made again, unless there is no
        other way."""
        short = self.ledger.no_file or self.ledger.disk_short
        needed = again or short or self.guides.makes_again
        self._news = again or self.guides.none
        self.wants_lineage = self.ledger.recomputes and needed
        if self.on_change is not None:
            self.on_change()

    def _learn(self, iteration: Iteration) -> bool:
        """A pattern that was followed to its end gives feedback; a new one becomes a record and a plan.

        Whether it must be measured once more. If nothing has to leave, the next one is only looked at.
        """
        begin = time.perf_counter()
        self.passed += 1
        guide, again = self._guide, False
        woken, self._woken, self._next = self._woken, False, None
        if woken:
            again = self.wants_lineage
        elif guide is not None and len(guide.entries) == len(iteration.entries):
            self.guided += 1
            self._add_up(iteration.counts)
            self.plan = guide.plan
            before = guide.plan
            guide.learn(iteration, self.ledger.rates, self.ledger.ways)
            if guide.plan is not before and not self._take_room(guide.plan, iteration):
                guide.learn(iteration, self.ledger.rates, self.ledger.ways)
            self.guides.use(guide)
            if not self.guides.pressed:
                sights = self._sights if self._backward else self._past
                self._next = Routine(sights.seen, self._may_be_left)
        else:
            again = self._make_guide(iteration)
        iteration.origins.clear()
        self.ledger.lost_seconds += time.perf_counter() - begin
        return again

    def _make_guide(self, iteration: Iteration) -> bool:
        """Whether an iteration must be measured once more, for want of its lineage or of exact times."""
        if not self.ledger.clock.sure:
            self._again = True
            return True
        made = self._guide_of(iteration)
        if not self._take_room(made.plan, iteration):
            made = self._guide_of(iteration)
        again = made.pressed and not self._measured and self.ledger.recomputes
        if not again:
            self.guides.add(made)
        self.plan = made.plan
        return again

    def _guide_of(self, iteration: Iteration) -> Guide:
        ledger, record = self.ledger, iteration.record(self._lineage.seconds)
        return Guide(iteration.entries, record, ledger.budget, ledger.rates, ledger.ways)

    def _take_room(self, plan: MemoryPlan, iteration: Iteration) -> bool:
        return self.ledger.take_room(plan.bytes_of("swap"), at_most=sum(iteration.sizes))

    def _add_up(self, counts: Counts) -> None:
        self.totals.fetches += counts.fetches
        self.totals.late += counts.late

    def _holding_of(self, tensor: torch.Tensor) -> Holding:
        """The one that has this storage at this version, or a new one."""
        storage = tensor.untyped_storage()
        ref = self._known.get(storage._cdata)
        holding = ref() if ref is not None else None
        loose, bare = is_loose(tensor), tensor.grad_fn is None
        if holding is not None and _has_content_of(tensor, holding, sure=not (loose or bare)):
            if loose:
                holding.also.append((tensor.detach(), tensor._version))
            elif bare or holding.bare:  # `.data` counts versions of its own
                holding.aliases.append((tensor.detach(), tensor._version))
            return holding
        self._keys += 1
        assert self._iteration is not None
        place = self._turn, len(self._iteration.sizes)
        holding = Holding(tensor, self._keys, place, self.ledger.obituaries)
        holding.touched, holding.bare = time.perf_counter(), bare
        if loose:
            holding.also.append((tensor.detach(), tensor._version))
        else:
            holding.node = self._lineage.node_of(tensor)
        if holding.node is not None:
            holding.node.holding = weakref.ref(holding)
        self._known[storage._cdata] = weakref.ref(holding)
        return holding

    def _note_save(self, holding: Holding, tensor: torch.Tensor) -> None:
        iteration = self._iteration
        assert iteration is not None
        fresh = holding.turn == self._turn and holding.number == len(iteration.sizes)
        if fresh:
            iteration.add(holding)
            self.ledger.note(holding)
        number = holding.number if holding.turn == self._turn else -1
        entry = (holding.size, tuple(tensor.shape), tensor.dtype, number)
        iteration.note_save(number, entry, self._now())
        self._follow(iteration)
        self._place(holding, fresh=fresh, bare=tensor.grad_fn is None)
        self._note_moment(iteration)

    def _follow(self, iteration: Iteration) -> None:
        """Whether the plan still knows this pattern; else another one may, or none."""
        place = len(iteration.entries) - 1
        guide = self._guide
        if guide is None:
            return
        if place >= len(guide.entries) or guide.entries[place] != iteration.entries[place]:
            self._guide = self.guides.find(iteration.entries)
            iteration.late.clear()  # it was noted for the other one

    def _place(self, holding: Holding, *, fresh: bool, bare: bool) -> None:
        """Hold it; at the last time that it is saved, when all parts of it are final, it may leave.

        An operation may fill what it was given only after it has saved that, as `rrelu` does with its noise;
        so what is `bare` of history is left to the operation until that is over.
        """
        guide = self._guide
        self.ledger.next_use = None if guide is None else self._next_use
        action: Action = "keep"
        if guide is not None and holding.turn == self._turn:
            action = guide.action_after_save(holding.number, self._access())
        if bare or holding in self._operations:
            self._operations.await_end(holding, action, fresh=fresh)
        else:
            self._settle_down(holding, action, fresh=fresh)

    def _settle_down(self, holding: Holding, action: Action, *, fresh: bool) -> None:
        if fresh:
            if action == "recompute" and self.ledger.forget(holding):
                return
            self.ledger.admit(holding)
        if action == "swap":
            self.ledger.swap_out(holding)
        elif action == "recompute":
            self.ledger.forget(holding)

    def _end_operations(self, *, all_of_them: bool = False) -> None:
        for holding, action, fresh in self._operations.ended(all_of_them=all_of_them):
            self._settle_down(holding, action, fresh=fresh)

    def _next_use(self, holding: Holding) -> int:
        guide = self._guide
        if guide is None or holding.turn != self._turn:
            return 0
        return guide.next_use(holding.number, self._access())

    def _use(self, handle: Handle) -> torch.Tensor:
        holding, ledger = handle.holding, self.ledger
        ledger.settle()
        self._end_operations(all_of_them=True)
        step = torch._C._current_autograd_node()
        number = step._sequence_nr() if step is not None else -1
        if number != self._step:
            self._step = number
            ledger.next_step()
        iteration = self._iteration
        if iteration is None:
            return handle.of(ledger.give(holding))
        if not iteration.backward:
            self._settle_on_guide(iteration)
        iteration.note_use(holding.number if holding.turn == self._turn else -1, number, self._now())
        tensor = ledger.give(holding)
        self._issue(iteration)
        self._note_moment(iteration)
        return handle.of(tensor)

    def _settle_on_guide(self, iteration: Iteration) -> None:
        """Forward is over: a pattern that only begins like this one says nothing about its backward."""
        if self._guide is None or len(self._guide.entries) != len(iteration.entries):
            self._guide = self.guides.find_whole(iteration.entries)
            self.ledger.next_use = None if self._guide is None else self._next_use

    def _note_late(self, turn: int, number: int, waited: float) -> None:
        """A device may be an iteration behind the host."""
        recent = turn == self._turn or (turn == self._turn - 1 and self._before is self._guide)
        if self._iteration is not None and self._guide is not None and recent:
            self._iteration.late[number] = waited

    def _issue(self, iteration: Iteration) -> None:
        """Fetches whose trigger has come; those without room wait for the next access."""
        guide, access = self._guide, self._access()
        while guide is not None and self._issued < len(guide.triggers):
            trigger, number = guide.triggers[self._issued]
            if trigger > access:
                break
            self._issued += 1
            self._waiting.append(iteration.holdings[number])
        while self._waiting:
            holding = self._waiting[0]()
            if holding is not None and not self.ledger.prefetch(holding):
                iteration.postponed.add(holding.number)
                return
            self._waiting.popleft()

    def _access(self) -> int:
        return self._iteration.accesses - 1 if self._iteration is not None else 0

    def _now(self) -> float:
        return self.ledger.clock() - self.ledger.lost_seconds

    def _note_moment(self, iteration: Iteration) -> None:
        iteration.moments.append(Moment(iteration.times[-1], self.ledger.whole, self.ledger.held))


def _unchanged(tensor: torch.Tensor, version: int) -> torch.Tensor:
    if tensor._version != version:
        raise SavedTensorChanged(CHANGED)
    return tensor


def _is_left_alone(tensor: torch.Tensor, device: torch.device) -> bool:
    """Parameters, what is small, what has no plain memory, and slices of data that outlive the step; all that
    is on another device than the one whose memory counts."""
    if is_outside(tensor) or not is_ordinary(tensor) or tensor.device != device:
        return True
    size = tensor.untyped_storage().nbytes()
    if size < SMALL:
        return True
    return tensor.grad_fn is None and size > SLICE * tensor.numel() * tensor.itemsize


def _has_content_of(tensor: torch.Tensor, holding: Holding, *, sure: bool) -> bool:
    """Whether the holding of the same storage has, or will have, what is in the tensor now.

    What was taken of it before is `sure` to be the same if it was made by an operation that autograd knows.
    Statistics of a batch norm change without a version that tells, and so does what numpy or `.data` writes.
    """
    same = holding.saved_version == tensor._version
    return same and not (holding.captured and not (sure and not holding.bare and not holding.also))
