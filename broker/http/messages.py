"""The runtime REST API: clients send, receive and settle messages over HTTP (HTTP contract 4).

This file knows rights, headers and status codes. Sending, receiving and settling is that of links
(`broker/messaging/`). Rights are checked before existence, as for administration.
"""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import quote

from aiohttp import web

from broker.access.addresses import Address
from broker.base.clock import Clock, wall_ahead_ms
from broker.base.errors import Reason, Refused
from broker.http.answer_portions import PORTION_BYTES, answer_whole
from broker.http.bodies import Bodies, gather
from broker.http.broker_properties import body_of, read_properties, token_text, written
from broker.http.connection import HttpConnection
from broker.http.header_values import read_headers, write_headers
from broker.http.message_paths import Action, MessagePath
from broker.http.receivers import ConnectionReceivers, Waiting
from broker.http.refusals import HttpRefusal, counted, found
from broker.http.request_sends import RequestSends, size_limit
from broker.http.rights import Rights
from broker.http.seams import Claim
from broker.message.annotations import deliverables, joined
from broker.message.plain_message import PlainMessage, plain
from broker.messaging.asking import renew_locks
from broker.messaging.settlement import COMPLETE, abandon, settle
from broker.namespace.entity import Entity
from broker.namespace.namespace import Namespace
from broker.operations.receiving import Locked
from broker.throttle.memory_mark import Memory

BATCH_TYPE = "application/vnd.microsoft.servicebus.json"
TIMEOUT_DEFAULT_S, TIMEOUT_MAX_S = 60.0, 86_400.0
"""How long a request waits for a message if it does not say, and at most."""


class MessageRequests:
    """Answers requests about messages. One per namespace."""

    def __init__(
        self,
        namespace: Namespace,
        rights: Rights,
        clock: Clock,
        memory: Memory,
        waiting: Waiting,
        bodies: Bodies,
        receivers_max: int,
        message_id: Callable[[], str],
    ) -> None:
        """`waiting` and `bodies` are those of the whole port; `receivers_max` is the limit of one entity;
        `message_id` makes ids for messages that have none."""
        self._namespace, self._rights, self._clock = namespace, rights, clock
        self._receivers_max = receivers_max
        self._sends, self._memory = RequestSends(memory, message_id), memory
        self._waiting, self._bodies = waiting, bodies
        self._receivers: dict[HttpConnection, ConnectionReceivers] = {}
        """Of connections whose clients receive."""
        namespace.when_rules_change.append(self._rules_changed)

    async def handle(self, request: web.Request, path: MessagePath) -> web.StreamResponse:
        """Serve a request about messages. Raises HttpRefusal and Refused."""
        claim = self._authorize(request, path.address, "Send" if path.action is Action.SEND else "Listen")
        entity = found(self._namespace, path.address.entity)
        with counted(entity):
            return await self._carry_out(request, path, entity, claim)

    def _authorize(self, request: web.Request, address: Address, right: str) -> Claim:
        """What the token of a request permits, with this right. Raises HttpRefusal and Refused."""
        claim = self._rights.authenticate(request)
        self._rights.require_right(claim, address.path, right)
        return claim

    def _rules_changed(self) -> None:
        for receivers in list(self._receivers.values()):
            receivers.rules_changed()

    def stop(self) -> None:
        """The broker stops: requests that wait for messages are answered now."""
        self._waiting.is_stopping = True
        for receivers in self._receivers.values():
            receivers.stop()

    async def _carry_out(
        self, request: web.Request, path: MessagePath, entity: Entity, claim: Claim
    ) -> web.StreamResponse:
        match path.action:
            case Action.SEND:
                return await self._send(request, path.address, entity)
            case Action.PEEK_LOCK:
                return await self._receive(request, path.address, entity, claim, removes=False)
            case Action.RECEIVE_AND_DELETE:
                return await self._receive(request, path.address, entity, claim, removes=True)
            case Action.RENEW:
                await renew_locks(entity, path.address.subqueue, [path.token])
            case Action.COMPLETE | Action.UNLOCK:
                settlement = COMPLETE if path.action is Action.COMPLETE else abandon({})
                _, refusals = await settle(entity, path.address.subqueue, [path.token], settlement)
                if refusals:
                    raise refusals[0]
        entity.note_access(path.address.subqueue, self._clock.now_ms())
        return web.Response()

    async def _send(self, request: web.Request, address: Address, entity: Entity) -> web.Response:
        entity.check_can_send(address.subqueue)
        self._memory.admit(0)  # before a large body arrives in vain
        entity.accessed_at_ms = self._clock.now_ms()
        content_type = request.headers.get("Content-Type")
        is_batch = (
            content_type is not None and content_type.partition(";")[0].strip().casefold() == BATCH_TYPE
        )
        message = PlainMessage(content_type=content_type)
        if not is_batch:
            message.properties = read_headers(request.raw_headers)
            if (properties := request.headers.get("BrokerProperties")) is not None:
                read_properties(properties, message)
        with self._bodies.read() as body:
            limit, refusal = size_limit(entity, is_batch=is_batch)
            if (length := request.content_length) is not None and length > limit:
                raise refusal(length)
            message.body = await gather(request, body, limit, refusal)
            if is_batch:
                await self._sends.send_batch(entity, message.body)
            else:
                await self._sends.send(entity, message)
        return web.Response(status=201)

    # --- receiving ------------------------------------------------------------------------------------------

    async def _receive(
        self, request: web.Request, address: Address, entity: Entity, claim: Claim, *, removes: bool
    ) -> web.StreamResponse:
        wait_s = min(_timeout_s(request), self._rights.lasts_s(claim))
        entity.check_can_receive(address.subqueue)
        if entity.requires_session(address.subqueue):
            raise Refused(
                Reason.NOT_ALLOWED,
                f"'{entity.path_of(address.subqueue)}' requires sessions, and messages of sessions cannot be "
                "received over HTTP.",
            )
        if entity.throttle is not None:
            entity.throttle.admit(0)
        entity.note_access(address.subqueue, self._clock.now_ms())
        receiver = self._receivers_of(request).of(entity, address.subqueue, removes=removes)
        if wait_s > 0:
            self._waiting.begin()
        try:
            locked = await receiver.receive(wait_s, lambda: self._authorize(request, address, "Listen"))
        finally:
            if wait_s > 0:
                self._waiting.end()
        if locked is None:
            return web.Response(status=204)
        if not removes and (request.transport is None or request.transport.is_closing()):
            receiver.give_back(locked)
            raise ConnectionResetError("the client is gone")
        return await self._answer(request, address, entity, locked, removes=removes)

    def _receivers_of(self, request: web.Request) -> ConnectionReceivers:
        connection = request.protocol
        assert isinstance(connection, HttpConnection)
        if request.transport is None:
            raise ConnectionResetError("the client is gone")
        receivers = self._receivers.get(connection)
        if receivers is None:
            receivers = self._receivers[connection] = ConnectionReceivers(
                self._clock, self._waiting, self._receivers_max
            )
            connection.at_end += receivers.end, lambda: self._receivers.pop(connection, None)
        return receivers

    async def _answer(
        self, request: web.Request, address: Address, entity: Entity, locked: Locked, *, removes: bool
    ) -> web.StreamResponse:
        """Send a message that was received."""
        ahead_ms = wall_ahead_ms(self._clock)
        partitioned = len(entity.router.handles) > 1
        parts = deliverables(locked, peek_lock=not removes, partitioned=partitioned, wall_ahead_ms=ahead_ms)
        (payload,) = joined(parts)
        message = plain(payload)
        headers = dict(write_headers(message.properties))
        headers["BrokerProperties"] = written(message, locked, wall_ahead_ms=ahead_ms, peek_lock=not removes)
        if not removes:
            headers["Location"] = _location(request, address, locked)
        body, content_type = body_of(message)
        entity.meter.outgoing_messages += 1
        entity.meter.outgoing_bytes += len(payload)
        pieces = [body[at : at + PORTION_BYTES] for at in range(0, len(body), PORTION_BYTES)]
        self._waiting.answer_bytes += len(body)
        try:
            return await answer_whole(
                request, pieces, content_type, status=200 if removes else 201, others=headers
            )
        finally:
            self._waiting.sent(len(body))


def _timeout_s(request: web.Request) -> float:
    """How long a request to receive may wait."""
    text = request.query.get("timeout", "")
    if not text:
        return TIMEOUT_DEFAULT_S
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1
    if not 0 <= seconds <= TIMEOUT_MAX_S:
        raise HttpRefusal(
            400, 40000, f"timeout is '{text:.40}'; it must be from 0 to {TIMEOUT_MAX_S:.0f} seconds."
        )
    return seconds


def _location(request: web.Request, address: Address, locked: Locked) -> str:
    """Where a message can be settled."""
    path = quote(address.path.lower(), safe="/$~")
    token = token_text(locked.tokens[0])
    return f"{request.scheme}://{request.host}/{path}/messages/{locked.sequence_numbers[0]}/{token}"
