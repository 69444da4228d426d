"""Accepting message sessions over several partitions: who is asked, who is served, what is given back."""

from __future__ import annotations

import asyncio
import gc
from typing import Any, cast
from weakref import ref

import pytest

from broker.base.errors import Reason, Refused
from broker.entities.descriptions import QueueSettings
from broker.entities.topics import SubscriptionSettings, TopicDescription
from broker.messaging import accepting_sessions
from broker.messaging.accepting_sessions import (
    ASKING_MAX,
    HeldSession,
    SessionFinder,
    SessionFinders,
    accept_named,
)
from broker.namespace.meter import EntityMeter
from broker.namespace.topic import Topic
from broker.operations.browsing import Arrived
from broker.operations.general import Detach, Failed, Unavailable
from broker.operations.sessions import AcceptSession, SessionAccepted, SessionLost, WatchSessions
from tests.support.link_stack import LinkStack, Part, turn, until

WAIT_S = 20.0
WITH_SESSIONS = SubscriptionSettings(requires_session=True)


def stack_of(partitions: int = 4) -> LinkStack:
    return LinkStack(partitions, QueueSettings(requires_session=True))


def arrive(part: Part) -> None:
    """The partition has a free session."""
    part.answer(WatchSessions, lambda each: Arrived(part.number, each.subqueue))


def give(part: Part, session_id: str) -> None:
    part.answer(
        AcceptSession,
        lambda each: SessionAccepted(part.number, "", session_id.encode(), b"t" * 16, 0, each.cookie),
    )


def give_none(part: Part) -> None:
    part.answer(AcceptSession, lambda each: Failed(Reason.SESSION_NOT_FOUND, "none", each.cookie))


async def test_a_named_session_is_asked_for_in_its_partition_alone() -> None:
    stack = stack_of()
    asking = asyncio.ensure_future(accept_named(stack.queue, "", "cart"))
    await turn()
    part = stack.part_of(AcceptSession)
    assert part.number == stack.queue.router.number_of("cart")
    give(part, "cart")
    held = await asking
    assert (held.session_id, held.partition) == ("cart", part.number)


async def test_a_refused_session_leaves_nothing_behind() -> None:
    stack = stack_of(1)
    asking = asyncio.ensure_future(accept_named(stack.queue, "", "cart"))
    await turn()
    stack.parts[0].answer(AcceptSession, lambda each: Failed(Reason.SESSION_LOCKED, "held", each.cookie))
    with pytest.raises(Refused, match="held"):
        await asking
    assert stack.parts[0].has(Detach)


async def test_whoever_stops_waiting_for_a_named_session_gives_it_back() -> None:
    stack = stack_of(1)
    asking = asyncio.ensure_future(accept_named(stack.queue, "", "cart"))
    await turn()
    asking.cancel()
    await turn()
    assert asking.cancelled() and stack.parts[0].has(Detach)


async def test_clients_are_served_in_the_order_in_which_they_came_and_partitions_in_turn() -> None:
    stack, finders = stack_of(2), SessionFinders()
    clients = [asyncio.ensure_future(finders.accept_next(stack.queue, "", WAIT_S)) for _ in range(3)]
    await turn()
    first, second = stack.parts
    arrive(first)
    asked = first.take_all(AcceptSession)
    assert len(asked) == 3, "as long as it has not said that it has no more, it may have one for each"
    stack, finders = stack_of(2), SessionFinders()
    for client in clients:
        client.cancel()
    clients = [asyncio.ensure_future(finders.accept_next(stack.queue, "", WAIT_S)) for _ in range(3)]
    await turn()
    first, second = stack.parts
    arrive(first)
    give(first, "a")
    give_none(first)
    assert first.has(WatchSessions), "it is to say when it has another one"
    give_none(first)
    assert (await clients[0]).session_id == "a"
    arrive(second)
    give(second, "b")
    assert (await clients[1]).session_id == "b", "it kept its place"
    arrive(first)
    while not first.has(AcceptSession):
        give_none(second)
    give(first, "c")
    assert (await clients[2]).session_id == "c"


async def test_nobody_waits_longer_than_it_says() -> None:
    stack, finders = stack_of(1), SessionFinders()
    with pytest.raises(Refused) as refused:
        await finders.accept_next(stack.queue, "", 0.01)
    assert refused.value.reason is Reason.TIMEOUT
    arrive(stack.parts[0])
    assert not stack.parts[0].has(AcceptSession), "nobody waits for it"


async def test_clients_that_have_stopped_waiting_are_forgotten() -> None:
    stack = stack_of(1)
    finder = SessionFinder(stack.queue, "")
    stays = asyncio.ensure_future(finder.accept())
    await turn()
    for _ in range(500):
        leaves = asyncio.ensure_future(finder.accept())
        await asyncio.sleep(0)
        leaves.cancel()
        await asyncio.wait([leaves])
    assert len(finder._waiting) < 250
    arrive(stack.parts[0])
    give(stack.parts[0], "a")
    assert (await stays).session_id == "a"


async def test_a_session_that_comes_too_late_goes_back_and_the_next_client_is_served() -> None:
    stack, finders = stack_of(1), SessionFinders()
    gone = asyncio.ensure_future(finders.accept_next(stack.queue, "", WAIT_S))
    await turn()
    arrive(stack.parts[0])
    gone.cancel()
    await turn()
    give(stack.parts[0], "a")
    assert stack.parts[0].has(Detach)
    stays = asyncio.ensure_future(finders.accept_next(stack.queue, "", WAIT_S))
    await turn()
    give(stack.parts[0], "a")
    assert (await stays).session_id == "a"


async def test_a_partition_that_goes_down_is_watched_again_and_another_one_serves() -> None:
    stack, finders = stack_of(2), SessionFinders()
    client = asyncio.ensure_future(finders.accept_next(stack.queue, "", WAIT_S))
    await turn()
    first, second = stack.parts
    first.answer(WatchSessions, lambda each: Unavailable(0))
    arrive(second)
    second.answer(AcceptSession, lambda each: Failed(Reason.PARTITION_UNAVAILABLE, "down", each.cookie))
    await until(lambda: first.has(WatchSessions) and second.has(WatchSessions))
    arrive(first)
    give(first, "a")
    assert (await client).session_id == "a"


async def test_one_free_session_does_not_make_every_client_ask() -> None:
    stack, finders = stack_of(1), SessionFinders()
    clients = [asyncio.ensure_future(finders.accept_next(stack.queue, "", WAIT_S)) for _ in range(100)]
    await turn()
    (part,) = stack.parts
    for round_number in range(2):
        arrive(part)
        give(part, str(round_number))
        while part.has(AcceptSession):
            give_none(part)
        assert len(part.take_all(Detach)) <= ASKING_MAX
        assert len([each for each, _, _ in part.posted if isinstance(each, WatchSessions)]) == 1
    arrive(part)
    for number in range(2, 100):
        assert len([each for each, _, _ in part.posted if isinstance(each, AcceptSession)]) <= ASKING_MAX
        give(part, str(number))
    assert [(await each).session_id for each in clients] == [str(number) for number in range(100)]


async def test_a_partition_that_goes_down_while_clients_ask_it_is_watched_once() -> None:
    stack, finders = stack_of(1), SessionFinders()
    clients = [asyncio.ensure_future(finders.accept_next(stack.queue, "", WAIT_S)) for _ in range(3)]
    await turn()
    (part,) = stack.parts
    _, tell = part.take(WatchSessions)
    tell(Arrived(0, ""))
    while part.has(AcceptSession):
        part.answer(AcceptSession, lambda each: Failed(Reason.PARTITION_UNAVAILABLE, "down", each.cookie))
    tell(Unavailable(0))
    await until(lambda: part.has(WatchSessions))
    arrive(part)
    assert not part.has(WatchSessions)
    for name in "abc":
        give(part, name)
    assert [(await each).session_id for each in clients] == ["a", "b", "c"]


async def test_each_attempt_of_a_client_has_a_number_of_its_own() -> None:
    stack, finders = stack_of(2), SessionFinders()
    client = asyncio.ensure_future(finders.accept_next(stack.queue, "", WAIT_S))
    await turn()
    first, _ = stack.parts
    arrive(first)
    ((_, before, tell),) = (each for each in first.posted if isinstance(each[0], AcceptSession))
    give_none(first)
    arrive(first)
    ((_, after, _),) = (each for each in first.posted if isinstance(each[0], AcceptSession))
    assert after != before, "the partition still has to carry out the Detach of the first attempt"
    tell(Unavailable(0))
    give(first, "a")
    lost: list[str] = []
    (await client).on_lost(lambda: lost.append("lost"))
    assert lost == [], "what the partition says to the first attempt is not about this session"


async def test_clients_that_wait_hear_at_once_that_the_queue_is_gone() -> None:
    stack, finders = stack_of(1), SessionFinders()
    clients = [asyncio.ensure_future(finders.accept_next(stack.queue, "", WAIT_S)) for _ in range(9)]
    await turn()
    arrive(stack.parts[0])
    await stack.queue.end(Refused(Reason.ENTITY_NOT_FOUND, "It was deleted."))
    while stack.parts[0].has(AcceptSession):
        stack.parts[0].answer(
            AcceptSession, lambda each: Failed(Reason.ENTITY_NOT_FOUND, "gone", each.cookie)
        )
    answers = await asyncio.gather(*clients, return_exceptions=True)
    assert [each.reason for each in answers if isinstance(each, Refused)] == [Reason.ENTITY_NOT_FOUND] * 9


async def test_partitions_that_nobody_asks_for_sessions_any_more_are_not_watched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A watch would keep them open."""
    monkeypatch.setattr(accepting_sessions, "KEEP_S", 0.05)
    stack, finders = stack_of(2), SessionFinders()
    first, second = stack.parts
    client = asyncio.ensure_future(finders.accept_next(stack.queue, "", WAIT_S))
    await turn()
    watching = {watcher for part in stack.parts for _, watcher, _ in part.posted}
    arrive(first)
    give(first, "a")
    held = await client
    lost: list[str] = []
    held.on_lost(lambda: lost.append("lost"))
    await until(lambda: first.has(Detach) and second.has(Detach))
    for part in stack.parts:
        ((_, left, _),) = (each for each in part.posted if isinstance(each[0], Detach))
        assert {left} == watching, "and not the client that holds a session"
        part.posted.clear()
    again = asyncio.ensure_future(finders.accept_next(stack.queue, "", WAIT_S))
    await turn()
    assert first.has(WatchSessions) and second.has(WatchSessions)
    arrive(second)
    give(second, "b")
    assert (await again).session_id == "b" and lost == []


async def test_partitions_are_watched_while_a_client_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accepting_sessions, "KEEP_S", 0.05)
    stack, finders = stack_of(1), SessionFinders()
    with pytest.raises(Refused, match="became free"):
        await finders.accept_next(stack.queue, "", 0.001)
    with pytest.raises(Refused, match="became free"):
        await finders.accept_next(stack.queue, "", 0.2)
    assert not stack.parts[0].has(Detach)


def topic_of(stack: LinkStack) -> Topic:
    """A topic on the same partitions, with a subscription "s" that requires sessions."""
    description = TopicDescription("topic", "1" * 32, len(stack.parts)).with_new("s", WITH_SESSIONS, [], 1)
    topic = Topic(
        description,
        EntityMeter(stack.metrics, "topic"),
        lambda _, number: cast(Any, stack.parts[number]),
        stack.resting,
    )
    for number in range(description.partitions):
        topic.partition(number)
    return topic


async def test_a_subscription_that_is_deleted_and_created_again_is_watched_anew() -> None:
    stack, finders = stack_of(1), SessionFinders()
    topic, (part,) = topic_of(stack), stack.parts
    with pytest.raises(Refused, match="No session of 'topic/Subscriptions/s' with messages became free"):
        await finders.accept_next(topic, "subscriptions/s", 0.001)
    part.take(WatchSessions)
    topic.description = topic.description.without(1)
    with pytest.raises(Refused) as refused:
        await finders.accept_next(topic, "subscriptions/s", WAIT_S)
    assert refused.value.reason is Reason.ENTITY_NOT_FOUND
    topic.description = topic.description.with_new("s", WITH_SESSIONS, [], 2)
    client = asyncio.ensure_future(finders.accept_next(topic, "subscriptions/s", WAIT_S))
    await turn()
    arrive(part)
    give(part, "a")
    assert (await client).session_id == "a"


async def test_a_watch_that_fails_is_repeated_while_there_is_something_to_watch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(accepting_sessions, "WATCH_AGAIN_S", 0.01)
    stack, finders = stack_of(1), SessionFinders()
    topic, (part,) = topic_of(stack), stack.parts
    client = asyncio.ensure_future(finders.accept_next(topic, "subscriptions/s", WAIT_S))
    await turn()
    part.answer(WatchSessions, lambda _: Failed(Reason.PARTITION_UNAVAILABLE, "down", None))
    await until(lambda: part.has(WatchSessions))
    (finder,) = (kept.finder for kept in finders._finders[topic].values())
    topic.description = topic.description.without(1).with_new("s", WITH_SESSIONS, [], 2)
    part.answer(WatchSessions, lambda _: Failed(Reason.ENTITY_NOT_FOUND, "gone", None))
    await until(lambda: not finder._to_watch)
    assert not part.has(WatchSessions)
    client.cancel()
    await asyncio.wait([client])


async def test_nothing_of_a_deleted_queue_is_kept() -> None:
    stack, finders = stack_of(1), SessionFinders()
    queue = stack.add_queue("other", 1, QueueSettings(requires_session=True))
    with pytest.raises(Refused, match="became free"):
        await finders.accept_next(queue, "", 0.001)
    del stack.namespace.queues["other"]
    gone = Refused(Reason.ENTITY_NOT_FOUND, "It was deleted.")
    await queue.end(gone, is_deleted=True)
    with pytest.raises(Refused, match="It was deleted"):
        await finders.accept_next(queue, "", WAIT_S)
    stack.parts[0].posted.clear()
    kept = ref(queue)
    gone.__traceback__ = None
    del queue, gone
    gc.collect()
    assert kept() is None


def test_a_held_session_tells_of_its_loss_also_if_nobody_listened_yet() -> None:
    heard: list[str] = []
    held = HeldSession()
    held.heard(SessionLost(0, ""))
    held.on_lost(lambda: heard.append("lost"))
    assert heard == ["lost"]
