"""The demo's second chapter: the same photos from a store in a process of its own, over a slow link."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import torch

from headwater.cli.child_store import ChildStore
from headwater.cli.exhibition import Exhibit
from headwater.cli.exhibition.loader import training_steps
from headwater.cli.exhibition.tokens import write_token
from headwater.cli.printing import say
from headwater.cli.proxy import Proxy, Shape
from headwater.cli.training import Trainer, differing_bytes, small_network
from headwater.errors import HeadwaterError
from headwater.loader import Batch, DataLoader
from headwater.plan.offload import Offload
from headwater.report.link import Flow, Passage, link_chapter
from headwater.store import Dataset, Link, open

_NAME = "photos"
_PHOTOS = 640  # at most, so that the chapter takes half a minute
_WARM_UP = 128
_BATCH = 32
_SHAPE = Shape(bits_per_second=100e6, delay_seconds=0.002)
_OFFLOAD = Offload(3, "zstd")
_READING_SECONDS = 0.1
_TEXT = """A store served the photos from a process of its own, with a token and an audit log; between it and
the trainer was a link of 100 Mbit with a delay of 2 ms each way, made by a proxy on this machine. The same
network was trained for an epoch on local files, on files that crossed the link, and on crops: decoded,
cropped and resized at the store, and compressed without loss. Every batch was compared with the local one.

In the last epoch every connection was reset, and then the store was killed and started again. The loader
asked again for what had not come; every sample came once, with the same bytes. The store and the trainer
share this machine's cores, so seconds depend on it; bytes do not."""


def show_store(photos: Path, folder: Path, *, seed: int) -> Exhibit:
    """Train through a link, with and without faults; raises `HeadwaterError` if a byte differs.

    The store's token, log and audit log are left in `folder`.
    """
    say("starting a store")
    folder.mkdir(exist_ok=True)
    file = folder / "tokens.toml"
    token = write_token(file, "read")
    flags: list[str | Path] = ["--token-file", file, "--audit-log", folder / "audit.jsonl"]
    words = [f"{_NAME}={photos.resolve()}"]
    with (
        ChildStore(words, log=folder / "store.log", flags=flags) as store,
        Proxy(store.address, shape=_SHAPE) as proxy,
    ):
        remote = open(store.uri(_NAME, through=proxy.address), token=token, link=Link(deadline_seconds=5.0))
        try:
            return _Rounds(store, proxy, seed).show(open(photos), remote)
        finally:
            remote.close()


@dataclass
class _Rounds:
    """Epochs over one link."""

    store: ChildStore
    proxy: Proxy
    seed: int
    expected: list[Batch] = field(default_factory=list)

    def show(self, local: Dataset, remote: Dataset) -> Exhibit:
        chosen = local.ids[:_PHOTOS]
        local, remote = local.select(chosen), remote.select(chosen)
        self.expected = list(self._loader(local))
        self._warm_up(remote)
        passages = [
            self._train("local files", self._loader(local)),
            self._train("files", self._loader(remote)),
            self._train(f"crops in {_OFFLOAD.codec}", self._loader(remote, _OFFLOAD)),
        ]
        faulty, flow = self._train_with_faults(self._loader(remote))
        passages.append(faulty)
        figures = {"epochs": [asdict(passage) for passage in passages], "faults": dict(flow.marks)}
        return Exhibit((link_chapter(passages, flow, text=_TEXT),), {"link": figures})

    def _loader(self, data: Dataset, offload: Offload | None = None) -> DataLoader:
        return DataLoader(
            data,
            training_steps(),
            batch_size=_BATCH,
            shuffle=True,
            seed=self.seed,
            offload=offload,
            epochs=1,
            progress=False,
        )

    def _warm_up(self, remote: Dataset) -> None:
        """Both sides load torch for the resize, and compare what their steps make; once, not every epoch."""
        for _ in self._loader(remote.select(remote.ids[:_WARM_UP]), _OFFLOAD):
            pass

    def _train(self, name: str, loader: DataLoader) -> Passage:
        torch.manual_seed(self.seed)
        trainer = Trainer(small_network(len(loader.dataset.classes)))
        link_bytes, connections, begun = self.proxy.bytes_down, self.proxy.connections, time.perf_counter()
        differing = compared = samples = 0
        for batch, ours in zip(trainer.train_epoch(loader), self.expected, strict=True):
            found = differing_bytes(ours, batch)
            differing, compared, samples = differing + found[0], compared + found[1], samples + len(batch)
        passage = Passage(
            name,
            samples,
            self.proxy.bytes_down - link_bytes,
            time.perf_counter() - begun,
            self.proxy.connections - connections,
            compared,
            differing,
        )
        loader.close()
        _check(passage)
        return passage

    def _train_with_faults(self, loader: DataLoader) -> tuple[Passage, Flow]:
        whole = int(loader.dataset.sizes.sum())
        with ThreadPoolExecutor(1) as elsewhere:
            restarts: list[Future[None]] = []

            def kill() -> None:
                restarts.append(elsewhere.submit(self._restart, gauge))

            faults = {whole // 4: ("connections reset", self.proxy.cut), whole // 2: ("store killed", kill)}
            with _Gauge(self.proxy, faults) as gauge:
                passage = self._train("files, with faults", loader)
            for restart in restarts:
                restart.result()
        return passage, gauge.flow()

    def _restart(self, gauge: _Gauge) -> None:
        self.store.kill()
        self.store.start()
        gauge.mark("store back")


class _Gauge:
    """Reads every tenth of a second how many bytes have crossed the link; `events` happen at a count of them.

    Not at a batch: the loader is some batches ahead, and what has come is safe from faults.
    """

    def __init__(self, proxy: Proxy, events: Mapping[int, tuple[str, Callable[[], object]]]) -> None:
        self._proxy = proxy
        self._events = sorted(events.items(), reverse=True)
        self._begun, self._base = time.perf_counter(), proxy.bytes_down
        self._readings = [(0.0, 0)]
        self._marks: dict[str, float] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def mark(self, what: str) -> None:
        """Note that this happens now."""
        self._marks[what] = time.perf_counter() - self._begun

    def flow(self) -> Flow:
        seconds, counts = zip(*self._readings, strict=True)
        return Flow(seconds, counts, self._marks)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(_READING_SECONDS):
            now, count = time.perf_counter() - self._begun, self._proxy.bytes_down - self._base
            self._readings.append((now, count))
            while self._events and self._events[-1][0] <= count:
                _, (name, event) = self._events.pop()
                self.mark(name)
                event()


def _check(passage: Passage) -> None:
    if passage.differing_bytes or not passage.compared_bytes:
        raise HeadwaterError(
            f"{passage.name}: {passage.differing_bytes} of {passage.compared_bytes} bytes differ from those "
            "of the local files"
        )
    say(f"{passage.name}: {passage.link_bytes / 1e6:,.1f} MB over the link in {passage.seconds:.1f} s")
