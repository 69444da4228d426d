"""The HTTP port: administration, health, metrics and AMQP over WebSocket, with plain HTTP and TLS on the same
socket.

The server accepts sockets and looks at the first byte before anything reads it: 0x16 is a TLS ClientHello,
anything else is plain HTTP (HTTP contract 1.6: some clients insist on TLS, some on plain HTTP, all on the
same port). Then aiohttp's protocol (`connection.py`) takes over. The number of connections (`crowd.py`), the
size of headers and bodies, and every wait for a client are limited.

`start` binds, and `run` accepts until `stop`, which gives open requests `shutdown_timeout_ms` to finish, and
those whose bodies are on their way STOPPING_BODY_S to arrive. The module knows routes, but neither XML nor
AMQP: a WebSocket is passed to `serve_websocket` as it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import Any, cast

import structlog
from aiohttp import HttpVersion10, HttpVersion11, web
from aiohttp.http_exceptions import HttpProcessingError

from broker.base.clock import Clock
from broker.base.errors import Refused
from broker.base.metrics import Metrics
from broker.base.slices import Slices
from broker.base.sockets import accept_each, listen, peer_of, readable
from broker.frontend.strangers import network_of
from broker.http.bodies import Bodies
from broker.http.connection import HttpConnection, Limits
from broker.http.crowd import Crowd, Guest
from broker.http.health import HealthHandler
from broker.http.metrics import MetricsHandler
from broker.http.namespace_requests import NamespaceRequests
from broker.http.portions import Portions
from broker.http.receivers import Waiting
from broker.http.refusals import HttpRefusal, refusal_of
from broker.http.sites import MISDIRECTED, Sites
from broker.namespace.namespaces import Namespaces, ServedNamespace
from broker.settings.certificates import named_host
from broker.settings.settings import Settings
from broker.throttle.memory_mark import Memory, traffic_bytes

log = structlog.get_logger("http")

WEBSOCKET_PATH = "/$servicebus/websocket"
WEBSOCKET_PROTOCOLS = ("AMQPWSB10", "amqp")
"""The SDKs ask for AMQPWSB10; `amqp` is the name in the OASIS binding."""
TLS_HANDSHAKE = b"\x16"
_BACKLOG = 1024
_LINGERING_S = 2.0
"""How long the rest of a refused request's body is read and dropped, so that the client sees the answer and
not a reset."""
_WARN_AGAIN_S = 60.0
SPARE_CONNECTIONS = 32
"""Connections beyond the maximum, for `/health` only. Each request is answered at once, so a few are
enough."""
STOPPING_BODY_S = 2.0
"""How long a body that is on its way may take when the broker stops."""
_CLOSE_TIMEOUT_S = 5.0
"""How long a client has to answer the close of its WebSocket."""
_CONTINUE = "100-continue"
_METHODS = frozenset({"GET", "HEAD", "PUT", "POST", "DELETE", "OPTIONS", "PATCH"})

ServeWebSocket = Callable[[web.WebSocketResponse, web.Request, Callable[[bool], None]], Awaitable[None]]
"""Serves an accepted WebSocket until it ends. After each message it calls the function and says whether the
client has logged in."""


class HttpServer:
    """One HTTP port. Owned by the event loop; `run` is one task of its caller's TaskGroup."""

    def __init__(
        self,
        settings: Settings,
        namespaces: Namespaces,
        metrics: Metrics,
        clock: Clock,
        tls: ssl.SSLContext,
        certificate_names: Collection[str],
        serving: Callable[[], bool],
        memory: Memory,
        folders: Callable[[], Sequence[str]],
        serve_websocket: ServeWebSocket,
        message_id: Callable[[], str],
    ) -> None:
        """`message_id` makes ids for messages that have none."""
        self._settings, self._namespaces, self._metrics, self._clock = settings, namespaces, metrics, clock
        self._tls, self._serve_websocket = tls, serve_websocket
        self._sites = _sites(settings, namespaces, certificate_names)
        slices = Slices()
        self._waiting = Waiting(
            settings.http_connections_max,
            settings.receive_cache_messages,
            settings.receive_cache_bytes,
            traffic_bytes(settings.total_output_bytes_max, memory.mark),
        )
        self._requests = self._make_requests(slices, memory, message_id)
        self._runner = self._make_runner(
            HealthHandler(namespaces, serving, slices, memory, folders),
            MetricsHandler(metrics, namespaces, slices),
        )
        self._portions = Portions()
        self._listeners: list[socket.socket] = []
        self._greeting: set[asyncio.Task[None]] = set()  # connections not yet known to be TLS or plain
        self._crowd = Crowd(settings.http_connections_max, SPARE_CONNECTIONS, self._displaced)
        self._warn_again_at = 0.0
        self._limits = Limits(
            header_s=settings.http_header_timeout_ms / 1000,
            transfer_s=settings.http_transfer_timeout_ms / 1000,
            keepalive_s=settings.http_keepalive_ms / 1000,
            ended=self._ended,
            malformed=self._malformed,
        )
        self._options = _protocol_options(settings)
        self._stopping, self._stopped = asyncio.Event(), asyncio.Event()

    async def start(self) -> list[socket.socket]:
        """Bind, and return the listening sockets. Clients are queued from here on and answered once `run`
        runs. Raises OSError."""
        await self._runner.setup()
        self._listeners = await listen(self._settings.host, self._settings.http_port, _BACKLOG)
        return self._listeners

    async def run(self) -> None:
        """Accept until `stop` is called; return once every connection is closed."""
        try:
            async with asyncio.TaskGroup() as tasks:
                welcome = partial(self._welcome, tasks)
                acceptors = [
                    tasks.create_task(accept_each(each, welcome, "http"), name="http.accept")
                    for each in self._listeners
                ]
                await self._stopping.wait()
                for requests in self._requests.values():
                    requests.stop()
                for task in (*acceptors, *self._greeting):
                    task.cancel()
        finally:
            for listener in self._listeners:
                listener.close()
            await self._let_bodies_arrive()
            await self._runner.cleanup()
            self._stopped.set()

    async def stop(self) -> None:
        """Stop accepting, let open requests finish, and close. Call it while `run` is running; safe to call
        twice."""
        self._stopping.set()
        await self._stopped.wait()

    async def _let_bodies_arrive(self) -> None:
        """Give requests whose bodies are on their way a little time. Then their connections end."""
        assert self._runner.server is not None
        connections = cast(list[HttpConnection], self._runner.server.connections)
        bodies = [request.content for each in connections if (request := each.arriving) is not None]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(STOPPING_BODY_S, self._settings.shutdown_timeout_ms / 1000)):
                await asyncio.gather(*(body.wait_eof() for body in bodies), return_exceptions=True)

    # --- connections ----------------------------------------------------------------------------------------

    def _welcome(self, tasks: asyncio.TaskGroup, connection: socket.socket) -> None:
        guest = self._crowd.enter(network_of(peer_of(connection)), _nothing)
        if guest is None:
            self._ended("full")
            connection.close()
            return
        task = tasks.create_task(self._greet(connection, guest), name="http.greet")
        guest.end = task.cancel
        self._greeting.add(task)

        def greeted(task: asyncio.Task[None]) -> None:
            self._greeting.discard(task)
            if task.cancelled():  # perhaps before `_greet` could close the connection
                connection.close()

        task.add_done_callback(greeted)

    async def _greet(self, connection: socket.socket, guest: Guest) -> None:
        """Find out whether the client speaks TLS, and hand the connection to its protocol. A failure ends
        only this connection."""
        loop = asyncio.get_running_loop()
        assert self._runner.server is not None
        deadline = loop.time() + self._limits.header_s
        protocol = HttpConnection(
            self._runner.server, guest, self._limits, self._portions, deadline, loop=loop, **self._options
        )
        handed_over = False
        reason = "slow_header"
        try:
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            async with asyncio.timeout_at(deadline):
                first = await _peek(connection)
            if first:
                secure = first == TLS_HANDSHAKE
                handed_over = True  # from here on the loop closes the socket, even if the handshake fails
                reason = "tls"
                await loop.connect_accepted_socket(
                    lambda: protocol,
                    connection,
                    ssl=self._tls if secure else None,
                    # Never 0: the loops do not accept a time-out of 0.
                    ssl_handshake_timeout=max(deadline - loop.time(), 0.01) if secure else None,
                    ssl_shutdown_timeout=self._limits.header_s if secure else None,
                )
        except (OSError, TimeoutError) as error:  # ssl.SSLError is an OSError
            log.debug("http.ended", reason=reason, error=str(error))
            self._ended(reason)
        except Exception:
            log.exception("http.greeting_failed")
            self._ended("failed")
            connection.close()  # the loop keeps a socket that it has taken over open while it needs it
        finally:
            if not handed_over:
                connection.close()
            if not protocol.made:
                guest.leave()

    def _ended(self, reason: str) -> None:
        self._metrics.http_connections_refused.labels(reason).inc()

    def _displaced(self) -> None:
        """A connection had to make room for another. Warn at most once a minute, so that an attack does not
        fill the log."""
        self._ended("displaced")
        now = asyncio.get_running_loop().time()
        if now >= self._warn_again_at:
            self._warn_again_at = now + _WARN_AGAIN_S
            log.warning(
                "http.full",
                connections_max=self._settings.http_connections_max,
                advice=(
                    "Waiting clients of the network with most of them are disconnected; if they are yours, "
                    "raise PARTIBUS_HTTP_CONNECTIONS_MAX."
                ),
            )

    # --- routes ---------------------------------------------------------------------------------------------

    def _make_requests(
        self, slices: Slices, memory: Memory, message_id: Callable[[], str]
    ) -> dict[ServedNamespace, NamespaceRequests]:
        """What answers the requests to each namespace."""
        bodies = Bodies(memory)
        return {
            served: NamespaceRequests(
                served,
                self._clock,
                slices,
                memory,
                self._waiting,
                bodies,
                message_id,
                partial(self._namespaces.elsewhere, served=served),
            )
            for served in self._namespaces
        }

    def _make_runner(self, health: HealthHandler, metrics: MetricsHandler) -> web.AppRunner:
        application = web.Application(
            middlewares=[self._answer], client_max_size=self._settings.http_body_bytes_max
        )
        for path, handler in (
            ("/health", self._unless_signed(health.handle)),
            ("/metrics", self._unless_signed(metrics.handle)),
            (WEBSOCKET_PATH, self._websocket),
        ):
            application.router.add_get(path, handler, expect_handler=_expect)
        application.router.add_route("*", "/{path:(?s:.*)}", self._handle, expect_handler=_expect)
        return web.AppRunner(
            application, handle_signals=False, shutdown_timeout=self._settings.shutdown_timeout_ms / 1000
        )

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        """Serve a request to a namespace."""
        return await self._requests_to(request).handle(request)

    def _requests_to(self, request: web.Request) -> NamespaceRequests:
        """What answers the requests to the namespace of this one."""
        return self._requests[self._namespaces.of_host(_host_of(request))]

    def _unless_signed(
        self, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        """Treat a request with a token as administration, even for a queue called `health` or `metrics`."""

        async def handle(request: web.Request) -> web.StreamResponse:
            return await (
                self._requests_to(request).administer(request)
                if "Authorization" in request.headers
                else handler(request)
            )

        return handle

    async def _websocket(self, request: web.Request) -> web.StreamResponse:
        offered = [name.strip() for name in request.headers.get("Sec-WebSocket-Protocol", "").split(",")]
        if not any(name in WEBSOCKET_PROTOCOLS for name in offered):
            raise HttpRefusal(
                400, 0, f"A WebSocket here needs one of the subprotocols {', '.join(WEBSOCKET_PROTOCOLS)}."
            )
        websocket = web.WebSocketResponse(
            protocols=WEBSOCKET_PROTOCOLS,
            compress=False,
            max_msg_size=self._settings.connection_inflight_bytes_max,
            timeout=_CLOSE_TIMEOUT_S,
        )
        if not websocket.can_prepare(request):
            raise HttpRefusal(
                400, 0, "This path is for WebSockets, and the request is not a valid WebSocket handshake."
            )
        connection = _connection_of(request)
        connection.becomes_websocket()
        await websocket.prepare(request)
        try:
            await self._serve_websocket(websocket, request, connection.heard)
        finally:
            with contextlib.suppress(ConnectionError):
                await websocket.close()
        return websocket

    @web.middleware
    async def _answer(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Turn every failure into an answer in the service's shape (HTTP contract 2.9), and count every
        answer."""
        connection = _connection_of(request)
        connection.begin(request)
        try:
            response = await self._respond(request, handler, connection)
        finally:
            connection.finish()
        return response

    async def _respond(
        self,
        request: web.Request,
        handler: Callable[[web.Request], Awaitable[web.StreamResponse]],
        connection: HttpConnection,
    ) -> web.StreamResponse:
        try:
            self._check(request, connection)
            response = await handler(request)
        except (ConnectionError, asyncio.IncompleteReadError):
            raise  # the client is gone, so there is nobody to answer
        except Exception as error:
            response = self._failed(request, error)
        self._metrics.http_requests.labels(
            request.method if request.method in _METHODS else "other", response.status
        ).inc()
        if not response.prepared:
            request_id = request.headers.get("x-ms-client-request-id", "")
            if request_id and request_id.isascii() and request_id.isprintable():
                response.headers["x-ms-client-request-id"] = request_id
            if connection.spare:
                response.force_close()
        return response

    def _check(self, request: web.Request, connection: HttpConnection) -> None:
        """Check what holds for every request. Raises HttpRefusal."""
        self._check_site(request)
        if request.headers.get("Expect", _CONTINUE).casefold() != _CONTINUE:
            raise HttpRefusal(417, 0, "The header Expect may say 100-continue and nothing else.")
        if connection.spare and not _is_for_everybody(request, "/health"):
            raise HttpRefusal(503, 0, "All connections of this port are in use.", {"Retry-After": "2"})

    def _failed(self, request: web.Request, error: Exception) -> web.Response:
        """The answer to a request whose handler raised this error. Call it where the error is handled."""
        match error:
            case HttpRefusal():
                return self._refuse(request, error)
            case Refused():
                return self._refuse(request, refusal_of(error))
            case web.HTTPException():
                return self._refuse(request, HttpRefusal(error.status, 0, error.reason, _allowed(error)))
            case web.RequestPayloadError() | HttpProcessingError():
                log.debug("http.malformed", peer=request.remote, error=str(error))
                self._ended("malformed")
                response = self._refuse(
                    request, HttpRefusal(400, 40000, "The body does not match its header.")
                )
                response.force_close()
                return response
        log.exception("http.failed", method=request.method, path=request.path)
        return self._refuse(request, HttpRefusal(500, 50000, "The server failed to carry out the request."))

    def _malformed(self, error: str) -> web.Response:
        """The answer to bytes that are not HTTP."""
        about = " ".join(error.split())[:200]
        response = HttpRefusal(400, 40000, f"The request is not valid HTTP/1.1: {about}").response(
            "", self._namespaces.first.namespace.name, self._clock.now_ms()
        )
        response.force_close()
        return response

    def _check_site(self, request: web.Request) -> None:
        if not HttpVersion10 <= request.version <= HttpVersion11:
            raise HttpRefusal(400, 0, "The request must be HTTP/1.1 or HTTP/1.0.")
        self._sites.check(
            scheme=request.scheme,
            target=request.raw_path,
            http_1_0=request.version < HttpVersion11,
            hosts=request.headers.getall("Host", ()),
            origins=request.headers.getall("Origin", ()),
            under_any_name=_is_for_everybody(request, "/health", "/metrics"),
        )
        if request.transport is not None:
            by_header = self._namespaces.of_host(_host_of(request))
            other = self._namespaces.elsewhere(
                named_host(request.transport.get_extra_info("ssl_object")), by_header
            )
            if other is not None:
                raise HttpRefusal(
                    MISDIRECTED,
                    0,
                    f"The TLS handshake of this connection is for the namespace '{other}', and the Host "
                    f"header means '{by_header.namespace.name}'.",
                )

    def _refuse(self, request: web.Request, refusal: HttpRefusal) -> web.Response:
        served = self._namespaces.of_host(_host_of(request))
        return refusal.response(request.path, served.namespace.name, self._clock.now_ms())


def _sites(settings: Settings, namespaces: Namespaces, certificate_names: Collection[str]) -> Sites:
    """The sites that may use the port. A certificate from the settings may lack the name in PARTIBUS_HOST;
    the port answers under that name anyway."""
    names = [name for served in namespaces for name in served.host_names]
    return Sites((*certificate_names, *settings.hostnames, settings.host, *names), settings.origins)


def _protocol_options(settings: Settings) -> dict[str, Any]:
    """Options of aiohttp's protocol."""
    return {
        "access_log": None,
        "keepalive_timeout": settings.http_keepalive_ms / 1000,
        "max_line_size": settings.http_header_bytes_max,
        "max_field_size": settings.http_header_bytes_max,
        "lingering_time": _LINGERING_S,
        "auto_decompress": False,  # `content_encoding.py` does it
    }


async def _expect(request: web.Request) -> None:
    """Tell a client that waits for it to send its body. `HttpServer._check` refuses other expectations."""
    if request.headers["Expect"].casefold() == _CONTINUE and request.version >= HttpVersion11:
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0  # as aiohttp does: no answer has begun


def _nothing() -> None:
    """The `end` of a connection that has no task to cancel yet."""


def _connection_of(request: web.Request) -> HttpConnection:
    assert isinstance(request.protocol, HttpConnection)
    return request.protocol


def _host_of(request: web.Request) -> str:
    """The `Host` header. aiohttp's `request.host` asks a name server if there is none."""
    return request.headers.get("Host", "")


def _is_for_everybody(request: web.Request, *paths: str) -> bool:
    """Whether this is a probe's or scraper's request: without a token, which would make it administration."""
    return (
        request.path in paths and request.method in ("GET", "HEAD") and "Authorization" not in request.headers
    )


def _allowed(exception: web.HTTPException) -> dict[str, str]:
    return {"Allow": exception.headers["Allow"]} if "Allow" in exception.headers else {}


async def _peek(connection: socket.socket) -> bytes:
    """Read the first byte and leave it in the socket's buffer; empty if the client has closed."""
    while True:
        try:
            return connection.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            await readable(connection)
