"""The door: whose token this is, what it opens, and how often an address may be wrong.

Knows nothing of Flight or HTTP: a header and a peer go in, a `Caller` or `Refused` comes out. Secrets
and headers appear in no text, log or repr.
"""

from __future__ import annotations

import math
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, TypeVar

from headwater.errors import Refused, WrongUse
from headwater.store.server.audit import AuditLog
from headwater.store.server.peers import limited_address
from headwater.store.server.tokens import SCOPES, Token, Tokens

ANONYMOUS = "anonymous"

FAILURES = 10
REFILL_SECONDS = 6.0
REMEMBERED = 4096
_HEADER_BYTES = 4096
_BEARER = re.compile(r"[ \t]*bearer +([!-~]+)[ \t]*", re.IGNORECASE)

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


@dataclass(frozen=True)
class Caller:
    """Who asks: the token's name and the peer as the transport wrote it, and what the token opens."""

    name: str
    peer: str
    scopes: frozenset[str] = frozenset()
    datasets: frozenset[str] | None = None
    expires: datetime | None = None

    def may(self, scope: str, dataset: str | None = None) -> bool:
        """Whether the token opens this, its expiry aside; a `dataset` of None asks for the scope alone."""
        if dataset is not None and self.datasets is not None and dataset not in self.datasets:
            return False
        return scope in self.scopes


class Guard:
    """Tells callers apart and refuses. Safe to use from many threads.

    `open_to_all` lets everybody do everything, which only a store without tokens can be. A (address,
    token) pair that was let in once stays so although its address has used up its failures: a training
    run is not locked out by a neighbour behind the same address. Requests without any token, or with one
    that has expired, guess nothing and use nothing up.
    """

    def __init__(
        self, tokens: Tokens, *, open_to_all: bool, audit: AuditLog, clock: Callable[[], float] = time.time
    ) -> None:
        if open_to_all and tokens:
            raise WrongUse("a store with tokens cannot be open to all; take the tokens away or close it")
        self._tokens = tokens
        self._open = open_to_all
        self._audit = audit
        self._clock = clock
        self._lock = threading.Lock()
        self._attempts = _Attempts()
        self._known: _Recent[tuple[str, bytes], str] = _Recent()

    def identify(self, authorization: str | None, peer: str) -> Caller:
        """The caller of a request with this `authorization` header. Raises `Refused`."""
        if self._open:
            caller = Caller(ANONYMOUS, peer, frozenset(SCOPES))
            self._remember(caller, b"")
            return caller
        if not authorization:
            raise self._refusal(
                Caller(ANONYMOUS, peer), "no token", "no token; send one as `authorization: Bearer TOKEN`"
            )
        secret = _secret_of(authorization)
        return self._admit(self._tokens.find(secret) if secret else None, peer)

    def check(self, caller: Caller, scope: str, dataset: str | None = None) -> None:
        """Raises `Refused` where the caller's token does not open this, or has expired since."""
        if scope not in SCOPES:
            raise WrongUse(f"unknown scope {scope!r}; known are {', '.join(SCOPES)}")
        self._check_expiry(caller)
        if caller.may(scope, dataset):
            return
        if scope not in caller.scopes:
            text = f"token {caller.name!r} lacks scope {scope!r}; ask for a token that has it"
            raise self._refusal(caller, "scope", text, scope=scope, dataset=dataset or "")
        text = f"token {caller.name!r} is not good for dataset {_clip(dataset or '')!r}; ask for one that is"
        raise self._refusal(caller, "dataset", text, scope=scope, dataset=dataset or "")

    def check_any(self, caller: Caller, scopes: Collection[str]) -> None:
        """Raises `Refused` where the caller's token has none of these, or has expired since."""
        self._check_expiry(caller)
        if caller.scopes.isdisjoint(scopes):
            wanted = " or ".join(map(repr, scopes))
            text = f"token {caller.name!r} lacks scope {wanted}; ask for a token that has it"
            raise self._refusal(caller, "scope", text, scope=" or ".join(scopes))

    def _admit(self, token: Token | None, peer: str) -> Caller:
        address = limited_address(peer)
        with self._lock:
            known = token is not None and self._known.get((address, token.digest)) is not None
            wait = 0.0 if known else self._attempts.wait(address, self._clock(), spend=token is None)
        if wait > 0:
            text = f"too many failed attempts from {address}; try again in {math.ceil(wait)} s"
            raise self._refusal(Caller(ANONYMOUS, peer), "too many failed attempts", text)
        if token is None:
            text = "token not accepted; use one that the store's token file holds"
            raise self._refusal(Caller(ANONYMOUS, peer), "token not accepted", text)
        caller = Caller(token.name, peer, token.scopes, token.datasets, token.expires)
        self._check_expiry(caller)
        self._remember(caller, token.digest)
        return caller

    def _check_expiry(self, caller: Caller) -> None:
        if caller.expires is not None and self._clock() >= caller.expires.timestamp():
            day = caller.expires.strftime("%Y-%m-%d %H:%M UTC")
            text = f"token {caller.name!r} expired on {day}; ask for another"
            raise self._refusal(caller, "token expired", text)

    def _remember(self, caller: Caller, digest: bytes) -> None:
        with self._lock:
            pair = limited_address(caller.peer), digest
            new = self._known.get(pair) is None
            self._known.put(pair, caller.name)
        if new:
            self._audit.event("connect", caller)

    def _refusal(
        self, caller: Caller, reason: str, text: str, *, scope: str = "", dataset: str = ""
    ) -> Refused:
        self._audit.refused(caller, reason, scope=scope, dataset=dataset)
        return Refused(text)


class _Recent(Generic[K, V]):
    """The few thousand keys that were used last: strangers cannot fill the memory."""

    def __init__(self) -> None:
        self._values: OrderedDict[K, V] = OrderedDict()

    def get(self, key: K) -> V | None:
        return self._values.get(key)

    def put(self, key: K, value: V) -> None:
        self._values[key] = value
        self._values.move_to_end(key)
        if len(self._values) > REMEMBERED:
            self._values.popitem(last=False)


class _Attempts:
    """A bucket of failures per address that refills with time. The caller holds the lock."""

    def __init__(self) -> None:
        self._left: _Recent[str, tuple[float, float]] = _Recent()

    def wait(self, address: str, now: float, *, spend: bool) -> float:
        """Seconds until this address may try again, 0 where it may now; `spend` counts a failure."""
        left, since = self._left.get(address) or (float(FAILURES), now)
        # A clock that was set back refills nothing, and takes nothing away.
        left = min(FAILURES, left + max(0.0, now - since) / REFILL_SECONDS)
        if left < 1:
            return (1 - left) * REFILL_SECONDS
        if spend:
            self._left.put(address, (left - 1, now))
        return 0.0


def _secret_of(header: str) -> str | None:
    """The token in `Bearer TOKEN`; None for anything else, however long or odd."""
    if len(header) > _HEADER_BYTES:
        return None
    match = _BEARER.fullmatch(header)
    return match[1] if match else None


def _clip(text: str) -> str:
    return text if len(text) <= 64 else text[:64] + "..."
