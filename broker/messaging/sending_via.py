"""Send messages to an entity through another one, the via entity, outside any transaction (AMQP contract
8.3).

The via entity's partition keeps the messages durably, and then they are acknowledged. They are transferred
afterwards. Knows nothing of AMQP.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from broker.base.errors import Refused
from broker.message.transfers import via_partition_key
from broker.messaging.sending import Collected, UnderWay
from broker.messaging.sends import transfer_of
from broker.namespace.entity import Entity, next_client
from broker.operations import Answer, Failed, Send, Transact, Transacted

R = TypeVar("R")
"""A sender's receipt for a message, returned with its outcome."""


@dataclass(slots=True)
class _Underway(Generic[R]):
    receipts: Sequence[R]
    count: int
    size: int
    messages: int


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
        one in turn.
        """
        send, router = collected.send, self._via.router
        given = [*map(via_partition_key, send.messages), *collected.keys]
        key = next((each for each in given if each), None)
        if self._via.description.partitions == 1:
            number = 0
        elif key is not None:
            number = router.number_of(key)
        else:
            number = router.spread(1, self._loop.time())[0][0]
        handle = router.pinned(number)
        self._passed_on(self._via, number)
        self._cookies += 1
        size = sum(map(len, send.messages))
        transfers = transfer_of(send, self._destination.name)
        self._waiting[self._cookies] = _Underway(receipts, 1, size, len(send.messages))
        self._under_way.took(size, len(send.messages))
        operation = Transact(Send((), None), (), self._cookies, transfers=transfers)
        handle.post(operation, self._client, self._answered)

    def _answered(self, answer: Answer) -> None:
        """Called by the partitions' tasks. An error here ends this client, not the partition."""
        try:
            self._take(answer)
        except Exception:
            self._under_way.fail()

    def _take(self, answer: Answer) -> None:
        if not isinstance(answer, Transacted | Failed):
            return
        assert isinstance(answer.cookie, int), "cookies of a sender are numbers"
        sent = self._waiting.pop(answer.cookie)
        self._under_way.finished_with(sent.size, sent.messages)
        if isinstance(answer, Transacted):
            self._stored(sent.receipts, sent.count)
        else:
            self._refused(sent.receipts, Refused(answer.reason, answer.description), sent.count)
