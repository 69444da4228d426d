"""The client sends: credit out, operations in, outcomes back.

Messages that one read of the socket brought go to their partitions as one `Send` each, and are acknowledged when the
partition says that they are durable (durability rule 1). A message that is refused is refused alone; a batch (message
format 0x80013700) is one delivery: all of it goes to one partition, or none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from broker.entities import MAIN
from broker.errors import Reason, Refused
from broker.frontend.addresses import Address
from broker.frontend.answers import error_of
from broker.frontend.batch import split
from broker.operations import Answer, Failed, Send, Sent
from broker.queue import Queue, next_client
from broker.router import PartitionHandle
from broker.stored_message import StoredMessage, store
from protocol.codec import Symbol, ULong
from protocol.engine import Delivery
from protocol.events import MessagesReceived, MessageTooLarge
from protocol.links import Link

if TYPE_CHECKING:
    from broker.frontend.connection import Connection


class IncomingLink:
    """A link on which a client sends to a queue. Owned by its connection."""

    RIGHT = "Send"

    @classmethod
    def attach(cls, connection: Connection, link: Link, queue: Queue, address: Address) -> None:
        """Accept the link and grant its first credit. Raises Refused."""
        if address.subqueue != MAIN:
            raise Refused(Reason.NOT_ALLOWED, "Messages cannot be sent to a dead-letter queue.")
        check_can_send(queue)
        size_max = queue.description.settings.max_message_size_kb * 1024
        connection.engine.accept_link(
            link, max_message_bytes=size_max, properties={Symbol("com.microsoft:max-message-batch-size"): ULong(size_max)}
        )
        link.context = cls(connection, link, queue, address.path)

    def __init__(self, connection: Connection, link: Link, queue: Queue, path: str) -> None:
        self.link, self.queue, self.path = link, queue, path
        self._connection = connection
        self._client = next_client()
        self._loop = asyncio.get_running_loop()
        self._window = connection.services.settings.link_credit
        self._used = 0
        """Messages that have their outcome, and whose credit was not granted anew yet."""
        self._sends = 0
        self._meter = queue.meter
        self._waiting: dict[int, tuple[Sequence[Delivery], int, int, int, float]] = {}
        """By cookie: the deliveries to settle (none if they came settled), how many there were, messages, bytes, when."""
        queue.watchers.add(self)
        connection.engine.grant(link, self._window)

    # --- messages in ------------------------------------------------------------------------------------------------

    def received(self, event: MessagesReceived | MessageTooLarge) -> None:
        """Transfers of the client (§2.7.5)."""
        if isinstance(event, MessageTooLarge):
            self._refuse(event.deliveries, too_large(self.queue, event.size), 1)
            return
        self.queue.accessed_at_ms = self._connection.services.clock.now_ms()
        if event.batch:
            try:
                self._send_batch(event.payloads[0], event.deliveries)
            except Refused as why:
                self._refuse(event.deliveries, why, 1)
        else:
            self._send_messages(event.payloads, event.deliveries)

    def _send_messages(self, payloads: Sequence[bytes], deliveries: Sequence[Delivery]) -> None:
        """Messages of their own, each with its outcome: those without a key go round in runs, the others where they belong."""
        message_id = self._connection.services.message_id
        settings = self.queue.description.settings
        may_be_plain = not (settings.requires_session or settings.requires_duplicate_detection)
        unkeyed: list[StoredMessage] = []
        unkeyed_deliveries: list[Delivery] = []
        keyed: dict[str, tuple[PartitionHandle, list[StoredMessage], list[Delivery]]] = {}
        for index, payload in enumerate(payloads):
            try:
                message = store(payload, message_id)
                if may_be_plain and message.partition_key is None and message.session_id is None:
                    key = None if message.scheduled_enqueue_time_ms is None else self._key(message)
                else:
                    key = self._key(message)
                if key is None:
                    unkeyed.append(message)
                    if deliveries:
                        unkeyed_deliveries.append(deliveries[index])
                    continue
                run = keyed.get(key)
                if run is None:
                    run = keyed[key] = (self.queue.router.keyed(key), [], [])
                run[1].append(message)
                run[2].extend(deliveries[index : index + 1])
            except Refused as why:
                self._refuse(deliveries[index : index + 1], why, 1)
        if unkeyed:
            self._post_unkeyed(unkeyed, unkeyed_deliveries)
        for partition, messages, own in keyed.values():
            self._post(partition, messages, own, len(messages))

    def _post_unkeyed(self, messages: Sequence[StoredMessage], deliveries: Sequence[Delivery]) -> None:
        try:
            runs = self.queue.router.spread(len(messages))
        except Refused as why:
            self._refuse(deliveries, why, len(messages))
            return
        for partition, start, stop in runs:
            self._post(partition, messages[start:stop], deliveries[start:stop], stop - start)

    def _send_batch(self, payload: bytes, deliveries: Sequence[Delivery]) -> None:
        """A batch is enqueued as a whole, in one partition: its messages' one key says which, else its turn (AMQP contract 4.5)."""
        inner, hint = split(payload)
        message_id = self._connection.services.message_id
        messages = [store(each, message_id) for each in inner]
        if not messages:
            raise Refused(Reason.ARGUMENT, "The batch holds no message.")
        keys = {key for message in messages if (key := self._key(message)) is not None}
        if len(keys) > 1 and self.queue.description.partitions > 1:
            one, other, *_ = sorted(keys)
            raise Refused(
                Reason.NOT_ALLOWED,
                f"The batch carries different partition keys ('{one}' and '{other}'): a batch goes to one partition of the entity as a "
                "whole. Send one batch for each key.",
            )
        key = next(iter(keys), hint.partition_key if hint.session_id is None else hint.session_id)
        router = self.queue.router
        partition = router.spread(1)[0][0] if key is None else router.keyed(key)
        self._post(partition, messages, deliveries, 1)

    def _key(self, message: StoredMessage) -> str | None:
        """What pins a message to a partition (AMQP contract 10.7). Raises Refused for what this queue does not take."""
        settings = self.queue.description.settings
        if message.scheduled_enqueue_time_ms is not None and message.scheduled_enqueue_time_ms > self._connection.services.clock.now_ms():
            raise Refused(Reason.NOT_IMPLEMENTED, "Scheduled messages are not supported by this version.")
        if settings.requires_session and message.session_id is None:
            raise Refused(
                Reason.NOT_ALLOWED, "The SessionId was not set on a message, and it cannot be sent to the entity, which requires sessions."
            )
        key = message.session_id or message.partition_key
        if key is None and settings.requires_duplicate_detection:
            return message.message_id().hex()
        return key

    def _post(self, partition: PartitionHandle, messages: Sequence[StoredMessage], deliveries: Sequence[Delivery], count: int) -> None:
        data = [message.data for message in messages]
        size = sum(map(len, data))
        times_to_live_ms = [message.time_to_live_ms for message in messages]
        self._sends += 1
        self._waiting[self._sends] = (deliveries, count, len(data), size, self._loop.time())
        self._connection.took(size)
        partition.post(Send(data, times_to_live_ms if any(times_to_live_ms) else None, self._sends), self._client, self._answered)

    # --- outcomes back ----------------------------------------------------------------------------------------------

    def _answered(self, answer: Answer) -> None:
        """Called by the partitions' tasks: what goes wrong here ends this connection, and no partition."""
        try:
            self._take(answer)
        except Exception:
            self._connection.fail()

    def _take(self, answer: Answer) -> None:
        if not isinstance(answer, Sent | Failed):  # Unavailable: what was under way is answered on its own
            return
        assert isinstance(answer.cookie, int), "cookies of this link are numbers"
        deliveries, count, messages, size, began = self._waiting.pop(answer.cookie)
        self._connection.finished_with(size)
        if isinstance(answer, Sent):
            self._meter.incoming_messages.inc(messages)
            self._meter.incoming_bytes.inc(size)
            self._meter.successful_requests.inc(count)
            self._meter.send_seconds.observe(self._loop.time() - began)
        if self.link.gone:
            return
        if isinstance(answer, Sent):
            self._connection.engine.accept(deliveries)
            self._replenish(count)
            self._connection.flush_soon()
        else:
            self._refuse(deliveries, Refused(answer.reason, answer.description), count)

    def _refuse(self, deliveries: Sequence[Delivery], why: Refused, count: int) -> None:
        """`count` deliveries are refused: `deliveries`, or none of them if they came settled. Their credit comes back either way."""
        if not self.link.gone:
            self._connection.engine.reject(deliveries, error_of(why))
            self._meter.refused(why.reason, count)
            self._replenish(count)
            self._connection.flush_soon()

    def _replenish(self, count: int) -> None:
        """Grant credit anew, a quarter of the window at a time: a flow costs as much as a message."""
        self._used += count
        if self._used >= max(self._window // 4, 1):
            self._connection.engine.grant(self.link, self._used)
            self._used = 0

    # --- the end ----------------------------------------------------------------------------------------------------

    def credit_granted(self) -> None:
        """A sender's flow says nothing that matters here."""

    def detached(self) -> None:
        """The link is gone. What was sent on it will be stored all the same; nobody waits for it."""
        self.queue.watchers.discard(self)

    def queue_changed(self) -> None:
        """Other settings: the queue may not take messages any more."""
        try:
            check_can_send(self.queue)
        except Refused as why:
            self._connection.close_link(self.link, why)

    def queue_ended(self, why: Refused) -> None:
        """The queue was deleted."""
        self._connection.close_link(self.link, why)


def check_can_send(queue: Queue) -> None:
    """Raises Refused(ENTITY_DISABLED) when the queue's status does not let messages in."""
    status = queue.description.settings.status
    if not status.can_send:
        raise Refused(Reason.ENTITY_DISABLED, f"Entity '{queue.name}' is disabled for sending: its status is {status.value}.")


def too_large(queue: Queue, size: int) -> Refused:
    """The refusal of a message over the queue's limit."""
    size_max = queue.description.settings.max_message_size_kb * 1024
    return Refused(
        Reason.MESSAGE_TOO_LARGE,
        f"The received message (delivery-size: {size} bytes) exceeds the limit ({size_max} bytes) of the entity '{queue.name}'.",
    )
