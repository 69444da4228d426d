"""Carries out transactions that change rules of a topic, and finishes what a crash has left of them.

A topic's rules are in its description, which is kept in the catalogue, while a transaction is one commit of
one partition. So the commit notes the changes, in the frame that has the transaction's messages and
settlements. Then the description is changed, and the partition forgets them. No other change of the topic
comes in between, and the client is told after all this. If the description cannot be changed now, or the
broker ends before, it is changed as soon as possible, or once the partition is open again.

Only plain topics take part: rules hold on all partitions, and a transaction is in one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import structlog

from broker.base.errors import Refused
from broker.entities.rule_changes import decode_changes
from broker.entities.topics import TopicDescription
from broker.namespace.entity import Entity, ask
from broker.namespace.subscriptions import Subscriptions
from broker.operations import Answer, Failed, Sink, Transact, Transacted
from broker.rule_operations import FindRuleChanges, ForgetRuleChanges, RuleChangesFound

log = structlog.get_logger("rules")

RETRY_S, RETRY_S_MAX = 1.0, 60.0
"""The first pause before the description is changed again, which doubles, and the longest one."""


class RuleTransactions:
    """Changes rules for transactions. Owned by the event loop."""

    def __init__(self, subscriptions: Subscriptions, spawn: Callable[..., asyncio.Task[None]]) -> None:
        """`spawn` runs a coroutine under a name, and logs its errors."""
        self._subscriptions, self._spawn = subscriptions, spawn
        self._finishing: set[str] = set()
        """Generations of topics that are being looked at."""

    def commit(self, topic: Entity, operation: Transact, sink: Sink) -> None:
        """Carry out a transaction that changes rules of a plain topic. `sink` gets the answer."""
        self._spawn(self._commit(topic, operation, sink), name=f"rules of {topic.name} change")

    def finish(self, topic: Entity) -> None:
        """Make the changes that are noted in the partition of a topic."""
        if topic.description.generation not in self._finishing:
            self._finishing.add(topic.description.generation)
            self._spawn(self._finish(topic), name=f"rules of {topic.name} follow")

    async def _commit(self, topic: Entity, operation: Transact, sink: Sink) -> None:
        answer: Answer | None = None

        async def carry_out() -> None:
            nonlocal answer
            answer = await ask(topic.router.handles[0], operation)

        description = topic.description
        assert isinstance(description, TopicDescription) and description.partitions == 1
        changes = decode_changes(operation.rule_changes)
        try:
            await self._subscriptions.make_changes(description, changes, carry_out)
        except Refused as why:
            if answer is None:
                sink(Failed(why.reason, why.description, operation.cookie))
                return
            log.warning("rules.not_changed_yet", entity=topic.name, reason=why.description)
            self.finish(topic)
        else:
            await self._forget(topic, [operation.change_id])
        assert isinstance(answer, Transacted), f"{answer} is not an answer to Transact"
        sink(answer)

    async def _finish(self, topic: Entity) -> None:
        pause_s = RETRY_S
        try:
            while topic.gone is None:
                try:
                    await self._make_noted_changes(topic)
                    return
                except Refused:
                    await asyncio.sleep(pause_s)
                    pause_s = min(2 * pause_s, RETRY_S_MAX)
        finally:
            self._finishing.discard(topic.description.generation)

    async def _make_noted_changes(self, topic: Entity) -> None:
        """Raises Refused."""
        noted = await ask(topic.router.handles[0], FindRuleChanges())
        assert isinstance(noted, RuleChangesFound), f"{noted} is not an answer to FindRuleChanges"
        description = topic.description
        assert isinstance(description, TopicDescription), "only topics have rules"
        changes = [change for each in noted.changes for change in decode_changes(each)]
        await self._subscriptions.make_changes(description, changes)
        await self._forget(topic, noted.ids)

    async def _forget(self, topic: Entity, ids: Sequence[bytes]) -> None:
        try:
            await ask(topic.router.handles[0], ForgetRuleChanges(ids))
        except Refused:
            self.finish(topic)  # the changes are made again, which changes nothing
