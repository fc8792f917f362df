"""`headwater predict`: what a model says of image files, here or at a store, which may keep them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from headwater.cli.linking import Ca, Cert, Key, TokenFile
from headwater.cli.printing import JsonFlag, describe_error, format_bytes, print_json, print_table, say
from headwater.errors import WrongUse
from headwater.store.client.link import Link

if TYPE_CHECKING:
    from headwater.tune.predict import Predicted
    from headwater.tune.relabel import Access

_SHOWN = 12


def predict(
    images: Annotated[
        list[str] | None, typer.Argument(metavar="IMAGE...", help="Files: JPEG, PNG or WebP.")
    ] = None,
    model: Annotated[
        str, typer.Option(metavar="NAME", help="A model's name or digest; else the only one in force.")
    ] = "",
    registry: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Models here; else $HEADWATER_MODELS, or the user's folder."),
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(metavar="STORE", help="By a store: grpc+tls://HOST:PORT[/DATASET], https://HOST:PORT."),
    ] = None,
    top: Annotated[int, typer.Option(metavar="K", help="How many of the best classes to tell.")] = 1,
    dataset: Annotated[
        str, typer.Option(metavar="NAME", help="At a store: of which dataset; else its only one.")
    ] = "",
    keep: Annotated[
        bool, typer.Option("--keep", help="Have the store keep the images, with their labels.")
    ] = False,
    seal: Annotated[
        str | None,
        typer.Option(metavar="DATASET", help="Make what a store has kept a dataset; predicts nothing."),
    ] = None,
    token_file: TokenFile = None,
    ca: Ca = None,
    cert: Cert = None,
    key: Key = None,
    json: JsonFlag = False,
) -> None:
    """Say what images show, by a model of a registry here, or by a store."""
    from headwater.tune.relabel import Access

    access = Access(token_file, Link(ca=ca, cert=cert, key=key))
    _check(at, registry, seal=seal, images=images or [], for_stores=bool(dataset or keep))
    if seal is not None:
        _seal(at or "", seal, access, as_json=json)
        return
    if at is None:
        found = _here(images or [], registry, model, top)
    else:
        from headwater.store.client.predictions import Inquiry
        from headwater.tune.predict import predict_at

        found = predict_at(at, images or [], Inquiry(dataset, model, top, keep), access)
    _print(found, as_json=json)
    _end(found)


def _check(
    at: str | None, registry: Path | None, *, seal: str | None, images: Sequence[str], for_stores: bool
) -> None:
    if at is not None and registry is not None:
        raise WrongUse("--registry is for predictions here, --at for those of a store; give one of them")
    if at is None and (seal is not None or for_stores):
        raise WrongUse("--dataset, --keep and --seal are for a store; name it with --at")
    if bool(images) == (seal is not None):
        raise WrongUse("name images, or with --seal a dataset and no images")


def _here(images: Sequence[str], registry: Path | None, model: str, top: int) -> list[Predicted]:
    from headwater.models.registry import Registry
    from headwater.models.shelf import models_folder
    from headwater.tune.predict import predict_here

    return predict_here(images, Registry(registry or models_folder()), model=model, top=top)


def _seal(store: str, dataset: str, access: Access, *, as_json: bool) -> None:
    from headwater.tune.predict import seal_at

    found = seal_at(store, dataset, access)
    if as_json:
        print_json(msgspec.structs.asdict(found))
    elif not found.version:
        print(f"nothing was kept of {dataset}")
    else:
        size = format_bytes(found.bytes)
        print(f"{found.dataset}: {found.samples:,} images, {size}, version {found.version}")


def describe(one: Predicted) -> dict[str, Any]:
    """What became of an image, as plain data."""
    said = one.prediction
    return {
        "image": one.image,
        "label": said and said.label,
        "score": said and said.score,
        "margin": said and said.margin,
        "model": said and said.model,
        "version": said and said.version,
        "top": [msgspec.structs.asdict(guess) for guess in said.top] if said else [],
        "id": said and said.id,
        "key": (said and said.key) or None,
        "error": describe_error(one.error),
    }


def _print(found: Sequence[Predicted], *, as_json: bool) -> None:
    rows = [describe(one) for one in found]
    if as_json:
        print_json({"ok": all(one.error is None for one in found), "images": rows})
        return
    several = any(len(row["top"]) > 1 for row in rows)
    kept = any(row["id"] is not None for row in rows)
    columns = ["image", "label", "score", "margin", "version"]
    columns += ["others"] * several + ["id"] * kept
    sound = [row for row in rows if row["error"] is None]
    print_table(columns, [_row(row, several=several, kept=kept) for row in sound])
    for row in rows:
        if row["error"]:
            say(f"{row['image']}: {row['error']['message']}")


def _row(row: dict[str, Any], *, several: bool, kept: bool) -> list[str]:
    margin = "" if row["margin"] is None else f"{row['margin']:.2f}"
    cells = [row["image"], row["label"], f"{row['score']:.4f}", margin, row["version"][:_SHOWN]]
    others = ", ".join(f"{guess['label']} {guess['score']:.4f}" for guess in row["top"][1:])
    id = "" if row["id"] is None else str(row["id"])
    return cells + [others] * several + [id] * kept


def _end(found: Sequence[Predicted]) -> None:
    errors = [one.error for one in found if one.error is not None]
    if errors:
        raise typer.Exit(errors[0].exit_code)
