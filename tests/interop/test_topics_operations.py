"""What subscriptions have beyond receiving, with unchanged clients: operations of our own and bulk deletion,
browsing links, sending through a topic, and chains of forwarding."""

from __future__ import annotations

import time
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceiveMode, ServiceBusSubQueue
from azure.servicebus.management import CorrelationRuleFilter, ServiceBusAdministrationClient
from proton import Delivery, Message, symbol, timestamp
from proton.utils import BlockingConnection

from tests.interop.own_management import longs, management, uuids
from tests.interop.proton_blocking import Destination, Receiver
from tests.support.waiting import WAIT_S

KEYS = [f"key {number}" for number in range(8)]
BODIES = set(map(str, range(len(KEYS))))
DEAD = "/$deadletterqueue"


@pytest.fixture
def topic(admin: ServiceBusAdministrationClient) -> str:
    """A topic with two subscriptions that get everything."""
    return topic_with(admin, "one", "two")


def topic_with(admin: ServiceBusAdministrationClient, *subscriptions: str, **properties: Any) -> str:
    name = f"operations-{uuid.uuid4().hex}"
    admin.create_topic(name)
    for each in subscriptions:
        admin.create_subscription(name, each, **properties)
    return name


def publish(client: ServiceBusClient, topic: str, count: int = len(KEYS)) -> None:
    """Send messages of several partitions."""
    with client.get_topic_sender(topic) as sender:
        for number in range(count):
            sender.send_messages(ServiceBusMessage(str(number), partition_key=KEYS[number]))


def held(client: ServiceBusClient, topic: str, subscription: str, **given: Any) -> dict[str, Any]:
    """The messages in a subscription, by their bodies."""
    return {str(each): each for each in peeked(client, topic, subscription, **given)}


def peeked(client: ServiceBusClient, topic: str, subscription: str, **given: Any) -> list[Any]:
    with client.get_subscription_receiver(topic, subscription, **given) as receiver:
        return list(receiver.peek_messages(100, sequence_number=1))


def received(receiver: Any, count: int) -> list[Any]:
    found: list[Any] = []
    while len(found) < count:
        some = receiver.receive_messages(count - len(found), max_wait_time=WAIT_S)
        assert some, f"{len(found)} of {count} messages came"
        found += some
    return found


def test_what_is_deleted_in_a_subscription_stays_in_the_others(
    client: ServiceBusClient, connection: BlockingConnection, topic: str
) -> None:
    publish(client, topic)
    numbers = {body: each.sequence_number for body, each in held(client, topic, "one").items()}
    assert numbers == {body: each.sequence_number for body, each in held(client, topic, "two").items()}
    with management(connection, f"{topic}/Subscriptions/one") as node:
        named = [numbers["1"], numbers["2"]]
        answer = node.ask("partibus:delete-messages", sequence_numbers=longs([*named, 99 << 48]))[1]
        assert (sorted(answer["deleted"]), answer["missing"]) == (sorted(named), [99 << 48])
        soon = timestamp(int((time.time() + 3600) * 1000))
        asked = {"message_count": 2, "enqueued_time_utc": soon}
        assert node.ask("com.microsoft:batch-delete-messages", **asked) == (200, {"message-count": 2})
        assert node.ask("partibus:count-messages")[1]["active"] == 4
        assert node.ask("partibus:purge-messages") == (200, {"message-count": 4})
        assert node.ask("partibus:count-messages")[1]["active"] == 0
    assert set(held(client, topic, "two")) == BODIES
    with client.get_topic_sender(topic) as sender:
        [number] = sender.schedule_messages(
            [ServiceBusMessage("late")], datetime.now(UTC) + timedelta(hours=1)
        )
    with management(connection, topic) as node:
        assert node.ask("partibus:count-messages")[1]["scheduled"] == 1
        assert node.ask("partibus:deliver-scheduled-messages", sequence_numbers=longs([number]))[0] == 200
    with client.get_subscription_receiver(topic, "one") as receiver:
        assert [str(each) for each in received(receiver, 1)] == ["late"]


def test_the_numbers_in_an_answer_belong_to_no_other_message(
    admin: ServiceBusAdministrationClient, client: ServiceBusClient, connection: BlockingConnection
) -> None:
    name = topic_with(admin, "red")
    admin.delete_rule(name, "red", "$Default")
    admin.create_rule(name, "red", "red", filter=CorrelationRuleFilter(label="red"))
    with management(connection, name) as node:

        def told(*messages: bytes) -> list[int]:
            status, answer = node.ask("partibus:send-messages", messages=list(messages))
            assert (status, answer["accepted"]) == (200, len(messages))
            return list(answer["sequence-numbers"])

        def scheduled(message: bytes) -> list[int]:
            asked = [{"message-id": "given", "message": message}]
            return list(node.ask("com.microsoft:schedule-message", messages=asked)[1]["sequence-numbers"])

        blue, red = encoded("blue"), encoded("red")
        # Symptom: a message that nobody got was told the number of the next one that somebody got.
        first, second, third = told(blue), told(blue, red), told(red)
        assert len({*first, *second, *third}) == 4
        assert [each.sequence_number for each in peeked(client, name, "red")] == [second[1], *third]
        lost, kept = scheduled(blue), scheduled(encoded("red", time.time() + 3600))
        cancel = "com.microsoft:cancel-scheduled-message"
        assert node.ask(cancel, sequence_numbers=longs(lost))[0] == 404
        assert node.ask(cancel, sequence_numbers=longs(kept))[0] == 200


def encoded(subject: str, due_s: float | None = None) -> bytes:
    """A message with this subject, to be enqueued now or later."""
    annotations: dict[Any, Any] = {symbol("x-opt-partition-key"): "one key"}
    if due_s is not None:
        annotations[symbol("x-opt-scheduled-enqueue-time")] = timestamp(int(due_s * 1000))
    return Message(id=str(uuid.uuid4()), subject=subject, annotations=annotations).encode()


def test_dead_letters_of_a_subscription_go_back_to_it_alone(
    client: ServiceBusClient, connection: BlockingConnection, topic: str
) -> None:
    publish(client, topic)
    with client.get_subscription_receiver(topic, "one") as receiver:
        for each in received(receiver, len(KEYS)):
            receiver.dead_letter_message(each, reason="broken")
    dead = {
        body: each.sequence_number
        for body, each in held(client, topic, "one", sub_queue=ServiceBusSubQueue.DEAD_LETTER).items()
    }
    with management(connection, f"{topic}/Subscriptions/one{DEAD}") as node:
        named = [dead["1"], dead["2"]]
        answer = node.ask("partibus:redrive-messages", sequence_numbers=longs(named))[1]
        assert sorted(answer["redriven"]) == sorted(named)
        assert not set(answer["sequence-numbers"]) & set(dead.values())
        assert node.ask("partibus:redrive-messages", deadletter_reason="other")[1] == {"message-count": 0}
        assert node.ask("partibus:redrive-messages", deadletter_reason="broken")[1] == {"message-count": 6}
    with client.get_subscription_receiver(topic, "one") as receiver:
        again = received(receiver, len(KEYS))
        assert {str(each) for each in again} == BODIES
        assert {(each.delivery_count, each.dead_letter_reason) for each in again} == {(0, None)}
        assert not {each.sequence_number for each in again} & set(dead.values())
    assert {body: each.sequence_number for body, each in held(client, topic, "two").items()} == dead


def test_a_lock_in_a_subscription_is_renewed_for_long_and_an_abandon_delays(
    admin: ServiceBusAdministrationClient, client: ServiceBusClient, connection: BlockingConnection
) -> None:
    topic = topic_with(admin, "one", "two", lock_duration=timedelta(seconds=5))
    publish(client, topic, 1)
    with (
        client.get_subscription_receiver(topic, "one") as receiver,
        management(connection, f"{topic}/Subscriptions/one") as node,
    ):
        [message] = received(receiver, 1)
        tokens = uuids([message.lock_token])
        before_ms = time.time() * 1000
        answer = node.ask("partibus:renew-lock", lock_tokens=tokens, duration=600_000)[1]
        assert answer["expirations"][0] >= before_ms + 599_000
        abandoned = {"disposition_status": "abandoned", "lock_tokens": tokens}
        delay = {"partibus:delay": 1_000}
        at = time.monotonic()
        assert node.ask("com.microsoft:update-disposition", **abandoned, properties_to_modify=delay)[0] == 200
        [again] = received(receiver, 1)
        assert again.delivery_count == 1 and time.monotonic() - at >= 0.9
        assert again.sequence_number == message.sequence_number
        receiver.complete_message(again)
    [other] = held(client, topic, "two").values()
    assert other.delivery_count == 0


def test_a_lock_is_lost_for_the_other_subscription_and_for_the_dead_letters(
    client: ServiceBusClient, connection: BlockingConnection, topic: str
) -> None:
    publish(client, topic, 1)
    lost = (410, "com.microsoft:message-lock-lost")
    with client.get_subscription_receiver(topic, "one") as receiver:
        [message] = received(receiver, 1)
        tokens = uuids([message.lock_token])
        for elsewhere in ("two", "two/$DeadLetterQueue", "one/$DeadLetterQueue"):
            with management(connection, f"{topic}/Subscriptions/{elsewhere}") as node:
                for status in ("completed", "abandoned", "defered", "suspended"):
                    asked = {"disposition_status": status, "lock_tokens": tokens}
                    refused = node.ask("com.microsoft:update-disposition", **asked)
                    assert (refused[0], refused[1]["condition"]) == lost
                refused = node.ask("com.microsoft:renew-lock", lock_tokens=tokens)
                assert (refused[0], refused[1]["condition"]) == lost
                refused = node.ask("partibus:renew-lock", lock_tokens=tokens, duration=600_000)
                assert (refused[0], refused[1]["condition"]) == lost
        with management(connection, f"{topic}/Subscriptions/one") as node:
            asked = {"disposition_status": "completed", "lock_tokens": tokens}
            assert node.ask("com.microsoft:update-disposition", **asked)[0] == 200
    assert (len(held(client, topic, "one")), len(held(client, topic, "two"))) == (0, 1)


def test_a_subscription_is_browsed_and_nothing_is_taken(
    client: ServiceBusClient, connection: BlockingConnection, topic: str
) -> None:
    publish(client, topic)
    with client.get_subscription_receiver(topic, "one") as receiver:
        [locked] = received(receiver, 1)
        browser = Receiver(connection, f"{topic}/Subscriptions/one", copy=True)
        shown = browser.drain(20)
        assert {each.message.body for each in map(decoded, shown)} == BODIES, "the locked one as well"
        for each in shown:
            browser.settle(each, Delivery.ACCEPTED)
        publish(client, topic, 1)
        assert len(browser.receive(1)) == 1, "the browse follows"
        browser.close()
        receiver.complete_message(locked)
    for name, left in (("one", len(KEYS)), ("two", len(KEYS) + 1)):
        assert len(peeked(client, topic, name)) == left


def decoded(shown: Any) -> Any:
    """A browsed message with its body as text."""
    shown.message.body = bytes(shown.message.body).decode()
    return shown


def test_what_is_sent_through_a_topic_reaches_its_destination_alone(
    admin: ServiceBusAdministrationClient,
    client: ServiceBusClient,
    connection: BlockingConnection,
    topic: str,
) -> None:
    destination = topic_with(admin, "all")
    sender = connection.create_sender(topic, options=Destination(destination))
    for number in range(4):
        sender.send(Message(body=str(number), id=str(number)))
    sender.close()  # type: ignore[no-untyped-call]
    with client.get_subscription_receiver(
        destination, "all", receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE
    ) as receiver:
        assert {each.message_id for each in received(receiver, 4)} == set("0123")
    assert held(client, topic, "one") == {}


def test_a_chain_of_subscriptions_ends_after_four_hops(
    admin: ServiceBusAdministrationClient, client: ServiceBusClient
) -> None:
    queue = f"operations-{uuid.uuid4().hex}"
    admin.create_queue(queue)
    chain = [queue]
    for _ in range(5):
        chain.append(topic_with(admin, "on", forward_to=chain[-1]))
        admin.create_subscription(chain[-1], "stays")
    first, last = chain[-1], chain[1]
    publish(client, first, 1)
    with client.get_subscription_receiver(last, "stays") as receiver:
        [message] = received(receiver, 1)
        assert str(message) == "0"
    with client.get_subscription_receiver(last, "on", sub_queue=ServiceBusSubQueue.DEAD_LETTER) as receiver:
        [dead] = received(receiver, 1)
        assert dead.dead_letter_reason == "MaxTransferHopCountExceeded"
    publish(client, chain[-2], 1)
    with client.get_queue_receiver(queue) as receiver:
        [message] = received(receiver, 1)
        assert str(message) == "0"
    for each in chain[1:]:
        assert len(peeked(client, each, "stays")) == (1 if each == first else 2), "each topic has its copy"


def test_a_session_of_a_subscription_is_purged_and_its_lock_renewed_for_long(
    admin: ServiceBusAdministrationClient, client: ServiceBusClient, connection: BlockingConnection
) -> None:
    topic = topic_with(admin, "sessions", requires_session=True)
    admin.create_subscription(topic, "plain")
    with client.get_topic_sender(topic) as sender:
        for session_id in "ab":
            sender.send_messages([ServiceBusMessage(str(each), session_id=session_id) for each in range(3)])
    with (
        client.get_subscription_receiver(topic, "sessions", session_id="a") as receiver,
        management(connection, f"{topic}/Subscriptions/sessions") as node,
    ):
        [message] = received(receiver, 1)
        before_ms = time.time() * 1000
        ask: Any = receiver._mgmt_request_response_with_retry  # the lock belongs to this connection
        asked = {"session-id": "a", "duration": 600_000}
        answer = ask(b"partibus:renew-lock", asked, lambda status, answer, *_, **__: answer.value)
        assert answer[b"expiration"] >= before_ms + 599_000
        assert node.ask("partibus:purge-messages", session_id="a") == (200, {"message-count": 2})
        receiver.complete_message(message)
        assert node.ask("partibus:count-messages")[1]["active"] == 3, "those of the other session"
    assert len(peeked(client, topic, "plain")) == 6
