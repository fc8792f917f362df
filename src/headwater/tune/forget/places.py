"""Where samples are forgotten: at a store, or in local data with the user's own labels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from headwater.data.forgotten import Forgotten, forgotten_folder
from headwater.data.sources import Source, SourceOptions
from headwater.data.sources.addresses import locate
from headwater.models.registry import Registry
from headwater.models.version import ModelVersion
from headwater.store import open
from headwater.store.client.address import Address, Secret
from headwater.store.client.forgetting import ForgetClient, forget_client
from headwater.store.client.models import models_of
from headwater.store.dataset import Dataset
from headwater.store.labels import open_labels
from headwater.store.local import LocalStore
from headwater.store.pushing import Terms, push
from headwater.store.wire.messages import ForgottenThere
from headwater.tune.forget.task import Task
from headwater.tune.here import relabel_here
from headwater.tune.relabel import Access, Wish, relabel_at

if TYPE_CHECKING:
    from headwater.store.labels.database import LabelDatabase

_BRING_BACK = Terms(unmeasured=True)
"""What replaces a version in force may be as little measured as that was."""


@dataclass(frozen=True)
class Models:
    """What a place has of models beside the registry here: digests in force, by name, and manifests."""

    in_force: Mapping[str, str] = field(default_factory=dict)
    versions: tuple[ModelVersion, ...] = ()


class Place(Protocol):
    """One place where samples are forgotten. Each of its methods may be called again."""

    @property
    def name(self) -> str: ...

    @property
    def identity(self) -> str:
        """Where that is, the same however it was spelled."""

    def look(
        self, ids: Sequence[int], models: Sequence[str] = (), *, delete_files: bool = False
    ) -> ForgottenThere:
        """What is there of the samples, and how many labels the `models` have given; changes nothing."""

    def models(self) -> Models:
        """The models there."""

    def bring(self, name: str, digest: str) -> dict[str, str | int]:
        """Put a version of the registry in force there; in which way, and how many bytes that took."""

    def forget(self, task: Task) -> ForgottenThere:
        """Have the samples forgotten."""

    def delete_files(self, task: Task) -> dict[str, int]:
        """Delete the samples' files, where `forget` has not done that; how many."""

    def relabel(self, digest: str) -> dict[str, int]:
        """Renew labels with a version; how many stayed and changed."""

    def seal(self, digests: Sequence[str]) -> None:
        """Let versions be used no more there."""


@dataclass(frozen=True)
class AtStore:
    """A dataset behind a store."""

    name: str
    registry: Registry
    access: Access

    @cached_property
    def identity(self) -> str:
        address = Address.parse(self.name)
        if address.dataset:
            return str(address)
        with self._client() as client:
            return str(replace(address, dataset=client.dataset()[0]))

    def look(
        self, ids: Sequence[int], models: Sequence[str] = (), *, delete_files: bool = False
    ) -> ForgottenThere:
        with self._client() as client:
            dataset, _ = client.dataset()
            return client.forget(dataset, ids, dry_run=True, models=models, delete_files=delete_files)

    def models(self) -> Models:
        with models_of(self.store, token=self.access.token, link=self.access.link) as there:
            inventory = there.inventory()
            made = [facts.digest for facts in inventory.versions if facts.digest not in self.registry]
            manifests = [ModelVersion.from_json(there.inventory(digest).manifest) for digest in made]
        in_force = {name: digests[0] for name, digests in inventory.current.items() if digests and digests[0]}
        return Models(in_force, tuple(manifests))

    def bring(self, name: str, digest: str) -> dict[str, str | int]:
        token, link = self.access.token, self.access.link
        (sent,) = push(
            self.registry, [self.store], digest, name=name, token=token, link=link, terms=_BRING_BACK
        )
        if sent.error is not None:
            raise sent.error
        return {"kind": sent.kind, "bytes": sent.sent_bytes}

    def forget(self, task: Task) -> ForgottenThere:
        with self._client() as client:
            dataset, _ = client.dataset()
            return client.forget(
                dataset, task.ids, delete_files=task.delete_files, models=sorted(task.sealed)
            )

    def delete_files(self, task: Task) -> dict[str, int]:
        return {}  # the store has

    def relabel(self, digest: str) -> dict[str, int]:
        (done,) = relabel_at([self.name], Wish(model=digest), self.access)
        if done.failure is not None:
            raise done.failure
        return dict(done.job.counts) if done.job is not None else {}

    def seal(self, digests: Sequence[str]) -> None:
        with self._client() as client:
            client.seal(digests)

    @property
    def store(self) -> str:
        """Without the dataset."""
        return Address.parse(self.name).location

    @contextmanager
    def _client(self) -> Iterator[ForgetClient]:
        with forget_client(self.name, Secret(self.access.token), self.access.link) as client:
            yield client


@dataclass(frozen=True)
class Here:
    """Local data, with a label database if there is one, in which it is called `dataset`."""

    name: str
    registry: Registry
    dataset: str
    labels: str | None = None
    feature_bytes: int = 0

    @cached_property
    def identity(self) -> str:
        return locate(self.name, SourceOptions()).place

    def look(
        self, ids: Sequence[int], models: Sequence[str] = (), *, delete_files: bool = False
    ) -> ForgottenThere:
        with closing(open(self.name)) as data:
            index = data.index
            wanted = np.array(ids, np.int64)
            there = index.position_of(wanted[index.has(wanted)]).tolist()
            if delete_files:
                _source_of(data).check_deletable([index.key(position) for position in there])
            found = {"index": len(there)}
        with self._labels() as labels:
            if labels is not None:
                found["labels"] = labels.count_rows(self.dataset, ids)
            labelled = 0 if labels is None else labels.count_by(self.dataset, models)
        return ForgottenThere(self.dataset, index.version, index.version, len(index), found, labelled)

    def models(self) -> Models:
        return Models()

    def bring(self, name: str, digest: str) -> dict[str, str | int]:
        return {"kind": "nothing", "bytes": 0}  # it is in the registry

    def forget(self, task: Task) -> ForgottenThere:
        self.forgotten.add(task.ids)
        found = {"index": len(task.keys)}
        with closing(open(self.name)) as data:
            index = data.index
        with self._labels() as labels:
            if labels is not None:
                found["labels"] = labels.forget(self.dataset, task.ids)
            labelled = 0 if labels is None else labels.count_by(self.dataset, task.sealed)
        before = task.before[0] if task.before else ""
        return ForgottenThere(self.dataset, before, index.version, len(index), found, labelled)

    def delete_files(self, task: Task) -> dict[str, int]:
        with closing(open(self.name)) as data:
            return {"files": _source_of(data).delete(task.known_paths)}

    def relabel(self, digest: str) -> dict[str, int]:
        with self._labels() as labels, closing(open(self.name)) as data:
            if labels is None:
                return {}
            wish = Wish(dataset=self.dataset, model=digest)
            record = relabel_here(data, self.registry, labels, wish, feature_bytes=self.feature_bytes)
        return dict(record.counts)

    def seal(self, digests: Sequence[str]) -> None:
        """The registry here is sealed last."""

    @property
    def forgotten(self) -> Forgotten:
        """The user's list of this data."""
        return Forgotten(forgotten_folder(), self.identity)

    @contextmanager
    def _labels(self) -> Iterator[LabelDatabase | None]:
        """None where there is no label database: to look makes no file."""
        if self.labels is None or ("://" not in self.labels and not Path(self.labels).exists()):
            yield None
            return
        with closing(open_labels(self.labels, create=False)) as labels:
            yield labels


def _source_of(data: Dataset) -> Source:
    assert isinstance(data.store, LocalStore)
    return data.store.source
