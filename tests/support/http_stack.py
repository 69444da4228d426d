"""The HTTP port on a real socket, with the real namespace, catalogue and authorizer, over partitions whose
content the test supplies.

For tests of the HTTP port alone; `broker_process.py` runs the whole broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import aiohttp
from aiohttp import web

from broker.access.sas import Authorizer
from broker.base.clock import Clock, SystemClock
from broker.base.metrics import Metrics
from broker.entities.descriptions import EntityDescription
from broker.http.server import HttpServer
from broker.identifiers import ClientId
from broker.message.stored import MessageIds
from broker.namespace.entity import Entity
from broker.namespace.kinds import make_entity
from broker.namespace.meter import EntityMeter
from broker.namespace.namespace import Namespace
from broker.namespace.namespaces import Namespaces, ServedNamespace
from broker.namespace.resting import Resting
from broker.operations.general import Detach, Update, Updated
from broker.operations.interface import Operation, Sink
from broker.operations.message_states import SubqueueCounts
from broker.operations.sending import Send
from broker.settings.certificates import TlsFiles, certificate_names, server_context, tls_files
from broker.settings.key_files import namespace_rules
from broker.settings.settings import Settings, load_settings
from broker.throttle.memory_mark import Memory
from broker.throttle.throttle import throttle_of
from storage.catalogue import Catalogue
from storage.disk import LocalDisk
from storage.file_store import FileLogStore
from storage.partition_index import PartitionIndex
from tests.support.sas import sas_token


@dataclass(slots=True)
class StillPartition:
    """An idle partition that reports what the test sets."""

    health: str = "serving"
    available: bool = True
    awaits_more: bool = False
    held: dict[str, SubqueueCounts] = field(default_factory=dict)

    def counts(self, only: str | None = None) -> dict[str, SubqueueCounts]:
        return self.held

    def size(self) -> int:
        return sum(each.bytes for each in self.held.values())

    async def opened(self) -> None:
        return None

    async def stop(self, *, is_deleted: bool = False) -> None:
        return None

    def join(self, more: Send, client: ClientId, cookie: object) -> bool:
        return False

    def post(self, operation: Operation, client: ClientId, sink: Sink) -> None:
        assert isinstance(operation, Update | Detach), f"a partition at rest is asked for {operation}"
        if isinstance(operation, Update):
            sink(Updated(operation.cookie))


@dataclass(slots=True)
class HttpStack:
    """A running HTTP port and the objects behind it."""

    settings: Settings
    namespace: Namespace
    metrics: Metrics
    server: HttpServer
    files: TlsFiles
    port: int
    session: aiohttp.ClientSession
    partition: StillPartition
    """The first partition of every queue; the others are empty."""
    serving: list[bool]
    """Whether the broker reports that it serves; a one-element list that tests may change."""
    resident: list[int]
    """The broker's apparent memory use in bytes; a one-element list that tests may change. The memory mark is
    1 GiB.
    """
    memory: Memory

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def queue(self, name: str) -> Entity:
        """An existing queue."""
        queue = self.namespace.find(name)
        assert queue is not None
        return queue

    def ended(self, reason: str) -> float:
        """Number of connections the port has ended for this reason."""
        return (
            self.metrics.registry.get_sample_value(
                "partibus_http_connections_refused_total", {"reason": reason}
            )
            or 0
        )

    async def ask(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        token: str | None = "",
        headers: dict[str, str] | None = None,
    ) -> tuple[int, str, dict[str, str]]:
        """Send a request; gives status, text and headers. By default, `token` is a new token for the whole
        namespace; None sends none.
        """
        sent = dict(headers or {})
        if token is not None:
            sent["Authorization"] = token or sas_token(f"https://127.0.0.1:{self.port}")
        async with self.session.request(method, self.url + path, data=body, headers=sent) as response:
            return response.status, await response.text(), dict(response.headers)


@asynccontextmanager
async def http_stack(
    folder: Path, *, clock: Clock | None = None, **given: object
) -> AsyncIterator[HttpStack]:
    """Serve HTTP on a free port of 127.0.0.1 until the end of the block."""
    settings = load_settings(
        **{"data_dir": folder / "data", "http_port": 0, "shutdown_timeout_ms": 1_000, **given}
    )
    (folder / "data").mkdir(exist_ok=True)
    clock, metrics, partition, serving, resident = (
        clock or SystemClock(),
        Metrics(),
        StillPartition(),
        [True],
        [0],
    )
    memory = Memory(1 << 30, lambda: resident[0], lambda: 0)
    refused = metrics.credits_refused.inc
    throttle = throttle_of(settings.namespace, settings.credits_per_second, clock, refused)

    resting = Resting(PartitionIndex(settings.data_dir / "catalogue", LocalDisk()), clock)

    def make(description: EntityDescription) -> Entity:
        meter = EntityMeter(metrics, description.name)
        return make_entity(
            description,
            meter,
            lambda _, number: cast(Any, partition if number == 0 else StillPartition()),
            resting,
        )

    store = FileLogStore(
        settings.data_dir / "logs",
        LocalDisk(),
        fsync=settings.fsync,
        fsync_interval_ms=settings.fsync_interval_ms,
        segment_bytes_max=settings.segment_bytes,
        committer_threads=1,
    )
    namespace = Namespace(
        settings.namespace,
        catalogue=Catalogue(settings.data_dir / "catalogue", LocalDisk()),
        store=store,
        clock=clock,
        make_entity=make,
        resting=resting,
        partitions_default=settings.partitions_default,
        entities_max=settings.entities_max,
        tier=settings.namespace_tier,
        throttle=throttle,
    )
    await namespace.load()
    files = tls_files(settings, SystemClock().now_ms())
    authorizer = Authorizer(namespace_rules(settings), namespace.rules_of)
    server = HttpServer(
        settings,
        Namespaces(ServedNamespace(namespace, authorizer, settings)),
        metrics,
        clock,
        server_context(files),
        certificate_names(files),
        lambda: serving[0],
        memory,
        lambda: ["ok"],
        _echo,
        MessageIds(),
    )
    (listener,) = await server.start()
    port: int = listener.getsockname()[1]
    running = asyncio.create_task(server.run(), name="http")
    try:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as session:
            yield HttpStack(
                settings,
                namespace,
                metrics,
                server,
                files,
                port,
                session,
                partition,
                serving,
                resident,
                memory,
            )
    finally:
        await server.stop()
        await running
        await resting.stop()
        await store.close()


async def _echo(
    websocket: web.WebSocketResponse, request: web.Request, heard: Callable[[bool], None]
) -> None:
    """Echo what the client sends; a client that has sent `login` counts as logged in."""
    async for message in websocket:
        if message.type is aiohttp.WSMsgType.BINARY:
            heard(message.data == b"login")
            await websocket.send_bytes(message.data)
