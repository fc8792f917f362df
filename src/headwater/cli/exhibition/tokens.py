"""The token of a store that the demo starts."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def write_token(path: Path, *scopes: str) -> str:
    """A new token called `demo` in a token file that nobody else may read, from its first byte on."""
    token = secrets.token_urlsafe(24)
    listed = ", ".join(f'"{scope}"' for scope in scopes)
    path.unlink(missing_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "w") as file:
        file.write(f'[[token]]\nname = "demo"\nsecret = "{token}"\nscopes = [{listed}]\n')
    return token
