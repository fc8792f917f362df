"""The demo's chapters on what need not be visited: near-duplicates, and what a store does not select."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image

from headwater.cli.child_store import ChildStore
from headwater.cli.exhibition import Exhibit
from headwater.cli.exhibition.loader import plain_steps, training_steps
from headwater.cli.exhibition.models import NEEDED, find_missing
from headwater.cli.exhibition.tokens import write_token
from headwater.cli.printing import say
from headwater.cli.training import Trainer, small_network
from headwater.loader import DataLoader
from headwater.loader.duplicates import Duplicates
from headwater.loader.finding import find_duplicates
from headwater.report import Chapter, Table
from headwater.select.always import Always
from headwater.select.medoids import Medoids
from headwater.store import Dataset, open

if TYPE_CHECKING:
    from headwater.loader.beside import Beside

DUPLICATES, BESIDE = "Near-duplicates", "Selected beside the data"
_PHOTOS, _COPIES = 128, 32  # few, so that both chapters take a few seconds
_AGAIN = "-again"
_NAME = "twins"
_BATCH, _EPOCHS, _SELECTED, _SHARE = 16, 3, 2, 0.3
_SECONDS = 120.0
_CACHE = 5  # holds one part in so many of the files
_REMEDY = "pip install 'headwater[models,labels,serve]' onnxscript"
_TEXT = """{photos} of the photos, and {copies} of them once more at three quarters of the size and another
quality, lie at a store, which looked for pictures of one label that are alike, beside the data: it put
{found} of the {copies} copies together with what they are copies of, and {others} other pairs. Epochs over
the same files then visited all of them; one of each group, which counts for all of it; and, with a cache that
holds a fifth of the files, all of them once more, without and with near-duplicates that the cache holds
served in place of what it does not. Bytes are those that were read past the cache, in {epochs} epochs."""
_STORE = """The same store then selected for a training run: after each epoch the network went to it as a
proxy of int8, it scored its photos, and took {share:.0%} of each class as medoids of their gradients. Ids and
weights came back; from the third epoch on only what was selected crossed. The first epoch visits everything,
and the second, for which nothing is selected yet, a random share as large. The loop waited here for each
selection, where else it goes on training, so that the numbers do not hang on the machine; and `Always` keeps
it from ending, since for so few photos no selection pays."""


@dataclass(frozen=True)
class Passed:
    """Epochs over the twins: samples that were visited, bytes read, and how many another stood in for."""

    name: str
    samples: int
    bytes: int
    stand_ins: int = 0


def show_thinning(photos: Path, folder: Path, *, seed: int) -> Exhibit:
    """Find near-duplicates and select, both at a store; its token and its log are left in `folder`.

    Where a package is missing the chapter on selection says what to install, and no more.
    """
    say("looking for near-duplicates at a store")
    folder.mkdir(exist_ok=True)
    twins = _write_twins(photos, folder / "twins")
    with _serving(twins, folder) as remote:
        found = _show_duplicates(remote, open(twins), seed=seed)
        shown = _show_beside(remote, seed=seed)
    return Exhibit((*found.chapters, *shown.chapters), found.figures | shown.figures)


def _write_twins(photos: Path, folder: Path) -> Path:
    """Photos from all over the data, and copies of every so many of them."""
    shutil.rmtree(folder, ignore_errors=True)  # an earlier demo may have had other photos
    data = open(photos)
    for place in range(_PHOTOS):
        original = photos / data.index.key(place * len(data) // _PHOTOS)
        copy = folder / original.relative_to(photos)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(original.read_bytes())
        if place % (_PHOTOS // _COPIES) == 0:
            with Image.open(original) as image:
                smaller = image.convert("RGB").resize((image.width * 3 // 4, image.height * 3 // 4))
                smaller.save(copy.with_name(f"{copy.stem}{_AGAIN}.jpg"), quality=75)
    return folder


@contextmanager
def _serving(twins: Path, folder: Path) -> Iterator[Dataset]:
    tokens = folder / "tokens.toml"
    token = write_token(tokens, "read", "models", "jobs")
    with TemporaryDirectory(prefix="state-", dir=folder) as kept:
        flags: list[str | Path] = ["--token-file", tokens, "--state", Path(kept).resolve() / "store"]
        words = [f"{_NAME}={twins.resolve()}"]
        with (
            ChildStore(words, log=folder / "store.log", flags=flags) as store,
            closing(open(store.uri(_NAME), token=token)) as remote,
        ):
            yield remote


def _show_duplicates(remote: Dataset, local: Dataset, *, seed: int) -> Exhibit:
    found = find_duplicates(remote, progress=False)
    copies, right, pairs = _compare(local, found)
    facts: dict[str, Any] = {"photos": len(local) - copies, "copies": copies, "found": right}
    facts["others"] = pairs - right
    room = int(local.sizes.sum()) // _CACHE
    ways: dict[str, dict[str, Any]] = {
        "all files": {},
        "one of each group": {"duplicates": replace(found, mode="drop")},
        "all files, with a cache": {"cache": room},
        "with stand-ins from the cache": {"cache": room, "duplicates": replace(found, mode="stand_in")},
    }
    passes = [_pass(name, local, seed=seed, **options) for name, options in ways.items()]
    for one in passes:
        say(f"{one.name}: {one.samples:,} samples, {one.bytes / 1e6:.1f} MB, {one.stand_ins} stood in for")
    rows = tuple(
        (one.name, f"{one.samples:,}", f"{one.bytes / 1e6:.1f}", f"{one.stand_ins:,}") for one in passes
    )
    table = Table(("epochs over", "samples visited", "MB read", "stood in for"), rows)
    chapter = Chapter(DUPLICATES, _TEXT.format(**facts, epochs=_EPOCHS), table=table)
    return Exhibit((chapter,), {"duplicates": {**facts, "epochs": [asdict(one) for one in passes]}})


def _compare(data: Dataset, found: Duplicates) -> tuple[int, int, int]:
    """Copies that there are, those that share a group with their original, and pairs that share one."""
    groups = {data.index.key(place): int(found.groups[place]) for place in range(len(data))}
    copies = [key for key in groups if _AGAIN in key]
    right = sum(groups[key] >= 0 and groups[key] == groups[key.replace(_AGAIN, "")] for key in copies)
    sizes = np.bincount(found.groups[found.groups >= 0])
    return len(copies), right, int((sizes * (sizes - 1) // 2).sum())


def _pass(name: str, data: Dataset, *, seed: int, **options: Any) -> Passed:
    loader = DataLoader(
        data, plain_steps(), batch_size=_BATCH, shuffle=True, seed=seed, progress=False, **options
    )
    for _ in range(_EPOCHS):
        for _batch in loader:
            pass
    stats = loader.stats()
    loader.close()
    return Passed(name, stats.samples, stats.bytes_moved, stats.stand_ins)


def _show_beside(remote: Dataset, *, seed: int) -> Exhibit:
    if missing := find_missing(NEEDED):
        text = f"This part was left out: it also needs {', '.join(missing)}; {_REMEDY}"
        return Exhibit((Chapter(BESIDE, text),), {"beside": {"missing": missing}})
    from headwater.loader.beside import Beside

    torch.manual_seed(seed)
    trainer = Trainer(small_network(len(remote.classes)))
    with closing(Beside(Always(Medoids(share=_SHARE)), remote, plain_steps())) as beside:
        epochs = _train(trainer, remote, beside, seed=seed)
    rows = tuple(
        (
            str(number),
            f"{one['samples']:,}",
            f"{one['bytes'] / 1e6:.2f}",
            f"{one['feedback_bytes'] / 1e6:.3f}",
            one["proxy"],
        )
        for number, one in enumerate(epochs)
    )
    columns = ("epoch", "samples visited", "MB of samples", "MB of feedback behind it", "proxy")
    chapter = Chapter(BESIDE, _STORE.format(share=_SHARE), table=Table(columns, rows))
    return Exhibit((chapter,), {"beside": {"share": _SHARE, "epochs": epochs}})


def _train(trainer: Trainer, data: Dataset, beside: Beside, *, seed: int) -> list[dict[str, Any]]:
    """Two epochs, and some on what was selected; raises what kept the store from selecting."""
    loader = DataLoader(
        data,
        training_steps(),
        batch_size=_BATCH,
        shuffle=True,
        seed=seed,
        select=beside,
        epochs=2 + _SELECTED,
        progress=False,
    )
    found, before = [], loader.stats()
    for number in range(2 + _SELECTED):
        for _batch in trainer.train_epoch(loader):
            pass
        beside.feed(trainer.network)
        now, moved, proxy = loader.stats(), 0, ""
        if len(beside.rounds) > number:
            moved, proxy = _finish(beside)
        one = {"samples": now.samples - before.samples, "bytes": now.bytes_moved - before.bytes_moved}
        say(f"epoch {number}: {one['samples']:,} samples, {one['bytes'] / 1e6:.2f} MB")
        found.append({**one, "feedback_bytes": moved, "proxy": proxy})
        before = now
    loader.close()
    return found


def _finish(beside: Beside) -> tuple[int, str]:
    """Wait for the round; what it moved, and how far its proxy's losses rank as those of fp32."""
    last = beside.rounds[-1]
    last.done.wait(_SECONDS)
    if last.error is not None:
        raise last.error
    assert last.fed is not None
    agreed = "" if last.fed.correlation is None else f", ranks as fp32 by {last.fed.correlation:.3f}"
    return last.bytes_moved, last.fed.precision + agreed
