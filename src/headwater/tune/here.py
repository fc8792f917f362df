"""A store's job without a store: labels of local data, made in this process."""

from __future__ import annotations

import fcntl
import logging
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from headwater.data.indexcache import cache_folder
from headwater.engine.chain import Chain
from headwater.engine.crew import Crew, available_cores
from headwater.engine.inference import Extraction
from headwater.models.registry import Registry
from headwater.models.runtime import Engine
from headwater.models.version import ModelVersion
from headwater.plan.offload import Offload
from headwater.store.cabinet import Cabinet
from headwater.store.dataset import Dataset
from headwater.store.features import OWN, Features
from headwater.store.jobs.record import DONE, RELABEL, JobRecord, now
from headwater.store.jobs.relabel import Workplace, relabel
from headwater.store.jobs.runner import Running
from headwater.store.labels.author import user_name
from headwater.tune.relabel import Wish

if TYPE_CHECKING:
    from headwater.store.labels.database import LabelDatabase

log = logging.getLogger("headwater")


def relabel_here(
    dataset: Dataset,
    registry: Registry,
    labels: LabelDatabase,
    wish: Wish,
    *,
    feature_bytes: int = 0,
    watch: Callable[[JobRecord], None] = lambda record: None,
) -> JobRecord:
    """The same job over local data, in this process; `wish.dataset` is what the labels' dataset is called.

    Killed, it goes on from the labels that are written when it is begun again. With `feature_bytes`,
    features are kept in the user's cache folder. Raises what the job does.
    """
    version = registry.choose(wish.model)
    with ExitStack() as stack:
        crew = Crew(available_cores(), dataset.store.readers, prepare=one_core())
        stack.callback(crew.close)
        cabinet = stack.enter_context(_kept(feature_bytes)) if feature_bytes else None
        place = Workplace(
            dataset=wish.dataset,
            index=dataset.index,
            labels=labels,
            registry=registry,
            features=lambda version: _features(cabinet, dataset, wish.dataset, version),
            extraction=lambda version: _extraction(dataset, registry, version, crew),
        )
        record = msgspec.structs.replace(
            new_record(RELABEL, dataset, wish.dataset, version),
            by=user_name(),
            options={"opinions": wish.opinions, "over_imports": wish.over_imports},
            total=len(dataset.index),
        )
        running = Running(record, watch)
        relabel(place, running)
        running.save(state=DONE, ended=now())
    return running.record


def new_record(kind: str, dataset: Dataset, name: str, version: ModelVersion) -> JobRecord:
    """A job that begins now over local data, which is called `name`; nobody asked for it over a link."""
    return JobRecord(
        id=uuid.uuid4().hex[:16],
        kind=kind,
        dataset=name,
        version=dataset.index.version,
        model=version.digest,
        by="",
        begun=now(),
    )


def _extraction(dataset: Dataset, registry: Registry, version: ModelVersion, crew: Crew) -> Extraction:
    chain = Chain(OWN.pipeline(version))
    # Several batches at once, a core each: a session that shares cores with others waits for them.
    engine = Engine(registry.get(version.digest), threads=1)
    return Extraction(lambda: dataset.store.reader(chain, (Offload(0),)), chain, engine, crew)


def _features(cabinet: Cabinet | None, dataset: Dataset, name: str, version: ModelVersion) -> Features | None:
    return None if cabinet is None else Features(cabinet, dataset.index, dataset=name, version=version)


@contextmanager
def _kept(most_bytes: int) -> Iterator[Cabinet | None]:
    """The user's own features; None while another process uses them."""
    folder = cache_folder() / "features"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _locked(folder.with_suffix(".lock")) as mine:
        if not mine:
            log.warning("another process uses %s; features are made and not kept", folder)
            yield None
            return
        cabinet = Cabinet(folder, most_bytes=most_bytes)
        try:
            yield cabinet
        finally:
            cabinet.close()


@contextmanager
def _locked(path: Path) -> Iterator[bool]:
    """Whether the file is this process's until the block ends."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
        else:
            yield True


def one_core() -> Callable[[], None] | None:
    """Threads fill the cores by themselves; without torch nothing else would."""
    if find_spec("torch") is None:
        return None
    from headwater.loader.threads import use_one_core

    return use_one_core
