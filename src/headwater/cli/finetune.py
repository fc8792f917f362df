"""`headwater finetune`: a new head for frozen layers, from features that stores make of their images."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwater.cli import tuneoptions as told
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

_SHOWN = 12
_AT_THE_STORES = "leave out --db, and $HEADWATER_LABELS, to learn the labels that the stores themselves keep"


def finetune(
    data: told.Data,
    model: told.Model = "",
    registry: told.Folder = None,
    name: told.Name = None,
    labels: told.Labels = "data",
    db: told.Database = None,
    dataset: told.NameThere = None,
    runs: told.Runs = "auto",
    epochs: told.Epochs = told.USUAL.epochs,
    batch_size: told.BatchSize = told.USUAL.batch_size,
    learning_rate: told.LearningRate = told.USUAL.learning_rate,
    l2: told.Decay = told.USUAL.l2,
    validation: told.Validation = told.USUAL.validation,
    variants: told.Variants = told.USUAL.variants,
    seed: told.Seed = told.USUAL.seed,
    cut: told.Cut = None,
    more_bytes: told.MoreBytes = False,
    journal: told.Written = False,
    dry_run: told.DryRun = False,
    sync: told.Sync = False,
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
    source, link = Registry(registry or models_folder()), Link(ca=ca, cert=cert, key=key)
    model = model or source.choose_trunk().name
    courier = _Courier(source, locations(data) if sync else [], token_file, link, unmeasured)
    courier.bring(model)
    with closing(open(data[0] if len(data) == 1 else data, token=token_file, link=link)) as opened:
        chosen = _find_labels(opened, data[0], wish=labels, db=db, name=dataset)
        tuner = _make_tuner(opened, model, source, recipe, chosen)
        say(str(tuner.plan()))
        if dry_run:
            _print_plan(tuner, as_json=json)
            return
        with TuningBars(tuner.plan().runs, recipe.epochs) as bars:
            deliver = courier.deliver
            done = tuner.fit(name, watch=bars, deliver=deliver, journal=journal, unmeasured=unmeasured)
    _show(done, courier.sent, as_json=json)


@dataclass(frozen=True)
class _Courier:
    """Brings the model to the stores, and the result when there is one; to none if there are none.

    `sent` is what became of the result at each.
    """

    registry: Registry
    stores: Sequence[str]
    token: Path | None
    link: Link
    unmeasured: bool
    sent: list[dict[str, Any]] = field(default_factory=list)

    def bring(self, model: str) -> None:
        """Only the result is put in force: to tune an older version must not bring that one back."""
        if self.stores:
            require_brought(self.registry, self.stores, model, token=self.token, link=self.link)

    def deliver(self, version: ModelVersion) -> None:
        if self.stores:
            how: dict[str, Any] = {"token": self.token, "link": self.link, "unmeasured": self.unmeasured}
            self.sent.extend(deliver_result(self.registry, self.stores, version, **how))


def _show(done: Finetuned, sent: list[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
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
