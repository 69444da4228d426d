"""A link on which a client receives: the real engine and connection, partitions that answer by hand."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from broker.entities import EntityStatus, QueueSettings
from broker.errors import Reason, Refused
from broker.frontend import outgoing_link
from broker.operations import (
    Abandon,
    Complete,
    DeadLetter,
    Defer,
    Demand,
    Detach,
    Failed,
    Locked,
    LockToken,
    Recall,
    Recalled,
    Release,
    RenewLocks,
    Settled,
    Unavailable,
    Unmet,
    Withdraw,
    Withdrawn,
)
from protocol.codec import Described, Symbol, UInt, ULong, decode
from tests.support import raw_amqp as raw
from tests.support.amqp_messages import sections
from tests.support.link_stack import Client, LinkStack, Part, tags_of, turn, until
from tests.support.locked import locked

LONG_MS = 60_000


def give(stack: LinkStack, number: int, count: int, **given: Any) -> Locked:
    """The partition answers its oldest demand with so many messages."""
    messages = locked(number, count, until_ms=stack.clock.monotonic_ms() + LONG_MS, **given)
    part = stack.parts[number]
    part.answer(Demand, lambda demand: messages)
    return messages


def confirm(part: Part) -> None:
    """The partition answers all withdrawals."""
    while part.has(Withdraw):
        part.answer(Withdraw, lambda withdraw: Withdrawn(part.number, withdraw.subqueue))


def demands(stack: LinkStack) -> dict[int, int]:
    """What was asked for since the last time, by partition."""
    asked = {part.number: sum(demand.count for demand in part.take_all(Demand)) for part in stack.parts}
    return {number: count for number, count in asked.items() if count}


def waiting(stack: LinkStack) -> dict[int, int]:
    """The same, left where it is."""
    asked = {part.number: sum(operation.count for operation, _, _ in part.posted if isinstance(operation, Demand)) for part in stack.parts}
    return {number: count for number, count in asked.items() if count}


async def receiving(credit: int, *, settled: bool = False, partitions: int = 4, **given: Any) -> tuple[LinkStack, Client]:
    stack = LinkStack(partitions, **given)
    client = await stack.connect()
    await client.receiver(0, credit=credit, settled=settled)
    return stack, client


# --- credit in, demand out --------------------------------------------------------------------------------------------------


async def test_without_credit_nothing_is_asked_for() -> None:
    stack, _ = await receiving(0)
    assert demands(stack) == {}


async def test_credit_becomes_a_share_of_demand_at_every_partition() -> None:
    stack, _ = await receiving(10)
    assert demands(stack) == {0: 3, 1: 3, 2: 3, 3: 3}


async def test_a_flow_that_says_what_is_known_already_asks_for_nothing_more() -> None:
    """pyamqp repeats its flows unchanged."""
    stack, client = await receiving(credit=8)
    for delivery_count, credit in ((0, 8), (2, 6), (0, 8)):  # the last one was on its way when the messages came
        asked = waiting(stack)
        for _ in range(3):
            client.flow(0, delivery_count, credit)
            await turn()
        assert waiting(stack) == asked and sum(asked.values()) >= credit
        if not delivery_count:
            give(stack, 0, 2)
            assert len(tags_of(await client.hear())) == 2
    for number in range(1, 4):
        give(stack, number, 2)
    give(stack, 0, 4)
    assert len(tags_of(await client.hear())) == 8 - 2 - 2, "no more than the credit"


async def test_a_message_is_handed_over_as_soon_as_a_partition_gives_it() -> None:
    stack, client = await receiving(10)
    messages = give(stack, 2, 1)
    (transfer,) = await client.heard(raw.TRANSFER)
    assert transfer.field(2) == messages.tokens[0] and not transfer.field(4) and transfer.field(3) == 0
    found = sections(transfer.payload)
    assert found[0x72]["x-opt-sequence-number"] == messages.sequence_numbers[0] and found[0x72]["x-opt-partition-id"] == 2
    assert found[0x72]["x-opt-locked-until"] == stack.clock.now_ms() + LONG_MS and found[0x75] == b"hello"


async def test_what_comes_beyond_the_credit_waits_and_answers_the_next_credit_without_asking_again() -> None:
    stack, client = await receiving(1)
    first = give(stack, 0, 1)
    second = give(stack, 3, 1)
    assert tags_of(await client.hear()) == first.tokens
    demands(stack)
    client.flow(0, 1, 1)
    assert tags_of(await client.hear()) == second.tokens
    assert not any(part.has(RenewLocks) for part in stack.parts), "the lock is nearly new"


async def test_a_message_that_has_waited_gets_its_lock_renewed_when_it_is_handed_over() -> None:
    stack, client = await receiving(1)
    give(stack, 0, 1)
    second = give(stack, 3, 1)
    await client.hear()
    stack.clock.advance(LONG_MS // 2)
    client.flow(0, 1, 1)
    (transfer,) = await client.heard(raw.TRANSFER)
    assert stack.parts[3].take(RenewLocks)[0].tokens == second.tokens
    assert sections(transfer.payload)[0x72]["x-opt-locked-until"] == stack.clock.now_ms() + 60_000


async def test_a_message_whose_lock_ran_out_while_it_waited_is_never_delivered() -> None:
    stack, client = await receiving(1)
    give(stack, 0, 1)
    second = give(stack, 3, 1)
    await client.hear()
    stack.clock.advance(LONG_MS + 1)
    client.flow(0, 1, 1)
    assert tags_of(await client.hear()) == []
    assert stack.parts[3].take(Release)[0].tokens == second.tokens
    assert demands(stack), "and others are asked for instead"


async def test_what_nobody_comes_for_goes_back_before_its_lock_runs_out(monkeypatch: pytest.MonkeyPatch) -> None:
    stack, client = await receiving(1, settings=QueueSettings(lock_duration_ms=100))
    give(stack, 0, 1)
    waiting = locked(3, 1, until_ms=stack.clock.monotonic_ms() + 50)
    stack.parts[3].answer(Demand, lambda demand: waiting)
    stack.clock.advance(30)
    await until(lambda: stack.parts[3].has(Release))
    assert stack.parts[3].take(Release)[0].tokens == waiting.tokens
    assert client.connection.cache.messages == 0


async def test_what_finds_no_room_in_the_cache_goes_back_at_once() -> None:
    stack, client = await receiving(1, receive_cache_messages=1)
    give(stack, 0, 1)
    second, third = give(stack, 1, 1), give(stack, 2, 1)
    assert client.connection.cache.messages == 1 and not stack.parts[1].has(Release) and second.tokens
    assert stack.parts[2].take(Release)[0].tokens == third.tokens


async def test_demand_is_taken_back_when_the_credit_has_been_used_up_for_a_while() -> None:
    stack, client = await receiving(1)
    give(stack, 0, 1)
    assert len(tags_of(await client.hear())) == 1
    assert not any(part.has(Withdraw) for part in stack.parts), "one who receives in a loop asks again at once"
    await until(lambda: all(stack.parts[number].has(Withdraw) for number in (1, 2, 3)))
    assert not stack.parts[0].has(Withdraw), "its demand was met"


async def test_demand_stays_when_the_client_asks_again_at_once() -> None:
    stack, client = await receiving(1)
    give(stack, 0, 1)
    await client.hear()
    client.flow(0, 1, 1)
    await asyncio.sleep(3 * outgoing_link.WITHDRAW_AFTER_S)
    assert not any(part.has(Withdraw) for part in stack.parts)


async def test_a_partition_that_said_it_has_no_more_does_not_keep_the_others_from_being_asked() -> None:
    stack, client = await receiving(2, partitions=2)
    give(stack, 0, 1), give(stack, 1, 1)
    await client.hear()
    client.flow(0, 2, 1)
    await turn()
    (asked,) = [part for part in stack.parts if part.has(Demand)]
    operation, sink = asked.take(Demand)
    assert operation.tell_unmet
    sink(Unmet(asked.number, ""))
    other = stack.parts[1 - asked.number]
    assert other.has(Demand), "a message that arrives anywhere is found"


# --- drain ------------------------------------------------------------------------------------------------------------------


async def test_a_drain_is_answered_only_when_every_partition_has_confirmed_that_nothing_is_on_its_way() -> None:
    stack, client = await receiving(0)
    client.flow(0, 0, 8, drain=True)
    await turn()
    assert demands(stack) == {0: 2, 1: 2, 2: 2, 3: 2} and all(part.has(Withdraw) for part in stack.parts)
    for part in stack.parts:
        assert await client.heard(raw.FLOW) == []
        confirm(part)
    (flow,) = await client.heard(raw.FLOW)
    assert (flow.field(5), flow.field(6), flow.field(8)) == (8, 0, True)


async def test_a_drain_takes_what_a_partition_has_beyond_its_share() -> None:
    stack, client = await receiving(0)
    client.flow(0, 0, 8, drain=True)
    await turn()
    first = give(stack, 2, 2)
    demands(stack)
    for part in stack.parts:
        confirm(part)
    assert tags_of(await client.hear()) == first.tokens
    assert waiting(stack) == {2: 6}, "the one that gave something is asked again, for all that is wanted"
    second = give(stack, 2, 3)
    confirm(stack.parts[2])
    heard = await client.hear()
    assert tags_of(heard) == second.tokens
    await finish_drain(stack)
    flows = [frame for frame in heard + await client.hear() if frame.code == raw.FLOW]
    assert [(flow.field(5), flow.field(6), flow.field(8)) for flow in flows] == [(8, 0, True)]


async def finish_drain(stack: LinkStack) -> None:
    """Nobody has anything more."""
    while any(part.has(Withdraw) for part in stack.parts):
        demands(stack)
        for part in stack.parts:
            confirm(part)
        await turn()


async def test_a_drain_ends_although_a_partition_goes_down_before_it_confirms() -> None:
    stack, client = await receiving(4)
    client.flow(0, 0, 4, drain=True)
    await turn()
    _, sink = stack.parts[1].take(Demand)
    for part in stack.parts:
        if part.number != 1:
            confirm(part)
    assert await client.heard(raw.FLOW) == []
    stack.parts[1].posted.clear()
    sink(Unavailable(1))
    await until(lambda: client.wire.written)
    assert [(flow.field(6), flow.field(8)) for flow in await client.heard(raw.FLOW)] == [(0, True)]


async def test_a_drain_takes_back_what_was_asked_for_before_it() -> None:
    stack, client = await receiving(4)
    demands(stack)
    client.flow(0, 0, 4, drain=True)
    await turn()
    assert all(part.has(Withdraw) for part in stack.parts) and demands(stack) == {}
    await finish_drain(stack)
    assert len(await client.heard(raw.FLOW)) == 1


async def test_after_a_drain_the_next_credit_asks_again() -> None:
    stack, client = await receiving(0)
    client.flow(0, 0, 4, drain=True)
    await turn()
    await finish_drain(stack)
    await client.hear()
    client.flow(0, 4, 4)
    await turn()
    assert demands(stack) == {0: 1, 1: 1, 2: 1, 3: 1}


async def test_a_drain_that_is_taken_back_before_it_ends_leaves_the_demand_standing() -> None:
    stack, client = await receiving(0)
    client.flow(0, 0, 4, drain=True)
    await turn()
    client.flow(0, 0, 4)
    await turn()
    for part in stack.parts:
        confirm(part)
    await turn()
    assert demands(stack).keys() == {0, 1, 2, 3} and not any(part.has(Withdraw) for part in stack.parts)


async def test_a_partition_that_was_emptied_while_a_drain_was_taken_back_is_asked_again() -> None:
    stack, client = await receiving(0)
    client.flow(0, 0, 4, drain=True)
    await turn()
    demands(stack)
    client.flow(0, 0, 4)
    await turn()
    give(stack, 0, 1)
    demands(stack)
    for part in stack.parts:
        confirm(part)
    await turn()
    assert 0 in demands(stack)


async def test_a_drain_goes_on_after_the_write_when_the_room_for_output_is_used_up() -> None:
    stack = LinkStack(1, output_buffer_bytes_max=65_536)
    client = await stack.connect()
    await client.receiver(0)
    client.flow(0, 0, 2, drain=True)
    await turn()
    first = give(stack, 0, 1, body=b"x" * 100_000)
    confirm(stack.parts[0])
    heard = await client.hear()
    assert set(tags_of(heard)) - {None} == set(first.tokens) and raw.FLOW not in [frame.code for frame in heard]
    second = give(stack, 0, 1)
    await finish_drain(stack)
    assert tags_of(await client.hear()) == second.tokens


async def test_a_drain_of_receive_and_delete_waits_for_removals() -> None:
    stack, client = await receiving(0, settled=True)
    client.flow(0, 0, 1, drain=True)
    await turn()
    give(stack, 0, 1)
    await finish_drain(stack)
    assert await client.hear() == []
    stack.parts[0].answer(Complete, lambda operation: Settled(operation.cookie))
    await finish_drain(stack)
    assert len(await client.heard(raw.TRANSFER)) == 1


# --- recall and return ------------------------------------------------------------------------------------------------------


async def test_a_recall_gives_back_what_nobody_has_seen_of_that_partition() -> None:
    stack, client = await receiving(1)
    seen = give(stack, 0, 1)
    sink = any_sink(stack)
    unseen, other = give(stack, 1, 1), give(stack, 2, 1)
    sink(Recall(1, ""))
    sink(Recall(0, ""))
    assert list(stack.parts[1].take(Recalled)[0].tokens) == unseen.tokens
    assert list(stack.parts[0].take(Recalled)[0].tokens) == [], "answered also when there is nothing"
    assert tags_of(await client.hear()) == seen.tokens
    client.flow(0, 1, 1)
    assert tags_of(await client.hear()) == other.tokens


def any_sink(stack: LinkStack) -> Any:
    """Where the answers of the only link go."""
    return next(entry[2] for part in stack.parts for entry in part.posted)


@pytest.mark.parametrize("end", ["detach", "end", "close", "connection lost"])
async def test_unseen_messages_go_back_at_once_when_the_link_ends_and_seen_ones_do_not(end: str) -> None:
    stack, client = await receiving(1)
    give(stack, 0, 1)
    unseen = give(stack, 2, 1)
    await client.hear()
    match end:
        case "detach":
            client.detach(0)
        case "end":
            client.say(raw.frame(raw.END, []))
        case "close":
            client.say(raw.frame(raw.CLOSE, []))
        case _:
            client.connection.connection_lost()
    given_back = {part.number: list(part.take(Detach)[0].unseen) for part in stack.parts}
    assert given_back == {0: [], 1: [], 2: unseen.tokens, 3: []}
    assert client.connection.cache.messages == 0 and not stack.queue.watchers
    client.connection.connection_lost()
    assert not any(part.has(Detach) for part in stack.parts), "it ends once"


async def test_messages_that_come_after_the_link_has_ended_go_back() -> None:
    stack, client = await receiving(4)
    sinks = [part.take(Demand)[1] for part in stack.parts]
    client.detach(0)
    late = locked(1, 2)
    sinks[1](late)
    assert list(stack.parts[1].take(Release)[0].tokens) == late.tokens
    sinks[2](Recall(2, ""))
    assert list(stack.parts[2].take(Recalled)[0].tokens) == []
    sinks[3](Withdrawn(3, ""))
    sinks[3](Unavailable(3))


# --- receive and delete -----------------------------------------------------------------------------------------------------


async def test_receive_and_delete_sends_a_message_settled_and_only_after_its_removal_is_durable() -> None:
    stack, client = await receiving(3, settled=True)
    messages = give(stack, 1, 1)
    assert await client.hear() == []
    operation = stack.parts[1].answer(Complete, lambda operation: Settled(operation.cookie))
    assert isinstance(operation, Complete) and list(operation.tokens) == messages.tokens
    (transfer,) = await client.heard(raw.TRANSFER)
    assert transfer.field(4) is True and "x-opt-locked-until" not in sections(transfer.payload)[0x72]


async def test_receive_and_delete_does_not_send_what_was_not_removed() -> None:
    stack, client = await receiving(8, settled=True)
    messages = give(stack, 1, 2)
    stack.parts[1].answer(Complete, lambda operation: Settled(operation.cookie, {0: Reason.LOCK_LOST}))
    assert tags_of(await client.hear()) == messages.tokens[1:]


async def test_receive_and_delete_never_takes_more_than_the_credit() -> None:
    stack, client = await receiving(2, settled=True)
    for number in range(4):
        give(stack, number, 1)
    removals = [part.take(Complete) for part in stack.parts if part.has(Complete)]
    assert sum(len(operation.tokens) for operation, _ in removals) == 2
    for operation, sink in removals:
        sink(Settled(operation.cookie))
    assert len(tags_of(await client.hear())) == 2


async def test_a_removal_that_fails_sends_nothing_and_asks_again() -> None:
    stack, client = await receiving(1, settled=True, partitions=1)
    give(stack, 0, 1)
    stack.parts[0].answer(Complete, lambda operation: Failed(Reason.DISK_FULL, "full", operation.cookie))
    assert tags_of(await client.hear()) == [] and demands(stack) == {0: 1}


# --- settlement -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sent", "fields", "kind"),
    [
        (raw.ACCEPTED, [], Complete),
        (raw.REJECTED, [], DeadLetter),
        (raw.MODIFIED, [True, False], Abandon),
        (raw.MODIFIED, [None, None], Abandon),
        (raw.MODIFIED, [True, True], Defer),
    ],
    ids=["complete", "dead-letter", "abandon", "abandon of the JS SDK", "defer"],
)
async def test_a_settlement_is_echoed_with_the_same_outcome_once_it_is_durable(sent: int, fields: list[Any], kind: type[Any]) -> None:
    stack, client = await receiving(4)
    messages = give(stack, 1, 1)
    await client.hear()
    client.dispose(0, 0, raw.outcome(sent, fields))
    assert await client.hear() == [], "durability rule 1"
    operation = stack.parts[1].answer(kind, lambda operation: Settled(operation.cookie))
    assert list(operation.tokens) == messages.tokens  # type: ignore[union-attr]
    (answer,) = await client.heard(raw.DISPOSITION)
    assert bool(answer.field(0)) is False and answer.field(3) is True and answer.field(4).descriptor == sent
    assert [bool(field) for field in answer.field(4).value[:2]] == [bool(field) for field in fields]


async def test_released_messages_go_back_without_a_delivery_counted() -> None:
    stack, client = await receiving(4)
    messages = give(stack, 1, 1)
    await client.hear()
    client.dispose(0, 0, raw.outcome(raw.RELEASED))
    assert list(stack.parts[1].take(Release)[0].tokens) == messages.tokens
    assert [frame.field(4).descriptor for frame in await client.heard(raw.DISPOSITION)] == [raw.RELEASED]


async def test_one_disposition_over_several_partitions_is_one_operation_for_each() -> None:
    stack, client = await receiving(12)
    by_part = [give(stack, number, 3) for number in range(4)]
    await client.hear()
    client.dispose(0, 11, raw.outcome(raw.ACCEPTED))
    for part, messages in zip(stack.parts, by_part, strict=True):
        (operation,) = part.take_all(Complete)
        assert list(operation.tokens) == messages.tokens


async def test_a_settlement_that_comes_too_late_is_rejected_with_lock_lost_and_the_others_are_not() -> None:
    stack, client = await receiving(8)
    give(stack, 1, 2)
    await client.hear()
    client.dispose(0, 1, raw.outcome(raw.ACCEPTED))
    stack.parts[1].answer(Complete, lambda operation: Settled(operation.cookie, {1: Reason.LOCK_LOST}))
    answers = {frame.field(1): frame.field(4) for frame in await client.heard(raw.DISPOSITION)}
    assert answers[0].descriptor == raw.ACCEPTED and answers[1].descriptor == raw.REJECTED
    condition, description, info = answers[1].value[0].value
    assert condition == "com.microsoft:message-lock-lost" and description and info


async def test_a_settlement_that_the_partition_could_not_carry_out_is_rejected_with_what_clients_retry() -> None:
    stack, client = await receiving(4)
    give(stack, 1, 1)
    await client.hear()
    client.dispose(0, 0, raw.outcome(raw.ACCEPTED))
    stack.parts[1].answer(Complete, lambda operation: Failed(Reason.PARTITION_UNAVAILABLE, "down", operation.cookie))
    (answer,) = await client.heard(raw.DISPOSITION)
    assert answer.field(4).value[0].value[0] == "com.microsoft:server-busy"


async def test_a_dead_lettering_carries_its_reason_and_is_confirmed_by_a_bare_rejected() -> None:
    stack, client = await receiving(4)
    give(stack, 1, 1)
    await client.hear()
    info = {Symbol("DeadLetterReason"): "broken", Symbol("DeadLetterErrorDescription"): None, Symbol("colour"): "red"}
    error = Described(ULong(raw.ERROR), [Symbol("com.microsoft:dead-letter"), "text", info])
    client.dispose(0, 0, raw.outcome(raw.REJECTED, [error]))
    operation = stack.parts[1].answer(DeadLetter, lambda operation: Settled(operation.cookie))
    assert isinstance(operation, DeadLetter) and operation.changed is not None
    assert decode(operation.changed)[0] == {"DeadLetterReason": "broken", "colour": "red"}, "nulls are left out"
    (answer,) = await client.heard(raw.DISPOSITION)
    assert answer.field(4).descriptor == raw.REJECTED and not [field for field in answer.field(4).value if field is not None]


async def test_a_dead_lettering_that_is_not_allowed_is_rejected_with_an_error_and_one_that_came_too_late_with_another() -> None:
    stack, client = await receiving(4)
    give(stack, 1, 3)
    await client.hear()
    client.dispose(0, 2, raw.outcome(raw.REJECTED))
    stack.parts[1].answer(DeadLetter, lambda operation: Settled(operation.cookie, {0: Reason.NOT_ALLOWED, 2: Reason.LOCK_LOST}))
    answers = {frame.field(1): frame.field(4).value for frame in await client.heard(raw.DISPOSITION)}
    assert answers[0][0].value[0] == "amqp:not-allowed" and not any(answers[1])
    assert answers[2][0].value[0] == "com.microsoft:message-lock-lost"


async def test_the_error_of_a_plain_client_becomes_the_reason() -> None:
    stack, client = await receiving(4)
    give(stack, 1, 1)
    await client.hear()
    error = Described(ULong(raw.ERROR), [Symbol("amqp:decode-error"), "cannot read it"])
    client.dispose(0, 0, raw.outcome(raw.REJECTED, [error]))
    changed = stack.parts[1].take(DeadLetter)[0].changed
    assert changed is not None
    assert decode(changed)[0] == {"DeadLetterReason": "amqp:decode-error", "DeadLetterErrorDescription": "cannot read it"}


@pytest.mark.parametrize(("undeliverable_here", "kind"), [(False, Abandon), (True, Defer)], ids=["abandon", "defer"])
async def test_properties_to_modify_go_along(undeliverable_here: bool, kind: type[Abandon] | type[Defer]) -> None:
    stack, client = await receiving(4)
    give(stack, 1, 1)
    await client.hear()
    client.dispose(0, 0, raw.outcome(raw.MODIFIED, [True, undeliverable_here, {Symbol("colour"): "red", Symbol("gone"): None}]))
    changed = stack.parts[1].take(kind)[0].changed
    assert changed is not None and decode(changed)[0] == {"colour": "red", "gone": None}


async def test_what_the_client_settled_itself_is_carried_out_and_not_answered() -> None:
    stack, client = await receiving(4)
    messages = give(stack, 1, 1)
    await client.hear()
    client.dispose(0, 0, raw.outcome(raw.ACCEPTED), settled=True)
    operation = stack.parts[1].answer(Complete, lambda operation: Settled(operation.cookie))
    assert list(operation.tokens) == messages.tokens  # type: ignore[union-attr]
    assert await client.heard(raw.DISPOSITION) == []


async def test_an_outcome_that_comes_in_one_write_with_the_detach_counts() -> None:
    stack, client = await receiving(4)
    messages = give(stack, 1, 1)
    await client.hear()
    outcome = raw.disposition_fields(True, 0, 0, True, raw.outcome(raw.ACCEPTED))
    client.say(raw.frame(raw.DISPOSITION, outcome), raw.frame(raw.DETACH, [UInt(0), True]))
    operation, sink = stack.parts[1].take(Complete)
    assert list(operation.tokens) == messages.tokens
    sink(Settled(operation.cookie))
    assert [frame.code for frame in await client.hear()] == [raw.DETACH]


async def test_transactions_are_refused_and_the_messages_go_back() -> None:
    stack, client = await receiving(4)
    messages = give(stack, 1, 1)
    await client.hear()
    client.dispose(0, 0, Described(ULong(0x34), [b"transaction", raw.outcome(raw.ACCEPTED)]))
    assert list(stack.parts[1].take(Release)[0].tokens) == messages.tokens
    (answer,) = await client.heard(raw.DISPOSITION)
    assert answer.field(4).value[0].value[0] == "amqp:not-implemented"


async def test_what_was_settled_over_management_is_settled_on_the_link() -> None:
    stack, client = await receiving(4)
    messages = give(stack, 1, 1)
    await client.hear()
    (link,) = client.connection.engine.links()
    link.context.forget({messages.tokens[0], bytes(16)})
    link.context.forget({messages.tokens[0]})
    (answer,) = await client.heard(raw.DISPOSITION)
    assert (answer.field(1), answer.field(3), answer.field(4).descriptor) == (0, True, raw.ACCEPTED)


# --- partitions that go down ------------------------------------------------------------------------------------------------


async def test_a_partition_that_went_down_is_asked_again_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outgoing_link, "RETRY_UNAVAILABLE_S", 0.01)
    stack, _ = await receiving(4)
    _, sink = stack.parts[1].take(Demand)
    sink(Unavailable(1))
    assert not stack.parts[1].has(Demand)
    await until(lambda: stack.parts[1].has(Demand))


async def test_a_partition_that_is_down_for_good_is_asked_no_more_and_the_others_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outgoing_link, "RETRY_UNAVAILABLE_S", 0.01)
    stack, client = await receiving(4)
    _, gone = stack.parts[1].take(Demand)
    _, back = stack.parts[2].take(Demand)
    gone(Unavailable(1, for_good=True))
    back(Unavailable(2))
    await until(lambda: stack.parts[2].has(Demand))
    for part in (0, 2, 3):
        give(stack, part, 1)
    assert len(tags_of(await client.hear())) == 3
    client.flow(3, 1, 100, drain=True)
    await client.hear()
    assert not stack.parts[1].has(Demand) and not stack.parts[1].has(Withdraw)


async def test_what_a_partition_gave_before_it_went_down_is_not_delivered_from_the_cache() -> None:
    stack, client = await receiving(1)
    give(stack, 0, 1)
    sink = any_sink(stack)
    give(stack, 1, 1)
    await client.hear()
    sink(Unavailable(1))
    client.flow(0, 1, 1)
    assert tags_of(await client.hear()) == [] and client.connection.cache.messages == 0


# --- bounds -----------------------------------------------------------------------------------------------------------------


async def test_no_more_are_delivered_than_may_be_unsettled_and_settling_lets_the_next_ones_out() -> None:
    stack, client = await receiving(100, partitions=1, unsettled_per_link_max=2)
    assert waiting(stack) == {0: 2}
    part = stack.parts[0]
    give(stack, 0, 2)
    assert len(tags_of(await client.hear())) == 2 and demands(stack) == {}
    client.dispose(0, 0, raw.outcome(raw.ACCEPTED))
    await until(lambda: part.has(Demand))
    assert demands(stack) == {0: 1}


async def test_settling_over_management_lets_the_next_ones_out_too() -> None:
    stack, client = await receiving(100, partitions=1, unsettled_per_link_max=1)
    messages = give(stack, 0, 1)
    await client.hear()
    demands(stack)
    (link,) = client.connection.engine.links()
    link.context.forget({messages.tokens[0]})
    assert demands(stack) == {0: 1}


async def test_a_link_that_found_no_room_for_output_is_served_after_the_write_whoever_used_it_up() -> None:
    stack = LinkStack(1, output_buffer_bytes_max=65_536)
    client = await stack.connect()
    await client.receiver(0, credit=10)
    await client.receiver(1, credit=10)
    part = stack.parts[0]
    (_, greedy), (_, modest) = part.take(Demand), part.take(Demand)
    greedy(locked(0, 1, body=b"x" * 100_000, until_ms=stack.clock.monotonic_ms() + LONG_MS))
    small = locked(0, 1, until_ms=stack.clock.monotonic_ms() + LONG_MS)
    modest(small)
    tags = tags_of(await client.hear())
    assert small.tokens[0] in tags


async def test_a_client_that_does_not_read_is_given_no_more_until_it_does() -> None:
    stack, client = await receiving(100, partitions=1)
    _, sink = stack.parts[0].take(Demand)
    client.connection.pause_writing()
    messages = locked(0, 3, until_ms=stack.clock.monotonic_ms() + LONG_MS)
    sink(messages)
    assert tags_of(await client.hear()) == []
    client.connection.resume_writing()
    assert tags_of(await client.hear()) == messages.tokens


async def test_a_drain_of_a_client_that_does_not_read_is_answered_after_its_messages() -> None:
    stack, client = await receiving(0, partitions=1)
    client.connection.pause_writing()
    client.flow(0, 0, 2, drain=True)
    assert await client.hear() == [] and demands(stack) == {}
    client.connection.resume_writing()
    await until(lambda: stack.parts[0].has(Demand))
    messages = give(stack, 0, 1)
    await finish_drain(stack)
    heard = await client.hear()
    assert tags_of(heard) == messages.tokens and [frame.field(6) for frame in heard if frame.code == raw.FLOW] == [0]


async def test_a_client_that_keeps_its_session_window_shut_is_given_a_bounded_number_of_bytes() -> None:
    stack = LinkStack(1, output_buffer_bytes_max=65_536)
    client = await stack.connect(window=0)
    await client.receiver(0)
    shut = raw.flow_fields(0, 0, 5_000)
    shut[1] = UInt(0)
    client.say(raw.frame(raw.FLOW, shut))
    given = 0
    for _ in range(50):
        await turn()
        if stack.parts[0].has(Demand):
            demand, sink = stack.parts[0].take(Demand)
            sink(locked(0, demand.count, body=b"x" * 1_000, until_ms=stack.clock.monotonic_ms() + LONG_MS))
            given += demand.count
        client.say(raw.raw_frame(b""))
    (link,) = client.connection.engine.links()
    assert client.connection.engine.unsent_bytes(link) < 3 * 65_536 and given < 500
    client.say(raw.frame(raw.FLOW, raw.flow_fields()))
    assert tags_of(await client.hear()), "once the window opens it goes on"


# --- attach, change, end ----------------------------------------------------------------------------------------------------


async def refused(client: Client, fields: list[Any]) -> tuple[str, str]:
    attach, detach = await client.attach(fields)
    assert attach.field(5) is None and attach.field(6) is None and detach.code == raw.DETACH
    condition, description, _ = detach.field(2).value
    return str(condition), description


async def test_a_link_to_what_does_not_exist_is_refused_in_the_words_that_clients_know() -> None:
    client = await LinkStack().connect()
    condition, description = await refused(client, raw.receiver_attach(0, "nothing"))
    assert condition == "amqp:not-found" and "The messaging entity" in description and "could not be found" in description


async def test_a_link_to_a_queue_that_gives_nothing_out_is_refused_and_one_that_is_attached_is_closed() -> None:
    stack, client = await receiving(4)
    description = stack.queue.description
    stack.queue.description = replace(description, settings=replace(description.settings, status=EntityStatus.RECEIVE_DISABLED))
    for watcher in list(stack.queue.watchers):
        watcher.queue_changed()
    (detach,) = await client.heard(raw.DETACH)
    assert detach.field(2).value[0] == "com.microsoft:entity-disabled" and all(part.has(Detach) for part in stack.parts)
    assert (await refused(client, raw.receiver_attach(1, "queue")))[0] == "com.microsoft:entity-disabled"


async def test_a_link_is_closed_when_its_queue_is_deleted() -> None:
    stack, client = await receiving(4)
    await stack.queue.end(Refused(Reason.ENTITY_NOT_FOUND, "The messaging entity 'queue' could not be found."))
    (detach,) = await client.heard(raw.DETACH)
    assert detach.field(1) is True and detach.field(2).value[0] == "amqp:not-found"
    client.detach(0)
    assert await client.hear() == [] and not stack.queue.watchers


async def test_a_session_filter_is_refused_where_there_are_no_sessions() -> None:
    client = await LinkStack().connect()
    fields = raw.receiver_attach(0, "queue")
    filters = {Symbol("com.microsoft:session-filter"): "cart"}
    fields[5] = Described(ULong(raw.SOURCE), ["queue", None, None, None, None, None, None, filters])
    assert (await refused(client, fields))[0] == "amqp:not-allowed"


async def test_what_goes_wrong_in_an_answer_ends_the_connection_and_reaches_no_partition() -> None:
    stack, client = await receiving(4)
    _, sink = stack.parts[0].take(Demand)
    broken = locked(0, 1)
    sink(replace(broken, messages=[b""]))
    assert client.wire.aborted


async def test_the_dead_letter_subqueue_is_received_from_under_its_path() -> None:
    stack = LinkStack()
    client = await stack.connect()
    await client.receiver(0, credit=4, address="queue/$DeadLetterQueue")
    assert {part.take(Demand)[0].subqueue for part in stack.parts} == {"$deadletterqueue"}


# --- all together -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
async def test_every_message_reaches_a_client_that_keeps_asking_whatever_the_order_of_answers(seed: int) -> None:
    """Partitions that hold messages at random and answer at random; the client has little credit, settles, drains at times."""
    random = Random(seed)
    stack = LinkStack(random.choice((1, 2, 5)), receive_cache_messages=random.choice((0, 3, 100)))
    client = await stack.connect()
    await client.receiver(0)
    held: list[list[LockToken]] = [[] for _ in stack.parts]
    wanted = [0] * len(stack.parts)
    sinks: list[Any] = [None] * len(stack.parts)
    seen: list[LockToken] = []
    sent = 0

    def serve(part: Part) -> None:
        number = part.number
        operation, _, sink = part.posted.popleft()
        sinks[number] = sink
        match operation:
            case Demand():
                wanted[number] += operation.count
                hand_out(number)
                if operation.tell_unmet and wanted[number]:
                    sink(Unmet(number, ""))
            case Withdraw():
                wanted[number] = 0
                sink(Withdrawn(number, ""))
            case Release() | Recalled():
                held[number][:0] = operation.tokens
                hand_out(number)
            case Complete():
                sink(Settled(operation.cookie))
            case _:
                assert isinstance(operation, RenewLocks)

    def hand_out(number: int) -> None:
        count = min(wanted[number], len(held[number]))
        if count:
            wanted[number] -= count
            tokens, held[number][:] = held[number][:count], held[number][count:]
            messages = locked(number, count, until_ms=stack.clock.monotonic_ms() + LONG_MS)
            sinks[number](replace(messages, tokens=tokens))

    credit_until = 0
    for _ in range(3000):
        if sent < 60 and random.random() < 0.1:
            sent += 1
            number = random.randrange(len(stack.parts))
            held[number].append(bytes([0, number]) + sent.to_bytes(14, "big"))
            if sinks[number]:
                hand_out(number)
        busy = [part for part in stack.parts if part.posted]
        if busy:
            serve(random.choice(busy))
        if random.random() < 0.2:
            for frame in await client.hear():
                if frame.code == raw.TRANSFER:
                    seen.append(frame.field(2))
                    client.dispose(frame.field(1), frame.field(1), raw.outcome(raw.ACCEPTED))
                elif frame.code == raw.FLOW and frame.field(8):
                    credit_until = frame.field(5)
        if len(seen) >= credit_until and not busy:
            credit = random.choice((1, 2, 10))
            credit_until = len(seen) + credit
            client.flow(0, len(seen), credit)
        if len(seen) == 60:
            break
    assert sorted(token[2:] for token in seen) == [number.to_bytes(14, "big") for number in range(1, 61)], f"seed {seed}"
