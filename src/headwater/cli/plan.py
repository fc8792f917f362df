"""`headwater plan`: a dry run of offloading for a given link and given cores."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import msgspec
import typer

from headwater.cli.forecast import Forecast
from headwater.cli.linking import Ca, Cert, Key, TokenFile
from headwater.cli.presets import PRESETS, find_preset
from headwater.cli.printing import JsonFlag, format_bytes, print_json, print_table, printable
from headwater.cli.rehearsal import Prices, rehearse
from headwater.cli.units import parse_cores, parse_rate
from headwater.errors import WrongUse
from headwater.plan.offload import POLICIES, Rates
from headwater.report.advice import format_link, format_trainer
from headwater.report.balance import to_rates
from headwater.store import Dataset, Link, open

_NAMES = [name for name in POLICIES if name != "fixed"]


def plan(
    where: Annotated[
        list[str], typer.Argument(metavar="URI...|FILE", help="A dataset with a logbook, or a logbook.")
    ],
    link: Annotated[
        str | None, typer.Option(help="Such as 100Mbit, or 100Mbit,12.5MB for two stores; else as measured.")
    ] = None,
    store_cores: Annotated[
        str | None, typer.Option(help="Such as 2, or 2,0.5 for two stores; else as measured.")
    ] = None,
    store_seconds: Annotated[
        float | None, typer.Option(min=0, help="Of store CPU a sample, on average at most; else no limit.")
    ] = None,
    trainer_cores: Annotated[float | None, typer.Option(min=0.001, help="Else as measured.")] = None,
    trainer_rate: Annotated[
        float | None, typer.Option(min=0.001, help="Samples per second; else as measured.")
    ] = None,
    policy: Annotated[str, typer.Option(help=f"One of {', '.join(_NAMES)}.")] = "hull",
    transform: Annotated[
        str | None, typer.Option(help=f"One of {', '.join(PRESETS)}; else that of the newest logbook.")
    ] = None,
    epochs: Annotated[int, typer.Option(min=1, help="How many epochs to add up.")] = 1,
    price_per_gb: Annotated[float | None, typer.Option(min=0, help="Of what crosses the link.")] = None,
    price_per_core_hour: Annotated[float | None, typer.Option(min=0, help="Of CPU on both sides.")] = None,
    watts_per_core: Annotated[float | None, typer.Option(min=0, help="Of CPU on both sides.")] = None,
    joules_per_gb: Annotated[float | None, typer.Option(min=0, help="Of what crosses the link.")] = None,
    token_file: TokenFile = None,
    ca: Ca = None,
    cert: Cert = None,
    key: Key = None,
    json: JsonFlag = False,
) -> None:
    """What would cross the link per epoch before and after, how long it takes, and what that costs."""
    if policy not in _NAMES:
        raise WrongUse(f"there is no policy {policy!r} for all data; choose from {', '.join(_NAMES)}")
    given = {
        "link": _parse(link, parse_rate),
        "store_cores": _parse(store_cores, parse_cores),
        "store_seconds_per_visit": _parse(store_seconds),
        "trainer_cores": _parse(trainer_cores),
        "trainer": _parse(trainer_rate),
    }
    pipeline = None if transform is None else find_preset(transform)

    def open_(uri: str | list[str]) -> Dataset:
        return open(uri, token=token_file, link=Link(ca=ca, cert=cert, key=key))

    forecast = Forecast.find(where, open_, pipeline)
    rates = _change(forecast, {name: values for name, values in given.items() if values})
    prices = Prices(price_per_gb, price_per_core_hour, watts_per_core, joules_per_gb)
    found = rehearse(forecast, rates, policy, epochs=epochs, prices=prices)
    if json:
        print_json(found)
    else:
        _print(found)


def _parse(written: str | float | None, parse: Callable[[str], float] = float) -> list[float]:
    """Values that commas divide; none where nothing was given."""
    return [] if written is None else [parse(part) for part in str(written).split(",")]


def _change(forecast: Forecast, given: dict[str, list[float]]) -> list[Rates]:
    """Rates of each store as measured, with what was given instead: one for all, or one for each."""
    names = forecast.names
    for name, values in given.items():
        if len(values) not in (1, len(names)):
            raise WrongUse(
                f"--{name.replace('_', '-')} has {len(values)} values, there are {len(names)} stores; "
                f"give one for all, or one for each in this order: {'; '.join(names)}"
            )
    found = []
    for number, its in enumerate(forecast.rates):
        changes = {name: values[number % len(values)] for name, values in given.items()}
        found.append(to_rates(msgspec.structs.replace(its, **changes)))
    return found


def _print(found: dict[str, Any]) -> None:
    before, after, epochs = found["before"], found["after"], found["epochs"]
    rows = [
        (name, form(before[field]), form(after[field]), _ratio(before[field], after[field]))
        for name, field, form in _ROWS
        if field in before
    ]
    rows.append(("slowest", before["bottleneck"], after["bottleneck"], ""))
    count = "an epoch" if epochs == 1 else f"{epochs:,} epochs"
    columns = (count, "without offloading", f"policy {found['policy']}", "before / after")
    print_table(columns, rows, title=f"{found['uri'].replace(chr(10), ', ')}: {found['pipeline']}")
    if len(found["stores"]) > 1:
        _print_stores(found["stores"])
    print_table(
        ("way", "samples", "as files", "as they cross", "store CPU"),
        [
            (
                way["way"],
                f"{way['samples']:,.0f}",
                format_bytes(way["file_bytes"]),
                format_bytes(way["bytes"]),
                _seconds(way["store_seconds"]),
            )
            for way in found["ways"]
        ],
    )
    print_table(
        ("what if", "time"), [(wish, _seconds(seconds)) for wish, seconds in found["what_if"].items()]
    )
    for store in found["stores"]:
        name = f"{store['store']}: " if len(found["stores"]) > 1 else ""
        print(printable(f"{name}{store['reason']}"))
        print(printable(f"{name}{_rates_text(store['rates'])}"))
    if found["planned"] < found["samples"]:
        print(f"planned with {found['planned']:,} of {found['samples']:,} samples, spread evenly, and scaled")


def _print_stores(stores: Sequence[dict[str, Any]]) -> None:
    rows = [
        (
            store["store"],
            f"{store['samples']:,.0f}",
            *(format_bytes(store[side]["bytes"]) for side in ("before", "after")),
            *(_seconds(store[side]["seconds"]) for side in ("before", "after")),
            f"{store['before']['bottleneck']} > {store['after']['bottleneck']}",
        )
        for store in stores
    ]
    columns = ("store", "samples", "as files", "as they cross", "time before", "time after", "slowest")
    print_table(columns, rows)


def _rates_text(rates: dict[str, float]) -> str:
    cores = ", ".join(
        f"{rates[name]:.3g} {name.replace('_', ' ')}"
        for name in ("store_cores", "trainer_cores")
        if math.isfinite(rates[name])
    )
    cap = rates["store_seconds_per_visit"]
    most = f", at most {1e3 * cap:.3g} ms of store CPU a sample" if math.isfinite(cap) else ""
    trainer = format_trainer(rates["trainer"])
    return f"for a link of {format_link(rates['link'])}, {cores}{most}; trainer: {trainer}"


def _seconds(value: float) -> str:
    return f"{value:,.1f} s" if value < 600 else f"{value / 3600:,.2f} h"


def _money(value: float) -> str:
    return f"{value:,.4g}"


def _energy(value: float) -> str:
    return f"{value / 3600:,.3g} Wh"


def _ratio(before: float, after: float) -> str:
    return f"{before / after:.2f}" if before > 0 and after > 0 else ""


_ROWS = (
    ("over the link", "bytes", format_bytes),
    ("time", "seconds", _seconds),
    ("store CPU", "store_seconds", _seconds),
    ("trainer CPU", "trainer_seconds", _seconds),
    ("money", "money", _money),
    ("energy", "joules", _energy),
)
