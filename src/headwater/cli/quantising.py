"""`headwater models quantise`: int8 layers, made and judged on the data at stores, or on local data."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import MofNCompleteColumn

from headwater.cli.bars import Bars, show_bars
from headwater.cli.linking import Ca, Cert, Key, TokenFile
from headwater.cli.printing import JsonFlag, describe_error, print_json, print_table, say
from headwater.errors import WrongUse
from headwater.models.evidence import BOUND
from headwater.models.registry import Registry
from headwater.models.shelf import models_folder
from headwater.store.client.address import is_store
from headwater.store.client.link import Link
from headwater.store.server.config import name_of

if TYPE_CHECKING:
    from headwater.tune.quantise import QuantiseWish
    from headwater.tune.relabel import JobAtStore

_SHOWN = 12


def quantise(
    version: Annotated[
        str, typer.Argument(metavar="VERSION", help="A digest, 8 or more digits of it, or NAME.")
    ],
    data: Annotated[
        list[str],
        typer.Argument(metavar="STORE...", help="grpc+tls://HOST:PORT[/DATASET], each; or local data."),
    ],
    bound: Annotated[
        float, typer.Option(metavar="SHARE", min=0, max=1, help="Of the labels, what must stay.")
    ] = BOUND,
    hold: Annotated[bool, typer.Option("--hold", help="Keep it, but do not put it in force.")] = False,
    dataset: Annotated[
        str | None, typer.Option(metavar="NAME", help="Which dataset; else the store's only one.")
    ] = None,
    registry: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Local data: where the models are.")
    ] = None,
    token_file: TokenFile = None,
    ca: Ca = None,
    cert: Cert = None,
    key: Key = None,
    json: JsonFlag = False,
) -> None:
    """Make a version's layers int8 where its images are, if the labels stay; else it stays as it is."""
    from headwater.tune.quantise import QuantiseWish, quantise_at
    from headwater.tune.relabel import Access

    wish = QuantiseWish(version, dataset or "", bound, hold)
    if not all(map(is_store, data)):
        found = [_here(data, wish, registry)]
    else:
        if registry is not None:
            raise WrongUse("--registry is for local data; a store has its own models")
        access = Access(token_file, Link(ca=ca, cert=cert, key=key))
        with _bars(data) as move:
            found = quantise_at(data, wish, access, watch=lambda store, job: move(store, job.done, job.total))
    rows = [describe(one, bound) for one in found]
    if json:
        print_json({"ok": all(one.ok for one in found), "stores": rows})
    else:
        _print(rows)
    _end(found, rows)


def describe(one: JobAtStore, bound: float) -> dict[str, Any]:
    """What became of a store, as plain data."""
    job, figures = one.job, one.job.figures if one.job else {}
    return {
        "store": one.store,
        "job": job and job.id,
        "dataset": job and job.dataset,
        "model": job and job.model,
        "state": job and job.state,
        "accepted": bool(job and job.result),
        "version": (job and job.result) or None,
        "reason": job.said if job else "",
        "agreement": figures.get("agreement"),
        "correlation": figures.get("correlation"),
        "speedup": figures.get("speedup"),
        "bound": bound,
        "error": describe_error(one.failure),
    }


def _here(data: Sequence[str], wish: QuantiseWish, registry: Path | None) -> JobAtStore:
    """In this process."""
    if any(map(is_store, data)) or len(data) != 1:
        raise WrongUse("stores are named together, and local data alone; name one folder, or stores only")
    from dataclasses import replace

    from headwater.store import open
    from headwater.store.jobs.record import to_facts
    from headwater.tune.quantise import quantise_here
    from headwater.tune.relabel import JobAtStore

    wish = replace(wish, dataset=wish.dataset or name_of(data[0]))
    with closing(open(data[0])) as local, _bars(data) as move:
        record = quantise_here(
            local,
            Registry(registry or models_folder()),
            wish,
            watch=lambda record: move(data[0], record.cursor, record.total),
        )
    return JobAtStore(data[0], to_facts(record), 0)


def _bars(places: Sequence[str]) -> AbstractContextManager[Bars]:
    return show_bars({place: f"images of {place}" for place in places}, MofNCompleteColumn())


def _print(rows: Sequence[dict[str, Any]]) -> None:
    columns = ("store", "dataset", "model", "stays", "bound", "as fast", "int8 version")
    print_table(columns, [_row(row) for row in rows])
    for row in rows:
        if row["reason"] or row["error"]:
            say(f"{row['store']}: {row['error']['message'] if row['error'] else row['reason']}")


def _row(row: dict[str, Any]) -> tuple[str, ...]:
    model, dataset = (row["model"] or "")[:_SHOWN], row["dataset"] or ""
    stays = "" if row["agreement"] is None else f"{row['agreement']:.1%}"
    speedup = "" if row["speedup"] is None else f"{row['speedup']:.2f}x"
    made = (row["version"] or row["state"] or "not begun")[:_SHOWN]
    if row["state"] == "done" and not row["accepted"]:
        made = "none"
    return row["store"], dataset, model, stays, f"{row['bound']:.1%}", speedup, made


def _end(found: Sequence[JobAtStore], rows: Sequence[dict[str, Any]]) -> None:
    errors = [row["error"] for row in rows if row["error"]]
    if errors:
        raise typer.Exit(errors[0]["exit_code"])
    if not all(one.ok for one in found):  # somebody stopped a job
        raise typer.Exit(1)
