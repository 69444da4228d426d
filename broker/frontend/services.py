"""What all connections share: the broker's parts, the bounds over all connections, and the set of
connections.

`server.py` creates one instance. Each connection joins when it begins and leaves when it ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import islice
from typing import Protocol

from broker.base.clock import Clock, elapsed_s, worked_s
from broker.base.errors import Refused
from broker.base.few import Few
from broker.base.limited_log import SparingLog
from broker.base.metrics import Metrics
from broker.base.pace import Pace as WorkPace
from broker.base.slices import Slices
from broker.frontend.byte_stream import ByteStream
from broker.frontend.departure import SLICE_S
from broker.frontend.inflight import Inflight, Reading
from broker.frontend.pace import Pace
from broker.frontend.slow_readers import LOOK_AGAIN_S, Output, OutputTotal
from broker.frontend.strangers import Strangers
from broker.frontend.turns import READ_BYTES, READ_BYTES_MAX, WAITING_BYTES_MAX, Turns
from broker.frontend.waiting_links import CONNECTIONS_AT_ONCE
from broker.messaging.accepting_sessions import SessionFinders
from broker.messaging.housekeeping import REDRIVES_MAX
from broker.messaging.page_places import PagePlaces
from broker.messaging.receiver import DUE_AT_ONCE
from broker.messaging.transactions import AllTransactions
from broker.namespace.namespaces import Namespaces, ServedNamespace
from broker.settings.settings import Settings
from broker.throttle.memory_mark import UNSETTLED_ABOVE_MARK_MAX, Memory, traffic_bytes
from protocol.engine import Engine
from protocol.parts import Parts


class Newcomer(Protocol):
    """A client that can be cut off: a connection, or a TLS handshake."""

    network: str
    """Where it comes from (`strangers.py`)."""

    def cut_off(self) -> None:
        """End it at once."""


class Client(Newcomer, Reading, Output, Protocol):
    """A connection, as the rest of the broker sees it."""

    engine: Engine
    parts: Parts
    """Its sessions and links."""
    stream: ByteStream
    peer: str
    is_cut_off: bool
    """Others needed its place, so it ends."""

    @property
    def served(self) -> ServedNamespace:
        """The namespace to which the client has come."""

    def turn_away(self, why: Refused) -> None:
        """Close the connection, and count it as open no more."""

    def rules_changed(self) -> None:
        """An entity's authorization rules have changed."""

    def clock_was_set(self) -> None:
        """The wall clock has stepped."""

    def leave(self) -> None:
        """The broker is stopping: take and deliver nothing more, and answer what the client has sent."""

    @property
    def owes_answers(self) -> bool:
        """Whether something that the client has sent is under way, or messages that were removed for it."""

    def shut_down(self) -> None:
        """The broker is stopping: close the connection with an error."""


class Services:
    """The broker's parts, as every connection uses them."""

    def __init__(
        self,
        *,
        settings: Settings,
        namespaces: Namespaces,
        clock: Clock,
        metrics: Metrics,
        memory: Memory,
        spawn: Callable[..., asyncio.Task[None]],
        message_id: Callable[[], str],
    ) -> None:
        self.settings, self.namespaces = settings, namespaces
        self.clock, self.metrics, self.memory, self.spawn, self.message_id = (
            clock,
            metrics,
            memory,
            spawn,
            message_id,
        )
        self.turns = Turns(worked_s, traffic_bytes(WAITING_BYTES_MAX, memory.mark))
        self.read_buffer = memoryview(bytearray(READ_BYTES_MAX))
        """Buffer that sockets are read into; empty between two reads."""
        self.usual_buffer = self.read_buffer[:READ_BYTES]
        """The part of it that is used for most reads."""
        self.pace = Pace(self.turns.look_again, lambda: self.turns.has_light, elapsed_s)
        self.request_pace = WorkPace()
        """Requests of all connections begin at this pace."""
        self.inflight = Inflight(traffic_bytes(settings.total_inflight_bytes_max, memory.mark))
        self.transactions = AllTransactions(
            settings, traffic_bytes(settings.total_transaction_bytes_max, memory.mark), metrics
        )
        self.connections: set[Client] = set()
        self.unopened: set[Client] = set()
        """Connections that are not open, also those that were turned away."""
        self.handshakes: dict[object, Newcomer] = {}
        """Unfinished TLS handshakes, each under the protocol of its connection. Written by `handshakes.py`,
        and by `listener.py` when one has succeeded."""
        self.strangers: Strangers[Newcomer] = Strangers()
        """All clients without a credential, and those that were turned away."""
        self.unclaimed: dict[ServedNamespace, Strangers[Client]] = {each: Strangers() for each in namespaces}
        """Open connections without a credential, by namespace."""
        self.output = OutputTotal(
            traffic_bytes(settings.total_output_bytes_max, memory.mark),
            settings.output_buffer_bytes_max,
            self.connections,
        )
        self.departures = Slices(SLICE_S)
        """For connections that end with many links."""
        self.waiting_links = Few(CONNECTIONS_AT_ONCE)
        """For connections with many links that wait for room."""
        self.receivers_due = Few(DUE_AT_ONCE)
        """For receivers that withdraw their demand, or ask again."""
        self.sparing = SparingLog(elapsed_s)
        """Limits log lines about single clients, which clients can cause as often as they like."""
        self.pages = PagePlaces()
        self.redrives = asyncio.Semaphore(REDRIVES_MAX)
        """Held while dead letters are in memory, to be enqueued again."""
        self.session_finders = SessionFinders()
        self.queued_bytes = 0
        """Bytes of requests that wait for others, over all connections. Written by the connections."""
        self._held: set[Client] = set()
        """Connections with links that hold as many unsettled deliveries as they may above the memory mark."""
        self._held_by_others: dict[Client, None] = {}
        """Connections with links that could hold more if all links together did not hold as many as they may.
        The first one has waited longest."""
        self._held_timer: asyncio.TimerHandle | None = None
        self._alone = asyncio.Event()
        self._alone.set()
        for each in namespaces:
            each.namespace.when_rules_change.append(self._rules_changed)
        metrics.active_connections.set_function(lambda: len(self.connections))
        metrics.active_links.set_function(
            lambda: sum(connection.engine.link_count for connection in self.connections)
        )
        metrics.transactions_open.set_function(lambda: self.transactions.count)
        metrics.inflight_bytes.set_function(lambda: self.inflight.bytes)
        metrics.unserved_bytes.set_function(lambda: self.turns.waiting_bytes)

    def _rules_changed(self) -> None:
        for connection in list(self.connections):
            connection.rules_changed()

    @property
    def opened(self) -> int:
        """The number of open connections."""
        return len(self.connections) - len(self.unopened)

    def joined(self, connection: Client) -> None:
        """Add a new connection."""
        self.connections.add(connection)
        self.unopened.add(connection)
        self.strangers.add(connection, asyncio.get_running_loop().time())
        self.memory.connections = len(self.connections)
        self._alone.clear()
        self.metrics.connections_opened.inc()

    def is_open(self, connection: Client, *, has_credential: bool) -> None:
        """A connection is open."""
        self.unopened.discard(connection)
        if has_credential:
            self.strangers.discard(connection)
        else:
            self.unclaimed[connection.served].add(connection, asyncio.get_running_loop().time())

    def has_claim(self, connection: Client) -> None:
        """The client has put a valid token. One that was turned away gives way as before."""
        self.unclaimed[connection.served].discard(connection)
        if connection not in self.unopened:
            self.strangers.discard(connection)

    def turned_away(self, connection: Client) -> None:
        """A connection was refused or closed; it counts as open no more."""
        self.unopened.add(connection)
        self.unclaimed[connection.served].discard(connection)
        self.strangers.add(connection, asyncio.get_running_loop().time())

    def handshake_begins(self, protocol: object, handshake: Newcomer) -> None:
        """A TLS handshake has begun, for a connection that will have this protocol."""
        self.handshakes[protocol] = handshake
        self.strangers.add(handshake, asyncio.get_running_loop().time())

    def handshake_ended(self, protocol: object) -> None:
        """A TLS handshake has succeeded, failed or been cut off. Safe to call twice, and without one."""
        handshake = self.handshakes.pop(protocol, None)
        if handshake is not None:
            self.strangers.discard(handshake)

    def left(self, connection: Client) -> None:
        """Remove a connection that is gone."""
        self.connections.discard(connection)
        self.unopened.discard(connection)
        self.strangers.discard(connection)
        self.unclaimed[connection.served].discard(connection)
        self.memory.connections = len(self.connections)
        self.memory.parts -= connection.parts.count
        self.memory.sessions_and_links -= connection.parts.objects
        self.inflight.forget(connection)
        self.output.forget(connection)
        self._held.discard(connection)
        self._held_by_others.pop(connection, None)
        self.metrics.connections_closed.inc()
        if not self.connections:
            self._alone.set()

    def hold(self, connection: Client, *, by_others: bool) -> None:
        """Call its `flush_soon` when the memory mark is not exceeded any more, or, if other links hold it
        back, when those have settled some deliveries."""
        if by_others:
            self._held_by_others.setdefault(connection)
        else:
            self._held.add(connection)
        if self._held_timer is None:
            self._held_timer = asyncio.get_running_loop().call_later(LOOK_AGAIN_S, self._look_at_memory)

    def _look_at_memory(self) -> None:
        self._held_timer = None
        memory = self.memory
        if memory.exceeded:
            room = -(-max(0, memory.unsettled_left) // UNSETTLED_ABOVE_MARK_MAX)
            ready = list(islice(self._held_by_others, room))
        else:
            ready = [*self._held_by_others, *self._held]
        for connection in ready:
            self._held_by_others.pop(connection, None)
            self._held.discard(connection)
            connection.flush_soon()
        if self._held or self._held_by_others:
            self._held_timer = asyncio.get_running_loop().call_later(LOOK_AGAIN_S, self._look_at_memory)

    async def wait_until_alone(self) -> None:
        """Return when no client is connected."""
        await self._alone.wait()
