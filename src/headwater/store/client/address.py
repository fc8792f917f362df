"""`grpc://host:port/dataset` and `grpc+tls://...`, and the token that goes with them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from headwater.errors import WrongUse
from headwater.store.wire.messages import DATASET_NAME

SCHEMES = ("grpc", "grpc+tls")
PORT = 7077


def is_store(uri: object) -> bool:
    """Whether this is the address of a store, not of data."""
    return isinstance(uri, str) and uri.partition("://")[0].lower() in SCHEMES


@dataclass(frozen=True)
class Address:
    """Where a store listens, and which of its datasets is meant; an empty name means its only one."""

    scheme: str
    host: str
    port: int
    dataset: str = ""

    @classmethod
    def parse(cls, uri: str) -> Address:
        """Raises `WrongUse` for anything that is no address of a store."""
        try:
            parts = urlsplit(uri)
            port = parts.port or PORT
        except ValueError as error:
            raise WrongUse(f"{uri!r} is no address of a store: {error}") from error
        if parts.username or parts.password or parts.query or parts.fragment:
            raise WrongUse(
                f"{_bare(uri)!r} holds more than a host, a port and a name; pass the token as token="
            )
        if not parts.hostname or parts.scheme.lower() not in SCHEMES:
            raise WrongUse(f"{uri!r} is no address of a store; write grpc+tls://HOST:PORT/DATASET")
        name = unquote(parts.path.strip("/"))
        if name and not DATASET_NAME.fullmatch(name):
            raise WrongUse(f"{name!r} cannot be a dataset's name; letters, digits, dots and dashes can")
        return cls(parts.scheme.lower(), parts.hostname, port, name)

    @property
    def location(self) -> str:
        """What Flight connects to."""
        return f"{self.scheme}://{self.place}"

    @property
    def place(self) -> str:
        """Host and port, as a person writes them."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.location}/{self.dataset}" if self.dataset else self.location


class Secret:
    """A token: given, in a file, or in the environment. A file is read again when the store asks anew."""

    def __init__(
        self, given: str | os.PathLike[str] | None = None, environment: Mapping[str, str] = os.environ
    ) -> None:
        """`given` is the token itself, or the path of a file that holds it; else `HEADWATER_TOKEN` is the
        token, or `HEADWATER_TOKEN_FILE` its file."""
        self._file: Path | None = None
        self._value = ""
        if isinstance(given, str):
            self._value = _checked(given, "token")
        elif given is not None:
            self._file = Path(given)
        elif environment.get("HEADWATER_TOKEN"):
            self._value = _checked(environment["HEADWATER_TOKEN"], "HEADWATER_TOKEN")
        elif environment.get("HEADWATER_TOKEN_FILE"):
            self._file = Path(environment["HEADWATER_TOKEN_FILE"])
        self.renew()

    def renew(self) -> bool:
        """Read the file again; whether the token is another one now."""
        if self._file is None:
            return False
        before = self._value
        try:
            self._value = _checked(self._file.read_text("ascii"), os.fspath(self._file))
        except (OSError, UnicodeDecodeError, WrongUse) as error:
            if before:  # whoever renews the file may write it in two strokes
                return False
            if isinstance(error, WrongUse):
                raise
            raise WrongUse(f"{self._file} cannot be read as a token: {type(error).__name__}") from error
        return self._value != before

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        return [(b"authorization", f"Bearer {self._value}".encode())] if self._value else []

    def __repr__(self) -> str:
        return f"Secret({'set' if self._value else 'none'})"


def _checked(text: str, where: str) -> str:
    token = text.strip()
    if not re.fullmatch(r"[!-~]+", token):
        raise WrongUse(
            f"{where} does not hold one token of plain characters; check it for spaces and newlines"
        )
    return token


def _bare(uri: str) -> str:
    """The address without what could be a password."""
    scheme, _, rest = uri.partition("://")
    return f"{scheme}://...{rest.rpartition('@')[2]}" if "@" in rest else uri
