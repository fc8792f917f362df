"""Finds near-duplicates: by a job at the stores that have the data, or here by the same means."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import closing

import numpy as np

from headwater.data.image import DEFAULT_LIMITS, Limits
from headwater.data.progress import bar
from headwater.engine.chain import Chain
from headwater.engine.crew import Crew, available_cores
from headwater.engine.fingerprints import Fingerprinting, fingerprint_chain
from headwater.engine.inference import Extraction
from headwater.errors import Refused, WrongUse
from headwater.loader.duplicates import Duplicates
from headwater.models.registry import Registry
from headwater.models.runtime import Engine
from headwater.models.shelf import models_folder
from headwater.plan.offload import Offload
from headwater.select.duplicates import ALIKE, COSINE, renumber
from headwater.store.base import Store
from headwater.store.dataset import Dataset
from headwater.store.duplicates import Grouped, groups_at
from headwater.store.features import OWN
from headwater.store.jobs.duplicates import ByFeatures, ByPictures, Look, check_bound

log = logging.getLogger("headwater")

LOOKS = ("pictures", "features")
_FILES, _THUMBNAILS = Offload(0), Offload(2)


def find_duplicates(
    dataset: Dataset,
    *,
    by: str = "pictures",
    model: str = "",
    most: int = ALIKE,
    least: float = COSINE,
    limits: Limits | None = None,
    progress: bool | None = None,
) -> Duplicates:
    """Groups of samples of one label that are alike, found beside the data: a store answers with groups.

    Shards answer with fingerprints, 96 bytes of each, or with features, and their groups are found here: they
    are those of the whole, whatever lies where. By pictures, `most` bits of 128 may differ between the
    fingerprints of two. A store that allows no jobs is asked for thumbnails instead, 1.6 kB of each, and a
    line says so; `limits` are for what is looked at here.
    By features, their cosine is at least `least`: those of `model`, a digest or a name, that the store holds
    or, for local data, your folder of models.
    """
    _check(by, model, most=most, least=least)
    bound = least if model else most
    with bar("looking for near-duplicates", len(dataset), wanted=progress) as advance:
        if dataset.store.remote:
            try:
                return _restrict(dataset, groups_at(dataset.store, model=model, bound=bound, advance=advance))
            except (Refused, WrongUse) as error:
                if model:
                    raise
                log.warning("near-duplicates are looked for here, of thumbnails that stores send: %s", error)
        with closing(Crew(available_cores(), dataset.store.readers, patient=dataset.store.remote)) as crew:
            return _find_here(dataset, _look(dataset.store, crew, model, bound, limits), advance)


def _check(by: str, model: str, *, most: int, least: float) -> None:
    if by not in LOOKS:
        raise WrongUse(f"by is {by!r}; choose from {', '.join(LOOKS)}")
    if (by == "features") != bool(model):
        raise WrongUse('features are those of a model; give by="features" and model=NAME, or neither')
    check_bound(model, least if model else most)


def _look(store: Store, crew: Crew, model: str, bound: float, limits: Limits | None) -> Look:
    """What tells samples apart that lie here, or come as thumbnails."""
    if not model:
        chain = fingerprint_chain(limits or DEFAULT_LIMITS)
        ways = (_THUMBNAILS,) if store.remote else (_FILES,)
        made = Fingerprinting(lambda: store.reader(chain, ways), crew, chain)
        return ByPictures(store.index, made, int(bound))
    registry = Registry(models_folder())
    chain = Chain(OWN.pipeline(registry.version(model)), limits=limits or DEFAULT_LIMITS)
    layers = Engine(registry.get(model), threads=1)
    return ByFeatures(
        store.index, Extraction(lambda: store.reader(chain, (_FILES,)), chain, layers, crew), bound
    )


def _find_here(dataset: Dataset, look: Look, advance: Callable[[int], None]) -> Duplicates:
    """Groups of those that could be looked at; the others are alone."""
    batches = []
    for batch in look.make(dataset.positions()):
        batches.append(batch)
        advance(len(batch[0]) + len(batch[2]))
    groups = np.full(len(dataset), -1, np.int32)
    if batches:
        made = np.isin(dataset.positions(), np.concatenate([batch[0] for batch in batches]))
        rows = np.concatenate([batch[1] for batch in batches])  # in the dataset's order
        groups[made] = look.group(rows, dataset.labels[made].astype(np.int64), dataset.ids[made])
    return Duplicates(groups, failed=tuple(failure for batch in batches for failure in batch[2]))


def _restrict(dataset: Dataset, found: Grouped) -> Duplicates:
    """Groups of all that a store serves, for some of it: one that is left with a single member is none."""
    groups = renumber(found.groups[dataset.positions()])
    there = np.isin([one.position for one in found.failures], dataset.positions())
    failed = tuple(one for one, own in zip(found.failures, there, strict=True) if own)
    return Duplicates(groups, failed=failed)
