"""`headwater release`: let samples out of a store's quarantine."""

from __future__ import annotations

from typing import Annotated

import typer

from headwater.cli.linking import Ca, Cert, Key, TokenFile
from headwater.cli.printing import JsonFlag, print_json
from headwater.store.client.link import Link

_DEADLINE_SECONDS = 3.0


def release(
    url: Annotated[str, typer.Argument(help="grpc://HOST:PORT or grpc+tls://HOST:PORT.")],
    ids: Annotated[
        list[int] | None, typer.Argument(metavar="[ID]...", help="Which samples; none named: all.")
    ] = None,
    token_file: TokenFile = None,
    ca: Ca = None,
    cert: Cert = None,
    key: Key = None,
    json: JsonFlag = False,
) -> None:
    """Let samples that crashed a store's decoder be decoded again; needs a token with the scope `admin`."""
    from headwater.store.client import status

    link = Link(ca=ca, cert=cert, key=key, deadline_seconds=_DEADLINE_SECONDS)
    released = status.release(url, ids or (), token=token_file, link=link)
    if json:
        print_json({"released": released})
    else:
        print("\n".join(["released:", *map(str, released)]) if released else "none of them is in quarantine")
