"""From a few measured samples to the plan of a fine-tuning."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from headwater.data.pipeline import Pipeline
from headwater.engine.crew import available_cores
from headwater.errors import ModelError, StoreLost, WrongUse
from headwater.models.crossing import Crossing
from headwater.plan.finetune import Convergence, Cut, FinetunePlan, Rates, Work, make_plan
from headwater.plan.finetune.choice import Wish
from headwater.plan.finetune.cut import FEATURES, IMAGES
from headwater.store.base import Store
from headwater.store.client.remote import RemoteStore
from headwater.store.dataset import Dataset
from headwater.store.fleet import ShardedStore
from headwater.store.gathering import check_age
from headwater.tune.finalists import run_finalists
from headwater.tune.inflow import Source
from headwater.tune.inside import Pace, shares, worthwhile
from headwater.tune.measuring import seconds_per_image
from headwater.tune.recipe import Recipe
from headwater.tune.runs import LOT, count_held
from headwater.tune.sources import Here, Sources

_SWING = 0.1
"""By how much two measurements of one link may differ."""


@dataclass(frozen=True)
class HeadCost:
    """A head's weights, and the seconds that one pass of training takes for one sample."""

    weights: int
    train_seconds: float


@dataclass(frozen=True)
class _Measured:
    """The cuts that can be, the rates for them, and why there are no more."""

    cuts: list[Cut]
    rates: Rates
    without: str = ""


def plan_tuning(
    dataset: Dataset, sources: Sources, *, steps: Pipeline, recipe: Recipe, head: HeadCost
) -> FinetunePlan:
    """Measure a few samples each way, and choose; raises `WrongUse` for wishes that cannot be."""
    held = count_held(len(dataset), recipe.validation)
    images = len(dataset) - held
    if images < 1:
        raise WrongUse(f"of {len(dataset)} samples, {held} are held out and none is left; lower validation")
    _check_name(recipe.cut, sources)
    remote = dataset.store.remote
    if not remote and recipe.cut not in (None, IMAGES):
        raise WrongUse(f"{dataset.uri} lies here, so no store can make features of it; leave out `cut`")
    found = _measure(dataset, sources, steps, recipe) if remote else _measure_here(dataset, sources, steps)
    stores, free = count_stores(dataset.store)
    plan = make_plan(
        found.cuts,
        Work(images, held, recipe.variants, recipe.epochs, head.train_seconds, LOT),
        rates=found.rates,
        stores=stores,
        image_bytes=float(dataset.sizes.mean()),
        convergence=Convergence(head.weights),
        steps=recipe.epochs * math.ceil(images / recipe.batch_size),
        wish=Wish(recipe.cut, recipe.runs, None if free else stores, recipe.more_bytes),
    )
    return replace(plan, reason=f"{plan.reason}; {found.without}") if found.without else plan


def _check_name(cut: str | None, sources: Sources) -> None:
    if cut not in (None, IMAGES, FEATURES) and cut not in sources.crossings.names:
        known = ", ".join((IMAGES, FEATURES, *sources.crossings.names))
        raise WrongUse(f"the model cannot be cut at {cut!r}; choose from {known}")


def count_stores(store: Store) -> tuple[int, bool]:
    """How many stores there are, and whether fewer would do: replicas hold the same, shards do not."""
    if isinstance(store, RemoteStore):
        return len(store.replicas.all), True
    return (len(store.stores), False) if isinstance(store, ShardedStore) else (1, False)


def _measure_here(dataset: Dataset, sources: Sources, steps: Pipeline) -> _Measured:
    """Nothing crosses a link, and the cores that make features are those that train."""
    seconds = _time(sources.here(), dataset, steps)
    return _Measured([Cut(IMAGES, 0.0, 0.0, seconds)], Rates(tuner_cores=1.0))


def _measure(dataset: Dataset, sources: Sources, steps: Pipeline, recipe: Recipe) -> _Measured:
    """Both ends and what lies between, unless one end was asked for, or the stores cannot run the layers."""
    stores, _ = count_stores(dataset.store)
    cuts: list[Cut] = []
    links, note, here = _Links(), "", None
    if recipe.cut != FEATURES:
        alone = _ask_one(sources, steps)
        here = sources.here()
        _time(here, dataset, steps)
        links = _Links.of(alone, _rate_of(dataset.store), stores)
        cuts.append(Cut(IMAGES, 0.0, float(dataset.sizes.mean()), here.seconds))
    if recipe.cut != IMAGES:
        try:
            there = sources.at_stores(stores)
            seconds = stores * _time(there, dataset, steps)
            if here is not None:
                inside, note = _measure_inside(dataset, sources, recipe, here=here, store_seconds=seconds)
                cuts += inside
            cuts.append(Cut(FEATURES, seconds, there.bytes_each))
        except ModelError as error:
            if recipe.cut is not None:
                raise
            note = f"no features from the stores: {error}"
    rates = Rates(
        store_cores=1.0, store_link=links.store, tuner_link=links.tuner, tuner_cores=available_cores()
    )
    if recipe.cut is None:
        cuts = run_finalists(cuts, dataset, sources, steps=steps, rates=rates, stores=stores)
    return _Measured(cuts, rates, note)


def _measure_inside(
    dataset: Dataset, sources: Sources, recipe: Recipe, *, here: Here, store_seconds: float
) -> tuple[list[Cut], str]:
    """The cuts between the layers, and what is to be said of them."""
    try:
        chosen = _choose_inside(dataset, sources, recipe)
        if not chosen or here.glimpse is None:
            return [], ""
        found = shares(sources.model, chosen, here.glimpse)
    except ModelError as error:
        if recipe.cut is not None:
            raise
        return [], f"no cut between the layers: {error}"
    pace = Pace(here.layer_seconds, max(0.0, here.seconds - here.layer_seconds), store_seconds)
    cuts = [pace.cut(crossing, found[crossing.name]) for crossing in chosen if crossing.name in found]
    if recipe.cut is not None and not cuts:
        raise ModelError(f"values at the cut {recipe.cut!r} do not fit into half precision; cut elsewhere")
    return cuts, f"{len(cuts)} of {len(sources.crossings)} cuts between the layers were looked at"


def _choose_inside(dataset: Dataset, sources: Sources, recipe: Recipe) -> list[Crossing]:
    check_age(dataset.store)
    if recipe.cut is not None:
        return [sources.crossings.find(recipe.cut)]
    most = math.inf if recipe.more_bytes else float(dataset.sizes.mean())
    return worthwhile(sources.crossings, most_bytes=most)


def _time(source: Source, dataset: Dataset, steps: Pipeline) -> float:
    try:
        return seconds_per_image(source, dataset, steps)
    finally:
        source.close()


@dataclass(frozen=True)
class _Links:
    """Bytes per second from one store, and what the tuner takes in from all of them."""

    store: float = math.inf
    tuner: float = math.inf

    @classmethod
    def of(cls, alone: float | None, together: float, stores: int) -> _Links:
        """From what one store gives alone, where that was measured, and all of them at once.

        A store that gives alone about as much as all do together fills the tuner's link.
        """
        least = together / stores
        if alone is None:
            return cls(least, together)
        return cls(together if alone >= (1 - _SWING) * together else max(alone, least), together)


def _ask_one(sources: Sources, steps: Pipeline) -> float | None:
    """Bytes per second from the first of several replicas alone; None if it is away, or there is no choice.

    Before all are asked: what a store has read it may have in memory, and one that looks too quick would
    leave the others out.
    """
    stores, free = count_stores(sources.dataset.store)
    if stores == 1 or not free:
        return None
    one = sources.among(1)
    try:
        _time(one.here(), one.dataset, steps)
    except StoreLost:
        return None
    return _rate_of(one.dataset.store)


def _rate_of(store: Store) -> float:
    """Bytes per second from all of a store's parts, as files have come so far."""
    parts = store.stores if isinstance(store, ShardedStore) else (store,)
    traffic = [part.traffic.read() for part in parts if isinstance(part, RemoteStore)]
    rates = [size / seconds for size, seconds in traffic if size and seconds > 0]
    return sum(rates) if rates else math.inf
