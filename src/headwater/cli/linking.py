"""Options of every verb that can speak to a store: the token's file and the certificates."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

TokenFile = Annotated[
    Path | None,
    typer.Option("--token-file", help="File that holds the store's token; else HEADWATER_TOKEN is used."),
]
Ca = Annotated[Path | None, typer.Option("--ca", help="Certificate that signed the store's, PEM.")]
Cert = Annotated[Path | None, typer.Option("--cert", help="Own certificate, PEM, for mutual TLS.")]
Key = Annotated[Path | None, typer.Option("--key", help="Its private key, PEM.")]
