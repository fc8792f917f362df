"""`headwater finetune`: a new head for frozen layers, from features that stores make of their images."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headwater.cli.linking import Ca, Cert, Key, TokenFile
from headwater.cli.printing import JsonFlag, format_bytes, print_json, print_table, say
from headwater.cli.syncing import Unmeasured
from headwater.cli.tuning import (
    TuningBars,
    deliver_result,
    locations,
    name_at,
    require_brought,
    usual_augment,
)
from headwater.errors import LabelError, MissingExtra, WrongUse
from headwater.models.registry import Registry
from headwater.models.shelf import models_folder
from headwater.models.version import ModelVersion
from headwater.plan.finetune.plan import format_seconds
from headwater.store import Dataset, Link, open
from headwater.tune.recipe import Recipe

if TYPE_CHECKING:
    from headwater.tune.labels import Labelled
    from headwater.tune.outcome import Finetuned
    from headwater.tune.tuner import Tuner

_USUAL = Recipe()
_SHOWN = 12
_AT_THE_STORES = "leave out --db, and $HEADWATER_LABELS, to learn the labels that the stores themselves keep"


def finetune(
    data: Annotated[
        list[str], typer.Argument(metavar="DATA...", help="What `ls` takes; several stores are one dataset.")
    ],
    model: Annotated[
        str, typer.Option(help="Whose frozen layers: NAME, or a digest; else the only one, or the preset.")
    ] = "",
    registry: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Else $HEADWATER_MODELS, or the user's data folder.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="What to call the result; else as the model.")] = None,
    labels: Annotated[
        str, typer.Option(help="data: the data's own; else those kept since, such as human+model>=0.9.")
    ] = "data",
    db: Annotated[
        str | None,
        typer.Option(
            help="SQLite file or URL of labels; else $HEADWATER_LABELS, the stores', or the user's."
        ),
    ] = None,
    dataset: Annotated[
        str | None, typer.Option(metavar="NAME", help="The data's name in the database; else its own.")
    ] = None,
    runs: Annotated[str, typer.Option(metavar="N|auto", help="Overlapped runs.")] = "auto",
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the samples of a run.")] = _USUAL.epochs,
    batch_size: Annotated[int, typer.Option(min=1)] = _USUAL.batch_size,
    learning_rate: Annotated[float, typer.Option(min=1e-9)] = _USUAL.learning_rate,
    l2: Annotated[float, typer.Option("--weight-decay", min=0)] = _USUAL.l2,
    validation: Annotated[float, typer.Option(min=0, max=0.99, help="Share held out.")] = _USUAL.validation,
    variants: Annotated[
        int, typer.Option(min=1, help="More than 1: so many random crops and flips of each image.")
    ] = _USUAL.variants,
    seed: Annotated[int, typer.Option(min=0)] = _USUAL.seed,
    cut: Annotated[
        str | None, typer.Option(help="What crosses: features, images, or a cut's name; else the quickest.")
    ] = None,
    more_bytes: Annotated[
        bool, typer.Option("--more-bytes", help="Allow what is larger than the images.")
    ] = False,
    journal: Annotated[
        bool, typer.Option("--journal", help="Write down every step, to take samples out of the head later.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what to expect, and end.")] = False,
    sync: Annotated[
        bool, typer.Option("--sync", help="Bring the model to the stores; put the result in force there.")
    ] = False,
    unmeasured: Unmeasured = False,
    token_file: TokenFile = None,
    ca: Ca = None,
    cert: Cert = None,
    key: Key = None,
    json: JsonFlag = False,
) -> None:
    """Train a head for a model's frozen layers; killed, the same command goes on where it stood."""
    recipe = Recipe(
        epochs=epochs,
        runs=parse_runs(runs),
        batch_size=batch_size,
        learning_rate=learning_rate,
        l2=l2,
        validation=validation,
        variants=variants,
        seed=seed,
        cut=cut,
        more_bytes=more_bytes,
    )
    link, stores = Link(ca=ca, cert=cert, key=key), locations(data) if sync else []
    source = Registry(registry or models_folder())
    model = model or source.choose_trunk().name
    sent: list[dict[str, Any]] = []
    if sync:
        # Only the result is put in force: to tune an older version must not bring that one back.
        require_brought(source, stores, model, token=token_file, link=link)
    with closing(open(data[0] if len(data) == 1 else data, token=token_file, link=link)) as opened:
        chosen = _find_labels(opened, data[0], wish=labels, db=db, name=dataset)
        tuner = _make_tuner(opened, model, source, recipe, chosen)
        say(str(tuner.plan()))
        if dry_run:
            _print_plan(tuner, as_json=json)
            return

        def deliver(version: ModelVersion) -> None:
            if sync:
                sent.extend(
                    deliver_result(
                        source, stores, version, token=token_file, link=link, unmeasured=unmeasured
                    )
                )

        with TuningBars(tuner.plan().runs, recipe.epochs) as bars:
            done = tuner.fit(name, watch=bars, deliver=deliver, journal=journal, unmeasured=unmeasured)
    if json:
        print_json(describe(done) | {"sync": sent})
    else:
        _print(done, sent)


def parse_runs(text: str) -> int | None:
    """A number, or None for `auto`; raises `WrongUse` for other words."""
    if text == "auto":
        return None
    if not (text.isascii() and text.isdigit() and int(text)):
        raise WrongUse(f"--runs is {text!r}; give a number of at least 1, or auto")
    return int(text)


def _find_labels(
    opened: Dataset, uri: str, *, wish: str, db: str | None, name: str | None
) -> Labelled | None:
    from headwater.tune.labels import OWN, labels_from, parse

    if wish == OWN:
        if db is not None or name is not None:
            raise WrongUse(f"--db and --dataset are for labels of a database; --labels is {OWN!r}")
        return None
    from headwater.store.labels import chosen_place, default_place, open_labels

    parse(wish)
    place = db or chosen_place()
    if place is None and opened.store.remote:
        if name is not None:
            raise WrongUse("--dataset is for labels of a database; stores keep those of the data by its name")
        return labels_from(dataset=opened, wish=wish)
    try:
        with closing(open_labels(place or default_place(), create=False)) as database:
            return labels_from(database, name or name_at(opened.store, uri), dataset=opened, wish=wish)
    except LabelError as error:
        if opened.store.remote:
            error.add_note(_AT_THE_STORES)
        raise


def _make_tuner(
    opened: Dataset, model: str, registry: Registry, recipe: Recipe, labels: Labelled | None
) -> Tuner:
    try:
        from headwater.tune.tuner import Tuner
    except ImportError as error:
        raise MissingExtra(
            f"fine-tuning needs {error.name}; pip install 'headwater[torch,models]'"
        ) from error
    augment = usual_augment(registry.version(model)) if recipe.variants > 1 else None
    return Tuner(opened, model, registry=registry, recipe=recipe, labels=labels, augment=augment)


def describe(done: Finetuned) -> dict[str, Any]:
    """The outcome as plain data."""
    return {
        "version": done.version.digest,
        "name": done.version.name,
        "parent": done.version.parent,
        "classes": len(done.version.classes),
        "made": done.version.made,
        "accuracy": done.accuracy,
        "losses": done.losses,
        "failed": done.failed,
        "errors": done.errors,
        "resumed": done.resumed,
        "said": done.said,
        "plan": done.plan,
        "predicted": {what: predicted for what, (predicted, _) in done.comparison.items()},
        "measured": {what: measured for what, (_, measured) in done.comparison.items()},
    }


def _print_plan(tuner: Tuner, *, as_json: bool) -> None:
    plan = tuner.plan()
    if as_json:
        print_json({"plan": plan, "seconds": plan.seconds, "text": str(plan)})
        return
    rows = [
        (
            option.cut.name + (" *" if option.cut == plan.cut else ""),
            format_seconds(option.seconds),
            format_bytes(option.bytes),
            "more than the images" if option.ships_more else "",
        )
        for option in plan.options
    ]
    print_table(("cut", "time", "over the link", ""), rows)


def _print(done: Finetuned, sent: Sequence[dict[str, Any]]) -> None:
    rows = [
        (f"run {number + 1}", f"{losses[-1]:.4f}", "" if accuracy is None else f"{accuracy:.1%}")
        for number, (losses, accuracy) in enumerate(zip(done.losses, done.accuracy, strict=True))
    ]
    print_table(("", "loss", "accuracy on held-out samples"), rows, title=done.version.name)
    if not done.resumed:
        print_table(("", "predicted", "measured"), _comparison(done))
    if done.said:
        say(done.said)
    if done.failed:
        first = next(iter(done.errors.items()), None)
        say(
            f"{done.failed:,} feature vectors could not be made"
            + (f", such as {first[0]}: {first[1]}" if first else "")
        )
    for delivery in sent:
        say(f"{delivery['store']}: {format_bytes(delivery['sent_bytes'])} sent")
    print(done.version.digest)


def _comparison(done: Finetuned) -> list[tuple[str, str, str]]:
    rows = []
    for what, (predicted, measured) in done.comparison.items():
        form = format_bytes if what == "bytes" else format_seconds
        rows.append(("over the link" if what == "bytes" else what, form(predicted), form(measured)))
    return rows
