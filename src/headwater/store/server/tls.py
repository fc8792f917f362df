"""Certificates and exposure: what a server needs to speak TLS, and where it may listen without."""

from __future__ import annotations

import logging
import os
import re
import socket
import ssl
import stat
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import NoReturn, TypedDict

from headwater.errors import Refused, WrongUse
from headwater.store.server.peers import as_address

log = logging.getLogger("headwater")

WARN_DAYS = 14
_PEM = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_UTC_TIME, _GENERALIZED_TIME, _VERSION_TAG = 0x17, 0x18, 0xA0


class FlightTls(TypedDict, total=False):
    """Arguments of `pyarrow.flight.FlightServerBase`."""

    tls_certificates: list[tuple[bytes, bytes]]
    verify_client: bool
    root_certificates: bytes


@dataclass(frozen=True)
class TlsFiles:
    """Paths of PEM files: the server's chain and key, and the authority that clients' certificates need.

    `check`, `flight_arguments` and `ssl_context` read the files; they raise `WrongUse` for files that
    cannot be right and `Refused` for a key that others may read or a certificate that has expired.
    """

    cert: Path | None = None
    key: Path | None = None
    client_ca: Path | None = None

    def __post_init__(self) -> None:
        if (self.cert is None) != (self.key is None):
            given, missing = ("--tls-cert", "--tls-key") if self.cert else ("--tls-key", "--tls-cert")
            raise WrongUse(f"{given} is given without {missing}; TLS needs both")
        if self.client_ca is not None and self.cert is None:
            raise WrongUse("--tls-client-ca is given without --tls-cert and --tls-key; it needs both")

    def __bool__(self) -> bool:
        return self.cert is not None

    def check(self, *, now: float | None = None) -> None:
        """Refuse what could not work, and warn of a certificate that ends soon."""
        if self.cert is None:
            return
        self._context()
        end = min(ends_of(self.cert))
        days = (end.timestamp() - (time.time() if now is None else now)) / 86400
        if days <= 0:
            raise Refused(f"certificate {self.cert} expired on {end:%Y-%m-%d %H:%M} UTC; renew it")
        if days < WARN_DAYS:
            log.warning("certificate %s expires on %s UTC; renew it", self.cert, f"{end:%Y-%m-%d %H:%M}")

    def flight_arguments(self) -> FlightTls:
        """What `FlightServerBase` takes; nothing where there is no certificate."""
        if self.cert is None or self.key is None:
            return {}
        self._context()
        found = FlightTls(tls_certificates=[(_read(self.cert), _read(self.key))])
        if self.client_ca is not None:
            found["verify_client"] = True
            found["root_certificates"] = _read(self.client_ca)
        return found

    def ssl_context(self) -> ssl.SSLContext | None:
        """The same for HTTP; None where there is no certificate."""
        return None if self.cert is None else self._context()

    def _context(self) -> ssl.SSLContext:
        assert self.cert is not None
        assert self.key is not None
        _check_key(self.key)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        _load_chain(context, self.cert, self.key)
        if self.client_ca is not None:
            _load_authority(context, self.client_ca)
        return context


def check_exposure(host: str, *, tls: bool, tokens: bool, plaintext: bool) -> None:
    """Refuse to listen beyond this machine without token and TLS, unless `plaintext` says it is meant."""
    lacks = [name for name, there in (("a token", tokens), ("TLS", tls)) if not there]
    if not lacks or is_local(host):
        return
    place, without = host or "every interface", " and ".join(lacks)
    if not plaintext:
        raise Refused(
            f"{place} is beyond loopback, and the store would listen there without {without}; "
            "give --token-file, --tls-cert and --tls-key, or --plaintext on a closed network"
        )
    may = "read and change what it serves" if not tokens else "listen in, and take the tokens"
    log.warning("listening on %s without %s: whoever reaches it may %s", place, without, may)


def is_local(host: str) -> bool:
    """Whether only this machine reaches it. A name is local if all its addresses are; "" is all of them."""
    if host.startswith(("unix:", "/")):
        return True
    host = host.removeprefix("[").removesuffix("]")
    if not host:
        return False
    address = as_address(host)
    if address is not None:
        return address.is_loopback
    try:
        found = {str(info[4][0]) for info in socket.getaddrinfo(host, None)}
    except (OSError, UnicodeError) as error:
        raise WrongUse(f"host {host!r} has no address here ({error}); name one of this machine's") from None
    addresses = [as_address(text.partition("%")[0]) for text in found]
    return all(address is not None and address.is_loopback for address in addresses)


def ends_of(cert: Path) -> list[datetime]:
    """When each certificate of a PEM file ends; a chain is as good as its first to end."""
    blocks = _PEM.findall(_read(cert).decode("ascii", "replace"))
    try:
        ends = [_end_of(ssl.PEM_cert_to_DER_cert(block)) for block in blocks]
    except (ValueError, IndexError):
        ends = []
    if not ends:
        raise WrongUse(f"certificate {cert} is not a PEM certificate; give the server's chain as PEM")
    return ends


def _end_of(der: bytes) -> datetime:
    """`notAfter`, which Python's ssl tells only of certificates that it has verified.

    Certificate > tbsCertificate > [0] version, serial, algorithm, issuer, validity > notBefore, notAfter.
    """
    _, begin, _ = _element(der, 0)
    _, begin, _ = _element(der, begin)
    tag, _, end = _element(der, begin)
    fields = 4 if tag == _VERSION_TAG else 3
    for _ in range(fields - 1):
        _, _, end = _element(der, end)
    _, begin, _ = _element(der, end)
    _, _, end = _element(der, begin)
    tag, begin, end = _element(der, end)
    text = der[begin:end].decode("ascii")
    if tag == _UTC_TIME:
        # RFC 5280: two digits mean 1950 to 2049.
        text = ("19" if text >= "50" else "20") + text
    elif tag != _GENERALIZED_TIME:
        raise ValueError("no time where notAfter belongs")
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)


def _element(der: bytes, at: int) -> tuple[int, int, int]:
    """Tag, first byte of the content and first byte after it."""
    tag, length, begin = der[at], der[at + 1], at + 2
    if length >= 0x80:
        count = length & 0x7F
        length = int.from_bytes(der[begin : begin + count], "big")
        begin += count
    return tag, begin, begin + length


def _load_chain(context: ssl.SSLContext, cert: Path, key: Path) -> None:
    _read(cert)
    try:
        # Without a password function OpenSSL would ask at the terminal, and a daemon would hang there.
        context.load_cert_chain(cert, key, password=lambda: _refuse_password(key))
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise WrongUse(f"certificate {cert} and key {key} do not belong together") from None
        raise WrongUse(f"certificate {cert} or key {key} is not PEM ({error.reason})") from None


def _load_authority(context: ssl.SSLContext, client_ca: Path) -> None:
    _read(client_ca)
    try:
        context.load_verify_locations(client_ca)
    except ssl.SSLError as error:
        raise WrongUse(f"authority {client_ca} is not a PEM certificate ({error.reason})") from None
    context.verify_mode = ssl.CERT_REQUIRED


def _refuse_password(key: Path) -> NoReturn:
    raise WrongUse(f"key {key} is encrypted, and nobody is there to type a password; decrypt it, chmod 600")


def _check_key(key: Path) -> None:
    """Others may not touch it; a group may read it, as the certificates' group of many systems does."""
    try:
        mode = os.stat(key).st_mode
    except OSError as error:
        raise WrongUse(f"{key} cannot be read: {error.strerror}") from None
    if stat.S_ISREG(mode) and mode & 0o037:
        allowed = f"{stat.S_IMODE(mode):03o}"
        raise Refused(f"key {key} has mode {allowed}, others may use it; run `chmod 600 {key}`")
    _read(key)


def _read(path: Path) -> bytes:
    try:
        if not path.is_file():
            raise WrongUse(f"{path} is not a file; give a PEM file")
        return path.read_bytes()
    except OSError as error:
        raise WrongUse(f"{path} cannot be read: {error.strerror}") from None
