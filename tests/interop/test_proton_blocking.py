"""Qpid Proton's blocking client, a plain AMQP 1.0 client, unchanged, against the running broker."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from proton import Array, ConnectionException, Data, Delivery, LinkException, Message, int32, symbol, uint
from proton.utils import BlockingConnection, SendException

from tests.interop.proton_client import Received, Receiver, array, ask, connected, rejecting
from tests.interop.scenarios import CLIENTS, LOCK_SHORT_S, queue_name
from tests.support.broker_process import Addresses, BrokerProcess

Scenario = Callable[[BlockingConnection, str], None]
SCENARIOS: dict[str, Scenario] = {}


def scenario(function: Scenario) -> Scenario:
    """Enter a function under its own name, with dashes."""
    SCENARIOS[function.__name__.replace("_", "-")] = function
    return function


@pytest.mark.parametrize("name", CLIENTS["proton-blocking"])
def test_proton_blocking(broker: BrokerProcess, name: str) -> None:
    """Each scenario passes with Proton's blocking client."""
    queue = queue_name("proton-blocking", name)
    if name in REFUSALS:
        REFUSALS[name](broker.addresses, queue)
        return
    with connected(broker.addresses) as connection:
        SCENARIOS[name](connection, queue)


def numbered(count: int) -> list[Message]:
    return [Message(id=f"id-{number}", body=f"message {number}") for number in range(count)]


def send(connection: BlockingConnection, queue: str, *messages: Message) -> None:
    sender = connection.create_sender(queue)
    for message in messages:
        assert sender.send(message).remote_state == Delivery.ACCEPTED
    sender.close()  # type: ignore[no-untyped-call]


def ids(found: list[Received]) -> list[str]:
    return sorted(received.message.id for received in found)


def sequence_numbers(*numbers: int) -> Array:
    return array(Data.LONG, *numbers)


def one(connection: BlockingConnection, queue: str) -> tuple[Receiver, Received]:
    """Send one message and receive it."""
    send(connection, queue, Message(id="m", body="x", properties={"kept": "yes", "replaced": "old"}))
    receiver = Receiver(connection, queue)
    (received,) = receiver.receive()
    assert received.message.delivery_count == 0
    return receiver, received


def again(receiver: Receiver, delivery_count: int) -> Any:
    """The same message once more, with that many failed deliveries; completed."""
    (received,) = receiver.receive()
    assert (received.message.id, received.message.delivery_count) == ("m", delivery_count)
    receiver.settle(received, Delivery.ACCEPTED)
    return received.message


@scenario
def send_one(connection: BlockingConnection, queue: str) -> None:
    sent = Message(id="m", subject="s", body={"a": [1, "two"]}, properties={"k": "v"}, annotations={symbol("x-mine"): 1}, durable=True)
    sent.priority = 7
    send(connection, queue, sent)
    receiver = Receiver(connection, queue)
    (received,) = receiver.receive()
    message = received.message
    assert (message.id, message.subject, message.body, message.properties) == ("m", "s", {"a": [1, "two"]}, {"k": "v"})
    assert (message.durable, message.priority, message.delivery_count) == (True, 7, 0)
    assert received.annotations["x-mine"] == 1
    assert {"x-opt-sequence-number", "x-opt-enqueued-time", "x-opt-locked-until"} <= set(received.annotations)
    assert receiver.settle(received, Delivery.ACCEPTED) == Delivery.ACCEPTED
    assert receiver.drain(10) == []


@scenario
def send_many(connection: BlockingConnection, queue: str) -> None:
    send(connection, queue, *numbered(60))
    receiver = Receiver(connection, queue)
    found = receiver.receive(60)
    for received in found:
        receiver.settle(received, Delivery.ACCEPTED)
    assert ids(found) == sorted(f"id-{number}" for number in range(60))
    assert receiver.drain(10) == []


@scenario
def receive_settled(connection: BlockingConnection, queue: str) -> None:
    send(connection, queue, *numbered(10))
    receiver = Receiver(connection, queue, settled=True)
    found = receiver.receive(10)
    assert all(received.delivery.settled for received in found)
    receiver.close()
    assert Receiver(connection, queue).drain(10) == []


@scenario
def accepted(connection: BlockingConnection, queue: str) -> None:
    receiver, received = one(connection, queue)
    assert receiver.settle(received, Delivery.ACCEPTED) == Delivery.ACCEPTED
    assert receiver.drain(10) == []


@scenario
def released(connection: BlockingConnection, queue: str) -> None:
    receiver, received = one(connection, queue)
    assert receiver.settle(received, Delivery.RELEASED) == Delivery.RELEASED
    again(receiver, 0)


@scenario
def rejected(connection: BlockingConnection, queue: str) -> None:
    receiver, received = one(connection, queue)
    assert receiver.settle(rejecting(received, "app:bad", "it is bad"), Delivery.REJECTED) == Delivery.REJECTED
    assert receiver.drain(10) == []
    again(Receiver(connection, f"{queue}/$DeadLetterQueue"), 0)


@scenario
def modified_failed(connection: BlockingConnection, queue: str) -> None:
    receiver, received = one(connection, queue)
    received.delivery.local.failed = True
    assert receiver.settle(received, Delivery.MODIFIED) == Delivery.MODIFIED
    again(receiver, 1)


@scenario
def modified_plain(connection: BlockingConnection, queue: str) -> None:
    """Without flags it is given back; the clients that leave delivery-failed out mean a failed delivery (AMQP contract 6.1)."""
    receiver, received = one(connection, queue)
    assert receiver.settle(received, Delivery.MODIFIED) == Delivery.MODIFIED
    (back,) = receiver.receive()
    assert back.message.id == "m"


@scenario
def modified_annotations(connection: BlockingConnection, queue: str) -> None:
    receiver, received = one(connection, queue)
    received.delivery.local.failed = True
    received.delivery.local.annotations = {symbol("replaced"): "new", symbol("added"): "too"}
    assert receiver.settle(received, Delivery.MODIFIED) == Delivery.MODIFIED
    assert again(receiver, 1).properties == {"kept": "yes", "replaced": "new", "added": "too"}


def defer_one(connection: BlockingConnection, queue: str) -> int:
    """Send a message, defer it, and give its sequence number."""
    receiver, received = one(connection, queue)
    received.delivery.local.undeliverable = True
    assert receiver.settle(received, Delivery.MODIFIED) == Delivery.MODIFIED
    assert receiver.drain(10) == []
    receiver.close()
    return int(received.annotations["x-opt-sequence-number"])


def fetch(connection: BlockingConnection, queue: str, number: int) -> dict[str, Any]:
    """Lock a deferred message: its entry in the answer, with `message` and `lock-token`."""
    request = {"sequence-numbers": sequence_numbers(number), "receiver-settle-mode": uint(1)}
    answer = ask(connection, queue, "com.microsoft:receive-by-sequence-number", request)
    assert (answer.status, answer.body is not None) == (200, True)
    (entry,) = (answer.body or {})["messages"]
    return dict(entry)


def decoded(entry: dict[str, Any]) -> Any:
    """The message of an entry in a management node's answer."""
    message = Message()
    message.decode(bytes(entry["message"]))
    return message


def update(connection: BlockingConnection, queue: str, status: str, *tokens: Any) -> int:
    request = {"disposition-status": status, "lock-tokens": array(Data.UUID, *tokens)}
    return ask(connection, queue, "com.microsoft:update-disposition", request).status


@scenario
def modified_undeliverable_here(connection: BlockingConnection, queue: str) -> None:
    number = defer_one(connection, queue)
    assert fetch(connection, queue, number)["lock-token"] is not None


@scenario
def defer_and_fetch(connection: BlockingConnection, queue: str) -> None:
    number = defer_one(connection, queue)
    entry = fetch(connection, queue, number)
    assert decoded(entry).id == "m"
    assert update(connection, queue, "completed", entry["lock-token"]) == 200
    request = {"sequence-numbers": sequence_numbers(number), "receiver-settle-mode": uint(1)}
    gone = ask(connection, queue, "com.microsoft:receive-by-sequence-number", request)
    assert (gone.status, gone.condition) == (404, "com.microsoft:message-not-found")


@scenario
def update_disposition(connection: BlockingConnection, queue: str) -> None:
    number = defer_one(connection, queue)
    assert update(connection, queue, "defered", fetch(connection, queue, number)["lock-token"]) == 200
    assert update(connection, queue, "suspended", fetch(connection, queue, number)["lock-token"]) == 200
    (dead,) = Receiver(connection, f"{queue}/$DeadLetterQueue").receive()
    assert dead.message.id == "m"
    assert int(dead.annotations["x-opt-sequence-number"]) == number


@scenario
def renew_lock(connection: BlockingConnection, queue: str) -> None:
    token = fetch(connection, queue, defer_one(connection, queue))["lock-token"]
    locked_at = time.time()
    time.sleep(LOCK_SHORT_S * 0.7)
    renewed = ask(connection, queue, "com.microsoft:renew-lock", {"lock-tokens": array(Data.UUID, token)})
    assert (renewed.status, renewed.body is not None) == (200, True)
    (expires_at_ms,) = (renewed.body or {})["expirations"]
    assert expires_at_ms / 1000 >= locked_at + LOCK_SHORT_S * 1.6
    time.sleep(LOCK_SHORT_S * 0.5)
    assert update(connection, queue, "completed", token) == 200
    lost = ask(connection, queue, "com.microsoft:renew-lock", {"lock-tokens": array(Data.UUID, token)})
    assert (lost.status, lost.condition) == (410, "com.microsoft:message-lock-lost")


@scenario
def peek_pages(connection: BlockingConnection, queue: str) -> None:
    send(connection, queue, *numbered(20))
    seen: list[int] = []
    while (answer := peek(connection, queue, seen[-1] + 1 if seen else 1)).status == 200:
        seen += [int(decoded(entry).annotations[symbol("x-opt-sequence-number")]) for entry in (answer.body or {})["messages"]]
        assert len(seen) <= 20, "paging shows a message twice"
    assert answer.status == 204
    assert len(set(seen)) == 20


def peek(connection: BlockingConnection, queue: str, number: int) -> Any:
    return ask(connection, queue, "com.microsoft:peek-message", {"from-sequence-number": number, "message-count": int32(6)})


@scenario
def dead_letter_queue(connection: BlockingConnection, queue: str) -> None:
    """It is a full queue: what is released there is there again."""
    receiver, received = one(connection, queue)
    receiver.settle(received, Delivery.REJECTED)
    dead = Receiver(connection, f"{queue}/$deadletterqueue")
    (letter,) = dead.receive()
    dead.settle(letter, Delivery.RELEASED)
    again(dead, 0)
    assert dead.drain(10) == []
    assert receiver.drain(10) == []


@scenario
def drain(connection: BlockingConnection, queue: str) -> None:
    receiver = Receiver(connection, queue)
    assert receiver.drain(10) == []
    send(connection, queue, *numbered(3))
    found = receiver.drain(10)
    assert ids(found) == ["id-0", "id-1", "id-2"]
    for received in found:
        receiver.settle(received, Delivery.ACCEPTED)
    assert receiver.drain(5) == []
    send(connection, queue, *numbered(2))
    assert len(receiver.receive(2)) == 2, "credit counts from where the drain left it"


@scenario
def detach_and_attach_again(connection: BlockingConnection, queue: str) -> None:
    send(connection, queue, *numbered(5))
    for _ in range(5):
        receiver = Receiver(connection, queue, name="the same name")
        (received,) = receiver.receive()
        receiver.settle(received, Delivery.ACCEPTED)
        receiver.close()
    assert Receiver(connection, queue).drain(10) == []


def multi_frame_messages(addresses: Addresses, queue: str) -> None:
    """Frames of the smallest sizes, and one message in hundreds of them."""
    for max_frame_size in (512, 4096, None):
        with connected(addresses, max_frame_size=max_frame_size) as connection:
            for size in (400, 100_000, 1_000_000):
                send(connection, queue, Message(id=str(size), body=b"\x07" * size, inferred=True))
                receiver = Receiver(connection, queue)
                (received,) = receiver.receive()
                assert bytes(received.message.body) == b"\x07" * size, (max_frame_size, size)
                receiver.settle(received, Delivery.ACCEPTED)
                receiver.close()


def message_too_large(addresses: Addresses, queue: str) -> None:
    with connected(addresses) as connection:
        sender = connection.create_sender(queue)
        assert 0 < sender.link.remote_max_message_size < 2_000_000, "the limit is told"
        delivery = sender.send(Message(body=b"x" * 2_000_000), error_states=[])
        assert delivery.remote_state == Delivery.REJECTED
        assert delivery.remote.condition is not None
        assert delivery.remote.condition.name == "amqp:link:message-size-exceeded"
        with pytest.raises(SendException):
            sender.send(Message(body=b"x" * 2_000_000))
        assert sender.send(Message(body="small")).remote_state == Delivery.ACCEPTED
        assert Receiver(connection, queue).receive()[0].message.body == "small"


def unknown_queue(addresses: Addresses, queue: str) -> None:
    with connected(addresses) as connection:
        with pytest.raises(LinkException, match=r"amqp:not-found|does not match"):
            connection.create_sender(queue)
        with pytest.raises(LinkException, match=r"amqp:not-found|does not match"):
            Receiver(connection, queue)


def wrong_key(addresses: Addresses, queue: str) -> None:
    with pytest.raises(ConnectionException, match=r"amqp:unauthorized-access|[Aa]uthentication"), connected(addresses, password="wrong"):
        pass


REFUSALS: dict[str, Callable[[Addresses, str], None]] = {
    "multi-frame-messages": multi_frame_messages,
    "message-too-large": message_too_large,
    "unknown-queue": unknown_queue,
    "wrong-key": wrong_key,
}
"""Scenarios that connect by themselves."""


def test_every_scenario_is_written_for_proton() -> None:
    assert set(SCENARIOS) | set(REFUSALS) == set(CLIENTS["proton-blocking"])
