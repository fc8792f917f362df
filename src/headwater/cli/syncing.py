"""`headwater models sync`, and what the other verbs of `headwater models` do with `--at STORE`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import DownloadColumn

from headwater.cli.bars import Bars, show_bars
from headwater.cli.linking import Ca, Cert, Key, TokenFile
from headwater.cli.printing import JsonFlag, describe_error, format_bytes, print_json, print_table, say
from headwater.engine.together import all_at_once
from headwater.errors import ModelError, WrongUse
from headwater.models.evidence import find_evidence
from headwater.models.registry import Registry
from headwater.models.runtime import precision_of_graph
from headwater.models.shelf import models_folder
from headwater.models.version import ModelVersion
from headwater.store.client.link import Link
from headwater.store.wire.modelmessages import Inventory, VersionFacts

if TYPE_CHECKING:
    from headwater.store.pushing import Delivery, Terms

At = Annotated[
    str | None, typer.Option("--at", metavar="STORE", help="Of a store, grpc+tls://HOST:PORT, instead.")
]
Unmeasured = Annotated[
    bool,
    typer.Option("--unmeasured", help="int8 layers, too, of which nobody has measured that labels stay."),
]
_SHOWN = 12
_DEADLINE_SECONDS = 10.0


def sync(
    stores: Annotated[
        list[str], typer.Argument(metavar="STORE...", help="grpc://HOST:PORT or grpc+tls://HOST:PORT, each.")
    ],
    name: Annotated[str | None, typer.Option(help="Which model; else all that are in force.")] = None,
    wait: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="How long to wait for stores that are away.")
    ] = 0.0,
    approximate: Annotated[
        bool,
        typer.Option("--approximate", help="Send weights that are near, where that takes fewer bytes."),
    ] = False,
    unmeasured: Unmeasured = False,
    registry: Annotated[
        Path | None,
        typer.Option("--registry", metavar="FOLDER", help="Else $HEADWATER_MODELS, or the user's folder."),
    ] = None,
    token_file: TokenFile = None,
    ca: Ca = None,
    cert: Cert = None,
    key: Key = None,
    json: JsonFlag = False,
) -> None:
    """Have at the stores in force what is in force here, with the fewest bytes."""
    from headwater.store.pushing import Terms

    source = Registry(registry or models_folder())
    names = [name] if name is not None else source.names()
    if name is not None:
        source.current(name)  # one that is named must be there; of all, those go that can
    if not names:
        raise WrongUse(f"no model is in force in {source.folder}; push one with `headwater models push`")
    link = Link(ca=ca, cert=cert, key=key, deadline_seconds=_DEADLINE_SECONDS)
    terms = Terms(approximate=approximate, unmeasured=unmeasured)
    found = send_all(source, names, stores, token=token_file, link=link, wait=wait, terms=terms)
    errors = [row["error"] for row in found if row["error"]]
    if json:
        print_json({"ok": not errors, "deliveries": found})
    else:
        _print(found)
    if errors:
        raise typer.Exit(errors[0]["exit_code"])


def send_all(
    source: Registry,
    names: Sequence[str],
    stores: Sequence[str],
    *,
    token: Path | None,
    link: Link,
    wait: float,
    terms: Terms,
) -> list[dict[str, Any]]:
    """What became of each model at each store, as plain data.

    Stores that are there get all models first. Then those that are away are waited for, each by itself; one
    that comes back gets all models, by what it holds then. A model that is damaged here is left out, and its
    error is told for each store.
    """
    end, errand = time.monotonic() + wait, _Errand(source, names, token, link, terms)
    found = errand.run(stores, _bars)
    away = list(dict.fromkeys(row["store"] for row in found if row["away"]))
    if not away or time.monotonic() >= end:
        return found
    with show_bars({store: f"models to {store}" for store in away}, DownloadColumn()) as watch:
        calls = [partial(errand.run, [store], lambda *_: nullcontext(watch), until=end) for store in away]
        later = [row for rows in all_at_once(calls, name="headwater-sync") for row in rows]
    found_later = {(row["store"], row["model"]): row for row in later}
    return [_join(row, found_later.get((row["store"], row["model"]))) for row in found]


def _join(row: dict[str, Any], later: dict[str, Any] | None) -> dict[str, Any]:
    """Of a model at a store that was asked a second time: what counts is what is there in the end."""
    if later is None:
        return row
    had_it = later["kind"] == "nothing" and not row["error"]
    sums = {key: row[key] + later[key] for key in ("sent_bytes", "seconds")}
    return {**(row if had_it else later), **sums}


@dataclass(frozen=True)
class _Errand:
    """Which models go, from where, and how stores are spoken to."""

    source: Registry
    names: Sequence[str]
    token: Path | None
    link: Link
    terms: Terms

    def run(
        self,
        stores: Sequence[str],
        bars: Callable[[str, Sequence[str]], AbstractContextManager[Bars]],
        *,
        until: float = 0.0,
    ) -> list[dict[str, Any]]:
        """All models to these stores; one that is still away then is asked for no other model."""
        from headwater.store.pushing import Delivery, push

        found: list[dict[str, Any]] = []
        away: dict[str, Delivery] = {}
        for name in self.names:
            try:
                version = self.source.current(name)
                int8 = precision_of_graph(self.source.graph(version.graphs["trunk"])) == "int8"
            except ModelError as error:
                found += [_describe(name, None, Delivery(store, "", 0, 0.0, error)) for store in stores]
                continue
            at, there = dict(away), [store for store in stores if store not in away]
            if there:
                with bars(name, there) as watch:
                    done = push(
                        self.source,
                        there,
                        version.digest,
                        name=name,
                        token=self.token,
                        link=self.link,
                        wait_seconds=max(0.0, until - time.monotonic()),
                        terms=self.terms,
                        watch=watch,
                    )
                at |= {one.store: one for one in done}
                away |= {
                    one.store: Delivery(one.store, "", 0, one.seconds, one.error) for one in done if one.away
                }
            found += [_describe(name, version, at[store], int8=int8) for store in stores]
        return found


def _describe(
    name: str, version: ModelVersion | None, delivery: Delivery, *, int8: bool = False
) -> dict[str, Any]:
    rounding = delivery.rounding
    wanted = version.digest if version else ""
    return {
        "store": delivery.store,
        "model": name,
        "version": delivery.version or wanted,
        "wanted": wanted,
        "int8": _describe_int8(version) if version and int8 else None,
        "kind": delivery.kind,
        "sent_bytes": delivery.sent_bytes,
        "whole_bytes": version.nbytes if version else 0,
        "exact_bytes": rounding and rounding.exact_bytes,
        "largest_error": rounding and rounding.largest_error,
        "seconds": delivery.seconds,
        "away": delivery.away,
        "error": describe_error(delivery.error),
    }


def _describe_int8(version: ModelVersion) -> dict[str, Any]:
    """What was measured of int8 layers, and not at the store that gets them; all None if nothing was."""
    found = find_evidence(version)
    if found is None:
        return dict.fromkeys(("agreement", "bound", "images", "data", "said"))
    return {**asdict(found), "said": str(found)}


def _print(found: Sequence[dict[str, Any]]) -> None:
    print_table(("store", "model", "version", "sent", "of", "as", ""), map(_row, found))
    for row in found:
        if row["largest_error"] is not None and not row["error"]:
            say(f"{row['store']}: {_explain(row)}")
    for told in dict.fromkeys(_explain_int8(row) for row in found if row["int8"] and not row["error"]):
        say(told)
    for told in dict.fromkeys(f"{row['store']}: {row['error']['message']}" for row in found if row["error"]):
        say(told)


def _explain(row: dict[str, Any]) -> str:
    """What an approximation costs and saves."""
    return (
        f"{row['model']} is approximate, a weight is off by at most {row['largest_error']:.2g}; "
        f"{format_bytes(row['sent_bytes'])} were sent, the exact version takes "
        f"{format_bytes(row['exact_bytes'])}"
    )


def _explain_int8(row: dict[str, Any]) -> str:
    """Where int8 layers were measured: a store that they come to has not looked at its data and its CPU."""
    return f"{row['model']} is int8: {row['int8']['said'] or 'nobody has measured whether labels stay'}"


def _row(row: dict[str, Any]) -> tuple[str, ...]:
    sent, whole = format_bytes(row["sent_bytes"]), format_bytes(row["whole_bytes"])
    failed = "away" if row["away"] else row["error"] and row["error"]["kind"]
    return (
        row["store"],
        row["model"],
        row["version"][:_SHOWN],
        sent,
        whole,
        row["kind"],
        failed or _force(row),
    )


def _force(row: dict[str, Any]) -> str:
    """What is in force at a store: the version itself, or what stands for it there."""
    if row["version"] != row["wanted"] and row["largest_error"] is None:
        return "its int8 in force"
    said = "in force" if row["largest_error"] is None else "approximation in force"
    if not row["int8"]:
        return said
    return f"{said}, int8 {'measured elsewhere' if row['int8']['said'] else 'unmeasured'}"


def _bars(name: str, stores: Sequence[str]) -> AbstractContextManager[Bars]:
    return show_bars({store: f"{name} to {store}" for store in stores}, DownloadColumn())


def check_one_place(registry: Path | None, at: str | None) -> None:
    """Raise `WrongUse` where both a folder and a store are named."""
    if registry is not None and at is not None:
        raise WrongUse("--registry and --at name two places; give one of them")


def take_stock(at: str, token: Path | None, link: Link, *, version: str = "") -> Inventory:
    """What a store holds."""
    from headwater.store.client.models import models_of

    with models_of(at, token=token, link=link) as models:
        return models.inventory(version)


def put_in_force(
    at: str, token: Path | None, link: Link, *, name: str, to: str | None, unmeasured: bool
) -> dict[str, Any]:
    """Put the version before in force at a store, or the one that `to` names.

    As `describe` has it, with the jobs that labelled with the version that went, and were ended.
    """
    from headwater.store.client.models import models_of

    with models_of(at, token=token, link=link) as models:
        if to is None:
            done = models.rollback(name)
        else:
            version = ModelVersion.from_json(models.inventory(to).manifest)
            done = models.switch(name, version.digest, unmeasured=unmeasured)
        held = models.inventory()
    found = next(describe(facts, held) for facts in held.versions if facts.digest == done.current)
    return {**found, "stopped_jobs": done.stopped}


def describe(facts: VersionFacts, held: Inventory) -> dict[str, Any]:
    """A version at a store, as one of a registry is described."""
    return {
        "name": facts.name,
        "digest": facts.digest,
        "parent": facts.parent,
        "made": {"by": facts.by},
        "in_force": in_force_at(facts.digest, held),
        "sealed": False,  # a store lists none that are
        "classes": facts.classes,
        "features": facts.features,
        "tensors": facts.tensors,
        "bytes": facts.bytes,
        "time": facts.time,
    }


def in_force_at(digest: str, held: Inventory) -> list[str]:
    """Names under which a version is in force at a store."""
    return [name for name, (current, *_) in sorted(held.current.items()) if current == digest]
