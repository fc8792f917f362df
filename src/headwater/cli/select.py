"""`headwater select`: what a selector would choose, and why."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import numpy as np
import pyarrow as pa
import typer
from numpy.typing import NDArray
from pyarrow import csv

from headwater.cli.linking import Ca, Cert, Key, TokenFile
from headwater.cli.printing import JsonFlag, print_json, print_table, printable
from headwater.data.atomic import replacing
from headwater.data.indexcache import cache_folder
from headwater.errors import DatasetNotFound, StateMismatch, WrongUse
from headwater.measure.signalfile import read_signals
from headwater.measure.signals import Signals
from headwater.report import Sheet, write_page
from headwater.report.selection import balance_of, facts, selection_chapter
from headwater.select.samples import Samples
from headwater.select.selecting import SELECTORS, Selector, make_selection
from headwater.select.selection import Selection
from headwater.select.specs import Plain, make_selector
from headwater.store import Dataset, Link, open

if TYPE_CHECKING:
    from headwater.loader.dryrun import Foretold

_SHOWN = 24
_CLASSES_SHOWN = 12


def select(
    uri: Annotated[str, typer.Argument(help="Folder, tars, Parquet, s3:// or grpc+tls:// address.")],
    by: Annotated[str, typer.Option(help=f"Selector: {', '.join(SELECTORS)}.")] = "uniform",
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A parameter of the selector.")
    ] = None,
    signals: Annotated[
        Path | None, typer.Option(help="What a run has saved of its samples; else the newest of this data.")
    ] = None,
    epoch: Annotated[int | None, typer.Option(min=0, help="Else the one after the last of the run.")] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Of the whole run; else the run's own.")] = None,
    seed: Annotated[int | None, typer.Option(help="What draws are keyed by; else the run's own.")] = None,
    stalled: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="Share of time that training waits; else the run's own."),
    ] = None,
    duplicates: Annotated[
        bool, typer.Option("--duplicates", help="Find near-duplicates, and choose one of each group for all.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Write ids and weights, as CSV.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write a page with plots and pictures.")] = None,
    token_file: TokenFile = None,
    ca: Ca = None,
    cert: Cert = None,
    key: Key = None,
    json: JsonFlag = False,
) -> None:
    """A dry run: how many samples a selector would choose, of which classes, what they count, and why."""
    from headwater.loader.knowledge import facts_of, look_at

    selector = make_selector(by, read_settings(settings or []))
    data = open(uri, token=token_file, link=Link(ca=ca, cert=cert, key=key))
    table = _find_signals(data, signals)
    at = _next_epoch(table) if epoch is None else epoch
    given = {"seed": seed, "epochs": epochs, "stalled": stalled}
    told = {name: value for name, value in given.items() if value is not None}
    samples = look_at(data, table, **{"epoch": at, **facts_of(table, at), **told})
    if duplicates:
        samples = _group(data, samples)
    found = _foresee(selector, samples, table, duplicates=duplicates)
    selection = found.selection
    if out is not None:
        write_ids(out, data, selection)
    if html is not None:
        _write_page(html, data, samples, selection, table)
    document = {**describe(data, samples, selection), "unknown": list(found.unknown)}
    if json:
        print_json(document)
    else:
        _print(document, samples, selection)


def _group(data: Dataset, samples: Samples) -> Samples:
    """The samples with near-duplicates told."""
    from headwater.loader.finding import find_duplicates

    return replace(samples, group=find_duplicates(data).groups)


def _foresee(selector: Selector, samples: Samples, table: Signals, *, duplicates: bool) -> Foretold:
    """As a run would select that leaves out `duplicates`, or else as the table's own would."""
    from headwater.loader.dryrun import Foretold, foretell

    if duplicates:
        return Foretold(make_selection(selector, samples, redundancy="drop"))
    return foretell(selector, samples, table)


def read_settings(words: list[str]) -> dict[str, Plain]:
    """NAME=VALUE each; a value is a number, true, false or null, else text."""
    found: dict[str, Plain] = {}
    for word in words:
        name, given, value = word.partition("=")
        if not given or not name:
            raise WrongUse(f"--set {word!r} is not of the form NAME=VALUE")
        try:
            plain = msgspec.json.decode(value)
        except msgspec.DecodeError:
            plain = value
        found[name] = plain if isinstance(plain, bool | int | float | str | None) else value
    return found


def _find_signals(data: Dataset, given: Path | None) -> Signals:
    if given is not None:
        if not given.exists():
            raise DatasetNotFound(f"there is no file {given}; a run saves one with loader.state_dict()")
        return read_signals(given, data.index)
    saved = sorted(
        (cache_folder() / "signals").glob("*.arrow"), key=lambda path: path.stat().st_mtime, reverse=True
    )
    for path in saved:
        try:
            return read_signals(path, data.index)
        except StateMismatch:  # of other data
            continue
    return Signals(data.index)


def _next_epoch(signals: Signals) -> int:
    """The one after the last in which anything was reported, or only read."""
    known = [getattr(signals, name).max(initial=-1) for name in ("epoch", "read") if signals.has(name)]
    return int(max(known, default=-1)) + 1


def write_ids(path: Path, data: Dataset, selection: Selection) -> None:
    """Id, key and weight of each selected sample."""
    positions = data.positions(selection.places)
    table = pa.table(
        {
            "id": data.index.ids[positions],
            "key": data.index.keys.take(pa.array(positions)),
            "weight": selection.weights,
        }
    )
    try:
        with replacing(path) as file:
            csv.write_csv(table, file)
    except OSError as error:
        raise WrongUse(f"cannot write {path}: {error.strerror}") from error


def describe(data: Dataset, samples: Samples, selection: Selection) -> dict[str, Any]:
    """The selection as plain data."""
    return {
        "uri": data.uri,
        "dataset": data.version,
        "selector": selection.selector,
        "epoch": selection.epoch,
        "epochs": samples.epochs,
        "seed": samples.seed,
        "stalled": samples.stalled,
        "reason": selection.reason,
        "samples": len(samples),
        "selected": len(selection),
        "effective": selection.effective,
        "largest_weight": float(selection.weights.max()),
        "bytes": float(np.nansum(samples.bytes[selection.places], dtype=np.float64)),
        "bytes_of_all": float(np.nansum(samples.bytes, dtype=np.float64)),
        "duplicates": _count_groups(samples),
        "classes": {
            one.name: {"samples": one.samples, "selected": one.selected, "weight": one.weight}
            for one in balance_of(samples, selection, data.classes)
        },
    }


def _count_groups(samples: Samples) -> dict[str, int]:
    grouped = samples.group[samples.group >= 0]
    return {"groups": len(np.unique(grouped)), "samples": len(grouped)}


def _print(found: dict[str, Any], samples: Samples, selection: Selection) -> None:
    title = f"{found['selector']}, epoch {found['epoch']}"
    rows = list(facts(samples, selection).items())
    if (groups := found["duplicates"])["groups"]:
        rows.append(("near-duplicates", f"{groups['samples']:,} in {groups['groups']:,} groups"))
    print_table(("selection", ""), rows, title=title)
    classes = [
        (name, f"{one['samples']:,}", f"{one['selected']:,}", f"{one['weight']:.1%}")
        for name, one in list(found["classes"].items())[:_CLASSES_SHOWN]
    ]
    print_table(
        ("class", "samples", "selected", "of the weight"), classes, title="The least selected classes"
    )
    print(printable(found["reason"]))
    for said in found["unknown"]:
        print(f"not known here: {said}")


def _write_page(path: Path, data: Dataset, samples: Samples, selection: Selection, table: Signals) -> None:
    from headwater.loader.knowledge import past_of

    sheets = [*_informative(data, samples), *_groups(data, samples)]
    chapter = selection_chapter(samples, selection, names=data.classes, past=past_of(table), sheets=sheets)
    write_page(path, [chapter], title=f"What {selection.selector} selects")


def _informative(data: Dataset, samples: Samples) -> list[Sheet]:
    """The samples of the highest and of the lowest loss; none where no loss is known."""
    (known,) = np.nonzero(np.isfinite(samples.loss))
    order = known[np.argsort(samples.loss[known], kind="stable")]
    parts = {"The highest losses": order[::-1][:_SHOWN], "The lowest losses": order[:_SHOWN]}
    return [
        _sheet(title, data, places, [f"{samples.loss[place]:.3g}" for place in places])
        for title, places in parts.items()
        if len(places)
    ]


def _groups(data: Dataset, samples: Samples) -> list[Sheet]:
    """Members of the first groups of near-duplicates, side by side."""
    (members,) = np.nonzero(samples.group >= 0)
    order = members[np.argsort(samples.group[members], kind="stable")][:_SHOWN]
    if not len(order):
        return []
    return [_sheet("Near-duplicates", data, order, [f"group {samples.group[place]}" for place in order])]


def _sheet(title: str, data: Dataset, places: NDArray[np.int64], said: list[str]) -> Sheet:
    from headwater import transforms
    from headwater.loader import DataLoader
    from headwater.report.pictures import contact_sheet

    some = data.select(data.ids[places])
    steps = [transforms.Resize((96, 96))]
    (batch,) = DataLoader(some, steps, batch_size=len(places), num_workers=0, progress=False)
    images = batch.inputs.permute(0, 2, 3, 1).numpy()
    names = [
        data.classes[label] if 0 <= label < len(data.classes) else "" for label in batch.targets.tolist()
    ]
    return contact_sheet(
        title, images, [f"{name} {text}".strip() for name, text in zip(names, said, strict=True)]
    )
