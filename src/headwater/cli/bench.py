"""`headwater bench`: measure on this machine, with this data."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import numpy as np
import typer

from headwater.cli.linking import Ca, Cert, Key, TokenFile
from headwater.cli.presets import PRESETS, find_preset
from headwater.cli.printing import JsonFlag, print_json, print_table, say
from headwater.cli.sampling import spread
from headwater.data.pipeline import Pipeline
from headwater.engine.crew import available_cores
from headwater.errors import MissingExtra
from headwater.store import Dataset, Link, LocalStore, open

app = typer.Typer(help="Measure on this machine, with this data.", no_args_is_help=True)


@app.callback()
def _bench() -> None:
    """Measure on this machine, with this data."""


@app.command("loader")
def loader(
    uri: Annotated[str, typer.Argument(help="Folder, tars, Parquet, s3:// or grpc+tls:// address.")],
    transform: Annotated[str, typer.Option(help=f"One of {', '.join(PRESETS)}.")] = "imagenet",
    samples: Annotated[int, typer.Option(min=1, help="How many samples a round takes.")] = 2000,
    batch_size: Annotated[int, typer.Option(min=1)] = 64,
    workers: Annotated[int | None, typer.Option(min=1, help="Threads, and torch's processes.")] = None,
    rounds: Annotated[
        int, typer.Option(min=1, help="Rounds that count; each contender has one turn in each.")
    ] = 5,
    token_file: TokenFile = None,
    ca: Ca = None,
    cert: Cert = None,
    key: Key = None,
    json: JsonFlag = False,
) -> None:
    """Images per second of the loader, of a bare read loop, and of torch's DataLoader with the same steps."""
    pipeline = find_preset(transform)
    dataset = spread(open(uri, token=token_file, link=Link(ca=ca, cert=cert, key=key)), samples)
    found = measure(
        dataset,
        pipeline,
        batch_size=batch_size,
        workers=workers or available_cores(),
        rounds=rounds,
    )
    if json:
        print_json({"uri": uri, "transform": transform, **found})
    else:
        _print(found)


def measure(
    dataset: Dataset, pipeline: Pipeline, *, batch_size: int, workers: int, rounds: int
) -> dict[str, Any]:
    """Race the loaders; rates, ratios and where the loader's seconds went."""
    try:
        from headwater.cli import race
        from headwater.loader import DataLoader
    except ImportError as error:
        raise MissingExtra(f"the loader needs torch ({error}); pip install 'headwater[torch]'") from error
    ours = DataLoader(
        dataset, pipeline, batch_size=batch_size, shuffle=True, num_workers=workers, progress=False
    )
    contenders = {"headwater": race.headwater(ours), "bare read": race.bare_read(dataset)}
    if isinstance(dataset.store, LocalStore) and not dataset.store.source.remote:
        contenders["torch"] = race.torch_loader(dataset, pipeline, batch_size=batch_size, workers=workers)
    say(f"{rounds + 1} rounds of {len(dataset):,} samples: {', '.join(contenders)}")
    rates = race.race(contenders, rounds)
    stats = ours.stats()
    ours.close()
    others = [name for name in rates if name != "headwater"]
    ratios = {name: np.divide(rates["headwater"], rates[name]).tolist() for name in others}
    return {
        "samples": len(dataset),
        "batch_size": batch_size,
        "workers": workers,
        "rounds": rounds,
        "pipeline": str(pipeline),
        "images_per_second": {name: asdict(race.Spread.of(values)) for name, values in rates.items()},
        "headwater_against": {name: asdict(race.Spread.of(values)) for name, values in ratios.items()},
        "work_seconds": dict(stats.work_seconds),
        "wait_seconds": dict(stats.wait_seconds),
    }


def _print(found: dict[str, Any]) -> None:
    against = found["headwater_against"]
    rows = [
        (name, _spread(rate, ",.0f"), _spread(against[name], ".2f") if name in against else "")
        for name, rate in found["images_per_second"].items()
    ]
    columns = ("loader", "images/s: median (low to high)", "headwater / this, within a round")
    print_table(
        columns, rows, title=f"{found['samples']:,} samples, {found['workers']} workers: {found['pipeline']}"
    )
    seconds = [(name, f"{value:.2f}") for name, value in found["work_seconds"].items()]
    print_table(("headwater's stage", "seconds, summed over threads and rounds"), seconds)


def _spread(values: dict[str, float], form: str) -> str:
    return f"{values['median']:{form}} ({values['low']:{form}} to {values['high']:{form}})"
