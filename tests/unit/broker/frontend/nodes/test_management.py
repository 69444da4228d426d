"""How `$management` handles its requests: real node and connection, with partitions that the tests answer
for."""

from __future__ import annotations

import asyncio
import gc
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import CellType
from typing import Any

import pytest
from structlog.testing import capture_logs

from broker.base.clock import wall_ahead_ms
from broker.base.errors import Reason
from broker.entities.descriptions import MAIN, EntityStatus
from broker.frontend.nodes.bodies import ELEMENTS_MAX
from broker.frontend.nodes.request_node import Request
from broker.identifiers import PARTITION_SHIFT, LockToken
from broker.message.changes import DEAD_LETTER_DESCRIPTION, DEAD_LETTER_REASON, encode_changes
from broker.messaging.deferred import PREPARED_AT_ONCE
from broker.operations.browsing import Peek
from broker.operations.general import Failed
from broker.operations.interface import Answer
from broker.operations.receiving import Demand, Locked, ReceiveDeferred
from broker.operations.settling import (
    Abandon,
    Complete,
    DeadLetter,
    Defer,
    GiveBack,
    Release,
    Renewed,
    RenewLocks,
    Settled,
)
from protocol.codec import Array, Described, Timestamp, TypeCode, ULong, decode, encode
from tests.support import raw_amqp as raw
from tests.support.amqp_messages import ANNOTATIONS, DATA, DELIVERY_ANNOTATIONS, sections
from tests.support.link_stack import Client, turn
from tests.support.locked import locked
from tests.support.management_bench import Answers, Bench, bench, down, shown, status
from tests.support.turn_meter import TurnMeter

# --- renew lock ---------------------------------------------------------------------------------------------


def tokens_of(*numbers: int) -> list[bytes]:
    """Lock tokens, one in each of these partitions."""
    return [token for number in numbers for token in locked(number).tokens]


def uuids(tokens: list[bytes]) -> Array:
    return Array(TypeCode.UUID, [uuid.UUID(bytes_le=token) for token in tokens])


def renewing(
    refusing: Mapping[int, Callable[[int, Any], Answer]] | None = None,
) -> tuple[dict[int, list[bytes]], Answers]:
    """Partitions that renew locks until 1,000 ms plus their number, except those in `refusing`; and the
    tokens that each was asked for."""
    asked: dict[int, list[bytes]] = {}

    def renew(number: int, operation: RenewLocks) -> Answer:
        asked[number] = list(operation.tokens)
        refuse = (refusing or {}).get(number)
        return refuse(number, operation) if refuse else Renewed(1_000 + number, operation.cookie)

    return asked, {RenewLocks: renew}


async def test_locks_of_several_partitions_are_renewed_by_one_operation_each_and_in_order() -> None:
    work = await bench()
    tokens = tokens_of(2, 0, 2, 3, 0)
    asked, answers = renewing()
    response = await work.ask("renew-lock", {"lock-tokens": uuids(tokens)}, answers)
    assert asked == {2: [tokens[0], tokens[2]], 0: [tokens[1], tokens[4]], 3: [tokens[3]]}
    assert status(response) == (200, None)
    expirations = response.body["expirations"]
    assert isinstance(expirations, Array) and expirations.type_code == TypeCode.TIMESTAMP
    ahead_ms = wall_ahead_ms(
        work.stack.clock
    )  # partitions give the end of a lock in monotonic time, clients get it in wall time
    assert all(isinstance(each, Timestamp) for each in expirations.values)
    assert [each - ahead_ms for each in expirations.values] == [
        1_002,
        1_000,
        1_002,
        1_003,
        1_000,
    ]


@pytest.mark.parametrize(
    ("refusal", "expected"),
    [
        (down, (410, "com.microsoft:message-lock-lost")),
        (
            lambda _, operation: Renewed(0, operation.cookie, {0: Reason.LOCK_LOST}),
            (410, "com.microsoft:message-lock-lost"),
        ),
    ],
    ids=["down", "lost"],
)
async def test_one_lock_that_cannot_be_renewed_keeps_none_of_the_others_from_it(
    refusal: Callable[[int, Any], Answer], expected: tuple[int, str]
) -> None:
    work = await bench()
    asked, answers = renewing({0: refusal})
    assert (
        status(await work.ask("renew-lock", {"lock-tokens": uuids(tokens_of(0, 1, 2))}, answers)) == expected
    )
    assert sorted(asked) == [0, 1, 2]


@pytest.mark.parametrize("operation", ["renew-lock", "update-disposition"])
async def test_a_lock_that_ended_with_its_partition_counts_as_an_error_of_the_broker(operation: str) -> None:
    """Symptom: it was counted as the client's."""
    work = await bench()
    body = {"lock-tokens": uuids(tokens_of(0)), "disposition-status": "completed"}
    response = await work.ask(operation, body, {RenewLocks: down, Complete: down})
    assert status(response) == (410, "com.microsoft:message-lock-lost")
    assert (work.metric("user_errors"), work.metric("server_errors")) == (0, 1)


async def test_a_lock_that_nobody_gave_is_lost() -> None:
    work = await bench()
    asked, answers = renewing()
    for operation in ("renew-lock", "update-disposition"):
        body = {"lock-tokens": uuids([b"\xff" * 16]), "disposition-status": "completed"}
        assert status(await work.ask(operation, body, answers)) == (410, "com.microsoft:message-lock-lost")
    assert asked == {}


# --- receive by sequence number -----------------------------------------------------------------------------


def deferred(messages: Locked) -> Callable[[int, Any], Answer]:
    return lambda _, operation: replace(messages, deferred=True, cookie=operation.cookie)


def numbers_of(messages: Locked, mode: int) -> dict[str, Any]:
    return {"sequence-numbers": Array(TypeCode.LONG, messages.sequence_numbers), "receiver-settle-mode": mode}


async def test_deferred_messages_are_locked_and_their_tokens_told_twice() -> None:
    work = await bench()
    messages = locked(1, 2, body=b"deferred")
    response = await work.ask(
        "receive-by-sequence-number", numbers_of(messages, 1), {ReceiveDeferred: deferred(messages)}
    )
    assert status(response) == (200, None)
    for entry, token in zip(response.body["messages"], messages.tokens, strict=True):
        found = sections(entry["message"])
        assert (
            entry["lock-token"]
            == uuid.UUID(bytes_le=token)
            == found[DELIVERY_ANNOTATIONS]["x-opt-lock-token"]
        )
        assert found[DATA] == b"deferred" and found[ANNOTATIONS][
            "x-opt-locked-until"
        ] == 60_000 + wall_ahead_ms(work.stack.clock)
    assert not any(part.has(Complete) for part in work.stack.parts)


async def test_messages_with_thousands_of_changed_properties_are_prepared_in_several_turns() -> None:
    """Symptom: 100 messages with 5,000 removed properties each, in one response, held the event loop for
    35 ms."""
    work = await bench()
    messages = locked(1, 40)
    messages.changed = [encode_changes({f"{number:05}": None for number in range(5_000)})] * 40
    meter = TurnMeter()
    with meter.measuring():
        response = await work.ask(
            "receive-by-sequence-number", numbers_of(messages, 1), {ReceiveDeferred: deferred(messages)}
        )
    assert meter.turns > 40 * 5_000 // (PREPARED_AT_ONCE + 5_000)
    assert shown(response) == messages.sequence_numbers
    assert [each["lock-token"].bytes_le for each in response.body["messages"]] == messages.tokens


async def test_receive_and_delete_answers_when_the_removal_is_durable_and_shows_no_lock() -> None:
    work = await bench()
    messages = locked(1, 2)
    removed: list[bytes] = []

    def complete(_: int, operation: Complete) -> Answer:
        removed.extend(operation.tokens)
        return Settled(operation.cookie)

    response = await work.ask(
        "receive-by-sequence-number",
        numbers_of(messages, 0),
        {ReceiveDeferred: deferred(messages), Complete: complete},
    )
    assert removed == messages.tokens and len(response.body["messages"]) == 2
    for entry in response.body["messages"]:
        found = sections(entry["message"])
        assert found[DELIVERY_ANNOTATIONS] == {} and "x-opt-locked-until" not in found[ANNOTATIONS]


async def test_a_response_that_may_be_taken_back_keeps_no_messages() -> None:
    """Symptom: the Python client settles no response, so the broker kept the messages as long as its link."""
    work = await bench()
    messages = locked(1, 3)
    response = await work.ask(
        "receive-by-sequence-number", numbers_of(messages, 1), {ReceiveDeferred: deferred(messages)}
    )
    assert callable(response.unsent)
    reached: list[Any] = [response.unsent]
    seen = set[int]()
    while reached:
        reached = [
            each
            for each in gc.get_referents(*reached)
            if isinstance(each, (tuple, list, CellType, Locked)) and id(each) not in seen
        ]
        seen.update(map(id, reached))
        assert not any(isinstance(each, Locked) for each in reached)


async def test_what_was_removed_is_given_out_though_the_lock_of_another_one_was_lost() -> None:
    work = await bench()
    messages = locked(1, 3)
    answers: Answers = {
        ReceiveDeferred: deferred(messages),
        Complete: lambda _, operation: Settled(operation.cookie, {1: Reason.LOCK_LOST}),
    }
    response = await work.ask("receive-by-sequence-number", numbers_of(messages, 0), answers)
    assert shown(response) == [messages.sequence_numbers[0], messages.sequence_numbers[2]]
    assert response.unsent is None, "nobody else can get them"
    all_lost: Answers = {
        **answers,
        Complete: lambda _, each: Settled(each.cookie, dict.fromkeys(range(3), Reason.LOCK_LOST)),
    }
    assert status(await work.ask("receive-by-sequence-number", numbers_of(messages, 0), all_lost)) == (
        410,
        "com.microsoft:message-lock-lost",
    )


async def test_what_was_locked_but_could_not_be_removed_is_released() -> None:
    work = await bench()
    messages = locked(1, 2)
    given_back: list[LockToken] = []

    def give_back(_: int, operation: GiveBack) -> Settled:
        given_back.extend(operation.tokens)
        return Settled(operation.cookie)

    answers: Answers = {ReceiveDeferred: deferred(messages), Complete: down, GiveBack: give_back}
    response = await work.ask("receive-by-sequence-number", numbers_of(messages, 0), answers)
    assert status(response) == (503, "com.microsoft:server-busy")
    assert given_back == messages.tokens


async def test_messages_of_a_response_that_cannot_be_sent_are_released() -> None:
    work = await bench()
    messages = locked(1, 2)
    response = await work.ask(
        "receive-by-sequence-number", numbers_of(messages, 1), {ReceiveDeferred: deferred(messages)}
    )
    assert response.unsent is not None and not work.stack.parts[1].has(Release)
    response.unsent()
    (released,) = work.stack.parts[1].take_all(Release)
    assert released.tokens == messages.tokens


@pytest.mark.parametrize("end", ["waits for credit", "link gone before", "connection lost"])
async def test_messages_of_a_client_that_went_away_before_its_response_are_released(end: str) -> None:
    work = await bench()
    client, messages = work.client, locked(1, 2)
    await client.sender(0, "queue/$management")
    await client.receiver(1, address="queue/$management")
    payload = b"".join(
        encode(Described(ULong(code), value))
        for code, value in (
            (0x73, ["request"]),
            (0x74, {"operation": "com.microsoft:receive-by-sequence-number"}),
            (0x77, numbers_of(messages, 1)),
        )
    )
    client.transfer(0, 0, payload)
    await turn()
    operation, sink = work.stack.parts[1].take(ReceiveDeferred)
    if end == "connection lost":
        client.connection.connection_lost()
        await turn()
    elif end == "link gone before":
        client.detach(1)
        await turn()
    sink(deferred(messages)(1, operation))
    await turn()
    if end == "waits for credit":
        assert not work.stack.parts[1].has(Release)
        client.detach(1)
        await turn()
    (released,) = work.stack.parts[1].take_all(Release)
    assert released.tokens == messages.tokens


@pytest.mark.parametrize("answered", ["before the cancellation", "after it", "and prepared in part"])
async def test_messages_locked_for_a_request_that_was_cancelled_are_released(answered: str) -> None:
    work = await bench()
    messages = locked(1, 40)
    many = encode_changes({f"{number:05}": None for number in range(PREPARED_AT_ONCE)})
    messages.changed = [many] * 40  # prepared one at a time
    request = Request(
        None, None, {"operation": "com.microsoft:receive-by-sequence-number"}, numbers_of(messages, 1)
    )
    task = asyncio.ensure_future(work.node.respond(request))
    await turn()
    operation, sink = work.stack.parts[1].take(ReceiveDeferred)
    answer = deferred(messages)(1, operation)
    if answered != "after it":
        sink(answer)
        if answered == "and prepared in part":
            await turn()
            assert not task.done()
        task.cancel()
    else:
        task.cancel()
        await turn()
        sink(answer)
    with pytest.raises(asyncio.CancelledError):
        await task
    (released,) = work.stack.parts[1].take_all(Release)
    assert released.tokens == messages.tokens


async def test_what_is_not_deferred_is_not_found() -> None:
    work = await bench()
    answers: Answers = {
        ReceiveDeferred: lambda _, operation: Failed(Reason.MESSAGE_NOT_FOUND, "none", operation.cookie)
    }
    response = await work.ask("receive-by-sequence-number", numbers_of(locked(1), 1), answers)
    assert status(response) == (404, "com.microsoft:message-not-found")


# --- update disposition -------------------------------------------------------------------------------------


def settling(
    refusing: Mapping[int, Callable[[int, Any], Answer]] | None = None,
) -> tuple[list[tuple[int, Any]], Answers]:
    """Partitions that settle, except those in `refusing`; and the operations that they were asked for."""
    asked: list[tuple[int, Any]] = []

    def settle(number: int, operation: Any) -> Answer:
        asked.append((number, operation))
        refuse = (refusing or {}).get(number)
        return refuse(number, operation) if refuse else Settled(operation.cookie)

    return asked, dict.fromkeys((Complete, Abandon, Defer, DeadLetter), settle)


@pytest.mark.parametrize(
    ("given", "kind", "changed"),
    [
        ({"disposition-status": "completed"}, Complete, None),
        ({"disposition-status": "abandoned"}, Abandon, None),
        ({"disposition-status": "abandoned", "properties-to-modify": {"tries": 2}}, Abandon, {"tries": 2}),
        ({"disposition-status": "defered", "properties-to-modify": {"gone": None}}, Defer, {"gone": None}),
        (
            {"disposition-status": "suspended", "deadletter-reason": "why", "deadletter-description": ""},
            DeadLetter,
            {DEAD_LETTER_REASON: "why"},
        ),
        (
            {
                "disposition-status": "suspended",
                "deadletter-description": "how",
                "properties-to-modify": {"colour": "red"},
            },
            DeadLetter,
            {DEAD_LETTER_DESCRIPTION: "how", "colour": "red"},
        ),
    ],
)
async def test_each_disposition_is_an_operation_of_its_own(
    given: dict[str, Any], kind: type[Any], changed: Any
) -> None:
    work = await bench()
    tokens = tokens_of(1, 3, 1)
    asked, answers = settling()
    response = await work.ask("update-disposition", {"lock-tokens": uuids(tokens), **given}, answers)
    assert status(response) == (200, None) and response.body == {}
    assert sorted((number, type(operation), list(operation.tokens)) for number, operation in asked) == [
        (1, kind, [tokens[0], tokens[2]]),
        (3, kind, [tokens[1]]),
    ]
    assert {each.subqueue for _, each in asked} == {MAIN}
    if kind is not Complete:
        assert all((each.changed and decode(each.changed)[0]) == changed for _, each in asked)


async def received(work: Bench) -> dict[int, Locked]:
    """A link on the same connection with two unsettled messages from each of three partitions: deliveries 0
    to 5."""
    await work.client.receiver(1, credit=6)
    given: dict[int, Locked] = {}
    for number in range(3):
        given[number] = locked(number, 2)
        _, sink = work.stack.parts[number].take(Demand)
        sink(given[number])
    frames = await work.client.heard(raw.TRANSFER)
    assert [frame.field(2) for frame in frames] == [
        token for messages in given.values() for token in messages.tokens
    ]
    return given


async def settled_deliveries(client: Client) -> list[int]:
    """Delivery-ids that the broker has settled."""
    await turn()
    frames = await client.heard(raw.DISPOSITION)
    assert all(frame.field(3) is True and frame.field(4).descriptor == raw.ACCEPTED for frame in frames)
    return sorted(
        number for frame in frames for number in range(frame.field(1), (frame.field(2) or frame.field(1)) + 1)
    )


async def test_what_was_settled_here_is_settled_on_the_link_that_delivered_it() -> None:
    work = await bench(3)
    given = await received(work)
    tokens = [given[0].tokens[1], given[2].tokens[0]]
    _, answers = settling()
    await work.ask(
        "update-disposition", {"lock-tokens": uuids(tokens), "disposition-status": "completed"}, answers
    )
    assert await settled_deliveries(work.client) == [1, 4]
    assert work.metric("completed_messages") == 2


@pytest.mark.parametrize(
    ("refusal", "expected", "settled"),
    [
        (down, (410, "com.microsoft:message-lock-lost"), [0, 1, 4, 5]),
        (
            lambda _, each: Settled(each.cookie, {0: Reason.LOCK_LOST}),
            (410, "com.microsoft:message-lock-lost"),
            [0, 1, 3, 4, 5],
        ),
        (
            lambda _, each: Settled(each.cookie, {0: Reason.NOT_ALLOWED}),
            (400, "amqp:not-allowed"),
            [0, 1, 3, 4, 5],
        ),
    ],
    ids=["down", "lost", "not-allowed"],
)
@pytest.mark.parametrize("order", [(0, 1, 2), (1, 2, 0), (2, 0, 1)], ids=str)
async def test_where_one_partition_refuses_the_others_settle_and_their_deliveries_are_settled_on_the_link(
    order: tuple[int, ...],
    refusal: Callable[[int, Any], Answer],
    expected: tuple[int, str],
    settled: list[int],
) -> None:
    work = await bench(3)
    given = await received(work)
    tokens = [token for number in order for token in given[number].tokens]
    asked, answers = settling({1: refusal})
    response = await work.ask(
        "update-disposition", {"lock-tokens": uuids(tokens), "disposition-status": "completed"}, answers
    )
    assert status(response) == expected
    assert sorted(number for number, _ in asked) == [0, 1, 2]
    assert await settled_deliveries(work.client) == settled
    assert work.metric("completed_messages") == len(settled)


async def test_of_several_refusals_the_first_is_told() -> None:
    work = await bench(3)
    refused = {
        0: lambda _, each: Settled(each.cookie, {0: Reason.LOCK_LOST}),
        2: lambda _, each: Settled(each.cookie, {0: Reason.NOT_ALLOWED}),
    }
    _, answers = settling(refused)
    for order, expected in (((0, 1, 2), 410), ((2, 1, 0), 400)):
        body = {"lock-tokens": uuids(tokens_of(*order)), "disposition-status": "completed"}
        assert status(await work.ask("update-disposition", body, answers))[0] == expected


# --- refused before anything is done ------------------------------------------------------------------------

ONE = uuids([bytes(16)])
NO_MAPS: list[Any] = [None, [], "text", 7]


@pytest.mark.parametrize(
    ("operation", "body"),
    [
        *(
            (operation, body)
            for operation in ("peek-message", "renew-lock", "update-disposition")
            for body in NO_MAPS
        ),
        ("peek-message", {}),
        ("peek-message", {"from-sequence-number": 1}),
        ("peek-message", {"from-sequence-number": "1", "message-count": 1}),
        ("peek-message", {"from-sequence-number": 1, "message-count": 1.5}),
        ("peek-message", {"from-sequence-number": True, "message-count": 1}),
        ("peek-message", {"from-sequence-number": 1, "message-count": 0}),
        ("peek-message", {"from-sequence-number": 1, "message-count": -1}),
        ("renew-lock", {}),
        ("renew-lock", {"lock-tokens": []}),
        ("renew-lock", {"lock-tokens": uuid.UUID(int=1)}),
        ("renew-lock", {"lock-tokens": ["00000000-0000-0000-0000-000000000001"]}),
        ("renew-lock", {"lock-tokens": [uuid.UUID(int=1), b"x" * 16]}),
        ("receive-by-sequence-number", {}),
        ("receive-by-sequence-number", {"sequence-numbers": [], "receiver-settle-mode": 1}),
        ("receive-by-sequence-number", {"sequence-numbers": [1, "2"], "receiver-settle-mode": 1}),
        ("receive-by-sequence-number", {"sequence-numbers": [True], "receiver-settle-mode": 1}),
        ("receive-by-sequence-number", {"sequence-numbers": [1], "receiver-settle-mode": "peek"}),
        ("receive-by-sequence-number", {"sequence-numbers": [1], "receiver-settle-mode": 2}),
        ("update-disposition", {"lock-tokens": ONE}),
        ("update-disposition", {"lock-tokens": ONE, "disposition-status": "deferred"}),
        ("update-disposition", {"lock-tokens": ONE, "disposition-status": ["completed"]}),
        ("update-disposition", {"disposition-status": "completed"}),
    ],
    ids=str,
)
async def test_a_malformed_request_is_refused_before_a_partition_hears_of_it(
    operation: str, body: Any
) -> None:
    work = await bench()
    response = await work.ask(operation, body)
    assert status(response)[0] == 400 and response.properties["statusDescription"]
    assert not any(part.posted for part in work.stack.parts)
    assert work.metric("user_errors") == 1


@pytest.mark.parametrize(
    ("operation", "body"),
    [
        ("peek-message", {"from-sequence-number": 1, "message-count": 5}),
        ("receive-by-sequence-number", {"sequence-numbers": [1], "receiver-settle-mode": 1}),
    ],
)
async def test_a_session_is_refused_where_the_queue_has_none_and_no_other_message_is_given(
    operation: str, body: dict[str, Any]
) -> None:
    work = await bench()
    assert status(await work.ask(operation, {**body, "session-id": "s"})) == (400, "amqp:not-allowed")
    assert not any(part.posted for part in work.stack.parts)


@pytest.mark.parametrize("operation", ["renew-lock", "update-disposition", "receive-by-sequence-number"])
async def test_a_request_names_at_most_4000_messages(operation: str) -> None:
    assert ELEMENTS_MAX == 4_000
    work = await bench(1)

    def body(count: int) -> dict[str, Any]:
        messages = locked(0, count)
        return {
            "lock-tokens": uuids(messages.tokens),
            "sequence-numbers": messages.sequence_numbers,
            "disposition-status": "completed",
        }

    answers: Answers = {
        **renewing()[1],
        **settling()[1],
        ReceiveDeferred: lambda _, each: locked(0, len(each.sequence_numbers)),
    }
    refused = await work.ask(operation, body(ELEMENTS_MAX + 1), answers)
    assert status(refused)[0] == 400 and "4001" in refused.properties["statusDescription"]
    assert status(await work.ask(operation, body(ELEMENTS_MAX), answers)) == (200, None)


async def test_a_sequence_number_that_nobody_gave_is_not_found() -> None:
    work = await bench()
    response = await work.ask("receive-by-sequence-number", {"sequence-numbers": [9 << PARTITION_SHIFT | 1]})
    assert status(response) == (404, "com.microsoft:message-not-found")


async def test_from_a_queue_that_gives_nothing_out_nothing_is_received() -> None:
    work = await bench()
    description = work.stack.queue.description
    work.stack.queue.description = replace(
        description, settings=replace(description.settings, status=EntityStatus.RECEIVE_DISABLED)
    )
    response = await work.ask("receive-by-sequence-number", {"sequence-numbers": [1]})
    assert status(response) == (403, "com.microsoft:entity-disabled")


async def test_an_operation_that_there_is_not_is_refused_and_so_is_one_without_a_right() -> None:
    work = await bench()
    assert status(await work.ask("no-such-operation", {})) == (501, "amqp:not-implemented")
    work.client.connection.tokens.claims.clear()
    response = await work.ask("peek-message", {"from-sequence-number": 1, "message-count": 1})
    assert status(response) == (401, "amqp:unauthorized-access")


async def test_what_nobody_foresaw_is_answered_too() -> None:
    work = await bench()
    answers: Answers = {Peek: lambda _, operation: Settled(operation.cookie)}
    with capture_logs() as logs:
        response = await work.ask("peek-message", {"from-sequence-number": 1, "message-count": 1}, answers)
    assert status(response) == (500, "amqp:internal-error")
    assert [line["event"] for line in logs] == ["management.failed"]
