"""Scans for a selector, over partitions that are simulated: lists of messages, of which some are locked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.base.errors import Reason, Refused
from broker.identifiers import PARTITION_SHIFT, ClientId
from broker.messaging import selecting
from broker.messaging.page_places import PAGES_AT_ONCE, PagePlaces
from broker.messaging.peeking import peek_partition
from broker.messaging.selecting import Scans, Selection
from broker.namespace.entity import Entity
from broker.operations.browsing import Arrived, Peek, Peeked, Watch
from broker.operations.general import Detach, Failed, Unavailable
from broker.operations.interface import Answer, Operation, Sink
from broker.operations.message_states import MessageState
from broker.operations.receiving import Demand, Locked, LockExactly, Unmet, Withdraw, Withdrawn
from broker.operations.selecting import CameBack, WatchReturned
from broker.operations.settling import Complete, Release, Settled
from broker.rules.selectors import compile_selector
from tests.support.rule_messages import stored_with
from tests.support.waiting import until

CLIENT = ClientId(7)
BLUE = stored_with({"colour": "blue"})


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """No partition here is late, and no page cut short, because the machine is busy."""
    monkeypatch.setattr(selecting, "LATE_S", 60.0)
    monkeypatch.setattr(selecting, "LOOKING_S", 60.0)


class SimulatedPartition:
    """Answers what a scan asks, in the next turn of the loop."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.available = True
        self.messages: dict[int, bytes] = {}
        self.states: dict[int, int] = {}
        self.locked: set[int] = set()
        self.answer_max = 1 << 30
        """The most messages in one `Locked`."""
        self.is_hanging = False
        self.held: list[Callable[[], None]] | None = None
        """Answers to `LockExactly` that are kept back; None if they are not."""
        self.peeks = 0
        self.posted: list[Operation] = []
        self._watch: Sink | None = None
        self.told: Sink | None = None
        """Takes `CameBack`."""

    def add(self, *colours: str) -> list[int]:
        first = (self.number << PARTITION_SHIFT) + len(self.messages) + 1
        numbers = [first + place for place in range(len(colours))]
        for number, colour in zip(numbers, colours, strict=True):
            self.messages[number] = stored_with({"colour": colour})
        if self._watch is not None:
            sink, self._watch = self._watch, None
            sink(Arrived(self.number, ""))
        return numbers

    def give_back(self, *numbers: int) -> None:
        self.locked -= set(numbers)
        if self.told is not None:
            self.told(CameBack(self.number, "", list(numbers)))

    def post(self, operation: Operation, client: ClientId, sink: Sink) -> None:
        self.posted.append(operation)
        if isinstance(operation, WatchReturned):
            self.told = sink
        elif isinstance(operation, Peek):
            self.peeks += 1
            if not self.is_hanging:
                self._soon(sink, lambda: self._peeked(operation))
        elif isinstance(operation, LockExactly):
            if self.held is None:
                self._soon(sink, lambda: self._locked(operation))
            else:
                self.held.append(lambda: sink(self._locked(operation)))
        elif isinstance(operation, Watch):
            if max(self.messages, default=-1) >= operation.from_sequence_number:
                self._soon(sink, lambda: Arrived(self.number, ""))
            else:
                self._watch = sink
        elif isinstance(operation, Complete):
            self._soon(sink, lambda: Settled(operation.cookie, {}))
        elif isinstance(operation, Release):
            self.give_back(*(int.from_bytes(token[:8], "big") for token in operation.tokens))

    def _soon(self, sink: Sink, make: Callable[[], Answer]) -> None:
        asyncio.get_running_loop().call_soon(lambda: sink(make()))

    def _peeked(self, peek: Peek) -> Answer:
        if not self.available:
            return Failed(Reason.PARTITION_UNAVAILABLE, "It is down.", peek.cookie)
        numbers = [each for each in sorted(self.messages) if each >= peek.from_sequence_number][: peek.count]
        zeros, nones = [0] * len(numbers), [None] * len(numbers)
        messages = [self.messages[each] for each in numbers]
        states = [self.states.get(each, MessageState.ACTIVE) for each in numbers]
        return Peeked(numbers, zeros, zeros, list(nones), messages, list(nones), states, peek.cookie)

    def _locked(self, lock: LockExactly) -> Answer:
        assert lock.only_active
        numbers = [each for each in lock.sequence_numbers if each not in self.locked][: self.answer_max]
        self.locked.update(numbers)
        tokens = [each.to_bytes(8, "big") + bytes(8) for each in numbers]
        zeros, nones = [0] * len(numbers), [None] * len(numbers)
        messages = [self.messages[each] for each in numbers]
        return Locked(
            self.number, "", tokens, numbers, zeros, zeros, list(nones), messages, list(nones), 60_000,
            deferred=True, cookie=lock.cookie,
        )  # fmt: skip


class World:
    """A receiver that wants red messages, and its partitions."""

    def __init__(self, partitions: int = 1, *, wanted: int = 100, places: PagePlaces | None = None) -> None:
        self.parts = [SimulatedPartition(number) for number in range(partitions)]
        router = SimpleNamespace(handles=self.parts, late=set[int](), unseen=set[int]())
        queue = SimpleNamespace(
            router=router,
            name="queue",
            health=lambda: ["healthy"] * partitions,
            spares=lambda number, subqueue: False,
        )
        self.wanted = wanted
        self.failures = 0
        self.tasks: set[asyncio.Task[None]] = set()
        selection = Selection(
            compile_selector("colour = 'red'"), places or PagePlaces(), self._spawn, self._failed
        )
        self.scans = Scans(cast(Entity, queue), "", selection, lambda: self.wanted)
        self.answers: list[Answer] = []

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def _failed(self) -> None:
        self.failures += 1

    async def ask(self, *operations: Operation, partition: int = 0) -> list[Answer]:
        """Post operations; gives the answers once nothing more happens."""
        for operation in operations:
            self.scans.all[partition].post(operation, CLIENT, self._take)
        return await self.settled()

    def _take(self, answer: Answer) -> None:
        if isinstance(answer, Locked):
            self.wanted -= len(answer.tokens)
        self.answers.append(answer)

    async def settled(self) -> list[Answer]:
        for _ in range(10_000):
            before = len(self.answers)
            for _ in range(20):
                await asyncio.sleep(0)
            if len(self.answers) == before and not self.tasks:
                break
        answers, self.answers = self.answers, []
        return answers


def numbers_of(answers: list[Answer]) -> list[int]:
    return [number for each in answers if isinstance(each, Locked) for number in each.sequence_numbers]


async def test_demand_is_met_with_what_matches_and_with_no_more_than_was_asked_for() -> None:
    world = World()
    numbers = world.parts[0].add(*["blue", "red"] * 100)
    answers = await world.ask(Demand("", 70))
    assert numbers_of(answers) == numbers[1:140:2]
    assert all(each.cookie is None and not each.deferred for each in answers if isinstance(each, Locked))
    assert numbers_of(await world.ask(Demand("", 70))) == numbers[141::2]
    assert world.parts[0].locked == set(numbers[1::2])


async def test_each_message_is_looked_at_once() -> None:
    world = World()
    world.parts[0].add(*["blue"] * 200)
    for _ in range(3):
        assert await world.ask(Demand("", 1)) == []
    assert world.parts[0].peeks == 200 // selecting.PAGE_MESSAGES + 1
    world.parts[0].add("red")
    assert len(numbers_of(await world.settled())) == 1
    assert world.parts[0].peeks <= 200 // selecting.PAGE_MESSAGES + 3


async def test_a_selector_that_takes_long_is_applied_to_a_message_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(selecting, "LOOKING_S", 0.0)
    world = World()
    numbers = world.parts[0].add("blue", "red", "blue", "red", "blue")
    assert numbers_of(await world.ask(Demand("", 3))) == numbers[1:4:2]
    assert world.parts[0].peeks == len(numbers) + 1, "the last page is empty"
    world.parts[0].give_back(numbers[1], numbers[3])
    assert numbers_of(await world.settled()) == [numbers[1]], "one more was wanted"


async def test_no_more_is_locked_in_all_partitions_together_than_the_client_wants() -> None:
    world = World(3, wanted=2)
    for part in world.parts:
        part.add("red", "red")
    for scan in world.scans.all:
        scan.post(Demand("", 2), CLIENT, world._take)
    assert len(numbers_of(await world.settled())) == 2
    assert sum(len(part.locked) for part in world.parts) == 2
    world.wanted = 3
    world.scans.go_on()
    assert len(numbers_of(await world.settled())) == 3


async def test_only_active_messages_are_taken() -> None:
    world = World()
    deferred, active = world.parts[0].add("red", "red")
    world.parts[0].states[deferred] = MessageState.DEFERRED
    assert numbers_of(await world.ask(Demand("", 2))) == [active]


async def test_the_end_is_told_if_the_receiver_wants_to_know_and_what_arrives_then_is_given() -> None:
    world = World()
    world.parts[0].add("blue")
    assert await world.ask(Demand("", 2, tell_unmet=True)) == [Unmet(0, "")]
    world.parts[0].add("blue")
    assert await world.settled() == []
    (red,) = world.parts[0].add("red")
    assert numbers_of(await world.settled()) == [red]


async def test_what_comes_back_is_given_again_but_not_before_it_comes_back() -> None:
    world = World()
    first, _, second = world.parts[0].add("red", "blue", "red")
    world.parts[0].locked.add(first)  # by another client
    assert numbers_of(await world.ask(Demand("", 5))) == [second]
    world.parts[0].give_back(first)
    assert numbers_of(await world.settled()) == [first]
    world.parts[0].give_back(first, second)
    assert numbers_of(await world.settled()) == [first, second]


async def test_what_comes_back_while_nothing_is_wanted_is_given_later() -> None:
    world = World(wanted=1)
    first, second = world.parts[0].add("red", "red")
    assert numbers_of(await world.ask(Demand("", 2))) == [first]
    world.parts[0].give_back(first)
    assert numbers_of(await world.settled()) == []
    world.wanted = 2
    world.scans.go_on()
    assert sorted(numbers_of(await world.settled())) == [first]
    assert numbers_of(await world.ask(Demand("", 1))) == [second]


async def test_of_many_that_come_back_few_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selecting, "RETURNED_MAX", 3)
    world = World()
    numbers = world.parts[0].add(*["red"] * 6)
    assert numbers_of(await world.ask(Demand("", 6))) == numbers
    world.parts[0].give_back(*numbers[1:])
    assert numbers_of(await world.ask(Demand("", 6))) == numbers[1:]


@pytest.mark.parametrize("wanted", [7, 8])
async def test_what_did_not_fit_an_answer_is_locked_next(wanted: int) -> None:
    world = World()
    numbers = world.parts[0].add(*["red"] * 7)
    world.parts[0].answer_max = 3
    assert numbers_of(await world.ask(Demand("", wanted))) == numbers


@pytest.mark.parametrize("following", [[], ["red"], ["blue"] * 60 + ["red"]], ids=len)
async def test_what_comes_back_while_a_page_is_read_is_given(
    monkeypatch: pytest.MonkeyPatch, following: list[str]
) -> None:
    """Of three pages: one of those that follow, one of those that came back, and one at the end."""
    world = World()
    held: list[asyncio.Event] = []

    async def peek(*args: Any) -> Any:
        page = await peek_partition(*args)
        held.append(asyncio.Event())
        await held[-1].wait()
        return page

    monkeypatch.setattr(selecting, "peek_partition", peek)
    numbers = world.parts[0].add(*["red"] * selecting.PAGE_MESSAGES, *following)
    early, late = numbers[9], numbers[20]
    world.parts[0].locked = {early, late}  # by another client
    world.scans.all[0].post(Demand("", 100), CLIENT, world._take)
    await until(lambda: len(held) == 1)
    held[0].set()
    await until(lambda: len(held) == 2)
    world.parts[0].give_back(late)
    held[1].set()
    await until(lambda: len(held) == 3)
    world.parts[0].give_back(early)
    monkeypatch.setattr(selecting, "peek_partition", peek_partition)
    held[2].set()
    found = numbers_of(await world.settled())
    assert sorted(found) == [number for number in numbers if world.parts[0].messages[number] != BLUE]


async def test_a_page_from_before_a_new_beginning_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selecting, "RETURNED_MAX", 3)
    world = World()
    release = asyncio.Event()
    numbers = world.parts[0].add(*["red"] * selecting.PAGE_MESSAGES, "blue", "red")
    world.parts[0].locked.update(numbers[:5])  # by another client

    async def peek(*args: Any) -> Any:
        page = await peek_partition(*args)
        if world.parts[0].peeks == 2:
            await release.wait()
        return page

    monkeypatch.setattr(selecting, "peek_partition", peek)
    world.scans.all[0].post(Demand("", 100), CLIENT, world._take)
    await until(lambda: world.parts[0].peeks == 2)
    await until(lambda: len(numbers_of(world.answers)) == selecting.PAGE_MESSAGES - 5)
    world.parts[0].give_back(*numbers[:5])
    release.set()
    found = numbers_of(await world.settled())
    assert sorted(found) == [*numbers[: selecting.PAGE_MESSAGES], numbers[-1]]


async def test_a_withdrawal_is_answered_once_all_that_was_there_has_been_looked_at() -> None:
    world = World()
    numbers = world.parts[0].add(*["blue"] * 150, "red")
    answers = await world.ask(Demand("", 5), Withdraw(""))
    assert numbers_of(answers) == numbers[-1:] and answers[-1] == Withdrawn(0, "")
    world.parts[0].add("red")
    assert await world.settled() == [], "nothing is wanted any more"


async def test_a_withdrawal_is_answered_while_the_client_wants_nothing_and_before_a_new_demand() -> None:
    world = World(wanted=0)
    (red,) = world.parts[0].add("red")
    assert await world.ask(Demand("", 5), Withdraw("")) == [Withdrawn(0, "")]
    world.wanted = 1
    answers = await world.ask(Demand("", 5), Withdraw(""), Demand("", 1))
    assert answers[0] == Withdrawn(0, "") and numbers_of(answers) == [red] and len(answers) == 2


async def test_no_answer_comes_before_the_receiver_has_finished_asking() -> None:
    world = World()
    world.scans.all[0].post(Withdraw(""), CLIENT, world._take)
    assert world.answers == []
    assert await world.settled() == [Withdrawn(0, "")]


async def test_everything_else_reaches_the_partition_and_its_answers_the_receiver() -> None:
    world = World()
    assert await world.ask(Complete([b"token"], 5)) == [Settled(5, {})]
    assert world.scans.all[0].available


async def test_a_partition_that_is_down_is_begun_anew() -> None:
    world = World()
    numbers = world.parts[0].add("red", "red")
    assert numbers_of(await world.ask(Demand("", 1))) == numbers[:1]
    assert world.parts[0].told is not None
    world.parts[0].told(Unavailable(0))
    world.parts[0].locked.clear()
    assert await world.settled() == [Unavailable(0)]
    assert numbers_of(await world.ask(Demand("", 2))) == numbers
    world.parts[0].available = False
    assert await world.ask(Demand("", 2)) == [Unavailable(0)]
    world.parts[0].available = True
    world.parts[0].locked.clear()
    assert numbers_of(await world.ask(Demand("", 9))) == numbers


async def test_scans_of_a_partition_that_hangs_keep_nobody_from_another_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(selecting, "LATE_S", 0.005)
    monkeypatch.setattr(selecting, "LOOK_AGAIN_S", 0.001)
    places = PagePlaces()
    crowd = [World(places=places) for _ in range(PAGES_AT_ONCE + 1)]
    for world in crowd:
        (part,) = world.parts
        part.add("red")
        part.is_hanging = True
        world.scans.all[0].post(Demand("", 1), CLIENT, world._take)
    await until(lambda: places.late.locked() and not places.prompt.locked())
    monkeypatch.setattr(selecting, "LATE_S", 60.0)
    other = World(places=places)
    numbers = other.parts[0].add("red")
    assert numbers_of(await other.ask(Demand("", 1))) == numbers
    for world in crowd:
        world.scans.all[0].post(Detach(), CLIENT, world._take)
    reading = [task for world in crowd for task in world.tasks]
    for task in reading:
        task.cancel()
    await asyncio.gather(*reading, return_exceptions=True)


async def test_a_late_partition_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selecting, "LATE_S", 0.0)
    monkeypatch.setattr(selecting, "LOOK_AGAIN_S", 0.0)
    world = World()
    (red,) = world.parts[0].add("red")
    world.parts[0].is_hanging = True
    monkeypatch.setattr(selecting, "PAGE_WITHIN_S", 0.0)
    world.scans.all[0].post(Demand("", 1), CLIENT, world._take)
    await until(lambda: world.parts[0].peeks > 3)
    monkeypatch.setattr(selecting, "PAGE_WITHIN_S", 5.0)
    world.parts[0].is_hanging = False
    await until(lambda: numbers_of(world.answers) == [red])


async def test_what_is_locked_when_the_receiver_has_ended_is_released() -> None:
    world = World()
    world.parts[0].add("red")
    held: list[Callable[[], None]] = []
    world.parts[0].held = held
    assert await world.ask(Demand("", 1)) == []
    assert await world.ask(Detach()) == []
    (answer,) = held
    answer()
    assert await world.settled() == []
    assert world.parts[0].locked == set()
    world.parts[0].add("red")
    assert await world.settled() == []


async def test_an_entity_that_is_gone_ends_the_scan(monkeypatch: pytest.MonkeyPatch) -> None:
    async def gone(*_: object) -> None:
        raise Refused(Reason.ENTITY_NOT_FOUND, "It was deleted.")

    monkeypatch.setattr(selecting, "peek_partition", gone)
    world = World()
    assert await world.ask(Demand("", 1), Withdraw("")) == [Withdrawn(0, "")]
    assert world.failures == 0


async def test_a_bug_ends_the_client_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(selecting, "peek_partition", broken)
    world = World()
    world.scans.all[0].post(Demand("", 1), CLIENT, world._take)
    await until(lambda: world.failures > 0)
    world.scans.all[0].post(Detach(), CLIENT, world._take)
    await world.settled()
