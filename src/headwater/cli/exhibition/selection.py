"""The demo's chapter on selection: the same network, trained on fewer samples an epoch."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from headwater.cli.exhibition import Exhibit
from headwater.cli.exhibition.loader import plain_steps, training_loader
from headwater.cli.printing import say
from headwater.cli.training import Trainer, evaluate, small_network
from headwater.loader import DataLoader
from headwater.loader.knowledge import look_at, past_of
from headwater.report import Chapter, Table
from headwater.report.selection import selection_chapter
from headwater.select.buckets import Buckets
from headwater.select.fresh import Fresh
from headwater.select.infobatch import InfoBatch
from headwater.select.selecting import Selector
from headwater.store import Dataset, open

_BATCH = 64
_TEXT = """The network of the first chapter was trained again, each time from the same beginning: on all
photos, on those that InfoBatch leaves (it drops a half of the photos with a loss below the mean, and lets the
others of them count double), on those that are not waiting in IOWA's buckets (what is learned waits until
training stands still, and a twentieth of all is visited in any case), and on a fresh third of the photos in
every epoch. Learning rates follow the
share of the run that lies behind, so a shorter run also comes down to nothing. One run each says little about
accuracy: benchmarks/ has runs of many seeds with intervals. What it shows is how few samples were loaded."""
_COLUMNS = ("selector", "samples visited", "of all", "MB loaded", "seconds", "labelled rightly")


@dataclass(frozen=True)
class Trained:
    """A run: what it visited, what it loaded, how long its training took, how well it labels in the end."""

    name: str
    samples: int
    bytes: int
    seconds: float
    accuracy: float


def show_selection(photos: Path, *, epochs: int, seed: int) -> Exhibit:
    """Train with selectors and without."""
    training, held_back = open(photos).split(0.8, 0.2, seed=seed)
    validation = DataLoader(held_back, plain_steps(), batch_size=_BATCH, progress=False)
    runs: list[Trained] = []
    chapters: list[Chapter] = []
    for selector in (None, InfoBatch(), Buckets(), Fresh(share=1 / 3)):
        loader = training_loader(training, seed, epochs=epochs, select=selector)
        run, chapter = _train(loader, validation, selector, seed=seed)
        say(f"{run.name}: {run.samples:,} samples, {run.accuracy:.1%} of held-back photos labelled rightly")
        runs.append(run)
        chapters += [chapter] if selector is not None and selector.needs and chapter is not None else []
    return Exhibit(
        (Chapter("Which samples", _TEXT, table=_table(runs)), *chapters),
        {"selection": [asdict(run) for run in runs]},
    )


def _train(
    loader: DataLoader, validation: DataLoader, selector: Selector | None, *, seed: int
) -> tuple[Trained, Chapter | None]:
    """The run, and what was selected for its last epoch."""
    torch.manual_seed(seed)
    network = small_network(len(loader.dataset.classes))
    trainer, chapter = Trainer(network), None
    assert loader.epochs is not None
    for epoch in range(loader.epochs):
        if selector is not None and epoch == loader.epochs - 1:
            chapter = _explain(loader.dataset, loader)
        for _batch in trainer.train_epoch(loader):
            pass
    stats = loader.stats()
    name = "all samples" if selector is None else selector.name
    accuracy = evaluate(network, validation)
    return Trained(name, stats.samples, stats.bytes_moved, trainer.seconds, accuracy), chapter


def _explain(data: Dataset, loader: DataLoader) -> Chapter:
    """The selection that stands."""
    selection = loader.selection
    assert selection is not None
    samples = look_at(data, loader.signals, seed=loader.seed, epoch=selection.epoch, epochs=loader.epochs)
    return selection_chapter(samples, selection, names=data.classes, past=past_of(loader.signals))


def _table(runs: list[Trained]) -> Table:
    whole = runs[0].samples
    rows = tuple(
        (
            run.name,
            f"{run.samples:,}",
            f"{run.samples / whole:.0%}",
            f"{run.bytes / 1e6:,.1f}",
            f"{run.seconds:.1f}",
            f"{run.accuracy:.1%}",
        )
        for run in runs
    )
    return Table(_COLUMNS, rows)
