"""`headwater plan`: a dry run of offloading for a given link and given cores."""

from __future__ import annotations

import math
from typing import Annotated, Any

import msgspec
import typer

from headwater.cli.forecast import Forecast
from headwater.cli.linking import Ca, Cert, Key, TokenFile
from headwater.cli.presets import PRESETS, find_preset
from headwater.cli.printing import JsonFlag, format_bytes, print_json, print_table, printable
from headwater.cli.rehearsal import Prices, rehearse
from headwater.cli.units import parse_rate
from headwater.errors import WrongUse
from headwater.plan.offload import POLICIES
from headwater.report.advice import format_link, format_trainer
from headwater.report.balance import to_rates
from headwater.store import Dataset, Link, open

_NAMES = [name for name in POLICIES if name != "fixed"]


def plan(
    where: Annotated[str, typer.Argument(metavar="URI|FILE", help="A dataset with a logbook, or a logbook.")],
    link: Annotated[str | None, typer.Option(help="Such as 100Mbit or 12.5MB; else as measured.")] = None,
    store_cores: Annotated[float | None, typer.Option(min=0, help="Else as measured.")] = None,
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
        "link": None if link is None else parse_rate(link),
        "store_cores": store_cores,
        "trainer_cores": trainer_cores,
        "trainer": trainer_rate,
    }
    pipeline = None if transform is None else find_preset(transform)

    def open_(uri: str | list[str]) -> Dataset:
        return open(uri, token=token_file, link=Link(ca=ca, cert=cert, key=key))

    forecast = Forecast.find(where, open_, pipeline)
    changes = {name: value for name, value in given.items() if value is not None}
    rates = to_rates(msgspec.structs.replace(forecast.rates, **changes))
    prices = Prices(price_per_gb, price_per_core_hour, watts_per_core, joules_per_gb)
    found = rehearse(forecast, rates, policy, epochs=epochs, prices=prices)
    if json:
        print_json(found)
    else:
        _print(found)


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
    print_table(columns, rows, title=f"{found['uri']}: {found['pipeline']}")
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
    print(printable(found["reason"]))
    print(_rates_text(found["rates"]))
    if found["planned"] < found["samples"]:
        print(f"planned with {found['planned']:,} of {found['samples']:,} samples, spread evenly, and scaled")


def _rates_text(rates: dict[str, float]) -> str:
    cores = ", ".join(
        f"{rates[name]:.3g} {name.replace('_', ' ')}"
        for name in ("store_cores", "trainer_cores")
        if math.isfinite(rates[name])
    )
    trainer = format_trainer(rates["trainer"])
    return f"for a link of {format_link(rates['link'])}, {cores}; trainer: {trainer}"


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
