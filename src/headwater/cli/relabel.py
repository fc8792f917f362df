"""`headwater relabel`: labels of a model's version for samples that have none, or an older one's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import MofNCompleteColumn, TimeRemainingColumn

from headwater.cli.bars import Bars, show_bars
from headwater.cli.linking import Ca, Cert, Key, TokenFile
from headwater.cli.printing import JsonFlag, describe_error, format_bytes, print_json, print_table, say
from headwater.data.bytecount import parse_bytes
from headwater.errors import WrongUse
from headwater.store.client.address import is_store
from headwater.store.client.link import Link
from headwater.store.server.config import name_of

if TYPE_CHECKING:
    from headwater.store.jobs.record import JobRecord
    from headwater.store.wire.jobmessages import JobFacts
    from headwater.tune.relabel import JobAtStore, Wish

COUNTS = ("labelled", "unchanged", "changed", "skipped", "failed")
_SHOWN = 12
_FAILURES_SHOWN = 5


def relabel(
    data: Annotated[
        list[str],
        typer.Argument(metavar="STORE...", help="grpc+tls://HOST:PORT[/DATASET], each; or local data."),
    ],
    dataset: Annotated[
        str | None, typer.Option(metavar="NAME", help="Which dataset; else the store's only one.")
    ] = None,
    model: Annotated[
        str, typer.Option(metavar="NAME", help="A model's name or digest; else the only one in force.")
    ] = "",
    opinions: Annotated[
        bool, typer.Option("--opinions", help="Ask about samples with somebody else's label too.")
    ] = False,
    over_imports: Annotated[
        bool, typer.Option("--over-imports", help="Replace labels that came with the data.")
    ] = False,
    wait: Annotated[bool, typer.Option(help="Wait until the jobs have ended.")] = True,
    stop: Annotated[bool, typer.Option("--stop", help="End the jobs that are under way instead.")] = False,
    registry: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Local data: where the models are.")
    ] = None,
    db: Annotated[str | None, typer.Option(help="Local data: file or URL of the labels.")] = None,
    feature_bytes: Annotated[
        str, typer.Option(metavar="SIZE", help="Local data: disk for features; 0 keeps none.")
    ] = "1GiB",
    token_file: TokenFile = None,
    ca: Ca = None,
    cert: Cert = None,
    key: Key = None,
    json: JsonFlag = False,
) -> None:
    """Label what has no label, or one of an older version, where the images are; only labels move."""
    from headwater.tune.relabel import Access, Wish, relabel_at, stop_at

    wish = Wish(dataset or "", model, opinions, over_imports)
    if not all(map(is_store, data)):
        found = [_here(data, wish, registry, db, feature_bytes)]
    else:
        _refuse_local(registry, db)
        access = Access(token_file, Link(ca=ca, cert=cert, key=key))
        if stop:
            found = stop_at(data, wish, access)
        else:
            with _bars(data) as show, _interruptible(data):
                found = relabel_at(data, wish, access, wait=wait, watch=_watch(show))
    ok = all(one.error is None if stop else one.ok for one in found)
    _print(found, ok=ok, as_json=json)
    _end(found, ok=ok)


def describe(one: JobAtStore) -> dict[str, Any]:
    """What became of a store, as plain data."""
    job = one.job
    return {
        "store": one.store,
        "job": job and job.id,
        "dataset": job and job.dataset,
        "model": job and job.model,
        "state": job and job.state,
        "done": job.done if job else 0,
        "total": job.total if job else 0,
        "counts": {name: job.counts.get(name, 0) if job else 0 for name in (*COUNTS, "protected")},
        "failures": [{"id": f.id, "key": f.key, "reason": f.reason} for f in job.failures] if job else [],
        "bytes_moved": one.bytes_moved,
        "error": describe_error(one.failure),
    }


def _here(
    data: Sequence[str], wish: Wish, registry: Path | None, db: str | None, feature_bytes: str
) -> JobAtStore:
    """The job in this process."""
    if any(map(is_store, data)) or len(data) != 1:
        raise WrongUse("stores are named together, and local data alone; name one folder, or stores only")
    from dataclasses import replace

    from headwater.models.registry import Registry
    from headwater.models.shelf import models_folder
    from headwater.store import open
    from headwater.store.labels import default_place, open_labels
    from headwater.tune.here import relabel_here
    from headwater.tune.relabel import JobAtStore

    wish = replace(wish, dataset=wish.dataset or name_of(data[0]))
    with (
        closing(open(data[0])) as local,
        closing(open_labels(db or default_place())) as labels,
        _bars(data) as show,
    ):
        record = relabel_here(
            local,
            Registry(registry or models_folder()),
            labels,
            wish,
            feature_bytes=parse_bytes(feature_bytes),
            watch=lambda record: show(data[0], record.cursor, record.total),
        )
    return JobAtStore(data[0], _facts(record), 0)


def _facts(record: JobRecord) -> JobFacts:
    from headwater.store.jobs.record import to_facts

    return to_facts(record)


def _refuse_local(registry: Path | None, db: str | None) -> None:
    if registry is not None or db is not None:
        raise WrongUse("--registry and --db are for local data; a store has its own models and labels")


def _watch(show: Bars) -> Callable[[str, JobFacts], None]:
    return lambda store, job: show(store, job.done, job.total)


def _bars(stores: Sequence[str]) -> AbstractContextManager[Bars]:
    return show_bars({store: store for store in stores}, MofNCompleteColumn(), TimeRemainingColumn())


@contextmanager
def _interruptible(stores: Sequence[str]) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        places = " ".join(stores)
        say(
            f"the jobs go on; `headwater relabel {places}` looks again, with --no-wait once, and with --stop "
            "ends them"
        )
        raise


def _print(found: Sequence[JobAtStore], *, ok: bool, as_json: bool) -> None:
    rows = [describe(one) for one in found]
    if as_json:
        print_json({"ok": ok, "stores": rows})
        return
    if not rows:
        print("no job is under way")
        return
    columns = ("store", "dataset", "model", "state", *COUNTS, "bytes across the link")
    print_table(columns, [_row(row) for row in rows])
    for row in rows:
        for failure in row["failures"][:_FAILURES_SHOWN]:
            say(f"{failure['key']}: {failure['reason']}")
        if row["error"]:
            say(f"{row['store']}: {row['error']['message']}")


def _row(row: dict[str, Any]) -> tuple[str, ...]:
    counts = [f"{row['counts'][name]:,}" for name in COUNTS]
    model = (row["model"] or "")[:_SHOWN]
    state = row["state"] or "not begun"
    return row["store"], row["dataset"] or "", model, state, *counts, format_bytes(row["bytes_moved"])


def _end(found: Sequence[JobAtStore], *, ok: bool) -> None:
    errors = [one.error for one in found if one.error is not None]
    if errors:
        raise typer.Exit(errors[0].exit_code)
    if not ok:  # a job failed, or somebody stopped it
        raise typer.Exit(1)
