"""No door of a store opens to those who do not belong: every call of Flight and every route of HTTP, tried
with each kind of bad token, with bad certificates and without TLS.

The doors are made from what exists (see `visitors`), so that whatever is added is tried too, or fails here.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.flight as flight
import pytest

import headwater as hw
from datasets import make_photo
from headwater.store.server.service import Service
from headwater.store.server.tokens import SCOPES
from headwater.store.wire.messages import ACTIONS, SCOPE_OF_ACTION
from held import keep_selection, make_state
from stores import Certificates, StoreProcess, make_certificates, write_tokens
from visitors import (
    ANY_READER,
    ANY_TOKEN,
    BODIES,
    CALLS,
    FAILURES_OF_FLIGHT,
    INTERNALS,
    NOT_SERVED,
    Requests,
    Visitor,
    ask,
    requests_for,
    routes,
    text_of,
)

TOKENS: dict[str, dict[str, object]] = {
    "trainer": {"scopes": list(SCOPES)},
    "expired": {"scopes": list(SCOPES), "expires": datetime(2020, 1, 1, tzinfo=UTC)},
    "labeller": {"scopes": ["labels", "jobs", "models"]},
    "elsewhere": {"scopes": ["read"], "datasets": ["others"]},
}
NOT_CALLS = {"port", "run", "serve", "shutdown", "wait"}
"""Methods of `FlightServerBase` that nobody can call from outside."""
PHOTO = make_photo(np.random.default_rng(0), 40, 50)
NO_ROUTES = ("/", "/nothing", "/metrics/..%2fhealth")
QUERIES = {"/predict": "?dataset=photos"}
DOORS = (
    *CALLS,
    *(f"{verb} {path}{QUERIES.get(path, '')}" for verb, path in routes()),
    *(f"GET {path}" for path in NO_ROUTES),
)
WALLS = {*NOT_SERVED, *(f"GET {path}" for path in NO_ROUTES)}
"""What opens to nobody."""
WALL = r"does not speak that part|no action is called|shows nobody a schema|not have an authentication|^404 "
OPEN_TO_ANY_TOKEN = ANY_TOKEN | {"GET /health"}
OPEN_TO_ANY_READER = OPEN_TO_ANY_TOKEN | ANY_READER | {"GET /metrics"}
OPEN_TO_LABELLER = OPEN_TO_ANY_TOKEN | {
    f"do_action {name}"
    for name, scopes in SCOPE_OF_ACTION.items()
    if {"labels", "jobs", "models"} & {*scopes}
}


class TurnedAway(Exception):
    """HTTP answered, and not with 200."""


@dataclass(frozen=True)
class Caller:
    """Who knocks, with which token and files (without `ca` there is no TLS), and what he is told."""

    told: str = ""
    token: str | None = "trainer"
    ca: str | None = "ca"
    papers: str | None = "client"


RIGHT = Caller()
HUNG_UP = "(?i)unavailable error|closed|reset|eof|alert|broken pipe"
OUTSIDERS = {
    "wrong CA": Caller("(?i)certificate.verify.failed", ca="other_ca"),
    "no certificate": Caller(HUNG_UP, papers=None),
    "another authority's certificate": Caller(HUNG_UP, papers="other"),
    "plaintext": Caller(HUNG_UP, ca=None, papers=None),
}
UNKNOWN = {
    "no token": Caller("no token; send one", token=None),
    "expired token": Caller("'expired' expired on 2020-01-01", token="expired"),
    # The last, because it uses up what an address may get wrong: after that, others would be told so instead.
    "wrong token": Caller("token not accepted|too many failed attempts", token="stranger"),
}
LESSER = {
    "wrong scope": (Caller("lacks scope", token="labeller"), OPEN_TO_LABELLER),
    "wrong dataset": (
        Caller(
            "lacks scope '(admin|models|jobs|labels|forget)'|not good for dataset 'photos'", token="elsewhere"
        ),
        OPEN_TO_ANY_READER,
    ),
}


def secret_of(name: str) -> str:
    return f"{name}-{'x' * 24}"


@dataclass(frozen=True)
class Castle:
    """A store in a process of its own with tokens, mutual TLS and HTTP, and good requests to it."""

    store: StoreProcess
    certificates: Certificates
    requests: Requests
    audit: Path

    def knock(self, door: str, caller: Caller) -> object:
        """The answer, if there is one, on a connection of its own."""
        token = None if caller.token is None else secret_of(caller.token)
        verb, _, path = door.partition(" ")
        if verb in ("GET", "POST"):
            return self._fetch(verb, path, token, self._context(caller))
        scheme = "grpc+tls" if caller.ca else "grpc"
        address = f"{scheme}://127.0.0.1:{self.store.port}"
        with Visitor(address, token, **self._flight_arguments(caller)) as visitor:
            return CALLS[door](visitor, self.requests)

    def file(self, name: str) -> Path:
        found: Path = getattr(self.certificates, name)
        return found

    def _fetch(self, verb: str, path: str, token: str | None, context: ssl.SSLContext | None) -> bytes:
        image = PHOTO if verb == "POST" else None
        status, body = ask(self.store.http, verb, path, token, image=image, context=context)
        if status != 200:
            raise TurnedAway(f"{status} {body.decode()}")
        return body

    def _context(self, caller: Caller) -> ssl.SSLContext | None:
        if caller.ca is None:
            return None
        context = ssl.create_default_context(cafile=str(self.file(caller.ca)))
        if caller.papers:
            context.load_cert_chain(self.file(f"{caller.papers}_cert"), self.file(f"{caller.papers}_key"))
        return context

    def _flight_arguments(self, caller: Caller) -> dict[str, Any]:
        named = {"tls_root_certs": caller.ca} if caller.ca else {}
        if caller.papers:
            named |= {"cert_chain": f"{caller.papers}_cert", "private_key": f"{caller.papers}_key"}
        return {argument: self.file(name).read_bytes() for argument, name in named.items()}


@pytest.fixture(scope="module")
def castle(
    tmp_path_factory: pytest.TempPathFactory, photo_folder: Path, photo_tars: Path
) -> Iterator[Castle]:
    folder = tmp_path_factory.mktemp("castle")
    certificates, audit = make_certificates(folder / "certificates"), folder / "audit.jsonl"
    tokens = write_tokens(folder, **{name: {"secret": secret_of(name), **TOKENS[name]} for name in TOKENS})
    with StoreProcess(
        {"photos": photo_folder, "others": photo_tars},
        environment={},
        http="127.0.0.1:0",
        token_file=tokens,
        audit_log=audit,
        state=make_state(folder / "state"),
        **certificates.serve_mutual,
    ) as store:
        index = hw.open(photo_folder).index
        keep_selection(folder / "state", index.version)
        requests = requests_for("photos", index.version, index.ids[:2].tobytes())
        yield Castle(store, certificates, requests, audit)


def expect_refusal(castle: Castle, door: str, caller: Caller) -> Exception:
    """Nothing comes back but an error, and it tells nothing of the store's inside."""
    with pytest.raises((*FAILURES_OF_FLIGHT, TurnedAway)) as caught:
        castle.knock(door, caller)
    assert not [word for word in INTERNALS if word in text_of(caught.value)]
    error: Exception = caught.value
    return error


def methods_of_flight() -> set[str]:
    """All that the library answers to, as pyarrow would spell them; pyarrow itself does not know them all."""
    (library,) = [
        found for folder in pa.get_library_dirs() for found in Path(folder).glob("libarrow_flight.so*")
    ]
    found = re.findall(rb"/arrow\.flight\.protocol\.FlightService/(\w+)", library.read_bytes())
    return {re.sub(r"(?<!^)(?=[A-Z])", "_", name.decode()).lower() for name in found}


def test_every_door_is_known() -> None:
    tried = {name.partition(" ")[0] for name in CALLS}
    assert tried == methods_of_flight()
    assert tried >= {name.lower() for name in dir(flight.FlightMethod) if name.isupper()} - {"invalid"}
    served = {name for name in dir(flight.FlightServerBase) if not name.startswith("_")} - NOT_CALLS
    assert served == tried - {"handshake", "poll_flight_info"}
    assert served <= set(vars(Service)), "a method that the service leaves to Flight asks no guard"
    assert set(SCOPE_OF_ACTION) == set(BODIES) == set(ACTIONS)
    assert SCOPE_OF_ACTION == {
        "hello": (),
        "health": (),
        "status": ("read", "admin"),
        "release": ("admin",),
        "models": ("models", "read"),
        "model_offer": ("models",),
        "model_part": ("models",),
        "model_take": ("models",),
        "model_switch": ("models",),
        "model_rollback": ("models",),
        "jobs": ("jobs",),
        "job_start": ("jobs",),
        "job_stop": ("jobs",),
        "inbox_seal": ("admin",),
        "forget": ("forget",),
        "model_seal": ("models",),
    }


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("outsider", OUTSIDERS)
def test_tls_keeps_out_whoever_has_a_good_token_only(castle: Castle, outsider: str, door: str) -> None:
    error = expect_refusal(castle, door, OUTSIDERS[outsider])
    # Flight's client does not tell why a handshake came to nothing.
    told = "Could not finish writing" if door == "handshake" else OUTSIDERS[outsider].told
    assert re.search(told, text_of(error))
    assert not isinstance(error, TurnedAway), "HTTP answered"
    assert not re.search(WALL, text_of(error)), "Flight answered"
    assert "trainer" not in castle.audit.read_text(), "the store has looked at the token"


@pytest.mark.parametrize("door", DOORS)
def test_the_right_caller_is_answered(castle: Castle, door: str) -> None:
    """The control: the token and the requests of the outsiders are good."""
    if door in WALLS:
        assert re.search(WALL, text_of(expect_refusal(castle, door, RIGHT)))
        return
    assert castle.knock(door, RIGHT)
    assert "trainer" in castle.audit.read_text()


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("caller", LESSER)
def test_a_lesser_token_opens_nothing_more(castle: Castle, caller: str, door: str) -> None:
    who, may = LESSER[caller]
    if door in may:
        answer = castle.knock(door, who)
        assert answer
        told = answer if isinstance(answer, bytes) else repr(answer).encode()
        # who may start jobs on a dataset may know of them
        assert b"photos" not in told or (who.token == "labeller" and "do_action job" in door)
        return
    error = expect_refusal(castle, door, who)
    assert re.search(WALL if door in WALLS else who.told, text_of(error))
    if door not in WALLS:
        assert isinstance(error, flight.FlightUnauthorizedError) or str(error).startswith("403 ")


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("caller", UNKNOWN)
def test_no_door_opens_without_a_token_that_is_good(castle: Castle, caller: str, door: str) -> None:
    error = expect_refusal(castle, door, UNKNOWN[caller])
    if door in ("get_schema", "handshake", "poll_flight_info"):  # refused before anybody asks for a token
        assert re.search(WALL, text_of(error))
        return
    assert re.search(UNKNOWN[caller].told, text_of(error))
    assert isinstance(error, flight.FlightUnauthenticatedError) or str(error).startswith("401 ")
