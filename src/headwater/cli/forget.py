"""`headwater forget`: samples gone from a dataset, from all that is kept of it, and from models."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headwater.cli.linking import Ca, Cert, Key, TokenFile
from headwater.cli.printing import JsonFlag, format_bytes, print_json, print_table, say
from headwater.data.bytecount import parse_bytes
from headwater.errors import WrongUse
from headwater.store.client.address import is_store
from headwater.store.client.link import Link
from headwater.store.server.config import name_of

if TYPE_CHECKING:
    from headwater.store.wire.messages import ForgottenThere
    from headwater.tune.forget.survey import Scene, Survey
    from headwater.tune.forget.task import Task
    from headwater.tune.forget.traces import Trace
    from headwater.tune.forget.work import Forgot

_ID = re.compile(r"\d{1,19}")
_SHOWN = 12
_LISTED = 3
"""Versions of a name that are shown; JSON has all."""
_STEPS = {
    "record": "writing down what is to be forgotten",
    "replay": "making the heads again without it",
    "bring": "putting the new versions in force",
    "forget": "forgetting",
    "relabel": "renewing labels",
    "seal": "sealing the versions that saw it",
    "caches": "clearing caches",
    "meanwhile": "looking for models that came meanwhile",
    "audit": "noting that it was done",
}


Words = Annotated[
    list[str],
    typer.Argument(metavar="DATASET... ID...", help="What `ls` takes, stores or one folder; then the ids."),
]
Paths = Annotated[
    list[str] | None,
    typer.Option("--path", metavar="PATH", help="A sample by its path in the dataset; repeatable."),
]
DeleteFiles = Annotated[
    bool, typer.Option("--delete-files", help="Delete the samples' files, too, where that is allowed.")
]
NoModel = Annotated[
    bool, typer.Option("--no-model", help="Leave models as they are, whatever they were trained on, for now.")
]
Exact = Annotated[
    bool, typer.Option("--exact", help="Train heads again in full instead of following their journals.")
]
Also = Annotated[
    list[Path] | None, typer.Option(metavar="FOLDER", help="Another folder of caches or signals.")
]
RegistryFolder = Annotated[
    Path | None, typer.Option(metavar="FOLDER", help="Else $HEADWATER_MODELS, or the user's data folder.")
]
Database = Annotated[str | None, typer.Option(help="Local data: file or URL of the labels.")]
Called = Annotated[
    str | None, typer.Option(metavar="NAME", help="Local data: its name among the labels; else its own.")
]
FeatureBytes = Annotated[
    str, typer.Option(metavar="SIZE", help="Local data: disk for features of a relabel; 0 keeps none.")
]
Scan = Annotated[
    list[Path] | None, typer.Option(metavar="FOLDER", help="Look for traces there when it is done.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would go, and end.")]
Resume = Annotated[bool, typer.Option("--resume", help="Finish what was interrupted, whatever it was.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask first.")]


def forget(
    words: Words,
    path: Paths = None,
    delete_files: DeleteFiles = False,
    no_model: NoModel = False,
    exact: Exact = False,
    relabel: Annotated[bool, typer.Option(help="Renew labels that the old versions gave.")] = True,
    also: Also = None,
    registry: RegistryFolder = None,
    db: Database = None,
    dataset: Called = None,
    feature_bytes: FeatureBytes = "1GiB",
    scan: Scan = None,
    dry_run: DryRun = False,
    resume: Resume = False,
    yes: Yes = False,
    token_file: TokenFile = None,
    ca: Ca = None,
    cert: Cert = None,
    key: Key = None,
    json: JsonFlag = False,
) -> None:
    """Forget samples everywhere; killed, the same command goes on where it stood. It cannot be undone."""
    from headwater.tune.forget.survey import Wish, look_around

    data, ids = _divide(words)
    if bool(ids or path) == resume:
        raise WrongUse("name samples, by id or --path, or say --resume; one of the two")
    wish = Wish(
        ids=tuple(ids),
        paths=tuple(path or ()),
        delete_files=delete_files,
        models=not no_model,
        relabel=relabel,
        method="exact" if exact else "replay",
        further=tuple(also or ()),
    )
    labels = _Labels(db, dataset, parse_bytes(feature_bytes))
    scene = _scene(data, registry, labels, token_file, Link(ca=ca, cert=cert, key=key))
    if dry_run:
        _print_survey(look_around(scene, wish), as_json=json)
        return
    with scene.alone(models=wish.models, tell=say):
        survey = look_around(scene, wish)
        _check_folders(scan or ())  # when Headwater's own are there
        done = _carry_out(scene, survey, sure=yes or json)
    _finish(done, scan or (), as_json=json)


def _carry_out(scene: Scene, survey: Survey, *, sure: bool) -> Forgot:
    """Ask first unless somebody is sure or has begun it."""
    from headwater.tune.forget.work import carry_out

    if not (sure or survey.resumed):
        _print_survey(survey, as_json=False)
        _ask()
    return carry_out(scene, survey, watch=lambda step: say(_STEPS[step]) if step in _STEPS else None)


def _finish(done: Forgot, scan: Sequence[Path], *, as_json: bool) -> None:
    """Say what was done; exit code 1 if the scan finds a trace."""
    from headwater.tune.forget.barred import told
    from headwater.tune.forget.traces import find_traces, marks_of, sought

    with told("scan"):
        traces = find_traces(scan, marks_of(done.task))
    known = sought(done.task)
    if as_json:
        print_json({**_document(done, traces), "sought": known})
    else:
        _print(done, traces)
        _tell_unsought(known if scan else {})
    if traces:
        raise typer.Exit(1)


def _check_folders(scan: Sequence[Path]) -> None:
    """Where nothing is, nothing is found, which would assure somebody of nothing."""
    for folder in scan:
        if not folder.exists():
            raise WrongUse(f"--scan {folder}: there is no such file or folder; nothing was forgotten")


def _ask() -> None:
    """Go on only if somebody says so; where nobody can, nothing is forgotten."""
    try:
        agreed = typer.confirm("forget these for good?", err=True)
    except typer.Abort:
        agreed = False
    if not agreed:
        say("nothing was forgotten; --yes forgets without asking")
        raise typer.Exit(1)


class _Labels:
    """Where the labels of local data are, and what they are called there."""

    def __init__(self, db: str | None, dataset: str | None, feature_bytes: int) -> None:
        self.db, self.dataset, self.feature_bytes = db, dataset, feature_bytes

    def refuse(self) -> None:
        if self.db is not None or self.dataset is not None:
            raise WrongUse("--db and --dataset are for local data; a store has its own labels")


def _divide(words: Sequence[str]) -> tuple[list[str], list[int]]:
    """Datasets, and behind them ids: a folder whose name is a number is written as a path."""
    data = [word for word in words if not _ID.fullmatch(word)]
    ids = [int(word) for word in words if _ID.fullmatch(word)]
    if not data or list(words) != [*data, *words[len(data) :]]:
        raise WrongUse(
            "first the dataset or its stores, then the ids; write ./7 for a folder that is called 7"
        )
    if len(set(data)) < len(data):
        raise WrongUse(f"{data[0]} stands there twice; name each place once")
    if any(id >= 1 << 63 for id in ids):
        raise WrongUse("an id has 63 bits; `headwater ls` shows ids")
    return data, ids


def _scene(
    data: Sequence[str], registry: Path | None, labels: _Labels, token: Path | None, link: Link
) -> Scene:
    from headwater.models.registry import Registry
    from headwater.models.shelf import models_folder
    from headwater.store import open
    from headwater.store.labels import default_place
    from headwater.tune.forget.places import AtStore, Here, Place
    from headwater.tune.forget.survey import Scene
    from headwater.tune.relabel import Access

    held = Registry(registry or models_folder())
    places: tuple[Place, ...]
    if all(map(is_store, data)):
        labels.refuse()
        places = tuple(AtStore(store, held, Access(token, link)) for store in data)
        whole = data[0] if len(data) == 1 else list(data)
        return Scene(places, held, lambda: open(whole, token=token, link=link))
    if len(data) > 1:
        raise WrongUse("stores are named together, and local data alone; name one folder, or stores only")
    place = os.path.abspath(data[0]) if "://" not in data[0] else data[0]
    name, db = labels.dataset or name_of(data[0]), labels.db or default_place()
    here = Here(place, held, name, db, labels.feature_bytes)
    return Scene((here,), held, lambda: open(place))


def _print_survey(survey: Survey, *, as_json: bool) -> None:
    task = survey.task
    document = {
        "samples": [{"id": id, "key": key} for id, key in zip(task.ids, task.keys, strict=False)],
        "places": {name: _describe(there) for name, there in survey.there.items()},
        "replay": task.old,
        "sealed": sorted(task.sealed),
        "left": task.left,
        "untold": task.untold,
        "resumed": survey.resumed,
    }
    if as_json:
        print_json(document)
        return
    rows = [
        (what, f"{count:,}", place)
        for place, there in survey.there.items()
        for what, count in there.found.items()
    ]
    print_table(("what is there", "of it", "place"), rows)
    for name, digest in task.old.items():
        say(f"{name}: version {digest[:_SHOWN]} is made again without them")
    say(f"{len(task.ids):,} samples; {len(task.sealed):,} versions of models saw them and are sealed")
    _tell_left(task)


def _document(done: Forgot, traces: Sequence[Trace]) -> dict[str, Any]:
    task = done.task
    return {
        "samples": len(task.ids),
        "resumed": done.resumed,
        "places": {name: _describe(there) for name, there in done.found.items()},
        "models": {name: _describe_model(done, name) for name in task.old},
        "brought": done.brought,
        "relabelled": done.relabelled,
        "sealed": sorted(task.sealed),
        "left": task.left,
        "untold": task.untold,
        "cached": done.cached,
        "traces": [{"path": str(one.path), "mark": one.mark} for one in traces],
        "seconds": done.seconds,
    }


def _print(done: Forgot, traces: Sequence[Trace]) -> None:
    task = done.task
    rows = [
        (what, f"{count:,}", name)
        for name, there in done.found.items()
        for what, count in there.found.items()
    ]
    rows += [(what, f"{count:,}", "this machine's cache") for what, count in done.cached.items()]
    print_table(("what is gone", "of it", "place"), rows)
    for name in task.old:
        say(_tell_model(done, name))
    for where, way in done.brought.items():
        say(f"{where}: in force, as {way['kind']} of {format_bytes(float(way['bytes']))}")
    for where, counts in done.relabelled.items():
        changed = ", ".join(f"{count:,} {what}" for what, count in counts.items() if count)
        say(f"labels of {where}: {changed or 'none'}")
    if not task.old:
        say("no model was made again: none that is in force was trained on them, or --no-model was said")
    _tell_left(task)
    for trace in traces:
        say(
            f"{trace.path}: {trace.mark}, at {trace.offset}"
            if trace.offset >= 0
            else f"{trace.path}: {trace.mark}"
        )
    say(f"{len(task.ids):,} samples forgotten in {sum(done.seconds.values()):.1f} s")


def _describe(there: ForgottenThere) -> dict[str, Any]:
    return {
        "dataset": there.dataset,
        "before": there.before,
        "version": there.version,
        "samples": there.samples,
        "found": there.found,
    }


def _describe_model(done: Forgot, name: str) -> dict[str, Any]:
    task = done.task
    return {"from": task.old[name], "to": task.new[name], **task.facts.get(name, {})}


def _tell_model(done: Forgot, name: str) -> str:
    facts = _describe_model(done, name)
    error = facts.get("error")
    near = (
        "trained again in full"
        if facts.get("method") == "exact"
        else f"estimated error {error:.2g} of the change"
    )
    reason = f"; {facts['reason']}" if facts.get("reason") else ""
    return f"{name}: {facts['from'][:_SHOWN]} became {facts['to'][:_SHOWN]} ({near}{reason})"


def _tell_unsought(known: Mapping[str, int]) -> None:
    """What the scan could not look for, because nobody knows it any more."""
    missing = {what: known["ids"] - count for what, count in known.items()}
    said = " and ".join(f"the {what} of {count:,}" for what, count in missing.items() if count)
    if said:
        say(
            f"the scan could not look for {said} of {known['ids']:,} samples, which the data had no more "
            "when this was asked; --path names paths"
        )


def _tell_left(task: Task) -> None:
    """Models that still know the samples, or may: what stays is never silent."""
    for name, remedy in task.left.items():
        say(f"{name} was trained on them, or may have been, and stays in force: {remedy}")
    for name in sorted(set(task.untold.values())):
        digests = sorted(digest[:_SHOWN] for digest, called in task.untold.items() if called == name)
        more = f" and {len(digests) - _LISTED:,} more" if len(digests) > _LISTED else ""
        say(
            f"cannot tell whether {name} was trained on them: {', '.join(digests[:_LISTED])}{more} says not, "
            "or names data that are not known here; it stays as it is"
        )
