"""The demo's third chapter: epochs over a slow link, as files and as a plan wants it for each sample."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import xxhash

from headwater.cli.child_store import ChildStore
from headwater.cli.cpu import tree_cpu_seconds
from headwater.cli.exhibition import Exhibit
from headwater.cli.explain import describe
from headwater.cli.presets import find_preset
from headwater.cli.printing import say
from headwater.cli.proxy import Proxy, Shape
from headwater.data.codecs.excerpts import EXCERPTS, known_codecs
from headwater.errors import HeadwaterError
from headwater.loader import Auto, Batch, DataLoader
from headwater.measure.logbook import Logbook
from headwater.plan.offload import Offload
from headwater.report.offload import offload_chapter
from headwater.report.trade import Turn, sum_up, trade_chapter
from headwater.store import Dataset, open

_NAME = "photos"
_PHOTOS = 256  # at most, so that the chapter takes half a minute
_WARM_UP = 64
_BATCH = 16  # small: batches that are under way are not planned any more
_EPOCHS = 3
_SHAPE = Shape(bits_per_second=25e6, delay_seconds=0.002)
_TEXT = """The same photos crossed a link of 25 Mbit, now with ImageNet's steps: a random part of the photo,
made 224 x 224. First an epoch of files, then {epochs} epochs with offload="auto". It begins by sending some
samples every way that there is, which is how the loader learns what each costs; then it plans, for each photo
by the crop that the epoch will draw. Every sample was compared with that of the local files, by id, label and
a digest of its pixels. No network was trained, so that the loop waits for the link.

Bytes are those that crossed the link. CPU is what the kernel counted for all processes of the store, and for
that of the trainer without the proxy. Seconds are of one run each. The link is this slow on purpose: store
and trainer share the cores of one machine here, and the faster the link, the sooner these are what is waited
for, and the less offloading gains. {extras}"""
_WITHOUT = """{names} missing here, so the plan had fewer ways to choose from; pip install
'headwater[codecs,region]'."""

_Digest = tuple[int, int, bytes]


def show_offload(photos: Path, folder: Path, *, seed: int, codecs: Collection[str] | None = None) -> Exhibit:
    """Load through a link, with and without plans; raises `HeadwaterError` if a sample differs.

    `codecs` are those that plans may use, all that are there if it is None. The store's log is left in
    `folder`.
    """
    say("starting a store for offloading")
    folder.mkdir(exist_ok=True)
    words = [f"{_NAME}={photos.resolve()}"]
    with (
        ChildStore(words, log=folder / "store.log") as store,
        Proxy(store.address, shape=_SHAPE) as proxy,
    ):
        remote = open(store.uri(_NAME, through=proxy.address))
        try:
            return _Rounds(store, proxy, seed).show(open(photos), remote, codecs)
        finally:
            remote.close()


@dataclass(frozen=True)
class _Rounds:
    """Epochs over one link."""

    store: ChildStore
    proxy: Proxy
    seed: int

    def show(self, local: Dataset, remote: Dataset, codecs: Collection[str] | None) -> Exhibit:
        chosen = local.ids[:_PHOTOS]
        local, remote = local.select(chosen), remote.select(chosen)
        expected = self._expect(local)
        self._warm_up(remote)
        files = self._loader(remote, "none")
        turns = [self._load("files", files, expected[0])]
        files.close()
        auto = self._loader(remote, Auto(codecs=codecs, fresh=True))
        turns += [self._load(f"auto {epoch}", auto, expected[epoch]) for epoch in range(_EPOCHS)]
        auto.close()
        assert auto.logbook is not None
        say(f"{sum_up(turns)} The planner: {auto.logbook.stretches[-1].reason}.")
        text = _TEXT.format(epochs=_EPOCHS, extras=_missing(known_codecs() if codecs is None else codecs))
        chapters = (trade_chapter(turns, text=text), offload_chapter(auto.logbook))
        figures = {"epochs": [asdict(turn) for turn in turns], **describe(auto.logbook)}
        return Exhibit(chapters, {"offload": figures})

    def _loader(self, data: Dataset, offload: Auto | Offload | str | None = None) -> DataLoader:
        return DataLoader(
            data,
            find_preset("imagenet"),
            batch_size=_BATCH,
            shuffle=True,
            seed=self.seed,
            offload=offload,
            progress=False,
        )

    def _expect(self, local: Dataset) -> list[list[_Digest]]:
        loader = self._loader(local)
        found = [[digest for batch in loader for digest in _digests(batch)] for _ in range(_EPOCHS)]
        loader.close()
        return found

    def _warm_up(self, remote: Dataset) -> None:
        """Both sides load torch for the resize; that is no part of an epoch."""
        loader = self._loader(remote.select(remote.ids[:_WARM_UP]), "all")
        for _ in loader:
            pass
        loader.close()

    def _load(self, name: str, loader: DataLoader, expected: list[_Digest]) -> Turn:
        epoch, before = loader.epoch, self._read()
        found = [digest for batch in loader for digest in _digests(batch)]
        link_bytes, seconds, store, trainer = self._read() - before
        turn = Turn(
            name,
            len(found),
            _planned(loader.logbook, epoch),
            int(link_bytes),
            float(seconds),
            float(store),
            float(trainer),
            _differing(found, expected),
        )
        _check(turn)
        return turn

    def _read(self) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """All that only grows: bytes over the link, wall seconds, CPU of the store and of the trainer."""
        trainer = time.process_time() - self.proxy.cpu_seconds
        return np.array(
            [self.proxy.bytes_down, time.perf_counter(), tree_cpu_seconds(self.store.pid), trainer]
        )


def _digests(batch: Batch) -> Iterator[_Digest]:
    """Of each sample id, label, and a digest of its pixels."""
    rows = batch.inputs.contiguous().numpy()
    for row, id, label in zip(rows, batch.ids.tolist(), batch.targets.tolist(), strict=True):
        yield id, label, xxhash.xxh3_128_digest(row)


def _differing(found: list[_Digest], expected: list[_Digest]) -> int:
    """Samples that are not the expected ones, missing and further ones among them."""
    unequal = sum(ours != theirs for ours, theirs in zip(found, expected, strict=False))
    return unequal + abs(len(found) - len(expected))


def _planned(logbook: Logbook | None, epoch: int) -> int:
    stretches = () if logbook is None else logbook.stretches
    return sum(sum(each.ways) for each in stretches if each.phase == "plan" and each.epoch == epoch)


def _check(turn: Turn) -> None:
    if turn.differing or not turn.samples:
        raise HeadwaterError(
            f"{turn.name}: {turn.differing} of {turn.samples} samples differ from those of the local files"
        )
    say(
        f"{turn.name}: {turn.link_bytes / 1e6:,.1f} MB over the link in {turn.seconds:.1f} s, "
        f"{turn.planned:,} of {turn.samples:,} samples planned"
    )


def _missing(codecs: Collection[str]) -> str:
    names = []
    if not any(name.startswith("jxl") for name in codecs):
        names.append("JPEG XL")
    if not any(name in EXCERPTS for name in codecs):
        names.append("cuts inside the JPEG")
    return _WITHOUT.format(names=f"{' and '.join(names)} were") if names else ""
