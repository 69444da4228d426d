"""Giving back what the holder of a session had: over several cycles, and as if it were one."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import pytest

from broker.base.errors import Reason
from broker.entities.descriptions import DEAD_LETTER, MAIN, QueueSettings
from broker.identifiers import ClientId
from broker.message.changes import encode_changes
from broker.operations.browsing import Arrived
from broker.operations.general import Detach, Failed, Unavailable
from broker.operations.interface import Answer
from broker.operations.receiving import Demand, Locked, ReceiveDeferred, Withdraw, Withdrawn
from broker.operations.sending import Send, Sent
from broker.operations.sessions import (
    AcceptSession,
    GetSessionState,
    RenewSession,
    SessionAccepted,
    SessionLost,
    WatchSessions,
)
from broker.operations.settling import Complete, Defer, Settled
from broker.operations.transactions import Transact
from broker.partition import giving_back
from broker.partition.cycle_bounds import Bounds
from broker.partition.giving_back import LOCKS_EACH, GivingBack
from broker.partition.references import Lease, Reference
from broker.partition.task_limits import TaskLimits
from storage.errors import CommitFailed, DiskFull
from tests.support.partition_harness import NUMBER, Harness, Lapses, one

LOCK_MS = 60_000
TICK_MS = Bounds().tick_ms
AT_ONCE = 5
"""Leases that end in one cycle here."""
ENDS = pytest.mark.parametrize("end", ["time", "detach"])


def harness_of(bounds: Bounds | None = None, **settings: Any) -> Harness:
    limits = TaskLimits(bounds=bounds or Bounds(ended_leases_max=AT_ONCE))
    queue = QueueSettings(requires_session=True, lock_duration_ms=LOCK_MS, **settings)
    return Harness(queue, limits=limits)


async def send(harness: Harness, count: int, session: str = "a", ttl_ms: int | None = None) -> int:
    """Send messages whose bodies are numbers; returns the first sequence number."""
    columns: dict[str, list[int | bytes | None]] = {"session_id": [session.encode()] * count}
    ttl: list[int | None] | None = None if ttl_ms is None else [ttl_ms] * count
    return one(
        await harness.do(1000, Send([b"%d" % each for each in range(count)], ttl, None, columns)), Sent
    ).first


async def held(
    harness: Harness, client: int, count: int, session: str = "a", at_once: int = 1
) -> list[bytes]:
    """Send messages of a session, and have a client receive all of them; returns the tokens."""
    await send(harness, count, session)
    one(await harness.do(client, AcceptSession(MAIN, session.encode())), SessionAccepted)
    return await receive(harness, client, count, at_once)


async def receive(harness: Harness, client: int, count: int, at_once: int = 1) -> list[bytes]:
    tokens: list[bytes] = []
    while len(tokens) < count:
        tokens += one(await harness.do(client, Demand(MAIN, at_once)), Locked).tokens
    return tokens


def end_session(harness: Harness, client: int, end: str) -> None:
    if end == "time":
        harness.clock.advance(LOCK_MS + TICK_MS)
    else:
        harness.post(client, Detach())


async def step(harness: Harness) -> None:
    await harness.task.step()
    harness.task.check()


def numbers(answers: list[Answer]) -> list[int]:
    return [int(body) for each in answers if isinstance(each, Locked) for body in each.messages]


@ENDS
async def test_what_a_holder_had_comes_back_a_few_leases_at_a_time(end: str) -> None:
    """Symptom: a session that held 20,000 messages held the event loop for 164 ms when its lock ended."""
    harness = harness_of()
    await held(harness, 1, 3 * AT_ONCE)
    end_session(harness, 1, end)
    locked = [3 * AT_ONCE]
    while locked[-1]:
        await step(harness)
        locked.append(harness.subqueues[0].locked)
        assert locked[-2] - locked[-1] <= AT_ONCE
    assert 3 <= len(locked) - 1 <= 4
    assert not await harness.task.step()


@ENDS
async def test_what_a_holder_had_comes_back_a_few_messages_at_a_time(end: str) -> None:
    harness = harness_of(Bounds(ended_locks_max=6 * LOCKS_EACH - 1))
    await held(harness, 1, 24, at_once=4)
    end_session(harness, 1, end)
    locked = [24]
    while locked[-1]:
        await step(harness)
        locked.append(harness.subqueues[0].locked)
        assert locked[-2] - locked[-1] in (0, 6), "a lease may end in part"
    assert locked.count(24) <= 2 and len(set(locked)) == 5


@ENDS
async def test_a_client_that_accepts_a_session_waits_until_all_is_back(end: str) -> None:
    harness = harness_of(max_delivery_count=3)
    await held(harness, 1, 3 * AT_ONCE)
    end_session(harness, 1, end)
    harness.post(2, AcceptSession(MAIN, b"a", cookie="second"))
    harness.post(3, AcceptSession(MAIN, b"a", cookie="third"))
    harness.post(4, AcceptSession(MAIN, None))
    while harness.subqueues[0].locked:
        assert not harness.received[2] and not harness.received[3]
        await step(harness)
    assert one(harness.take(2), SessionAccepted).cookie == "second"
    refused = one(harness.take(3), Failed)
    assert (refused.reason, refused.cookie) == (Reason.SESSION_LOCKED, "third")
    assert one(harness.take(4), Failed).reason is Reason.SESSION_NOT_FOUND
    answers = await harness.do(2, Demand(MAIN, 99))
    assert numbers(answers) == list(range(3 * AT_ONCE))
    assert set(one(answers, Locked).delivery_counts) == {1 if end == "time" else 0}


async def test_others_are_served_while_a_client_waits_for_a_session() -> None:
    """Symptom: the acceptance was put back, and with it all that came after."""
    harness = harness_of()
    await held(harness, 1, 3 * AT_ONCE)
    end_session(harness, 1, "time")
    harness.post(2, AcceptSession(MAIN, b"a"))
    harness.post(3, Send([b"b"], None, None, {"session_id": [b"b"]}))
    await step(harness)
    assert not harness.received[2]
    one(harness.take(3), Sent)


async def test_a_client_that_goes_does_not_get_the_session_that_it_waits_for() -> None:
    harness = harness_of()
    await held(harness, 1, 3 * AT_ONCE)
    end_session(harness, 1, "time")
    harness.post(2, AcceptSession(MAIN, b"a", cookie="gone"))
    await step(harness)
    harness.post(2, Detach())
    harness.post(3, AcceptSession(MAIN, b"a"))
    await harness.until_quiet()
    refused = one(harness.take(2), Failed)
    assert (refused.reason, refused.cookie) == (Reason.SESSION_LOCKED, "gone"), "each cookie comes back once"
    one(harness.take(3), SessionAccepted)


async def test_nothing_is_kept_of_clients_that_go_while_they_wait_for_a_session() -> None:
    harness = harness_of()
    await held(harness, 1, 3 * AT_ONCE)
    end_session(harness, 1, "time")
    for client in (2, 3):
        harness.post(client, AcceptSession(MAIN, b"a"))
        harness.post(client, Detach())
    await step(harness)
    assert harness.subqueues[0].locked, "the session is not free yet"
    assert harness.task._partition is not None and not harness.task._partition._sessions._requests


@ENDS
async def test_the_former_holder_can_do_nothing_from_the_first_moment(end: str) -> None:
    harness = harness_of()
    first = await send(harness, 1)
    one(await harness.do(1, AcceptSession(MAIN, b"a")), SessionAccepted)
    await harness.do(1, Defer(await receive(harness, 1, 1)))
    await send(harness, 3 * AT_ONCE)
    tokens = await receive(harness, 1, 3 * AT_ONCE)
    end_session(harness, 1, end)
    harness.post(1, Complete(tokens[-2:]))
    for operation in (
        RenewSession(MAIN, b"a", ClientId(1)),
        GetSessionState(MAIN, b"a", ClientId(1)),
        ReceiveDeferred(MAIN, [first], None, None, b"a", ClientId(1)),
    ):
        harness.post(7, operation)
    await step(harness)
    assert harness.subqueues[0].locked >= AT_ONCE, "most are still to be given back"
    late = [each for each in harness.take(1) if isinstance(each, Settled)]
    assert late == [Settled(None, {0: Reason.LOCK_LOST, 1: Reason.LOCK_LOST})]
    refused = harness.take(7)
    assert len(refused) == 3
    assert {each.reason for each in refused if isinstance(each, Failed)} == {Reason.SESSION_LOCK_LOST}


async def test_a_holder_hears_at_once_that_its_lock_has_ended() -> None:
    harness = harness_of()
    await held(harness, 1, 3 * AT_ONCE)
    harness.post(1, Demand(MAIN, 5))
    harness.post(1, Withdraw(MAIN))
    harness.clock.advance(LOCK_MS + TICK_MS)
    harness.post(9, WatchSessions(MAIN))
    await step(harness)
    assert one(harness.take(1)[-1:], SessionLost) == SessionLost(NUMBER, MAIN)
    while harness.subqueues[0].locked:
        assert not harness.take(9), "the session is not free yet"
        await step(harness)
    one(harness.take(9), Arrived)
    assert harness.take(1) == []


async def test_what_one_of_several_holders_had_is_back_before_the_others_are_given_anything() -> None:
    harness = harness_of()
    await send(harness, 4 * AT_ONCE)
    first = one(await harness.do(1, AcceptSession(MAIN, b"a", is_shared=True)), SessionAccepted)
    join = AcceptSession(MAIN, b"a", is_shared=True, token=first.token)
    one(await harness.do(2, join), SessionAccepted)
    await receive(harness, 1, 3 * AT_ONCE)
    mine = await receive(harness, 2, 1)
    harness.post(1, Detach())
    harness.post(2, Demand(MAIN, 99))
    harness.post(2, Withdraw(MAIN))
    harness.post(3, join)
    harness.post(7, RenewSession(MAIN, b"a", ClientId(2)))
    harness.post(2, Complete(mine))
    await step(harness)
    one(harness.take(3), SessionAccepted)
    assert one(harness.take(2), Settled).failures == {}, "the others go on"
    while harness.subqueues[0].locked:
        assert not harness.take(2)
        await step(harness)
        if harness.received[2]:
            break
    answers = harness.take(2)
    expected = [*range(3 * AT_ONCE), *range(3 * AT_ONCE + 1, 4 * AT_ONCE)]
    assert numbers(answers) == expected and isinstance(answers[-1], Withdrawn)


async def test_a_drain_waits_for_what_another_holder_gives_back_even_if_nothing_of_it_is_back_yet() -> None:
    harness = harness_of()
    await held(harness, 4, 3 * AT_ONCE, "much")
    await send(harness, 2)
    first = one(await harness.do(1, AcceptSession(MAIN, b"a", is_shared=True)), SessionAccepted)
    one(await harness.do(2, AcceptSession(MAIN, b"a", is_shared=True, token=first.token)), SessionAccepted)
    await receive(harness, 1, 2)
    harness.post(4, Detach())  # what it gives back takes all that fits into the cycle
    harness.post(1, Detach())
    harness.post(2, Demand(MAIN, 99))
    harness.post(2, Withdraw(MAIN))
    await step(harness)
    assert harness.subqueues[0].locked == 2 * AT_ONCE + 2 and not harness.take(2)
    await harness.until_quiet()
    answers = harness.take(2)
    assert numbers(answers) == [0, 1] and answers[-1] == Withdrawn(NUMBER, MAIN)


async def test_a_shared_session_is_free_once_nobody_holds_anything_of_it() -> None:
    harness = harness_of(max_delivery_count=3)
    await send(harness, 4 * AT_ONCE)
    first = one(await harness.do(1, AcceptSession(MAIN, b"a", is_shared=True)), SessionAccepted)
    one(await harness.do(2, AcceptSession(MAIN, b"a", is_shared=True, token=first.token)), SessionAccepted)
    await receive(harness, 1, 2 * AT_ONCE)
    await receive(harness, 2, 2 * AT_ONCE)
    harness.post(1, Detach())
    await step(harness)
    harness.clock.advance(LOCK_MS + TICK_MS)
    harness.post(3, AcceptSession(MAIN, b"a"))
    harness.post(3, Demand(MAIN, 99))
    await step(harness)
    await harness.until_quiet()
    assert one(harness.take(2), SessionLost)
    answers = await harness.do(3, Demand(MAIN, 99))
    counts = [count for each in answers if isinstance(each, Locked) for count in each.delivery_counts]
    assert counts == [0] * 2 * AT_ONCE + [1] * 2 * AT_ONCE, "a holder that detaches counts no delivery"


async def test_a_crash_in_between_leaves_every_message_and_counts_those_that_are_back() -> None:
    harness = harness_of(max_delivery_count=3)
    await held(harness, 1, 3 * AT_ONCE)
    harness.clock.advance(LOCK_MS + TICK_MS)
    while harness.subqueues[0].locked > AT_ONCE:
        await step(harness)
    back = 3 * AT_ONCE - harness.subqueues[0].locked
    assert 0 < back < 3 * AT_ONCE
    await harness.restart()
    one(await harness.do(2, AcceptSession(MAIN, b"a")), SessionAccepted)
    again = one(await harness.do(2, Demand(MAIN, 99)), Locked)
    assert numbers([again]) == list(range(3 * AT_ONCE))
    assert again.delivery_counts == [1] * back + [0] * (3 * AT_ONCE - back)


async def test_a_client_that_waits_for_a_session_hears_when_the_partition_goes_down() -> None:
    harness = harness_of()
    await held(harness, 1, 3 * AT_ONCE)
    end_session(harness, 1, "time")
    harness.post(2, AcceptSession(MAIN, b"a", cookie="down"))
    await step(harness)
    assert not harness.received[2]
    harness.log.fail_append(CommitFailed("the disk does not answer"))
    harness.post(3, Send([b"b"], None, None, {"session_id": [b"b"]}))
    await harness.until_quiet()
    refused, unavailable = harness.take(2)
    assert isinstance(refused, Failed) and isinstance(unavailable, Unavailable)
    assert (refused.reason, refused.cookie) == (Reason.PARTITION_UNAVAILABLE, "down")
    assert one(await harness.do(2, Detach(), AcceptSession(MAIN, b"a")), SessionAccepted)


async def test_a_session_with_little_does_not_wait_for_one_with_very_much() -> None:
    harness = harness_of()
    await held(harness, 1, 8 * AT_ONCE)
    for client in range(2, 5):
        await held(harness, client, 1, f"{client}")
    harness.clock.advance(LOCK_MS + TICK_MS)
    for _ in range(3):
        await step(harness)
    assert harness.subqueues[0].locked > AT_ONCE
    for client in range(2, 5):
        one(harness.take(client), SessionLost)
        one(await _accepted_in_a_step(harness, client), SessionAccepted)


async def _accepted_in_a_step(harness: Harness, client: int) -> list[Answer]:
    harness.post(100 + client, AcceptSession(MAIN, b"%d" % client))
    await step(harness)
    return harness.take(100 + client)


async def test_each_message_is_looked_at_once_however_many_cycles_that_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked: list[object] = []
    number = attrgetter("sequence_number")

    def looking(reference: Reference) -> object:
        looked.append(reference)
        return number(reference)

    monkeypatch.setattr(giving_back, "_NUMBER", looking)
    harness = harness_of()
    await held(harness, 1, 6 * AT_ONCE)
    await harness.advance(LOCK_MS + TICK_MS)
    assert len(looked) == 6 * AT_ONCE


async def test_no_more_leases_are_looked_at_than_the_cycle_has_room_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked: list[int] = []
    take = GivingBack._next

    def taking(self: GivingBack, leases: list[Lease]) -> tuple[list[Lease], int]:
        taken, fitting = take(self, leases)
        looked.append(len(taken))
        return taken, fitting

    monkeypatch.setattr(GivingBack, "_next", taking)
    harness = harness_of(Bounds(ended_locks_max=6 * LOCKS_EACH))
    await held(harness, 1, 24, at_once=4)
    await harness.advance(LOCK_MS + TICK_MS)
    assert looked == [2, 2, 2, 2]


async def test_the_messages_that_fit_into_a_cycle_are_the_first_ones() -> None:
    harness = harness_of(Bounds(), max_delivery_count=2)
    await held(harness, 1, 30)
    for number, reference in enumerate(harness.subqueues[0].references.values()):
        changed = encode_changes({f"{number} {key}": None for key in range(2_000)})
        harness.subqueues[0].replace_changed(reference, changed)
        reference.delivery_count = 1
    expected = sorted(harness.subqueues[0].references)
    harness.clock.advance(LOCK_MS + TICK_MS)
    dead = harness.subqueues[1].references
    sizes: list[int] = []
    while len(dead) < 30:
        await step(harness)
        assert sorted(dead) == expected[: len(dead)]
        sizes.append(len(dead))
    assert len(sizes) > 2


async def test_what_a_holder_that_goes_gives_back_counts_as_work_of_the_cycle() -> None:
    harness = harness_of(Bounds(work_max=10))
    await held(harness, 1, 10)
    harness.post(1, Detach())
    harness.post(2, Send([b"x"], None, None, {"session_id": [b"b"]}))
    await step(harness)
    assert not harness.subqueues[0].locked and not harness.take(2)
    await step(harness)
    one(harness.take(2), Sent)


async def test_a_message_that_a_refused_transaction_had_settled_is_free_when_its_lock_ends() -> None:
    harness = harness_of()
    (token,) = await held(harness, 1, 1)
    harness.log.fail_append(DiskFull("no room"))
    send = Send([b"x"], None, None, {"session_id": [b"a"]})
    harness.post(1, Transact(send, [Complete([token])]))
    harness.post(1, Detach())
    await harness.until_quiet()
    assert one(harness.take(1), Failed).reason is Reason.DISK_FULL
    await harness.advance(LOCK_MS + TICK_MS)
    one(await harness.do(2, AcceptSession(MAIN, b"a")), SessionAccepted)
    assert numbers(await harness.do(2, Demand(MAIN, 1))) == [0]


async def test_only_locks_whose_time_is_over_count_as_expired() -> None:
    for end in ("time", "detach"):
        harness, lapses = harness_of(), Lapses()
        harness.task._meter = lapses
        await held(harness, 1, 7)
        end_session(harness, 1, end)
        await harness.until_quiet()
        assert sum(lapses.locks) == (7 if end == "time" else 0)


async def test_what_expired_while_it_was_held_leaves_when_it_is_given_back() -> None:
    harness = harness_of(dead_lettering_on_expiration=True)
    await send(harness, 2 * AT_ONCE, ttl_ms=1_000)
    one(await harness.do(1, AcceptSession(MAIN, b"a")), SessionAccepted)
    await receive(harness, 1, 2 * AT_ONCE)
    await harness.advance(2_000)
    await harness.do(1, Detach())
    assert not harness.subqueues[0].references
    assert len((await harness.peek(DEAD_LETTER)).messages) == 2 * AT_ONCE
