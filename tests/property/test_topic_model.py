"""A partition of a topic against a naive model: whatever is sent, settled, scheduled, forwarded to it and
changed, alone and in transactions, and whenever it restarts, each subscription has exactly the messages that
it should.

The model keeps a list of messages for each place in each subscription, and matches by looking at a colour.
MODEL_SEED and MODEL_EXAMPLES are those of `test_partition_model.py`.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from unittest.mock import patch
from zlib import crc32

import hypothesis
import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from broker.entities.rules import CorrelationFilter, RuleDescription, SqlAction, SqlFilter
from broker.entities.topics import SubscriptionSettings, TopicDescription
from broker.operations.general import Failed
from broker.operations.message_states import MessageState
from broker.operations.receiving import Demand, Locked, LockExactly, ReceiveDeferred, Withdraw
from broker.operations.redriving import Redrive
from broker.operations.scheduling import CancelScheduled
from broker.operations.sending import Send, Sent
from broker.operations.settling import Abandon, Complete, DeadLetter, Defer, Settled
from broker.operations.transactions import Transact, Transacted
from broker.operations.transfers import HandedOver, HandOver
from broker.partition import publishing
from broker.partition.cycle_bounds import Bounds
from broker.partition.task_limits import TaskLimits
from broker.partition.upkeep import UpkeepLimits
from broker.send_lists import at, part_of
from storage.errors import CommitFailed
from tests.property.partition_driver import SEED, TICK_MS, identity_of
from tests.property.partition_outcomes import EXAMPLES
from tests.support.partition_harness import Harness, one
from tests.support.rule_messages import stored_with
from tests.support.topics import DEAD, topic

STEPS = 80
WEEK_MS = 7 * 24 * 3_600_000
SOURCE = b"there/0/0"
Step = Callable[[], Awaitable[None]]
COLOURS = ("red", "blue", "green")
LIMITS = TaskLimits(
    bounds=Bounds(work_max=64, deleted_max=3),
    upkeep=UpkeepLimits(checkpoint_bytes=6_000, garbage_bytes_max=6_000, relocation_bytes=3_000),
)
RULES: dict[str, tuple[RuleDescription, ...]] = {
    "all": (RuleDescription("$Default"),),
    "red": (RuleDescription("r", CorrelationFilter(label="red")),),
    "not green": (RuleDescription("r", SqlFilter("sys.Label = 'red' OR sys.Label = 'blue'")),),
    "red thrice": (
        RuleDescription("r", CorrelationFilter(label="red")),
        RuleDescription("copy", CorrelationFilter(label="red"), SqlAction("SET copied = TRUE")),
        RuleDescription("again", CorrelationFilter(label="red"), SqlAction("SET copied = TRUE")),
    ),
    "fails on red": (RuleDescription("r", SqlFilter("sys.Label = 'red' AND sys.Label / 0 = 1")),),
    "none": (),
}
"""By the kind of a subscription."""
COPY_BYTES_MAX = 700
"""What a copy of a message counts at most."""
COPIES = {"red thrice": 2, "fails on red": 1}
"""What counts as copies of a red message: changed ones, and those that become dead letters."""
ran: Counter[str] = Counter()
"""How often each step was taken."""


@dataclass
class Held:
    """The messages of one subscription, by what identifies them: the message-id, and whether it is a copy."""

    kind: str
    main: Counter[tuple[str, bool]] = field(default_factory=Counter)
    dead: Counter[tuple[str, bool]] = field(default_factory=Counter)

    def publish(self, id: str) -> None:
        colour = id.split("-")[0]
        if self.kind == "all" or (self.kind == "not green" and colour != "green"):
            self.main[id, False] += 1
        elif self.kind.startswith("red") and colour == "red":
            self.main[id, False] += 1
            if self.kind == "red thrice":
                self.main[id, True] += 2
        elif self.kind == "fails on red" and colour == "red":
            self.dead[id, False] += 1


def body_of(id: str) -> bytes:
    return stored_with(subject=id.split("-")[0], message_id=id, body=b"x" * (crc32(id.encode()) % 200))


def known(message: bytes) -> tuple[str, bool]:
    """What identifies a message in the model."""
    begin = min(place for colour in COLOURS if (place := message.find(b"%s-" % colour.encode())) >= 0)
    end = begin
    while chr(message[end]).isalnum() or message[end] == ord("-"):
        end += 1
    return message[begin:end].decode(), b"copied" in message


class World:
    """The partition, and what should be in it."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.detects_duplicates = self.chance.random() < 0.5
        self.harness = Harness(
            description=topic(
                requires_duplicate_detection=self.detects_duplicates, duplicate_detection_window_ms=WEEK_MS
            ),
            limits=LIMITS,
            segment_bytes=4_000,
            payload_bytes=self.chance.choice((0, 4_000)),
        )
        self.held: dict[str, Held] = {}
        self.scheduled: dict[str, tuple[int, int]] = {}
        """Scheduled messages: their sequence number, and when they are due."""
        self.sent: list[str] = []
        """Messages that make duplicates if they are sent again."""
        self.names = 0
        self.handed_over = 0

    @property
    def description(self) -> TopicDescription:
        assert isinstance(self.harness.description, TopicDescription)
        return self.harness.description

    def new_ids(self, count: int) -> list[str]:
        self.names += count
        return [f"{self.chance.choice(COLOURS)}-{self.names - each}" for each in range(count)]

    def with_earlier(self, ids: list[str]) -> list[str]:
        """Now and then, messages that were sent before come with these new ones."""
        if self.sent and self.chance.random() < 0.4:
            ids = ids + self.chance.sample(self.sent, min(2, len(self.sent)))
            self.chance.shuffle(ids)
        return ids

    def send_of(self, ids: Sequence[str]) -> Send:
        send = Send(list(map(body_of, ids)), None)
        if self.detects_duplicates:
            send.identities = list(map(identity_of, ids))
        return send

    def fresh(self, ids: Sequence[str]) -> list[str]:
        """Those of these messages that were not sent before."""
        return [each for each in ids if each not in self.sent]

    def remember(self, ids: Sequence[str]) -> list[str]:
        """These messages were sent. Gives those that were not sent before."""
        fresh = self.fresh(ids)
        if self.detects_duplicates:
            self.sent += fresh
        return fresh

    def are_stored(self, ids: Sequence[str]) -> bool:
        """Whether any subscription gets something of these messages."""
        wanted = [Held(each.kind) for each in self.held.values()]
        for held in wanted:
            for each in self.fresh(ids):
                held.publish(each)
        return any(held.main or held.dead for held in wanted)

    def publish(self, ids: list[str]) -> None:
        for held in self.held.values():
            for each in ids:
                held.publish(each)

    async def received(self, name: str, count: int) -> Locked | None:
        answers = await self.harness.do(1, Demand(name, count), Withdraw(name))
        found = [each for each in answers if isinstance(each, Locked)]
        assert len(found) <= 1
        return found[0] if found else None

    # --- steps ----------------------------------------------------------------------------------------------

    async def send(self) -> None:
        await self.send_these(self.with_earlier(self.new_ids(self.chance.randrange(1, 12))))

    async def send_these(self, ids: list[str]) -> None:
        sent = one(await self.harness.do(9, self.send_of(ids)), Sent)
        fresh = self.remember(ids)
        assert [each for place, each in enumerate(ids) if place not in sent.duplicates] == fresh
        self.publish(fresh)

    async def send_together(self) -> None:
        """Several clients send at once. One commit has room for the copies of one of them only."""
        sends = {10 + client: self.new_ids(self.chance.randrange(1, 3)) for client in range(8)}
        room = 2 * COPY_BYTES_MAX * sum(COPIES.get(each.kind, 0) for each in self.held.values())
        with patch.multiple(publishing, COMMIT_BYTES_MAX=room, SHARED_BYTES_MAX=room):
            for client, ids in sends.items():
                self.harness.post(client, self.send_of(ids))
            await self.harness.until_quiet()
        for client, ids in sends.items():
            one(self.harness.take(client), Sent)
            self.publish(self.remember(ids))

    async def send_in_vain(self) -> None:
        """The disk is full, or the commit fails: nothing is stored, and sending it again is no duplicate."""
        ids = self.with_earlier(self.new_ids(3))
        if not self.are_stored(ids):
            return  # nothing would be written
        if self.chance.random() < 0.5:
            self.harness.log.fill_disk()
        else:
            self.harness.log.fail_append(CommitFailed("no"))
        assert isinstance((await self.harness.do(9, self.send_of(ids)))[0], Failed)
        self.harness.log.empty_disk()
        await self.let_pass(2_000)
        self.harness.take(1)  # it is told that the partition went down
        await self.send_these(ids)

    async def transact(self) -> None:
        """Complete messages of a subscription and publish others; or do neither, for the disk is full."""
        name, held = self.chance.choice(list(self.held.items()))
        locked = await self.received(name, self.chance.randrange(1, 4))
        if locked is None:
            return
        ids = self.with_earlier(self.new_ids(2))
        is_full = self.chance.random() < 0.3 and self.are_stored(ids)
        if is_full:
            self.harness.log.fill_disk()
        answers = await self.harness.do(1, Transact(self.send_of(ids), [Complete(locked.tokens)]))
        self.harness.log.empty_disk()
        if is_full:
            one(answers, Failed)
            assert one(await self.harness.do(1, Abandon(locked.tokens)), Settled).failures == {}
        else:
            one(answers, Transacted)
            held.main.subtract(map(known, locked.messages))
            self.publish(self.remember(ids))

    async def hand_over(self) -> None:
        """Another entity forwards messages. It has handed over some of them before."""
        ids = self.with_earlier(self.new_ids(2))
        again = range(max(self.handed_over - self.chance.randrange(3), 0), self.handed_over)
        numbers = [*again, *range(self.handed_over, self.handed_over + len(ids))]
        self.handed_over += len(ids)
        names = [f"red-again-{number}" for number in again] + ids
        send = self.send_of(names)
        while numbers:
            operation = HandOver(SOURCE, numbers, send.messages, identities=send.identities)
            put_off = one(await self.harness.do(7, operation), HandedOver).put_off
            numbers, send = [numbers[place] for place in put_off], part_of(send, at(put_off))
        self.publish(self.remember(ids))

    async def schedule(self) -> None:
        ids = self.new_ids(3)
        due_ms = self.harness.clock.now_ms() + self.chance.randrange(1_000, 20_000)
        send = replace(self.send_of(ids), scheduled_ms=[due_ms] * 3, tells_numbers=True)
        first = one(await self.harness.do(9, send), Sent).first
        self.remember(ids)
        self.scheduled |= {each: (first + place, due_ms) for place, each in enumerate(ids)}

    async def cancel(self) -> None:
        if self.scheduled:
            id = self.chance.choice(list(self.scheduled))
            number, _ = self.scheduled.pop(id)
            assert one(await self.harness.do(9, CancelScheduled([number])), Settled).failures == {}

    async def pass_time(self) -> None:
        await self.let_pass(self.chance.randrange(100, 15_000))

    async def let_pass(self, milliseconds: int) -> None:
        await self.harness.peek()  # it is open
        await self.harness.advance(milliseconds)
        await self.harness.advance(1_000)
        while any(0 <= self.harness.clock.now_ms() - at_ms < TICK_MS for _, at_ms in self.scheduled.values()):
            await self.harness.advance(TICK_MS)  # the broker looks at them with the next tick
        due = [each for each, (_, at_ms) in self.scheduled.items() if at_ms <= self.harness.clock.now_ms()]
        for each in due:
            del self.scheduled[each]
        self.publish(due)

    async def settle(self) -> None:
        name, held = self.chance.choice(list(self.held.items()))
        locked = await self.received(name, self.chance.randrange(1, 6))
        if locked is None:
            return
        ids = list(map(known, locked.messages))
        kind = self.chance.choice((Complete, Complete, Abandon, Defer, DeadLetter))
        assert one(await self.harness.do(1, kind(locked.tokens)), Settled).failures == {}
        if kind in (Complete, DeadLetter):
            held.main.subtract(ids)
        if kind is DeadLetter:
            held.dead.update(ids)

    async def complete_deferred(self) -> None:
        name, held = self.chance.choice(list(self.held.items()))
        page = await self.harness.peek(name)
        deferred = [
            number
            for number, state in zip(page.sequence_numbers, page.states, strict=True)
            if state == MessageState.DEFERRED
        ]
        if deferred:
            locked = one(await self.harness.do(1, ReceiveDeferred(name, deferred[:2])), Locked)
            one(await self.harness.do(1, Complete(locked.tokens)), Settled)
            held.main.subtract(map(known, locked.messages))

    async def redrive(self) -> None:
        name, held = self.chance.choice(list(self.held.items()))
        numbers = (await self.harness.peek(name + DEAD)).sequence_numbers[:3]
        if numbers:
            locked = one(await self.harness.do(1, LockExactly(name + DEAD, numbers)), Locked)
            await self.harness.do(1, Redrive(locked.tokens, locked.messages, None))
            ids = list(map(known, locked.messages))
            held.dead.subtract(ids)
            held.main.update(ids)

    async def subscribe(self) -> None:
        kind = self.chance.choice(list(RULES))
        name = f"{kind} {self.names}"
        self.names += 1
        if len(self.held) > 8:
            await self.unsubscribe()
        description = self.description.with_new(
            name, SubscriptionSettings(max_delivery_count=1_000), RULES[kind], 0
        )
        await self.harness.describe(description)
        self.held[f"subscriptions/{name}"] = Held(kind)

    async def change_rules(self) -> None:
        """A subscription becomes one of another kind, for what is published from now on."""
        name, held = self.chance.choice(list(self.held.items()))
        subscription = self.description.subscription(name.removeprefix("subscriptions/"))
        assert subscription is not None
        held.kind = self.chance.choice(list(RULES))
        changed = replace(subscription, rules=RULES[held.kind])
        await self.harness.describe(self.description.with_changed(changed))

    async def unsubscribe(self) -> None:
        if len(self.held) > 2:
            name = self.chance.choice(list(self.held))
            del self.held[name]
            subscription = self.description.subscription(name.removeprefix("subscriptions/"))
            assert subscription is not None
            await self.harness.describe(self.description.without(subscription.number))

    async def restart(self) -> None:
        await self.harness.restart(clean=self.chance.random() < 0.5)

    async def check(self) -> None:
        """Compare everything with the model."""
        for name, held in self.held.items():
            for place, expected in (("", held.main), (DEAD, held.dead)):
                page = await self.harness.peek(name + place)
                assert Counter(map(known, page.messages)) == +expected, name + place
                assert page.sequence_numbers == sorted(page.sequence_numbers)
        waiting = {known(each)[0] for each in (await self.harness.peek()).messages}
        assert waiting == self.scheduled.keys()
        task = self.harness.task
        self.harness.reported.check(task)
        assert task.size() == sum(each.bytes for each in task.counts().values())
        partition = task._partition
        assert partition is not None
        assert partition.messages.count == len(self.scheduled) + sum(
            (held.main + held.dead).total() for held in self.held.values()
        )


def steps_of(world: World) -> Sequence[Step]:
    """Each step as often as its weight."""
    return (
        [world.send] * 5
        + [world.send_together] * 2
        + [world.settle] * 8
        + [world.transact] * 4
        + [world.schedule, world.pass_time, world.pass_time, world.cancel, world.complete_deferred] * 2
        + [world.hand_over, world.redrive] * 2
        + [world.restart, world.subscribe, world.unsubscribe, world.change_rules, world.send_in_vain]
    )


async def check(seed: int) -> None:
    world = World(seed)
    for _ in range(3):
        await world.subscribe()
    steps = steps_of(world)
    for _ in range(STEPS):
        step = world.chance.choice(steps)
        ran[step.__name__] += 1
        await step()
        await world.check()


@hypothesis.seed(SEED)
@settings(max_examples=max(1, EXAMPLES // 40), deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_each_subscription_has_what_it_should_whatever_happens(seed: int) -> None:
    asyncio.run(check(seed))


def test_every_step_was_taken(capsys: pytest.CaptureFixture[str]) -> None:
    """Runs after the model, which would prove nothing about a step that it never takes."""
    assert ran, "run this test together with the model"
    with capsys.disabled():
        print("\nthe model of topics ran", ", ".join(f"{each} {count}" for each, count in ran.most_common()))
    assert not {step.__name__ for step in steps_of(World(0))} - ran.keys()
