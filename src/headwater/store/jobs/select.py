"""Which samples a training run should visit next, found out where they lie: NeSSA's idea (HotStorage 2023).

A proxy of the model, which the trainer has sent, is run over all samples with a label; what it says of them
becomes columns, and a selector chooses by these. What goes back is ids and weights. Nothing is kept of the
scoring until the end, so a process that is killed begins it anew, and comes to the same selection.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headwater.data.index import Index
from headwater.engine.budget import Gone
from headwater.engine.inference import Extraction, Failed
from headwater.errors import DatasetStale, WrongUse
from headwater.measure.signals import Signals
from headwater.models.registry import Registry
from headwater.models.runtime import make_head
from headwater.models.version import PROXY, ModelVersion
from headwater.select.samples import Samples
from headwater.select.scoring import Gradients, score, widest_for
from headwater.select.selecting import Selector, select_all, select_among
from headwater.select.selection import Selection
from headwater.select.specs import make_selector
from headwater.store.features import OWN, Features, Variation
from headwater.store.jobs.pace import Pace, Turn
from headwater.store.jobs.record import Failing
from headwater.store.jobs.runner import Running
from headwater.store.jobs.selections import MOST_RUNS, Kept, Run, Selections
from headwater.store.loads import Load
from headwater.store.wire.jobmessages import SelectionWish

VECTORS = ("logits", "weights")
"""By what the gradients are taken that tell samples apart."""
COUNTS = ("scored", "unlabelled", "failed", "chosen")

BLOCK = 8192
"""Samples that are looked at together."""
_LOGITS_AT_ONCE = 1 << 22
_STATE = "selection"  # in the notes of a table, as a loader's has it
_SECONDS = "seconds"
_REASON = 300


@dataclass(frozen=True)
class Sieve:
    """Where it is done: a dataset, the models, how images become features, and where selections are kept.

    `features` gives what is kept of a version's features, or None; `extraction` makes them of images that
    were varied so. `turn` is for work that stands in line
    with models, `spend` for what needs CPU and no place there. `in_use` are versions that may not go.
    `settle` is told which ids were chosen, before anybody else is, and `counted` what became of samples.
    `loads` is what it took to send samples lately, if it is known.
    """

    dataset: str
    index: Index
    registry: Registry
    selections: Selections
    features: Callable[[ModelVersion], Features | None]
    extraction: Callable[[ModelVersion, Variation], Extraction]
    turn: Turn = lambda seconds: nullcontext()
    spend: Turn = lambda seconds: nullcontext()
    in_use: Callable[[], set[str]] = set
    settle: Callable[[NDArray[np.int64]], None] = lambda ids: None
    counted: Callable[[Mapping[str, int]], None] = lambda counts: None
    loads: Callable[[], Load | None] = lambda: None
    clock: Callable[[], float] = time.monotonic


def check_wish(wish: SelectionWish | None) -> Selector:
    """The selector that is wished for; raises `WrongUse` for a wish that cannot be."""
    if wish is None:
        raise WrongUse("a job that selects is told by which selector; send `selection`")
    if wish.vectors not in VECTORS:
        raise WrongUse(f"vectors of {wish.vectors!r}; known: {', '.join(VECTORS)}")
    return make_selector(wish.selector, wish.parameters)


def select(sieve: Sieve, running: Running) -> None:
    """Score all samples of a dataset and keep what the job's selector chooses of them.

    A sample without a label that the model knows, and one that could not be scored, is always among them.
    Weights are not clipped, and near-duplicates are not looked for: these may lie at other stores.
    Raises `DatasetStale`, `ModelNotFound`, and `WrongUse` for a selector or a model that cannot be used here.
    """
    record, wish = running.record, running.record.selection
    selector = check_wish(wish)
    assert wish is not None
    if record.version != sieve.index.version:
        raise DatasetStale(f"dataset {sieve.dataset!r} has another version by now; start another job")
    run = sieve.selections.run(record.by, sieve.dataset, wish.run) if wish.run else None
    if not record.result:  # else it was done, and the process ended before it had tidied up
        version = sieve.registry.version(record.model)
        try:
            vectors = _gradients(selector, wish, version, len(sieve.index))
            found = _Scoring(sieve, running, version, variation_of(wish), vectors=vectors).run()
            if found is None:
                return
            _conclude(sieve, running, found, _Choosing(sieve, running, selector).run(found, run))
        except Gone:
            if not running.over():
                raise
            return
    _tidy(sieve, wish, record.model, run)


def variation_of(wish: SelectionWish) -> Variation:
    """How images are varied before they are scored."""
    return Variation(seed=wish.seed, epoch=wish.epoch) if wish.drawn else OWN


def _conclude(sieve: Sieve, running: Running, found: _Found, chosen: _Chosen) -> None:
    """Keep the selection, and then say so."""
    record, selection = running.record, chosen.selection
    ids = sieve.index.ids[selection.places]
    kept = Kept(ids, selection.weights, dataset=sieve.dataset, version=record.version)
    sieve.settle(ids)
    sieve.selections.put(record.id, kept)
    if chosen.run is not None and chosen.signals is not None:
        chosen.run.put(selection.epoch, chosen.signals, dataset=record.version)
    counts = {**found.counts, "chosen": len(selection)}
    figures = {
        "scoring_seconds": found.seconds,
        "choosing_seconds": chosen.seconds,
        "effective": selection.effective,
    }
    running.save(result=kept.digest, said=selection.reason, figures=figures, counts=counts)
    sieve.counted(counts)


def _gradients(
    selector: Selector, wish: SelectionWish, version: ModelVersion, samples: int
) -> Gradients | None:
    if "vectors" not in selector.needs:
        return None
    if wish.vectors == "weights":
        return Gradients(len(version.classes), version.features, width=widest_for(samples))
    return Gradients(len(version.classes))


@dataclass(frozen=True, eq=False)
class _Found:
    """Columns of all samples, NaN where a sample was not scored, and what it took."""

    columns: Mapping[str, NDArray[Any]]
    counts: Mapping[str, int]
    seconds: float

    @property
    def known(self) -> NDArray[np.bool_]:
        known: NDArray[np.bool_] = ~np.isnan(self.columns["loss"])
        return known


class _Scoring:
    """One pass of a proxy over a dataset."""

    def __init__(
        self,
        sieve: Sieve,
        running: Running,
        version: ModelVersion,
        variation: Variation,
        *,
        vectors: Gradients | None,
    ) -> None:
        self._sieve, self._running, self._version, self._gradients = sieve, running, version, vectors
        self._variation = variation
        self._targets = _Targets(sieve.index, version)
        lasting = variation.is_own and _lasts(sieve.registry, version)  # no epoch has another's crops
        self._features = sieve.features(version) if lasting else None
        self._head = make_head(sieve.registry.get(version.digest))
        self._extraction: Extraction | None = None
        self._columns: dict[str, NDArray[Any]] = {
            name: np.full(len(sieve.index), np.nan, np.float32) for name in ("loss", "probability", "margin")
        }
        if vectors is not None:
            self._columns["vectors"] = np.zeros((len(sieve.index), vectors.width), np.float16)
        self._counts = dict.fromkeys(COUNTS, 0)
        self._seconds = 1e-6  # CPU of a sample whose features are here, until something was measured

    def run(self) -> _Found | None:
        """None if the job is over before it is done."""
        sieve, running = self._sieve, self._running
        begun = sieve.clock()
        running.save(total=len(sieve.index), cursor=0, counts={}, failures=())
        for begin in range(0, len(sieve.index), BLOCK):
            end = min(begin + BLOCK, len(sieve.index))
            if running.over():
                return None
            self._look_at(np.arange(begin, end))
            running.show(cursor=end)
        return _Found(self._columns, self._counts, sieve.clock() - begun)

    def _look_at(self, positions: NDArray[np.int64]) -> None:
        targets = self._targets.of(positions)
        labelled = positions[targets >= 0]
        self._counts["unlabelled"] += len(positions) - len(labelled)
        for some, features in self._find(labelled):
            for part in self._parts(len(some)):
                self._score(some[part], features[part])

    def _find(self, positions: NDArray[np.int64]) -> list[tuple[NDArray[np.int64], NDArray[np.float16]]]:
        """Positions with their features: those that are kept, and those that were made of images."""
        found, rest = [], positions
        if self._features is not None:
            places, features = self._features.get(self._sieve.index.ids[positions])
            found.append((positions[places], features))
            rest = np.delete(positions, places)
        return found + self._extract(rest)

    def _extract(self, positions: NDArray[np.int64]) -> list[tuple[NDArray[np.int64], NDArray[np.float16]]]:
        if not len(positions):
            return []
        if self._extraction is None:
            self._extraction = self._sieve.extraction(self._version, self._variation)
        made, features = [], []
        ids, epoch = self._sieve.index.ids[positions], self._variation.epoch
        for batch in self._extraction.run(positions, ids, epoch=epoch):
            made.append(batch.positions)
            features.append(batch.features)
            self._fail(batch.failures)
            if self._features is not None:
                self._features.put(batch.positions, batch.features)
            if self._running.over():
                raise Gone("nobody waits for this selection any more")
        return [(np.concatenate(made), np.concatenate(features))] if made else []

    def _parts(self, count: int) -> list[slice]:
        """As many rows as have logits that fit into memory."""
        rows = max(1, _LOGITS_AT_ONCE // len(self._version.classes))
        return [slice(begin, begin + rows) for begin in range(0, count, rows)]

    def _score(self, positions: NDArray[np.int64], features: NDArray[np.float16]) -> None:
        with self._sieve.turn(self._seconds * len(positions)):
            begun = time.thread_time()
            targets = self._targets.of(positions)
            logits = self._head.run(features.astype(np.float32))
            scored = score(logits, targets)
            for name in ("loss", "probability", "margin"):
                self._columns[name][positions] = getattr(scored, name)
            if self._gradients is not None:
                self._columns["vectors"][positions] = self._gradients.make(logits, targets, features)
            self._seconds = (time.thread_time() - begun) / max(1, len(positions))
        lost = positions[np.isnan(scored.loss)]
        self._counts["scored"] += len(positions) - len(lost)
        self._note([(int(at), "the proxy gives no finite loss for it") for at in lost])

    def _fail(self, failures: tuple[Failed, ...]) -> None:
        self._note([(failed.position, str(failed.error)[:_REASON]) for failed in failures])

    def _note(self, failures: list[tuple[int, str]]) -> None:
        if not failures:
            return
        index = self._sieve.index
        self._counts["failed"] += len(failures)
        named = tuple(Failing(int(index.ids[at]), index.key(at), reason) for at, reason in failures)
        self._running.show(failures=self._running.record.counting({}, named).failures)


class _Targets:
    """The place of each sample's class among the model's; -1 where it has none, or the model has not."""

    def __init__(self, index: Index, version: ModelVersion) -> None:
        self._labels = index.labels
        place = {name: number for number, name in enumerate(version.classes)}
        names = index.classes or tuple(str(number) for number in range(len(version.classes)))
        known = [place.get(name, -1) for name in names] if index.classes else list(range(len(names)))
        # what is no label at all finds the last entry
        self._table = np.array([*known, -1], np.int64)
        if not (self._table >= 0).any():
            raise WrongUse(
                f"the dataset has classes such as {names[0]!r}, the proxy such as {version.classes[0]!r}, "
                "and none in common; give the proxy the dataset's names"
            )

    def of(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        labels = self._labels[positions]
        found = np.where((labels >= 0) & (labels < len(self._table) - 1), labels, -1)
        targets: NDArray[np.int64] = self._table[found]
        return targets


def _lasts(registry: Registry, version: ModelVersion) -> bool:
    """Whether the trunk serves more than this one version.

    Else its features are of no further use, and would send away those of models that last.
    """
    if version.digest in registry.in_force().values():
        return True
    trunk = version.trunk_digest
    return any(one.trunk_digest == trunk for one in registry.versions() if one.digest != version.digest)


@dataclass(frozen=True, eq=False)
class _Chosen:
    """What is chosen, in how many seconds, and the run's table with this round in it, if there is a run."""

    selection: Selection
    seconds: float
    run: Run | None = None
    signals: Signals | None = None


class _Choosing:
    """One choice of a selector. CPU is set aside for each stretch of it, as much as the last one took."""

    def __init__(self, sieve: Sieve, running: Running, selector: Selector) -> None:
        self._sieve, self._running, self._selector = sieve, running, selector
        self._pace = Pace(sieve.spend, running.over)

    def run(self, found: _Found, run: Run | None) -> _Chosen:
        """Raises `Gone` if the job is over before it is done."""
        sieve, wish = self._sieve, self._running.record.selection
        assert wish is not None
        begun, index = sieve.clock(), sieve.index
        signals = None if run is None else run.before(wish.epoch, index)
        if signals is not None:
            _add_round(signals, found, wish, index, model=self._running.record.model)
            self._pace.seconds = signals.notes.get(_STATE, {}).get(_SECONDS, 0.0)
        selection = self._choose(_samples(sieve, wish, found, signals), found.known)
        if signals is not None:
            signals.notes[_STATE] = {"state": dict(selection.state), _SECONDS: self._pace.seconds}
            if selection.buckets is not None:
                signals.column("bucket")[found.known] = selection.buckets
        return _Chosen(selection, sieve.clock() - begun, run, signals)

    def _choose(self, samples: Samples, known: NDArray[np.bool_]) -> Selection:
        if "vectors" in self._selector.needs:  # what compares samples takes long, and goes class by class
            return _select_known(self._selector, replace(samples, turn=self._pace.turn), known)
        with self._pace.turn(len(samples)):
            return _select_known(self._selector, samples, known)


def _add_round(signals: Signals, found: _Found, wish: SelectionWish, index: Index, *, model: str) -> None:
    (known,), number = np.nonzero(found.known), signals.number_model(model)
    for begin in range(0, len(known), BLOCK):
        at = known[begin : begin + BLOCK]
        loss, probability, margin = (found.columns[name][at] for name in ("loss", "probability", "margin"))
        said = {"probability": probability, "margin": margin}
        signals.record(index.ids[at], loss, epoch=wish.epoch, model=number, **said)


def _samples(sieve: Sieve, wish: SelectionWish, found: _Found, signals: Signals | None) -> Samples:
    """As selectors see them; of a run also what was before this round.

    Bytes are those that were sent last, as the plans of trainers have it, and of the file where none were.
    """
    index, load = sieve.index, sieve.loads()
    columns = dict(found.columns)
    columns["bytes"] = index.sizes.astype(np.float32)
    if load is not None:
        columns["bytes"] = np.where(np.isnan(load.bytes), columns["bytes"], load.bytes)
        columns["seconds"] = load.seconds.copy()
    state: Mapping[str, Any] = {}
    if signals is not None:
        state = signals.notes.get(_STATE, {}).get("state", {})
        columns |= {"smoothed": signals.smoothed, "peak": signals.peak, "deviation": signals.deviation}
        columns |= {"seen": signals.seen, "last": signals.epoch, "bucket": signals.bucket}
        columns["judged"] = signals.logits_epoch
    else:
        columns |= {"smoothed": columns["loss"], "peak": columns["loss"]}
        once = {"seen": 1, "last": wish.epoch, "judged": wish.epoch}
        columns |= {name: np.broadcast_to(np.int32(value), len(index)) for name, value in once.items()}
    facts = {"seed": wish.seed, "epoch": wish.epoch, "epochs": wish.epochs, "stalled": wish.stalled}
    return Samples.of(index.ids, index.labels, state=state, all_scored=True, **facts, **columns)


def _select_known(selector: Selector, samples: Samples, known: NDArray[np.bool_]) -> Selection:
    """A selection among those of which something is known, and all others with them."""
    if not known.any():
        return select_all(samples, name=selector.name, reason="everything: no sample could be scored")
    if missing := _unknown(selector, samples, known):
        reason = f"everything: nothing is known of {missing!r} yet"
        return select_all(samples, name=selector.name, reason=reason)
    # Who has all stores' parts clips them.
    return select_among(selector, samples, known, clip=math.inf)


def _unknown(selector: Selector, samples: Samples, known: NDArray[np.bool_]) -> str:
    """A column that the selector learns from and that says nothing of any known sample; empty if none."""
    columns = ((name, getattr(samples, name)) for name in selector.needs)
    return next((name for name, column in columns if column is None or np.isnan(column[known]).all()), "")


def _tidy(sieve: Sieve, wish: SelectionWish, model: str, run: Run | None) -> None:
    """Let go of proxies of which nothing more is asked, and of what a run has shown that ends.

    Those are the run's own before this one, from which the next round's delta starts; this one, when it ends;
    and those of runs that were not heard of for long.
    """
    if run is None:
        return
    if wish.ends:
        run.forget()
    made = [one for one in sieve.registry.versions() if one.made.get("by") == PROXY]  # the oldest first
    own = [one.digest for one in made if one.made.get("run") == wish.run]
    heard = {str(one.made.get("run")): None for one in reversed(made)}
    lost = set(list(heard)[MOST_RUNS:])
    # Of a run that ends, all: this one may have gone before a process was killed, and those before it not.
    old = set(own[: own.index(model) + 1] if model in own else own if wish.ends else ())
    old |= {one.digest for one in made if str(one.made.get("run")) in lost}
    kept = sieve.in_use() - {model} if wish.ends else {*sieve.in_use(), model}
    if old - kept:
        sieve.registry.drop(old - kept)
