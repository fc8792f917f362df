"""`headwater explain`: what offloading was expected to do, what it did, and why."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import typer

from headwater.cli.forecast import Forecast, load_logbook
from headwater.cli.linking import Ca, Cert, Key, TokenFile
from headwater.cli.printing import JsonFlag, format_bytes, print_json, print_table, printable
from headwater.cli.sampling import spread
from headwater.errors import WrongUse
from headwater.measure.logbook import Logbook
from headwater.plan.offload import make_plan
from headwater.report import Chapter, write_page
from headwater.report.advice import advise
from headwater.report.balance import balances, to_rates
from headwater.report.offload import explain as explain_chapters
from headwater.report.offload import offload_chapter
from headwater.report.ways import Ways, way_names
from headwater.store import Link, open

_NEIGHBOURS = 1 << 15
"""Samples among which one competes for the store's seconds."""


def explain(
    where: Annotated[
        str | None,
        typer.Argument(
            metavar="[FILE|URI]", help="A logbook, or the address of a run's data; else the last."
        ),
    ] = None,
    sample: Annotated[int | None, typer.Option(help="Id of a sample: why it goes as it does.")] = None,
    epoch: Annotated[int | None, typer.Option(min=0, help="Whose crops; else the last epoch's.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write a page with plots.")] = None,
    token_file: TokenFile = None,
    ca: Ca = None,
    cert: Cert = None,
    key: Key = None,
    json: JsonFlag = False,
) -> None:
    """Predicted against measured, the bottleneck, what would move it, and why ways were used or not."""
    logbook = load_logbook(where)
    document = describe(logbook)
    if sample is not None:
        link = Link(ca=ca, cert=cert, key=key)
        forecast = Forecast.of(logbook, open(logbook.uri.splitlines(), token=token_file, link=link))
        document["sample"] = explain_sample(
            forecast, sample, epoch=_last(logbook) if epoch is None else epoch
        )
    chapters = explain_chapters(logbook)
    if html is not None:
        write_page(html, [offload_chapter(logbook), *chapters[1:]], title="Offloading, explained")
    if json:
        print_json(document)
    elif sample is not None:
        _print_sample(document["sample"])
    else:
        print_chapters(chapters)


def describe(logbook: Logbook) -> dict[str, Any]:
    """The logbook's sums and reasons as plain data."""
    ways, found = Ways(logbook), balances(logbook)
    return {
        "uri": logbook.uri,
        "dataset": logbook.key.dataset,
        "pipeline": logbook.pipeline_text,
        "policy": logbook.policy,
        "saved_at": logbook.saved_at,
        "stretches": len(logbook.stretches),
        "stores": [
            {
                **msgspec.to_builtins(asdict(balance)),
                "bottleneck_before": balance.bottleneck_before,
                "bottleneck_after": balance.bottleneck_after,
                "advice": advise(balance.times_after, balance.assumed),
            }
            for balance in found
        ],
        "ways": [
            {"way": ways.names[way], **msgspec.to_builtins(total), "why": ways.why(way)}
            for way, total in enumerate(logbook.totals)
        ],
    }


def explain_sample(forecast: Forecast, sample: int, *, epoch: int) -> dict[str, Any]:
    """What each way would cost one sample, and which it goes among others at the rates of the last plan."""
    dataset, logbook = forecast.dataset, forecast.logbook
    position = dataset.index.position_of(np.array([sample]))
    others = spread(dataset, _NEIGHBOURS).positions()
    options = forecast.options(np.concatenate([position, others[others != position]]), epoch=epoch)
    found = balances(logbook)
    rates = found[0].assumed if found else forecast.rates
    plan = make_plan(logbook.policy, options, rates=to_rates(rates))
    names, chosen = way_names(logbook), int(plan.choice[0])
    return {
        "id": sample,
        "key": dataset.index.key(int(position[0])),
        "epoch": epoch,
        "chosen": names[chosen],
        "reason": plan.reason,
        "ways": [
            {
                "way": name,
                "bytes": float(options.bytes[0, way]),
                "store_seconds": float(options.store_seconds[0, way]),
                "trainer_seconds": float(options.trainer_seconds[0, way]),
            }
            for way, name in enumerate(names)
        ],
    }


def print_chapters(chapters: tuple[Chapter, ...]) -> None:
    """Title, words and table of each."""
    for chapter in chapters:
        if chapter.table is not None:
            print_table(chapter.table.columns, chapter.table.rows, title=chapter.title)
        for paragraph in chapter.text.split("\n\n"):
            print(printable(paragraph))


def _print_sample(found: dict[str, Any]) -> None:
    file = found["ways"][0]["bytes"]
    rows = [
        (
            way["way"],
            *_costs(way, file),
            "chosen" if way["way"] == found["chosen"] else "",
        )
        for way in found["ways"]
    ]
    columns = ("way", "bytes", "store ms", "trainer ms", "saved per store second", "")
    print_table(columns, rows, title=f"{found['key']} (id {found['id']}), epoch {found['epoch']}")
    print(printable(found["reason"]))


def _costs(way: dict[str, Any], file: float) -> tuple[str, str, str, str]:
    if not np.isfinite(way["bytes"]):
        return "not known", "", "", ""
    spent = way["store_seconds"]
    saved = f"{format_bytes((file - way['bytes']) / spent)}/s" if spent > 0 else ""
    return format_bytes(way["bytes"]), f"{1e3 * spent:.2f}", f"{1e3 * way['trainer_seconds']:.2f}", saved


def _last(logbook: Logbook) -> int:
    if not logbook.stretches:
        raise WrongUse("the logbook holds no stretch of a run; run `headwater profile` for longer")
    return logbook.stretches[-1].epoch
