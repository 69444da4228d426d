"""The client sends: credit out, operations in, outcomes back.

Messages that one read of the socket brought go to their partitions as one `Send` each, and are acknowledged
when the partition says that they are durable (durability rule 1). A message that is refused is refused alone;
a batch (message format 0x80013700) is one delivery: all of it goes to one partition, or none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import repeat, zip_longest

from broker.access.addresses import Address
from broker.base.errors import Reason, Refused
from broker.entities.descriptions import MAIN
from broker.frontend.host import Host
from broker.message.batch_envelope import split
from broker.message.stored import StoredRun, store_run
from broker.message.stored import message_id as stored_message_id
from broker.namespace.queue import Queue, next_client
from broker.namespace.router import PartitionHandle
from broker.operations import Answer, Failed, Send, Sent
from broker.wording import error_of, no_transactions
from protocol.codec import Symbol, ULong
from protocol.events import MessagesReceived, MessageTooLarge
from protocol.links import Delivery, Link

TAKEN_APART_AT_ONCE = 64
"""Messages of a batch: less than a millisecond."""
TRANSFER_DESTINATION = "com.microsoft:transfer-destination-address"
"""Attach property: the link leads to this entity, and what it names as its target stands in between (AMQP
contract 4.1)."""

ONE_DISK = frozenset((Reason.PARTITION_UNAVAILABLE, Reason.QUOTA_EXCEEDED))
SEVERAL_DISKS = ONE_DISK | {Reason.DISK_FULL}
"""Why a partition refuses what another one may take, if the queue is in one data folder or in several."""
ELSEWHERE_WITHIN_S = 7.0
"""Messages that have been under way for longer are posted to no further partition (clients wait 15 s and more
for an outcome)."""


@dataclass(slots=True)
class _Underway:
    """Messages that one partition was asked to store."""

    send: Send
    deliveries: Sequence[Delivery]
    """To be settled; none if they came settled."""
    count: int
    """How many deliveries there were."""
    size: int
    """The messages' bytes."""
    number: int | None
    """The partition; None if their key pins them to it."""
    began: float
    """When, by the loop's clock."""
    refused_by: dict[int, Reason] = field(default_factory=dict)
    """Partitions that did not take them."""


class IncomingLink:
    """A link on which a client sends to a queue. Owned by its connection."""

    rights = ("Send",)

    @classmethod
    def attach(cls, connection: Host, link: Link, queue: Queue, address: Address) -> None:
        """Accept the link and grant its first credit. Raises Refused."""
        if address.subqueue != MAIN:
            raise Refused(Reason.NOT_ALLOWED, "Messages cannot be sent to a dead-letter queue.")
        if (destination := connection.engine.link_properties(link).get(TRANSFER_DESTINATION)) is not None:
            raise Refused(
                Reason.NOT_IMPLEMENTED,
                f"Sending to '{destination!s:.300}' via '{queue.name}' ({TRANSFER_DESTINATION}) is not "
                "supported by this version. "
                "Attach to the destination itself.",
            )
        check_can_send(queue)
        size_max = message_bytes_max(queue)
        connection.engine.accept_link(
            link,
            max_message_bytes=size_max,
            properties={Symbol("com.microsoft:max-message-batch-size"): ULong(size_max)},
        )
        link.context = cls(connection, link, queue, address.path)

    def __init__(self, connection: Host, link: Link, queue: Queue, path: str) -> None:
        self.link, self.queue, self.path = link, queue, path
        self._connection = connection
        self._client = next_client()
        self._loop = asyncio.get_running_loop()
        self._window = connection.services.settings.link_credit
        self._used = 0
        """Messages that have their outcome, and whose credit was not granted anew yet."""
        self._sends = 0
        self._meter = queue.meter
        self._memory = connection.services.memory
        self._batch: Iterator[None] | None = None
        """The batch that is being taken apart."""
        self._waiting: dict[int, _Underway] = {}
        """By cookie."""
        queue.watchers.add(self)
        connection.engine.grant(link, self._window)

    # --- messages in ----------------------------------------------------------------------------------------

    def received(self, event: MessagesReceived) -> bool:
        """Transfers of the client (§2.7.5). False if they are not done in this slice of time: it is to be
        called again with the same."""
        self.queue.accessed_at_ms = self._connection.services.clock.now_ms()
        try:
            if event.batch:
                return self._receive_batch(event)
            self._memory.admit(len(event.payloads))
            self._send_messages(event.payloads, event.deliveries)
        except Refused as why:
            self._refuse(event.deliveries, why, len(event.payloads))
        return True

    def _receive_batch(self, event: MessagesReceived) -> bool:
        steps = self._batch or self._send_batch(event.payloads[0], event.deliveries)
        self._batch = None
        for _ in steps:
            if self._connection.is_late:
                self._batch = steps
                return False
        return True

    def refused(self, event: MessageTooLarge | MessagesReceived) -> None:
        """Refuse a message that is too large, or messages sent in a transaction."""
        if isinstance(event, MessageTooLarge):
            self._refuse(event.deliveries, too_large(self.queue, event.size), 1)
        else:
            self._refuse(event.deliveries, no_transactions(), len(event.payloads))

    def _send_messages(self, payloads: Sequence[bytes], deliveries: Sequence[Delivery]) -> None:
        """Messages of their own, each with its outcome: those without a key go round in runs, the others
        where they belong, as one operation for each partition."""
        run = store_run(payloads, self._connection.services.message_id)
        self._check(run)
        for index, why in run.refused.items():
            self._refuse(deliveries[index : index + 1], why, 1)
        keys = self._keys(run)
        if keys is None and not run.refused:
            self._post_unkeyed(run.data, run.times_to_live_ms, deliveries)
            return
        unkeyed: list[int] = []
        pinned: dict[int, list[int]] = {}
        router = self.queue.router
        for index, key in enumerate(keys or repeat(None, len(payloads))):
            if index in run.refused:
                continue
            group = unkeyed if key is None else pinned.setdefault(router.number_of(key), [])
            group.append(index)
        if unkeyed:
            self._post_unkeyed(*_chosen(run, deliveries, unkeyed))
        for number, indexes in pinned.items():
            data, times_to_live_ms, own = _chosen(run, deliveries, indexes)
            try:
                handle = router.pinned(number)
            except Refused as why:
                self._refuse(own, why, len(indexes))
                continue
            self._post(handle, data, times_to_live_ms, own, len(indexes))

    def _keys(self, run: StoredRun) -> Sequence[str | None] | None:
        """What pins the messages to partitions (AMQP contract 10.7): the session-id, else the partition-key,
        else, with duplicate detection, the message-id. None if nothing pins any of them."""
        sessions, keys = run.session_ids, run.partition_keys
        if sessions is not None and keys is not None:
            keys = [session or key for session, key in zip(sessions, keys, strict=True)]
        elif sessions is not None:
            keys = [session or None for session in sessions]
        if self.queue.description.settings.requires_duplicate_detection:
            keys = [
                key or (stored_message_id(data).hex() if data else None)
                for key, data in zip(keys or [None] * len(run.data), run.data, strict=True)
            ]
        return keys

    def _post_unkeyed(
        self,
        data: Sequence[bytes],
        times_to_live_ms: Sequence[int | None] | None,
        deliveries: Sequence[Delivery],
    ) -> None:
        router = self.queue.router
        try:
            runs = router.spread(len(data), self._loop.time())
        except Refused as why:
            self._refuse(deliveries, why, len(data))
            return
        for number, start, stop in runs:
            here = slice(start, stop)
            self._post(
                router.handles[number],
                data[here],
                times_to_live_ms and times_to_live_ms[here],
                deliveries[here],
                stop - start,
                number,
            )

    def _send_batch(self, payload: bytes, deliveries: Sequence[Delivery]) -> Iterator[None]:
        """A batch is enqueued as a whole, in one partition: its messages' one key says which, else its turn
        (AMQP contract 4.5).

        It may hold thousands of messages, so it is taken apart in steps, and posted with the last one.
        """
        self._memory.admit(0)  # above the mark, not even the batch is taken apart
        inner, hint = split(payload)
        self._memory.admit(len(inner))
        message_id = self._connection.services.message_id
        if not inner:
            raise Refused(Reason.ARGUMENT, "The batch holds no message.")
        data: list[bytes] = []
        times_to_live_ms: list[int | None] = []
        keys: set[str] = set()
        for start in range(0, len(inner), TAKEN_APART_AT_ONCE):
            yield
            run = store_run(inner[start : start + TAKEN_APART_AT_ONCE], message_id)
            self._check(run)
            for first in sorted(run.refused):
                raise run.refused[first]
            for session, key in zip_longest(run.session_ids or (), run.partition_keys or ()):
                if either := session or key:
                    keys.add(either)
            data += run.data
            times_to_live_ms += run.times_to_live_ms or [None] * len(run.data)
        if len(keys) > 1 and self.queue.description.partitions > 1:
            one, other, *_ = sorted(keys)
            raise Refused(
                Reason.NOT_ALLOWED,
                f"The batch carries different partition keys ('{one}' and '{other}'): a batch goes to "
                "one partition of the entity as a "
                "whole. Send one batch for each key.",
            )
        key = next(iter(keys), "") or hint.session_id or hint.partition_key
        if not key and self.queue.description.settings.requires_duplicate_detection:
            key = stored_message_id(data[0]).hex()  # the id that the official clients put on the envelope
        router = self.queue.router
        if key:
            self._post(router.keyed(key), data, times_to_live_ms, deliveries, 1)
        else:
            number = router.spread(1, self._loop.time())[0][0]
            self._post(router.handles[number], data, times_to_live_ms, deliveries, 1, number)

    def _check(self, run: StoredRun) -> None:
        """Add the refusals of what this queue does not take."""
        if run.scheduled_enqueue_times_ms is not None:
            now_ms = self._connection.services.clock.now_ms()
            for index, scheduled_ms in enumerate(run.scheduled_enqueue_times_ms):
                if scheduled_ms is not None and scheduled_ms > now_ms:
                    run.refused[index] = Refused(
                        Reason.NOT_IMPLEMENTED, "Scheduled messages are not supported by this version."
                    )
        if self.queue.description.settings.requires_session:
            for index, session_id in enumerate(run.session_ids or repeat(None, len(run.data))):
                if session_id is None:
                    run.refused.setdefault(index, _without_session())

    def _post(
        self,
        partition: PartitionHandle,
        data: Sequence[bytes],
        times_to_live_ms: Sequence[int | None] | None,
        deliveries: Sequence[Delivery],
        count: int,
        number: int | None = None,
    ) -> None:
        """Ask a partition to store messages; `number` is its own if another one may take them in its
        place."""
        size = sum(map(len, data))
        self._sends += 1
        if times_to_live_ms is not None and not any(times_to_live_ms):
            times_to_live_ms = None
        send = Send(data, times_to_live_ms, self._sends)
        self._waiting[self._sends] = _Underway(send, deliveries, count, size, number, self._loop.time())
        self._connection.took(size, len(data))
        partition.post(send, self._client, self._answered)

    # --- outcomes back --------------------------------------------------------------------------------------

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
        sent = self._waiting.pop(answer.cookie)
        if isinstance(answer, Failed):
            if self._sent_elsewhere(sent, answer):
                return
            answer = self._of_all(sent, answer)
        self._connection.finished_with(sent.size, len(sent.send.messages))
        if isinstance(answer, Sent):
            self._meter.incoming_messages += len(sent.send.messages)
            self._meter.incoming_bytes += sent.size
            self._meter.successful_requests += sent.count
            self._meter.send_seconds.observe(self._loop.time() - sent.began)
        if self.link.gone:
            return
        if isinstance(answer, Sent):
            self._connection.engine.accept(sent.deliveries)
            self._replenish(sent.count)
            self._connection.flush_if_done()
        else:
            self._refuse(sent.deliveries, Refused(answer.reason, answer.description), sent.count)

    def _sent_elsewhere(self, sent: _Underway, failed: Failed) -> bool:
        """Messages without a key do not depend on a partition: what one went down with, or has no room for,
        another one takes.

        Whoever answers `Failed` has said that nothing of them will ever be read there, so they cannot come
        twice (but for a process that ends while that disk still refuses, see `partition/task.py`). Every
        partition is asked once, for ELSEWHERE_WITHIN_S at most: a partition whose disk hangs takes seconds to
        say so, and the client must hear in time that it can try again. A full disk is another matter if it is
        the same one for all partitions: they would all write to it in vain.
        """
        elsewhere = ONE_DISK if self.queue.description.folders == 1 else SEVERAL_DISKS
        if sent.number is None or failed.reason not in elsewhere:
            return False
        router, now = self.queue.router, self._loop.time()
        if now - sent.began > ELSEWHERE_WITHIN_S:
            return False
        if failed.reason is not Reason.PARTITION_UNAVAILABLE:
            router.full(sent.number, now)
        sent.refused_by[sent.number] = failed.reason
        number = router.another(sent.refused_by, len(sent.send.messages), now)
        if number is None:
            return False
        sent.number = number
        assert isinstance(sent.send.cookie, int), "cookies of this link are numbers"
        self._waiting[sent.send.cookie] = sent
        router.handles[number].post(sent.send, self._client, self._answered)
        return True

    def _of_all(self, sent: _Underway, last: Failed) -> Failed:
        """The answer of all partitions together: full for good only if each of them is, for one that is down
        may come back with room."""
        full, partitions = (
            list(sent.refused_by.values()).count(Reason.QUOTA_EXCEEDED),
            self.queue.description.partitions,
        )
        if last.reason is not Reason.QUOTA_EXCEEDED or sent.number is None or full == partitions:
            return last
        text = (
            f"{full} of the {partitions} partitions of '{self.queue.name}' are full, the others are not "
            "available. Please try again."
        )
        return Failed(Reason.PARTITION_UNAVAILABLE, text, last.cookie)

    def _refuse(self, deliveries: Sequence[Delivery], why: Refused, count: int) -> None:
        """`count` deliveries are refused: `deliveries`, or none of them if they came settled. Their credit
        comes back either way."""
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

    # --- the end --------------------------------------------------------------------------------------------

    def credit_granted(self) -> None:
        """A sender's flow says nothing that matters here."""

    def detached(self) -> None:
        """The link is gone. What was sent on it will be stored all the same; nobody waits for it."""
        self.queue.watchers.discard(self)

    def queue_changed(self) -> None:
        """Other settings: the queue may not take messages any more, or others in size."""
        try:
            check_can_send(self.queue)
        except Refused as why:
            self._connection.close_link(self.link, why)
        else:
            self._connection.engine.limit_messages(self.link, message_bytes_max(self.queue))

    def queue_ended(self, why: Refused) -> None:
        """The queue was deleted."""
        self._connection.close_link(self.link, why)


def _chosen(
    run: StoredRun, deliveries: Sequence[Delivery], indexes: Sequence[int]
) -> tuple[list[bytes], list[int | None] | None, list[Delivery]]:
    """The data, times to live and deliveries, if there are any, of some messages of a run."""
    times_to_live_ms = run.times_to_live_ms
    return (
        [run.data[index] for index in indexes],
        times_to_live_ms and [times_to_live_ms[index] for index in indexes],
        [deliveries[index] for index in indexes] if deliveries else [],
    )


def _without_session() -> Refused:
    return Refused(
        Reason.NOT_ALLOWED,
        "The SessionId was not set on a message, and it cannot be sent to the entity, which requires "
        "sessions.",
    )


def check_can_send(queue: Queue) -> None:
    """Raises Refused(ENTITY_DISABLED) when the queue's status does not let messages in."""
    status = queue.description.settings.status
    if not status.can_send:
        raise Refused(
            Reason.ENTITY_DISABLED,
            f"Entity '{queue.name}' is disabled for sending: its status is {status.value}.",
        )


def message_bytes_max(queue: Queue) -> int:
    """The largest message that the queue takes, a batch as a whole counting as one."""
    return queue.description.settings.max_message_size_kb * 1024


def too_large(queue: Queue, size: int) -> Refused:
    """The refusal of a message over the queue's limit."""
    return Refused(
        Reason.MESSAGE_TOO_LARGE,
        f"The received message (delivery-size: {size} bytes) exceeds the limit "
        f"({message_bytes_max(queue)} bytes) of the entity "
        f"'{queue.name}'.",
    )
