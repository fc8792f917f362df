"""Predictions of one store, over HTTP; and the sealing of what it keeps, over Flight."""

from __future__ import annotations

import http.client
import ssl
import time
from dataclasses import dataclass
from urllib.parse import urlencode, urlsplit

import msgspec

from headwater.errors import HeadwaterError, Refused, StoreLost, Unreachable, WrongUse, error_named
from headwater.store.client.address import Address, Secret, is_store
from headwater.store.client.connection import Connection
from headwater.store.client.link import Link
from headwater.store.client.opening import act, choose, greet
from headwater.store.wire import messages
from headwater.store.wire.messages import InboxSeal, Prediction, SealedInbox
from headwater.store.wire.payloads import Damaged

_SCHEMES = ("http", "https")
_REST_SECONDS = 0.2
_LONGEST_REST = 5.0
_MOST_ANSWER = 1 << 20


@dataclass(frozen=True)
class Place:
    """Where a store answers over HTTP, and for which of its datasets; an empty name means its only one."""

    scheme: str
    host: str
    port: int
    dataset: str = ""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"


def find_place(uri: str, secret: Secret, link: Link) -> Place:
    """From `http[s]://HOST:PORT`, or from the address of a store, which is asked for its port.

    Raises `WrongUse`, `Unreachable`, `Refused`.
    """
    if is_store(uri):
        return _ask_for_place(Address.parse(uri), secret, link)
    try:
        parts = urlsplit(uri)
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError as error:
        raise WrongUse(f"{uri!r} is no address of a store: {error}") from error
    if parts.scheme not in _SCHEMES or not parts.hostname or parts.username or parts.query:
        raise WrongUse(f"{uri!r} is no address of a store; write grpc+tls://HOST:PORT or https://HOST:PORT")
    return Place(parts.scheme, parts.hostname, port, parts.path.strip("/"))


def _ask_for_place(address: Address, secret: Secret, link: Link) -> Place:
    connection = Connection(address, secret, link)
    try:
        welcome = greet(connection)
    finally:
        connection.close()
    if not welcome.http:
        raise Unreachable(
            f"{address.place} does not speak HTTP, which predictions need; start it with --http"
        )
    named = choose(address, welcome) if address.dataset else ""
    return Place("https" if address.scheme == "grpc+tls" else "http", address.host, welcome.http, named)


@dataclass(frozen=True)
class Inquiry:
    """What is asked of images; see `POST /predict`."""

    dataset: str = ""
    model: str = ""
    top: int = 1
    keep: bool = False

    def query(self) -> str:
        given = {"dataset": self.dataset, "model": self.model, "top": str(self.top)}
        return urlencode({name: value for name, value in given.items() if value} | {"keep": int(self.keep)})


class PredictClient:
    """Asks a store. Safe to use from many threads: each request has a connection of its own.

    A store that is busy, or does not answer, is asked again until `link.give_up_seconds` have passed; an
    image that is to be kept is kept once all the same.
    """

    def __init__(self, place: Place, secret: Secret, link: Link) -> None:
        self.place, self._secret, self._link = place, secret, link
        self._context = _trust(link) if place.scheme == "https" else None

    def predict(self, image: bytes, inquiry: Inquiry) -> Prediction:
        """Raises what the store complains of, `Refused`, `Unreachable`."""
        begun = time.monotonic()
        while True:
            try:
                return self._try(image, inquiry)
            except _Later as error:
                waited = time.monotonic() - begun
                if waited + error.rest_seconds >= self._link.give_up_seconds:
                    raise StoreLost(
                        f"no prediction from {self.place} for {waited:.0f} s; the last failure: {error}",
                        store=str(self.place),
                    ) from error
                time.sleep(error.rest_seconds)

    def _try(self, image: bytes, inquiry: Inquiry) -> Prediction:
        try:
            status, headers, body = self._post(image, f"/predict?{inquiry.query()}")
        except ssl.SSLCertVerificationError as error:
            raise Unreachable(
                f"the certificate of {self.place} is not trusted: {error.verify_message}; give what signed "
                "it as --ca"
            ) from error
        except (OSError, http.client.HTTPException) as error:
            raise _Later(f"{self.place}: {error or type(error).__name__}") from error
        if status == 200:
            return _read(body)
        raise self._complaint(status, headers.get("Retry-After", ""), body)

    def _post(self, image: bytes, path: str) -> tuple[int, http.client.HTTPMessage, bytes]:
        connection = self._connect()
        headers = {name.decode(): value.decode() for name, value in self._secret.headers}
        try:
            connection.request("POST", path, image, {"Content-Type": "application/octet-stream", **headers})
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read(_MOST_ANSWER)
        finally:
            connection.close()

    def _connect(self) -> http.client.HTTPConnection:
        seconds, place = self._link.deadline_seconds, self.place
        if self._context is None:
            return http.client.HTTPConnection(place.host, place.port, timeout=seconds)
        return http.client.HTTPSConnection(place.host, place.port, timeout=seconds, context=self._context)

    def _complaint(self, status: int, retry: str, body: bytes) -> HeadwaterError:
        text, kind = _told(body)
        if status in (401, 403):
            return Refused(f"{self.place} refuses: {text}")
        if status in (500, 502, 503, 504):  # also of a proxy, or of a server that is ending
            seconds = float(retry) if retry.isdigit() else _REST_SECONDS
            return _Later(f"{self.place}: {text or status}", min(seconds, _LONGEST_REST))
        if not kind:
            return HeadwaterError(f"{self.place} answers {status} to /predict; is it the HTTP of a store?")
        return error_named(kind, text) or HeadwaterError(text)


class _Later(HeadwaterError):
    """May be answered if it is asked again."""

    def __init__(self, reason: str, rest_seconds: float = _REST_SECONDS) -> None:
        super().__init__(reason)
        self.rest_seconds = rest_seconds


def seal(connection: Connection, dataset: str) -> SealedInbox:
    """Make what was kept of a dataset a version of its inbox. Raises `Unreachable`, `Refused`."""
    asked = messages.encode(InboxSeal(dataset))
    return act(connection, "inbox_seal", asked, read=_read_sealed)


def _read_sealed(answer: bytes) -> SealedInbox:
    try:
        found: SealedInbox = messages.decode(SealedInbox, answer)
    except HeadwaterError as error:
        raise Damaged(str(error)) from error
    return found


def _read(body: bytes) -> Prediction:
    try:
        return msgspec.json.decode(body, type=Prediction)
    except msgspec.MsgspecError as error:
        raise _Later(f"an answer that is none: {error}") from error


def _told(body: bytes) -> tuple[str, str]:
    """Text and kind of a complaint; empty where it is none of a store's."""
    try:
        found = msgspec.json.decode(body, type=dict[str, str])
    except msgspec.MsgspecError:
        return "", ""
    return found.get("error", ""), found.get("kind", "")


def _trust(link: Link) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=link.ca)
        if link.cert is not None:
            context.load_cert_chain(link.cert, link.key)
    except (OSError, ssl.SSLError) as error:
        raise WrongUse(f"a certificate cannot be used: {error}; check --ca, --cert and --key") from error
    return context
