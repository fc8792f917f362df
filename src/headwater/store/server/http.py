"""Health, metrics and predictions over HTTP: all behind the token, in a thread of the store's process.

A connection answers one request and lives a few seconds, because what has no token yet may hold nothing.
A request that is no HTTP gets 400, and one past the limit on connections 503, without a look at the token.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from headwater.errors import HeadwaterError, MissingExtra, Refused, WrongUse
from headwater.store.server.config import split_address

if TYPE_CHECKING:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp, Receive, Scope, Send
    from uvicorn.protocols.http.h11_impl import H11Protocol

MOST_CONNECTIONS = 256
"""Twice what predictions hold (`posting`), so that they keep nobody from asking for the store's health."""
HEADER_BYTES = 16 << 10
CONNECTION_SECONDS = 10.0
_CLOSE_SECONDS = 2

Identify = Callable[[str | None, str], object]
"""From the authorization header and the peer to whoever asks; raises `Refused`."""
Check = Callable[[Any], None]
"""Raises `Refused` for whoever `Identify` found, if he may not see the metrics."""
Predict = Callable[["Request", Any], Awaitable["Response"]]
"""From a request with an image, and whoever `Identify` found, to the answer."""
_CALLER = "headwater.caller"


async def predict_nothing(request: Request, caller: Any) -> Response:
    """What a server without models answers."""
    from starlette.responses import JSONResponse

    return JSONResponse({"error": "nothing is predicted here"}, 501)


class HttpServer:
    """Serves GET /health, GET /metrics and POST /predict on `address`, HOST:PORT, with TLS where a context is
    given.

    `metrics` gives the page's text, to those whom `check` does not refuse; `draining` says whether the store
    takes no more work. These and `identify` run in the server's one thread, so they must be quick, and
    `predict` must wait nowhere but where it awaits.
    """

    def __init__(
        self,
        address: str,
        *,
        identify: Identify,
        metrics: Callable[[], bytes],
        draining: Callable[[], bool],
        check: Check = lambda caller: None,
        predict: Predict = predict_nothing,
        tls: ssl.SSLContext | None = None,
        connection_seconds: float = CONNECTION_SECONDS,
    ) -> None:
        self.address = address
        self._tls = tls
        self._begun = threading.Event()
        self._thread: threading.Thread | None = None
        try:
            app = _Gate(_routes(metrics, draining, check, predict), identify)
            self._server = _server(app, tls, begun=self._note_begun, seconds=connection_seconds)
        except ImportError as error:
            raise MissingExtra(f"HTTP needs {error.name}; pip install 'headwater[serve]'") from error

    def start(self) -> int:
        """Listen, and answer in a thread; the port, which is the system's choice where 0 was asked for."""
        listener = _listen(self.address)
        port = int(listener.getsockname()[1])
        self._thread = threading.Thread(
            target=self._run, args=(listener,), name="headwater-http", daemon=True
        )
        self._thread.start()
        self._begun.wait()
        if not self._server.started:
            raise HeadwaterError(f"the HTTP server on {self.address} ended at once; see the log")
        return port

    def close(self) -> None:
        """Answer what is under way, for at most two seconds, and end the thread."""
        self._server.should_exit = True
        if self._thread is not None:
            self._thread.join()

    def _run(self, listener: socket.socket) -> None:
        with listener:
            try:
                self._server.run(sockets=[listener])
            finally:
                self._begun.set()

    async def _note_begun(self) -> None:
        self._begun.set()


class _Gate:
    """Asks who it is before anything looks at path or verb, so that no route can be forgotten."""

    def __init__(self, app: ASGIApp, identify: Identify) -> None:
        self._app = app
        self._identify = identify

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        from starlette.responses import JSONResponse

        if scope["type"] != "http":
            raise HeadwaterError(f"the HTTP server was asked for {scope['type']!r}, which it does not speak")
        answer = self._app
        try:
            scope[_CALLER] = self._identify(_authorization(scope), _peer(scope))
        except Refused as error:
            answer = JSONResponse({"error": str(error)}, 401, {"WWW-Authenticate": "Bearer"})
        await answer(scope, receive, send)


def _authorization(scope: Scope) -> str | None:
    """The header's value; of two that contradict each other none counts."""
    values = [value for name, value in scope["headers"] if name == b"authorization"]
    return values[0].decode("latin-1") if len(values) == 1 else None


def _peer(scope: Scope) -> str:
    """The other end, spelled as gRPC spells it, so that one limit on failures covers both."""
    if not scope.get("client"):
        return "unknown"
    host, port = scope["client"]
    return f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}"


def _routes(
    metrics: Callable[[], bytes],
    draining: Callable[[], bool],
    check: Check = lambda caller: None,
    predict: Predict = predict_nothing,
) -> Starlette:
    from starlette.applications import Starlette
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route

    async def health(request: Request) -> Response:
        if draining():
            return JSONResponse({"status": "draining"}, 503)
        return JSONResponse({"status": "ok"})

    async def page(request: Request) -> Response:
        check(request.scope[_CALLER])
        return Response(metrics(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def post(request: Request) -> Response:
        return await predict(request, request.scope[_CALLER])

    async def forbid(request: Request, error: Exception) -> Response:
        return JSONResponse({"error": str(error)}, 403)

    app = Starlette(
        routes=[
            Route("/health", health, methods=["GET"]),
            Route("/metrics", page, methods=["GET"]),
            Route("/predict", post, methods=["POST"]),
        ],
        exception_handlers={Refused: forbid},
    )
    app.router.redirect_slashes = False
    return app


def _server(
    app: _Gate, tls: ssl.SSLContext | None, *, begun: Callable[[], Any], seconds: float
) -> uvicorn.Server:
    import uvicorn

    config = uvicorn.Config(
        app,
        loop="asyncio",
        http=_short_lived(seconds),
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        log_level="error",
        access_log=False,
        # A header must not choose the address that failures are counted for.
        proxy_headers=False,
        server_header=False,
        headers=[("connection", "close"), ("cache-control", "no-store")],
        limit_concurrency=MOST_CONNECTIONS,
        h11_max_incomplete_event_size=HEADER_BYTES,
        timeout_keep_alive=1,
        timeout_graceful_shutdown=_CLOSE_SECONDS,
        # Called once every 30 s, and first when the server has begun.
        callback_notify=begun,
        ssl_context_factory=(lambda config, default: tls) if tls is not None else None,
    )
    return uvicorn.Server(config)


def _short_lived(seconds: float) -> type[H11Protocol]:
    """uvicorn's protocol with an end: it waits for ever for a header that comes a letter at a time."""
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class ShortLived(H11Protocol):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self.end = self.loop.call_later(seconds, transport.abort)

        def connection_lost(self, exc: Exception | None) -> None:
            self.end.cancel()
            super().connection_lost(exc)

    return ShortLived


def _listen(address: str) -> socket.socket:
    host, port = split_address(address)
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=MOST_CONNECTIONS)
    except OSError as error:
        raise WrongUse(f"cannot listen on {address}: {error.strerror}; choose another --http") from error
