"""Transactions that change rules: the partition notes the changes, the topic's description follows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

import pytest

from broker.base.errors import Reason, Refused
from broker.entities.descriptions import EntityDescription, QueueSettings
from broker.entities.rule_changes import RuleChange, encode_changes
from broker.entities.rules import CorrelationFilter, RuleDescription
from broker.entities.subscription_validation import TopicLimits
from broker.entities.topics import SubscriptionSettings, TopicDescription
from broker.messaging import rule_transactions
from broker.messaging.rule_transactions import RuleTransactions
from broker.namespace.entity import ask
from broker.namespace.router import PartitionHandle
from broker.namespace.subscriptions import Subscriptions
from broker.operations.general import Failed
from broker.operations.interface import Answer, Operation
from broker.operations.rule_changes import FindRuleChanges, ForgetRuleChanges, RuleChangesFound
from broker.operations.sending import Send
from broker.operations.settling import Complete
from broker.operations.transactions import Transact, Transacted
from tests.support.forwarding_world import World
from tests.support.topics import RED
from tests.support.waiting import until

A = "subscriptions/a"
ADDED = RuleChange(1, RuleDescription("red", CorrelationFilter(label="red")))
REMOVED = RuleChange(1, removed="$Default")


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rule_transactions, "RETRY_S", 0.001)
    monkeypatch.setattr(rule_transactions, "RETRY_S_MAX", 0.01)


class Namespace:
    """Keeps descriptions in a world, unless that fails."""

    def __init__(self, world: Topics) -> None:
        self._world = world
        self.missing = world.missing
        self._changing = asyncio.Lock()

    def describe(self, name: str) -> EntityDescription | None:
        return self._world.descriptions.get(name)

    async def change_entity(
        self,
        name: str,
        change: Callable[[EntityDescription, int], EntityDescription],
        first: Callable[[], Awaitable[None]] | None = None,
    ) -> EntityDescription:
        world = self._world
        async with self._changing:
            after = change(world.descriptions[name], 7)
            if first is not None:
                await first()
            await world.may_keep.wait()
            if world.fails:
                world.fails -= 1
                raise Refused(Reason.PARTITION_UNAVAILABLE, "the catalogue's disk fails")
            await world.describe(name, after)
            return after


class Topics(World):
    """A plain topic with a subscription, whose description can be kept or not."""

    def __init__(self) -> None:
        super().__init__(other=(1, QueueSettings()))
        topic = TopicDescription("t", "t".rjust(32, "0"), 1)
        self.descriptions["t"] = topic.with_new("a", SubscriptionSettings(), [RuleDescription("$Default")], 1)
        self.fails = 0
        """How many changes cannot be kept."""
        self.may_keep = asyncio.Event()
        """Until this is set, no change ends."""
        self.may_keep.set()

    def start(self) -> None:
        super().start()
        self.subscriptions = Subscriptions(Namespace(self), TopicLimits(subscriptions=5, rules=5))
        self.rules = RuleTransactions(self.subscriptions, partial(self.spawn, life=self.life))
        self.forwarding.rules_left = self.rules.finish
        self.partition_started = self.forwarding._leftovers.look

    async def commit(
        self, *changes: RuleChange, settles: list[bytes] | None = None, change_id: bytes = b"id"
    ) -> Answer:
        """Commit a transaction that sends a message and changes rules."""
        settlements = [Complete(settles)] if settles else []
        operation = Transact(
            Send([RED], None), settlements, "c", change_id=change_id, rule_changes=encode_changes(changes)
        )
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self.rules.commit(self.entities["t"], operation, answer.set_result)
        return await asyncio.wait_for(answer, 10)

    @property
    def names(self) -> list[str]:
        topic = self.descriptions["t"]
        assert isinstance(topic, TopicDescription)
        return [rule.name for rule in topic.subscriptions[0].rules]

    async def noted(self) -> list[bytes]:
        found = await ask(self.entities["t"].router.handles[0], FindRuleChanges())
        assert isinstance(found, RuleChangesFound)
        return found.ids

    async def count(self) -> int:
        return sum(len(page.messages) for page in await self.held("t", A))


@asynccontextmanager
async def topics() -> AsyncIterator[Topics]:
    here = Topics()
    here.start()
    try:
        yield here
    finally:
        await here.crash()


async def test_messages_and_rules_change_together_and_nothing_is_left() -> None:
    async with topics() as here:
        assert await here.commit(ADDED, REMOVED) == Transacted(1, "c")
        assert here.names == ["red"] and await here.count() == 1, "what it sends meets the rules of before"
        assert await here.noted() == []


async def test_a_transaction_whose_rules_cannot_be_changed_does_nothing() -> None:
    async with topics() as here:
        refused = await here.commit(ADDED, RuleChange(1, removed="none"))
        assert isinstance(refused, Failed)
        assert (refused.reason, refused.cookie) == (Reason.ENTITY_NOT_FOUND, "c")
        assert (here.names, await here.count(), await here.noted()) == (["$Default"], 0, [])


async def test_a_transaction_that_the_partition_refuses_changes_no_rule() -> None:
    async with topics() as here:
        refused = await here.commit(ADDED, settles=[bytes(16)])
        assert isinstance(refused, Failed) and refused.reason is Reason.LOCK_LOST
        assert (here.names, await here.count(), await here.noted()) == (["$Default"], 0, [])


async def test_rules_that_cannot_be_kept_now_follow_as_soon_as_they_can() -> None:
    async with topics() as here:
        here.fails = 3
        assert await here.commit(ADDED, REMOVED) == Transacted(1, "c"), "it is durable"
        await until(lambda: here.names == ["red"])
        await until(lambda: not here.rules._finishing)
        assert here.fails == 0 and await here.noted() == [] and await here.count() == 1


@pytest.mark.parametrize("is_deleted", [False, True])
async def test_what_a_crash_has_left_is_done_once_the_partition_is_open_again(is_deleted: bool) -> None:
    async with topics() as here:
        here.fails = 1_000_000
        assert await here.commit(ADDED, REMOVED) == Transacted(1, "c")
        await here.crash()
        assert here.names == ["$Default"]
        here.fails = 0
        topic = here.descriptions["t"]
        if is_deleted:
            assert isinstance(topic, TopicDescription)
            topic = topic.without(1).with_new("b", SubscriptionSettings(), [RuleDescription("all")], 1)
            here.descriptions["t"] = topic
        here.start()
        await here.wake_all()
        async with asyncio.timeout(10):
            while await here.noted():
                pass
        assert here.names == (["all"] if is_deleted else ["red"])


@pytest.mark.parametrize("refusals", [1, 2, 5])
async def test_a_rule_that_was_removed_stays_removed_although_its_partition_could_not_forget_its_addition(
    monkeypatch: pytest.MonkeyPatch, refusals: int
) -> None:
    async with topics() as here:
        assert await here.noted() == []
        await until(lambda: not here.rules._finishing)
        left = refusals

        async def refusing(handle: PartitionHandle, operation: Operation) -> Answer:
            nonlocal left
            if isinstance(operation, ForgetRuleChanges) and left:
                left -= 1
                if not left:
                    await here.subscriptions.remove_rule("t", "a", "red")
                raise Refused(Reason.DISK_FULL, "The disk is full.")
            return await ask(handle, operation)

        monkeypatch.setattr(rule_transactions, "ask", refusing)
        assert await here.commit(ADDED) == Transacted(1, "c")
        async with asyncio.timeout(10):
            while await here.noted():
                pass
        # Symptom: the rule was added again, at once or after a restart.
        assert here.names == ["$Default"] and not left
        await here.crash()
        here.start()
        await here.wake_all()
        assert await here.noted() == []
        await until(lambda: not here.rules._finishing)
        assert here.names == ["$Default"]


async def test_changes_that_a_transaction_is_making_are_not_made_again_from_its_note() -> None:
    async with topics() as here:
        here.may_keep.clear()
        committed = asyncio.ensure_future(here.commit(ADDED))
        async with asyncio.timeout(10):
            while not await here.noted():
                pass
        removed = asyncio.ensure_future(here.subscriptions.remove_rule("t", "a", "red"))
        here.rules.finish(here.entities["t"])
        assert await here.noted() == [b"id"], "this was answered after the other question"
        here.may_keep.set()
        assert await committed == Transacted(1, "c")
        await removed
        await until(lambda: not here.rules._finishing)
        # Symptom: the rule was back.
        assert here.names == ["$Default"] and await here.noted() == []


@pytest.mark.parametrize("is_removal", [False, True])
async def test_changes_that_a_crash_has_left_are_made_once_although_they_cannot_be_forgotten_at_once(
    is_removal: bool,
) -> None:
    async with topics() as here:
        here.fails = 1_000_000
        assert await here.commit(REMOVED if is_removal else ADDED) == Transacted(1, "c")
        await here.crash()
        here.fails = 0
        described = here.describe

        async def describe_and_fill(name: str, description: EntityDescription) -> None:
            await described(name, description)
            here.logs["t", 0].fill_disk(reserve=False)

        here.describe = describe_and_fill  # type: ignore[method-assign]
        here.start()
        await here.wake_all()
        await until(lambda: here.rules._own == {b"id"})
        here.describe = described  # type: ignore[method-assign]
        if is_removal:
            await here.subscriptions.add_rule("t", "a", RuleDescription("$Default"))
        else:
            await here.subscriptions.remove_rule("t", "a", "red")
        here.logs["t", 0].empty_disk()
        await until(lambda: not (here.rules._own or here.rules._finishing))
        # Symptom: the rule that was removed came back, or the one that was added vanished.
        assert here.names == ["$Default"] and await here.noted() == []


@pytest.mark.parametrize(
    "crashes_first", [False, True], ids=["made by the transaction", "made from its note"]
)
@pytest.mark.parametrize("is_removal", [False, True])
async def test_changes_that_were_made_and_not_forgotten_are_not_made_again_after_a_restart(
    monkeypatch: pytest.MonkeyPatch, is_removal: bool, crashes_first: bool
) -> None:
    async with topics() as here:
        with monkeypatch.context() as patch:

            async def refusing(handle: PartitionHandle, operation: Operation) -> Answer:
                if isinstance(operation, ForgetRuleChanges):
                    raise Refused(Reason.DISK_FULL, "The disk is full.")
                return await ask(handle, operation)

            patch.setattr(rule_transactions, "ask", refusing)
            here.fails = 1_000_000 if crashes_first else 0
            assert await here.commit(REMOVED if is_removal else ADDED) == Transacted(1, "c")
            if crashes_first:
                await here.crash()
                here.fails = 0
                here.start()
                await here.wake_all()
            await until(lambda: here.names == ([] if is_removal else ["$Default", "red"]))
            if is_removal:
                await here.subscriptions.add_rule("t", "a", RuleDescription("$Default"))
            else:
                await here.subscriptions.remove_rule("t", "a", "red")
            await here.crash()
        here.start()
        await here.wake_all()
        async with asyncio.timeout(10):
            while await here.noted():
                pass
        await until(lambda: not here.rules._finishing)
        # Symptom: the rule that was removed came back, or the one that was added vanished.
        assert here.names == ["$Default"]
        assert await here.commit(ADDED, change_id=b"new") == Transacted(1, "c")
        topic = here.descriptions["t"]
        assert isinstance(topic, TopicDescription)
        assert topic.rule_changes_made == (b"new".hex(),), "the earlier ones are forgotten by now"
