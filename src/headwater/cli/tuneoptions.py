"""What `headwater finetune` is told: its argument and its options, with what `--help` says of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headwater.tune.recipe import Recipe

USUAL = Recipe()

Data = Annotated[
    list[str], typer.Argument(metavar="DATA...", help="What `ls` takes; several stores are one dataset.")
]
Model = Annotated[
    str, typer.Option(help="Whose frozen layers: NAME, or a digest; else the only one, or the preset.")
]
Folder = Annotated[
    Path | None, typer.Option(metavar="FOLDER", help="Else $HEADWATER_MODELS, or the user's data folder.")
]
Name = Annotated[str | None, typer.Option(help="What to call the result; else as the model.")]
Labels = Annotated[
    str, typer.Option(help="data: the data's own; else those kept since, such as human+model>=0.9.")
]
Database = Annotated[
    str | None,
    typer.Option(help="SQLite file or URL of labels; else $HEADWATER_LABELS, the stores', or the user's."),
]
NameThere = Annotated[
    str | None, typer.Option(metavar="NAME", help="The data's name in the database; else its own.")
]
Runs = Annotated[str, typer.Option(metavar="N|auto", help="Overlapped runs.")]
Epochs = Annotated[int, typer.Option(min=1, help="Passes over the samples of a run.")]
BatchSize = Annotated[int, typer.Option(min=1)]
LearningRate = Annotated[float, typer.Option(min=1e-9)]
Decay = Annotated[float, typer.Option("--weight-decay", min=0)]
Validation = Annotated[float, typer.Option(min=0, max=0.99, help="Share held out.")]
Variants = Annotated[
    int, typer.Option(min=1, help="More than 1: so many random crops and flips of each image.")
]
Seed = Annotated[int, typer.Option(min=0)]
Cut = Annotated[
    str | None, typer.Option(help="What crosses: features, images, or a cut's name; else the quickest.")
]
MoreBytes = Annotated[bool, typer.Option("--more-bytes", help="Allow what is larger than the images.")]
Written = Annotated[
    bool, typer.Option("--journal", help="Write down every step, to take samples out of the head later.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what to expect, and end.")]
Sync = Annotated[
    bool, typer.Option("--sync", help="Bring the model to the stores; put the result in force there.")
]
