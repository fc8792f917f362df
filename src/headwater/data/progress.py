"""A bar for something that takes a while, on a terminal only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


@contextmanager
def bar(title: str, total: int, *, wanted: bool | None = None) -> Iterator[Callable[[int], None]]:
    """A function that advances the bar; it does nothing where no bar is wanted (None: no terminal)."""
    console = Console(stderr=True)
    if not total or not (console.is_terminal if wanted is None else wanted):
        yield lambda count: None
        return
    columns = (TextColumn(title), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=console.is_terminal) as shown:
        task = shown.add_task(title, total=total)
        yield lambda count: shown.advance(task, count)
