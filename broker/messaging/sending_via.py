"""Send messages to an entity through another one, the via entity, outside any transaction (AMQP contract
8.3).

The via entity's partition keeps the messages durably, and then they are acknowledged. They are transferred
afterwards. Messages without a key go to another partition if one cannot take them. Knows nothing of AMQP.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from broker.base.errors import Reason, Refused
from broker.entities.descriptions import MESSAGE_OVERHEAD_BYTES
from broker.message.transfers import via_partition_key
from broker.messaging.fail_over import fail_over, refusal_of
from broker.messaging.guarded_sink import guarded
from broker.messaging.sending import Collected, UnderWay
from broker.messaging.sends import transfer_of
from broker.namespace.entity import Entity, next_client
from broker.operations.general import Failed
from broker.operations.interface import Answer
from broker.operations.sending import Send
from broker.operations.transactions import Transact, Transacted
from broker.send_lists import at, part_of

R = TypeVar("R")
"""A sender's receipt for a message, returned with its outcome."""


@dataclass(slots=True)
class _Underway(Generic[R]):
    """Messages that one partition was asked to keep."""

    operation: Transact
    receipts: Sequence[R]
    count: int
    """The number of outcomes to report: one for a whole batch."""
    size: int
    messages: int
    number: int | None
    """The partition; None if their key pins them to it."""
    began: float
    """When they were posted, by the loop's clock."""
    refused_by: dict[int, Reason] = field(default_factory=dict)
    """Partitions that refused them, and why."""


def check_destination(destination: Entity, collected: Collected) -> None:
    """Check that messages that are sent through another entity fit into their destination, as far as is known
    now: what is full when they are transferred can only dead-letter them (AMQP contract 8.3). Raises
    Refused(QUOTA_EXCEEDED)."""
    router, messages, keys = destination.router, collected.send.messages, collected.keys
    destination.check_total_room(messages)
    sizes: dict[int, int] = {}
    largest = 0
    for message, key in zip(messages, keys if len(keys) > 1 else [*keys] * len(messages), strict=True):
        size = len(message) + MESSAGE_OVERHEAD_BYTES
        if key is None:  # any partition with room takes it
            largest = max(largest, size)
        else:
            number = router.number_of(key)
            sizes[number] = sizes.get(number, 0) + size
    for number, size in sizes.items():
        destination.check_room(number, size)
    if largest:
        refused: Refused | None = None
        for number in range(len(router.handles)):
            try:
                destination.check_room(number, largest)
            except Refused as why:
                refused = why
            else:
                return
        assert refused is not None, "an entity has partitions"
        raise refused


class SendingVia(Generic[R]):
    """What one client sends to one entity through another one."""

    __slots__ = (
        "_client",
        "_cookies",
        "_destination",
        "_loop",
        "_passed_on",
        "_refused",
        "_stored",
        "_under_way",
        "_via",
        "_waiting",
    )

    def __init__(
        self,
        via: Entity,
        destination: Entity,
        under_way: UnderWay,
        *,
        stored: Callable[[Sequence[R], int], None],
        refused: Callable[[Sequence[R], Refused, int], None],
        passed_on: Callable[[Entity, int], None],
    ) -> None:
        """`stored` and `refused` are as those of `Sending`; `passed_on` is told of partitions that are about
        to get messages for other entities."""
        self._via, self._destination, self._under_way = via, destination, under_way
        self._stored, self._refused, self._passed_on = stored, refused, passed_on
        self._client, self._cookies = next_client(), 0
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[int, _Underway[R]] = {}

    def send(self, collected: Collected, receipts: Sequence[R]) -> None:
        """Send one message, or those of one batch: they have one outcome. Raises Refused.

        They go to the partition of their via-partition-key, else to that of their own key, else to the next
        one in order.
        """
        check_destination(self._destination, collected)
        self._via.admit(collected.send.messages)
        send, router = collected.send, self._via.router
        given = [*map(via_partition_key, send.messages), *collected.keys]
        key = next((each for each in given if each), None)
        if key is not None:
            number = router.number_of(key)
            router.pinned(number)
        else:
            number = router.spread(1, self._loop.time())[0][0]
        self._keep(send, receipts, 1, number, is_pinned=key is not None)

    def send_each(self, collected: Collected, receipts: Sequence[R]) -> None:
        """Send messages that each have their own outcome. Those that go to the same partition go there
        together, and it stores all of them or none. Raises Refused if they do not fit into the destination;
        then nothing was sent."""
        check_destination(self._destination, collected)
        self._via.admit(collected.send.messages)
        send, router = collected.send, self._via.router
        groups: dict[int, list[int]] = {}
        without_key: list[int] = []
        for place, (message, own) in enumerate(zip(send.messages, collected.keys, strict=True)):
            key = via_partition_key(message) or own
            (groups.setdefault(router.number_of(key), []) if key else without_key).append(place)
        for number, places in groups.items():
            take = at(places)
            try:
                router.pinned(number)
            except Refused as why:
                self._refused(receipts and take(receipts), why, len(places))
            else:
                self._keep(part_of(send, take), receipts and take(receipts), len(places), number)
        if not without_key:
            return
        try:
            runs = router.spread(len(without_key), self._loop.time())
        except Refused as why:
            self._refused(receipts and at(without_key)(receipts), why, len(without_key))
            return
        for number, start, stop in runs:
            take = at(without_key[start:stop])
            part, mine = part_of(send, take), receipts and take(receipts)
            self._keep(part, mine, stop - start, number, is_pinned=False)

    def _keep(
        self, send: Send, receipts: Sequence[R], count: int, number: int, *, is_pinned: bool = True
    ) -> None:
        """Have a partition keep messages that have `count` outcomes."""
        self._cookies += 1
        size = sum(map(len, send.messages))
        transfers = transfer_of(send, self._destination.name)
        operation = Transact(Send((), None), (), self._cookies, transfers=transfers)
        self._under_way.took(size, len(send.messages))
        began, free = self._loop.time(), None if is_pinned else number
        self._post(_Underway(operation, receipts, count, size, len(send.messages), free, began), number)

    def _post(self, sent: _Underway[R], number: int) -> None:
        assert isinstance(sent.operation.cookie, int), "cookies of a sender are numbers"
        self._waiting[sent.operation.cookie] = sent
        self._passed_on(self._via, number)
        self._via.router.handles[number].post(sent.operation, self._client, self._answered)

    def _fail(self) -> None:
        """An unexpected exception is being handled: end this client, and no other."""
        self._under_way.fail()

    @guarded
    def _answered(self, answer: Answer) -> None:
        if not isinstance(answer, Transacted | Failed):
            return
        assert isinstance(answer.cookie, int), "cookies of a sender are numbers"
        sent = self._waiting.pop(answer.cookie)
        if isinstance(answer, Failed) and self._sent_elsewhere(sent, answer):
            return
        self._under_way.finished_with(sent.size, sent.messages)
        if isinstance(answer, Transacted):
            self._stored(sent.receipts, sent.count)
            return
        self._refused(sent.receipts, refusal_of(self._via, sent, answer), sent.count)

    def _sent_elsewhere(self, sent: _Underway[R], failed: Failed) -> bool:
        """Post messages without a key to another partition if theirs is down or full (`fail_over.py`);
        returns whether it did."""
        number = fail_over(self._via, sent, failed, sent.messages, self._loop.time())
        if number is None:
            return False
        self._post(sent, number)
        return True
