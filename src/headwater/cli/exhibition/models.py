"""The demo's last chapters: its network brought to a store, and kept fresh while the photos there change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from torch import nn

from headwater.cli.child_store import ChildStore
from headwater.cli.exhibition import Exhibit
from headwater.cli.exhibition.loader import PIXELS, plain_steps
from headwater.cli.exhibition.stream import Stream
from headwater.cli.exhibition.tokens import write_token
from headwater.cli.exhibition.upkeep import (
    ANEW,
    ASKED,
    FEATURES,
    FIRST,
    HEADS,
    MODEL,
    NEARLY,
    STREAM,
    WHOLE,
    Upkeep,
)
from headwater.cli.printing import say
from headwater.cli.proxy import Proxy, Shape
from headwater.models.export import Exported, export
from headwater.models.registry import Registry
from headwater.models.split import split
from headwater.report import Chapter
from headwater.report.models import TITLE, Period, add_up, drift_chapter, models_chapter
from headwater.store import open
from headwater.store.wire.messages import Prediction
from headwater.tune.recipe import Recipe

NEEDED = (
    *("onnx", "onnxruntime", "onnxscript", "safetensors", "zstandard"),
    *("alembic", "sqlalchemy", "prometheus_client", "starlette", "uvicorn"),
)
"""What `models`, `labels` and `serve` bring, and what torch exports with."""

_PHOTOS = 720  # at most, so that the chapters take half a minute
_SHAPE = Shape(bits_per_second=100e6, delay_seconds=0.002)
_RECIPE = Recipe(epochs=10, runs=3, batch_size=32, cut="features")
_SMALL = Recipe(epochs=1, runs=1, batch_size=32, learning_rate=0.02, cut="features")
_REMEDY = "pip install 'headwater[models,labels,serve]' onnxscript"
_TEXT = """The network of the first chapter was cut before its last layer and brought to a store that
holds {photos:,} photos which it has not seen, in a process of its own behind a link of 100 Mbit. The
store ran it where the photos are and labelled them. Then {times} times: the store sent features of
photos, {features} numbers for each; a tuner on this side of the link trained a new head on them, in
{runs} runs; the head went to the store as what differs from the version there; and the store labelled all
photos anew, from the features that it had kept. Another head was tuned a little, in small steps: a label
that such a change of the head cannot overturn is skipped, without a look at its features. At last a photo
of a new kind was sent to the store over HTTP, past the link.

Bytes are all that crossed the link, both ways. Beside them stands what would have crossed otherwise: for
features and labels the photos, as often as they were used, for a head the network as it came first."""
_DRIFT = """The photos at the store came in {periods} periods. In the first, all were of the {known} kinds
that the network had learnt. From then on ever more were of {new} other kinds, in the last {most:.0%}. The
stale model is the network as it was brought. The fresh one got a new head before each period, from all
photos of the periods before and their true kinds, as people would have named them. So nothing that counts
here is the label of a photo that the model had learnt from, and what is new in a period can be known in the
next. The layers before the head were never trained on the new kinds. Labels are those in the store's own
database."""


def show_models(photos: Path, folder: Path, *, network: nn.Module, seed: int) -> Exhibit:
    """Bring the network that was trained on `photos` to a store, and keep it fresh there.

    Raises `HeadwaterError` if a photo gets no label. The store's token, its log and its photos are left in
    `folder`. Where a package is missing the chapter says what to install, and no more.
    """
    missing = find_missing(NEEDED)
    if missing:
        return leave_out(missing)
    say("starting a store for models")
    folder.mkdir(exist_ok=True)
    trained = open(photos)
    stream = Stream.write(
        (folder / f"{photos.name}-stream").resolve(),
        count=min(_PHOTOS, len(trained)),
        known=trained.classes,
        seed=seed + 1,
    )
    exported = export(split(network, image_size=PIXELS), classes=trained.classes, steps=plain_steps())
    return _at_a_store(stream, exported, folder, seed=seed)


def find_missing(packages: Sequence[str]) -> list[str]:
    """Those that are not installed."""
    return [name for name in packages if find_spec(name) is None]


def leave_out(missing: Sequence[str]) -> Exhibit:
    """A chapter that says what to install."""
    text = f"This part was left out: it also needs {', '.join(missing)}; {_REMEDY}"
    say(f"{TITLE}: {text}")
    return Exhibit((Chapter(TITLE, text),), {"models": {"missing": list(missing)}})


def _at_a_store(stream: Stream, exported: Exported, folder: Path, *, seed: int) -> Exhibit:
    tokens = folder / "tokens.toml"
    token = write_token(tokens, "read", "models", "jobs", "labels")
    with TemporaryDirectory(prefix="state-", dir=folder) as kept:
        state = Path(kept).resolve() / "store"
        flags: list[str | Path] = ["--token-file", tokens, "--state", state, "--http", "127.0.0.1:0"]
        with (
            ChildStore([f"{STREAM}={stream.folder}"], log=folder / "store.log", flags=flags) as store,
            Proxy(store.address, shape=_SHAPE) as proxy,
            closing(open(store.uri(STREAM, through=proxy.address), token=token)) as remote,
        ):
            registry = Registry(Path(kept) / "registry")
            registry.put(exported.model, name=MODEL, switch=True)
            upkeep = Upkeep(stream, remote, token, proxy, registry, state / "labels.db")
            return _show(upkeep, exported, seed)


def _show(upkeep: Upkeep, exported: Exported, seed: int) -> Exhibit:
    periods = _live_through(upkeep, seed)
    _touch_up(upkeep, seed)
    truth, said = upkeep.ask(int(upkeep.stream.periods[-1][-1]))
    crossings = add_up(upkeep.crossings)
    outcomes = _outcomes(upkeep, exported) | {ASKED: f"{said.label}, {said.score:.2f}; it is {truth}"}
    chapters = (
        models_chapter(crossings, outcomes, text=_text(upkeep.stream, exported)),
        drift_chapter(periods, text=_drift_text(upkeep.stream, periods)),
    )
    figures = {
        "photos": len(upkeep.stream.data),
        "difference": exported.difference,
        "link": [asdict(crossing) for crossing in crossings],
        "labels": upkeep.counts,
        "prediction": _plain(truth, said),
        "drift": [asdict(period) for period in periods],
    }
    return Exhibit(chapters, {"models": figures})


def _live_through(upkeep: Upkeep, seed: int) -> list[Period]:
    """Period after period: the labels of the model that was there first, and those of the newest one."""
    upkeep.push()
    stale = upkeep.label(FIRST)
    periods = [_compare(upkeep.stream, 0, stale=stale, fresh=stale)]
    for number in range(1, len(upkeep.stream.periods)):
        upkeep.tune(upkeep.stream.before(number), replace(_RECIPE, seed=seed))
        upkeep.push()
        periods.append(_compare(upkeep.stream, number, stale=stale, fresh=upkeep.label(ANEW)))
    return periods


def _touch_up(upkeep: Upkeep, seed: int) -> None:
    """A change of the head that is too small for most labels."""
    upkeep.tune(upkeep.stream.data.ids, replace(_SMALL, seed=seed))
    upkeep.push()
    upkeep.label(NEARLY)


def _compare(stream: Stream, number: int, *, stale: NDArray[np.bool_], fresh: NDArray[np.bool_]) -> Period:
    part = stream.part(number)
    shares = stream.share_of_new(number), float(stale[part].mean()), float(fresh[part].mean())
    period = Period(int(part.sum()), *shares)
    say(
        f"period {number + 1}: {period.new:.0%} of {period.photos:,} photos are of new kinds; right are "
        f"{period.stale:.0%} of the stale model's labels, {period.fresh:.0%} of the fresh one's"
    )
    return period


def _outcomes(upkeep: Upkeep, exported: Exported) -> dict[str, str]:
    first, *anew, nearly = upkeep.counts
    return {
        WHOLE: f"logits within {exported.difference:.0e} of torch's",
        FIRST: f"{first['labelled']:,} labelled",
        FEATURES: f"{len(anew)} times in {_RECIPE.runs} runs, once in {_SMALL.runs}",
        HEADS: f"{len(anew) + 1} versions",
        ANEW: _total(anew),
        NEARLY: _total([nearly]),
    }


def _total(relabels: Sequence[Mapping[str, int]]) -> str:
    sums = {name: sum(counts[name] for counts in relabels) for name in ("changed", "unchanged", "skipped")}
    return ", ".join(f"{count:,} {name}" for name, count in sums.items())


def _text(stream: Stream, exported: Exported) -> str:
    return _TEXT.format(
        photos=len(stream.data),
        times=len(stream.periods) - 1,
        features=exported.model.tensors["head/weight"].shape[1],
        runs=_RECIPE.runs,
    )


def _drift_text(stream: Stream, periods: Sequence[Period]) -> str:
    known, kinds = len(stream.known), len(stream.data.classes)
    return _DRIFT.format(periods=len(periods), known=known, new=kinds - known, most=periods[-1].new)


def _plain(truth: str, said: Prediction) -> dict[str, Any]:
    top = [msgspec.structs.asdict(guess) for guess in said.top]
    return {"truth": truth, **msgspec.structs.asdict(said), "top": top}
