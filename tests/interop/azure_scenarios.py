"""Scenarios for the official Python client, written once for sync and aio; each scenario has its own queue.

A scenario is a coroutine that raises if something goes wrong. `scenarios.py` lists the names and queues.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any
from uuid import UUID, uuid4

import pytest
from azure.servicebus import (
    ServiceBusMessage,
    ServiceBusMessageState,
    ServiceBusReceivedMessage,
    ServiceBusReceiveMode,
    ServiceBusSubQueue,
)
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageBodyType
from azure.servicebus.exceptions import (
    MessageLockLostError,
    MessageNotFoundError,
    MessageSizeExceededError,
    MessagingEntityNotFoundError,
    ServiceBusAuthenticationError,
    ServiceBusError,
    ServiceBusQuotaExceededError,
)

from tests.interop.azure_clients import Client, Receiver, assert_empty, bodies, body, receive_exactly
from tests.interop.scenarios import LOCK_SHORT_S

RECEIVE_AND_DELETE = ServiceBusReceiveMode.RECEIVE_AND_DELETE
DEAD_LETTER = ServiceBusSubQueue.DEAD_LETTER


@dataclass(slots=True)
class Bench:
    """Resources of a scenario: a client, its queue, and a way to get another client."""

    client: Client
    queue: str
    connect: Callable[..., Client]
    """Accepts `key` for another SAS key, and any option of the client."""

    async def send(self, *messages: Any) -> None:
        """Send each message on its own."""
        sender = await self.client.sender(self.queue)
        for message in messages:
            await sender.send_messages(message)

    async def receiver(self, **options: Any) -> Receiver:
        return await self.client.receiver(self.queue, **options)

    async def dead_letters(self) -> Receiver:
        return await self.client.receiver(self.queue, sub_queue=DEAD_LETTER)


Scenario = Callable[[Bench], Awaitable[None]]
SCENARIOS: dict[str, Scenario] = {}


def scenario(function: Scenario) -> Scenario:
    """Register a coroutine under its own name, with dashes."""
    SCENARIOS[function.__name__.replace("_", "-").removesuffix("-")] = function
    return function


def numbered(count: int, **options: Any) -> list[ServiceBusMessage]:
    """Messages with distinct bodies and ids."""
    return [
        ServiceBusMessage(f"message {number}", message_id=f"id-{number}", **options)
        for number in range(count)
    ]


def partition(message: ServiceBusReceivedMessage) -> int:
    assert message.sequence_number is not None
    return message.sequence_number >> 48


# --- the round trip -----------------------------------------------------------------------------------------


@scenario
async def send_one(bench: Bench) -> None:
    before = datetime.now(UTC)
    await bench.send(
        ServiceBusMessage(
            "one", message_id="the-id", subject="greeting", application_properties={"colour": "blue"}
        )
    )
    receiver = await bench.receiver()
    (message,) = await receive_exactly(receiver, 1)
    assert (body(message), message.message_id, message.subject) == (b"one", "the-id", "greeting")
    assert message.application_properties == {b"colour": b"blue"}
    assert message.delivery_count == 0
    assert message.sequence_number is not None and message.sequence_number & (1 << 48) - 1 >= 1
    assert message.enqueued_time_utc is not None and message.locked_until_utc is not None
    assert abs(message.enqueued_time_utc - before) < timedelta(seconds=10)
    assert timedelta(seconds=50) < message.locked_until_utc - before < timedelta(seconds=70)
    await receiver.complete_message(message)
    await assert_empty(receiver)


@scenario
async def send_many(bench: Bench) -> None:
    await bench.send(*numbered(60))
    receiver = await bench.receiver(prefetch_count=20)
    found = await receive_exactly(receiver, 60)
    for message in found:
        await receiver.complete_message(message)
    assert sorted(bodies(found)) == sorted(f"message {number}".encode() for number in range(60))
    assert len({message.sequence_number for message in found}) == 60
    await assert_empty(receiver)


@scenario
async def send_batch(bench: Bench) -> None:
    sender = await bench.client.sender(bench.queue)
    batch = await sender.create_message_batch()
    for message in numbered(100):
        batch.add_message(message)
    await sender.send_messages(batch)
    await sender.send_messages([ServiceBusMessage("a list of one", message_id="alone")])
    receiver = await bench.receiver(receive_mode=RECEIVE_AND_DELETE)
    found = await receive_exactly(receiver, 101)
    assert {message.message_id for message in found} == {f"id-{number}" for number in range(100)} | {"alone"}
    of_the_batch = [message for message in found if message.message_id != "alone"]
    assert len({partition(message) for message in of_the_batch}) == 1, (
        "a batch is all or none, so it lives in one partition"
    )
    assert [message.message_id for message in of_the_batch] == [f"id-{number}" for number in range(100)]


@scenario
async def receive_and_delete(bench: Bench) -> None:
    await bench.send(*numbered(10))
    receiver = await bench.receiver(receive_mode=RECEIVE_AND_DELETE)
    found = await receive_exactly(receiver, 10)
    assert sorted(bodies(found)) == [f"message {number}".encode() for number in range(10)]
    await bench.client.close_receivers()
    await assert_empty(await bench.receiver())


@scenario
async def complete(bench: Bench) -> None:
    await bench.send(*numbered(5))
    receiver = await bench.receiver()
    for message in await receive_exactly(receiver, 5):
        await receiver.complete_message(message)
    await bench.client.close_receivers()
    await assert_empty(await bench.receiver())
    assert await (await bench.receiver()).peek_messages(10) == []


@scenario
async def abandon(bench: Bench) -> None:
    await bench.send(ServiceBusMessage("again"))
    receiver = await bench.receiver()
    for attempt in range(3):
        (message,) = await receive_exactly(receiver, 1)
        assert message.delivery_count == attempt
        await receiver.abandon_message(message)
    (message,) = await receive_exactly(receiver, 1)
    assert (message.delivery_count, body(message)) == (3, b"again")
    await receiver.complete_message(message)


@scenario
async def defer_and_fetch(bench: Bench) -> None:
    await bench.send(*numbered(2, partition_key="together"))
    receiver = await bench.receiver()
    deferred = await receive_exactly(receiver, 2)
    for message in deferred:
        await receiver.defer_message(message)
    await assert_empty(receiver)
    numbers = [message.sequence_number or 0 for message in deferred]
    fetched = await receiver.receive_deferred_messages(numbers)
    assert [message.delivery_count for message in fetched] == [1, 1]
    assert [message.sequence_number for message in fetched] == numbers
    assert bodies(fetched) == bodies(deferred)
    for message in fetched:
        assert message.lock_token is not None and message.locked_until_utc is not None
        await receiver.complete_message(message)
    async with bench.connect(retry_total=0) as other:
        with pytest.raises(MessageNotFoundError):
            await (await other.receiver(bench.queue)).receive_deferred_messages(numbers[:1])


@scenario
async def dead_letter(bench: Bench) -> None:
    await bench.send(ServiceBusMessage("spoilt", message_id="m", application_properties={"kept": "yes"}))
    receiver = await bench.receiver()
    (message,) = await receive_exactly(receiver, 1)
    await receiver.dead_letter_message(message, reason="no good", error_description="it cannot be read")
    await assert_empty(receiver)
    dead_letters = await bench.dead_letters()
    (dead,) = await receive_exactly(dead_letters, 1)
    assert (dead.dead_letter_reason, dead.dead_letter_error_description) == ("no good", "it cannot be read")
    assert (dead.message_id, body(dead), dead.sequence_number) == ("m", b"spoilt", message.sequence_number)
    assert dead.application_properties is not None and dead.application_properties[b"kept"] == b"yes"
    await dead_letters.complete_message(dead)
    await assert_empty(dead_letters)


@scenario
async def peek_pages(bench: Bench) -> None:
    await bench.send(*numbered(30))
    receiver = await bench.receiver()
    seen: list[int] = []
    while page := await receiver.peek_messages(7, sequence_number=seen[-1] + 1 if seen else 1):
        seen += [message.sequence_number or 0 for message in page]
        assert len(page) <= 7 and len(seen) <= 30, "paging shows a message twice"
    assert len(set(seen)) == 30
    found = await receive_exactly(receiver, 30)
    assert {message.sequence_number for message in found} == set(seen), "peek neither locks nor removes"
    assert {message.delivery_count for message in found} == {0}


@scenario
async def renew_lock(bench: Bench) -> None:
    await bench.send(ServiceBusMessage("slow work"))
    receiver = await bench.receiver()
    (message,) = await receive_exactly(receiver, 1)
    first = message.locked_until_utc
    assert first is not None
    await asyncio.sleep(LOCK_SHORT_S * 0.7)
    renewed = await receiver.renew_message_lock(message)
    assert renewed >= first + timedelta(seconds=LOCK_SHORT_S * 0.6)
    await asyncio.sleep(LOCK_SHORT_S * 0.5)
    assert datetime.now(UTC) > first, "past the first lock's end"
    await receiver.complete_message(message)
    await assert_empty(receiver)


# --- where the broker intervenes ----------------------------------------------------------------------------


@scenario
async def max_delivery_count(bench: Bench) -> None:
    await bench.send(ServiceBusMessage("poison"))
    receiver = await bench.receiver()
    for attempt in range(2):
        (message,) = await receive_exactly(receiver, 1)
        assert message.delivery_count == attempt
        await receiver.abandon_message(message)
    await assert_empty(receiver)
    (dead,) = await receive_exactly(await bench.dead_letters(), 1)
    assert dead.dead_letter_reason == "MaxDeliveryCountExceeded"
    assert dead.dead_letter_error_description


@scenario
async def time_to_live(bench: Bench) -> None:
    await bench.send(
        ServiceBusMessage("brief", time_to_live=timedelta(seconds=1)), ServiceBusMessage("lasting")
    )
    await asyncio.sleep(1.2)
    receiver = await bench.receiver()
    (message,) = await receive_exactly(receiver, 1)
    assert body(message) == b"lasting"
    await receiver.complete_message(message)
    await assert_empty(receiver)
    (dead,) = await receive_exactly(await bench.dead_letters(), 1)
    assert (body(dead), dead.dead_letter_reason) == (b"brief", "TTLExpiredException")


@scenario
async def time_to_live_dropped(bench: Bench) -> None:
    await bench.send(ServiceBusMessage("brief", time_to_live=timedelta(seconds=1)))
    await asyncio.sleep(1.2)
    await assert_empty(await bench.receiver())
    await assert_empty(await bench.dead_letters())


@scenario
async def queue_time_to_live(bench: Bench) -> None:
    await bench.send(
        ServiceBusMessage("as the queue says"), ServiceBusMessage("capped", time_to_live=timedelta(hours=1))
    )
    await asyncio.sleep(1.2)
    await assert_empty(await bench.receiver())
    dead = await receive_exactly(await bench.dead_letters(), 2)
    assert {message.dead_letter_reason for message in dead} == {"TTLExpiredException"}


@scenario
async def lock_lost(bench: Bench) -> None:
    await bench.send(ServiceBusMessage("too slow"))
    receiver = await bench.receiver()
    (message,) = await receive_exactly(receiver, 1)
    await asyncio.sleep(LOCK_SHORT_S + 0.5)
    (again,) = await receive_exactly(await bench.receiver(), 1)
    assert (again.sequence_number, again.delivery_count) == (message.sequence_number, 1)
    with pytest.raises(MessageLockLostError):
        await receiver.renew_message_lock(message)
    with pytest.raises(MessageLockLostError):
        await receiver.complete_message(message)


@scenario
async def settled_twice(bench: Bench) -> None:
    """The lock of a completed message: the management node answers that it is lost."""
    await bench.send(ServiceBusMessage("once"))
    receiver = await bench.receiver()
    (message,) = await receive_exactly(receiver, 1)
    await receiver.complete_message(message)
    message._settled = False
    with pytest.raises(MessageLockLostError):
        await receiver.renew_message_lock(message)


@scenario
async def unread_messages_go_back(bench: Bench) -> None:
    """The broker takes back the messages it held ready for the connection; messages already sent to the
    client stay locked.
    """
    await bench.send(*numbered(20))
    receiver = await bench.receiver()
    (message,) = await receive_exactly(receiver, 1)
    await receiver.complete_message(message)
    await bench.client.close_receivers()
    found = await receive_exactly(await bench.receiver(receive_mode=RECEIVE_AND_DELETE), 19, within_s=5)
    assert {message.delivery_count for message in found} == {0}, "nobody saw them, so no delivery is counted"


@scenario
async def dead_letter_without_reason(bench: Bench) -> None:
    await bench.send(ServiceBusMessage("spoilt"))
    receiver = await bench.receiver()
    (message,) = await receive_exactly(receiver, 1)
    await receiver.dead_letter_message(message)
    (dead,) = await receive_exactly(await bench.dead_letters(), 1)
    assert body(dead) == b"spoilt"
    assert None not in (dead.application_properties or {}).values(), "null headers break the Go client"


@scenario
async def deferred_dead_letter_and_abandon(bench: Bench) -> None:
    """Deferred messages are settled through the management node (AMQP contract 7.3.5)."""
    await bench.send(*numbered(3, partition_key="together"))
    receiver = await bench.receiver()
    numbers = []
    for message in await receive_exactly(receiver, 3):
        numbers.append(message.sequence_number or 0)
        await receiver.defer_message(message)
    to_dead_letter, to_abandon, to_defer_again = await receiver.receive_deferred_messages(numbers)
    await receiver.dead_letter_message(to_dead_letter, reason="late", error_description="after deferral")
    await receiver.abandon_message(to_abandon)
    await receiver.defer_message(to_defer_again)
    (dead,) = await receive_exactly(await bench.dead_letters(), 1)
    assert (dead.sequence_number, dead.dead_letter_reason) == (numbers[0], "late")
    peeked = {
        message.sequence_number: message for message in await receiver.peek_messages(10, sequence_number=1)
    }
    assert set(peeked) == set(numbers[1:]), (peeked, numbers)
    assert peeked[numbers[1]].state == peeked[numbers[2]].state == ServiceBusMessageState.DEFERRED
    abandoned, deferred_again = (peeked[number].delivery_count or 0 for number in numbers[1:])
    assert (abandoned, deferred_again) == (2, 2), "deferring counts a delivery, as abandoning does"


@scenario
async def peek_shows_every_state(bench: Bench) -> None:
    await bench.send(*numbered(3, partition_key="together"))
    receiver = await bench.receiver()
    locked, deferred = await receive_exactly(receiver, 2)
    await receiver.defer_message(deferred)
    peeked = await receiver.peek_messages(10, sequence_number=1)
    assert [message.message_id for message in peeked] == ["id-0", "id-1", "id-2"]
    active, set_aside = ServiceBusMessageState.ACTIVE, ServiceBusMessageState.DEFERRED
    assert [message.state for message in peeked] == [active, set_aside, active]
    await receiver.complete_message(locked)


# --- refusals -----------------------------------------------------------------------------------------------


@scenario
async def large_message(bench: Bench) -> None:
    sizes = [1, 65_535, 65_536, 200 * 1024, 262_144, 900_000]
    sent = {str(size): Random(size).randbytes(size) for size in sizes}
    await bench.send(*(ServiceBusMessage(data, message_id=size) for size, data in sent.items()))
    receiver = await bench.receiver()
    found = await receive_exactly(receiver, len(sizes))
    assert {message.message_id: body(message) for message in found} == sent
    for message in found:
        await receiver.abandon_message(message)
    receiver = await bench.receiver(receive_mode=RECEIVE_AND_DELETE)
    assert {message.message_id: body(message) for message in await receive_exactly(receiver, 6)} == sent


@scenario
async def message_too_large(bench: Bench) -> None:
    sender = await bench.client.sender(bench.queue)
    with pytest.raises(MessageSizeExceededError):
        await sender.send_messages(ServiceBusMessage(b"x" * 2_000_000))
    await sender.send_messages(ServiceBusMessage("small"))
    (message,) = await receive_exactly(await bench.receiver(), 1)
    assert body(message) == b"small"


@scenario
async def unknown_queue(bench: Bench) -> None:
    with pytest.raises(MessagingEntityNotFoundError):
        await bench.client.sender(bench.queue)
    with pytest.raises(MessagingEntityNotFoundError):
        await bench.receiver()


@scenario
async def wrong_key(bench: Bench) -> None:
    for key in ("not the key", ""):
        async with bench.connect(key=key or "x", retry_total=0) as intruder:
            with pytest.raises(ServiceBusAuthenticationError):
                await intruder.sender(bench.queue)


# --- messages come out unchanged ----------------------------------------------------------------------------


FIELDS = ["message_id", "correlation_id", "content_type", "subject", "to", "reply_to"]
FIELDS += ["reply_to_session_id", "session_id", "partition_key", "time_to_live"]


@scenario
async def message_fidelity(bench: Bench) -> None:
    application_properties: dict[str | bytes, Any] = {
        "string": "ünïcode ✓",
        "integer": -2_000_000_000,
        "float": 2.5,
        "true": True,
        "false": False,
        "uuid": UUID("00112233-4455-6677-8899-aabbccddeeff"),
        "empty": "",
    }
    sent = ServiceBusMessage(
        b"\x00\x01\x02",
        application_properties=application_properties,
        message_id="m" * 128,
        correlation_id="c-1",
        content_type="application/octet-stream",
        subject="a subject",
        to="somewhere",
        reply_to="somewhere-else",
        reply_to_session_id="rs",
        session_id="s-1",
        partition_key="s-1",
        time_to_live=timedelta(minutes=5),
    )
    await bench.send(sent)
    receiver = await bench.receiver()
    (message,) = await receive_exactly(receiver, 1)
    for name in [
        "message_id",
        "correlation_id",
        "content_type",
        "subject",
        "to",
        "reply_to",
        "reply_to_session_id",
        "session_id",
        "partition_key",
        "time_to_live",
    ]:
        assert getattr(message, name) == getattr(sent, name), name
    expected = {
        key.encode() if isinstance(key, str) else key: value for key, value in application_properties.items()
    }
    expected = {key: value.encode() if isinstance(value, str) else value for key, value in expected.items()}
    assert message.application_properties == expected
    assert body(message) == b"\x00\x01\x02"
    assert message.enqueued_time_utc is not None and message.expires_at_utc is not None
    assert abs(message.expires_at_utc - message.enqueued_time_utc - timedelta(minutes=5)) < timedelta(
        seconds=1
    )
    assert message.enqueued_sequence_number == message.sequence_number
    await receiver.complete_message(message)


@dataclass(slots=True)
class Body:
    """A message body of some kind, and how the client shows it when it is received."""

    kind: AmqpMessageBodyType
    options: dict[str, Any]
    shown: Any
    extra: dict[str, Any] = field(default_factory=dict)


BODIES = [
    Body(AmqpMessageBodyType.DATA, {"data_body": b"plain"}, [b"plain"]),
    Body(
        AmqpMessageBodyType.DATA,
        {"data_body": [b"several", b"", b"sections"]},
        [b"several", b"", b"sections"],
    ),
    Body(
        AmqpMessageBodyType.VALUE,
        {"value_body": {"a": 1, "b": [True, None, 2.5]}},
        {b"a": 1, b"b": [True, None, 2.5]},
    ),
    Body(AmqpMessageBodyType.VALUE, {"value_body": "text"}, b"text"),
    Body(
        AmqpMessageBodyType.SEQUENCE, {"sequence_body": [["a", 1], [None, b"x"]]}, [[b"a", 1], [None, b"x"]]
    ),
    Body(
        AmqpMessageBodyType.DATA,
        {"data_body": b"all sections"},
        [b"all sections"],
        {
            "header": {"durable": True, "priority": 7},
            "annotations": {"x-mine": "kept", "x-number": 5},
            "footer": {"checksum": "abc"},
            "properties": {
                "message_id": uuid4(),
                "user_id": b"me",
                "content_encoding": "gzip",
                "group_sequence": 9,
            },
            "application_properties": {"k": "v"},
        },
    ),
]


@scenario
async def body_kinds(bench: Bench) -> None:
    """Every kind of body and every section comes back unchanged, including what the broker does not
    understand.
    """
    receiver = await bench.receiver()
    for number, sent in enumerate(BODIES):
        await bench.send(AmqpAnnotatedMessage(**sent.options, **sent.extra))
        (message,) = await receive_exactly(receiver, 1)
        raw = message.raw_amqp_message
        assert raw.body_type == sent.kind, number
        assert (raw.body if sent.kind == AmqpMessageBodyType.VALUE else list(raw.body)) == sent.shown, number
        check_sections(raw, sent.extra)
        await receiver.complete_message(message)
    await bench.send(ServiceBusMessage(None))
    (message,) = await receive_exactly(receiver, 1)
    await receiver.complete_message(message)
    await assert_empty(receiver)


def check_sections(raw: AmqpAnnotatedMessage, sent: dict[str, Any]) -> None:
    """Check the sections beside the body that were sent."""
    if header := sent.get("header"):
        assert raw.header is not None and (raw.header.durable, raw.header.priority) == (
            header["durable"],
            header["priority"],
        )
    for key, value in sent.get("annotations", {}).items():
        assert raw.annotations is not None and raw.annotations[key.encode()] == as_shown(value)
    if footer := sent.get("footer"):
        assert raw.footer == {key.encode(): as_shown(value) for key, value in footer.items()}
    for key, value in sent.get("properties", {}).items():
        assert raw.properties is not None and raw.properties[key] == as_shown(value), key


def as_shown(value: Any) -> Any:
    """The client returns received text as bytes."""
    return value.encode() if isinstance(value, str) else value


# --- partitions ---------------------------------------------------------------------------------------------


async def partitions_of(bench: Bench, count: int) -> dict[str, list[int]]:
    """Receive `count` messages; gives for each partition key, in order of arrival, the partitions its
    messages came from.
    """
    found: dict[str, list[int]] = {}
    for message in await receive_exactly(await bench.receiver(receive_mode=RECEIVE_AND_DELETE), count):
        found.setdefault(message.partition_key or message.session_id or "", []).append(partition(message))
    return found


@scenario
async def same_key_same_partition(bench: Bench) -> None:
    keys = [f"key-{number}" for number in range(40)]
    sender = await bench.client.sender(bench.queue)
    for repetition in range(3):
        for key in keys:
            await sender.send_messages(
                ServiceBusMessage("x", session_id=key)
                if repetition == 2
                else ServiceBusMessage("x", partition_key=key)
            )
    found = await partitions_of(bench, 120)
    assert set(found) == set(keys)
    assert all(len(set(partitions)) == 1 for partitions in found.values()), found
    used = {partitions[0] for partitions in found.values()}
    assert len(used) >= 10, f"40 keys fall into {len(used)} of 16 partitions"
    assert used <= set(range(16))


@scenario
async def no_key_spreads(bench: Bench) -> None:
    await bench.send(*numbered(160))
    (spread,) = (await partitions_of(bench, 160)).values()
    counts = Counter(spread)
    assert set(counts) == set(range(16))
    assert max(counts.values()) - min(counts.values()) <= 2, counts


@scenario
async def conflicting_keys(bench: Bench) -> None:
    sender = await bench.client.sender(bench.queue)
    conflict = AmqpAnnotatedMessage(
        data_body=b"x", properties={"group_id": "one"}, annotations={"x-opt-partition-key": "another"}
    )
    await assert_not_allowed(sender.send_messages(conflict))
    await assert_not_allowed(sender.send_messages([conflict]))
    agreeing = AmqpAnnotatedMessage(
        data_body=b"y", properties={"group_id": "one"}, annotations={"x-opt-partition-key": "one"}
    )
    await sender.send_messages(agreeing)
    (message,) = await receive_exactly(await bench.receiver(), 1)
    assert body(message) == b"y", "nothing of what was refused is there"


@scenario
async def mixed_keys_in_a_batch(bench: Bench) -> None:
    sender = await bench.client.sender(bench.queue)
    await assert_not_allowed(sender.send_messages(keyed(f"key-{number}" for number in range(20))))
    await assert_not_allowed(
        sender.send_messages([*keyed(["a"] * 5), ServiceBusMessage("x", session_id="b")])
    )
    await sender.send_messages(keyed(["same"] * 20))
    assert {key: len(set(found)) for key, found in (await partitions_of(bench, 20)).items()} == {"same": 1}


def keyed(keys: Iterable[str]) -> list[ServiceBusMessage]:
    return [ServiceBusMessage("x", partition_key=key) for key in keys]


@scenario
async def full_partitions(bench: Bench) -> None:
    """Three partitions hold a mebibyte each, so each has room for five of these messages."""
    large = bytes(200 * 1024)
    sender = await bench.client.sender(bench.queue)
    for _ in range(5):
        await sender.send_messages(ServiceBusMessage(large, partition_key="a"))
    with pytest.raises(ServiceBusQuotaExceededError):
        await sender.send_messages(ServiceBusMessage(large, partition_key="a"))
    for number in range(10):  # without a key there is room elsewhere, for batches too
        await sender.send_messages([ServiceBusMessage(large)] if number % 2 else ServiceBusMessage(large))
    for refused in (ServiceBusMessage(large), [ServiceBusMessage(large)]):
        with pytest.raises(ServiceBusQuotaExceededError):
            await sender.send_messages(refused)
    await sender.send_messages(ServiceBusMessage("small, and so there is room"))
    receiver = await bench.receiver(receive_mode=RECEIVE_AND_DELETE)
    found = Counter(partition(message) for message in await receive_exactly(receiver, 16))
    assert sorted(found.values()) == [5, 5, 6]
    for _ in range(15):
        await sender.send_messages(ServiceBusMessage(large))
    found = Counter(partition(message) for message in await receive_exactly(receiver, 15))
    assert found == {0: 5, 1: 5, 2: 5}, "emptied, they take messages again"


async def assert_not_allowed(sending: Awaitable[None]) -> None:
    """Assert that sending is refused as an invalid operation (AMQP contract 10.7, 9.2), which the client does
    not retry.
    """
    with pytest.raises(ServiceBusError) as refusal:
        await sending
    assert type(refusal.value) is ServiceBusError
    assert "amqp:not-allowed" in str(refusal.value)


@scenario
async def one_partition_keeps_order(bench: Bench) -> None:
    await bench.send(*numbered(50))
    found = await receive_exactly(await bench.receiver(receive_mode=RECEIVE_AND_DELETE), 50)
    assert [message.message_id for message in found] == [f"id-{number}" for number in range(50)]
    assert [message.sequence_number for message in found] == list(
        range(found[0].sequence_number or 0, (found[0].sequence_number or 0) + 50)
    )


@scenario
async def key_keeps_order(bench: Bench) -> None:
    await bench.send(
        *(ServiceBusMessage(str(number), partition_key=f"key-{number % 8}") for number in range(120))
    )
    found = await receive_exactly(await bench.receiver(receive_mode=RECEIVE_AND_DELETE), 120)
    for key in range(8):
        of_the_key = [int(body(message)) for message in found if message.partition_key == f"key-{key}"]
        assert of_the_key == list(range(key, 120, 8)), key
