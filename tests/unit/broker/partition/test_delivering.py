"""Handing out messages: demand, grants, withdrawal, and deferred messages by number."""

from __future__ import annotations

from typing import Any

import pytest

from broker.base.errors import Reason
from broker.entities.descriptions import DEAD_LETTER, MAIN, QueueSettings
from broker.identifiers import ClientId, partition_of_token, sequence_of_token
from broker.message.changes import encode_changes
from broker.operations.browsing import Peek
from broker.operations.general import Detach, Failed
from broker.operations.interface import Answer
from broker.operations.message_states import MessageState
from broker.operations.receiving import Demand, Locked, Recall, ReceiveDeferred, Unmet, Withdraw, Withdrawn
from broker.operations.sending import Send
from broker.operations.settling import Abandon, Complete, DeadLetter, Defer, Release
from broker.operations.transfers import LockNext
from broker.partition.changed_properties import MERGED_AT_ONCE, PROPERTY_COST
from broker.partition.cycle_bounds import Bounds
from broker.partition.demand_and_recall import DemandBook
from broker.partition.health import Health
from broker.partition.subqueue import Subqueue
from broker.partition.task_limits import TaskLimits
from storage.errors import CommitFailed, StorageError
from tests.support.partition_harness import LOCK_MS, NUMBER, Harness, one, properties
from tests.support.topics import topic

SOME = 3_000
"""For tests in which each step checks the whole state."""


async def test_a_lock_names_the_message_its_partition_and_its_end() -> None:
    harness = Harness()
    number = await harness.send(b"body")
    locked = await harness.receive(1)
    assert (
        locked.messages == [b"body"] and locked.sequence_numbers == [number] and locked.delivery_counts == [0]
    )
    assert locked.partition == NUMBER and locked.subqueue == MAIN
    assert locked.locked_until_ms == harness.clock.monotonic_ms() + LOCK_MS
    (token,) = locked.tokens
    assert len(token) == 16 and sequence_of_token(token) == number and partition_of_token(token) == NUMBER


async def test_messages_go_out_in_the_order_in_which_they_came() -> None:
    harness = Harness()
    await harness.send(*[b"%d" % index for index in range(10)])
    first, second = await harness.receive(1, 4), await harness.receive(2, 4)
    assert first.messages + second.messages == [b"%d" % index for index in range(8)]


async def test_a_message_given_back_goes_out_again_before_later_ones() -> None:
    harness = Harness()
    await harness.send(b"a", b"b", b"c")
    locked = await harness.receive(1, 2)
    await harness.do(1, Release([locked.tokens[0]]))
    assert (await harness.receive(2, 2)).messages == [b"a", b"c"]


async def test_demand_waits_and_is_met_by_what_comes_in_the_commit_that_brings_it() -> None:
    harness = Harness()
    assert await harness.do(1, Demand(MAIN, 3)) == []
    await harness.send(b"a")
    assert one(harness.take(1), Locked).messages == [b"a"]
    await harness.send(b"b", b"c", b"d")
    assert one(harness.take(1), Locked).messages == [b"b", b"c"]


async def test_demand_is_patient_while_it_can_neither_be_met_nor_make_others_give_back() -> None:
    harness = Harness()
    demand = Demand(MAIN, 1)

    def is_patient(client: int, demand: Demand) -> bool:
        assert harness.task._partition is not None
        return harness.task._partition.is_patient(ClientId(client), demand)

    await harness.do(1, Demand(MAIN, 1))
    assert is_patient(1, demand) and is_patient(2, demand)
    await harness.send(b"a", b"b")
    assert not is_patient(1, demand), "there is another message"
    await harness.do(1, demand)
    assert is_patient(1, demand) and not is_patient(2, demand), "the first client may not have seen them"
    assert not is_patient(1, Demand("missing", 1)), "to be refused at once"


async def test_demand_for_messages_of_a_session_is_never_patient() -> None:
    harness = Harness(settings=QueueSettings(requires_session=True))
    await harness.do(1, Demand(MAIN, 1))
    assert harness.task._partition is not None
    assert not harness.task._partition.is_patient(ClientId(1), Demand(MAIN, 1))


async def test_clients_that_wait_are_served_in_turns() -> None:
    harness = Harness()
    for client in (1, 2, 3):
        await harness.do(client, Demand(MAIN, 2))
    order = []
    for _ in range(6):
        await harness.send(b"x")
        order += [
            client
            for client in (1, 2, 3)
            if any(isinstance(answer, Locked) for answer in harness.take(client))
        ]
    assert order == [1, 2, 3, 1, 2, 3]


async def test_a_demand_that_cannot_be_met_says_so_if_asked_to() -> None:
    harness = Harness()
    assert await harness.do(1, Demand(MAIN, 1, tell_unmet=True)) == [Unmet(NUMBER, MAIN)]
    await harness.do(1, Withdraw(MAIN))
    await harness.send(b"a")
    assert isinstance(one(await harness.do(1, Demand(MAIN, 1, tell_unmet=True)), Locked), Locked)


async def test_a_cycle_hands_out_no_more_bytes_than_its_bound_and_the_next_one_goes_on() -> None:
    harness = Harness(limits=TaskLimits(bounds=Bounds(granted_bytes_max=1000)))
    await harness.send(*[b"x" * 400] * 10)
    answers = await harness.do(1, Demand(MAIN, 10))
    assert [len(answer.tokens) for answer in answers if isinstance(answer, Locked)] == [3, 3, 3, 1]


async def test_a_demand_says_that_it_cannot_be_met_also_if_others_took_the_rest_in_the_next_cycle() -> None:
    harness = Harness(limits=TaskLimits(bounds=Bounds(granted_max=2)))
    await harness.send(b"a", b"b", b"c")
    for client in (1, 2, 3):
        harness.post(client, Demand(MAIN, 2, tell_unmet=True))
    await harness.until_quiet()
    heard: dict[int, list[Answer]] = {
        client: [answer for answer in harness.take(client) if not isinstance(answer, Recall)]
        for client in (1, 2, 3)
    }
    assert one(heard[1], Locked).messages == [b"a", b"b"]
    locked, unmet = heard[2]
    assert isinstance(locked, Locked) and locked.messages == [b"c"]
    assert unmet == Unmet(NUMBER, MAIN) and one(heard[3], Unmet) == unmet


async def test_a_demand_says_that_it_cannot_be_met_if_a_full_disk_refuses_what_would_have_met_it() -> None:
    harness = Harness()
    harness.log.fill_disk()
    harness.post(2, Send([b"a"], None))
    assert await harness.do(1, Demand(MAIN, 1, tell_unmet=True)) == [Unmet(NUMBER, MAIN)]
    assert isinstance(one(harness.take(2), Failed), Failed)


async def test_withdrawn_comes_after_the_last_message() -> None:
    harness = Harness()
    await harness.send(b"a")
    answers = await harness.do(1, Demand(MAIN, 5), Withdraw(MAIN))
    assert isinstance(answers[0], Locked) and answers[1:] == [Withdrawn(NUMBER, MAIN)]
    await harness.send(b"b")
    assert harness.take(1) == []


async def test_a_deferred_message_is_found_by_its_number_only() -> None:
    harness = Harness()
    number = await harness.send(b"a", b"b")
    await harness.do(1, Defer([(await harness.receive(1)).tokens[0]], encode_changes({"later": True})))
    assert (await harness.receive(2, 5)).messages == [b"b"]
    peeked = await harness.peek()
    assert peeked.states == [MessageState.DEFERRED, MessageState.ACTIVE]
    await harness.restart()
    locked = one(await harness.do(1, ReceiveDeferred(MAIN, [number], "mine")), Locked)
    assert (
        locked.deferred
        and locked.cookie == "mine"
        and locked.messages == [b"a"]
        and properties(locked.changed[0]) == {"later": True}
    )
    await harness.do(1, Complete(locked.tokens))
    assert (await harness.peek()).messages == [b"b"]


async def test_deferred_messages_are_fetched_all_or_none() -> None:
    harness = Harness()
    first = await harness.send(b"a", b"b", b"c")
    await harness.do(1, Defer((await harness.receive(1, 2)).tokens))
    for missing in (first + 2, first + 99):
        assert (
            one(await harness.do(1, ReceiveDeferred(MAIN, [first, missing])), Failed).reason
            is Reason.MESSAGE_NOT_FOUND
        )
    locked = one(await harness.do(1, ReceiveDeferred(MAIN, [first + 1, first])), Locked)
    assert locked.messages == [b"b", b"a"]
    assert one(await harness.do(2, ReceiveDeferred(MAIN, [first])), Failed).reason is Reason.MESSAGE_NOT_FOUND


@pytest.mark.parametrize("changed_bytes", [0, 2_000])
async def test_deferred_messages_that_do_not_fit_into_the_answer_are_not_locked(changed_bytes: int) -> None:
    harness = Harness()
    size = 3_000 - changed_bytes
    first = await harness.send(*[b"x" * size] * 4)
    changed = encode_changes({"note": "x" * changed_bytes}) if changed_bytes else None
    await harness.do(1, Defer((await harness.receive(1, 4)).tokens, changed))
    numbers = [first + index for index in (3, 0, 1, 2)]
    refused = one(await harness.do(1, ReceiveDeferred(MAIN, numbers, bytes_max=12_000)), Failed)
    assert refused.reason is Reason.ARGUMENT and "4 deferred messages" in refused.description
    assert harness.task.counts()[MAIN].locked == 0
    locked = one(await harness.do(1, ReceiveDeferred(MAIN, numbers[:3], bytes_max=12_000)), Locked)
    assert locked.sequence_numbers == numbers[:3]
    assert one(await harness.do(1, ReceiveDeferred(MAIN, numbers[3:])), Locked).sequence_numbers == [
        first + 2
    ]


async def test_a_client_that_leaves_gives_back_what_it_never_saw_and_keeps_the_rest_locked() -> None:
    harness = Harness()
    await harness.send(b"a", b"b")
    locked = await harness.receive(1, 2)
    await harness.do(1, Demand(MAIN, 5))
    await harness.do(1, Detach([locked.tokens[1]]))
    assert (await harness.receive(2, 2)).messages == [b"b"]
    counts = harness.task.counts()[MAIN]
    assert (counts.active, counts.locked) == (2, 2)
    await harness.advance(LOCK_MS + 100)
    locked = one(harness.take(2), Locked)
    assert locked.messages == [b"a"] and locked.delivery_counts == [1]
    await harness.send(b"c")
    assert harness.take(1) == []


async def test_messages_are_handed_out_in_cycles_of_bounded_size() -> None:
    harness = Harness(limits=TaskLimits(bounds=Bounds(granted_max=400)))
    await harness.send(*[b"x"] * SOME)
    answers = await harness.do(1, Demand(MAIN, SOME))
    counts = [len(answer.tokens) for answer in answers if isinstance(answer, Locked)]
    assert sum(counts) == SOME and max(counts) == 400


async def given_by_cycle(harness: Harness, clients: list[int]) -> list[list[int]]:
    """Who was given messages in each cycle that gave any, until all of the clients have some."""
    given: list[list[int]] = []
    while sum(map(len, given)) < len(clients):
        await harness.task.step()
        harness.task.check()
        given.append([each for each in clients if any(type(x) is Locked for x in harness.take(each))])
    return [each for each in given if each]


async def test_few_clients_are_given_messages_in_one_cycle_and_the_others_in_the_next_in_order() -> None:
    """Symptom: a thousand clients that asked for a message each were given them in one cycle, in a lease for
    each, which held the event loop for 50 ms."""
    harness = Harness(limits=TaskLimits(bounds=Bounds(granted_leases_max=3)))
    await harness.send(*[b"x"] * 20)
    for client in range(1, 9):
        harness.post(client, Demand(MAIN, 2))
    assert await given_by_cycle(harness, list(range(1, 9))) == [[1, 2, 3], [4, 5, 6], [7, 8]]
    assert not await harness.task.step(), "nothing is left to do"


async def test_who_withdraws_behind_many_others_is_still_given_what_there_was() -> None:
    harness = Harness(limits=TaskLimits(bounds=Bounds(granted_leases_max=3)))
    await harness.send(*[b"x"] * 9)
    for client in range(1, 9):
        harness.post(client, Demand(MAIN, 1))
    answers = await harness.do(9, Demand(MAIN, 1), Withdraw(MAIN))
    assert [type(each) for each in answers] == [Locked, Withdrawn]
    assert all(one(harness.take(client), Locked).tokens for client in range(1, 9))


async def test_clients_of_one_subqueue_keep_those_of_another_waiting_for_no_more_than_a_cycle() -> None:
    harness = Harness(QueueSettings(), limits=TaskLimits(bounds=Bounds(granted_leases_max=3)))
    await harness.send(*[b"x"] * 10)
    await harness.do(100, DeadLetter((await harness.receive(100)).tokens))
    for client in range(1, 10):
        harness.post(client, Demand(MAIN, 1))
    harness.post(10, Demand(DEAD_LETTER, 1))
    given = await given_by_cycle(harness, list(range(1, 11)))
    assert given == [[1, 2, 3], [4, 5, 10], [6, 7, 8], [9]]


async def test_clients_that_withdraw_do_not_keep_those_of_another_subqueue_waiting() -> None:
    harness = Harness(limits=TaskLimits(bounds=Bounds(granted_leases_max=2)))
    await harness.send(*[b"x"] * 10)
    await harness.do(100, DeadLetter((await harness.receive(100)).tokens))
    harness.post(1, Demand(DEAD_LETTER, 1))
    for client in (2, 3):
        harness.post(client, Demand(MAIN, 1))
        harness.post(client, Withdraw(MAIN))
    await harness.task.step()
    for client in (2, 3):
        assert [type(answer) for answer in harness.take(client)] == [Locked, Withdrawn]
    assert one(harness.take(1), Locked).subqueue == DEAD_LETTER


async def test_who_asks_and_withdraws_past_many_expired_messages_gets_what_is_behind_them() -> None:
    harness = Harness(limits=TaskLimits(bounds=Bounds(granted_max=10, expired_max=10)))
    await harness.send(*[b"old"] * 500, ttl=[1_000] * 500)
    await harness.send(b"new")
    harness.clock.advance(2_000)
    answers = await harness.do(1, Demand(MAIN, 5), Withdraw(MAIN))
    assert [answer.messages for answer in answers if isinstance(answer, Locked)] == [[b"new"]]
    assert isinstance(answers[-1], Withdrawn)


async def test_a_cycle_looks_only_at_subscriptions_in_which_there_may_be_something_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Symptom: with clients that waited in 2,000 subscriptions, each cycle of a partition took 5 ms, and 256
    clients that went held the event loop for 115 ms."""
    looks: list[str] = []
    for name in ("recall", "detach"):
        plain = getattr(DemandBook, name)

        def counting(book: DemandBook, *given: Any, name: str = name, plain: Any = plain) -> Any:
            looks.append(name)
            return plain(book, *given)

        monkeypatch.setattr(DemandBook, name, counting)
    names = [f"subscriptions/{number}" for number in range(20)]
    harness = Harness(description=topic(*[str(number) for number in range(20)]))
    for client, name in enumerate(names, 1):
        harness.post(client, Demand(name, 1))
    await harness.until_quiet()
    looks.clear()
    await harness.do(100, Demand(names[0], 1))
    assert looks == ["recall"]
    looks.clear()
    for client in [100, *range(2, 21)]:
        harness.post(client, Detach())
    await harness.until_quiet()
    assert looks.count("detach") == 20
    await harness.send(b"x")
    assert one(harness.take(1), Locked).messages == [b"x"], "who is left is served"
    await harness.do(1, Demand(names[0], 1), Demand(names[1], 1))
    looks.clear()
    await harness.do(1, Detach())
    assert looks.count("detach") == 2, "a client may wait in several"


async def test_the_next_messages_are_locked_at_once_for_as_long_as_asked_and_no_delivery_is_counted() -> None:
    harness = Harness()
    assert one(await harness.do(1, LockNext(MAIN, 5, 1_000, 500_000, 7)), Locked).tokens == []
    first = await harness.send(b"a" * 600, b"b" * 600, b"c")
    locked = one(await harness.do(1, LockNext(MAIN, 5, 1_000, 500_000, 7)), Locked)
    assert (locked.sequence_numbers, locked.cookie) == ([first, first + 1], 7), "at least up to the bytes"
    assert one(await harness.do(2, LockNext(MAIN, 1, 1_000, 500_000)), Locked).messages == [b"c"]
    await harness.advance(499_999)
    await harness.do(1, Release(locked.tokens[:1]))
    again = one(await harness.do(2, LockNext(MAIN, 1, 1_000, 500_000)), Locked)
    assert (again.sequence_numbers, again.delivery_counts) == ([first], [0])
    await harness.advance(1)
    assert one(await harness.do(2, LockNext(MAIN, 1, 1_000, 1)), Locked).delivery_counts == [1], "it ran out"


async def test_messages_that_a_full_disk_refuses_are_not_locked() -> None:
    harness = Harness()
    harness.log.fill_disk()
    sent, locked = await harness.do(1, Send([b"a"], None), LockNext(MAIN, 1, 1_000, 1_000))
    assert isinstance(sent, Failed) and isinstance(locked, Locked) and not locked.tokens


async def test_who_goes_while_a_full_disk_refuses_what_it_was_given_wants_nothing_any_more() -> None:
    """Symptom: the client had its demand back, and the next 500 messages were locked for nobody."""
    harness = Harness()
    await harness.do(1, Demand(MAIN, 500))
    harness.log.fill_disk()
    harness.post(2, Send([b"refused"], None))
    harness.post(3, Demand(MAIN, 1))
    harness.post(3, Withdraw(MAIN))  # hands out: the first client has waited longer
    harness.post(1, Detach())
    await harness.until_quiet()
    assert one(harness.take(2), Failed).reason is Reason.DISK_FULL
    harness.log.empty_disk()
    await harness.send(b"next")
    assert (await harness.receive(4)).messages == [b"next"]


async def test_messages_of_sessions_are_not_locked_one_after_the_other() -> None:
    harness = Harness(QueueSettings(requires_session=True))
    failed = one(await harness.do(1, LockNext(MAIN, 1, 1_000, 1_000)), Failed)
    assert failed.reason is Reason.NOT_ALLOWED


async def test_messages_with_thousands_of_changed_properties_are_handed_out_in_several_cycles() -> None:
    """Symptom: 300 messages with a thousand changed properties each held the event loop for 0.3 s when they
    were delivered together."""
    harness = Harness(QueueSettings(max_delivery_count=100))
    await harness.send(*[b"x"] * 40)
    tokens = (await harness.receive(1, 40)).tokens
    changed = encode_changes({f"{number:04}": None for number in range(5_000)})
    await harness.do(1, Abandon(tokens, changed))
    harness.post(1, Demand(MAIN, 40))
    given: list[int] = []
    while sum(given) < 40:
        await harness.task.step()
        harness.task.check()
        given += [len(each.tokens) for each in harness.take(1) if isinstance(each, Locked)]
    assert max(given) * 5_000 * PROPERTY_COST <= 2 * Bounds().granted_bytes_max and len(given) > 3
    assert harness.subqueues[0].locked == 40


async def _with_much_to_merge(harness: Harness, count: int) -> None:
    """Send messages that live for 5 s, and give each of them 2,000 changed properties of its own. Together
    they expire over several cycles."""
    await harness.send(*[b"x"] * count, ttl=[5_000] * count)
    for number, token in enumerate((await harness.receive(1, count)).tokens):
        changed = {f"{number} {key}": None for key in range(2_000)}
        await harness.do(1, Abandon([token], encode_changes(changed)))
    harness.clock.advance(5_020)


EXPIRING = QueueSettings(dead_lettering_on_expiration=True, max_delivery_count=100)


async def test_others_are_served_while_a_client_drains_past_messages_that_take_long_to_expire() -> None:
    """Symptom: the withdrawal was put back, and with it all that came after, for 198 cycles."""
    harness = Harness(EXPIRING)
    await _with_much_to_merge(harness, 80)
    harness.post(1, Demand(MAIN, 10))
    harness.post(1, Withdraw(MAIN))
    harness.post(2, Send([b"live"], None))
    harness.post(3, Peek(DEAD_LETTER, 0, 1))
    steps = 0
    while not harness.received[1]:
        await harness.task.step()
        harness.task.check()
        steps += 1
        assert harness.received[2] and harness.received[3], "they wait for one cycle"
    assert steps > 3
    await harness.until_quiet()
    locked, withdrawn = harness.take(1)
    assert isinstance(locked, Locked) and locked.messages == [b"live"] and isinstance(withdrawn, Withdrawn)


async def test_locks_end_while_a_client_drains_past_messages_that_take_long_to_expire() -> None:
    harness = Harness(EXPIRING)
    await harness.send(b"held")
    harness.post(4, Demand(MAIN, 1))
    await harness.until_quiet()
    await _with_much_to_merge(harness, 80)
    harness.clock.advance(LOCK_MS - 5_020 - 10)
    harness.post(1, Demand(MAIN, 10))
    harness.post(1, Withdraw(MAIN))
    await harness.task.step()
    harness.clock.advance(10 + Bounds().tick_ms)
    assert not harness.take(1)
    await harness.task.step()
    assert one(harness.take(1)[:1], Locked).messages == [b"held"], "it came back, and is the oldest"
    assert harness.subqueues[0].references.count > 1


@pytest.mark.parametrize("then", ["asks", "goes", "settles"])
async def test_what_a_client_does_after_a_drain_that_takes_long(then: str) -> None:
    harness = Harness(EXPIRING)
    await harness.send(b"held")
    held = await harness.receive(1)
    await _with_much_to_merge(harness, 80)
    harness.post(1, Demand(MAIN, 10))
    harness.post(1, Withdraw(MAIN))
    await harness.task.step()
    assert not harness.take(1)
    match then:
        case "asks":
            assert await harness.do(1, Demand(MAIN, 5)) == [Withdrawn(NUMBER, MAIN)]
            await harness.send(b"live")
            assert one(harness.take(1), Locked).messages == [b"live"], "its new demand stands"
        case "goes":
            assert await harness.do(1, Detach()) == []
            await harness.send(b"live")
            assert harness.take(1) == []
        case "settles":
            answers = await harness.do(1, Complete(held.tokens))
            assert sorted(type(each).__name__ for each in answers) == ["Settled", "Withdrawn"]
            await harness.send(b"live")
            assert harness.take(1) == [], "it has no demand any more"


async def test_a_hand_out_ends_where_expired_messages_do_not_fit_into_the_cycle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else they are looked at again and again, up to the limit of the hand-out."""
    harness = Harness(EXPIRING)
    count = MERGED_AT_ONCE // (2_000 * PROPERTY_COST)
    await _with_much_to_merge(harness, count)
    takes: list[int] = []
    take = Subqueue.take

    def counting(subqueue: Subqueue, *arguments: Any) -> Any:
        takes.append(0)
        return take(subqueue, *arguments)

    monkeypatch.setattr(Subqueue, "take", counting)
    harness.post(2, Demand(MAIN, 80))
    await harness.task.step()
    assert len(takes) == 1 and len(harness.subqueues[0].references) == 1, "the others have expired before"


async def test_drains_that_take_several_cycles_are_answered_if_the_disk_fails_meanwhile() -> None:
    """Symptom: a receiver waited for the end of its drain until the disk was back."""
    harness = Harness(limits=TaskLimits(bounds=Bounds(granted_leases_max=2)))
    await harness.send(*[b"x"] * 10)
    for client in range(1, 11):
        harness.post(client, Demand(MAIN, 1))
        harness.post(client, Withdraw(MAIN))
    await harness.task.step()
    served = [client for client in range(1, 11) if harness.take(client)]
    assert served == [1, 2, 3, 4], "two withdrew in the cycle, and two were given messages at its end"

    async def acquire(epoch: int | None = None) -> None:
        raise StorageError("I/O error")

    harness.log.acquire = acquire  # type: ignore[assignment]
    harness.log.fail_append(CommitFailed("I/O error"))
    harness.post(1000, Send([b"y"], None))
    for _ in range(5):
        await harness.task.step()
    assert harness.task.health is Health.RECOVERING
    for client in set(range(1, 11)) - {*served}:
        assert [type(answer) for answer in harness.take(client)][-1] is Withdrawn, client
