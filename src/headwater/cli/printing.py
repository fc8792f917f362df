"""What verbs print with: results on standard output, everything else on standard error."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated

import msgspec
import typer
from rich import box
from rich.console import Console
from rich.table import Table

from headwater.errors import HeadwaterError

JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")]


def print_json(document: Mapping[str, object]) -> None:
    """The one JSON document of a run."""
    text = msgspec.json.format(msgspec.json.encode(document), indent=2)
    print(text.decode(), file=sys.stdout, flush=True)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, title: str = "") -> None:
    """A table; cells are text, never markup, because keys and class names come from data."""
    table = Table(box=box.SIMPLE_HEAD, title=title or None, title_justify="left")
    for number, name in enumerate(columns):
        table.add_column(name, overflow="fold", no_wrap=number == 0 and len(columns) > 2)
    for row in rows:
        table.add_row(*(printable(cell) for cell in row))
    Console(markup=False, highlight=False).print(table)


def describe_error(error: HeadwaterError | None) -> dict[str, object] | None:
    """What went wrong with one of several, as plain data."""
    if error is None:
        return None
    return {"kind": type(error).__name__, "message": str(error), "exit_code": error.exit_code}


def say(text: str) -> None:
    """Tell what is going on."""
    print(text, file=sys.stderr, flush=True)


def format_bytes(count: float) -> str:
    """A number of bytes in the unit that a person would choose."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def printable(cell: str) -> str:
    """Control characters of a hostile name must not reach the terminal."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in cell)
