"""What a model says of image files: by a store, or in this process."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from headwater.engine.chain import Chain
from headwater.engine.crew import Crew, available_cores
from headwater.engine.fetching import Fetched, Wanted, fetch_files
from headwater.engine.inference import Extraction
from headwater.engine.together import all_at_once
from headwater.errors import HeadwaterError, Refused, Unreachable, WrongUse
from headwater.models.registry import Registry
from headwater.models.runtime import Engine
from headwater.store.client.address import Address, Secret
from headwater.store.client.connection import Connection
from headwater.store.client.predictions import Inquiry, PredictClient, find_place
from headwater.store.client.predictions import seal as seal_over
from headwater.store.features import OWN
from headwater.store.prediction import MOST_TOP, Sayings
from headwater.store.wire.messages import Prediction, SealedInbox
from headwater.tune.here import one_core
from headwater.tune.relabel import Access

AT_ONCE = 8
"""Images that are on their way to a store together, so that it can answer them together."""
_READERS = 4


@dataclass(frozen=True)
class Predicted:
    """One image: what is said of it, or why nothing is."""

    image: str
    prediction: Prediction | None = None
    error: HeadwaterError | None = None


def predict_here(
    images: Sequence[str | os.PathLike[str]], registry: Registry, *, model: str = "", top: int = 1
) -> list[Predicted]:
    """By the version in force of a model, in this process. Raises `ModelNotFound`, `ModelError`."""
    _check(images, top)
    version = registry.choose(model)
    chain = Chain(OWN.pipeline(version))
    engine = Engine(registry.get(version.digest), threads=1)  # several batches at once, a core each
    crew = Crew(available_cores(), _READERS, prepare=one_core())
    found = [Predicted(os.fspath(image)) for image in images]
    places = np.arange(len(images))
    try:
        for batch in Extraction(lambda: _Paths(images), chain, engine, crew).run(places, places):
            for failed in batch.failures:
                found[failed.position] = Predicted(found[failed.position].image, error=_tell(failed.error))
            said = Sayings.of(version, engine.logits(batch.features))
            for row, place in enumerate(batch.positions.tolist()):
                found[place] = Predicted(found[place].image, said.prediction(row, top=top))
    finally:
        crew.close()
    return found


def predict_at(
    store: str, images: Sequence[str | os.PathLike[str]], inquiry: Inquiry, access: Access
) -> list[Predicted]:
    """By a store, at `grpc[+tls]://HOST:PORT[/DATASET]` or `http[s]://HOST:PORT`; several images at once.

    Raises `Unreachable`, `Refused`; what is wrong with one image keeps nothing from the others.
    """
    _check(images, inquiry.top)
    secret = Secret(access.token)
    place = find_place(store, secret, access.link)
    client = PredictClient(place, secret, access.link)
    asked = Inquiry(inquiry.dataset or place.dataset, inquiry.model, inquiry.top, inquiry.keep)
    calls = [partial(_ask, client, os.fspath(image), asked) for image in images]
    return all_at_once(calls, name="headwater-predict", most=AT_ONCE)


def seal_at(store: str, dataset: str, access: Access) -> SealedInbox:
    """Make what a store has kept of a dataset a version of its inbox, which it serves from then on."""
    connection = Connection(Address.parse(store), Secret(access.token), access.link)
    try:
        return seal_over(connection, dataset)
    finally:
        connection.close()


def _ask(client: PredictClient, image: str, inquiry: Inquiry) -> Predicted:
    try:
        return Predicted(image, client.predict(_read(image), inquiry))
    except (Unreachable, Refused):
        raise
    except HeadwaterError as error:
        return Predicted(image, error=error)


class _Paths:
    """A `Reader` of files by path."""

    def __init__(self, paths: Sequence[str | os.PathLike[str]]) -> None:
        self._paths = paths

    def sizes(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.array([_size(self._paths[place]) for place in positions.tolist()], np.int64)

    def key(self, position: int) -> str:
        return os.fspath(self._paths[position])

    def abandon(self) -> None:
        """A read of this machine's files ends by itself."""

    def fetch(self, wanted: Wanted) -> Fetched:
        return fetch_files(self, wanted.positions)

    def read(self, positions: NDArray[np.int64]) -> list[bytes]:
        return [_read(self._paths[place]) for place in positions.tolist()]

    def read_fields(self, positions: NDArray[np.int64]) -> Mapping[str, Sequence[object]]:
        return {}


def _read(path: str | os.PathLike[str]) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise HeadwaterError(
            f"{os.fspath(path)} cannot be read: {error.strerror}; name an image file"
        ) from error


def _size(path: str | os.PathLike[str]) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0  # reading it says what is wrong


def _tell(error: Exception) -> HeadwaterError:
    return error if isinstance(error, HeadwaterError) else HeadwaterError(str(error))


def _check(images: Sequence[object], top: int) -> None:
    if not images or not 1 <= top <= MOST_TOP:
        raise WrongUse(
            f"{len(images)} images and the best {top} classes; name one image, 1 to {MOST_TOP} classes"
        )
