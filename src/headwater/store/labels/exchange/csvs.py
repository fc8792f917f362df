"""CSV: a header, then a row per sample. A sample is named by id or by key."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.csv as pacsv

from headwater.data.index import sample_ids
from headwater.errors import LabelFileInvalid
from headwater.store.labels.exchange.sheet import SCHEMA, Pictures, Sheet, format_time, parse_time

COLUMNS = ("sample", "key", "label", "score", "margin", "source", "model", "time")
_ROWS_AT_ONCE = 50_000
_DEFAULT_SOURCE = "import"


def write(file: BinaryIO, sheets: Iterable[Sheet], pictures: Pictures) -> int:
    """All rows in force; how many."""
    columns = [name for name in COLUMNS if name != "key" or pictures.keys is not None]
    file.write((",".join(columns) + "\n").encode())
    options = pacsv.WriteOptions(include_header=False, quoting_style="needed")
    count = 0
    for sheet in sheets:
        table = _texts(sheet.table, pictures)
        pacsv.write_csv(table.select(columns), file, options)
        count += len(sheet)
    return count


def _texts(table: pa.RecordBatch, pictures: Pictures) -> pa.Table:
    times = [format_time(time) for time in table["time"].to_pylist()]
    keys = pictures.of(table["sample"].to_numpy())
    named = {name: table[name] for name in SCHEMA.names}
    return pa.table({**named, "time": times, "key": pa.array(keys, pa.string())})


def read(path: Path) -> Iterator[Sheet]:
    """The rows; raises `LabelFileInvalid` with the line and column of what is wrong."""
    # errors: bytes that are no text are found in the field that has them, which says the line.
    with path.open(newline="", encoding="utf-8-sig", errors="surrogateescape") as file:
        lines = csv.reader(file, strict=True)
        try:
            header = _check_header(path, next(lines, []))
            yield from _sheets(path, header, lines)
        except csv.Error as error:
            raise LabelFileInvalid(f"{path.name} line {lines.line_num}: {error}") from error


def _check_header(path: Path, header: list[str]) -> list[str]:
    known = ", ".join(COLUMNS)
    for name in header:
        if name not in COLUMNS:
            raise LabelFileInvalid(f"{path.name} line 1: no column is called {name!r}; known: {known}")
        if header.count(name) > 1:
            raise LabelFileInvalid(f"{path.name} line 1: column {name!r} is there twice")
    if "label" not in header or not {"sample", "key"} & set(header):
        raise LabelFileInvalid(f"{path.name} line 1: columns `label`, and `sample` or `key`, are needed")
    return header


def _sheets(path: Path, header: list[str], lines: Any) -> Iterator[Sheet]:
    rows: list[dict[str, Any]] = []
    numbers: list[int] = []
    for fields in lines:
        if len(fields) != len(header):
            raise LabelFileInvalid(
                f"{path.name} line {lines.line_num}: {len(fields)} fields, the header has {len(header)}"
            )
        rows.append(_parse(path, lines.line_num, dict(zip(header, fields, strict=True))))
        numbers.append(lines.line_num)
        if len(rows) == _ROWS_AT_ONCE:
            yield _sheet(path, rows, numbers)
            rows, numbers = [], []
    yield _sheet(path, rows, numbers)


def _sheet(path: Path, rows: list[dict[str, Any]], numbers: list[int]) -> Sheet:
    def place(row: int, column: str) -> str:
        return f"{path.name} line {numbers[row]}, column {column!r}"

    return Sheet(pa.RecordBatch.from_pylist(rows, schema=SCHEMA), place=place).check()


def _parse(path: Path, line: int, texts: dict[str, str]) -> dict[str, Any]:
    """A row as values; an empty field is an absent one."""
    row: dict[str, Any] = {"source": _DEFAULT_SOURCE}
    for name, text in texts.items():
        try:
            text.encode()
            if text:
                row[name] = _PARSERS[name](text)
        except (ValueError, OverflowError):
            shown = ascii(text[:40])
            raise LabelFileInvalid(
                f"{path.name} line {line}, column {name!r}: {shown} is not {_WANTED[name]}"
            ) from None
    key = row.pop("key", None)
    hashed = None if key is None else int(sample_ids([key])[0])
    if hashed is not None and row.setdefault("sample", hashed) != hashed:
        place = f"{path.name} line {line}, column 'key'"
        raise LabelFileInvalid(f"{place}: its id is {hashed}, not {row['sample']}")
    return row


def _identifier(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) < 1 << 63):
        raise ValueError
    return int(text)


def _number(text: str) -> float:
    if "_" in text:  # as in Python's own numbers
        raise ValueError
    return float(text)


_PARSERS: dict[str, Callable[[str], Any]] = {
    "sample": _identifier,
    "key": str,
    "label": str,
    "score": _number,
    "margin": _number,
    "source": str,
    "model": str,
    "time": parse_time,
}
_WANTED = {
    "sample": "an id of 63 bits",
    "score": "a number",
    "margin": "a number",
    "time": "a time in ISO 8601",
    **dict.fromkeys(("key", "label", "source", "model"), "text in UTF-8"),
}
