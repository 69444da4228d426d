"""Send to a queue: admit, check and place messages, and follow them until they are stored or refused.

Messages that come together go to their partitions as one `Send` each, and are acknowledged once the partition
reports that they are durable (durability rule 1). A message is refused by itself; a batch (AMQP contract 4.5)
goes to one partition as a whole, or is refused as a whole. Messages that a partition cannot take go to
another one, unless a key pins them.

Knows nothing of AMQP. Runs in the event loop; nothing here waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat, zip_longest
from operator import itemgetter
from typing import Generic, Protocol, TypeVar

from broker.base.errors import Reason, Refused
from broker.message.batch_envelope import RoutingHint, split
from broker.message.identity import key_text
from broker.message.property_sizes import beyond
from broker.message.stored import StoredRun, store_run, store_together
from broker.messaging.fail_over import fail_over, refusal_of
from broker.messaging.guarded_sink import guarded
from broker.messaging.sends import send_of
from broker.namespace.entity import Entity, next_client
from broker.namespace.router import PartitionHandle
from broker.operations.general import Failed
from broker.operations.interface import Answer
from broker.operations.sending import Send, Sent
from broker.send_lists import at, lists_of, merged, part_of, with_lists
from broker.throttle.memory_mark import Memory
from broker.throttle.throttle import throttled

JOINED_MESSAGES_MAX, JOINED_BYTES_MAX = 64, 128 * 1024
"""Messages that wait in a mailbox and those that come after them become one operation, up to this size. An
operation costs as much as a few messages, and many keys divide each read of a client over all partitions."""
TAKEN_APART_AT_ONCE = 64
"""Messages of a batch to store in one step, which takes less than a millisecond."""

_OUTCOMES = (Sent, Failed)

R = TypeVar("R")
"""A sender's receipt for a message, returned with its outcome."""


class UnderWay(Protocol):
    """Counts the messages that wait for their outcome: the sender's connection."""

    def took(self, size: int, messages: int) -> None:
        """Messages of `size` bytes now wait for their outcome."""

    def finished_with(self, size: int, messages: int) -> None:
        """Messages of `size` bytes have their outcome."""

    def fail(self) -> None:
        """An unexpected exception is being handled: end this client, and no other."""


class _Whole:
    """A batch whose messages go to several partitions. It has one outcome."""

    __slots__ = ("_left", "failed", "last")

    def __init__(self, parts: int, last: Send | None) -> None:
        self._left = parts
        self.failed: Failed | None = None
        """The first refusal."""
        self.last = last
        """Messages to post once all others are durable."""

    def waits_for_more(self, answer: Sent | Failed) -> bool:
        """Take a partition's answer. Returns whether others have not answered yet."""
        if isinstance(answer, Failed) and self.failed is None:
            self.failed = answer
        self._left -= 1
        return self._left > 0


@dataclass(slots=True)
class _Underway(Generic[R]):
    """Messages that one partition was asked to store."""

    send: Send
    receipts: Sequence[R]
    count: int
    """The number of outcomes to report: one for a whole batch."""
    size: int
    """The messages' size in bytes."""
    number: int | None
    """The partition; None if their key pins them to it."""
    began: float
    """When they were posted, by the loop's clock."""
    refused_by: dict[int, Reason] = field(default_factory=dict)
    """Partitions that refused them, and why."""
    whole: _Whole | None = None
    """The batch that they are a part of, if it went to several partitions."""

    def may_grow(self, send: Send, size: int) -> bool:
        """Whether so many messages of `size` bytes more are not too much for one operation."""
        messages = self.count + len(send.messages)
        return messages <= JOINED_MESSAGES_MAX and self.size + size <= JOINED_BYTES_MAX

    def grow(self, receipts: Sequence[R], count: int, size: int) -> None:
        """The partition has added messages to `send`."""
        self.receipts = [*self.receipts, *receipts]
        self.count += count
        self.size += size


@dataclass(slots=True)
class Collected:
    """Messages that were checked, and are to be sent with a transaction."""

    send: Send
    keys: Sequence[str | None]
    """The keys that pin them to a partition; None for messages without one. A batch has one key, unless
    its messages go by their message-ids."""


class Sending(Generic[R]):
    """What one client sends to a queue."""

    __slots__ = (
        "_client",
        "_loop",
        "_memory",
        "_message_id",
        "_pinned",
        "_queue",
        "_refused",
        "_sends",
        "_stored",
        "_under_way",
        "_waiting",
    )

    def __init__(
        self,
        queue: Entity,
        under_way: UnderWay,
        *,
        stored: Callable[[Sequence[R], int], None],
        refused: Callable[[Sequence[R], Refused, int], None],
        memory: Memory,
        message_id: Callable[[], str],
    ) -> None:
        """`stored` and `refused` report outcomes: they get the messages' receipts and the number of outcomes.
        A batch has one outcome. There are no receipts if the client does not wait for outcomes.

        `message_id` makes ids for messages that have none.
        """
        self._queue, self._under_way = queue, under_way
        self._stored, self._refused = stored, refused
        self._memory, self._message_id = memory, message_id
        self._client = next_client()
        self._loop = asyncio.get_running_loop()
        self._sends = 0
        self._waiting: dict[int, _Underway[R]] = {}
        """By cookie."""
        self._pinned: dict[int, int] = {}
        """The cookie of the last messages with a key, by partition."""

    # --- messages in ----------------------------------------------------------------------------------------

    def send(self, payloads: Sequence[bytes], receipts: Sequence[R]) -> None:
        """Send messages that each have their own outcome. Messages without a key go round the partitions in
        runs; the others go to the partitions of their keys, as one operation each.

        Raises Refused if the broker takes none of them for now, and has refused none by itself.
        """
        throttle, count = self._queue.throttle, len(payloads)
        admitted = count if throttle is None else throttle.admit_some(count, self._queue.filters)
        if admitted == count:
            self._send_admitted(payloads, receipts)
            return
        self._refused(receipts[admitted:], throttled(), count - admitted)
        if not admitted:
            return
        try:
            self._send_admitted(payloads[:admitted], receipts[:admitted])
        except Refused as why:  # the caller would refuse all of them, so some twice
            self._refused(receipts[:admitted], why, admitted)

    def _send_admitted(self, payloads: Sequence[bytes], receipts: Sequence[R]) -> None:
        """Send messages that the throttling has let through. Raises Refused if none of them is taken."""
        self._memory.admit(len(payloads))
        queue = self._queue
        run = store_run(payloads, self._message_id)
        if queue.property_limits is not None or queue.sends_need_session:
            check_sent(run, payloads, queue)
        queue.admit(payloads)
        keys, whole = None, send_of(run, queue)
        if run.session_ids is not None or run.partition_keys is not None or whole.identities is not None:
            keys = keys_of(run, queue)
        if run.refused:
            for index, why in run.refused.items():
                self._refused(receipts[index : index + 1], why, 1)
            take = at([index for index in range(len(payloads)) if index not in run.refused])
            whole, keys, receipts = part_of(whole, take), keys and take(keys), receipts and take(receipts)
        if not whole.messages:
            return
        size, is_lone = self._count(whole), not self._waiting and len(whole.messages) == 1
        whole.is_lone = is_lone
        if keys is None:
            self._post_unkeyed(whole, receipts, size)
            return
        if len(queue.router.handles) == 1:  # one order for all: those with and without a key stay together
            self._post_pinned(0, whole, receipts)
            return
        for number, (own, *lists) in self._queue.router.divide(keys, [receipts, *lists_of(whole)]):
            part = with_lists(whole, lists)
            part.is_lone = is_lone
            if number is None:
                self._post_unkeyed(part, own)
            else:
                self._post_pinned(number, part, own)

    def _post_pinned(self, number: int, send: Send, receipts: Sequence[R]) -> None:
        """Ask the partition of their keys to store messages, together with the last ones if these still wait
        there."""
        try:
            handle = self._queue.router.pinned(number)
        except Refused as why:
            self._give_up(send, receipts, why)
            return
        count, size = len(send.messages), sum(map(len, send.messages))
        cookie = self._pinned.get(number, 0)
        last = self._waiting.get(cookie)
        if (
            last is not None
            and not self._queue.makes_copies
            and last.may_grow(send, size)
            and handle.join(send, self._client, cookie)
        ):
            last.grow(receipts, count, size)
            last.send.is_lone = False
            return
        self._post(handle, send, receipts, count, size=size)
        self._pinned[number] = self._sends

    def _give_up(self, send: Send, receipts: Sequence[R], why: Refused) -> None:
        """Refuse messages that were counted as under way and cannot be posted."""
        self._under_way.finished_with(sum(map(len, send.messages)), len(send.messages))
        self._refused(receipts, why, len(send.messages))

    def _post_unkeyed(self, whole: Send, receipts: Sequence[R], size: int | None = None) -> None:
        """Post messages without a key to the partitions whose turn it is. `size` is theirs in bytes, if it is
        known."""
        router, count = self._queue.router, len(whole.messages)
        try:
            runs = router.spread(count, self._loop.time())
        except Refused as why:
            self._give_up(whole, receipts, why)
            return
        if len(runs) == 1:
            number, _, _ = runs[0]
            self._post(router.handles[number], whole, receipts, count, number, size=size)
            return
        for number, start, stop in runs:
            here = slice(start, stop)
            part = part_of(whole, itemgetter(here))
            self._post(router.handles[number], part, receipts[here], stop - start, number)

    def send_batch(self, payload: bytes, receipts: Sequence[R]) -> Iterator[None]:
        """Enqueue a batch as a whole, in one partition: that of its messages' single key, else the next
        one in order (AMQP contract 4.5). If the entity detects duplicates, the messages of a batch without a
        key go to the partitions of their message-ids (AMQP contract 10.5), and those without an id to one
        partition together. Raises Refused.

        A batch may hold thousands of messages, so it is taken apart in steps and posted in the last one.
        """
        self._memory.admit(0)  # above the memory mark, do not even take the batch apart
        throttle = self._queue.throttle
        if throttle is not None:
            throttle.admit(0)  # the same without any credits
        inner, hint = split(payload)
        if throttle is not None:
            throttle.admit_all(len(inner), self._queue.filters)
        self._memory.admit(len(inner))
        made: set[str] = set()

        def message_id() -> str:
            made.add(new := self._message_id())
            return new

        if not inner:
            raise Refused(Reason.ARGUMENT, "The batch holds no message.")
        self._queue.admit(inner)
        parts: list[Send] = []
        keys: set[str] = set()
        groups: dict[int | None, list[int]] = {}
        for start in range(0, len(inner), TAKEN_APART_AT_ONCE):
            yield
            some = inner[start : start + TAKEN_APART_AT_ONCE]
            run = store_together(some, message_id)
            check_sent(run, some, self._queue)
            if run.refused:
                raise run.refused.pop(min(run.refused))
            keys.update(_given_keys(run, self._queue))
            parts.append(send_of(run, self._queue))
            if parts[0].identities is not None:
                for index, message in enumerate(run.data, start):
                    id = key_text(message)
                    number = None if id in made else self._queue.router.number_of(id)
                    groups.setdefault(number, []).append(index)
        key = self._key_of_batch(keys, hint)
        router, whole = self._queue.router, merged(parts)
        if key is not None:
            handle = router.keyed(key)
            size = self._count(whole)
            self._post(handle, whole, receipts, 1, size=size)
        elif groups.keys() - {None}:
            self._post_split(groups, whole, receipts)
        else:
            number = router.spread(1, self._loop.time())[0][0]
            size = self._count(whole)
            self._post(router.handles[number], whole, receipts, 1, number, size=size)

    def _post_split(
        self, groups: Mapping[int | None, Sequence[int]], send: Send, receipts: Sequence[R]
    ) -> None:
        """Post the messages of a batch to several partitions: `groups` has the places of their messages, and
        under None of those without a message-id.

        The batch is accepted once all of them are durable, and refused if one partition refuses; if it is
        sent again, the others drop what they have. Nobody would know messages without an id as duplicates,
        so they are posted together, once all others are durable. Raises Refused if a partition is known to
        be down; then nothing is posted.
        """
        router = self._queue.router
        parts = [
            (router.pinned(number), part_of(send, at(places)))
            for number, places in groups.items()
            if number is not None
        ]
        whole = _Whole(len(parts), part_of(send, at(groups[None])) if None in groups else None)
        self._count(send)
        for handle, part in parts:
            self._post(handle, part, receipts, 1, whole=whole)

    def _post_last(self, last: Send, receipts: Sequence[R]) -> None:
        """Post the messages of a batch that have no message-id: all others are durable."""
        try:
            number = self._queue.router.spread(1, self._loop.time())[0][0]
        except Refused as why:
            self._drop_last(last)
            self._refused(receipts, why, 1)
        else:
            self._post(self._queue.router.handles[number], last, receipts, 1, number)

    def _drop_last(self, last: Send) -> None:
        """Stop counting the messages without a message-id of a batch that is refused."""
        self._under_way.finished_with(sum(map(len, last.messages)), len(last.messages))

    def _key_of_batch(self, keys: Collection[str], hint: RoutingHint) -> str | None:
        """The key of a batch with these keys; None if it has none (AMQP contract 4.5). Raises Refused if it
        has several."""
        if len(keys) > 1 and self._queue.description.partitions > 1:
            one, other, *_ = sorted(keys)
            what = "session ids" if self._queue.sends_need_session else "partition keys"
            raise Refused(
                Reason.NOT_ALLOWED,
                f"The batch carries different {what} ('{one}' and '{other}'): a batch goes to "
                "one partition of the entity as a whole. Send one batch for each key.",
            )
        if self._queue.sends_need_session:
            return next(iter(keys))  # an empty one is a session too
        return next(iter(keys), "") or hint.session_id or hint.partition_key or None

    def collect(self, payloads: Sequence[bytes], *, is_batch: bool) -> Collected:
        """Check messages that are to be sent with a transaction or through another entity: single ones, or
        those of one batch. Raises Refused if any of them cannot be sent.

        Whether the entity that stores them has room is not checked: only the caller knows which one does.
        """
        hint: RoutingHint | None = None
        if is_batch:
            payloads, hint = split(payloads[0])
            if not payloads:
                raise Refused(Reason.ARGUMENT, "The batch holds no message.")
        if self._queue.throttle is not None:
            self._queue.throttle.admit_all(len(payloads), self._queue.filters)
        self._memory.admit(len(payloads))
        run = store_together(payloads, self._message_id)
        check_sent(run, payloads, self._queue)
        if run.refused:
            raise run.refused.pop(min(run.refused))
        whole = send_of(run, self._queue)
        key = None if hint is None else self._key_of_batch(set(_given_keys(run, self._queue)), hint)
        if key is not None or (hint is not None and whole.identities is None):
            return Collected(whole, [key])
        return Collected(whole, keys_of(run, self._queue) or [None] * len(payloads))

    def _count(self, send: Send) -> int:
        """Count messages as under way; returns their size in bytes."""
        size = sum(map(len, send.messages))
        self._under_way.took(size, len(send.messages))
        return size

    def _post(
        self,
        partition: PartitionHandle,
        send: Send,
        receipts: Sequence[R],
        count: int,
        number: int | None = None,
        whole: _Whole | None = None,
        size: int | None = None,
    ) -> None:
        """Ask a partition to store messages, which are counted as under way. `number` is the partition's if
        another one may take them instead; `whole` is the batch that they are a part of; `size` is theirs in
        bytes, if it is known."""
        if count > 1 and self._queue.makes_copies:
            # There is a limit to the copies of messages that are sent together, and these are not.
            for place in range(count):
                here = slice(place, place + 1)
                self._post(partition, part_of(send, itemgetter(here)), receipts[here], 1, number)
            return
        if size is None:
            size = sum(map(len, send.messages))
        self._sends += 1
        send.cookie = self._sends
        began = self._loop.time()
        self._waiting[self._sends] = _Underway(send, receipts, count, size, number, began, {}, whole)
        partition.post(send, self._client, self._answered)

    # --- outcomes back --------------------------------------------------------------------------------------

    def _fail(self) -> None:
        """An unexpected exception is being handled: end this client, and no other."""
        self._under_way.fail()

    @guarded
    def _answered(self, answer: Answer) -> None:
        if not isinstance(answer, _OUTCOMES):  # Unavailable: each send under way gets its own answer
            return
        assert isinstance(answer.cookie, int), "cookies of a sender are numbers"
        sent = self._waiting.pop(answer.cookie)
        messages = len(sent.send.messages)
        if isinstance(answer, Failed) and self._sent_elsewhere(sent, answer):
            return
        self._under_way.finished_with(sent.size, messages)
        outcome = answer if sent.whole is None else self._outcome_of(sent.whole, sent.receipts, answer)
        if isinstance(outcome, Sent):
            self._stored(sent.receipts, sent.count)
        elif outcome is not None:
            self._refused(sent.receipts, refusal_of(self._queue, sent, outcome), sent.count)
        meter = self._queue.meter  # last, because the client does not wait for it
        if isinstance(answer, Sent):
            meter.incoming_messages += messages
            meter.incoming_bytes += sent.size
            meter.duplicate_messages += len(answer.duplicates)
        if isinstance(outcome, Sent):
            meter.successful_requests += sent.count
            meter.send_seconds.observe(self._loop.time() - sent.began)

    def _outcome_of(
        self, whole: _Whole, receipts: Sequence[R], answer: Sent | Failed
    ) -> Sent | Failed | None:
        """The outcome of a batch, given the answer to one of its parts; None if there is none yet."""
        if whole.waits_for_more(answer):
            return None
        outcome = whole.failed or answer
        if whole.last is not None:
            if isinstance(outcome, Sent):
                self._post_last(whole.last, receipts)
                return None
            self._drop_last(whole.last)
        return outcome

    def _sent_elsewhere(self, sent: _Underway[R], failed: Failed) -> bool:
        """Post messages without a key to another partition if theirs is down or full (`fail_over.py`);
        returns whether it did."""
        number = fail_over(self._queue, sent, failed, len(sent.send.messages), self._loop.time())
        if number is None:
            return False
        assert isinstance(sent.send.cookie, int), "cookies of a sender are numbers"
        self._waiting[sent.send.cookie] = sent
        self._queue.router.handles[number].post(sent.send, self._client, self._answered)
        return True


def check_sent(run: StoredRun, payloads: Sequence[bytes], queue: Entity) -> None:
    """Refuse messages that clients may not send to this queue. `payloads` are the messages as they came."""
    if queue.property_limits is not None:
        run.refused.update(beyond(payloads, run.refused, queue.property_limits))
    check(run, queue)


def check(run: StoredRun, queue: Entity) -> None:
    """Refuse messages that this queue does not take."""
    if queue.sends_need_session:
        for index, session_id in enumerate(run.session_ids or repeat(None, len(run.data))):
            if session_id is None:
                run.refused.setdefault(index, _without_session())


def keys_of(run: StoredRun, queue: Entity) -> Sequence[str | None] | None:
    """The keys that pin the messages to partitions (AMQP contract 10.7): the session-id, else the
    partition-key, else, with duplicate detection, the message-id. None if no message has a key."""
    sessions, keys = run.session_ids, run.partition_keys
    if queue.sends_need_session:
        return sessions  # an empty one is a session too
    if sessions is not None and keys is not None:
        keys = [session or key for session, key in zip(sessions, keys, strict=True)]
    elif sessions is not None:
        keys = [session or None for session in sessions]
    if queue.description.settings.requires_duplicate_detection:
        keys = [
            key or (key_text(data) if data else None)
            for key, data in zip(keys or [None] * len(run.data), run.data, strict=True)
        ]
    return keys


def _given_keys(run: StoredRun, queue: Entity) -> Iterator[str]:
    """The keys that senders have given messages: the session-id, else the partition-key."""
    has_sessions = queue.sends_need_session
    for session, key in zip_longest(run.session_ids or (), run.partition_keys or ()):
        either = session or key
        if either or (has_sessions and either is not None):
            yield either


def _without_session() -> Refused:
    return Refused(
        Reason.NOT_ALLOWED,
        "The SessionId was not set on a message, and it cannot be sent to the entity, which requires "
        "sessions.",
    )


def too_large(queue: Entity, size: int) -> Refused:
    """The refusal of a message over the queue's limit."""
    return Refused(
        Reason.MESSAGE_TOO_LARGE,
        f"The received message (delivery-size: {size} bytes) exceeds the limit "
        f"({queue.message_bytes_max} bytes) of the entity "
        f"'{queue.name}'.",
    )
