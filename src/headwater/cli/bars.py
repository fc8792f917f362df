"""A bar for each store on a terminal, while all of them are at work."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn

Bars = Callable[[str, int, int], None]
"""Told of a store, how much is done there, and of how much; from any thread."""


@contextmanager
def show_bars(
    titles: Mapping[str, str], *columns: ProgressColumn, console: Console | None = None
) -> Iterator[Bars]:
    """What moves the bars: one for each store, with its title before it and these columns behind it.

    Nothing is shown where standard error, or the console, is no terminal.
    """
    console = console or Console(stderr=True)
    if not console.is_terminal:
        yield lambda store, done, total: None
        return
    text = TextColumn("{task.description}", markup=False)
    with Progress(text, BarColumn(), *columns, console=console, transient=True) as shown:
        tasks = {store: shown.add_task(title, total=None) for store, title in titles.items()}
        yield lambda store, done, total: shown.update(tasks[store], completed=done, total=max(total, 1))
