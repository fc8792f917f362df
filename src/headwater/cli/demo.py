"""`headwater demo`: photos, runs through loader and link, offloading, selection, budgets, a fresh model."""

from __future__ import annotations

import time
from collections.abc import Sequence
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
    count: Annotated[int, typer.Option(min=240, help="How many photos to make.")] = 2000,
    epochs: Annotated[int, typer.Option(min=1)] = 5,
    seed: Annotated[int, typer.Option(min=0)] = 17,
    json: JsonFlag = False,
) -> None:
    """Make photos, train here and from a store, offload, select, keep a model fresh, write report.html."""
    begun = time.perf_counter()
    photos = out / f"photos-{count}-{seed}"
    say(f"making {count:,} photos in {photos}")
    write_photos(photos, count=count, classes=_CLASSES, seed=seed, threads=available_cores())
    made_seconds = time.perf_counter() - begun
    exhibits = _exhibits(photos, out, epochs=epochs, seed=seed)
    report = out / "report.html"
    chapters = [chapter for exhibit in exhibits for chapter in exhibit.chapters]
    write_page(report, chapters, title="Headwater on this machine")
    seconds = {"photos": made_seconds, "all": time.perf_counter() - begun}
    if json:
        figures = {name: figure for exhibit in exhibits for name, figure in exhibit.figures.items()}
        print_json({"report": str(report), "photos": str(photos), "seconds": seconds, **figures})
    else:
        _print(chapters, report, seconds["all"])


def _exhibits(photos: Path, out: Path, *, epochs: int, seed: int) -> list[Exhibit]:
    try:
        from headwater.cli.exhibition.budget import show_budget
        from headwater.cli.exhibition.forgetting import show_forgetting
        from headwater.cli.exhibition.loader import show_loader
        from headwater.cli.exhibition.models import show_models
        from headwater.cli.exhibition.offload import show_offload
        from headwater.cli.exhibition.selection import show_selection
        from headwater.cli.exhibition.store import show_store
        from headwater.cli.exhibition.thinning import show_thinning
    except ImportError as error:
        raise MissingExtra(f"the demo needs torch ({error}); pip install 'headwater[torch]'") from error
    training, network = show_loader(photos, epochs=epochs, seed=seed)
    accuracy = training.figures["validation_accuracy"][-1]
    return [
        training,
        show_store(photos, out / "store", seed=seed),
        show_offload(photos, out / "offload", seed=seed),
        show_selection(photos, epochs=epochs, seed=seed),
        show_thinning(photos, out / "thinning", seed=seed),
        show_budget(photos, network=network, accuracy=accuracy, epochs=epochs, seed=seed),
        show_forgetting(photos),
        show_models(photos, out / "models", network=network, seed=seed),
    ]


def _print(chapters: Sequence[Chapter], report: Path, seconds: float) -> None:
    for chapter in chapters:
        if chapter.table is not None:
            print_table(chapter.table.columns, chapter.table.rows, title=chapter.title)
    print(f"{report} written; {seconds:.0f} s in all")
