"""The HTTP port: plain HTTP and TLS on one and the same socket; administration, health, metrics, AMQP over WebSocket.

Sockets are accepted here and looked at before anybody reads them: a first byte of 0x16 is a TLS ClientHello, anything
else is plain HTTP (HTTP contract 1.6: some clients insist on TLS, some on plain, all on the same port). Then aiohttp's protocol
takes over. Bounded: connections, the wait for the first byte and for the handshake, header sizes, bodies.

`start` binds, `run` accepts until `stop`, which lets open requests finish for `shutdown_timeout_ms`. Knows routes, no
XML and no AMQP: a WebSocket is handed to `serve_websocket` as it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Awaitable, Callable, Collection

import structlog
from aiohttp import HttpVersion11, web

from broker.clock import Clock
from broker.config import Settings
from broker.errors import Refused
from broker.http.admin import Administration
from broker.http.health import HealthHandler
from broker.http.metrics import MetricsHandler
from broker.http.refusals import HttpRefusal, refusal_of
from broker.http.seams import TokenVerifier
from broker.http.sites import Sites
from broker.metrics import Metrics
from broker.namespace import Namespace
from broker.sockets import listen

log = structlog.get_logger("http")

WEBSOCKET_PATH = "/$servicebus/websocket"
WEBSOCKET_PROTOCOLS = ("AMQPWSB10", "amqp")
"""AMQPWSB10 is what the SDKs ask for; `amqp` is the one of the OASIS binding."""
TLS_HANDSHAKE = b"\x16"
_BACKLOG = 1024
_ACCEPT_PAUSE_S = 0.5
"""How long to wait when the process is out of file descriptors: accepting again at once would spin."""
_METHODS = frozenset({"GET", "HEAD", "PUT", "POST", "DELETE", "OPTIONS", "PATCH"})

ServeWebSocket = Callable[[web.WebSocketResponse, web.Request], Awaitable[None]]


class HttpServer:
    """One HTTP port. Owned by the event loop; `run` is one task of its caller's TaskGroup."""

    def __init__(
        self,
        settings: Settings,
        namespace: Namespace,
        tokens: TokenVerifier,
        metrics: Metrics,
        clock: Clock,
        tls: ssl.SSLContext,
        certificate_names: Collection[str],
        serving: Callable[[], bool],
        serve_websocket: ServeWebSocket,
    ) -> None:
        self._settings, self._namespace, self._metrics, self._clock = settings, namespace, metrics, clock
        self._tls, self._serve_websocket = tls, serve_websocket
        # A certificate that was given may not have the name of the host that the settings listen on; whoever set it knows it.
        self._sites = Sites((*certificate_names, *settings.hostnames, settings.host), settings.origins)
        self._administration = Administration(settings, namespace, tokens, clock)
        self._runner = self._make_runner(HealthHandler(namespace, serving), MetricsHandler(metrics, namespace))
        self._listeners: list[socket.socket] = []
        self._greeting: set[asyncio.Task[None]] = set()  # connections that have not shown what they speak
        self._stopping, self._stopped = asyncio.Event(), asyncio.Event()

    async def start(self) -> list[socket.socket]:
        """Bind, and give the listening sockets. Clients are queued from here on and answered from `run` on. Raises OSError."""
        await self._runner.setup()
        self._listeners = await listen(self._settings.host, self._settings.http_port, _BACKLOG)
        return self._listeners

    async def run(self) -> None:
        """Accept until `stop`; returns once every connection is closed."""
        try:
            async with asyncio.TaskGroup() as tasks:
                acceptors = [tasks.create_task(self._accept(listener, tasks), name="http.accept") for listener in self._listeners]
                await self._stopping.wait()
                for task in (*acceptors, *self._greeting):
                    task.cancel()
        finally:
            for listener in self._listeners:
                listener.close()
            await self._runner.cleanup()
            self._stopped.set()

    async def stop(self) -> None:
        """Accept nothing more, let open requests finish, close. To be called while `run` runs; safe to call twice."""
        self._stopping.set()
        await self._stopped.wait()

    # --- connections -------------------------------------------------------------------------------------------------

    async def _accept(self, listener: socket.socket, tasks: asyncio.TaskGroup) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(listener)
            except OSError as error:  # out of descriptors or memory, or a client that is gone again
                log.warning("http.accept_failed", error=str(error))
                await asyncio.sleep(_ACCEPT_PAUSE_S)
                continue
            assert self._runner.server is not None
            if len(self._runner.server.connections) + len(self._greeting) >= self._settings.http_connections_max:
                self._metrics.http_connections_refused.inc()
                connection.close()
                continue
            task = tasks.create_task(self._greet(connection), name="http.greet")
            self._greeting.add(task)
            task.add_done_callback(self._greeting.discard)

    async def _greet(self, connection: socket.socket) -> None:
        """Find out what the client speaks, and hand the connection over."""
        handed_over = False
        timeout_s = self._settings.http_first_byte_timeout_ms / 1000
        try:
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            async with asyncio.timeout(timeout_s):
                first = await _peek(connection)
            if first:
                secure = first == TLS_HANDSHAKE
                handed_over = True  # from here on the loop closes the socket, also when the handshake fails
                await asyncio.get_running_loop().connect_accepted_socket(
                    self._protocol,
                    connection,
                    ssl=self._tls if secure else None,
                    ssl_handshake_timeout=timeout_s if secure else None,
                )
        except (OSError, TimeoutError):  # ssl.SSLError is an OSError
            self._metrics.http_connections_refused.inc()
        finally:
            if not handed_over:
                connection.close()

    def _protocol(self) -> asyncio.BaseProtocol:
        assert self._runner.server is not None
        return self._runner.server()

    # --- routes ------------------------------------------------------------------------------------------------------

    def _make_runner(self, health: HealthHandler, metrics: MetricsHandler) -> web.AppRunner:
        application = web.Application(middlewares=[self._answer], client_max_size=self._settings.http_body_bytes_max)
        application.router.add_get("/health", self._unless_signed(health.handle))
        application.router.add_get("/metrics", self._unless_signed(metrics.handle))
        application.router.add_get(WEBSOCKET_PATH, self._websocket)
        application.router.add_route("*", "/{path:(?s:.*)}", self._administration.handle)
        return web.AppRunner(
            application,
            handle_signals=False,
            access_log=None,
            shutdown_timeout=self._settings.shutdown_timeout_ms / 1000,
            keepalive_timeout=self._settings.http_keepalive_ms / 1000,
            max_line_size=self._settings.http_header_bytes_max,
            max_field_size=self._settings.http_header_bytes_max,
        )

    def _unless_signed(
        self, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        """A request that carries a token is administration, also where a queue is called `health` or `metrics`."""

        async def handle(request: web.Request) -> web.StreamResponse:
            return await (self._administration.handle(request) if "Authorization" in request.headers else handler(request))

        return handle

    async def _websocket(self, request: web.Request) -> web.StreamResponse:
        offered = [name.strip() for name in request.headers.get("Sec-WebSocket-Protocol", "").split(",")]
        if not any(name in WEBSOCKET_PROTOCOLS for name in offered):
            raise HttpRefusal(400, 0, f"A WebSocket here needs one of the subprotocols {', '.join(WEBSOCKET_PROTOCOLS)}.")
        websocket = web.WebSocketResponse(
            protocols=WEBSOCKET_PROTOCOLS, compress=False, max_msg_size=self._settings.connection_inflight_bytes_max
        )
        await websocket.prepare(request)
        try:
            await self._serve_websocket(websocket, request)
        finally:
            with contextlib.suppress(ConnectionError):
                await websocket.close()
        return websocket

    @web.middleware
    async def _answer(self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> web.StreamResponse:
        """Every way to fail becomes an answer in the contract's shape; every answer is counted."""
        try:
            self._check_site(request)
            response = await handler(request)
        except HttpRefusal as refusal:
            response = self._refuse(request, refusal)
        except Refused as refused:
            response = self._refuse(request, refusal_of(refused))
        except web.HTTPException as exception:
            response = self._refuse(request, HttpRefusal(exception.status, 0, exception.reason, _allowed(exception)))
        except (ConnectionError, asyncio.IncompleteReadError):
            raise  # the client is gone; there is nobody to answer
        except Exception:
            log.exception("http.failed", method=request.method, path=request.path)
            response = self._refuse(request, HttpRefusal(500, 50000, "The server failed to carry out the request."))
        self._metrics.http_requests.labels(request.method if request.method in _METHODS else "other", response.status).inc()
        if (request_id := request.headers.get("x-ms-client-request-id")) and not response.prepared:
            response.headers["x-ms-client-request-id"] = request_id
        return response

    def _check_site(self, request: web.Request) -> None:
        self._sites.check(
            scheme=request.scheme,
            target=request.raw_path,
            http_1_0=request.version < HttpVersion11,
            hosts=request.headers.getall("Host", ()),
            origins=request.headers.getall("Origin", ()),
            under_any_name=_is_for_everybody(request),
        )

    def _refuse(self, request: web.Request, refusal: HttpRefusal) -> web.Response:
        return refusal.response(request.path, self._namespace.name, self._clock.now_ms())


def _is_for_everybody(request: web.Request) -> bool:
    """Health and metrics, as a probe or a scraper asks for them; with a token it is administration."""
    return request.path in ("/health", "/metrics") and request.method in ("GET", "HEAD") and "Authorization" not in request.headers


def _allowed(exception: web.HTTPException) -> dict[str, str]:
    return {"Allow": exception.headers["Allow"]} if "Allow" in exception.headers else {}


async def _peek(connection: socket.socket) -> bytes:
    """The first byte, left where it is; empty when the client closed."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(connection.fileno(), readable.set)
    try:
        while True:
            await readable.wait()
            try:
                return connection.recv(1, socket.MSG_PEEK)
            except BlockingIOError:
                readable.clear()
    finally:
        loop.remove_reader(connection.fileno())
