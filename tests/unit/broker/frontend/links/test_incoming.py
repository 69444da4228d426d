"""A link on which a client sends: real engine and connection, with partitions that the tests answer for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from broker.base.errors import Reason, Refused
from broker.entities.descriptions import EntityStatus, QueueSettings
from broker.message.stored import bare_message_offset
from broker.messaging.sending import TAKEN_APART_AT_ONCE
from broker.namespace.router import partition_of_key
from broker.operations.general import Failed
from broker.operations.sending import Send, Sent
from protocol.codec import Timestamp, UInt
from tests.support import raw_amqp as raw
from tests.support.amqp_messages import DATA, message, section, sections
from tests.support.link_stack import Client, LinkStack, Part, turn, until


async def sending(
    partitions: int = 4, settings: QueueSettings | None = None, **given: Any
) -> tuple[LinkStack, Client]:
    stack = LinkStack(partitions, settings, **given)
    client = await stack.connect()
    await client.sender(0)
    return stack, client


def stored_by(part: Part) -> list[bytes]:
    """Bodies that the partition is asked to store."""
    operations = [operation for operation, _, _ in part.posted if isinstance(operation, Send)]
    return [
        bytes(sections(each[bare_message_offset(each) :])[DATA])
        for operation in operations
        for each in operation.messages
    ]


def all_stored(stack: LinkStack) -> dict[int, list[bytes]]:
    return {part.number: bodies for part in stack.parts if (bodies := stored_by(part))}


def make_durable(stack: LinkStack) -> None:
    """Have every partition report everything it was given as durable."""
    for part in stack.parts:
        while part.has(Send):
            part.answer(Send, lambda send: Sent(1, send.cookie))


async def outcomes(client: Client) -> dict[int, Any]:
    """Outcomes by delivery-id; each must be final and settled."""
    found: dict[int, Any] = {}
    for frame in await client.heard(raw.DISPOSITION):
        assert frame.field(0) is True and frame.field(3) is True, "role receiver, settled"
        for number in range(
            frame.field(1), (frame.field(1) if frame.field(2) is None else frame.field(2)) + 1
        ):
            assert number not in found
            found[number] = frame.field(4)
    return found


def error_of(outcome: Any) -> tuple[str, str]:
    assert outcome.descriptor == raw.REJECTED
    condition, description, info = outcome.value[0].value
    assert description and info, "AMQP contract 0.4.7: three fields"
    return str(condition), description


def body(number: int) -> bytes:
    return message(body=[b"%d" % number])


def keyed(key: str, text: bytes = b"x") -> bytes:
    return message(annotations={"x-opt-partition-key": key}, body=[text])


def batch(*messages: bytes, hint: dict[str, Any] | None = None) -> bytes:
    return message(annotations=hint, body=messages)


# --- single messages ----------------------------------------------------------------------------------------


async def test_a_message_is_accepted_only_when_it_is_durable() -> None:
    stack, client = await sending()
    client.transfer(0, 0, body(1))
    assert await client.hear() == [] and all_stored(stack) == {0: [b"1"]}
    make_durable(stack)
    assert [outcome.descriptor for outcome in (await outcomes(client)).values()] == [raw.ACCEPTED]


async def test_messages_of_one_read_are_spread_over_the_partitions_as_one_operation_each() -> None:
    stack, client = await sending()
    client.say(
        *(raw.frame(raw.TRANSFER, raw.transfer_fields(0, number), body(number)) for number in range(8))
    )
    assert [len(part.posted) for part in stack.parts] == [1, 1, 1, 1]
    assert sorted(each for bodies in all_stored(stack).values() for each in bodies) == [
        b"%d" % number for number in range(8)
    ]
    make_durable(stack)
    found = await outcomes(client)
    assert sorted(found) == list(range(8)) and all(
        outcome.descriptor == raw.ACCEPTED for outcome in found.values()
    )


async def test_messages_with_keys_go_where_their_keys_belong_in_their_order_as_one_operation_each() -> None:
    stack, client = await sending()
    keys = ["a", "b", "c", "a", "b", "a"]
    client.say(
        *(
            raw.frame(raw.TRANSFER, raw.transfer_fields(0, at), keyed(key, b"%d" % at))
            for at, key in enumerate(keys)
        )
    )
    expected: dict[int, list[bytes]] = {}
    for at, key in enumerate(keys):
        expected.setdefault(partition_of_key(key, 4), []).append(b"%d" % at)
    assert all_stored(stack) == expected
    assert max(map(len, expected.values())) > 3, "two keys share a partition"
    assert all(len(part.posted) == 1 for part in stack.parts if part.number in expected)


async def test_a_session_id_is_a_key_and_one_that_differs_from_the_partition_key_is_refused() -> None:
    stack, client = await sending()
    properties = ["id", *[None] * 9, "cart-1"]
    client.transfer(0, 0, message(properties=properties))
    assert list(all_stored(stack)) == [partition_of_key("cart-1", 4)]
    client.transfer(0, 1, message(properties=properties, annotations={"x-opt-partition-key": "other"}))
    assert error_of((await outcomes(client))[1])[0] == "amqp:not-allowed"


async def test_a_malformed_message_is_refused_alone() -> None:
    stack, client = await sending()
    for number, payload in enumerate([body(0), b"\x00\x53\x75\xa0\xff", body(2)]):
        client.transfer(0, number, payload)
    make_durable(stack)
    found = await outcomes(client)
    assert [found[number].descriptor for number in range(3)] == [raw.ACCEPTED, raw.REJECTED, raw.ACCEPTED]
    assert error_of(found[1])[0] == "amqp:decode-error"


async def test_what_a_partition_refuses_is_rejected_with_its_reason() -> None:
    stack, client = await sending()
    client.transfer(0, 0, body(0))
    stack.part_of(Send).answer(Send, lambda send: Failed(Reason.DISK_FULL, "The disk is full.", send.cookie))
    assert error_of((await outcomes(client))[0]) == ("amqp:resource-limit-exceeded", "The disk is full.")


async def test_without_a_key_another_partition_takes_the_message_and_with_one_it_is_refused_for_a_retry() -> (
    None
):
    stack, client = await sending(2)
    down = stack.parts[partition_of_key("a", 2)]
    down.available = False
    client.say(
        *(raw.frame(raw.TRANSFER, raw.transfer_fields(0, number), body(number)) for number in range(4))
    )
    client.transfer(0, 4, keyed("a"))
    assert list(all_stored(stack)) == [1 - down.number]
    assert error_of((await outcomes(client))[4])[0] == "com.microsoft:server-busy"


async def test_messages_without_a_key_go_elsewhere_while_their_partition_goes_down() -> None:
    stack, client = await sending(3)
    client.transfer(0, 0, body(0))
    tried = []
    while any(part.has(Send) for part in stack.parts):
        part = stack.part_of(Send)
        tried.append(part.number)
        assert await client.hear() == [] and len(tried) <= 3
        part.available = False
        part.answer(Send, lambda send: Failed(Reason.PARTITION_UNAVAILABLE, "down", send.cookie))
    assert sorted(tried) == [0, 1, 2]
    assert error_of((await outcomes(client))[0])[0] == "com.microsoft:server-busy"
    assert stack.services.inflight.bytes == 0


def full(send: Send) -> Failed:
    return Failed(Reason.QUOTA_EXCEEDED, "Max partition size in bytes: 1024", send.cookie)


def down(send: Send) -> Failed:
    return Failed(Reason.PARTITION_UNAVAILABLE, "down", send.cookie)


@pytest.mark.parametrize("is_batch", [False, True], ids=["message", "batch"])
async def test_what_a_full_partition_refuses_goes_to_each_other_one_once_until_all_are_full(
    is_batch: bool,
) -> None:
    stack, client = await sending(4)
    client.transfer(0, 0, batch(body(1), body(2)) if is_batch else body(1), batch=is_batch)
    tried = []
    while any(part.has(Send) for part in stack.parts):
        part = stack.part_of(Send)
        tried.append(part.number)
        assert await client.hear() == [] and len(stored_by(part)) == 1 + is_batch
        part.answer(Send, full)
    assert sorted(tried) == [0, 1, 2, 3]
    assert error_of((await outcomes(client))[0]) == (
        "amqp:resource-limit-exceeded",
        "Max partition size in bytes: 1024",
    )
    assert stack.services.inflight.bytes == 0


async def test_a_full_partition_is_not_asked_again_for_a_while_and_costs_later_messages_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("broker.namespace.router.FULL_S", 1_000_000.0)
    stack, client = await sending(3)
    client.transfer(0, 0, body(0))
    stack.parts[0].answer(Send, full)
    make_durable(stack)
    for number in range(1, 10):
        client.transfer(0, number, body(number))
        assert not stack.parts[0].has(Send)
        make_durable(stack)
    assert {outcome.descriptor for outcome in (await outcomes(client)).values()} == {raw.ACCEPTED}


async def test_with_a_key_a_full_partition_refuses_at_once() -> None:
    stack, client = await sending(4)
    client.transfer(0, 0, keyed("a"))
    client.transfer(0, 1, batch(keyed("a"), keyed("a")), batch=True)
    for _ in range(2):
        stack.part_of(Send).answer(Send, full)
    found = await outcomes(client)
    assert [error_of(found[number])[0] for number in range(2)] == ["amqp:resource-limit-exceeded"] * 2


async def test_a_message_may_be_sent_again_while_a_partition_that_is_down_may_still_have_room() -> None:
    stack, client = await sending(3)
    stack.parts[1].available = False
    client.transfer(0, 0, body(0))
    stack.parts[0].answer(Send, full)
    stack.parts[2].answer(Send, full)
    condition, description = error_of((await outcomes(client))[0])
    assert condition == "com.microsoft:server-busy" and "2 of the 3 partitions" in description
    stack.parts[1].available = True
    client.transfer(0, 1, body(1))
    stack.parts[1].answer(Send, down)
    for number in (0, 2):
        stack.parts[number].answer(Send, full)
    assert error_of((await outcomes(client))[1])[0] == "com.microsoft:server-busy"


async def test_a_full_disk_is_the_same_one_for_every_partition() -> None:
    stack, client = await sending(4)
    client.transfer(0, 0, body(0))
    stack.part_of(Send).answer(Send, lambda send: Failed(Reason.DISK_FULL, "The disk is full.", send.cookie))
    assert not any(part.has(Send) for part in stack.parts)
    assert error_of((await outcomes(client))[0])[0] == "amqp:resource-limit-exceeded"


async def test_a_message_over_the_limit_is_refused_and_the_link_goes_on() -> None:
    stack, client = await sending(settings=QueueSettings(max_message_size_kb=1))
    client.transfer(0, 0, message(body=[bytes(2_000)]))
    condition, description = error_of((await outcomes(client))[0])
    assert condition == "amqp:link:message-size-exceeded" and "1024" in description
    client.transfer(0, 1, body(1))
    assert len(all_stored(stack)) == 1


async def test_a_changed_limit_of_the_queue_holds_for_links_that_are_attached() -> None:
    stack, client = await sending(settings=QueueSettings(max_message_size_kb=4))
    settings = stack.queue.description.settings
    for number, (limit_kb, size) in enumerate([(1, 2_000), (8, 6_000), (4, 6_000)]):
        stack.queue.description = replace(
            stack.queue.description, settings=replace(settings, max_message_size_kb=limit_kb)
        )
        for watcher in stack.queue.watchers:
            watcher.queue_changed()
        client.transfer(0, number, message(body=[bytes(size)]))
        if size > limit_kb * 1024:
            condition, description = error_of((await outcomes(client))[number])
            assert condition == "amqp:link:message-size-exceeded" and str(limit_kb * 1024) in description
        else:
            assert [len(body) for bodies in all_stored(stack).values() for body in bodies] == [size]
            make_durable(stack)
            assert (await outcomes(client))[number].descriptor == raw.ACCEPTED
    assert all_stored(stack) == {}


async def test_the_time_of_a_scheduled_message_goes_along_also_in_a_batch() -> None:
    stack, client = await sending(1)
    at = Timestamp(stack.clock.now_ms() + 1_000)
    scheduled = {"x-opt-scheduled-enqueue-time": at}
    client.transfer(0, 0, message(body=[b"0"], annotations=scheduled))
    client.transfer(0, 1, message(body=[b"1"]))
    client.transfer(
        0, 2, batch(message(body=[b"2"]), message(body=[b"3"], annotations=scheduled)), batch=True
    )
    await outcomes(client)
    sends = stack.parts[0].take_all(Send)
    assert [operation.scheduled_ms for operation in sends] == [[at], None, [None, at]]


async def test_a_message_without_a_session_is_refused_where_sessions_are_required() -> None:
    stack, client = await sending(settings=QueueSettings(requires_session=True))
    client.transfer(0, 0, body(0))
    assert error_of((await outcomes(client))[0])[0] == "amqp:not-allowed" and all_stored(stack) == {}


async def test_a_time_to_live_goes_along_and_messages_without_an_id_get_one() -> None:
    stack, client = await sending(1)
    client.transfer(0, 0, message(header=[None, None, UInt(5_000)]))
    operation, _ = stack.parts[0].take(Send)
    assert operation.time_to_live_ms == [5_000]
    found = sections(operation.messages[0][bare_message_offset(operation.messages[0]) :])
    assert len(found[0x73][0]) == 32


@pytest.mark.parametrize("is_batch", [False, True], ids=["message", "batch"])
async def test_what_is_sent_in_an_unknown_transaction_is_refused_and_never_stored(is_batch: bool) -> None:
    stack, client = await sending(link_credit=8)
    state = raw.outcome(raw.TRANSACTIONAL, [b"transaction-1"])
    payload = batch(body(1), body(2)) if is_batch else body(1)
    for number in range(20):
        client.transfer(0, number, payload, batch=is_batch, settled=number % 2 == 1, state=state)
    frames = await client.hear()
    refused = [frame for frame in frames if frame.code == raw.DISPOSITION]
    assert {
        number
        for frame in refused
        for number in range(frame.field(1), (frame.field(2) or frame.field(1)) + 1)
    } == set(range(0, 20, 2))
    for frame in refused:
        condition, description = error_of(frame.field(4))
        assert condition == "amqp:transaction:unknown-id" and "ransaction" in description
    assert all_stored(stack) == {}
    assert stack.metrics.entities["queue"].user_errors == 20
    flow = [frame for frame in frames if frame.code == raw.FLOW][-1]
    assert flow.field(5) + flow.field(6) >= 20 + 8 - 2, (
        "delivery-count + link-credit: their credit comes back"
    )
    client.transfer(0, 20, body(3))
    assert list(all_stored(stack).values()) == [[b"3"]]


# --- batches ------------------------------------------------------------------------------------------------


async def test_a_batch_is_one_operation_in_one_partition_and_one_outcome() -> None:
    stack, client = await sending()
    client.transfer(0, 0, batch(body(1), body(2), body(3)), batch=True)
    (bodies,) = all_stored(stack).values()
    assert bodies == [b"1", b"2", b"3"]
    make_durable(stack)
    assert {number: outcome.descriptor for number, outcome in (await outcomes(client)).items()} == {
        0: raw.ACCEPTED
    }


async def test_a_batch_that_its_partition_refuses_is_refused_as_a_whole() -> None:
    stack, client = await sending()
    client.transfer(0, 0, batch(keyed("a"), keyed("a")), batch=True)
    stack.part_of(Send).answer(Send, lambda send: Failed(Reason.PARTITION_UNAVAILABLE, "down", send.cookie))
    assert error_of((await outcomes(client))[0])[0] == "com.microsoft:server-busy"


async def test_a_batch_with_one_key_goes_where_the_key_belongs_and_its_messages_without_one_go_along() -> (
    None
):
    stack, client = await sending()
    client.transfer(0, 0, batch(keyed("a"), body(1), keyed("a")), batch=True)
    assert list(all_stored(stack)) == [partition_of_key("a", 4)]


async def test_a_batch_whose_messages_have_no_key_follows_its_envelope() -> None:
    stack, client = await sending()
    client.transfer(0, 0, batch(body(0), body(1), hint={"x-opt-partition-key": "b"}), batch=True)
    assert list(all_stored(stack)) == [partition_of_key("b", 4)]


async def test_different_keys_in_one_batch_are_refused_with_both_named() -> None:
    stack, client = await sending()
    client.transfer(0, 0, batch(keyed("a"), keyed("b")), batch=True)
    condition, description = error_of((await outcomes(client))[0])
    assert (
        condition == "amqp:not-allowed"
        and "'a'" in description
        and "'b'" in description
        and all_stored(stack) == {}
    )


async def test_in_a_queue_of_one_partition_keys_may_differ() -> None:
    stack, client = await sending(1)
    client.transfer(0, 0, batch(keyed("a"), keyed("b")), batch=True)
    assert all_stored(stack) == {0: [b"x", b"x"]}


async def test_without_a_key_another_partition_takes_what_one_went_down_with() -> None:
    stack, client = await sending()
    client.transfer(0, 0, body(1))
    first = stack.part_of(Send)
    first.answer(Send, lambda send: Failed(Reason.PARTITION_UNAVAILABLE, "down", send.cookie))
    assert stack.part_of(Send) is not first
    make_durable(stack)
    assert [outcome.descriptor for outcome in (await outcomes(client)).values()] == [raw.ACCEPTED]


@pytest.mark.parametrize(
    "payload",
    [batch(body(1), b"\xff\xff"), section(0x77, "no data"), b"junk"],
    ids=["inner", "no data", "junk"],
)
async def test_a_batch_that_is_malformed_is_refused_as_a_whole(payload: bytes) -> None:
    stack, client = await sending()
    client.transfer(0, 0, payload, batch=True)
    assert error_of((await outcomes(client))[0])[0] == "amqp:decode-error" and all_stored(stack) == {}


# --- settled messages ---------------------------------------------------------------------------------------


async def test_messages_sent_settled_are_stored_and_not_answered_also_when_the_detach_comes_along() -> None:
    stack, client = await sending()
    client.say(
        raw.frame(raw.TRANSFER, raw.transfer_fields(0, 0, settled=True), body(0)),
        raw.frame(raw.TRANSFER, raw.transfer_fields(0, 1, settled=True), body(1)),
        raw.frame(raw.DETACH, [UInt(0), True]),
    )
    assert sorted(each for bodies in all_stored(stack).values() for each in bodies) == [b"0", b"1"]
    make_durable(stack)
    assert [frame.code for frame in await client.hear()] == [raw.DETACH]


@pytest.mark.parametrize("settled", [True, False])
@pytest.mark.parametrize(
    "payload",
    [b"\xff", keyed("a"), body(0), b"x" * 5_000],
    ids=["malformed", "key of one down", "none available", "large"],
)
async def test_credit_comes_back_for_refused_messages_however_they_were_sent(
    settled: bool, payload: bytes
) -> None:
    stack, client = await sending(1, QueueSettings(max_message_size_kb=4), link_credit=8)
    stack.parts[0].available = False
    for number in range(100):
        client.transfer(0, number, payload, settled=settled)
    flows = await client.heard(raw.FLOW)
    assert flows and flows[-1].field(5) + flows[-1].field(6) >= 100 + 8 - 2, "delivery-count + link-credit"


async def test_credit_comes_back_for_stored_messages_a_quarter_of_the_window_at_a_time() -> None:
    stack, client = await sending(1, link_credit=8)
    granted = 8
    for number in range(40):
        client.transfer(0, number, body(number), settled=number % 2 == 0)
        make_durable(stack)
        flows = await client.heard(raw.FLOW)
        assert len(flows) == (1 if number % 2 else 0)
        for flow in flows:
            granted = flow.field(5) + flow.field(6)
    assert granted == 48


# --- bounds -------------------------------------------------------------------------------------------------


async def test_over_the_bound_of_unacknowledged_bytes_reading_pauses_until_half_are_durable() -> None:
    stack, client = await sending(1, connection_inflight_bytes_max=65_536)
    for number in range(8):
        client.transfer(0, number, message(body=[bytes(10_000)]))
    assert not client.stream.reading
    part = stack.parts[0]
    while not client.stream.reading:
        assert part.has(Send), "it must be read again while half is still on its way"
        part.answer(Send, lambda send: Sent(1, send.cookie))
    assert 0 < len(part.posted) <= 4


async def test_over_the_bound_of_all_connections_whoever_sends_is_not_read_and_others_are() -> None:
    stack = LinkStack(1, total_inflight_bytes_max=1_048_576)
    first, second, third = [await stack.connect() for _ in range(3)]
    for client in (first, second):
        await client.sender(0)
    for number in range(3):
        first.transfer(0, number, message(body=[bytes(200_000)]))
        second.transfer(0, number, message(body=[bytes(200_000)]))
    assert (first.stream.reading, second.stream.reading, third.stream.reading) == (True, False, True)
    second.connection.connection_lost()
    make_durable(stack)
    assert stack.services.inflight.bytes == 0 and first.stream.reading


async def test_bytes_of_a_connection_that_is_gone_are_counted_off_too() -> None:
    stack, client = await sending(1)
    client.transfer(0, 0, message(body=[bytes(10_000)]))
    client.connection.connection_lost()
    assert stack.services.inflight.bytes > 10_000
    make_durable(stack)
    assert stack.services.inflight.bytes == 0


async def test_an_outcome_for_a_link_that_is_gone_is_not_written() -> None:
    stack, client = await sending()
    client.transfer(0, 0, body(0))
    client.detach(0)
    assert [frame.code for frame in await client.hear()] == [raw.DETACH]
    make_durable(stack)
    assert all(frame.field(4) is None for frame in await client.hear())


# --- attach, change, end ------------------------------------------------------------------------------------


async def refused(client: Client, address: str) -> str:
    attach, detach = await client.attach(raw.sender_attach(7, address))
    assert attach.field(5) is None and attach.field(6) is None
    return str(detach.field(2).value[0])


async def test_the_attach_reply_names_the_largest_message_and_the_first_credit_follows() -> None:
    stack = LinkStack(settings=QueueSettings(max_message_size_kb=256), link_credit=77)
    client = await stack.connect()
    attach, flow = await client.attach(raw.sender_attach(0, "amqps://host:5671/queue"))
    assert attach.field(10) == 262_144 and attach.field(13)["com.microsoft:max-message-batch-size"] == 262_144
    assert attach.field(6).value[0] == "amqps://host:5671/queue", "as it was sent"
    assert (flow.field(4), flow.field(6)) == (attach.field(1), 77)


async def test_nobody_sends_to_a_dead_letter_queue_or_to_one_that_does_not_exist() -> None:
    _, client = await sending()
    assert await refused(client, "queue/$DeadLetterQueue") == "amqp:not-allowed"
    client.detach(7)
    assert await refused(client, "nothing") == "amqp:not-found"


async def test_without_a_claim_nothing_is_told_of_what_exists() -> None:
    stack = LinkStack()
    client = await stack.connect(raw.sasl_anonymous())
    for address in ("queue", "nothing"):
        assert await refused(client, address) == "amqp:unauthorized-access"
        client.detach(7)
        await turn()


async def test_a_link_is_closed_when_its_queue_takes_nothing_any_more_or_is_deleted() -> None:
    stack, client = await sending()
    await client.sender(1)
    description = stack.queue.description
    stack.queue.description = replace(
        description, settings=replace(description.settings, status=EntityStatus.SEND_DISABLED)
    )
    one, other = list(stack.queue.watchers)
    one.queue_changed()
    other.queue_ended(Refused(Reason.ENTITY_NOT_FOUND, "gone"))
    conditions = {str(frame.field(2).value[0]) for frame in await client.heard(raw.DETACH)}
    assert conditions == {"com.microsoft:entity-disabled", "amqp:not-found"} and not stack.queue.watchers


async def test_what_goes_wrong_in_an_answer_ends_the_connection_and_reaches_no_partition() -> None:
    stack, client = await sending(1)
    client.transfer(0, 0, body(0))
    _, sink = stack.parts[0].take(Send)
    sink(Sent(1, 999))
    await until(lambda: client.stream.aborted)


# --- memory -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_batch", [False, True], ids=["message", "batch"])
async def test_above_the_memory_mark_messages_are_refused_for_a_retry_and_below_it_they_are_taken(
    is_batch: bool,
) -> None:
    stack, client = await sending()
    payload = batch(body(1), body(2)) if is_batch else body(1)
    stack.resident = stack.memory.mark + 1
    stack.memory.look()
    client.transfer(0, 0, payload, batch=is_batch)
    condition, description = error_of((await outcomes(client))[0])
    assert condition == "com.microsoft:server-busy" and "memory" in description and all_stored(stack) == {}
    stack.resident = stack.memory.mark // 2
    stack.memory.look()
    client.transfer(0, 1, payload, batch=is_batch)
    assert stack.memory.under_way == 1 + is_batch
    make_durable(stack)
    assert (await outcomes(client))[1].descriptor == raw.ACCEPTED
    assert stack.memory.under_way == 0


async def test_a_batch_of_many_small_messages_is_refused_where_they_would_go_beyond_the_mark() -> None:
    stack, client = await sending()
    stack.resident = stack.memory.mark - 100
    stack.memory.look()
    client.transfer(0, 0, batch(*[body(1)] * 1000), batch=True)
    stack.resident += 1000  # what the batch itself takes
    client.transfer(0, 1, batch(*[body(1)] * 1000), batch=True)
    assert error_of((await outcomes(client))[1])[0] == "com.microsoft:server-busy"


async def test_a_batch_of_many_messages_is_taken_apart_in_turns_and_keeps_its_order() -> None:
    stack, client = await sending()
    many = batch(*[keyed("k", b"%d" % number) for number in range(10 * TAKEN_APART_AT_ONCE)])
    frames = raw.frame(raw.TRANSFER, raw.transfer_fields(0, 0, batch=True), many)
    frames += raw.frame(raw.TRANSFER, raw.transfer_fields(0, 1), keyed("k", b"last"))
    assert stack.services.turns.is_late(), "no time is left for anybody"
    has_more, turns = client.connection.serve(frames), 1
    while has_more:
        assert len(all_stored(stack)) == 0 or turns >= 10
        has_more, turns = client.connection.serve(b""), turns + 1
        assert turns < 100
    assert turns >= 10
    (bodies,) = all_stored(stack).values()
    assert bodies == [*(b"%d" % number for number in range(10 * TAKEN_APART_AT_ONCE)), b"last"]
    make_durable(stack)
    assert len(await outcomes(client)) == 2


async def test_a_batch_that_is_found_bad_in_a_later_turn_is_refused_as_a_whole() -> None:
    stack, client = await sending()
    bad = batch(*[body(number) for number in range(3 * TAKEN_APART_AT_ONCE)], b"garbage")
    has_more = client.connection.serve(raw.frame(raw.TRANSFER, raw.transfer_fields(0, 0, batch=True), bad))
    while has_more:
        has_more = client.connection.serve(b"")
    assert not all_stored(stack)
    condition, _ = error_of((await outcomes(client))[0])
    assert condition == "amqp:decode-error"
