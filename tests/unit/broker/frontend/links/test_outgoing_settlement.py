"""How a client that receives settles: real engine and connection, with partitions that the tests answer
for."""

from __future__ import annotations

import traceback
from typing import Any

import pytest

from broker.base.errors import Reason, Refused
from broker.frontend.connection import FEW
from broker.frontend.links import outgoing
from broker.operations.general import Failed
from broker.operations.settling import Abandon, Complete, DeadLetter, Defer, Release, Settled
from protocol.codec import Described, Symbol, UInt, ULong, decode, encode
from protocol.events import DeliveriesUpdated, Outcome, SharedState, TransactionalState
from protocol.values import decode_bounded
from tests.support import raw_amqp as raw
from tests.support.amqp_messages import sections
from tests.support.link_stack import tags_of, turn
from tests.support.receiving import demands, give, receiving


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
async def test_a_settlement_is_echoed_with_the_same_outcome_once_it_is_durable(
    sent: int, fields: list[Any], kind: type[Any]
) -> None:
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
    assert stack.metrics.entities["queue"].user_errors == 1


async def test_a_settlement_that_the_partition_could_not_carry_out_is_rejected_as_its_lock_has_ended() -> (
    None
):
    """Symptom: clients retried it for 10 to 35 s, in vain."""
    stack, client = await receiving(4)
    give(stack, 1, 1)
    await client.hear()
    client.dispose(0, 0, raw.outcome(raw.ACCEPTED))
    stack.parts[1].answer(Complete, lambda operation: Failed(Reason.LOCK_ENDED, "down", operation.cookie))
    (answer,) = await client.heard(raw.DISPOSITION)
    assert answer.field(4).value[0].value[:2] == ["com.microsoft:message-lock-lost", "down"]
    assert stack.metrics.entities["queue"].server_errors == 1
    give(stack, 1, 1)
    await client.hear()
    client.dispose(1, 1, raw.outcome(raw.ACCEPTED), settled=True)
    await turn()
    stack.parts[1].answer(Complete, lambda operation: Failed(Reason.LOCK_ENDED, "down", operation.cookie))
    assert stack.metrics.entities["queue"].server_errors == 2, "also if the client waits for no answer"


async def test_a_dead_lettering_carries_its_reason_and_is_confirmed_by_a_bare_rejected() -> None:
    stack, client = await receiving(4)
    give(stack, 1, 1)
    await client.hear()
    info = {
        Symbol("DeadLetterReason"): "broken",
        Symbol("DeadLetterErrorDescription"): None,
        Symbol("colour"): "red",
    }
    error = Described(ULong(raw.ERROR), [Symbol("com.microsoft:dead-letter"), "text", info])
    client.dispose(0, 0, raw.outcome(raw.REJECTED, [error]))
    operation = stack.parts[1].answer(DeadLetter, lambda operation: Settled(operation.cookie))
    assert isinstance(operation, DeadLetter) and operation.changed is not None
    assert decode(operation.changed)[0] == {"DeadLetterReason": "broken", "colour": "red"}, (
        "nulls are left out"
    )
    (answer,) = await client.heard(raw.DISPOSITION)
    assert answer.field(4).descriptor == raw.REJECTED and not [
        field for field in answer.field(4).value if field is not None
    ]


async def test_dead_lettering_that_is_not_allowed_or_too_late_is_rejected_with_its_own_error() -> None:
    stack, client = await receiving(4)
    give(stack, 1, 3)
    await client.hear()
    client.dispose(0, 2, raw.outcome(raw.REJECTED))
    stack.parts[1].answer(
        DeadLetter, lambda operation: Settled(operation.cookie, {0: Reason.NOT_ALLOWED, 2: Reason.LOCK_LOST})
    )
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
    assert decode(changed)[0] == {
        "DeadLetterReason": "amqp:decode-error",
        "DeadLetterErrorDescription": "cannot read it",
    }


@pytest.mark.parametrize(
    ("undeliverable_here", "kind"), [(False, Abandon), (True, Defer)], ids=["abandon", "defer"]
)
async def test_properties_to_modify_go_along(
    undeliverable_here: bool, kind: type[Abandon] | type[Defer]
) -> None:
    stack, client = await receiving(4)
    give(stack, 1, 1)
    await client.hear()
    client.dispose(
        0,
        0,
        raw.outcome(
            raw.MODIFIED, [True, undeliverable_here, {Symbol("colour"): "red", Symbol("gone"): None}]
        ),
    )
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


async def test_a_settlement_in_an_unknown_transaction_is_refused_and_the_messages_stay_locked() -> None:
    stack, client = await receiving(4)
    give(stack, 1, 1)
    await client.hear()
    client.dispose(0, 0, Described(ULong(0x34), [b"transaction", raw.outcome(raw.ACCEPTED)]))
    assert not stack.parts[1].has(Release) and not stack.parts[1].has(Complete)
    (answer,) = await client.heard(raw.DISPOSITION)
    assert answer.field(4).value[0].value[0] == "amqp:transaction:unknown-id"


@pytest.mark.parametrize("settled", [False, True], ids=["the client waits", "settled by the client"])
@pytest.mark.parametrize(
    ("sent", "fields"),
    [
        (raw.MODIFIED, [True, False, {Symbol("partibus:delay"): -1}]),
        (raw.MODIFIED, [True, True, {Symbol("big"): "x" * 33_000}]),
        (raw.REJECTED, [Described(ULong(raw.ERROR), [Symbol("broken"), "", {Symbol("big"): "x" * 33_000}])]),
    ],
    ids=["abandon", "defer", "dead-letter"],
)
async def test_a_refused_settlement_leaves_the_messages_locked_in_their_partitions(
    sent: int, fields: list[Any], settled: bool
) -> None:
    stack, client = await receiving(12)
    for number in range(2):
        give(stack, number, 2)
    await client.hear()
    before = [len(part.posted) for part in stack.parts]
    client.dispose(0, 3, raw.outcome(sent, fields), settled=settled)
    answers = [frame.field(4) for frame in await client.heard(raw.DISPOSITION)]
    conditions = {answer.value[0].value[0] for answer in answers}
    assert conditions == (set() if settled else {"com.microsoft:argument-error"})
    assert [len(part.posted) for part in stack.parts] == before
    assert not client.connection.waits() and client.connection.settling == 0
    assert stack.metrics.entities["queue"].user_errors == 4


async def test_what_was_settled_over_management_is_settled_on_the_link() -> None:
    stack, client = await receiving(4)
    messages = give(stack, 1, 1)
    await client.hear()
    (link,) = client.connection.engine.links()
    link.context.forget({messages.tokens[0], bytes(16)})
    link.context.forget({messages.tokens[0]})
    (answer,) = await client.heard(raw.DISPOSITION)
    assert (answer.field(1), answer.field(3), answer.field(4).descriptor) == (0, True, raw.ACCEPTED)


# --- receive and delete -------------------------------------------------------------------------------------


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


# --- changed properties -------------------------------------------------------------------------------------

LARGE = {Symbol("note"): "x" * 30_000}


@pytest.mark.parametrize("succeeds", [True, False])
async def test_a_client_whose_settlements_wait_with_many_properties_is_not_read_until_they_have_an_outcome(
    succeeds: bool,
) -> None:
    stack, client = await receiving(8, connection_inflight_bytes_max=100_000)
    give(stack, 1, 4)
    await client.hear()
    for number in range(4):
        assert client.stream.reading
        client.dispose(
            number, number, raw.outcome(raw.MODIFIED, [True, True, LARGE | {Symbol("number"): number}])
        )
    assert not client.stream.reading and stack.services.inflight.bytes > 120_000
    for _ in range(4):
        stack.parts[1].answer(
            Defer,
            lambda each: (
                Settled(each.cookie) if succeeds else Failed(Reason.SERVER_BUSY, "later", each.cookie)
            ),
        )
    assert client.stream.reading and stack.services.inflight.bytes == 0
    answers = await client.heard(raw.DISPOSITION)
    assert sum((answer.field(2) or answer.field(1)) - answer.field(1) + 1 for answer in answers) == 4
    assert {answer.field(4).descriptor for answer in answers} == {raw.MODIFIED if succeeds else raw.REJECTED}


async def test_what_settlements_change_counts_until_it_has_an_outcome_also_when_its_client_is_gone() -> None:
    stack, client = await receiving(8)
    give(stack, 1, 2)
    await client.hear()
    client.dispose(0, 0, raw.outcome(raw.ACCEPTED))
    assert stack.services.inflight.bytes == 0
    error = Described(ULong(raw.ERROR), [Symbol("a:b"), "y" * 1_000, LARGE])
    client.dispose(1, 1, raw.outcome(raw.REJECTED, [error]))
    assert stack.services.inflight.bytes > 31_000
    client.connection.connection_lost()
    stack.parts[1].answer(Complete, lambda each: Settled(each.cookie))
    stack.parts[1].answer(DeadLetter, lambda each: Settled(each.cookie))
    assert stack.services.inflight.bytes == 0


@pytest.mark.parametrize(
    ("count", "settled", "waits"),
    [(1, False, True), (FEW, False, True), (FEW + 1, False, False), (1, True, False)],
    ids=["one", "few", "many", "settled by the client"],
)
async def test_a_client_waits_for_the_outcome_of_few_settlements_that_it_has_not_settled_itself(
    count: int, settled: bool, waits: bool
) -> None:
    stack, client = await receiving(4 * count)
    give(stack, 1, count)
    await client.hear()
    assert not client.connection.waits()
    client.dispose(0, count - 1, raw.outcome(raw.ACCEPTED), settled=settled)
    assert client.connection.waits() is waits
    stack.parts[1].answer(Complete, lambda operation: Settled(operation.cookie))
    assert not client.connection.waits() and client.connection.settling == 0


@pytest.mark.parametrize("outcome", [raw.RELEASED, raw.ACCEPTED])
async def test_a_client_does_not_wait_for_a_settlement_that_was_answered_or_refused(outcome: int) -> None:
    stack, client = await receiving(4)
    give(stack, 1, 1)
    await client.hear()
    client.dispose(0, 0, raw.outcome(outcome))
    if outcome == raw.ACCEPTED:
        stack.parts[1].answer(Complete, lambda operation: Failed(Reason.LOCK_ENDED, "down", operation.cookie))
    assert not client.connection.waits() and client.connection.settling == 0


@pytest.mark.parametrize("in_transaction", [False, True])
@pytest.mark.parametrize("fits", [False, True])
def test_properties_are_decoded_once_for_all_events_about_a_disposition(
    monkeypatch: pytest.MonkeyPatch, fits: bool, in_transaction: bool
) -> None:
    """Symptom: properties that were refused were decoded again for every 512 messages, in 1.2 ms each."""
    properties = encode({Symbol(f"key{number}"): "v" * 900 for number in range(60 if fits else 250)})
    state = TransactionalState(b"txn", Outcome.MODIFIED, annotations=properties) if in_transaction else None
    shared, decoded = SharedState(), list[bytes]()

    def noting(encoded: bytes) -> tuple[Any, int]:
        decoded.append(encoded)
        return decode_bounded(encoded)

    monkeypatch.setattr(outgoing, "decode_bounded", noting)
    found: list[object] = []
    for _ in range(5):
        event = DeliveriesUpdated(None, [], Outcome.MODIFIED, False, shared=shared)  # type: ignore[arg-type]
        event.annotations, event.transaction = properties, state
        try:
            found.append(outgoing._settlement_of(event))
        except Refused as why:
            found.append(why)
            assert len(traceback.extract_tb(why.__traceback__)) == 2
    assert len(decoded) == 1 == len(set(map(id, found)))
    assert isinstance(found[0], Refused) is not fits
