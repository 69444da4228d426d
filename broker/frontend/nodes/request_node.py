"""Request/response over a pair of links: the pattern of `$cbs` and `$management` (AMQP contract 2.1, 7.1).

The links of one AMQP session that name the same address share a node. A response goes to the link whose
target address is the request's reply-to, else to the link of that name, else to the newest response link
(AMQP contract 0.4.4). The correlation-id repeats the request's message-id with its type (AMQP contract
0.4.2); otherwise the official clients wait in vain.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from broker.base.errors import Reason, Refused
from broker.frontend.connection_view import ConnectionView
from broker.refusal_wording import error_of, no_transactions
from protocol.codec import DecodeError, Described, ULong, decode, encode
from protocol.events import (
    DeliveriesUpdated,
    MessagesReceived,
    MessageTooLarge,
    Outcome,
)
from protocol.links import SETTLED, Delivery, Link
from protocol.unwritten import take_back
from protocol.values import VALUES_MAX, count_values

REQUEST_CREDIT = 100
REQUESTS_UNDER_WAY_MAX = 10 * REQUEST_CREDIT
"""The Python client ignores credit (AMQP contract 0.4.12), so requests beyond this number are refused."""
LOOK_EVERY = 16
"""After so many requests, look whether their client's time is used up: to decode one and to begin with it
takes some 20 µs and more."""
QUEUED_BYTES_FREE = 128 * 1024
"""Bytes of page requests that a connection may always queue, however much other connections have queued."""
UNSETTLED_BYTES_MAX = 256 * 1024
"""Bytes of unsettled responses kept in memory for a client; beyond this, the oldest are settled for it
(§2.6.12)."""
RESPONSES_WAITING_MAX = 1_000
RESPONSES_WAITING_BYTES_MAX = 16 * 1024 * 1024
VALUE_BYTES = 64
"""The memory that a decoded value takes in addition to its encoded bytes, at least."""
PROPERTIES, APPLICATION_PROPERTIES, VALUE = 0x73, 0x74, 0x77
MESSAGE_ID, REPLY_TO = 0, 4  # indexes in the properties list (§3.2.4)


@dataclass(slots=True)
class Request:
    """A request as the client sent it."""

    message_id: Any
    reply_to: str | None
    properties: dict[str, Any]
    """Application properties."""
    body: Any
    """The amqp-value; None if there is none."""
    size: int = field(default=0, compare=False)
    """About how much memory it takes, in bytes."""
    txn_id: bytes | None = None
    """The transaction that it is part of."""


def _give_nothing_back() -> None:
    """Do nothing: the response holds no messages."""


@dataclass(slots=True)
class Response:
    """The response to a request."""

    properties: dict[str, Any] = field(default_factory=dict)
    """Application properties, including the status."""
    body: Any = None
    unsent: Callable[[], None] | None = _give_nothing_back
    """Called if the response is never sent, to give back the messages that it holds. None if they were
    removed for it: since nobody else can get them, it goes out as far as the session's window permits."""


class Handler(Protocol):
    """Carries out the requests of a node."""

    request_bytes_max: int
    """The largest request accepted, in bytes."""
    request_values_max: int
    """The largest number of values in a request; each takes time to decode."""
    serves_transactions: bool
    """Whether requests may be part of a transaction."""

    def is_page(self, request: Request) -> bool:
        """Return whether the response may be large. Such requests are served one at a time, and only with
        credit and room for the response."""

    async def respond(self, request: Request) -> Response:
        """Carry out the request. Raises nothing except on cancellation: a request without a response blocks
        its client for ever."""


class RequestNode:
    """The node at which request and response links meet. Owned by its connection."""

    def __init__(
        self, handler: Handler, path: str, rights: tuple[str, ...], on_empty: Callable[[], object]
    ) -> None:
        """Any of `rights` on `path` lets a client use the node; if empty, every client may."""
        self.paths, self.rights = (path,), rights
        self.request_bytes_max, self.request_values_max = (
            handler.request_bytes_max,
            handler.request_values_max,
        )
        self.serves_transactions = handler.serves_transactions
        self._handler, self._on_empty = handler, on_empty
        self._responders: list[ResponseLink] = []
        self._links = 0

    def join(self, link: RequestLink | ResponseLink) -> None:
        """Add a link that attaches to the node."""
        self._links += 1
        if isinstance(link, ResponseLink):
            self._responders.append(link)

    def leave(self, link: RequestLink | ResponseLink) -> None:
        """Remove a link; the last one to leave ends the node."""
        self._links -= 1
        if isinstance(link, ResponseLink):
            self._responders.remove(link)
        if not self._links:
            self._on_empty()

    def is_page(self, request: Request) -> bool:
        """Return whether the request has to wait for others (`answer_page`)."""
        return self._handler.is_page(request)

    async def answer_page(self, request: Request, connection: ConnectionView) -> None:
        """Carry out one request with a large response when no other is being carried out.

        A response link answers one such request at a time, and only once it has credit and room for the
        response, because a response that is not built takes no memory. A connection also answers one at a
        time. The others wait, and end with the connection. If their response link is detached, they use
        another one.
        """
        while True:
            responder = self._responder(request.reply_to)
            if responder is None:
                async with connection.browse_page:
                    await self.answer(request)
                return
            with responder.queued(request.size):
                async with responder.page:
                    await responder.has_become_ready()
                    async with connection.browse_page:
                        if responder.is_ready:  # other requests may have used credit or room meanwhile
                            await self.answer(request)
                            return
            await asyncio.sleep(0)

    async def answer(self, request: Request) -> None:
        """Carry out one request and send the response over the link it belongs to."""
        response = await self._handler.respond(request)
        responder = self._responder(request.reply_to)
        if responder is not None:
            responder.send(encode_response(response, request.message_id), response.unsent)
        elif response.unsent is not None:
            response.unsent()

    def _responder(self, reply_to: str | None) -> ResponseLink | None:
        if reply_to:
            by_target = {responder.link.target_address: responder for responder in self._responders}
            by_name = {responder.link.name: responder for responder in self._responders}
            found = by_target.get(reply_to) or by_name.get(reply_to)
            if found is not None:
                return found
        return self._responders[-1] if self._responders else None


class RequestLink:
    """A link on which the client sends requests."""

    @classmethod
    def attach(cls, connection: ConnectionView, link: Link, node: RequestNode) -> None:
        """Accept the link."""
        connection.engine.accept_link(link, max_message_bytes=node.request_bytes_max)
        link.context = cls(connection, link, node)

    def __init__(self, connection: ConnectionView, link: Link, node: RequestNode) -> None:
        self.link, self.paths, self.rights = link, node.paths, node.rights
        self._connection, self._node = connection, node
        self._under_way = 0
        node.join(self)
        connection.engine.grant(link, REQUEST_CREDIT)

    def received(self, event: MessagesReceived) -> bool:
        """Accept each request's transfer at once, and carry the request out; the response is a separate
        message. Returns False if the client's time is used up, with the requests that are left in the
        event."""
        taken = self._receive(event, None)
        del event.payloads[:taken], event.deliveries[:taken]
        return not event.payloads

    def received_in_transaction(self, event: MessagesReceived) -> None:
        """The same for requests that are part of a transaction."""
        assert event.transaction is not None
        if self._node.serves_transactions:
            self._receive(event, event.transaction.txn_id)
        else:
            txn_id = event.transaction.txn_id
            self._refuse(event.deliveries, no_transactions(), len(event.payloads), txn_id)

    def _receive(self, event: MessagesReceived, txn_id: bytes | None) -> int:
        """Begin requests. Returns how many were taken: all of a transaction, whose end may come next."""
        engine, taken = self._connection.engine, len(event.payloads)
        for index, payload in enumerate(event.payloads):
            if index % LOOK_EVERY == LOOK_EVERY - 1 and txn_id is None and self._connection.is_late:
                taken = index
                break
            own = event.deliveries[index : index + 1]
            if self._under_way >= REQUESTS_UNDER_WAY_MAX:
                self._refuse(
                    own,
                    Refused(
                        Reason.SERVER_BUSY,
                        f"{self._under_way} requests are under way on this link. Please try again.",
                    ),
                    txn_id=txn_id,
                )
                continue
            try:
                request = decode_request(payload, self._node.request_values_max)
            except DecodeError as error:
                why = Refused(Reason.DECODE, f"The request is malformed: {error}.")
                self._refuse(own, why, txn_id=txn_id)
                continue
            is_page = self._node.is_page(request)
            if is_page and not self._connection.may_queue(request.size):
                text = (
                    "The requests whose responses wait for credit, or to be read, take too much memory. "
                    "Please try again."
                )
                self._refuse(own, Refused(Reason.SERVER_BUSY, text), txn_id=txn_id)
                continue
            self._under_way += 1
            if txn_id is None:
                engine.accept(own)
            else:
                request.txn_id = txn_id
                engine.settle_in_transaction(own, txn_id, Outcome.ACCEPTED)
            # Credit comes back with the response, which holds back a client that floods requests.
            name = f"request {request.properties.get('operation')!s:.40}"
            self._connection.spawn(
                self._answer(request, is_page), name=name, size=request.size, queued=is_page
            )
        self._connection.flush_soon()
        return taken

    def refused(self, event: MessageTooLarge) -> None:
        """Refuse a request that is too large."""
        text = f"The request has {event.size} bytes; the limit is {self._node.request_bytes_max}."
        self._refuse(event.deliveries, Refused(Reason.MESSAGE_TOO_LARGE, text))

    async def _answer(self, request: Request, is_page: bool) -> None:
        try:
            if request.txn_id is None:  # the end of a transaction may come next, and this is part of it
                await self._connection.services.request_pace.begin()  # clients may send a thousand at once
            if is_page:
                await self._node.answer_page(request, self._connection)
            else:
                await self._node.answer(request)
        finally:
            self._under_way -= 1
            if not self.link.gone:
                self._connection.engine.grant(self.link, 1)
                self._connection.flush_soon()

    def _refuse(
        self, deliveries: list[Delivery], why: Refused, count: int = 1, txn_id: bytes | None = None
    ) -> None:
        """Reject `count` requests and give their credit back; `deliveries` holds those that did not come
        settled."""
        if txn_id is not None:
            self._connection.transactions.fail(txn_id, why)
        self._connection.engine.reject(deliveries, error_of(why))
        self._connection.engine.grant(self.link, count)
        self._connection.flush_soon()

    def credit_granted(self) -> None:
        """Do nothing: a sender's flow has no effect here."""

    def detached(self) -> None:
        """Leave the node. Responses still being made go out over a response link."""
        self._node.leave(self)


class ResponseLink:
    """A link on which the client receives responses, in the order in which they were made."""

    @classmethod
    def attach(cls, connection: ConnectionView, link: Link, node: RequestNode) -> None:
        """Accept the link."""
        connection.engine.accept_link(link)
        link.context = cls(connection, link, node)

    def __init__(self, connection: ConnectionView, link: Link, node: RequestNode) -> None:
        self.link, self.paths, self.rights = link, node.paths, node.rights
        self._connection, self._node = connection, node
        self._waiting: deque[tuple[bytes, Callable[[], None] | None]] = deque()
        self._waiting_bytes = 0
        self._tags = 0
        self._unsettled: dict[Delivery, tuple[int, Callable[[], None] | None]] = {}
        """Responses that were sent but not settled, oldest first: the size of each, and what to call if it is
        taken back."""
        self._unsettled_bytes = 0
        self.page = asyncio.Semaphore(1)
        """Held while a request with a large response is served."""
        self._changed = asyncio.Event()
        """Set when `is_ready` may have become true, or the link has ended."""
        self._queued = self._queued_bytes = 0
        """Number and bytes of the requests with large responses that wait for others or are being
        served."""
        self._is_held = False
        """Whether those requests wait for the client."""
        node.join(self)

    @property
    def is_ready(self) -> bool:
        """Whether to make the next large response: it would be sent at once, or would be the only one waiting
        for this client.

        Without room, `credit_granted` is called once there is room.
        """
        connection = self._connection
        if self.link.gone or self._waiting or not connection.room_for(self):
            return False
        return connection.engine.credit(self.link) > 0 or not (
            connection.response_bytes or connection.services.output.is_over
        )

    async def has_become_ready(self) -> None:
        """Return once `is_ready` is true, or the link is gone.

        Until then, the requests for this link do not count as work under way: they would hold up other
        requests, or the very flow that they wait for.
        """
        if self.link.gone or self.is_ready:
            return
        self._is_held = True
        self._connection.finished_with(self._queued_bytes, self._queued)
        try:
            while not (self.link.gone or self.is_ready):
                self._changed.clear()
                await self._changed.wait()
        finally:
            self._is_held = False
            self._connection.took(self._queued_bytes, self._queued)

    @contextlib.contextmanager
    def queued(self, size: int) -> Iterator[None]:
        """Count a request with a large response while it waits for others on this link or is served."""
        self._count_queued(size, 1)
        if self._is_held:
            self._connection.finished_with(size, 1)
        try:
            yield
        finally:
            self._count_queued(-size, -1)
            if self._is_held:
                self._connection.took(size, 1)

    def _count_queued(self, size: int, count: int) -> None:
        self._queued_bytes += size
        self._queued += count

    def send(self, payload: bytes, unsent: Callable[[], None] | None = None) -> None:
        """Send a response now, or when there is credit for it. `unsent` is called if it can never be sent."""
        if self.link.gone:
            if unsent is not None:
                unsent()
            return
        connection, output = self._connection, self._connection.services.output
        if (
            len(self._waiting) >= RESPONSES_WAITING_MAX
            or self._waiting_bytes >= RESPONSES_WAITING_BYTES_MAX
            or (output.is_over and connection.response_bytes >= connection.allowance)
        ):
            connection.close_link(
                self.link,
                Refused(
                    Reason.QUOTA_EXCEEDED,
                    (
                        f"{len(self._waiting)} responses with {self._waiting_bytes} bytes wait to be "
                        "fetched on this link; no more are kept."
                    ),
                ),
            )
            if unsent is not None:
                unsent()
            return
        self._waiting.append((payload, unsent))
        self._count(len(payload))
        output.add(connection, len(payload))
        self.credit_granted()

    def _count(self, size: int) -> None:
        self._waiting_bytes += size
        self._connection.response_bytes += size

    def credit_granted(self) -> None:
        """Send waiting responses as far as credit and room allow."""
        self._changed.set()
        if self.link.gone:
            return
        connection, engine = self._connection, self._connection.engine
        settled = self.link.snd_settle_mode == SETTLED
        self._settle_oldest()
        while self._waiting and engine.credit(self.link) > 0:
            if not connection.room_for(self):
                return
            payload, unsent = self._waiting.popleft()
            self._count(-len(payload))
            self._tags += 1
            (delivery,) = engine.send(self.link, [self._tags.to_bytes(8, "big")], [payload], settled) or (
                None,
            )
            if delivery is not None and not settled:
                self._unsettled[delivery] = len(payload), unsent
                self._unsettled_bytes += len(payload)
            connection.sent(len(payload))
        if engine.draining(self.link) and engine.credit(self.link) > 0:
            if not connection.may_answer_drain(self):
                return  # without a write, which would bring us here again at once
            engine.drained(self.link)
        connection.flush_soon()

    def _settle_oldest(self) -> None:
        """Settle the oldest responses of a client that does not settle them, once everything has been sent,
        to free memory."""
        engine = self._connection.engine
        while self._unsettled_bytes > UNSETTLED_BYTES_MAX and not engine.unsent_bytes(self.link):
            delivery = next(iter(self._unsettled))
            self._unsettled_bytes -= self._unsettled.pop(delivery)[0]
            engine.settle([delivery], Outcome.ACCEPTED)

    def updated(self, event: DeliveriesUpdated) -> None:
        """Settle responses that the client has settled; nothing else depends on it."""
        # An event may name a delivery twice.
        known = [each for each in dict.fromkeys(event.deliveries) if each in self._unsettled]
        self._unsettled_bytes -= sum(self._unsettled.pop(delivery)[0] for delivery in known)
        self._connection.engine.settle(known, event.outcome)
        self._connection.flush_soon()

    def detached(self) -> None:
        """Drop the waiting responses, and those that the session's window has held back: the link is gone."""
        self._changed.set()
        returnable = [each for each, (_, unsent) in self._unsettled.items() if unsent is not None]
        taken = take_back(self.link, reversed(returnable))
        for _, unsent in (*map(self._unsettled.__getitem__, taken), *self._waiting):
            if unsent is not None:
                unsent()
        self._unsettled.clear()
        self._waiting.clear()
        self._count(-self._waiting_bytes)
        self._node.leave(self)


def decode_request(payload: bytes, values_max: int = VALUES_MAX) -> Request:
    """Decode a request message (§3.2) with at most `values_max` values. Raises DecodeError."""
    try:
        values = count_values(payload, 0, len(payload), values_max)
    except (IndexError, struct.error) as error:
        raise DecodeError("a section is cut off") from error
    request = Request(None, None, {}, None, len(payload) + values * VALUE_BYTES)
    offset = 0
    while offset < len(payload):
        section, offset = decode(payload, offset)
        if not isinstance(section, Described):
            raise DecodeError("a section is not a described value")
        match section.descriptor, section.value:
            case int(code), list(fields) if code == PROPERTIES:
                request.message_id = fields[MESSAGE_ID] if fields else None
                reply_to = fields[REPLY_TO] if len(fields) > REPLY_TO else None
                request.reply_to = reply_to if isinstance(reply_to, str) else None
            case int(code), dict(entries) if code == APPLICATION_PROPERTIES:
                request.properties = {str(key): value for key, value in entries.items()}
            case int(code), value if code == VALUE:
                request.body = value
            case _:
                pass
    return request


def encode_response(response: Response, correlation_id: Any) -> bytes:
    """Encode a response message: properties with the correlation-id, application properties, amqp-value."""
    return b"".join(
        (
            encode(Described(ULong(PROPERTIES), [None, None, None, None, None, correlation_id])),
            encode(Described(ULong(APPLICATION_PROPERTIES), response.properties)),
            encode(Described(ULong(VALUE), response.body)),
        )
    )
