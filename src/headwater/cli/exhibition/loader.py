"""The demo's first chapter: a network trained on local photos through the loader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from headwater import transforms
from headwater.cli.exhibition import Exhibit
from headwater.cli.printing import say
from headwater.cli.training import ResumeProof, Trainer, evaluate, small_network
from headwater.data.pipeline import Pipeline
from headwater.errors import HeadwaterError
from headwater.loader import Batch, DataLoader
from headwater.report import Sheet
from headwater.report.loader import TrainingRun, loader_chapter
from headwater.report.pictures import contact_sheet, to_pixels
from headwater.select.selecting import Selector
from headwater.store import Dataset, open

PIXELS = 64
"""Height and width of what the demo's network takes."""

_BATCH = 64
_SHOWN = 24
_MEAN, _STD = (0.45, 0.45, 0.45), (0.25, 0.25, 0.25)
_TEXT = """A small network learned to tell the demo's photos apart: JPEG files of about 110 kB, read in place,
decoded, cropped, flipped and normalised by hw.DataLoader on this machine's cores while the network trained.

In the middle of an epoch the loader's state was saved, and a second loader, with one thread instead of all,
went on from it. Its batches were compared with those of the run that was not interrupted, byte for byte."""


def show_loader(photos: Path, *, epochs: int, seed: int) -> tuple[Exhibit, nn.Module]:
    """Train on the photos through the loader; the chapter, and the network.

    Raises `HeadwaterError` if resuming gave other bytes.
    """
    torch.manual_seed(seed)
    data = open(photos)
    training, held_back = data.split(0.8, 0.2, seed=seed)
    loader = training_loader(training, seed, epochs=epochs)
    validation = DataLoader(held_back, plain_steps(), batch_size=_BATCH, progress=False)
    network = small_network(len(data.classes))
    trainer = Trainer(network)
    proof = ResumeProof(at=max(1, len(loader) // 2))
    shares = []
    for epoch in range(epochs):
        _train_epoch(trainer, loader, proof if epoch == epochs - 1 else None)
        shares.append(evaluate(network, validation))
        say(f"epoch {epoch}: {shares[-1]:.1%} of {len(held_back):,} held-back photos labelled rightly")
    differing, compared = proof.differing_bytes(training_loader(training, seed, workers=1))
    if differing or not compared:
        raise HeadwaterError(f"{differing} of {compared} bytes differ after resuming in mid-epoch")
    run = TrainingRun(
        steps=trainer.steps,
        epoch_ends=[len(loader) * (epoch + 1) for epoch in range(epochs)],
        validation=shares,
        stats=loader.stats(),
        sizes=data.sizes.astype(np.int64),
        seconds=trainer.seconds,
    )
    facts = _facts(data, network, f"{differing} of {compared:,} bytes")
    sheets = (_batch_sheet(training, proof.batches[0]), _hardest_sheet(training, loader.signals.loss))
    exhibit = Exhibit(
        (loader_chapter(run, text=_TEXT, facts=facts, sheets=sheets),),
        _figures(run, differing=differing, compared=compared),
    )
    return exhibit, network


def _train_epoch(trainer: Trainer, loader: DataLoader, proof: ResumeProof | None) -> None:
    for step, batch in enumerate(trainer.train_epoch(loader), start=1):
        if proof is not None:
            proof.watch(step, batch, loader)


def training_loader(
    data: Dataset,
    seed: int,
    *,
    epochs: int | None = None,
    workers: int | None = None,
    select: Selector | None = None,
) -> DataLoader:
    """As the demo's network is trained."""
    return DataLoader(
        data,
        training_steps(),
        batch_size=_BATCH,
        shuffle=True,
        seed=seed,
        num_workers=workers,
        select=select,
        epochs=epochs,
    )


def training_steps() -> Pipeline:
    """What the demo's photos go through before the network sees them."""
    return transforms.Compose(
        [
            transforms.RandomResizedCrop(PIXELS, scale=(0.6, 1.0)),
            transforms.RandomHorizontalFlip(),
            transforms.ToDtype("float32", scale=True),
            transforms.Normalize(_MEAN, _STD),
        ]
    )


def plain_steps() -> Pipeline:
    """What the network expects of a photo that it is to tell: the same without chance."""
    return transforms.Compose(
        [
            transforms.Resize((PIXELS, PIXELS)),
            transforms.ToDtype("float32", scale=True),
            transforms.Normalize(_MEAN, _STD),
        ]
    )


def _facts(data: Dataset, network: nn.Module, differing: str) -> dict[str, str]:
    return {
        "photos": f"{len(data):,} in {len(data.classes)} classes, {data.sizes.mean() / 1e3:.0f} kB each",
        "parameters of the network": f"{sum(weight.numel() for weight in network.parameters()):,}",
        "differing after resuming in mid-epoch": differing,
    }


def _figures(run: TrainingRun, *, differing: int, compared: int) -> dict[str, Any]:
    return {
        "images_per_second": run.stats.samples / run.seconds,
        "validation_accuracy": list(run.validation),
        "resume": {"differing_bytes": differing, "compared_bytes": compared},
        "stats": run.stats.to_dict(),
    }


def _batch_sheet(data: Dataset, batch: Batch) -> Sheet:
    images = to_pixels(batch.inputs[:_SHOWN].numpy(), _MEAN, _STD)
    captions = [data.classes[label] for label in batch.targets[:_SHOWN].tolist()]
    return contact_sheet("A batch, as the network saw it", images, captions)


def _hardest_sheet(data: Dataset, losses: NDArray[np.float32]) -> Sheet:
    """The samples with the highest last loss, whole; losses stand by position in the index."""
    positions = np.argsort(-np.nan_to_num(losses, nan=-1.0), kind="stable")[:_SHOWN]
    chosen = data.select(data.index.ids[positions])
    batch = next(iter(DataLoader(chosen, plain_steps(), batch_size=_SHOWN, num_workers=0, progress=False)))
    captions = [
        f"{data.classes[label]}, {loss:.2f}"
        for label, loss in zip(batch.targets.tolist(), losses[positions], strict=True)
    ]
    return contact_sheet(
        "Highest loss when last seen", to_pixels(batch.inputs.numpy(), _MEAN, _STD), captions
    )
