"""`headwater ls`: what a dataset holds."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
import typer

from headwater.cli.linking import Ca, Cert, Key, TokenFile
from headwater.cli.printing import JsonFlag, format_bytes, print_json, print_table
from headwater.store import Dataset, Link, open

_CLASSES_SHOWN = 12
_QUANTILES = {"smallest": 0, "5 %": 5, "median": 50, "95 %": 95, "largest": 100}


def ls(
    uri: Annotated[str, typer.Argument(help="Folder, tars, Parquet, s3:// or grpc+tls:// address.")],
    split: Annotated[str | None, typer.Option(help="Sub-folder, or beginning of file names.")] = None,
    image: Annotated[str | None, typer.Option(help="Extension or column that holds the image.")] = None,
    label: Annotated[str | None, typer.Option(help="Extension or column that holds the label.")] = None,
    samples: Annotated[int, typer.Option(min=0, help="How many samples to show.")] = 5,
    refresh: Annotated[bool, typer.Option(help="Index from scratch.")] = False,
    token_file: TokenFile = None,
    ca: Ca = None,
    cert: Cert = None,
    key: Key = None,
    json: JsonFlag = False,
) -> None:
    """Count, classes, bytes, version and first samples of a dataset."""
    link = Link(ca=ca, cert=cert, key=key)
    data = open(uri, split, image=image, label=label, refresh=refresh, token=token_file, link=link)
    found = describe(data, samples)
    if json:
        print_json(found)
    else:
        _print(found)


def describe(dataset: Dataset, samples: int) -> dict[str, Any]:
    """The dataset as plain data."""
    sizes, labels = dataset.sizes, dataset.labels
    labelled = labels[labels >= 0]
    counts = np.bincount(labelled, minlength=len(dataset.classes)).tolist()
    names = dataset.classes or tuple(str(number) for number in range(len(counts)))
    quantiles = np.percentile(sizes, list(_QUANTILES.values())).tolist() if len(sizes) else []
    return {
        "uri": dataset.uri,
        "version": dataset.version,
        "samples": len(dataset),
        "labelled": len(labelled),
        "bytes": int(sizes.sum()),
        "sizes": {
            "mean": float(sizes.mean()) if len(sizes) else 0.0,
            **dict(zip(_QUANTILES, quantiles, strict=False)),
        },
        "classes": {
            name: count for name, count in zip(names, counts, strict=False) if count or dataset.classes
        },
        "first": [_sample(dataset, place) for place in range(min(samples, len(dataset)))],
    }


def _sample(dataset: Dataset, place: int) -> dict[str, Any]:
    position = int(dataset.positions(slice(place, place + 1))[0])
    index = dataset.index
    return {
        "key": index.key(position),
        "id": int(index.ids[position]),
        "label": int(index.labels[position]),
        "bytes": int(index.sizes[position]),
    }


def _print(found: dict[str, Any]) -> None:
    sizes = ", ".join(f"{name} {format_bytes(size)}" for name, size in found["sizes"].items())
    rows = [
        ("address", found["uri"]),
        ("version", found["version"]),
        ("samples", f"{found['samples']:,} ({found['labelled']:,} with a label)"),
        ("bytes", format_bytes(found["bytes"])),
        ("file sizes", sizes),
        ("classes", _classes(found["classes"])),
    ]
    print_table(("dataset", ""), rows)
    first = [
        (entry["key"], str(entry["id"]), str(entry["label"]), format_bytes(entry["bytes"]))
        for entry in found["first"]
    ]
    if first:
        print_table(("key", "id", "label", "size"), first)


def _classes(counts: dict[str, int]) -> str:
    shown = [f"{name} {count:,}" for name, count in list(counts.items())[:_CLASSES_SHOWN]]
    rest = len(counts) - len(shown)
    return (
        f"{len(counts):,}: " + ", ".join(shown) + (f" and {rest:,} more" if rest else "")
        if counts
        else "none"
    )
