"""`headwater serve`: put datasets behind a store that other machines read from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headwater.cli.printing import JsonFlag, format_bytes, print_json, print_table
from headwater.errors import MissingExtra, WrongUse
from headwater.store.server.config import ServeConfig, load, show, to_plain

if TYPE_CHECKING:
    from headwater.store.server.daemon import Serving


def serve(
    data: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME=]DATA...",
            help="What to serve, and under which name; without one it is the folder's or file's stem.",
        ),
    ] = None,
    listen: Annotated[str | None, typer.Option(help="HOST:PORT; port 0 takes a free one.")] = None,
    http: Annotated[str | None, typer.Option(help="HOST:PORT for /health, /metrics, /predict.")] = None,
    cores: Annotated[float | None, typer.Option(help="Cores that the store may use.")] = None,
    memory: Annotated[str | None, typer.Option(help="What requests may hold, such as 2GiB.")] = None,
    token_file: Annotated[Path | None, typer.Option(help="TOML file of tokens.")] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="Certificate, PEM.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its private key, PEM.")] = None,
    tls_client_ca: Annotated[
        Path | None, typer.Option(help="Clients need a certificate that this one signed.")
    ] = None,
    plaintext: Annotated[
        bool,
        typer.Option(
            "--plaintext", help="Beyond loopback too, do without TLS or without tokens: on a closed network."
        ),
    ] = False,
    audit_log: Annotated[Path | None, typer.Option(help="Who read and did what, as JSON lines.")] = None,
    state: Annotated[
        Path | None, typer.Option(help="Folder for models, labels, jobs and features; none: data only.")
    ] = None,
    labels: Annotated[
        str | None, typer.Option(metavar="URL", help="Label database; else SQLite in the state folder.")
    ] = None,
    feature_bytes: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Disk for kept features, such as 20GB.")
    ] = None,
    may_delete: Annotated[
        bool, typer.Option("--may-delete", help="Let `headwater forget` delete source files here.")
    ] = False,
    config: Annotated[Path | None, typer.Option(help="TOML file of settings; flags win over it.")] = None,
    show_config: Annotated[
        bool, typer.Option("--show-config", help="Print the settings as TOML, and serve nothing.")
    ] = False,
    json: JsonFlag = False,
) -> None:
    """Serve datasets until SIGTERM or Ctrl-C, and then finish what is under way."""
    settings = load(
        config,
        {
            "datasets": data or [],
            "listen": listen,
            "http": http,
            "cores": cores,
            "memory": memory,
            "token_file": token_file,
            "tls_cert": tls_cert,
            "tls_key": tls_key,
            "tls_client_ca": tls_client_ca,
            "plaintext": plaintext or None,
            "audit_log": audit_log,
            "state": state,
            "labels": labels,
            "feature_bytes": feature_bytes,
            "may_delete": may_delete or None,
        },
    )
    if show_config:
        _show(settings, as_json=json)
    else:
        _serve(settings, as_json=json)


def describe(serving: Serving) -> dict[str, Any]:
    """Where the store listens and what it serves, as plain data."""
    return {
        "address": serving.address,
        "http": serving.http,
        "state": serving.state,
        "datasets": {
            name: {"samples": samples, "version": version, "bytes": size}
            for name, (samples, version, size) in serving.datasets.items()
        },
    }


def _show(settings: ServeConfig, *, as_json: bool) -> None:
    if as_json:
        print_json(to_plain(settings))
    else:
        print(show(settings), end="")


def _serve(settings: ServeConfig, *, as_json: bool) -> None:
    if not settings.datasets:
        raise WrongUse("nothing to serve; name a dataset, or a --config file with [datasets.NAME] in it")
    try:
        from headwater.store.server import daemon
    except ModuleNotFoundError as error:
        raise MissingExtra(f"a store needs {error.name}; pip install 'headwater[serve]'") from error
    daemon.serve(settings, ready=_print_json if as_json else _print)


def _print_json(serving: Serving) -> None:
    print_json(describe(serving))


def _print(serving: Serving) -> None:
    rows = [
        (name, f"{samples:,}", format_bytes(size), version)
        for name, (samples, version, size) in serving.datasets.items()
    ]
    print_table(("dataset", "samples", "size", "version"), rows)
    pages = f", health and metrics on {serving.http}" if serving.http else ""
    kept = f", state in {serving.state}" if serving.state else ""
    print(f"listening on {serving.address}{pages}{kept}", flush=True)
