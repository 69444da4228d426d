"""Scenarios for a plain AMQP 1.0 client, written once for Proton's blocking client and its reactor; each
scenario has its own queue.

A scenario is a coroutine that raises if something goes wrong. `scenarios.py` lists the names and queues.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest
from proton import Array, Data, Delivery, Message, int32, symbol, uint

from protocol.codec import Described, ULong, encode
from tests.interop.batch_relay import BatchRelay
from tests.interop.proton_client import (
    Answer,
    Client,
    Connect,
    Encoded,
    Received,
    Receiver,
    Refused,
    array,
    ask,
    rejecting,
)
from tests.interop.scenarios import LOCK_SHORT_S
from tests.support.broker_process import Addresses


@dataclass(slots=True, frozen=True)
class Bench:
    """Resources of a scenario: a connection, its queue, and a way to get another connection."""

    client: Client
    queue: str
    connect: Connect
    addresses: Addresses

    async def send(self, *messages: Message) -> None:
        """Send each message on its own."""
        sender = await self.client.sender(self.queue)
        for message in messages:
            assert (await sender.send(message)).state == Delivery.ACCEPTED
        await sender.close()

    async def receiver(self, **options: Any) -> Receiver:
        return await self.client.receiver(self.queue, **options)

    async def dead_letters(self) -> Receiver:
        return await self.client.receiver(f"{self.queue}/$DeadLetterQueue")

    async def one(self) -> tuple[Receiver, Received]:
        """Send one message and receive it."""
        await self.send(Message(id="m", body="x", properties={"kept": "yes", "replaced": "old"}))
        receiver = await self.receiver()
        (received,) = await receiver.receive()
        assert received.message.delivery_count == 0
        return receiver, received

    async def defer_one(self) -> int:
        """Send a message and defer it; gives its sequence number."""
        receiver, received = await self.one()
        received.delivery.local.failed = received.delivery.local.undeliverable = True
        assert await receiver.propose(received, Delivery.MODIFIED) == Delivery.MODIFIED
        assert await receiver.drain(10) == []
        await receiver.close()
        return int(received.annotations["x-opt-sequence-number"])

    async def ask(self, operation: str, **body: Any) -> Answer:
        """Perform one operation on the management node; write the body's keys with underscores."""
        return await ask(
            self.client, self.queue, operation, {key.replace("_", "-"): value for key, value in body.items()}
        )

    async def fetch(self, number: int, settle_mode: int = 1) -> Answer:
        """Lock a deferred message, or remove it with settle mode 0."""
        numbers = array(Data.LONG, number)
        return await self.ask(
            "receive-by-sequence-number", sequence_numbers=numbers, receiver_settle_mode=uint(settle_mode)
        )

    async def fetched(self, number: int) -> dict[str, Any]:
        """A deferred message's entry in the answer, with `message` and `lock-token`."""
        answer = await self.fetch(number)
        assert answer.status == 200
        (entry,) = answer.body["messages"]
        return dict(entry)

    async def update(self, status: str, *tokens: Any, **more: Any) -> int:
        """Settle by lock token; gives the answer's status."""
        return (
            await self.ask(
                "update-disposition", disposition_status=status, lock_tokens=lock_tokens(*tokens), **more
            )
        ).status


Scenario = Callable[[Bench], Awaitable[None]]
SCENARIOS: dict[str, Scenario] = {}


def scenario(function: Scenario) -> Scenario:
    """Register a coroutine under its own name, with dashes."""
    SCENARIOS[function.__name__.replace("_", "-")] = function
    return function


async def play(name: str, queue: str, connect: Connect, addresses: Addresses) -> None:
    """Run one scenario by name, with its own connection."""
    async with connect() as client:
        await SCENARIOS[name](Bench(client, queue, connect, addresses))


def numbered(count: int) -> list[Message]:
    return [Message(id=f"id-{number}", body=f"message {number}") for number in range(count)]


def ids(found: list[Received]) -> list[str]:
    return sorted(received.message.id for received in found)


def ids_up_to(count: int) -> list[str]:
    return sorted(f"id-{number}" for number in range(count))


def lock_tokens(*tokens: Any) -> Array:
    return array(Data.UUID, *tokens)


def decoded(entry: dict[str, Any]) -> Any:
    """The message in an entry of a management node's answer."""
    message = Message()
    message.decode(bytes(entry["message"]))
    return message


async def again(receiver: Receiver, delivery_count: int) -> Any:
    """Receive the same message again, with this many failed deliveries, and complete it."""
    (received,) = await receiver.receive()
    assert (received.message.id, received.message.delivery_count) == ("m", delivery_count)
    await receiver.propose(received, Delivery.ACCEPTED)
    return received.message


# --- sending ------------------------------------------------------------------------------------------------


@scenario
async def send_one(bench: Bench) -> None:
    sent = Message(
        id="m",
        subject="s",
        body={"a": [1, "two"]},
        properties={"k": "v"},
        annotations={symbol("x-mine"): 1},
        durable=True,
    )
    sent.priority = 7
    await bench.send(sent)
    receiver = await bench.receiver()
    (received,) = await receiver.receive()
    message = received.message
    assert (message.id, message.subject, message.body, message.properties) == (
        "m",
        "s",
        {"a": [1, "two"]},
        {"k": "v"},
    )
    assert (message.durable, message.priority, message.delivery_count) == (True, 7, 0)
    assert received.annotations["x-mine"] == 1
    assert {"x-opt-sequence-number", "x-opt-enqueued-time", "x-opt-locked-until"} <= set(received.annotations)
    assert await receiver.propose(received, Delivery.ACCEPTED) == Delivery.ACCEPTED
    assert await receiver.drain(10) == []


@scenario
async def send_many(bench: Bench) -> None:
    await bench.send(*numbered(60))
    receiver = await bench.receiver()
    found = await receiver.receive(60)
    for received in found:
        await receiver.propose(received, Delivery.ACCEPTED)
    assert ids(found) == sorted(f"id-{number}" for number in range(60))
    assert await receiver.drain(10) == []


def data_section(content: bytes) -> bytes:
    """A section of a body (§3.2.6)."""
    return encode(Described(ULong(0x75), content))


def batch_of(messages: list[Message]) -> Encoded:
    """The envelope of a batch: a data section per message."""
    return Encoded(b"".join(data_section(message.encode()) for message in messages))


@scenario
async def send_batch(bench: Bench) -> None:
    """The client sends the envelope and reads the outcome; the relay sets the mark, because the client cannot
    (see `proton_client.py`).
    """
    with BatchRelay(bench.addresses.amqp_port) as relay:
        async with bench.connect(port=relay.port) as client:
            sender = await client.sender(bench.queue)
            assert (await sender.send(batch_of(numbered(50)))).state == Delivery.ACCEPTED
            assert relay.marked == 1
            spoilt = await sender.send(Encoded(batch_of(numbered(2)).data + data_section(b"no message")))
            assert (spoilt.state, spoilt.condition) == (Delivery.REJECTED, "amqp:decode-error")
    receiver = await bench.receiver()
    found = await receiver.receive(50)
    assert ids(found) == sorted(f"id-{number}" for number in range(50))
    assert all(received.message.body == received.message.id.replace("id-", "message ") for received in found)
    partitions = {int(received.annotations["x-opt-sequence-number"]) >> 48 for received in found}
    assert len(partitions) == 1, "a batch goes to one partition"
    for received in found:
        await receiver.propose(received, Delivery.ACCEPTED)
    assert await receiver.drain(10) == [], "nothing of the batch that was refused"


@scenario
async def send_batch_unmarked(bench: Bench) -> None:
    """What the client sends without the relay: the same envelope in a transfer of format 0 is one message
    whose body has many sections.
    """
    envelope = batch_of(numbered(50))
    sender = await bench.client.sender(bench.queue)
    assert (await sender.send(envelope)).state == Delivery.ACCEPTED
    answer = await bench.ask("peek-message", from_sequence_number=1, message_count=int32(10))
    (entry,) = answer.body["messages"]
    assert entry["message"].endswith(envelope.data), "the body is as it was sent"


@scenario
async def multi_frame_messages(bench: Bench) -> None:
    """Frames of the smallest sizes, and one message split into hundreds of them."""
    for max_frame_size in (512, 4096, None):
        async with bench.connect(max_frame_size=max_frame_size) as client:
            sender = await client.sender(bench.queue)
            receiver = await client.receiver(bench.queue)
            for size in (400, 100_000, 1_000_000):
                sent = await sender.send(Message(id=str(size), body=b"\x07" * size, inferred=True))
                assert sent.state == Delivery.ACCEPTED
                (received,) = await receiver.receive()
                assert bytes(received.message.body) == b"\x07" * size, (max_frame_size, size)
                await receiver.propose(received, Delivery.ACCEPTED)


@scenario
async def message_too_large(bench: Bench) -> None:
    sender = await bench.client.sender(bench.queue)
    assert 0 < sender.max_message_size < 2_000_000, "the limit is told"
    sent = await sender.send(Message(body=b"x" * 2_000_000))
    assert (sent.state, sent.condition) == (Delivery.REJECTED, "amqp:link:message-size-exceeded")
    assert (await sender.send(Message(body="small"))).state == Delivery.ACCEPTED
    receiver = await bench.receiver()
    assert (await receiver.receive())[0].message.body == "small"


# --- receiving and settling ---------------------------------------------------------------------------------


@scenario
async def receive_settled(bench: Bench) -> None:
    await bench.send(*numbered(10))
    receiver = await bench.receiver(settled=True)
    found = await receiver.receive(10)
    assert ids(found) == sorted(f"id-{number}" for number in range(10))
    assert all(received.delivery.settled for received in found)
    assert all("x-opt-locked-until" not in received.annotations for received in found), "there is no lock"
    await receiver.close()
    assert await (await bench.receiver()).drain(10) == []


@scenario
async def accepted(bench: Bench) -> None:
    receiver, received = await bench.one()
    assert await receiver.propose(received, Delivery.ACCEPTED) == Delivery.ACCEPTED
    assert await receiver.drain(10) == []


@scenario
async def released(bench: Bench) -> None:
    receiver, received = await bench.one()
    assert await receiver.propose(received, Delivery.RELEASED) == Delivery.RELEASED
    await again(receiver, 0)


@scenario
async def rejected(bench: Bench) -> None:
    receiver, received = await bench.one()
    assert (
        await receiver.propose(rejecting(received, "app:bad", "it is bad", {"a": "b"}), Delivery.REJECTED)
        == Delivery.REJECTED
    )
    assert await receiver.drain(10) == []
    await again(await bench.dead_letters(), 0)


@scenario
async def dead_letter(bench: Bench) -> None:
    """Dead-letter as the official clients do (AMQP contract 6.1), changing properties that the sender set."""
    receiver, received = await bench.one()
    info = {
        "DeadLetterReason": "no good",
        "DeadLetterErrorDescription": "it cannot be read",
        "replaced": "new",
    }
    rejection = rejecting(received, "com.microsoft:dead-letter", "no good", info)
    assert await receiver.propose(rejection, Delivery.REJECTED) == Delivery.REJECTED
    assert await receiver.drain(10) == []
    letter = await again(await bench.dead_letters(), 0)
    assert letter.properties == {"kept": "yes", **info}


@scenario
async def modified_failed(bench: Bench) -> None:
    receiver, received = await bench.one()
    received.delivery.local.failed = True
    assert await receiver.propose(received, Delivery.MODIFIED) == Delivery.MODIFIED
    await again(receiver, 1)


@scenario
async def modified_plain(bench: Bench) -> None:
    """Without flags the message is given back; clients that leave delivery-failed out mean a failed delivery
    (AMQP contract 6.1).
    """
    receiver, received = await bench.one()
    assert await receiver.propose(received, Delivery.MODIFIED) == Delivery.MODIFIED
    (back,) = await receiver.receive()
    assert back.message.id == "m"


@scenario
async def modified_annotations(bench: Bench) -> None:
    receiver, received = await bench.one()
    received.delivery.local.failed = True
    received.delivery.local.annotations = {symbol("replaced"): "new", symbol("added"): "too"}
    assert await receiver.propose(received, Delivery.MODIFIED) == Delivery.MODIFIED
    assert (await again(receiver, 1)).properties == {"kept": "yes", "replaced": "new", "added": "too"}


@scenario
async def modified_undeliverable_here(bench: Bench) -> None:
    """The message is deferred: only its sequence number finds it."""
    receiver, received = await bench.one()
    received.delivery.local.undeliverable = True
    assert await receiver.propose(received, Delivery.MODIFIED) == Delivery.MODIFIED
    assert await receiver.drain(10) == []
    number = int(received.annotations["x-opt-sequence-number"])
    taken = await bench.fetch(number, settle_mode=0)
    assert [decoded(entry).id for entry in taken.body["messages"]] == ["m"]
    assert (await bench.fetch(number)).status == 404
    assert (await bench.ask("peek-message", from_sequence_number=1, message_count=int32(10))).status == 204, (
        "it is gone, not just locked"
    )


@scenario
async def dead_letter_queue(bench: Bench) -> None:
    """A dead-letter queue is a complete queue: a message released there is available there again."""
    receiver, received = await bench.one()
    await receiver.propose(received, Delivery.REJECTED)
    dead = await bench.client.receiver(f"{bench.queue}/$deadletterqueue")
    (letter,) = await dead.receive()
    await dead.propose(letter, Delivery.RELEASED)
    await again(dead, 0)
    assert await dead.drain(10) == []
    assert await receiver.drain(10) == []


@scenario
async def drain(bench: Bench) -> None:
    receiver = await bench.receiver()
    assert await receiver.drain(10) == []
    await bench.send(*numbered(3))
    found = await receiver.drain(10)
    assert ids(found) == ["id-0", "id-1", "id-2"]
    for received in found:
        await receiver.propose(received, Delivery.ACCEPTED)
    assert await receiver.drain(5) == []
    await bench.send(*numbered(2))
    assert len(await receiver.receive(2)) == 2, "credit counts from where the drain left it"


@scenario
async def detach_and_attach_again(bench: Bench) -> None:
    await bench.send(*numbered(5))
    for _ in range(5):
        receiver = await bench.receiver(name="the same name")
        (received,) = await receiver.receive()
        await receiver.propose(received, Delivery.ACCEPTED)
        await receiver.close()
    assert await (await bench.receiver()).drain(10) == []


# --- requests to the management node ------------------------------------------------------------------------


@scenario
async def peek_pages(bench: Bench) -> None:
    await bench.send(*numbered(20))
    seen: list[Any] = []
    number = 1
    while (
        page := await bench.ask("peek-message", from_sequence_number=number, message_count=int32(6))
    ).status == 200:
        assert len(page.body["messages"]) <= 6
        seen += [decoded(entry) for entry in page.body["messages"]]
        assert len(seen) <= 20, "paging shows a message twice"
        number = int(seen[-1].annotations[symbol("x-opt-sequence-number")]) + 1
    assert page.status == 204
    assert {message.id for message in seen} == {message.id for message in numbered(20)}
    assert len(await (await bench.receiver()).receive(20)) == 20, "peeking locks nothing"


@scenario
async def renew_lock(bench: Bench) -> None:
    """One request renews two locks: of a received message, and of a deferred message that was fetched."""
    fetched = (await bench.fetched(await bench.defer_one()))["lock-token"]
    receiver, received = await bench.one()
    first = received.annotations["x-opt-locked-until"]
    await bench.client.pause(LOCK_SHORT_S * 0.7)
    tokens = lock_tokens(received.lock_token, fetched)
    renewed = await bench.ask("renew-lock", lock_tokens=tokens)
    assert renewed.status == 200
    of_received, of_fetched = renewed.body["expirations"]
    assert min(of_received, of_fetched) >= first + LOCK_SHORT_S * 600, (
        f"{first} renewed to {of_received} and {of_fetched}"
    )
    await bench.client.pause(LOCK_SHORT_S * 0.5)
    assert await receiver.propose(received, Delivery.ACCEPTED) == Delivery.ACCEPTED
    assert await bench.update("completed", fetched) == 200
    lost = await bench.ask("renew-lock", lock_tokens=tokens)
    assert (lost.status, lost.condition) == (410, "com.microsoft:message-lock-lost")


@scenario
async def defer_and_fetch(bench: Bench) -> None:
    number = await bench.defer_one()
    entry = await bench.fetched(number)
    assert decoded(entry).id == "m"
    assert await bench.update("completed", entry["lock-token"]) == 200
    gone = await bench.fetch(number)
    assert (gone.status, gone.condition) == (404, "com.microsoft:message-not-found")


@scenario
async def update_disposition(bench: Bench) -> None:
    """Every status, for messages received on a link and for a deferred one."""
    await bench.send(*numbered(4))
    receiver = await bench.receiver()
    completed, abandoned, deferred, dead = await receiver.receive(4)
    assert await bench.update("completed", completed.lock_token) == 200
    assert await bench.update("abandoned", abandoned.lock_token) == 200
    assert await bench.update("defered", deferred.lock_token) == 200
    assert (
        await bench.update(
            "suspended", dead.lock_token, deadletter_reason="no good", deadletter_description="at all"
        )
        == 200
    )
    (back,) = await receiver.drain(10)
    assert (back.message.id, back.message.delivery_count) == (abandoned.message.id, 1)
    number = int(deferred.annotations["x-opt-sequence-number"])
    assert await bench.update("suspended", (await bench.fetched(number))["lock-token"]) == 200
    letters = {letter.message.id: letter for letter in await (await bench.dead_letters()).receive(2)}
    assert set(letters) == {dead.message.id, deferred.message.id}
    assert int(letters[deferred.message.id].annotations["x-opt-sequence-number"]) == number
    told = letters[dead.message.id].message.properties
    assert (told["DeadLetterReason"], told["DeadLetterErrorDescription"]) == ("no good", "at all")


# --- browsing -----------------------------------------------------------------------------------------------


async def left(bench: Bench, address: str | None = None) -> list[Received]:
    """What a consumer finds in the queue after browsing; nothing is settled."""
    receiver = await bench.client.receiver(address or bench.queue, name="left")
    found = await receiver.drain(100)
    assert all(received.message.delivery_count == 0 for received in found), "browsing counts as no delivery"
    return found


@scenario
async def browse(bench: Bench) -> None:
    """Proton's `Copy()`: whatever outcome browsed deliveries get, the messages stay in the queue
    unchanged.
    """
    await bench.send(*numbered(4))
    browser = await bench.receiver(name="browser", copy=True)
    found = await browser.receive(4)
    assert ids(found) == ids_up_to(4)
    assert all("x-opt-locked-until" not in received.annotations for received in found)
    for received, outcome in zip(
        found, (Delivery.ACCEPTED, Delivery.REJECTED, Delivery.RELEASED, Delivery.MODIFIED), strict=True
    ):
        received.delivery.local.failed = outcome == Delivery.MODIFIED
        assert await browser.propose(received, outcome) == outcome
    assert await browser.drain(10) == [], "each message once"
    assert ids(await left(bench)) == ids_up_to(4)
    assert ids(await (await bench.receiver(name="second browser", copy=True)).drain(10)) == ids_up_to(4), (
        "what is locked is shown, too"
    )


@scenario
async def browse_settled(bench: Bench) -> None:
    await bench.send(*numbered(4))
    found = await (await bench.receiver(name="browser", copy=True, settled=True)).drain(10)
    assert ids(found) == ids_up_to(4) and all(received.delivery.settled for received in found)
    assert ids(await left(bench)) == ids_up_to(4)


@scenario
async def browse_pages(bench: Bench) -> None:
    """More than a page from each of two partitions, and from all of them together, with credit of
    every size.
    """
    await bench.send(
        *[
            Message(
                id=f"id-{number}",
                body="x" * 2_000,
                annotations={symbol("x-opt-partition-key"): str(number % 2)},
            )
            for number in range(600)
        ]
    )
    browser = await bench.receiver(name="browser", copy=True)
    found = await browser.receive(1) + await browser.receive(7) + await browser.receive(292)
    found += await browser.drain(1_000)
    assert ids(found) == ids_up_to(600)
    assert len(await left(bench)) == 100


@scenario
async def browse_dead_letters(bench: Bench) -> None:
    await bench.send(*numbered(4))
    receiver = await bench.receiver()
    for received in await receiver.receive(3):
        assert await receiver.propose(received, Delivery.REJECTED) == Delivery.REJECTED
    letters = f"{bench.queue}/$DeadLetterQueue"
    found = await (await bench.client.receiver(letters, name="browser", copy=True)).drain(10)
    assert len(found) == 3 and len(await left(bench, letters)) == 3


@scenario
async def browse_follows(bench: Bench) -> None:
    """A browser that keeps its credit sees messages that arrive later."""
    await bench.send(*numbered(2))
    browser = await bench.receiver(name="browser", copy=True)
    assert ids(await browser.receive(2)) == ids_up_to(2)
    await bench.send(Message(id="late", body="x"))
    assert ids(await browser.receive(1)) == ["late"]
    assert await browser.drain(10) == []
    assert len(await left(bench)) == 3


@scenario
async def selector(bench: Bench) -> None:
    """Proton's `Selector`: a browser sees what matches, and a consumer takes that and leaves the rest, also
    what arrives later or comes back."""
    colours = ["red", "blue"]
    await bench.send(
        *(Message(id=f"id-{n}", body="x", properties={"colour": colours[n % 2], "n": n}) for n in range(8))
    )
    red = "colour = 'red' AND n BETWEEN 2 AND 100"
    browser = await bench.receiver(name="browser", copy=True, selector=red)
    assert sorted(ids(await browser.receive(3))) == ["id-2", "id-4", "id-6"]
    assert await browser.drain(10) == []
    receiver = await bench.receiver(selector=red)
    first, second, third = await receiver.receive(3)
    assert sorted(ids([first, second, third])) == ["id-2", "id-4", "id-6"]
    assert await receiver.drain(10) == []
    await receiver.propose(first, Delivery.ACCEPTED)
    await receiver.propose(second, Delivery.RELEASED)
    again = await receiver.receive(1)
    assert ids(again) == ids([second])
    await bench.send(Message(id="late", body="x", properties={"colour": "red", "n": 50}))
    late = await receiver.receive(1)
    assert ids(late) == ["late"]
    for each in (third, *again, *late):
        await receiver.propose(each, Delivery.ACCEPTED)
    assert sorted(ids(await left(bench))) == ["id-0", "id-1", "id-3", "id-5", "id-7"]


@scenario
async def selector_settled(bench: Bench) -> None:
    """Receive-and-delete takes only what matches."""
    await bench.send(*(Message(id=f"id-{n}", body="x", subject=f"s{n % 2}") for n in range(6)))
    receiver = await bench.receiver(selector="JMSType = 's1'", settled=True)
    assert sorted(ids(await receiver.receive(3))) == ["id-1", "id-3", "id-5"]
    assert await receiver.drain(10) == []
    assert sorted(ids(await left(bench))) == ["id-0", "id-2", "id-4"]


@scenario
async def selector_refused(bench: Bench) -> None:
    """A selector that is not valid is refused with position and reason, for a consumer and for a browser.

    Each uses its own connection: the blocking client notices the mismatched address before it reads the
    error, and then reports the error to whichever call waits next.
    """
    await bench.send(*numbered(2))
    for copy in (False, True):
        async with bench.connect() as client:
            with pytest.raises(Refused, match=r"argument-error.*not valid at position 10|does not match"):
                await client.receiver(bench.queue, selector="colour = ", copy=copy)
    assert ids(await left(bench)) == ids_up_to(2)


# --- refusals -----------------------------------------------------------------------------------------------


@scenario
async def unknown_queue(bench: Bench) -> None:
    """The blocking client itself reports a mismatched address if it notices that before the error."""
    with pytest.raises(Refused, match=r"amqp:not-found|does not match"):
        await bench.client.sender(bench.queue)
    with pytest.raises(Refused, match=r"amqp:not-found|does not match"):
        await bench.receiver()


@scenario
async def wrong_key(bench: Bench) -> None:
    with pytest.raises(Refused, match=r"amqp:unauthorized-access|[Aa]uthentication"):
        async with bench.connect(password="wrong"):
            pass
