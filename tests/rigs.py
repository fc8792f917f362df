"""Real stores behind proxies, and what a loader must give over them whatever goes wrong on the way."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import headwater as hw
from datasets import make_photos, write_folder
from headwater import transforms as T
from headwater.cli.proxy import Proxy, Shape
from headwater.errors import Unreachable
from headwater.loader.batch import Batch
from stores import Certificates, StoreProcess, write_tokens

SECRET = "hwt-0123456789abcdefghijklmnopqrstuvwxyz"
LINK = Shape(bits_per_second=6e6, delay_seconds=0.001)
BATCH = 8
STEPS = T.Compose([T.RandomResizedCrop(32), T.RandomHorizontalFlip(), T.ToDtype("float32", scale=True)])


@dataclass(frozen=True)
class Kind:
    """How stores are set up: how many copies of the data, with TLS or a token or without."""

    copies: int = 1
    tls: bool = False
    token: bool = False


KINDS = (Kind(), Kind(tls=True), Kind(copies=2, token=True), Kind(copies=2, tls=True, token=True))


def make_folder(folder: Path, count: int = 72) -> Path:
    """Photos whose epoch takes about half a second over `LINK`."""
    return write_folder(folder, make_photos(count, seed=9))


class Truth:
    """What the same loader gives on the files themselves."""

    def __init__(self, folder: Path) -> None:
        data = hw.open(folder)
        self.ids = np.sort(data.ids)
        self._loader = load(data, workers=0)
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
    settings: dict[str, Any] = {"timeout": 150.0, **options}
    return hw.DataLoader(
        data, STEPS, batch_size=BATCH, shuffle=True, seed=3, num_workers=workers, progress=False, **settings
    )


@dataclass(frozen=True)
class Rig:
    """Stores with the same photos, each behind a proxy."""

    stores: Sequence[StoreProcess]
    proxies: Sequence[Proxy]
    certificates: Certificates | None = None
    token: str | None = None

    @property
    def uris(self) -> list[str]:
        scheme = "grpc" if self.certificates is None else "grpc+tls"
        return [f"{scheme}://127.0.0.1:{proxy.port}/photos" for proxy in self.proxies]

    def open(self, **settings: Any) -> hw.Dataset:
        given = {"deadline_seconds": 0.7, "give_up_seconds": 120.0, **settings}
        link = hw.Link(**given) if self.certificates is None else self.certificates.link(**given)
        return hw.open(self.uris, token=self.token, link=link)

    def open_patiently(self, seconds: float = 120.0, **settings: Any) -> hw.Dataset:
        """Open as somebody would who tries again."""
        end = time.monotonic() + seconds
        while True:
            try:
                return self.open(**settings)
            except Unreachable:
                if time.monotonic() > end:
                    raise


@contextmanager
def running_rig(
    folder: Path, work: Path, *, kind: Kind, certificates: Certificates, shape: Shape = LINK
) -> Iterator[Rig]:
    """The stores and proxies of one kind; nothing of them is left at the end."""
    flags: dict[str, Any] = dict(certificates.serve) if kind.tls else {}
    if kind.token:
        work.mkdir(parents=True, exist_ok=True)
        flags["token_file"] = write_tokens(work, trainer={"secret": SECRET, "scopes": ["read"]})
    with ExitStack() as stack:
        stores = [StoreProcess({"photos": folder}, **flags) for _ in range(kind.copies)]
        with ThreadPoolExecutor(kind.copies) as pool:
            list(pool.map(stack.enter_context, stores))
        proxies = [stack.enter_context(Proxy(("127.0.0.1", store.port), shape=shape)) for store in stores]
        yield Rig(stores, proxies, certificates if kind.tls else None, SECRET if kind.token else None)
