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
from headwater.measure.epochplan import EpochPlan
from headwater.measure.logbook import Logbook
from headwater.plan.offload import make_plan
from headwater.report import Chapter, write_page
from headwater.report.advice import advise
from headwater.report.balance import balances, to_rates
from headwater.report.offload import explain as explain_chapters
from headwater.report.offload import offload_chapter
from headwater.report.plan import plan_chapter
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
    plan = EpochPlan.find(logbook.key, seed=logbook.seed)
    document = {**describe(logbook), "plan": None if plan is None else _describe_plan(plan, logbook)}
    if sample is not None:
        link = Link(ca=ca, cert=cert, key=key)
        forecast = Forecast.of(logbook, open(logbook.uri.splitlines(), token=token_file, link=link))
        document["sample"] = explain_sample(
            forecast, sample, epoch=_last(logbook) if epoch is None else epoch, plan=plan
        )
    chapters = explain_chapters(logbook)
    if plan is not None:
        chapters += (plan_chapter(logbook, plan),)
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
        "failure": logbook.failure,
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


def _describe_plan(plan: EpochPlan, logbook: Logbook) -> dict[str, Any]:
    counts = dict(zip(way_names(logbook), plan.counts(), strict=True))
    return {
        "epoch": plan.epoch,
        "samples": len(plan),
        "planned": sum(counts.values()),
        "ways": counts,
        "stores": [msgspec.to_builtins(part) for part in plan.sites.values()],
    }


def explain_sample(
    forecast: Forecast, sample: int, *, epoch: int, plan: EpochPlan | None = None
) -> dict[str, Any]:
    """What each way would cost one sample, and which it goes.

    As the run has planned it in that epoch; else among others of its store at the rates of the last plan.
    """
    dataset, logbook = forecast.dataset, forecast.logbook
    position = dataset.index.position_of(np.array([sample]))
    owner = int(forecast.owners(position)[0])
    others = spread(dataset, _NEIGHBOURS).positions()
    others = others[(others != position) & (forecast.owners(others) == owner)]
    options = forecast.options(np.concatenate([position, others]), epoch=epoch)
    again = make_plan(logbook.policy, options, rates=to_rates(forecast.assumed[owner]))
    kept = None if plan is None or plan.epoch != epoch else plan.way_of(int(position[0]))
    names = way_names(logbook)
    return {
        "id": sample,
        "key": dataset.index.key(int(position[0])),
        "epoch": epoch,
        "store": forecast.names[owner],
        "chosen": names[int(again.choice[0]) if kept is None else kept],
        "planned": kept is not None,
        "reason": again.reason if kept is None or plan is None else _reason(plan, forecast.names[owner]),
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


def _reason(plan: EpochPlan, store: str) -> str:
    """Of the run's last plan for that store."""
    known = plan.sites.get(store) or next(iter(plan.sites.values()))
    return known.reason


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
    print(
        "as the run planned it:" if found["planned"] else "not planned in that epoch; planned now:", end=" "
    )
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
