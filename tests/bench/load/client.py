"""The load client: AMQP 1.0 connections that send and complete faster than any broker measured with them.

Responsible for what goes over the wire in a benchmark after SASL: proton's C core driven directly, without
Python objects per message (`wire.py`). It must not know scenarios, rounds or figures, which belong to its
callers.

Invariants
- a sender never has more than `window` messages without an outcome, a receiver never more than `window`
  granted or unconfirmed;
- a message counts as sent when the broker accepts it (§3.4.2), as completed when the broker settles our
  `accepted` (receiver settles second, §2.6.12): anything else raises, so that figures never count failures.
"""

from __future__ import annotations

import selectors
import socket
import struct
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from cproton_ffi import ffi, lib

from tests.bench.load.endpoint import Endpoint, LoadError, authenticate
from tests.bench.load.engine_socket import EngineSocket, raise_condition

STEP_TIMEOUT_S = 30.0
"""Time limit for setting up or closing, after which the broker counts as stuck."""

# Bound once: looking up a function in `lib` costs as much as calling it.
_delivery, _settle, _update = lib.pn_delivery, lib.pn_delivery_settle, lib.pn_delivery_update
_remote_state, _settled, _pending = (
    lib.pn_delivery_remote_state,
    lib.pn_delivery_settled,
    lib.pn_delivery_pending,
)
_readable, _partial = lib.pn_delivery_readable, lib.pn_delivery_partial
_send, _advance = lib.pn_link_send, lib.pn_link_advance
_PN_ACCEPTED = lib.PN_ACCEPTED
_pack_tag = struct.Struct(">Q").pack_into
MESSAGE_ID = b"bench-0000000000"
"""Of every message that `encode_message` makes."""


def encode_message(body_bytes: int, partition_key: bytes = b"") -> bytes:
    """Encode a durable message with a message-id and one data section of body_bytes (§3.2), and with
    x-opt-partition-key if given.
    """
    header = b"\x00\x53\x70\xc0\x02\x01\x41"
    if partition_key:
        name = b"x-opt-partition-key"
        entry = b"\xa3" + bytes((len(name),)) + name + b"\xa1" + bytes((len(partition_key),)) + partition_key
        header += b"\x00\x53\x72\xc1" + bytes((len(entry) + 1, 2)) + entry
    properties = b"\x00\x53\x73\xc0" + bytes((len(MESSAGE_ID) + 3, 1, 0xA1, len(MESSAGE_ID))) + MESSAGE_ID
    return (
        header
        + properties
        + b"\x00\x53\x75\xb0"
        + struct.pack(">I", body_bytes)
        + bytes(range(256)) * (body_bytes // 256)
        + bytes(body_bytes % 256)
    )


def numbered(message: bytes, number: int) -> bytes:
    """Give a message of `encode_message` an id of its own."""
    return message.replace(MESSAGE_ID, b"bench-%010d" % number, 1)


class LoadConnection(EngineSocket):
    """One open, authenticated client connection. Sender and Receiver add links.

    `settles_first` is for RabbitMQ 4. It refuses at the attach receivers that settle second (§2.8.3), but
    answers an unsettled `accepted` in either mode if `settled` is spelled out. With `settles_first`, the
    exchange measured there is the same as with other brokers.
    """

    def __init__(self, endpoint: Endpoint, settles_first: bool = False) -> None:
        """Connect and authenticate; the first `flush` writes the open. Raises LoadError when refused."""
        sock = socket.create_connection((endpoint.host, endpoint.port), STEP_TIMEOUT_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        authenticate(sock, endpoint)
        super().__init__(sock, spells_out_unsettled=settles_first)
        self.endpoint = endpoint
        self.settles_first = settles_first
        self._closing = False
        self._when_closed: dict[Any, Callable[[], None]] = {}
        """What follows the end of a link, by the link, once this side has closed it."""
        lib.pn_connection_set_container(self.connection, b"partibus-bench")
        lib.pn_connection_set_hostname(self.connection, endpoint.host.encode())
        lib.pn_connection_open(self.connection)

    def __enter__(self) -> LoadConnection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(politely=error is None)

    def new_session(self) -> Any:
        """Begin an AMQP session (§2.5); a broker may serve each in a separate thread."""
        session = lib.pn_session(self.connection)
        lib.pn_session_open(session)
        return session

    def close_link(self, link: Any, then: Callable[[], None]) -> None:
        """Close a link, and call `then` when the broker has closed it as well."""
        self._when_closed[link] = then
        lib.pn_link_close(link)

    @property
    def is_open(self) -> bool:
        return bool(lib.pn_connection_state(self.connection) & lib.PN_REMOTE_ACTIVE)

    def prepare(self) -> None:
        """Encode what the windows permit, ready to be written."""
        self.replenish()
        self.gather()

    def exchange(self) -> None:
        """Run one blocking round: write everything, read once."""
        self.replenish()
        self.flush()
        self.read()

    def close(self, politely: bool = True) -> None:
        """Close the connection, exchanging closes first if `politely`, and free proton's memory."""
        try:
            if politely:
                self._closing = True
                lib.pn_connection_close(self.connection)
                self.socket.settimeout(STEP_TIMEOUT_S)
                self.flush()
                while not lib.pn_connection_state(self.connection) & lib.PN_REMOTE_CLOSED:
                    self.read()
        except (OSError, LoadError):
            pass  # a broker that hangs up instead of answering a close affects no measurement
        finally:
            self.release().close()

    def on_event(self, event: Any, kind: int) -> None:
        """Raise any error the broker reports: under load it must end nothing by itself."""
        if self._closing:
            return
        if kind in (lib.PN_LINK_REMOTE_CLOSE, lib.PN_LINK_REMOTE_DETACH):
            link = lib.pn_event_link(event)
            then = self._when_closed.pop(link, None)
            if then is None:
                raise_condition(lib.pn_link_remote_condition(link), "link")
            else:
                self.drop_link(link)
                then()
        if kind == lib.PN_SESSION_REMOTE_CLOSE:
            raise_condition(lib.pn_session_remote_condition(lib.pn_event_session(event)), "session")
        if kind == lib.PN_CONNECTION_REMOTE_CLOSE:
            raise_condition(lib.pn_connection_remote_condition(self.connection), "connection")
        if kind == lib.PN_TRANSPORT_ERROR:
            raise_condition(lib.pn_transport_condition(lib.pn_event_transport(event)), "transport")


def sender_link(connection: LoadConnection, session: Any, name: str) -> Any:
    """A link that sends unsettled messages to the endpoint's address. The caller opens it."""
    link = lib.pn_sender(session, name.encode())
    lib.pn_terminus_set_type(lib.pn_link_source(link), lib.PN_SOURCE)
    lib.pn_terminus_set_address(lib.pn_link_source(link), b"bench")
    lib.pn_terminus_set_type(lib.pn_link_target(link), lib.PN_TARGET)
    lib.pn_terminus_set_address(lib.pn_link_target(link), connection.endpoint.address.encode())
    lib.pn_link_set_snd_settle_mode(link, lib.PN_SND_UNSETTLED)
    return link


def receiver_link(connection: LoadConnection, session: Any, name: str) -> Any:
    """A link that receives unsettled messages from the endpoint's address. The caller opens it."""
    link = lib.pn_receiver(session, name.encode())
    lib.pn_terminus_set_type(lib.pn_link_source(link), lib.PN_SOURCE)
    lib.pn_terminus_set_address(lib.pn_link_source(link), connection.endpoint.address.encode())
    lib.pn_terminus_set_type(lib.pn_link_target(link), lib.PN_TARGET)
    lib.pn_terminus_set_address(lib.pn_link_target(link), b"bench")
    lib.pn_link_set_snd_settle_mode(link, lib.PN_SND_UNSETTLED)
    lib.pn_link_set_rcv_settle_mode(link, lib.PN_RCV_FIRST if connection.settles_first else lib.PN_RCV_SECOND)
    return link


class Sender:
    """Sends `remaining` messages, the encoded ones of `messages` in turn, at most `window` of them
    unacknowledged.
    """

    def __init__(self, connection: LoadConnection, messages: bytes | Sequence[bytes], window: int) -> None:
        self.window = window
        self.remaining = 0
        self.unacknowledged = 0
        self.accepted = 0
        each = (messages,) if isinstance(messages, bytes) else messages
        self._messages = [(ffi.from_buffer(message), len(message)) for message in each]
        self._under_way: dict[Any, int] | None = None
        """The number of each message, by its delivery, for those who want to know."""
        self._tag_number = 0
        self._tag_buffer = bytearray(8)
        self._tag = ffi.new("pn_bytes_t *", {"size": 8, "start": ffi.from_buffer(self._tag_buffer)})[0]
        self._link = sender_link(connection, connection.new_session(), f"bench-sender-{id(self)}")
        lib.pn_link_open(self._link)
        connection.add_link(self._link, self)

    @property
    def is_ready(self) -> bool:
        """Whether the broker attached the link and granted credit."""
        return bool(lib.pn_link_credit(self._link) > 0)

    @property
    def is_done(self) -> bool:
        return self.remaining == 0 and self.unacknowledged == 0

    def send(self, count: int) -> None:
        """Ask for `count` more messages to be sent; they leave as window and credit permit."""
        self.remaining += count

    def _due(self) -> int:
        """How many messages may be sent by now, if window and credit permit."""
        return self.remaining

    def replenish(self) -> None:
        count = min(self._due(), self.window - self.unacknowledged)
        if count <= 0:
            return
        count = min(count, lib.pn_link_credit(self._link))
        link, messages, different = self._link, self._messages, len(self._messages)
        under_way = self._under_way
        for number in range(self._tag_number, self._tag_number + count):
            _pack_tag(self._tag_buffer, 0, number)
            delivery = _delivery(link, self._tag)
            if under_way is not None:
                under_way[delivery] = number
            message, size = messages[number % different]
            _send(link, message, size)
            _advance(link)
        self._tag_number += count
        self.remaining -= count
        self.unacknowledged += count

    def on_delivery(self, delivery: Any) -> None:
        state = _remote_state(delivery)
        if state == _PN_ACCEPTED:
            self.accepted += 1
        else:
            self.on_refused(describe_outcome(delivery, state))
        _settle(delivery)
        self.unacknowledged -= 1
        assert self.unacknowledged >= 0, "an outcome came twice"

    def on_refused(self, outcome: str) -> None:
        """Raise, because no load expects a message to be refused."""
        raise LoadError(f"a message was not accepted: {outcome}")


class PacedSender(Sender):
    """Sends messages at the times when they are due, and notes how long each took from then to its
    acknowledgement.

    The time counts from when a message was due, even if the window or the client delayed it, so a broker that
    pauses pays for all messages of its pause.
    """

    def __init__(
        self, connection: LoadConnection, messages: Sequence[bytes], window: int, per_s: float
    ) -> None:
        super().__init__(connection, messages, window)
        self.latencies_s: list[float] = []
        self._per_s = per_s
        self._began = 0.0
        """When the first message was due."""
        self._under_way = {}

    def begin(self, count: int) -> None:
        """Send `count` messages from now on. Called once."""
        self.send(count)
        self._began = time.perf_counter()

    def _due(self) -> int:
        due = int((time.perf_counter() - self._began) * self._per_s) + 1 - self._tag_number
        return min(due, self.remaining)

    def on_delivery(self, delivery: Any) -> None:
        assert self._under_way is not None
        number = self._under_way.pop(delivery)
        super().on_delivery(delivery)
        self.latencies_s.append(time.perf_counter() - self._began - number / self._per_s)


class Receiver:
    """Receives `count` messages and completes each: accepts it unsettled and waits until the broker has
    settled. Unless it `confirms`, it settles each at once and waits for nothing, because Artemis answers no
    disposition.
    """

    def __init__(
        self, connection: LoadConnection, window: int, body_bytes: int, confirms: bool = True
    ) -> None:
        self.window = window
        self.confirms = confirms
        self.received = 0
        self.completed = 0
        self._body_bytes = body_bytes
        self._wanted = 0
        self._granted = 0
        self._link = receiver_link(connection, connection.new_session(), f"bench-receiver-{id(self)}")
        lib.pn_link_open(self._link)
        connection.add_link(self._link, self)

    @property
    def is_ready(self) -> bool:
        """Whether the broker attached the link."""
        return bool(lib.pn_link_state(self._link) & lib.PN_REMOTE_ACTIVE)

    @property
    def is_done(self) -> bool:
        return self.completed >= self._wanted

    def receive(self, count: int) -> None:
        """Ask for `count` more messages. No credit beyond them is granted, so that no other message stays
        locked.
        """
        self._wanted += count

    def replenish(self) -> None:
        credit = min(self.window - (self._granted - self.completed), self._wanted - self._granted)
        # A flow for every few completions would cost both sides a frame each; only the last flow may be
        # small.
        if credit > 0 and (credit >= self.window // 4 or credit == self._wanted - self._granted):
            lib.pn_link_flow(self._link, credit)
            self._granted += credit

    def on_delivery(self, delivery: Any) -> None:
        if _settled(delivery):
            state = _remote_state(delivery)
            if state not in (0, _PN_ACCEPTED):
                raise LoadError(f"a completion was refused: {describe_outcome(delivery, state)}")
            _settle(delivery)
            self.completed += 1
        elif _readable(delivery) and not _partial(delivery):
            if _pending(delivery) < self._body_bytes:
                raise LoadError("a message came back shorter than it was sent")
            _advance(self._link)
            _update(delivery, _PN_ACCEPTED)
            self.received += 1
            if not self.confirms:
                _settle(delivery)
                self.completed += 1


class Drainer(Receiver):
    """Receives and completes whatever waits, until the broker says that there is no more (§2.6.7)."""

    def __init__(self, connection: LoadConnection, window: int) -> None:
        super().__init__(connection, window, body_bytes=0, confirms=False)
        self._is_drained = False

    @property
    def is_done(self) -> bool:
        return self._is_drained

    def replenish(self) -> None:
        if lib.pn_link_drained(self._link) > 0:  # some credit was left
            self._is_drained = True
        elif self.is_ready and not self._is_drained and lib.pn_link_credit(self._link) == 0:
            lib.pn_link_drain(self._link, self.window)


def drive(
    connections: Sequence[LoadConnection],
    until: Callable[[], bool],
    timeout_s: float,
    write_every_s: float | None = None,
) -> None:
    """Serve the connections until `until()` is true; it is called after each round of reads. Raises LoadError
    after timeout_s seconds.

    With `write_every_s`, links may also send when nothing was read: as often as this.
    """
    deadline = time.monotonic() + timeout_s
    next_tick = 0.0
    with selectors.DefaultSelector() as selector:
        events_wanted = dict.fromkeys(connections, 0)

        def write(connection: LoadConnection) -> None:
            connection.replenish()
            wanted = (
                selectors.EVENT_READ if connection.flush() else selectors.EVENT_READ | selectors.EVENT_WRITE
            )
            if wanted != events_wanted[connection]:
                events_wanted[connection] = wanted
                selector.modify(connection, wanted)

        for connection in connections:
            connection.socket.setblocking(False)
            selector.register(connection, selectors.EVENT_READ)
            write(connection)
        while not until():
            ready = selector.select(0.5 if write_every_s is None else write_every_s)
            if write_every_s is not None:
                for connection in connections:
                    write(connection)
            for key, events in ready:
                served: LoadConnection = key.fileobj  # type: ignore[assignment]
                if events & selectors.EVENT_READ:
                    served.read()
                write(served)
            now = time.monotonic()
            if now >= next_tick:
                next_tick = now + 1.0
                for connection in connections:
                    connection.tick()
                    write(connection)
            if now > deadline:
                raise LoadError(f"not done after {timeout_s:.0f} s")
    for connection in connections:
        connection.socket.settimeout(STEP_TIMEOUT_S)


def describe_outcome(delivery: Any, state: int) -> str:
    """The remote outcome of a delivery and its condition, for an error message."""
    name = lib.pn_condition_get_name(lib.pn_disposition_condition(lib.pn_delivery_remote(delivery)))
    outcomes = {0x23: "received", 0x25: "rejected", 0x26: "released", 0x27: "modified"}
    return f"{outcomes.get(state, 'no outcome')} {ffi.string(name).decode() if name else ''}".rstrip()
