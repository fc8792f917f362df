"""`headwater labels`: look into a label database, correct it, and exchange it with others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headwater.cli.labelling import Keys, Reader, parse_range, parse_sources, print_rows
from headwater.cli.linking import Ca, Cert, Key, TokenFile
from headwater.cli.printing import JsonFlag, print_json, print_table
from headwater.errors import WrongUse
from headwater.store import Dataset, Link, open
from headwater.store.client.address import is_store
from headwater.store.client.labels import StoreLabels, labels_of
from headwater.store.labels import LabelRows, Source, chosen_place, default_place, open_labels
from headwater.store.labels.author import user_name

if TYPE_CHECKING:
    from headwater.store.labels.database import LabelDatabase
    from headwater.store.labels.revisions import Written

app = typer.Typer(help="Look into a label database, correct it, exchange it.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="DATASET", help="The dataset's name in the database.")]
Db = Annotated[
    str | None,
    typer.Option("--db", help="SQLite file or URL; else $HEADWATER_LABELS, else the user's labels.db."),
]
DbOrStore = Annotated[
    str | None,
    typer.Option(
        "--db", help="SQLite file, URL or a store's address; else $HEADWATER_LABELS, or the user's."
    ),
]
Data = Annotated[str | None, typer.Option("--data", help="The dataset's address, to show keys of samples.")]
By = Annotated[str | None, typer.Option("--by", help="Who does it; else the user's name.")]
Limit = Annotated[int, typer.Option(min=1, help="How many rows to show.")]
Form = Annotated[
    str | None, typer.Option("--format", help="csv, parquet or labelstudio; else by the file's name.")
]


@app.callback()
def _labels() -> None:
    """Look into a label database, correct it, exchange it."""


@app.command("search")
def search(
    dataset: Name,
    classes: Annotated[list[str] | None, typer.Option("--class", help="Only this class; repeatable.")] = None,
    score: Annotated[str | None, typer.Option(help="Only scores in LOW..HIGH.")] = None,
    margin: Annotated[str | None, typer.Option(help="Only margins in LOW..HIGH.")] = None,
    source: Annotated[list[str] | None, typer.Option(help="human, model or import; repeatable.")] = None,
    version: Annotated[str | None, typer.Option(help="Only rows of this model version.")] = None,
    older_than: Annotated[str | None, typer.Option(help="Only rows of models before this one.")] = None,
    after: Annotated[int, typer.Option(help="Only ids above this: the last one of a page.")] = -1,
    limit: Limit = 50,
    db: DbOrStore = None,
    data: Data = None,
    token_file: TokenFile = None,
    ca: Ca = None,
    cert: Cert = None,
    key: Key = None,
    json: JsonFlag = False,
) -> None:
    """Rows in force, in order of id, by class, score, margin, source and model version."""
    from headwater.store.labels.wanted import LabelQuery

    query = LabelQuery(
        classes=tuple(classes or ()),
        scores=parse_range(score, "score"),
        margins=parse_range(margin, "margin"),
        sources=parse_sources(source or ()),
        model=version,
        older_than=older_than,
    )
    link = Link(ca=ca, cert=cert, key=key)
    with _read_from(db, token_file, link) as labels, _data(data, token_file, link) as samples:
        rows = labels.search(dataset, query, after=after, limit=limit)
        entries = Reader.of(labels, dataset, samples).document(rows)
    following = entries[-1]["sample"] if len(entries) == limit else None
    if json:
        print_json({"dataset": dataset, "rows": entries, "next": following})
    else:
        print_rows(entries, title="" if following is None else f"more with --after {following}")


@app.command("counts")
def counts(
    dataset: Name,
    db: DbOrStore = None,
    token_file: TokenFile = None,
    ca: Ca = None,
    cert: Cert = None,
    key: Key = None,
    json: JsonFlag = False,
) -> None:
    """How many rows each class has, by who said so."""
    with _read_from(db, token_file, Link(ca=ca, cert=cert, key=key)) as labels:
        found = labels.counts(dataset)
    named = {name: {s.name.lower(): row[s] for s in Source} for name, row in found.items()}
    total = {s.name.lower(): sum(row[s] for row in found.values()) for s in Source}
    if json:
        print_json({"dataset": dataset, "classes": named, "total": total})
        return
    rows = [(name, row) for name, row in [*named.items(), ("all", total)]]
    cells = [(name, *(f"{count:,}" for count in (*row.values(), sum(row.values())))) for name, row in rows]
    print_table(("class", *total, "together"), cells)


@app.command("diff")
def diff(
    dataset: Name,
    before: Annotated[str, typer.Argument(help="Model version: digest, 8 or more digits of it, or name.")],
    after: Annotated[str, typer.Argument(help="The version to compare with it.")],
    limit: Limit = 20,
    db: Db = None,
    data: Data = None,
    token_file: TokenFile = None,
    ca: Ca = None,
    cert: Cert = None,
    key: Key = None,
    json: JsonFlag = False,
) -> None:
    """What changed between two model versions: classes from and to, and the first rows."""
    link = Link(ca=ca, cert=cert, key=key)
    with _opened(db) as database, _data(data, token_file, link) as samples:
        found = database.diff(dataset, before, after)
        reader = Reader.of(database, dataset, samples)
        entries = _changes(database, dataset, reader, versions=(before, after), limit=limit)
    changed = sorted(found.matrix.items(), key=lambda item: -item[1])
    matrix = [{"from": old, "to": new, "count": count} for (old, new), count in changed]
    moved = [(old, new, f"{count:,}") for (old, new), count in changed if old != new]
    if json:
        facts = {"before": found.before.digest, "after": found.after.digest}
        totals = {"samples": found.samples, "changed": found.changed}
        print_json({"dataset": dataset, **facts, **totals, "matrix": matrix, "rows": entries})
        return
    title = f"{found.changed:,} of {found.samples:,} samples that both have labelled"
    print_table(("from", "to", "samples"), moved, title=title)
    print_rows(entries, further=("was",))


def _changes(
    database: LabelDatabase, dataset: str, reader: Reader, *, versions: tuple[str, str], limit: int
) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for old, new in database.diff_rows(dataset, *versions):
        pairs = zip(reader.document(old), reader.document(new), strict=True)
        found += [{**became, "was": was["class"]} for was, became in pairs]
        if len(found) >= limit:
            break
    return found[:limit]


@app.command("review")
def review(
    dataset: Name,
    by: Annotated[
        str, typer.Option(help="margin, disagreement (with humans and imports) or models (the last two).")
    ] = "margin",
    limit: Limit = 20,
    db: Db = None,
    data: Data = None,
    token_file: TokenFile = None,
    ca: Ca = None,
    cert: Cert = None,
    key: Key = None,
    json: JsonFlag = False,
) -> None:
    """What to look at first: the smallest margins, or rows that a model contradicts."""
    link = Link(ca=ca, cert=cert, key=key)
    with _opened(db) as database, _data(data, token_file, link) as samples:
        found = database.review(dataset, by, limit=limit)
        reader = Reader.of(database, dataset, samples)
    entries = reader.document(found.rows)
    others = [] if found.others is None else reader.document(found.others)
    if json:
        facts = ("class", "score", "margin", "version")
        said = [{"other": {name: other[name] for name in facts}} for other in others]
        print_json({"dataset": dataset, "by": by, "rows": _beside(entries, said)})
        return
    further = ("other", "its margin") if others else ()
    columns = [{"other": other["class"], "its margin": other["margin"]} for other in others]
    print_rows(_beside(entries, columns), further=further)


def _beside(entries: Sequence[dict[str, Any]], further: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Each entry with what stands beside it, if anything does."""
    return (
        [{**entry, **more} for entry, more in zip(entries, further, strict=True)] if further else [*entries]
    )


@app.command("rename")
def rename(
    dataset: Name,
    old: Annotated[str, typer.Argument(help="The class.")],
    new: Annotated[str, typer.Argument(help="Its new name.")],
    by: By = None,
    db: Db = None,
    json: JsonFlag = False,
) -> None:
    """Give a class another name."""
    with _opened(db) as database:
        written = database.rename(dataset, old, new, author=_author(by))
    _print_written(dataset, written, f"{old!r} is called {new!r} now", json=json)


@app.command("merge")
def merge(
    dataset: Name,
    old: Annotated[str, typer.Argument(help="The class that becomes a part of the other.")],
    into: Annotated[str, typer.Argument(help="The other.")],
    by: By = None,
    db: Db = None,
    json: JsonFlag = False,
) -> None:
    """Make one class a part of another."""
    with _opened(db) as database:
        written = database.merge(dataset, old, into, author=_author(by))
    _print_written(dataset, written, f"{old!r} is a part of {into!r} now", json=json)


@app.command("undo")
def undo(
    dataset: Name,
    revision: Annotated[int | None, typer.Argument(help="Its number; else the last in force.")] = None,
    by: By = None,
    db: Db = None,
    json: JsonFlag = False,
) -> None:
    """Take back a revision; undo the undo to have it again."""
    with _opened(db) as database:
        written = database.undo(dataset, revision, author=_author(by))
    _print_written(dataset, written, f"{written.wrote:,} rows are as they were", json=json)


@app.command("log")
def log(
    dataset: Annotated[str | None, typer.Argument(metavar="[DATASET]", help="Else all datasets.")] = None,
    limit: Limit = 20,
    db: Db = None,
    json: JsonFlag = False,
) -> None:
    """Revisions, newest first: who changed what, when, how many rows."""
    from headwater.store.labels.exchange.sheet import format_time

    with _opened(db) as database:
        found = database.log(dataset, limit=limit)
    entries = [{**asdict(entry), "time": format_time(entry.time)} for entry in found]
    if json:
        print_json({"revisions": entries})
        return
    names = ("number", "dataset", "kind", "author", "time", "wrote", "kept", "undone_by", "note")
    rows = [["" if e[name] is None else str(e[name]) for name in names] for e in entries]
    print_table([name.replace("_", " ") for name in names], rows)


@app.command("export")
def export(
    dataset: Name,
    file: Annotated[Path, typer.Argument(help="Ends with .csv, .parquet or .json (Label Studio).")],
    form: Form = None,
    image_prefix: Annotated[str, typer.Option(help="Label Studio: what stands before a key.")] = "",
    db: DbOrStore = None,
    data: Data = None,
    token_file: TokenFile = None,
    ca: Ca = None,
    cert: Cert = None,
    key: Key = None,
    json: JsonFlag = False,
) -> None:
    """Write the rows in force to a file."""
    from headwater.store.labels.exchange import export_file, find_format
    from headwater.store.labels.exchange.sheet import Pictures

    link = Link(ca=ca, cert=cert, key=key)
    with _read_from(db, token_file, link) as labels, _data(data, token_file, link) as samples:
        pictures = Pictures(None if samples is None else Keys(samples).of, image_prefix)
        count = export_file(labels, dataset, path=file, form=find_format(file, form), pictures=pictures)
    if json:
        print_json({"dataset": dataset, "file": str(file), "rows": count})
    else:
        print(f"{count:,} rows in {file}")


@app.command("import")
def import_(
    dataset: Name,
    file: Annotated[Path, typer.Argument(help="Ends with .csv, .parquet or .json (Label Studio).")],
    form: Form = None,
    announce: Annotated[
        str | None,
        typer.Option(metavar="PLACE", help="Database that the file is of: announce its versions first."),
    ] = None,
    by: By = None,
    db: Db = None,
    json: JsonFlag = False,
) -> None:
    """Write the rows of a file, all or none, as one revision."""
    from headwater.store.labels.exchange import find_format, import_file

    with _opened(db, create=True) as database:
        if announce is not None:
            with _opened(announce) as other:
                versions = other.models()
            database.announce_all(versions, author=_author(by))
        written = import_file(database, dataset, path=file, form=find_format(file, form), author=_author(by))
    text = f"{written.wrote:,} rows written, {written.kept:,} kept as they were"
    _print_written(dataset, written, text, json=json)


@app.command("set")
def set_(
    dataset: Name,
    sample: Annotated[str, typer.Argument(metavar="KEY_OR_ID", help="Which sample; digits are an id.")],
    class_: Annotated[str, typer.Argument(metavar="CLASS", help="What it is.")],
    new: Annotated[bool, typer.Option("--new", help="The class may be a new one.")] = False,
    by: By = None,
    db: Db = None,
    data: Data = None,
    token_file: TokenFile = None,
    ca: Ca = None,
    cert: Cert = None,
    key: Key = None,
    json: JsonFlag = False,
) -> None:
    """Say what a sample is; no model changes that."""
    link = Link(ca=ca, cert=cert, key=key)
    with _opened(db, create=new) as database, _data(data, token_file, link) as samples:
        found = Keys(samples).find(sample)
        label = database.adopt(dataset, [class_])[0] if new else _existing(database, dataset, class_)
        rows = LabelRows.of([found], [label], source=Source.HUMAN)
        written = database.write(dataset, rows, author=_author(by))
    _print_written(dataset, written, f"{sample} is {class_!r} now", json=json)


def _existing(database: LabelDatabase, dataset: str, name: str) -> int:
    try:
        return database.classes(dataset).number(name)
    except WrongUse as error:
        error.add_note("--new makes it a class")
        raise


def _print_written(dataset: str, written: Written, text: str, *, json: bool) -> None:
    if json:
        print_json({"dataset": dataset, **asdict(written)})
    else:
        print(f"revision {written.revision}: {text}")


def _author(by: str | None) -> str:
    return user_name() if by is None else by


@contextmanager
def _opened(place: str | None, *, create: bool = False) -> Iterator[LabelDatabase]:
    database = open_labels(place or default_place(), create=create)
    try:
        yield database
    finally:
        database.close()


@contextmanager
def _read_from(
    place: str | None, token_file: Path | None, link: Link
) -> Iterator[LabelDatabase | StoreLabels]:
    """The database, or what a store sends of its own."""
    place = place or chosen_place()
    if place is None or not is_store(place):
        with _opened(place) as database:
            yield database
        return
    with labels_of(place, token=token_file, link=link) as labels:
        yield labels


@contextmanager
def _data(uri: str | None, token_file: Path | None, link: Link) -> Iterator[Dataset | None]:
    """The dataset whose keys are to be shown, if one was named."""
    data = None if uri is None else open(uri, token=token_file, link=link)
    try:
        yield data
    finally:
        if data is not None:
            data.close()
