"""`headwater demo`: a dataset, a training run through the loader, and a report, on this machine."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headwater.cli.printing import JsonFlag, print_json, print_table, say
from headwater.data.synthetic import write_photos
from headwater.engine.crew import available_cores
from headwater.errors import MissingExtra
from headwater.report import Chapter, write_page

if TYPE_CHECKING:
    from headwater.cli.exhibition import Exhibit

_CLASSES = 8


def demo(
    out: Annotated[Path, typer.Option(help="Folder for photos and report.")] = Path("demo"),
    count: Annotated[int, typer.Option(min=80, help="How many photos to make.")] = 2000,
    epochs: Annotated[int, typer.Option(min=1)] = 5,
    seed: Annotated[int, typer.Option(min=0)] = 17,
    json: JsonFlag = False,
) -> None:
    """Make photos, train a small network on them through the loader, resume once, write report.html."""
    begun = time.perf_counter()
    photos = out / f"photos-{count}-{seed}"
    say(f"making {count:,} photos in {photos}")
    write_photos(photos, count=count, classes=_CLASSES, seed=seed, threads=available_cores())
    made_seconds = time.perf_counter() - begun
    exhibit = _exhibit(photos, epochs=epochs, seed=seed)
    report = out / "report.html"
    write_page(report, [exhibit.chapter], title="Headwater on this machine")
    seconds = {"photos": made_seconds, "all": time.perf_counter() - begun}
    if json:
        print_json({"report": str(report), "photos": str(photos), "seconds": seconds, **exhibit.figures})
    else:
        _print(exhibit.chapter, report, seconds["all"])


def _exhibit(photos: Path, *, epochs: int, seed: int) -> Exhibit:
    try:
        from headwater.cli import exhibition
    except ImportError as error:
        raise MissingExtra(f"the demo needs torch ({error}); pip install 'headwater[torch]'") from error
    return exhibition.show_loader(photos, epochs=epochs, seed=seed)


def _print(chapter: Chapter, report: Path, seconds: float) -> None:
    if chapter.table is not None:
        print_table(chapter.table.columns, chapter.table.rows)
    print(f"{report} written; {seconds:.0f} s in all")
