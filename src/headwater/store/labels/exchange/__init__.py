"""Labels in files of others: out of a database, and back into it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from headwater.data.atomic import replacing
from headwater.errors import LabelError, WrongUse
from headwater.store.labels.exchange import csvs, labelstudio, parquet
from headwater.store.labels.exchange.seen import once
from headwater.store.labels.exchange.sheet import Pictures, Sheet
from headwater.store.labels.revisions import Written
from headwater.store.labels.wanted import ALL, LabelQuery

if TYPE_CHECKING:
    from headwater.store.client.labels import StoreLabels
    from headwater.store.labels.database import LabelDatabase


@dataclass(frozen=True)
class Format:
    """A kind of file: how its names end, who writes it and who reads it, and whether it holds opinions."""

    suffix: str
    write: Callable[[BinaryIO, Iterable[Sheet], Pictures], int]
    read: Callable[[Path], Iterator[Sheet]]
    opinions: bool = False


FORMATS = {
    "csv": Format(".csv", csvs.write, csvs.read),
    "parquet": Format(".parquet", parquet.write, parquet.read),
    "labelstudio": Format(".json", labelstudio.write, labelstudio.read, opinions=True),
}


def find_format(path: Path, name: str | None = None) -> Format:
    """The format of this name, or the one that files with such a name have; raises `WrongUse`."""
    if name is None:
        fitting = [form for form in FORMATS.values() if path.name.lower().endswith(form.suffix)]
        if fitting:
            return fitting[0]
        ends = ", ".join(form.suffix for form in FORMATS.values())
        raise WrongUse(f"{path.name!r} does not say its format; end it with {ends}, or name the format")
    if name not in FORMATS:
        raise WrongUse(f"no format is called {name!r}; known: {', '.join(FORMATS)}")
    return FORMATS[name]


def export_file(
    labels: LabelDatabase | StoreLabels,
    dataset: str,
    *,
    path: Path,
    form: Format,
    query: LabelQuery = ALL,
    pictures: Pictures | None = None,
) -> int:
    """Write the rows in force to a file, which appears when it is whole; how many there were."""
    sheets = labels.sheets(dataset, query, opinions=form.opinions)
    try:
        with replacing(path) as file:
            return form.write(file, sheets, pictures or Pictures())
    except OSError as error:
        raise LabelError(f"{path} cannot be written: {error.strerror}; name another file") from error


def import_file(
    database: LabelDatabase, dataset: str, *, path: Path, form: Format, author: str = ""
) -> Written:
    """Write the rows of a file as one revision.

    Raises `LabelFileInvalid`, naming line and column, for a file that is not right; then nothing is written.
    """
    try:
        sheets = once(form.read(path))
        return database.take_in(dataset, sheets, author=author, note=path.name)
    except OSError as error:
        raise LabelError(f"{path} cannot be read: {error.strerror}; name another file") from error
