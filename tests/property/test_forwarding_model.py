"""Random operations on entities that forward to each other, with crashes, failing disks and changed settings
at random points of the event loop. At the end, each message that was accepted is in one place, and there
once; of a transaction, all messages are there or none.

    MODEL_SEED=123 make test ARGS=tests/property/test_forwarding_model.py

repeats a run whose seed was printed, and MODEL_EXAMPLES makes a run longer.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import hypothesis
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker.entities.descriptions import DEAD_LETTER, MAIN, TRANSFER, TRANSFER_DEAD_LETTER, QueueSettings
from broker.message.stored import store_run
from broker.messaging import forward_lane, forward_retry
from broker.messaging.sends import transfer_of
from broker.namespace.entity import Entity, ask
from broker.operations.message_states import SubqueueCounts
from broker.operations.receiving import Locked
from broker.operations.sending import Send
from broker.operations.settling import DeadLetter, Settled
from broker.operations.transactions import Transact, Transacted
from broker.operations.transfers import LockNext
from broker.partition.origins import Origins
from storage.errors import CommitFailed, DiskFull
from storage.log import Commit
from tests.property.partition_driver import SEED
from tests.property.partition_outcomes import EXAMPLES
from tests.support.forwarding_world import World, held_now, message_of
from tests.support.memory_log import MemoryLog
from tests.support.waiting import until

FORWARDS = {"a": "b", "b": "d", "c": "d"}
"""Two chains that meet."""
TURNS_MAX = 120
"""A crash comes after at most so many turns of the event loop: a message takes about a hundred to its end."""
LATER_MS = 2_000
FORWARDING_C = QueueSettings(forward_to="d")

ran: Counter[str] = Counter()
"""How often each operation was carried out, and how often each fault happened."""


def new_world(chooser: random.Random) -> World:
    """Dead letters of "d" go to "e", and transactions send to the others through "v"."""
    settings = {name: QueueSettings(forward_to=target) for name, target in FORWARDS.items()}
    return World(
        a=(chooser.choice((1, 2)), settings["a"]),
        b=(chooser.choice((1, 3)), settings["b"]),
        c=(1, settings["c"]),
        d=(chooser.choice((1, 2)), QueueSettings(forward_dead_lettered_to="e")),
        e=(1, QueueSettings()),
        v=(chooser.choice((1, 2)), QueueSettings()),
    )


@dataclass
class Clients:
    """What the clients of one world do and know."""

    here: World
    chooser: random.Random
    sent: set[str] = field(default_factory=set)
    unknown: set[str] = field(default_factory=set)
    """Messages whose sender heard nothing, or a refusal."""
    together: list[set[str]] = field(default_factory=list)
    """The messages of each transaction."""

    def new_names(self) -> list[str]:
        names = [f"{len(self.sent) + place}" for place in range(self.chooser.randrange(1, 5))]
        self.sent.update(names)
        self.unknown.update(names)
        return names

    async def send(self) -> None:
        names, key = self.new_names(), self.chooser.choice((None, "k", "l", "m"))
        await self.here.send(self.chooser.choice("aabc"), *names, key=key)
        self.unknown.difference_update(names)

    async def schedule(self) -> None:
        names, later_ms = self.new_names(), self.chooser.randrange(1, LATER_MS)
        await self.here.send(self.chooser.choice("abc"), *names, key="k", later_ms=later_ms)
        self.unknown.difference_update(names)

    async def transact(self) -> None:
        """Send to "v" itself and to another entity, some of it later."""
        here, names = self.here, self.new_names()
        self.together.append(set(names))
        via = here.entities["v"]
        number = self.chooser.randrange(via.description.partitions)
        run = store_run([message_of(each) for each in names], str)
        own = Send(run.data[1:], None)
        if self.chooser.random() < 0.3:
            own.scheduled_ms = [here.clock.now_ms() + self.chooser.randrange(1, LATER_MS)] * (len(names) - 1)
        transfers = transfer_of(Send(run.data[:1], None), self.chooser.choice("abcd"))
        here.forwarding.transfers.passed_on(via, number)
        answer = await ask(via.router.handles[number], Transact(own, [], transfers=transfers))
        assert answer == Transacted(len(names), None)
        self.unknown.difference_update(names)

    async def dead_letter(self) -> None:
        """Receive messages at the end, and dead-letter them."""
        handle = self.chooser.choice(self.here.entities["d"].router.handles)
        locked = await ask(handle, LockNext(MAIN, self.chooser.randrange(1, 4), 1 << 20, 60_000))
        assert isinstance(locked, Locked)
        if locked.tokens:
            assert await ask(handle, DeadLetter(locked.tokens)) == Settled(None)
            ran["dead-lettered"] += len(locked.tokens)

    async def change(self) -> None:
        """Have "c" forward no more, or again."""
        forwards = self.here.descriptions["c"].forwarding_of(0) is not None
        await self.here.update("c", QueueSettings() if forwards else FORWARDING_C)

    async def carry_out(self, operation: Callable[[], Awaitable[None]]) -> None:
        """Nobody knows what becomes of an operation that fails."""
        try:
            await operation()
        except AssertionError:
            ran["refused"] += 1

    def some_operation(self) -> asyncio.Task[None]:
        send, schedule, transact = self.send, self.schedule, self.transact
        operation = self.chooser.choice(
            (send, send, send, schedule, transact, transact, self.dead_letter, self.change)
        )
        ran[operation.__name__] += 1
        return asyncio.create_task(self.carry_out(operation))


def failing(chooser: random.Random, log: MemoryLog) -> None:
    """Have some commits of a log fail."""

    def fail(commit: Commit, urgent: bool) -> Exception | None:
        if chooser.random() > 0.08:
            return None
        error = CommitFailed("random") if chooser.random() < 0.5 else DiskFull("random")
        ran[type(error).__name__] += 1
        return error

    log.on_append = fail


async def one_life(clients: Clients) -> None:
    """Work, and crash at some point."""
    here, chooser = clients.here, clients.chooser
    here.on_log = (lambda name, number, log: failing(chooser, log)) if chooser.random() < 0.5 else _healthy
    here.start()
    waking = asyncio.create_task(here.wake_all())
    tasks = []
    for _ in range(chooser.randrange(8)):
        tasks.append(clients.some_operation())
        await some_turns(here, chooser, TURNS_MAX // 3)
    await some_turns(here, chooser, TURNS_MAX)
    waking.cancel()
    for task in tasks:
        task.cancel()
    await asyncio.gather(waking, *tasks, return_exceptions=True)
    crashes = chooser.random() < 0.7
    ran["crash" if crashes else "stop"] += 1
    await (here.crash() if crashes else here.stop())


async def some_turns(here: World, chooser: random.Random, count_max: int) -> None:
    for _ in range(chooser.randrange(count_max)):
        await asyncio.sleep(0)
        let_time_pass(here, chooser.randrange(40))


def let_time_pass(here: World, milliseconds: int) -> None:
    here.clock.advance(milliseconds)
    for partition in here.partitions.values():
        partition.wake()  # its timer counts other time


def _healthy(name: str, number: int, log: MemoryLog) -> None:
    """The log's disk works."""


def is_over(here: World) -> bool:
    """Whether nothing is on its way, or scheduled."""
    let_time_pass(here, 10)
    left = sum(held_now(here.entities[name]) for name in FORWARDS) + held_now(here.entities["d"], DEAD_LETTER)
    scheduled = sum(scheduled_now(each) for each in here.entities.values())
    return left + scheduled + held_now(here.entities["v"], TRANSFER) == 0


def scheduled_now(entity: Entity) -> int:
    """How many messages the open partitions of an entity are going to make active."""
    return entity.counts().get(MAIN, SubqueueCounts()).scheduled


async def check(seed: int) -> None:
    chooser = random.Random(seed)
    here = new_world(chooser)
    clients = Clients(here, chooser)
    try:
        for _ in range(3):
            await one_life(clients)
        here.on_log = _healthy
        here.start()
        await here.wake_all()
        if here.descriptions["c"].settings != FORWARDING_C:
            await here.update("c", FORWARDING_C)
        await until(lambda: is_over(here))
        await until(lambda: not any("forward" in task.get_name() for task in here.tasks))
        found = Counter([text for name in "dev" for text in await here.texts(name)])
        assert [text for text, count in found.items() if count > 1] == [], "stored twice"
        missing = clients.sent - clients.unknown - found.keys()
        assert not missing, f"lost: {missing}"
        assert found.keys() <= clients.sent
        for names in clients.together:
            assert names <= found.keys() or not names & found.keys(), "half a transaction"
        for entity in here.entities.values():
            assert held_now(entity, DEAD_LETTER) == held_now(entity, TRANSFER_DEAD_LETTER) == 0
    finally:
        await here.crash()


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward_retry, "RETRY_S", 0.001)
    monkeypatch.setattr(forward_retry, "RETRY_S_MAX", 0.01)
    monkeypatch.setattr(forward_lane, "FORGET_S", 0.002)


@hypothesis.seed(SEED)
@settings(
    max_examples=max(1, EXAMPLES // 4),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(seed=st.integers(0, 1 << 32))
def test_each_message_arrives_once_whatever_fails(seed: int) -> None:
    asyncio.run(check(seed))


def test_every_operation_ran(capsys: pytest.CaptureFixture[str]) -> None:
    """Runs after the model, which would prove nothing about an operation that it never carries out."""
    assert ran, "run this test together with the model"
    with capsys.disabled():
        print(
            "\nthe model of forwarding ran", ", ".join(f"{each} {count}" for each, count in ran.most_common())
        )
    expected = {"send", "schedule", "transact", "dead_letter", "dead-lettered", "change"}
    expected |= {"crash", "stop", "CommitFailed", "DiskFull"}
    assert not {each for each in expected if not ran[each]}


async def test_the_test_notices_a_target_that_remembers_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Origins, "of", lambda self, source: ())
    monkeypatch.setattr(Origins, "check", lambda self: None)
    for seed in range(100):
        try:
            await check(seed)
        except AssertionError as error:
            assert "stored twice" in str(error)
            return
    raise AssertionError("nothing was stored twice")
