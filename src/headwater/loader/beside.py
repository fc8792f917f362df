"""Selection where the data lies: weights go there, ids and weights of samples come back, training goes on.

NeSSA (HotStorage 2023): the trainer feeds its weights back, the drive chooses what comes next. Here a loop
hands its model over once a round; the rest is done in a thread, by jobs of the stores that hold the data.
"""

from __future__ import annotations

import logging
import tempfile
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from torch import nn

from headwater.data.translate import as_pipeline
from headwater.engine.crew import Daemons
from headwater.errors import ForkedUse, HeadwaterError, MissingExtra, ModelError, Refused, WrongUse
from headwater.loader.feeding import Fed, Feeder, Filled
from headwater.loader.knowledge import BESIDE
from headwater.loader.ranks import find_rank
from headwater.loader.sharing import Verdict, share
from headwater.loader.worth import ROUNDS, Worth
from headwater.models.registry import Registry
from headwater.select.always import Always
from headwater.select.fresh import Fresh
from headwater.select.samples import Samples
from headwater.select.selecting import Selector, find_selector, make_selection, select_all
from headwater.select.selection import Selection
from headwater.select.specs import describe_selector, make_selector
from headwater.store.client.connection import Connection
from headwater.store.client.selecting import Selected
from headwater.store.dataset import Dataset
from headwater.store.jobs.select import VECTORS
from headwater.store.pushing import bring_over
from headwater.store.selecting import SelectingHere, Selects, selects_at
from headwater.store.wire.jobmessages import SelectionWish

log = logging.getLogger("headwater")

_LASTING = (WrongUse, Refused, MissingExtra, ModelError, ForkedUse)
"""What would happen again in the next round: somebody has to do something about it."""
_FIRST_WAIT = 600.0  # seconds, until it is known how long an epoch takes
_GIVEN_UP = 20  # epochs that a round may take, or that first wait if it is longer
_WRAPPED = ("module", "_orig_mod")


@dataclass(eq=False)
class Round:
    """Weights that were fed, and what came of them: a selection for an epoch, or an error.

    `link_seconds` is how long the proxy took to get to the stores, `waited_seconds` how long training stood
    still for the selection; `chosen` is how many samples it has. `late` is one that did not come while it was
    waited for, `passed_over` one that was never begun, because the round before was still under way, or an
    epoch was to have nothing beside it. `given_up` is one that came to no end.
    """

    epoch: int
    fed: Fed | None = None
    error: Exception | None = None
    chosen: int = 0
    scored_seconds: float = 0.0
    link_seconds: float = 0.0
    waited_seconds: float = 0.0
    bytes_moved: int = 0
    done: threading.Event = field(default_factory=threading.Event)
    selected: Selected | None = None
    """What came back, until it is used."""
    told: bool = False
    late: bool = False
    passed_over: bool = False
    given_up: bool = False
    begun: float = field(default_factory=time.monotonic)


@dataclass(frozen=True)
class _Facts:
    """What the loader has said of the epoch that it began last."""

    epoch: int = -1
    seed: int = 0
    epochs: int | None = None
    stalled: float = 0.0


class Beside:
    """A selector for `hw.DataLoader(select=...)` that runs beside the data, with a proxy of the model.

    `selector` is one of the catalogue, by name (then `share` may be given) or as an object. `transform` is
    what images go through before the proxy: that of validation or, if it has chance in it, the loader's own,
    so that each sample is scored as it will be cropped and flipped in the epoch that is selected for. The
    loop calls `feed(model)` once after each epoch; of `every` so many calls one counts. By then the loader
    has selected for the epoch that comes next, so what was fed is used from the one after that on, and stores
    select while an epoch trains. The first epoch visits everything; those after it, until there is a
    selection, another random share each, as large as will be selected. A selection that is late is waited for
    once, no longer than the last epoch took, and then used when it comes; what is fed meanwhile is passed
    over, so that rounds never queue. Where stores were lost, the last selection stands. When selecting costs
    more than it saves, which is what epochs take less than one on everything with nothing else under way, it
    ends, with a warning; to know that, what is fed is passed over once the first selection stands, now and
    then, and before it ends. With `Always(selector)` neither is done.

    `precision` of the proxy is int8, as long as its losses rank as those of fp32 do, by a `correlation` of at
    least so much on images of the data, or fp32. `vectors` says by what the gradients are taken that tell
    samples apart: the `logits`, or the last layer's `weights`, which is all of the gradient where nothing
    else is trained; unless it is given, those are taken there. `run` is a name for this training run: what
    earlier rounds have shown is known to later ones of the same name. Without one it has a name of its own,
    which is saved with the loader's state.
    """

    def __init__(
        self,
        selector: str | Selector,
        dataset: Dataset,
        transform: Any,
        *,
        share: float | None = None,
        every: int = 1,
        precision: str = "int8",
        correlation: float = 0.95,
        vectors: str | None = None,
        run: str = "",
    ) -> None:
        if len(dataset) != len(dataset.index):
            raise WrongUse(
                f"{len(dataset):,} of the {len(dataset.index):,} samples that are served; stores select "
                "among all of theirs: serve this part as a dataset of its own"
            )
        if every < 1:
            raise WrongUse(f"every is {every}; it must be at least 1")
        if vectors not in (None, *VECTORS):
            raise WrongUse(f"vectors of {vectors!r}; choose from {', '.join(VECTORS)}")
        self._ends = not isinstance(selector, Always)  # where it does not pay
        self._selector = _resolve(selector, share)
        steps = as_pipeline(transform)
        self._named = bool(run)
        self._wish = SelectionWish(
            *describe_selector(self._selector),
            run=run or uuid.uuid4().hex[:16],
            drawn=steps.steady_prefix < len(steps.samplewise),
        )
        self._dataset, self._every, self._vectors = dataset, every, vectors
        self._folder = tempfile.TemporaryDirectory(prefix="headwater-")
        self._threads = Daemons(1, "headwater-beside", closed="this selector was closed; make a new one")
        self._over = threading.Event()
        weakref.finalize(self, _end, self._over, self._threads, self._folder)
        self._registry = Registry(Path(self._folder.name) / "models")
        self._feeder = Feeder(
            dataset,
            self._registry,
            steps=steps,
            run=self._wish.run,
            precision=precision,
            least=correlation,
        )
        self._ranks = find_rank(None, None)
        self._rounds: list[Round] = []
        self._under_way: Round | None = None
        self._calls = 0
        self._facts, self._worth = _Facts(), Worth()
        self._standing = False  # whether there is a selection by which epochs go
        self._busy = False  # whether stores were asked for a selection since the last epoch, or still are
        self._alone = False  # whether they were not, to see what training takes by itself
        self._dropped = ""

    @property
    def name(self) -> str:
        return BESIDE.format(self._selector.name)

    @property
    def rounds(self) -> tuple[Round, ...]:
        """All of them so far, the first first."""
        return tuple(self._rounds)

    @property
    def dropped(self) -> str:
        """Why there is no more selection, in a line; empty while there is."""
        return self._dropped

    @property
    def state(self) -> dict[str, str]:
        """The run's name."""
        return {"run": self._wish.run}

    def attach(self, ranks: Callable[[], tuple[int, int]]) -> None:
        """The ranks are those of a loader, which may have been told them."""
        self._ranks = ranks

    def resume(self, selection: Selection) -> None:
        """A saved run goes on by its name: epochs go by this selection, if stores made it, or all is over."""
        run = selection.state.get("run", "")
        self._standing = "model" in selection.state
        self._dropped = selection.state.get("dropped", "")
        if run and not self._named:
            self._wish = msgspec.structs.replace(self._wish, run=run)
            self._feeder.run = run

    def feed(self, model: nn.Module) -> None:
        """Hand over a model's weights for the next selection; they are copied. All ranks call it.

        The first time it is exported, which takes seconds in which the loop waits. It may be another model
        than before, such as one that was made slim. Where the loader knows its `epochs`, nothing is done for
        one that will not be.
        """
        self._calls += 1
        if self._dropped or (self._calls - 1) % self._every or self._is_last:
            return
        begun = time.perf_counter()
        one = Round(self._facts.epoch + 1)
        self._rounds = [*self._rounds, one]
        if self._ranks()[0] == 0:
            if self._passes_over():
                one.passed_over = True
                one.done.set()
                return
            self._busy = True
            begun += self._begin(one, _unwrap(model))  # what is done once is no cost of each epoch
        self._worth.spend(fed=time.perf_counter() - begun)

    def _passes_over(self) -> bool:
        """Whether stores are not asked: a queue would have them look at ever older weights.

        Nor are they while an epoch is to show what training takes by itself, if that can still end it.
        """
        if self._under_way is not None and not self._under_way.done.is_set():
            self._judge_age(self._under_way)
            return True
        facts = self._facts
        judged = self._ends and (facts.epochs is None or facts.epoch + 1 + ROUNDS < facts.epochs)
        self._alone = judged and self._standing and self._worth.wants_quiet
        if self._alone:
            log.info("epoch %d has no selection beside it, to see what training takes by itself", facts.epoch)
        return self._alone

    def _judge_age(self, one: Round) -> None:
        """Give up a round that takes too long, so that a later one can begin.

        A store that does not answer is lost after the link's `give_up_seconds`. This is for one that does,
        and whose job comes to no end.
        """
        seconds = time.monotonic() - one.begun
        if not one.given_up and seconds > max(_FIRST_WAIT, _GIVEN_UP * self._worth.epoch_seconds):
            one.given_up = True
            log.warning("a selection has not come for %.0f s and is given up; another will be begun", seconds)

    def _begin(self, one: Round, model: nn.Module) -> float:
        """The weights as they are now, in this thread; the rest of the round in another.

        Seconds that it takes only because the model's shapes are new.
        """
        trained = {name for name, value in model.named_parameters() if value.requires_grad}
        self._under_way = one
        try:
            filled = self._feeder.fill(model)
        except Exception as error:  # for who collects it
            one.error = error
            one.done.set()
            return 0.0
        wish = msgspec.structs.replace(self._wish_for(one), vectors=self._vectors_for(trained))
        self._threads.submit(self._work, one, filled, wish)
        return filled.seconds if filled.new else 0.0

    def select_epoch(self, samples: Samples) -> Selection | None:
        """What was selected for an epoch; None where there is nothing new.

        Raises what kept the stores from selecting, if it would do so again.
        """
        due = [one for one in self._rounds if one.epoch <= samples.epoch]
        self._facts = _Facts(samples.epoch, samples.seed, samples.epochs, samples.stalled)
        found = self._follow(samples, due)
        self._standing = self._standing or found is not None
        return found if self._standing or not samples.epoch else self._meanwhile(samples)

    def trained(self, seconds: float, *, whole: bool, visited: int, everything: int) -> None:
        """An epoch took so long, for so many samples; one that was not `whole` tells nothing of them."""
        if not whole:
            self._worth.epoch_seconds = seconds
            self._worth.leave()
            return
        self._worth.note(
            seconds,
            visited=visited,
            samples=everything,
            selected=self._standing and not self._alone,  # nothing is to be learned of the others by it
            busy=self._busy,
        )
        self._alone = False
        self._busy = not all(one.done.is_set() for one in self._rounds)

    def _follow(self, samples: Samples, due: Sequence[Round]) -> Selection | None:
        if not due and not self._dropped:
            return None
        if not self._dropped:
            verdict = share(lambda: self._find(due), self._ranks)
            self._dropped = verdict.dropped
        if self._dropped:
            found = select_all(samples, name=self.name, reason=f"everything: {self._dropped}")
            return replace(found, state={**self.state, "dropped": self._dropped})
        if verdict.ids is None or verdict.weights is None:
            return None
        places = self._dataset.index.position_of(verdict.ids)
        order = np.argsort(places, kind="stable")
        return Selection(
            *(self.name, samples.epoch, places[order], verdict.weights[order], verdict.reason),
            state={"model": verdict.model, "run": verdict.run},
        )

    def _meanwhile(self, samples: Samples) -> Selection | None:
        """A fresh random share, as large as will be selected; None for a selector that knows no share."""
        share = getattr(self._selector, "share", None)
        if share is None:
            return None
        found = make_selection(Fresh(share), samples)
        reason = f"a fresh share until there is a selection: {found.reason}"
        return replace(found, selector=self.name, reason=reason, state=self.state)

    def close(self) -> None:
        """End what is under way, and remove what was kept here."""
        _end(self._over, self._threads, self._folder)

    @property
    def _is_last(self) -> bool:
        """Whether no epoch comes for which anything could be selected."""
        return self._facts.epochs is not None and self._facts.epoch + 1 >= self._facts.epochs

    def _wish_for(self, one: Round) -> SelectionWish:
        facts = self._facts
        last = facts.epochs is not None and one.epoch + self._every >= facts.epochs
        return msgspec.structs.replace(
            self._wish,
            seed=facts.seed,
            epoch=one.epoch,
            epochs=facts.epochs,
            stalled=facts.stalled,
            ends=last,
        )

    def _work(self, one: Round, filled: Filled, wish: SelectionWish) -> None:
        try:
            before = self._feeder.bytes_moved
            one.fed = self._feeder.make(filled)
            found = self._selects.run(one.fed.version, wish, over=lambda: self._over.is_set() or one.given_up)
            one.bytes_moved = found.bytes_moved + self._feeder.bytes_moved - before
            one.chosen, one.scored_seconds, one.selected = len(found.ids), found.seconds, found
        except Exception as error:  # for who collects it
            one.error = error
        finally:
            one.done.set()

    def _vectors_for(self, trained: set[str]) -> str:
        if self._vectors is not None:
            return self._vectors
        return "weights" if trained <= self._feeder.head else "logits"

    @cached_property
    def _selects(self) -> Selects:
        store = self._dataset.store
        if not store.remote:
            return SelectingHere(store, self._registry, Path(self._folder.name) / "selections")
        return selects_at(store, bring=self._bring)

    def _bring(self, connection: Connection) -> int:
        """The proxy of the round that is under way, to a store that is asked; the bytes that it took."""
        one = self._under_way
        assert one is not None
        assert one.fed is not None
        delivery = bring_over(self._registry, connection, one.fed.version)
        if delivery.error is not None:
            raise delivery.error
        one.link_seconds = max(one.link_seconds, delivery.seconds)  # several stores at the same time
        return delivery.sent_bytes

    def _find(self, due: Sequence[Round]) -> Verdict:
        """On the first rank: the newest selection that is there, after waiting for the one that is due."""
        if self._ends and (reason := self._worth.verdict):
            log.warning("%s; it ends, and epochs visit everything", reason)
            self._over.set()
            return Verdict(dropped=reason)
        begun = [one for one in due if not one.passed_over]
        for one in begun[-1:]:
            self._wait(one)
        come = [(one, one.selected) for one in begun if one.selected is not None]
        for one in begun:
            one.selected = None  # of an older one nothing is wanted any more
        if not come:
            return Verdict()
        one, selected = come[-1]
        log.info("%s", _describe(one))
        version = "" if one.fed is None else one.fed.version
        return Verdict(selected.ids, selected.weights, selected.reason, model=version, run=self._wish.run)

    def _wait(self, one: Round) -> None:
        """For a round that is due, once; raises what kept it from its end, if it would do so again."""
        if not one.late:
            begun = time.perf_counter()
            one.done.wait(self._worth.epoch_seconds or _FIRST_WAIT)
            waited = time.perf_counter() - begun
            one.waited_seconds += waited
            self._worth.spend(waited=waited)
            one.late = not one.done.is_set()
            if one.late:
                log.warning("a selection is late, the last one stands until it comes")
        if not one.done.is_set():
            return
        if isinstance(one.error, _LASTING) or not isinstance(one.error, HeadwaterError | None):
            raise one.error
        if one.error is not None and not one.told:
            one.told = True
            log.warning("a round of selection was lost, the last one stands: %s", one.error)


def _describe(one: Round) -> str:
    assert one.fed is not None
    return (
        f"{one.chosen:,} samples by a proxy of {one.fed.precision} ({one.fed.said}), made in "
        f"{one.fed.seconds:.2g} s, sent in {one.link_seconds:.2g} s, scored in {one.scored_seconds:.2g} s; "
        f"{one.bytes_moved:,} bytes moved, waited {one.waited_seconds:.2g} s"
    )


def _resolve(selector: str | Selector, share: float | None) -> Selector:
    """The selector that stores have; that it never ends is no business of theirs."""
    if isinstance(selector, Always):
        return _resolve(selector.selector, share)
    if share is None:
        return find_selector(selector)
    if not isinstance(selector, str):
        raise WrongUse(f"share is {share}, and the selector has its own; give one of the two")
    return make_selector(selector, {"share": share})


def _unwrap(model: nn.Module) -> nn.Module:
    """The model that others were wrapped around, to run it on several devices, or compiled."""
    for name in _WRAPPED:
        inner = getattr(model, name, None)
        if isinstance(inner, nn.Module) and len(list(model.children())) == 1:
            return _unwrap(inner)
    return model


def _end(over: threading.Event, threads: Daemons, folder: tempfile.TemporaryDirectory[str]) -> None:
    over.set()
    threads.shutdown(cancel_futures=True)
    folder.cleanup()
