"""Carries out transactions that change rules of a topic, and finishes what a crash has left of them.

A topic's rules are in its description, which is kept in the catalogue, while a transaction is one commit of
one partition. So the commit notes the changes, in the frame that has the transaction's messages and
settlements. Then the description is changed, and the partition forgets them. No other change of the topic
comes in between, and the client is told after all this. If the description cannot be changed now, or the
broker ends before, it is changed as soon as possible, or once the partition is open again.

Once the description has the changes, only the forgetting is tried again: somebody may have changed the same
rules since. So the description says which changes it has, until the partition is known to have forgotten
them.

Only plain topics take part: rules hold on all partitions, and a transaction is in one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence

import structlog

from broker.base.errors import Refused
from broker.entities.rule_changes import decode_changes
from broker.entities.topics import TopicDescription
from broker.namespace.entity import Entity, ask
from broker.namespace.subscriptions import Subscriptions
from broker.operations.general import Failed
from broker.operations.interface import Answer, Sink
from broker.operations.rule_changes import FindRuleChanges, ForgetRuleChanges, RuleChangesFound
from broker.operations.transactions import Transact, Transacted

log = structlog.get_logger("rules")

RETRY_S, RETRY_S_MAX = 1.0, 60.0
"""The first pause before something is tried again, which doubles, and the longest one."""


class RuleTransactions:
    """Changes rules for transactions. Owned by the event loop."""

    def __init__(self, subscriptions: Subscriptions, spawn: Callable[..., asyncio.Task[None]]) -> None:
        """`spawn` runs a coroutine under a name, and logs its errors."""
        self._subscriptions, self._spawn = subscriptions, spawn
        self._finishing: set[str] = set()
        """Generations of topics that are being looked at."""
        self._own: set[bytes] = set()
        """Ids of changes that this object is making, or has made, until the partition has forgotten them. If
        they are found noted there, they are not made again."""

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
        self._own.add(operation.change_id)
        try:
            noted = await _noted(topic)
            made = self._made_with([operation.change_id], noted)
            await self._subscriptions.make_changes(description, changes, made, carry_out)
        except Refused as why:
            self._own.discard(operation.change_id)
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
        try:
            while await _retried(topic, lambda: self._make_noted_changes(topic)):
                pass  # others may have been noted meanwhile
        finally:
            self._finishing.discard(topic.description.generation)

    async def _make_noted_changes(self, topic: Entity) -> bool:
        """Make the changes that are noted, and have them forgotten. Returns whether there were any. Raises
        Refused."""
        noted = await _noted(topic)
        ids = [each for each in noted if each not in self._own]
        if not ids:
            return False
        description = topic.description
        assert isinstance(description, TopicDescription), "only topics have rules"
        new = [each for each in ids if each.hex() not in description.rule_changes_made]
        if new:
            changes = [change for each in new for change in decode_changes(noted[each])]
            await self._subscriptions.make_changes(description, changes, self._made_with(new, noted))
        self._own.update(ids)
        await self._forget(topic, ids)
        return True

    def _made_with(
        self, ids: Sequence[bytes], noted: Collection[bytes]
    ) -> Callable[[Sequence[str]], Sequence[str]]:
        """Adds changes to those that a topic has. Drops those that its partition has forgotten: it has not
        `noted` them, and they were not made since it said so."""

        def made(before: Sequence[str]) -> Sequence[str]:
            kept = {each.hex() for each in (*noted, *self._own)}
            return [*(each for each in before if each in kept), *(each.hex() for each in ids)]

        return made

    async def _forget(self, topic: Entity, ids: Sequence[bytes]) -> None:
        """Have the partition forget changes that the description has, later if it cannot do so now."""
        try:
            await self._forget_now(topic, ids)
        except Refused:
            self._spawn(self._forget_later(topic, ids), name=f"changed rules of {topic.name} are forgotten")

    async def _forget_now(self, topic: Entity, ids: Sequence[bytes]) -> bool:
        """Raises Refused."""
        await ask(topic.router.handles[0], ForgetRuleChanges(ids))
        self._own.difference_update(ids)
        return True

    async def _forget_later(self, topic: Entity, ids: Sequence[bytes]) -> None:
        if not await _retried(topic, lambda: self._forget_now(topic, ids)):
            self._own.difference_update(ids)


async def _noted(topic: Entity) -> dict[bytes, bytes]:
    """The changes that the partition of a topic has noted, by the ids of their transactions. Raises
    Refused."""
    found = await ask(topic.router.handles[0], FindRuleChanges())
    assert isinstance(found, RuleChangesFound), f"{found} is not an answer to FindRuleChanges"
    return dict(zip(found.ids, found.changes, strict=True))


async def _retried(topic: Entity, do: Callable[[], Awaitable[bool]]) -> bool:
    """What `do` returns once it is not refused; False if the topic ends before."""
    pause_s = RETRY_S
    while topic.gone is None:
        try:
            return await do()
        except Refused:
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, RETRY_S_MAX)
    return False
