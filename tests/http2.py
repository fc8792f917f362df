"""A call of gRPC by hand, for the methods that Flight's own client cannot call."""

from __future__ import annotations

import contextlib
import re
import socket
import ssl
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _SETTINGS = 0, 1, 4
_END_STREAM, _END_HEADERS = 1, 4
_EMPTY_MESSAGE = bytes(5)  # not compressed, no bytes


class Denied(OSError):
    """The call ended, and not with status 0."""


def call(address: str, path: str, token: str | None, *, seconds: float, **tls: bytes) -> bytes:
    """Send one empty message to `path`; what comes back. `tls` as for a FlightClient.

    Raises `Denied` for a status that is not 0, and `OSError` where the connection ends without any.
    """
    place = urlsplit(address)
    with _connect(place.hostname or "", place.port or 0, seconds, tls) as connection:
        headers = _headers(path, token, secure=place.scheme == "grpc+tls")
        connection.sendall(
            _PREFACE
            + _frame(_SETTINGS, 0, 0, b"")
            + _frame(_HEADERS, _END_HEADERS, 1, headers)
            + _frame(_DATA, _END_STREAM, 1, _EMPTY_MESSAGE)
        )
        return _read_reply(connection)


def _headers(path: str, token: str | None, *, secure: bool) -> bytes:
    """Each written out, with lengths that fit into seven bits."""
    found = {
        ":method": "POST",
        ":scheme": "https" if secure else "http",
        ":path": path,
        ":authority": "localhost",
        "content-type": "application/grpc",
        "te": "trailers",
    }
    if token is not None:
        found["authorization"] = f"Bearer {token}"
    return b"".join(b"\0" + _text(name) + _text(value) for name, value in found.items())


def _text(words: str) -> bytes:
    assert len(words) < 127
    return bytes([len(words)]) + words.encode()


def _frame(kind: int, flags: int, stream: int, body: bytes) -> bytes:
    return struct.pack(">I", len(body))[1:] + struct.pack(">BBI", kind, flags, stream) + body


def _read_reply(connection: socket.socket) -> bytes:
    """The store's gRPC writes headers out as well, so that they can be searched as they are."""
    said, ended = b"", False
    with connection.makefile("rb") as stream:
        while not ended:
            head = stream.read(9)
            if len(head) < 9:
                raise ConnectionResetError(f"the connection was closed after {said!r}")
            body = stream.read(int.from_bytes(head[:3], "big"))
            said += body if head[8] else b""
            ended = bool(head[8] and head[3] == _HEADERS and head[4] & _END_STREAM)
    status = re.search(rb"grpc-status.(\d+)", said, re.DOTALL)
    if status is None or status[1] != b"0":
        raise Denied(said.decode(errors="replace"))
    return said


@contextlib.contextmanager
def _connect(host: str, port: int, seconds: float, tls: dict[str, bytes]) -> Iterator[socket.socket]:
    with contextlib.ExitStack() as stack:
        made: socket.socket = stack.enter_context(socket.create_connection((host, port), seconds))
        if tls:
            made = stack.enter_context(_context(tls).wrap_socket(made, server_hostname=host))
        yield made


def _context(tls: dict[str, bytes]) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=tls["tls_root_certs"].decode())
    context.set_alpn_protocols(["h2"])
    if "cert_chain" in tls:
        with tempfile.TemporaryDirectory() as folder:
            pem = Path(folder, "own.pem")
            pem.write_bytes(tls["private_key"] + tls["cert_chain"])
            context.load_cert_chain(pem)
    return context
