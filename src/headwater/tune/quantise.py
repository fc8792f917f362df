"""int8 layers for a version of a model: by a job at each store, on its data, or here on local data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import msgspec

from headwater.engine.chain import Chain
from headwater.engine.crew import Crew, available_cores
from headwater.engine.inference import Extraction, Extractor
from headwater.models.evidence import BOUND
from headwater.models.registry import Registry
from headwater.models.version import ModelVersion
from headwater.plan.offload import Offload
from headwater.store.client.jobs import JobClient
from headwater.store.dataset import Dataset
from headwater.store.features import OWN
from headwater.store.jobs.quantise import HOLD, Kiln, quantise
from headwater.store.jobs.record import DONE, QUANTISE, JobRecord, now
from headwater.store.jobs.runner import Running
from headwater.store.wire.jobmessages import JobFacts
from headwater.tune.here import new_record
from headwater.tune.relabel import Access, JobAtStore, Watch, run_at


@dataclass(frozen=True)
class QuantiseWish:
    """Which version, and what of its labels must stay; see `models.quantise`.

    An empty `dataset` means the only one that there is. With `hold` what is in force stays so.
    """

    model: str
    dataset: str = ""
    bound: float = BOUND
    hold: bool = False


def quantise_at(
    stores: Sequence[str],
    wish: QuantiseWish,
    access: Access = Access(),  # noqa: B008 - frozen
    *,
    watch: Watch = lambda store, job: None,
) -> list[JobAtStore]:
    """A job at each store, which keeps the int8 version that it makes; what became of each, when it is over.

    All stores at once; what fails at one keeps nothing from the others.
    """

    def begin(client: JobClient, dataset: str) -> JobFacts:
        return client.start(QUANTISE, dataset=dataset, model=wish.model, bound=wish.bound, hold=wish.hold)

    return run_at(stores, begin, access, dataset=wish.dataset, watch=watch)


def quantise_here(
    dataset: Dataset,
    registry: Registry,
    wish: QuantiseWish,
    *,
    watch: Callable[[JobRecord], None] = lambda record: None,
) -> JobRecord:
    """The same over local data, in this process; the version is kept in the registry. Raises what it does."""
    version = registry.choose(wish.model)
    kiln = Kiln(
        dataset=wish.dataset,
        index=dataset.index,
        registry=registry,
        extraction=partial(_extraction, dataset, version),
        threads=available_cores(),
    )
    record = msgspec.structs.replace(
        new_record(QUANTISE, dataset, wish.dataset, version), options={HOLD: wish.hold}, bound=wish.bound
    )
    running = Running(record, watch)
    quantise(kiln, running)
    running.save(state=DONE, ended=now())
    return running.record


def _extraction(dataset: Dataset, version: ModelVersion, layers: Extractor) -> Extraction:
    chain = Chain(OWN.pipeline(version))
    crew = Crew(workers=0, readers=0)
    return Extraction(lambda: dataset.store.reader(chain, (Offload(0),)), chain, layers, crew)
