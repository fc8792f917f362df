"""What keeping a model fresh at a store takes: push, tune, label, ask; and what crosses the link for each."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from headwater.cli.exhibition.stream import Ids, Stream
from headwater.cli.proxy import Proxy
from headwater.cli.relabel import COUNTS
from headwater.errors import HeadwaterError
from headwater.models.registry import Registry
from headwater.report.models import Crossing
from headwater.store import Dataset
from headwater.store.client.address import Address
from headwater.store.client.predictions import Inquiry
from headwater.store.jobs.record import DONE
from headwater.store.labels import open_labels
from headwater.store.pushing import push
from headwater.store.wire.jobmessages import JobFacts
from headwater.store.wire.messages import Prediction
from headwater.tune.predict import predict_at
from headwater.tune.recipe import Recipe
from headwater.tune.relabel import Access, Wish, relabel_at
from headwater.tune.tuner import Tuner

STREAM, MODEL = "stream", "kinds"
"""What the photos are called at the store, and what the model is."""
WHOLE, FIRST, FEATURES, HEADS, ANEW, NEARLY, ASKED = (
    "the network, whole",
    "first labels",
    "features to tune with",
    "new heads",
    "labels by new heads",
    "labels by nearly the same",
    "a photo over HTTP",
)
"""All that is done, in the order in which it is first done."""


@dataclass(frozen=True)
class Upkeep:
    """One model at one store behind one link, version after version; what that took is in `crossings`.

    `stream` are the store's photos as they lie on its disk, `remote` is the way to them through the proxy;
    `labels` is the store's label database. `counts` says what became of the photos in each labelling.
    """

    stream: Stream
    remote: Dataset
    token: str
    proxy: Proxy
    registry: Registry
    labels: Path
    crossings: list[Crossing] = field(default_factory=list)
    counts: list[dict[str, int]] = field(default_factory=list)

    def push(self) -> None:
        """Have the version in force at the store that is in force here."""
        store, whole = Address.parse(self.remote.uri).location, self._whole_bytes
        with self._weigh(HEADS if whole else WHOLE, whole):
            (delivery,) = push(self.registry, [store], MODEL, token=self.token)
        if delivery.error is not None:
            raise delivery.error

    def tune(self, ids: Ids, recipe: Recipe) -> None:
        """A new head, in force here, from features of these photos and their true kinds."""
        data = self.remote.select(ids)
        with self._weigh(FEATURES, int(data.sizes.sum())):
            Tuner(data, MODEL, registry=self.registry, recipe=recipe).fit()

    def label(self, what: str) -> NDArray[np.bool_]:
        """Label all photos by the version in force at the store; which are right, in order of id."""
        with self._weigh(what, int(self.stream.data.sizes.sum())):
            (found,) = relabel_at([self.remote.uri], Wish(model=MODEL), Access(self.token))
        if found.error is not None:
            raise found.error
        assert found.job is not None
        check(found.job)
        self.counts.append({name: found.job.counts.get(name, 0) for name in COUNTS})
        with closing(open_labels(self.labels, create=False)) as database:
            rows = database.get(STREAM, self.stream.data.ids)
            named = np.array(database.classes(STREAM).names)[rows.labels]
        return np.asarray(named == self.stream.kinds)

    def ask(self, id: int) -> tuple[str, Prediction]:
        """The true kind of a photo, and what the store says of it when it is sent there over HTTP."""
        index = self.stream.data.index
        position = int(index.position_of(np.array([id]))[0])
        image, begun = self.stream.folder / index.key(position), time.perf_counter()
        (found,) = predict_at(self.remote.uri, [image], Inquiry(model=MODEL, top=3), Access(self.token))
        self.crossings.append(Crossing(ASKED, 0, 0, time.perf_counter() - begun))
        if found.prediction is None:
            raise found.error or HeadwaterError(f"the store says nothing of {image}")
        return index.classes[index.labels[position]], found.prediction

    @property
    def _whole_bytes(self) -> int:
        """What the first version took to get there; 0 if none did."""
        return self.crossings[0].link_bytes if self.crossings else 0

    @contextmanager
    def _weigh(self, what: str, instead_bytes: int) -> Iterator[None]:
        """Put down what crosses the link meanwhile, and how long it takes."""
        crossed, begun = self._crossed, time.perf_counter()
        yield
        seconds = time.perf_counter() - begun
        self.crossings.append(Crossing(what, self._crossed - crossed, instead_bytes, seconds))

    @property
    def _crossed(self) -> int:
        return self.proxy.bytes_up + self.proxy.bytes_down


def check(job: JobFacts) -> None:
    """Raise `HeadwaterError` unless a job has labelled every photo."""
    failed = job.counts.get("failed", 0)
    if job.state != DONE or failed or job.done < job.total:
        reasons = [job.error, *(failure.reason for failure in job.failures)]
        raise HeadwaterError(
            f"{job.done - failed:,} of {job.total:,} photos are labelled and the job is {job.state}: "
            f"{next(filter(None, reasons), 'it gives no reason')}"
        )
