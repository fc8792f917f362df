from __future__ import annotations

import http.client
import json
import logging
import socket
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import trustme

from headwater.errors import Refused, WrongUse
from headwater.store.server.http import HEADER_BYTES, MOST_CONNECTIONS, HttpServer

RIGHT = "Bearer the-right-token-of-this-test"
PATHS = [
    "/health",
    "/metrics",
    "/predict",
    "/",
    "/nothing",
    "/health/",
    "/metrics/..",
    "/%2e%2e/health",
    "*",
    "//health",
]
VERBS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND"]
PAGE = b"# HELP a b\na 1\n"


@dataclass
class Store:
    """What the server is told, and what it asked."""

    draining: bool = False
    peers: list[str] = field(default_factory=list)
    metrics: Callable[[], bytes] = lambda: PAGE

    def identify(self, authorization: str | None, peer: str) -> object:
        self.peers.append(peer)
        if authorization is None:
            raise Refused("no token")
        if authorization != RIGHT:
            raise Refused("token not accepted")
        return "caller"


@contextmanager
def running(store: Store, address: str = "127.0.0.1:0", **options: Any) -> Iterator[int]:
    server = HttpServer(
        address,
        identify=store.identify,
        metrics=lambda: store.metrics(),
        draining=lambda: store.draining,
        **options,
    )
    before = set(threading.enumerate())
    port = server.start()
    try:
        yield port
    finally:
        server.close()
        assert set(threading.enumerate()) <= before, "a thread was left behind"


@pytest.fixture(scope="module")
def shared() -> Iterator[tuple[Store, int]]:
    store = Store()
    with running(store) as port:
        yield store, port


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes


def ask(
    port: int, path: str, *, verb: str = "GET", authorization: str | None = RIGHT, host: str = "127.0.0.1"
) -> Answer:
    connection = http.client.HTTPConnection(host, port, timeout=10)
    headers = {} if authorization is None else {"Authorization": authorization}
    try:
        connection.request(verb, path, headers=headers)
        response = connection.getresponse()
        names = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, names, response.read())
    finally:
        connection.close()


@pytest.mark.parametrize("verb", VERBS)
def test_nothing_answers_without_a_token(shared: tuple[Store, int], verb: str) -> None:
    for path in PATHS:
        for authorization in (None, "", "Bearer wrong", RIGHT.lower(), "Basic eDp5", "Bearer \xff"):
            answer = ask(shared[1], path, verb=verb, authorization=authorization)
            assert answer.status == 401, (path, authorization)
            assert answer.headers["www-authenticate"] == "Bearer"
            assert PAGE not in answer.body
            if verb != "HEAD":
                assert json.loads(answer.body)["error"] in ("no token", "token not accepted")
                assert b"\n" not in answer.body


def test_health_and_metrics_answer_to_the_token(shared: tuple[Store, int]) -> None:
    health, metrics = ask(shared[1], "/health"), ask(shared[1], "/metrics")
    assert (health.status, json.loads(health.body)) == (200, {"status": "ok"})
    assert (metrics.status, metrics.body) == (200, PAGE)
    assert metrics.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert "server" not in metrics.headers


def test_a_plain_client_is_enough(shared: tuple[Store, int]) -> None:
    request = urllib.request.Request(f"http://127.0.0.1:{shared[1]}/health", headers={"Authorization": RIGHT})
    with urllib.request.urlopen(request, timeout=10) as response:
        assert json.load(response) == {"status": "ok"}


@pytest.mark.parametrize("path", [path for path in PATHS if path not in ("/health", "/metrics", "/predict")])
def test_there_is_nothing_else(shared: tuple[Store, int], path: str) -> None:
    assert ask(shared[1], path).status == 404


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb not in ("GET", "HEAD")])
def test_there_is_nothing_to_change(shared: tuple[Store, int], verb: str) -> None:
    assert ask(shared[1], "/health", verb=verb).status == 405
    assert ask(shared[1], "/metrics", verb=verb).status == 405


def test_a_store_that_drains_is_not_healthy(shared: tuple[Store, int]) -> None:
    store, port = shared
    store.draining = True
    try:
        answer = ask(port, "/health")
        assert (answer.status, json.loads(answer.body)) == (503, {"status": "draining"})
        assert ask(port, "/metrics").status == 200
    finally:
        store.draining = False


def test_a_refusal_after_the_token_is_403(shared: tuple[Store, int]) -> None:
    store, port = shared

    def refuse() -> bytes:
        raise Refused("token 'trainer' lacks scope 'admin'")

    store.metrics = refuse
    try:
        answer = ask(port, "/metrics")
        assert (answer.status, json.loads(answer.body)["error"]) == (
            403,
            "token 'trainer' lacks scope 'admin'",
        )
    finally:
        store.metrics = lambda: PAGE


def test_no_traceback_reaches_a_client(shared: tuple[Store, int], caplog: pytest.LogCaptureFixture) -> None:
    store, port = shared

    def fail() -> bytes:
        raise RuntimeError("an inner secret")

    store.metrics = fail
    try:
        answer = ask(port, "/metrics")
        assert answer.status == 500
        assert b"secret" not in answer.body
        assert b"Traceback" not in answer.body
    finally:
        store.metrics = lambda: PAGE
    assert ask(port, "/metrics").status == 200


def test_a_header_does_not_choose_the_peer(shared: tuple[Store, int]) -> None:
    store, port = shared
    store.peers.clear()
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/health",
        headers={"X-Forwarded-For": "10.9.9.9", "Forwarded": "for=10.9.9.9"},
    )
    with pytest.raises(urllib.error.HTTPError, match="401") as caught:
        urllib.request.urlopen(request, timeout=10)
    caught.value.close()
    (peer,) = store.peers
    assert peer.startswith("ipv4:127.0.0.1:")


def test_ipv6_peers_are_spelled_as_by_grpc() -> None:
    store = Store()
    try:
        with running(store, "[::1]:0") as port:
            assert ask(port, "/health", host="::1").status == 200
    except WrongUse:
        pytest.skip("this machine has no IPv6")
    assert store.peers[0].startswith("ipv6:[::1]:")


def send(port: int, data: bytes) -> bytes:
    """Everything that comes back until the server closes."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as link:
        link.sendall(data)
        return b"".join(iter(lambda: link.recv(65536), b""))


def test_two_tokens_are_none(shared: tuple[Store, int]) -> None:
    head = f"GET /health HTTP/1.1\r\nHost: x\r\nAuthorization: {RIGHT}\r\nAuthorization: Bearer y\r\n\r\n"
    assert send(shared[1], head.encode()).startswith(b"HTTP/1.1 401 ")


def test_a_connection_answers_once(shared: tuple[Store, int]) -> None:
    head = f"GET /health HTTP/1.1\r\nHost: x\r\nAuthorization: {RIGHT}\r\n\r\n".encode()
    assert send(shared[1], head * 3).count(b"HTTP/1.1 200 ") == 1


@pytest.mark.parametrize(
    "data",
    [
        b"GET /health HTTP/1.1\r\nX: " + b"a" * (2 * HEADER_BYTES),
        b"\x16\x03\x01\x02\x00\x01",
        b"GET /\xff HTTP/1.1\r\n\r\n",
    ],
    ids=["giant header", "TLS hello", "bytes"],
)
def test_what_is_no_http_is_400_and_gone(shared: tuple[Store, int], data: bytes) -> None:
    answer = send(shared[1], data + b"\r\n\r\n")
    assert answer == b"" or answer.startswith(b"HTTP/1.1 400 ")
    assert ask(shared[1], "/health").status == 200


def test_a_body_is_not_waited_for(shared: tuple[Store, int]) -> None:
    head = b"POST /health HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000\r\n\r\n"
    assert send(shared[1], head).startswith(b"HTTP/1.1 401 ")


def test_an_upgrade_is_an_ordinary_request(shared: tuple[Store, int]) -> None:
    head = b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    assert send(shared[1], head).startswith(b"HTTP/1.1 401 ")


def test_a_header_that_does_not_end_is_cut_off() -> None:
    with running(Store(), connection_seconds=0.2) as port:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as link:
            link.sendall(b"GET /health HTTP/1.1\r\nX: ")
            assert link.recv(1) == b""
        assert ask(port, "/health").status == 200


def test_connections_are_counted() -> None:
    with running(Store()) as port, ExitStack() as idle:
        for _ in range(MOST_CONNECTIONS):
            idle.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10))
        assert ask(port, "/metrics").status == 503


def test_closing_does_not_wait_for_an_idle_connection() -> None:
    with running(Store()) as port:
        link = socket.create_connection(("127.0.0.1", port), timeout=10)
        assert ask(port, "/health").status == 200
    with link:
        assert link.recv(1) == b""


def test_a_token_reaches_no_log(shared: tuple[Store, int], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        ask(shared[1], "/health")
        ask(shared[1], "/health", authorization="Bearer a-wrong-token")
        send(shared[1], b"Authorization: Bearer a-broken-token\r\n\r\n")
    assert "token" not in caplog.text


def test_a_port_that_is_taken_is_wrong_use(shared: tuple[Store, int]) -> None:
    with (
        pytest.raises(WrongUse, match=f"cannot listen on 127.0.0.1:{shared[1]}"),
        running(Store(), f"127.0.0.1:{shared[1]}"),
    ):
        pass


def context(ca: trustme.CA, *, mutual: bool) -> ssl.SSLContext:
    found = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert("127.0.0.1").configure_cert(found)
    if mutual:
        ca.configure_trust(found)
        found.verify_mode = ssl.CERT_REQUIRED
    return found


def ask_tls(port: int, client: ssl.SSLContext) -> int:
    request = urllib.request.Request(f"https://127.0.0.1:{port}/health", headers={"Authorization": RIGHT})
    with urllib.request.urlopen(request, timeout=10, context=client) as response:
        return int(response.status)


def trusting(ca: trustme.CA) -> ssl.SSLContext:
    client = ssl.create_default_context()
    ca.configure_trust(client)
    return client


def test_tls_is_spoken_and_plaintext_is_not() -> None:
    ca = trustme.CA()
    store = Store()
    with running(store, tls=context(ca, mutual=False)) as port:
        assert ask_tls(port, trusting(ca)) == 200
        with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
            ask_tls(port, trusting(trustme.CA()))
        assert b"200" not in send(port, f"GET /health HTTP/1.1\r\nAuthorization: {RIGHT}\r\n\r\n".encode())
    assert len(store.peers) == 1


def test_mutual_tls_refuses_before_it_looks_at_anything() -> None:
    ca, stranger = trustme.CA(), trustme.CA()
    store = Store()
    with running(store, tls=context(ca, mutual=True)) as port:
        for issuer in (None, stranger):
            client = trusting(ca)
            if issuer is not None:
                issuer.issue_cert("client").configure_cert(client)
            # TLS 1.3 tells the client only when it reads, as an alert or a reset.
            with pytest.raises(OSError, match=r"(?i)ssl|reset|closed|EOF"):
                ask_tls(port, client)
        assert store.peers == []
        client = trusting(ca)
        ca.issue_cert("client").configure_cert(client)
        assert ask_tls(port, client) == 200
