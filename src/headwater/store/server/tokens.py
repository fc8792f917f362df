"""Who may do what: tokens from a file or the environment, and their rotation without a restart.

A token is a secret, a name that logs may show, a plain list of scopes (none implies another, `admin`
neither), the datasets it is good for, and an end. Only the SHA-256 of a secret is kept in memory.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from headwater.errors import HeadwaterError, WrongUse
from headwater.store.server.tokenfile import read_document, signature

log = logging.getLogger("headwater")

SCOPES = ("read", "jobs", "models", "labels", "admin", "forget")
VARIABLE = "HEADWATER_TOKEN"
SECRET_BYTES = (16, 2048)

_KEYS = ("name", "secret", "sha256", "scopes", "datasets", "expires")
_RESERVED = ("anonymous", "environment")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
# What a header carries unchanged; a blank would end the token.
_SECRET = re.compile(r"[!-~]+")
_LOOK_SECONDS = 1.0


@dataclass(frozen=True)
class Token:
    """A secret's digest and what it opens. `datasets` None is every dataset, `expires` None is never."""

    name: str
    digest: bytes = field(repr=False)
    scopes: frozenset[str] = frozenset({"read"})
    datasets: frozenset[str] | None = None
    expires: datetime | None = None

    def expired(self, now: float) -> bool:
        return self.expires is not None and now >= self.expires.timestamp()


class Tokens:
    """The tokens in force. Safe to use from many threads.

    The file is looked at again at most once a second, when somebody asks; a file that has become bad or
    is gone costs one logged error, and the tokens read before stay in force.
    """

    def __init__(self, fixed: Iterable[Token], path: Path | None, *, clock: Callable[[], float]) -> None:
        self._fixed = tuple(fixed)
        self._path = path
        self._clock = clock
        self._lock = threading.Lock()
        self._looked = clock()
        self._seen = signature(path) if path else None
        self._table = self._read()

    @classmethod
    def load(
        cls, path: Path | None, environment: Mapping[str, str], *, clock: Callable[[], float] = time.time
    ) -> Tokens:
        """Tokens of the file, and the one of `HEADWATER_TOKEN`, which opens everything.

        Raises `Refused` for a file that others may read, `WrongUse` for one that cannot be right.
        """
        fixed = []
        if VARIABLE in environment:
            digest = _digest_of(environment[VARIABLE], where=VARIABLE)
            fixed.append(Token("environment", digest, frozenset(SCOPES)))
        return cls(fixed, path, clock=clock)

    def find(self, secret: str) -> Token | None:
        """The token with this secret, expired or not."""
        self._refresh()
        digest = _sha256(secret)
        token = self._table.get(digest)
        return token if token is not None and hmac.compare_digest(token.digest, digest) else None

    def __bool__(self) -> bool:
        return bool(self._table)

    def __repr__(self) -> str:
        return f"Tokens({', '.join(token.name for token in self._table.values())})"

    def _read(self) -> dict[bytes, Token]:
        found = [*self._fixed, *(read_file(self._path) if self._path else ())]
        table = {token.digest: token for token in found}
        if len(table) < len(found):
            raise WrongUse(f"token file {self._path} repeats the secret of {VARIABLE}; make another secret")
        now = self._clock()
        for token in found:
            if token.expired(now):
                log.warning("token %r expired on %s; remove it or make another", token.name, token.expires)
        return table

    def _refresh(self) -> None:
        """One thread looks; the others go on with what there is."""
        # abs: a clock that was set back must not stop the looking.
        if self._path is None or abs(self._clock() - self._looked) < _LOOK_SECONDS:
            return
        if not self._lock.acquire(blocking=False):
            return
        try:
            self._looked = self._clock()
            found = signature(self._path)
            if found != self._seen:
                self._seen = found
                self._reload()
        finally:
            self._lock.release()

    def _reload(self) -> None:
        try:
            self._table = self._read()
        except HeadwaterError as error:
            log.error("%s; the tokens that were read before stay in force", error)
        else:
            log.info("token file %s was read again: %d tokens in force", self._path, len(self._table))


def read_file(path: Path) -> list[Token]:
    """The tokens of a file, checked strictly. No error text holds a secret or a digest."""
    document = read_document(path)
    entries = document.get("token")
    unknown = sorted(document.keys() - {"token"})
    if unknown:
        raise WrongUse(f"token file {path} has unknown key {unknown[0]!r}; it holds [[token]] entries only")
    if not isinstance(entries, list) or not entries:
        raise WrongUse(f"token file {path} holds no token; add a [[token]] entry with name and secret")
    tokens = [_parse(entry, f"token file {path}, entry {at}") for at, entry in enumerate(entries, start=1)]
    _check_unique(tokens, path)
    return tokens


def _check_unique(tokens: list[Token], path: Path) -> None:
    names: dict[str, int] = {}
    digests: dict[bytes, int] = {}
    for at, token in enumerate(tokens, start=1):
        first = names.setdefault(token.name, at)
        if first != at:
            raise WrongUse(f"token file {path}: entries {first} and {at} are both named {token.name!r}")
        first = digests.setdefault(token.digest, at)
        if first != at:
            raise WrongUse(f"token file {path}: entries {first} and {at} have the same secret; make another")


def _parse(entry: object, where: str) -> Token:
    if not isinstance(entry, dict):
        raise WrongUse(f"{where} is not a table; write it as [[token]] with name and secret")
    unknown = sorted(entry.keys() - set(_KEYS))
    if unknown:
        raise WrongUse(f"{where} has unknown key {unknown[0]!r}; known are {', '.join(_KEYS)}")
    name = _name(entry.get("name"), where)
    where = f"{where} ({name!r})"
    scopes = _strings(entry.get("scopes", ["read"]), "scopes", where)
    for scope in sorted(scopes - set(SCOPES)):
        raise WrongUse(f"{where} has unknown scope {scope!r}; known are {', '.join(SCOPES)}")
    datasets = _strings(entry["datasets"], "datasets", where) if "datasets" in entry else None
    return Token(name, _digest(entry, where), scopes, datasets, _expiry(entry.get("expires"), where))


def _name(value: object, where: str) -> str:
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise WrongUse(f"{where} needs a name of 1 to 64 letters, digits, '.', '_' or '-'")
    if value in _RESERVED:
        raise WrongUse(f"{where} is named {value!r}, which the store itself uses; choose another name")
    return value


def _strings(value: object, key: str, where: str) -> frozenset[str]:
    if not isinstance(value, list) or not all(isinstance(part, str) and part for part in value):
        raise WrongUse(f'{where}: {key} must be a list of names, such as {key} = ["name"]')
    return frozenset(value)


def _digest(entry: Mapping[str, object], where: str) -> bytes:
    if ("secret" in entry) == ("sha256" in entry):
        raise WrongUse(f"{where} needs either secret or sha256, one of the two")
    if "secret" in entry:
        return _digest_of(entry["secret"], where=f"{where}: secret")
    given = entry["sha256"]
    if not isinstance(given, str) or not re.fullmatch(r"[0-9a-fA-F]{64}", given):
        raise WrongUse(f"{where}: sha256 must be the 64 hex digits of the secret's SHA-256")
    return bytes.fromhex(given)


def _digest_of(secret: object, *, where: str) -> bytes:
    least, most = SECRET_BYTES
    if not isinstance(secret, str) or not least <= len(secret) <= most or not _SECRET.fullmatch(secret):
        raise WrongUse(
            f"{where} must have {least} to {most} printable ASCII characters without blanks; "
            "`openssl rand -hex 32` makes a good one"
        )
    return _sha256(secret)


def _sha256(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


def _expiry(value: object, where: str) -> datetime | None:
    if value is None:
        return None
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise WrongUse(f"{where}: expires must be a date, a time and a zone, such as 2027-01-01T00:00:00Z")
    try:
        return value.astimezone(UTC)
    except OverflowError:
        raise WrongUse(f"{where}: expires is beyond the calendar; leave it out for never") from None
