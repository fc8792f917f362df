"""`headwater models`: versions of models in a registry, which are in force, and what sending them takes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from headwater.cli.linking import Ca, Cert, Key, TokenFile
from headwater.cli.printing import JsonFlag, format_bytes, print_json, print_table, say
from headwater.cli.pushing import read_model
from headwater.cli.quantising import quantise
from headwater.cli.syncing import (
    At,
    Unmeasured,
    check_one_place,
    describe,
    in_force_at,
    put_in_force,
    sync,
    take_stock,
)
from headwater.models.coding import are_alike, largest_change
from headwater.models.delta import Entry, read_entries
from headwater.models.model import Model
from headwater.models.registry import Registry
from headwater.models.runtime import precision_of
from headwater.models.shelf import models_folder
from headwater.models.trial import try_out
from headwater.models.version import ModelVersion
from headwater.store.client.link import Link
from headwater.store.jobs.record import models_in_use

app = typer.Typer(help="Versions of models in a registry.", no_args_is_help=True)

Folder = Annotated[
    Path | None,
    typer.Option("--registry", metavar="FOLDER", help="Else $HEADWATER_MODELS, or the user's data folder."),
]
Reference = Annotated[
    str, typer.Argument(metavar="VERSION", help="A digest, 8 or more digits of it, NAME or NAME@previous.")
]
_SHOWN = 12
"""Digits of a digest that a person is shown."""
_MINUTES = len("2026-11-16T12:00")


@app.callback()
def _models() -> None:
    """Versions of models in a registry, and at stores: push them, look at them, quantise, sync, go back."""


@app.command("list")
def list_versions(
    registry: Folder = None,
    at: At = None,
    token_file: TokenFile = None,
    ca: Ca = None,
    cert: Cert = None,
    key: Key = None,
    json: JsonFlag = False,
) -> None:
    """Every version, the oldest first, and which are in force."""
    check_one_place(registry, at)
    if at is None:
        found = _stock(_open(registry))
    else:
        held = take_stock(at, token_file, Link(ca=ca, cert=cert, key=key))
        current = {name: digests[0] for name, digests in held.current.items()}
        versions = [describe(facts, held) for facts in held.versions]
        found = {"registry": at, "current": current, "versions": versions}
    if json:
        print_json(found)
    else:
        _print_versions(found)


def _stock(registry: Registry) -> dict[str, Any]:
    """What a registry holds, as plain data."""
    versions = [_describe(version, registry) for version in registry.versions()]
    return {"registry": str(registry.folder), "current": registry.in_force(), "versions": versions}


def _print_versions(found: dict[str, Any]) -> None:
    columns = ("name", "version", "in force", "parent", "made by", "weights", "time")
    rows = [
        (
            version["name"],
            version["digest"][:_SHOWN],
            _standing(version),
            (version["parent"] or "")[:_SHOWN],
            str(version["made"].get("by", "")),
            format_bytes(version["bytes"]),
            version["time"][:_MINUTES].replace("T", " "),
        )
        for version in found["versions"]
    ]
    print_table(columns, rows, title=found["registry"])


def _standing(version: dict[str, Any]) -> str:
    if version["sealed"]:
        return "sealed"
    return "yes" if version["in_force"] == [version["name"]] else ", ".join(version["in_force"])


@app.command("push")
def push(
    what: Annotated[str, typer.Argument(help="FILE.onnx, FILE.safetensors, or the name of a preset.")],
    name: Annotated[str | None, typer.Option(help="What to call it; else as the file or the preset.")] = None,
    like: Annotated[
        str | None, typer.Option(metavar="VERSION", help="Whose architecture FILE.safetensors has.")
    ] = None,
    classes: Annotated[Path | None, typer.Option(help="Names of the classes, one a line; for ONNX.")] = None,
    steps: Annotated[
        Path | None, typer.Option(help="The steps before the model, as JSON; for ONNX. Else ImageNet's.")
    ] = None,
    hold: Annotated[bool, typer.Option("--hold", help="Keep it, but do not put it in force.")] = False,
    unmeasured: Unmeasured = False,
    registry: Folder = None,
    json: JsonFlag = False,
) -> None:
    """Keep a model as a new version, and put it in force."""
    target = _open(registry)
    pushed = read_model(what, target, like=like, classes=classes, steps=steps)
    chosen = name or pushed.name
    before = target.find(pushed.parent or target.in_force().get(chosen, ""))
    parent = None if before is None else before.digest
    try_out(pushed.model)
    version = target.put(
        pushed.model,
        name=chosen,
        parent=parent,
        made=pushed.made,
        switch=not hold,
        unmeasured=unmeasured,
    )
    if json:
        print_json(_describe(version, target))
    else:
        int8 = (
            ", int8: nobody has measured whether labels stay" if precision_of(pushed.model) == "int8" else ""
        )
        print(version.digest)
        say(f"{version.name}: {format_bytes(version.nbytes)}, {'kept' if hold else 'in force'}{int8}")


@app.command("show")
def show(
    version: Reference,
    registry: Folder = None,
    at: At = None,
    token_file: TokenFile = None,
    ca: Ca = None,
    cert: Cert = None,
    key: Key = None,
    json: JsonFlag = False,
) -> None:
    """A version with its steps, classes, tensors and how it was made."""
    check_one_place(registry, at)
    if at is None:
        found = _open(registry)
        manifest = found.version(version)
        in_force = _in_force(manifest, found)
    else:
        held = take_stock(at, token_file, Link(ca=ca, cert=cert, key=key), version=version)
        manifest = ModelVersion.from_json(held.manifest)
        in_force = in_force_at(manifest.digest, held)
    if json:
        more = {"trunk_digest": manifest.trunk_digest, "bytes": manifest.nbytes, "in_force": in_force}
        print_json({**msgspec.to_builtins(manifest), **more})
    else:
        _print_manifest(manifest, in_force)


@app.command("diff")
def diff(
    old: Annotated[str, typer.Argument(metavar="OLD", help="A version, as in show.")],
    new: Annotated[str, typer.Argument(metavar="NEW", help="A version, as in show.")],
    registry: Folder = None,
    json: JsonFlag = False,
) -> None:
    """Tensors that differ, by how much, and what it costs to send them to who has the old version."""
    found = compare(_open(registry), old, new)
    if json:
        print_json(found)
        return
    rows = [
        (
            entry["name"],
            entry["change"],
            format_bytes(entry["bytes"]),
            f"{entry['largest_change']:.3g}" if math.isfinite(entry["largest_change"]) else "",
            format_bytes(entry["delta_bytes"]),
            entry["coding"],
        )
        for entry in found["tensors"]
    ]
    print_table(("tensor", "", "bytes", "largest change", "in a delta", "as"), rows)
    other = [part for part in ("graphs", "classes", "steps") if not found[f"same_{part}"]]
    delta, whole = format_bytes(found["delta_bytes"]), format_bytes(found["bytes"])
    print(f"{found['same']:,} tensors are the same; a delta takes {delta}, all tensors {whole}")
    if other:
        print(f"other {', '.join(other)}")


@app.command("rollback")
def rollback(
    name: Annotated[str, typer.Argument(help="Of the model.")],
    to: Annotated[str | None, typer.Option(metavar="VERSION", help="Which one; else the one before.")] = None,
    unmeasured: Unmeasured = False,
    registry: Folder = None,
    at: At = None,
    token_file: TokenFile = None,
    ca: Ca = None,
    cert: Cert = None,
    key: Key = None,
    json: JsonFlag = False,
) -> None:
    """Put an earlier version in force."""
    check_one_place(registry, at)
    if at is None:
        target = _open(registry)
        version = target.rollback(name) if to is None else target.switch(name, to, unmeasured=unmeasured)
        found = _describe(version, target)
    else:
        link = Link(ca=ca, cert=cert, key=key)
        found = put_in_force(at, token_file, link, name=name, to=to, unmeasured=unmeasured)
    if json:
        print_json(found)
    else:
        print(found["digest"])
        for job in found.get("stopped_jobs", ()):
            say(f"job {job} was ended: it labelled with the version that is no longer in force")


@app.command("collect")
def collect(
    ancestors: Annotated[
        int, typer.Option(min=0, help="How many parents to keep of each version that is kept.")
    ] = 0,
    registry: Folder = None,
    json: JsonFlag = False,
) -> None:
    """Remove versions that are neither in force nor were before, and what only they need."""
    target = _open(registry)
    freed = target.collect(ancestors=ancestors, keep=_needed_by_jobs(target))
    left = len(target.versions())
    if json:
        print_json({"freed": freed, "versions": left})
    else:
        print(f"freed {format_bytes(freed)}; {left:,} versions are left")


app.command("quantise")(quantise)
app.command("sync")(sync)


def compare(registry: Registry, old: str, new: str) -> dict[str, Any]:
    """What differs between two versions, as plain data."""
    before, after = registry.version(old), registry.version(new)
    data = registry.delta(before.digest, after.digest)
    names = sorted(before.tensors.keys() | after.tensors.keys())
    differing = [name for name in names if before.tensors.get(name) != after.tensors.get(name)]
    models = registry.get(before.digest), registry.get(after.digest)
    entries = {entry.name: entry for entry in read_entries(data)}
    return {
        "old": before.digest,
        "new": after.digest,
        "same": len(names) - len(differing),
        "tensors": [_row(name, models, entries.get(name)) for name in differing],
        "delta_bytes": len(data),
        "bytes": after.nbytes,
        "same_graphs": before.graphs == after.graphs,
        "same_classes": before.classes == after.classes,
        "same_steps": before.steps == after.steps,
    }


def _row(name: str, models: tuple[Model, Model], entry: Entry | None) -> dict[str, Any]:
    before, after = (model.tensors.get(name) for model in models)
    if before is None or after is None:
        change, largest = "gone" if after is None else "new", math.inf
    else:
        change, largest = (
            "changed" if are_alike(before, after) else "other shape",
            largest_change(before, after),
        )
    present = before if after is None else after
    return {
        "name": name,
        "change": change,
        "bytes": 0 if present is None else present.nbytes,
        "largest_change": largest,
        "delta_bytes": entry.nbytes if entry else 0,
        "coding": entry.coding if entry else "",
    }


def _open(folder: Path | None) -> Registry:
    return Registry(folder or models_folder())


def _needed_by_jobs(registry: Registry) -> set[str]:
    """What unfinished jobs need of a registry that is a store's: others lie in no store's state folder."""
    state = registry.folder.resolve().parent
    return models_in_use(state / "jobs") if (state / "lock").exists() else set()


def _in_force(version: ModelVersion, registry: Registry) -> list[str]:
    """Names under which a version is in force."""
    return [name for name, digest in registry.in_force().items() if digest == version.digest]


def _describe(version: ModelVersion, registry: Registry) -> dict[str, Any]:
    return {
        "name": version.name,
        "digest": version.digest,
        "parent": version.parent,
        "made": version.made,
        "in_force": _in_force(version, registry),
        "sealed": version.digest in registry.sealed(),
        "classes": len(version.classes),
        "features": version.features,
        "tensors": len(version.tensors),
        "bytes": version.nbytes,
        "time": version.time,
    }


def _print_manifest(version: ModelVersion, in_force: list[str]) -> None:
    made = ", ".join(f"{key} {value}" for key, value in version.made.items())
    graphs = ", ".join(f"{part} {digest[:_SHOWN]}" for part, digest in version.graphs.items())
    rows = [
        ("version", version.digest),
        ("in force as", ", ".join(in_force) or "nothing"),
        ("parent", version.parent or "none"),
        ("made", made),
        ("time", version.time),
        ("graphs", graphs),
        ("trunk digest", version.trunk_digest),
        ("features", f"{version.features:,}"),
        ("classes", f"{len(version.classes):,}: {', '.join(version.classes[:_SHOWN])}"),
        ("steps", " > ".join(str(step["name"]) for step in version.steps)),
        ("weights", f"{format_bytes(version.nbytes)} in {len(version.tensors):,} tensors"),
    ]
    print_table((version.name, ""), rows)
    tensors = [
        (
            name,
            facts.dtype,
            "x".join(map(str, facts.shape)),
            format_bytes(facts.nbytes),
            facts.digest[:_SHOWN],
        )
        for name, facts in version.tensors.items()
    ]
    print_table(("tensor", "type", "shape", "bytes", "digest"), tensors)
