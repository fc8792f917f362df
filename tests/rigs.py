"""Real stores behind proxies, and what a loader must give over them whatever goes wrong on the way."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

import headwater as hw
from datasets import make_photos, write_folder, write_parquet
from headwater import transforms as T
from headwater.cli.proxy import Proxy, Shape
from headwater.errors import Unreachable
from headwater.loader.batch import Batch
from headwater.store.base import Store
from headwater.store.client.remote import RemoteStore
from headwater.store.fleet import ShardedStore
from stores import Certificates, StoreProcess, write_tokens

SECRET = "hwt-0123456789abcdefghijklmnopqrstuvwxyz"
LINK = Shape(bits_per_second=6e6, delay_seconds=0.001)
BATCH, SEED = 8, 3
STEPS = T.Compose([T.RandomResizedCrop(32), T.RandomHorizontalFlip(), T.ToDtype("float32", scale=True)])


@dataclass(frozen=True)
class Kind:
    """How stores are set up: in how many parts the data is, how many stores hold each, TLS, a token."""

    copies: int = 1
    tls: bool = False
    token: bool = False
    shards: int = 1


KINDS = (
    Kind(),
    Kind(tls=True),
    Kind(copies=2, token=True),
    Kind(shards=2, token=True),
    Kind(copies=2, tls=True, token=True, shards=2),
)


def make_folder(folder: Path, count: int = 72) -> Path:
    """Photos whose epoch takes about half a second over `LINK`."""
    return write_folder(folder, make_photos(count, seed=9))


def make_parts(root: Path, shards: int = 1, count: int = 72) -> list[dict[str, Path]]:
    """The same photos as files and in row groups, for each of several stores.

    The parts differ in size, so that a mistake in an offset cannot hide.
    """
    photos = make_photos(count, seed=9)
    bounds = [count * number * (number + 1) // (shards * (shards + 1)) for number in range(shards + 1)]
    return [
        {
            "photos": write_folder(root / f"photos-{first}", photos[first:last]),
            "rows": write_parquet(root / f"rows-{first}.parquet", photos[first:last]),
        }
        for first, last in pairwise(bounds)
    ]


class Truth:
    """What the same loader gives on the files themselves, which may be in several parts."""

    def __init__(self, *parts: Path, shuffle: bool | str = True) -> None:
        opened = [hw.open(part) for part in parts]
        self.ids = np.sort(np.concatenate([data.ids for data in opened]))
        whole = hw.Dataset(ShardedStore([data.store for data in opened])) if len(opened) > 1 else opened[0]
        self._loader = load(whole, workers=0, shuffle=shuffle)
        self._lock = threading.Lock()
        self._epochs: dict[int, list[Batch]] = {}

    def epoch(self, number: int) -> list[Batch]:
        """Its batches, made when first asked for."""
        with self._lock:
            if number not in self._epochs:
                self._loader.set_epoch(number)
                self._epochs[number] = list(self._loader)
            return self._epochs[number]

    def check(self, batches: Sequence[Batch], epoch: int, first: int = 0) -> None:
        """An epoch from its batch `first`: every id once, in order, and every bit as it is in the files."""
        expected = self.epoch(epoch)
        found = [*expected[:first], *batches]
        ids = np.concatenate([batch.ids.numpy() for batch in found])
        assert np.array_equal(np.sort(ids), self.ids), "ids were lost or doubled"
        for ours, true in zip(found, expected, strict=True):
            assert torch.equal(ours.ids, true.ids)
            assert torch.equal(ours.targets, true.targets)
            assert torch.equal(ours.inputs, true.inputs), "bytes were altered"


def load(data: Any, *, workers: int, **options: Any) -> hw.DataLoader:
    """The one loader of these tests; `timeout` is the guard against a hang."""
    settings: dict[str, Any] = {"shuffle": True, "timeout": 150.0, **options}
    return hw.DataLoader(
        data, STEPS, batch_size=BATCH, seed=SEED, num_workers=workers, progress=False, **settings
    )


def count_retries(store: Store) -> int:
    """Requests that failed and were made up for, at all stores of a dataset."""
    members = store.stores if isinstance(store, ShardedStore) else (store,)
    return sum(member.retries for member in members if isinstance(member, RemoteStore))


@dataclass(frozen=True)
class Rig:
    """Stores with the same photos or with parts of them, each behind a proxy."""

    stores: Sequence[StoreProcess]
    proxies: Sequence[Proxy]
    certificates: Certificates | None = None
    token: str | None = None

    def open(self, dataset: str = "photos", **settings: Any) -> hw.Dataset:
        scheme = "grpc" if self.certificates is None else "grpc+tls"
        uris = [f"{scheme}://127.0.0.1:{proxy.port}/{dataset}" for proxy in self.proxies]
        given = {"deadline_seconds": 0.7, "give_up_seconds": 120.0, **settings}
        link = hw.Link(**given) if self.certificates is None else self.certificates.link(**given)
        return hw.open(uris, token=self.token, link=link)

    def open_patiently(self, dataset: str = "photos", *, seconds: float = 120.0) -> hw.Dataset:
        """Open as somebody would who tries again."""
        end = time.monotonic() + seconds
        while True:
            try:
                return self.open(dataset)
            except Unreachable:
                if time.monotonic() > end:
                    raise


@contextmanager
def running_rig(
    parts: Sequence[Mapping[str, Path]],
    work: Path,
    *,
    kind: Kind,
    certificates: Certificates,
    shape: Shape = LINK,
) -> Iterator[Rig]:
    """The stores and proxies of one kind, with audit logs in `work`; nothing of them runs on at the end."""
    work.mkdir(parents=True, exist_ok=True)
    flags: dict[str, Any] = dict(certificates.serve) if kind.tls else {}
    if kind.token:
        flags["token_file"] = write_tokens(work, trainer={"secret": SECRET, "scopes": ["read"]})
    with ExitStack() as stack:
        stores = [
            StoreProcess(part, audit_log=work / f"audit-{number}.jsonl", **flags)
            for number, part in enumerate(part for part in parts for _ in range(kind.copies))
        ]
        with ThreadPoolExecutor(len(stores)) as pool:
            list(pool.map(stack.enter_context, stores))
        proxies = [stack.enter_context(Proxy(("127.0.0.1", store.port), shape=shape)) for store in stores]
        yield Rig(stores, proxies, certificates if kind.tls else None, SECRET if kind.token else None)
