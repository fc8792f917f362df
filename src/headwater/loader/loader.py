"""The DataLoader: torch's argument names, threads instead of forked workers, a state that resumes."""

from __future__ import annotations

import math
import time
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from headwater.data.buffers import Buffers
from headwater.data.image import DEFAULT_LIMITS, Limits
from headwater.data.translate import as_pipeline
from headwater.engine.cache import Cache, CachedReader, SampleCache
from headwater.engine.chain import Chain
from headwater.engine.crew import Crew, available_cores
from headwater.engine.fetching import Reader
from headwater.engine.meter import Meter
from headwater.engine.order import Order
from headwater.engine.run import Bounds, Task, run
from headwater.errors import WrongUse
from headwater.loader.batch import Batch, Device
from headwater.loader.collate import ON_ERROR, BatchSink, Collate, Making
from headwater.loader.curator import Curator, Elsewhere
from headwater.loader.device import Transfer
from headwater.loader.duplicates import Duplicates
from headwater.loader.loads import Loads
from headwater.loader.offloading import Given, resolve
from headwater.loader.ordering import Ordering
from headwater.loader.pantry import Pantry
from headwater.loader.planner import Planner
from headwater.loader.progress import EpochBar
from headwater.loader.ranks import find_rank
from headwater.loader.reporting import Shown
from headwater.loader.state import SHUFFLES, LoaderState
from headwater.loader.threads import use_one_core
from headwater.measure.logbook import Logbook
from headwater.measure.signals import Signals
from headwater.measure.stats import Stats
from headwater.plan.offload import Offload
from headwater.select.selecting import Selector
from headwater.select.selection import Selection
from headwater.store.dataset import Dataset

_LOT_BYTES = 1 << 20
_REQUEST_BYTES = 1 << 22  # what is read together from another machine: asking has a price of its own
_HELD_BATCHES = 2  # that a training loop usually holds: the one it works on, and the last one


class DataLoader:
    """Batches of a dataset, the same whatever the number of workers or ranks.

    Each `for` loop is one epoch; the first one after `load_state_dict` goes on where the state stands.
    Breaking out of a loop ends its epoch. Every sample comes once per epoch over all ranks, and all
    ranks take the same number of steps (see `headwater.engine.order` for the rest at the end). Nothing is
    read and no thread starts before the first iteration.

    `transform` is a `headwater.transforms.Compose`, a list of transforms, a torchvision `Compose`
    or any callable. `shuffle="blocks"` shuffles within windows of row groups, for Parquet that does
    not fit into memory. `num_workers` counts threads (default: the cores this process may use; 0 runs
    everything in the caller's thread). `prefetch_factor` batches are made ahead, more if that keeps the
    threads busy, fewer if they would exceed `prefetch_bytes`. `on_error` is raise, skip or substitute.
    `offload` lets a remote store run the first steps: "auto" plans for each sample, a policy's name plans by
    that policy, an `Auto` with further wishes, an `Offload` does the same for all, and the path of a
    logbook begins with what an earlier run has found. `select` names a selector or is one: an epoch then
    visits the samples that it chooses, with weights; `epochs` tells it how many there will be, and `signals`
    is the folder where what it knows is saved with the loader's state, or a file of it that another run has
    saved: then it begins with what that knows. `cache` holds samples, so that they
    do not move again: bytes of memory, or a `Cache`. `duplicates` says which are near-duplicates, and what to
    do with them. `device` receives the batches, and runs the batch stage.
    `rank` and `world_size` default to torch.distributed's.
    """

    def __init__(
        self,
        dataset: Dataset,
        transform: Any = None,
        *,
        batch_size: int = 1,
        shuffle: bool | str = False,
        seed: int = 0,
        num_workers: int | None = None,
        drop_last: bool = False,
        collate_fn: Collate | None = None,
        pin_memory: bool = False,
        device: Device | None = None,
        timeout: float = 0.0,
        prefetch_factor: int = 2,
        prefetch_bytes: int = 1 << 30,
        on_error: str = "raise",
        offload: Given = None,
        select: str | Selector | Elsewhere | None = None,
        epochs: int | None = None,
        signals: str | Path | None = None,
        cache: Cache | int | str | None = None,
        duplicates: Duplicates | None = None,
        limits: Limits | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        progress: bool | None = None,
    ) -> None:
        _check(dataset, shuffle=shuffle, on_error=on_error)
        if prefetch_factor < 1 or prefetch_bytes < 1 or timeout < 0:
            raise WrongUse("prefetch_factor and prefetch_bytes must be at least 1, timeout at least 0")
        self.dataset = dataset
        self.pipeline = as_pipeline(transform)
        self.batch_size = batch_size
        self.drop_last = drop_last
        self.seed = int(seed)
        self.num_workers = available_cores() if num_workers is None else num_workers
        self._timeout = timeout
        self._ranks = find_rank(rank, world_size)
        self._ordering = Ordering(
            dataset,
            shuffle=SHUFFLES[shuffle],
            seed=self.seed,
            batch_size=batch_size,
            drop_last=drop_last,
            ranks=self._ranks,
        )
        self._progress = progress
        self._meter = Meter()
        self._signals = Signals(dataset.index)
        if epochs is not None and epochs < 1:
            raise WrongUse(f"epochs is {epochs}; it must be at least 1")
        self.epochs = epochs
        self._transfer = Transfer(device, pin_memory)
        self._chain = Chain(self.pipeline.samplewise, self.seed, limits or DEFAULT_LIMITS)
        self._offload = resolve(offload, self._chain.pipeline)
        self._cache = self._make_cache(Cache.of(cache))
        self._curator = self._curate(select, duplicates, signals)
        dataset.store.compare_steps()
        self._planner: Planner | None = None
        self._crew = Crew(
            self.num_workers, dataset.store.readers, prepare=use_one_core, patient=dataset.store.remote
        )
        self._epoch = self._start = 0
        self._resuming = False
        self._stalled, self._stood_in = 0.0, 0
        self._loads = Loads()
        self._order(0, 0)  # raises for sizes and ranks that cannot be
        self._ordering.warn_of_rereading()
        self._bounds = self._find_bounds(prefetch_factor, prefetch_bytes)
        self._sink = self._make_sink(on_error, collate_fn)
        weakref.finalize(self, self._crew.close)

    def _curate(
        self,
        select: str | Selector | Elsewhere | None,
        duplicates: Duplicates | None,
        signals: str | Path | None,
    ) -> Curator | None:
        if select is None and duplicates is None:
            return None
        return Curator(
            select or "uniform",
            self.dataset,
            seed=self.seed,
            epochs=self.epochs,
            ranks=self._ranks,
            folder=None if signals is None else Path(signals),
            pantry=Pantry(self.dataset, self._cache, duplicates, own=self._ordering.own),
        )

    def _make_cache(self, settings: Cache | None) -> SampleCache | None:
        if settings is None:
            return None
        index = self.dataset.index
        positions = None if len(self.dataset) == len(index) else self.dataset.positions()
        return SampleCache(settings, index, self._chain, positions=positions)

    def _make_sink(self, on_error: str, collate_fn: Collate | None) -> BatchSink:
        buffers = None if self._transfer.pinned else Buffers(self._bounds.batches + _HELD_BATCHES)
        making = Making(
            self.dataset,
            self.pipeline.batchwise,
            self._transfer,
            self._meter,
            buffers,
            seed=self.seed,
            on_error=on_error,
            collate_fn=collate_fn,
        )
        return BatchSink(making)

    def __len__(self) -> int:
        """Steps of the epoch that stands now, as a whole, on this rank."""
        return self._order(self._epoch, 0).steps

    @property
    def epoch(self) -> int:
        """The epoch that stands now; when one has ended, the next."""
        return self._epoch

    @property
    def done(self) -> float:
        """The share of the run's `epochs` that lies behind, for schedules: it counts epochs of any length.

        Raises `WrongUse` if the loader was not told how many there will be.
        """
        epochs = self._known_epochs()
        if not self._start:
            return self._epoch / epochs
        return (self._epoch + self._start / self._order(self._epoch, 0).permutation.count) / epochs

    @property
    def total_steps(self) -> int:
        """Steps of the whole run on this rank: past epochs as they were, later ones as the one that stands.

        So it changes when a selector does, and is exact in the last epoch. Raises as `done` does.
        """
        past = {} if self._curator is None else self._curator.counts()
        left, now = max(0, self._known_epochs() - self._epoch), len(self)
        behind = (past.get(epoch) for epoch in range(self._epoch))
        return left * now + sum(now if count is None else self._ordering.steps(count) for count in behind)

    def _known_epochs(self) -> int:
        if self.epochs is None:
            raise WrongUse("the loader does not know how many epochs there will be; pass epochs=N")
        return self.epochs

    def set_epoch(self, epoch: int) -> None:
        """Let the next loop be this epoch, from its beginning."""
        if epoch < 0:
            raise WrongUse(f"epoch is {epoch}; it must be 0 or more")
        self._epoch, self._start, self._resuming = epoch, 0, False

    def __iter__(self) -> Iterator[Batch]:
        if self._start and not self._resuming:  # the last loop was left early: its epoch is over
            self._epoch, self._start = self._epoch + 1, 0
        if self._curator is not None:
            self._curator.begin(self._epoch, stalled=self._stalled)
        return self._iterate(self._epoch, self._order(self._epoch, self._start))

    def _iterate(self, epoch: int, order: Order) -> Iterator[Batch]:
        planner, selection = self._plan(), self.selection
        begun, waited = time.perf_counter(), self._meter.stats().waited
        tasks = (self._task(order, step, epoch, selection) for step in range(order.steps))
        batches = run(
            tasks if planner is None else planner.assign(tasks),
            self._reader(planner),
            chain=self._chain,
            sink=self._sink,
            crew=self._crew,
            bounds=self._bounds,
            meter=self._meter,
            watch=planner,
            timeout=self._timeout,
        )
        if self._curator is not None:
            self._curator.running = True
        try:
            with EpochBar(epoch, order.steps, self._meter, show=self._progress) as bar:
                for step, batch in enumerate(batches, start=1):
                    self._stand(epoch, order.start_after(step), order)
                    self._loads.settle(self.signals)
                    self._stood_in += 0 if selection is None else selection.stood_in(order.take(step - 1))
                    bar.advance(len(batch))
                    handed = time.perf_counter()
                    yield self._transfer.hand_over(batch)
                    if planner is not None:
                        planner.delivered(time.perf_counter() - handed)
        finally:  # also of a loop that is left early
            if planner is not None and self._ranks()[0] == 0:
                planner.keep()
            seconds = time.perf_counter() - begun
            if self._curator is not None:
                self._curator.running = False
                self._curator.trained(seconds, whole=not order.start and self._epoch == epoch + 1)
        if not order.steps:
            self._stand(epoch, order.permutation.count, order)
        if self._curator is not None:
            self._stalled = (self._meter.stats().waited - waited) / seconds if seconds else 0.0
            if self._epoch == epoch + 1:
                self._curator.begin(self._epoch, stalled=self._stalled)

    def _plan(self) -> Planner | None:
        """Who plans this loader's epochs; None where nobody has to."""
        if isinstance(self._offload, Offload) or not self.dataset.store.remote:
            return None
        if self._planner is None:
            self._planner = Planner(
                self.dataset,
                self._chain,
                self._offload,
                meter=self._meter,
                cores=max(1, self.num_workers),
                world_size=self._ranks()[1],
                cache=self._cache,
            )
        return self._planner

    def _reader(self, planner: Planner | None) -> Reader:
        make = partial(self.dataset.store.reader, self._chain)
        ways, cache = self._ways(planner), self._cache
        reader = make(ways) if cache is None else CachedReader(make, ways, cache, self._meter)
        return reader if self._curator is None else self._loads.watch(reader)

    def _ways(self, planner: Planner | None) -> tuple[Offload, ...]:
        if planner is not None:
            return planner.ways
        return (self._offload if isinstance(self._offload, Offload) else Offload(0),)

    @property
    def logbook(self) -> Logbook | None:
        """What offloading was expected to do and what it did; None without a planner."""
        return None if self._planner is None else self._planner.logbook

    def _stand(self, epoch: int, start: int, order: Order) -> None:
        """Note the position; the end of an epoch is the beginning of the next."""
        self._resuming = False
        if start < order.permutation.count:
            self._epoch, self._start = epoch, start
        else:
            self._epoch, self._start = epoch + 1, 0
            self._meter.count(epochs=1)

    def state_dict(self) -> dict[str, Any]:
        """Where this loader stands: after the last batch that it handed out. The same on every rank.

        With a selector, what that knows is written to a file that the state names, and each rank's knows what
        itself has seen of an epoch that is not over.
        """
        state = self._state()
        if self._curator is not None:
            self._curator.standing(self._epoch)
            state = msgspec.structs.replace(state, signals=self._curator.save())
        return state.to_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where the state stands, whatever the number of ranks and workers was.

        Raises `StateMismatch` if it was saved for other data, another seed or another kind of shuffle.
        """
        loaded = LoaderState.from_dict(state)
        loaded.check(self._state())
        if self._curator is not None:
            self._curator.restore(loaded.signals)
        if (
            self._curator is None or loaded.start
        ):  # else ranks may have to tell each other what they saw first
            self._order(loaded.epoch, loaded.start)
        self._epoch, self._start = loaded.epoch, loaded.start
        self._resuming = True

    def report(
        self, batch: Batch, *, loss: torch.Tensor, logits: torch.Tensor | None = None, model: int = -1
    ) -> None:
        """Tell the loader the loss of each sample of a batch (`reduction="none"`), without weights.

        With `logits`, selectors also know probabilities and margins. `model` is any number that grows as the
        model does, such as that of its step; -1 is for that of the epoch.
        """
        vectors = self._curator is not None and "vectors" in self._curator.needs
        shown = Shown.of(loss, logits, batch.targets, vectors=vectors)
        self.signals.record(batch.ids.numpy(), epoch=batch.epoch, model=model, **shown.columns)
        if self._curator is not None:
            self._curator.scored(shown.seconds)

    @property
    def signals(self) -> Signals:
        """What is known of each sample."""
        return self._signals if self._curator is None else self._curator.signals

    @property
    def selection(self) -> Selection | None:
        """The samples of the epoch that stands now; None without a selector."""
        return None if self._curator is None else self._curator.standing(self._epoch)

    @property
    def cache(self) -> SampleCache | None:
        """The samples that are held at the trainer; None without a cache."""
        return self._cache

    def stats(self) -> Stats:
        """Totals since this loader was made."""
        failure = "" if self._planner is None else self._planner.failure
        ended = "" if self._curator is None else self._curator.ended
        stats = replace(self._meter.stats(), stand_ins=self._stood_in)
        return replace(stats, planning_failed=failure, selecting_ended=ended)

    def close(self) -> None:
        """Let the threads go. They also go when the loader is no longer used."""
        self._crew.close()
        if self._cache is not None:
            self._cache.close()

    def _state(self) -> LoaderState:
        return LoaderState(
            epoch=self._epoch,
            start=self._start,
            seed=self.seed,
            shuffle=self._ordering.name,
            count=len(self.dataset),
            dataset=self.dataset.version,
            pipeline=self.pipeline.hash,
            select="" if self._curator is None else self._curator.name,
        )

    def _order(self, epoch: int, start: int) -> Order:
        places = None if self._curator is None else self._curator.standing(epoch).places
        return self._ordering.of(epoch, places, start)

    def _task(self, order: Order, step: int, epoch: int, selection: Selection | None) -> Task:
        index, places, weights = self.dataset.index, order.take(step), None
        if selection is not None:
            within = np.searchsorted(selection.places, places)
            weights, places = selection.weights[within], selection.served[within]
        positions = self.dataset.positions(places)
        size = int(index.sizes[positions].sum())
        return Task(positions, index.ids[positions], epoch, size, weights=weights)

    def _find_bounds(self, prefetch_factor: int, prefetch_bytes: int) -> Bounds:
        if not self.num_workers:
            return Bounds(batches=1, bytes=prefetch_bytes, lot=self.batch_size)
        sizes = self.dataset.index.sizes
        mean = max(1.0, float(np.mean(sizes[:: max(1, len(sizes) // 1000)])))
        remote = self.dataset.store.remote
        threads = 1 if remote else max(self.num_workers, self.dataset.store.readers)
        share = math.ceil(self.batch_size / threads)
        lot = max(1, min(share, int((_REQUEST_BYTES if remote else _LOT_BYTES) / mean)))
        busy = 2 * max(self.num_workers, self.dataset.store.readers) * lot
        return Bounds(
            batches=max(prefetch_factor, math.ceil(busy / self.batch_size)), bytes=prefetch_bytes, lot=lot
        )


def _check(dataset: Dataset, *, shuffle: bool | str, on_error: str) -> None:
    if not isinstance(dataset, Dataset):
        raise WrongUse(f"the first argument is a {type(dataset).__name__}; open the data with hw.open(...)")
    if not len(dataset):
        raise WrongUse(f"{dataset!r} is empty; there is nothing to load")
    if shuffle not in SHUFFLES:
        raise WrongUse(f"shuffle is {shuffle!r}; it may be {', '.join(map(repr, SHUFFLES))}")
    if on_error not in ON_ERROR:
        raise WrongUse(f"on_error is {on_error!r}; it may be {', '.join(ON_ERROR)}")
