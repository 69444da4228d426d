"""The runtime REST API: clients send, receive and settle messages over HTTP (HTTP contract 4).

This file knows rights, headers and status codes. Sending, receiving and settling is that of links
(`broker/messaging/`). Rights are checked before existence, as for administration.
"""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web

from broker.access.addresses import Address
from broker.base.clock import Clock
from broker.base.errors import Reason, Refused
from broker.entities.validation import MAX_MESSAGE_SIZE_KB
from broker.http.bodies import Bodies, Body
from broker.http.broker_properties import read_properties
from broker.http.header_values import read_headers
from broker.http.message_paths import Action, MessagePath
from broker.http.refusals import HttpRefusal
from broker.http.request_sends import RequestSends
from broker.http.rights import Rights
from broker.message.plain_message import PlainMessage
from broker.messaging.sending import too_large
from broker.namespace.entity import Entity
from broker.namespace.namespace import Namespace
from broker.throttle.memory_mark import Memory

BATCH_TYPE = "application/vnd.microsoft.servicebus.json"


class MessageRequests:
    """Answers requests about messages. One per broker."""

    def __init__(
        self,
        namespace: Namespace,
        rights: Rights,
        clock: Clock,
        memory: Memory,
        message_id: Callable[[], str],
    ) -> None:
        """`message_id` makes ids for messages that have none."""
        self._namespace, self._rights, self._clock = namespace, rights, clock
        self._sends = RequestSends(memory, message_id)
        self._bodies = Bodies(MAX_MESSAGE_SIZE_KB[1] * 1024)

    async def handle(self, request: web.Request, path: MessagePath) -> web.StreamResponse:
        """Serve a request about messages. Raises HttpRefusal and Refused."""
        claim = self._rights.authenticate(request)
        self._rights.require_right(
            claim, path.address.path, "Send" if path.action is Action.SEND else "Listen"
        )
        queue = self._find(path.address)
        try:
            return await self._carry_out(request, path, queue)
        except Refused as why:
            queue.meter.refused(why.reason, 1)
            if why.reason is Reason.ENTITY_NOT_FOUND:
                raise _gone(why) from why
            raise

    def _find(self, address: Address) -> Entity:
        queue = self._namespace.find(address.entity)
        if queue is None:
            why = self._namespace.missing(address.entity)
            raise _gone(why) if why.reason is Reason.ENTITY_NOT_FOUND else why
        return queue

    async def _carry_out(self, request: web.Request, path: MessagePath, queue: Entity) -> web.StreamResponse:
        match path.action:
            case Action.SEND:
                return await self._send(request, path.address, queue)
            case _:
                raise Refused(Reason.NOT_IMPLEMENTED, "Messages cannot be received over HTTP yet.")

    async def _send(self, request: web.Request, address: Address, queue: Entity) -> web.Response:
        queue.check_can_send(address.subqueue)
        queue.accessed_at_ms = self._clock.now_ms()
        content_type = request.headers.get("Content-Type")
        is_batch = (
            content_type is not None and content_type.partition(";")[0].strip().casefold() == BATCH_TYPE
        )
        message = PlainMessage(content_type=content_type)
        if not is_batch:
            if (properties := request.headers.get("BrokerProperties")) is not None:
                read_properties(properties, message)
            message.properties = read_headers(request.raw_headers)
        with self._bodies.read() as body:
            message.body = await _whole(request, body, queue)
            if is_batch:
                await self._sends.send_batch(queue, message.body)
            else:
                await self._sends.send(queue, message)
        return web.Response(status=201)


async def _whole(request: web.Request, body: Body, queue: Entity) -> bytes:
    """A request's body, which is no larger than the largest message of the entity. Raises HttpRefusal,
    Refused."""
    if (length := request.content_length) is not None and length > queue.message_bytes_max:
        raise too_large(queue, length)
    content = bytearray()
    async for chunk in request.content.iter_any():
        if len(content) + len(chunk) > queue.message_bytes_max:
            raise too_large(queue, len(content) + len(chunk))
        body.grows(len(chunk))
        content += chunk
    return bytes(content)


def _gone(why: Refused) -> HttpRefusal:
    """The answer for a missing entity: 410, unlike that of administration (HTTP contract 4.1)."""
    return HttpRefusal(410, 0, why.description)
