"""Message sessions with the official Python client: accepting, order, locks, peeked and deferred messages."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.servicebus import (
    NEXT_AVAILABLE_SESSION,
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusMessageState,
    ServiceBusReceivedMessage,
    ServiceBusReceiveMode,
    ServiceBusReceiver,
    ServiceBusSession,
    ServiceBusSubQueue,
)
from azure.servicebus.aio import AutoLockRenewer
from azure.servicebus.exceptions import (
    MessageNotFoundError,
    OperationTimeoutError,
    ServiceBusError,
    SessionCannotBeLockedError,
    SessionLockLostError,
)

from tests.support.azure_client import aio_client
from tests.support.broker_process import BrokerProcess, queue

WITHIN_S = 30.0
LOCK_S = 3
SHORT = f"PT{LOCK_S}S"
NAMES = (
    "order",
    "held",
    "next",
    "waits",
    "mixed",
    "deferred",
    "removed",
    "peeked",
    "states",
    "listed",
    "later",
)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    queues = [queue(name, PartitionCount=4, EnablePartitioning=True, RequiresSession=True) for name in NAMES]
    queues.append(queue("lost", RequiresSession=True, LockDuration=SHORT, MaxDeliveryCount=2))
    queues.append(queue("plain"))
    queues.append(queue("again", PartitionCount=1, RequiresSession=True))
    with BrokerProcess(tmp_path_factory.mktemp("sessions"), queues) as process:
        yield process
        assert process.errors == []


def send(client: ServiceBusClient, name: str, session: str, *bodies: str) -> None:
    """Send messages of one session, one by one."""
    send_all(client, name, *((session, body) for body in bodies))


def send_all(client: ServiceBusClient, name: str, *messages: tuple[str, str]) -> None:
    """Send messages of several sessions, one by one."""
    with client.get_queue_sender(name) as sender:
        for session, body in messages:
            sender.send_messages(ServiceBusMessage(body, session_id=session))


def accept(client: ServiceBusClient, name: str, session: Any, **options: Any) -> ServiceBusReceiver:
    return client.get_queue_receiver(name, session_id=session, **options)


def receive(receiver: ServiceBusReceiver, count: int) -> list[ServiceBusReceivedMessage]:
    """Receive exactly this many messages, in the order in which they come."""
    found: list[ServiceBusReceivedMessage] = []
    until = time.monotonic() + WITHIN_S
    while len(found) < count and time.monotonic() < until:
        found += receiver.receive_messages(count - len(found), max_wait_time=2)
    assert len(found) == count, list(map(str, found))
    return found


def session_of(receiver: ServiceBusReceiver) -> ServiceBusSession:
    session = receiver.session
    assert isinstance(session, ServiceBusSession)
    return session


def test_a_session_is_received_in_order_alone_and_from_one_partition(client: ServiceBusClient) -> None:
    with client.get_queue_sender("order") as sender:
        for number in range(12):
            sender.send_messages(ServiceBusMessage(str(number), session_id=f"s{number % 3}"))
        sender.send_messages([ServiceBusMessage(f"batch {each}", session_id="s1") for each in range(3)])
        with pytest.raises(ServiceBusError, match="requires sessions"):
            sender.send_messages(ServiceBusMessage("no session"))
        with pytest.raises(ServiceBusError, match="requires sessions"):
            sender.send_messages(
                [ServiceBusMessage("a", session_id="s1"), ServiceBusMessage("b", partition_key="s1")]
            )
    with accept(client, "order", "s1") as receiver:
        session = session_of(receiver)
        assert session.session_id == "s1" and session.locked_until_utc is not None
        assert timedelta(seconds=30) < session.locked_until_utc - datetime.now(UTC) < timedelta(seconds=70)
        messages = receive(receiver, 7)
        assert [*map(str, messages)] == ["1", "4", "7", "10", "batch 0", "batch 1", "batch 2"]
        assert {each.session_id for each in messages} == {"s1"}
        assert len({(each.sequence_number or 0) >> 48 for each in messages}) == 1
        receiver.abandon_message(messages[1])
        receiver.dead_letter_message(messages[2], reason="unwanted")
        for each in (messages[0], *messages[3:]):
            receiver.complete_message(each)
        (again,) = receive(receiver, 1)
        assert (str(again), again.delivery_count) == ("4", 1)
        receiver.complete_message(again)
    with client.get_queue_receiver("order", sub_queue=ServiceBusSubQueue.DEAD_LETTER) as dead_letters:
        (dead,) = receive(dead_letters, 1)
        assert (str(dead), dead.session_id, dead.dead_letter_reason) == ("7", "s1", "unwanted")


def test_a_session_that_is_held_is_refused_and_free_when_its_receiver_closes(
    client: ServiceBusClient,
) -> None:
    send(client, "held", "a", "one", "two", "three")
    with accept(client, "held", "a") as holder:
        first, _ = receive(holder, 2)
        holder.complete_message(first)
        with pytest.raises(SessionCannotBeLockedError), accept(client, "held", "a"):
            pass
        with accept(client, "held", "other") as other:
            assert other.receive_messages(1, max_wait_time=0.5) == []
    with accept(client, "held", "a") as receiver:
        messages = receive(receiver, 2)
        assert [(str(each), each.delivery_count) for each in messages] == [("two", 0), ("three", 0)]
        for each in messages:
            receiver.complete_message(each)


def test_the_lock_of_a_session_is_renewed_and_without_that_lost(client: ServiceBusClient) -> None:
    send(client, "lost", "a", "one", "two")
    receiver = accept(client, "lost", "a")
    with receiver:
        receive(receiver, 1)
        session = session_of(receiver)
        before = session.locked_until_utc
        time.sleep(0.3)
        renewed = session.renew_lock()
        assert before is not None and before < renewed == session.locked_until_utc
        with pytest.raises(SessionLockLostError):
            while True:
                receiver.receive_messages(5, max_wait_time=LOCK_S + 2)
    assert datetime.now(UTC) >= renewed
    with accept(client, "lost", NEXT_AVAILABLE_SESSION) as another:
        counts = {str(each): each.delivery_count for each in receive(another, 2)}
        assert counts["one"] == 1, "it had been delivered"


def test_a_session_is_locked_for_as_long_as_asked(client: ServiceBusClient) -> None:
    """By an operation of our own, over the client's own management link."""
    send(client, "lost", "long", "one")

    def answer(status: int, message: Any, description: str, **_: Any) -> Any:
        assert status == 200, description
        return message.value

    with accept(client, "lost", "long") as receiver:
        ask: Any = receiver._mgmt_request_response_with_retry
        body = ask(b"partibus:renew-lock", {"session-id": "long", "duration": 600_000}, answer)
        assert body[b"expiration"] > (time.time() + 590) * 1000
        time.sleep(LOCK_S + 1)  # longer than the queue's lock duration
        with pytest.raises(SessionCannotBeLockedError):
            accept(client, "lost", "long").__enter__()
        body = ask(b"partibus:renew-lock", {"session-id": "long", "duration": 600_000}, answer)
        assert body[b"expiration"] > (time.time() + 590) * 1000


async def test_the_asyncio_client_renews_a_session_by_itself(broker: BrokerProcess) -> None:
    async with aio_client(broker.addresses.connection_string(), retry_total=0) as client:
        async with client.get_queue_sender("lost") as sender:
            for body in ("one", "two"):
                await sender.send_messages(ServiceBusMessage(body, session_id="renewed"))
        async with (
            AutoLockRenewer() as renewer,
            client.get_queue_receiver("lost", session_id="renewed") as receiver,
        ):
            session = receiver.session
            renewer.register(receiver, session, max_lock_renewal_duration=WITHIN_S)
            await asyncio.sleep(LOCK_S + 1)  # longer than the queue's lock duration
            await session.set_state("seen")
            found: list[str] = []
            while len(found) < 2:
                for message in await receiver.receive_messages(2 - len(found), max_wait_time=WITHIN_S):
                    found.append(str(message))
                    await receiver.complete_message(message)
            assert found == ["one", "two"] and await session.get_state() == b"seen"
            await session.set_state(None)


def test_each_free_session_is_accepted_once_and_then_there_is_none(client: ServiceBusClient) -> None:
    send_all(client, "next", *((f"s{number}", f"message {number}") for number in range(6)))
    receivers = [accept(client, "next", NEXT_AVAILABLE_SESSION, max_wait_time=20) for _ in range(6)]
    try:
        found = {}
        for receiver in receivers:
            (message,) = receive(receiver, 1)
            found[session_of(receiver).session_id] = str(message)
            receiver.complete_message(message)
        assert found == {f"s{number}": f"message {number}" for number in range(6)}
        with (
            pytest.raises(OperationTimeoutError),
            accept(client, "next", NEXT_AVAILABLE_SESSION, max_wait_time=1),
        ):
            pass
    finally:
        with ThreadPoolExecutor(6) as threads:
            list(threads.map(ServiceBusReceiver.close, receivers))


def test_a_receiver_that_waits_is_given_the_session_that_comes(client: ServiceBusClient) -> None:
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(
            accept(client, "waits", NEXT_AVAILABLE_SESSION, max_wait_time=WITHIN_S).__enter__
        )
        time.sleep(0.5)
        assert not waiting.done()
        send(client, "waits", "late", "here")
        with waiting.result(WITHIN_S) as receiver:
            assert session_of(receiver).session_id == "late"
            assert str(receive(receiver, 1)[0]) == "here"


def test_receivers_that_do_not_match_the_queue_are_refused(client: ServiceBusClient) -> None:
    with pytest.raises(ServiceBusError, match="requires sessions"), client.get_queue_receiver("mixed"):
        pass
    for session in ("a", NEXT_AVAILABLE_SESSION):
        with (
            pytest.raises(ServiceBusError, match="does not require sessions"),
            accept(client, "plain", session),
        ):
            pass
    with client.get_queue_receiver("mixed", sub_queue=ServiceBusSubQueue.DEAD_LETTER) as receiver:
        assert receiver.receive_messages(1, max_wait_time=0.5) == []


def test_a_deferred_message_is_received_and_settled_with_its_session(client: ServiceBusClient) -> None:
    send(client, "deferred", "a", "one", "two")
    with accept(client, "deferred", "a") as receiver:
        first, second = receive(receiver, 2)
        receiver.defer_message(first)
        receiver.complete_message(second)
        number = first.sequence_number
        assert number is not None
    with accept(client, "deferred", "b") as other, pytest.raises(MessageNotFoundError):
        other.receive_deferred_messages([number])
    with accept(client, "deferred", "a") as receiver:
        assert receiver.receive_messages(1, max_wait_time=0.5) == []
        (deferred,) = receiver.receive_deferred_messages([number])
        assert (str(deferred), deferred.session_id) == ("one", "a")
        receiver.complete_message(deferred)
        with pytest.raises(MessageNotFoundError):
            receiver.receive_deferred_messages([number])


def test_scheduled_messages_join_their_sessions_at_their_time(client: ServiceBusClient) -> None:
    due = datetime.now(UTC) + timedelta(seconds=3)
    later = [ServiceBusMessage(body, session_id=body[0]) for body in ("a later", "a never", "b later")]
    with client.get_queue_sender("later") as sender:
        numbers = sender.schedule_messages(later, due)
        assert numbers[0] >> 48 == numbers[1] >> 48, "in the partition of the session"
        sender.cancel_scheduled_messages(numbers[1])
        sender.send_messages(ServiceBusMessage("a now", session_id="a"))
    with accept(client, "later", NEXT_AVAILABLE_SESSION) as receiver:
        assert session_of(receiver).session_id == "a", "nothing of the other one is active"
        shown = receiver.peek_messages(10)
        assert [*map(str, shown)] == ["a later", "a now"] and shown[
            0
        ].state == ServiceBusMessageState.SCHEDULED
        found = receive(receiver, 2)
        assert [*map(str, found)] == ["a now", "a later"]
        assert found[1].enqueued_time_utc is not None and found[1].enqueued_time_utc >= due - timedelta(
            milliseconds=1
        )
        for message in found:
            receiver.complete_message(message)
    with accept(client, "later", NEXT_AVAILABLE_SESSION, max_wait_time=WITHIN_S) as receiver:
        assert session_of(receiver).session_id == "b"
        assert [*map(str, receive(receiver, 1))] == ["b later"]


def test_peek_shows_a_receiver_its_session_only(client: ServiceBusClient) -> None:
    send(client, "peeked", "a", "a1", "a2")
    send(client, "peeked", "b", "b1")
    send(client, "peeked", "a", "a3")
    with accept(client, "peeked", "a") as receiver:
        assert [*map(str, receiver.peek_messages(10))] == ["a1", "a2", "a3"]
        first, _ = receive(receiver, 2)
        receiver.defer_message(first)
        shown = receiver.peek_messages(10, sequence_number=1)
        assert [*map(str, shown)] == ["a1", "a2", "a3"]


def test_a_message_that_was_received_can_be_sent_again(client: ServiceBusClient) -> None:
    """The client sends the text of its annotations as binary. This needs an entity with one partition: the
    client sends sequence numbers as ints, and encodes none beyond 32 bits.
    """
    with client.get_queue_sender("again") as sender, accept(client, "again", "a") as receiver:
        sender.send_messages(ServiceBusMessage("x", session_id="a", partition_key="a"))
        for _ in range(2):
            (message,) = receive(receiver, 1)
            assert (message.session_id, message.partition_key, message.delivery_count) == ("a", "a", 0)
            receiver.complete_message(message)
            sender.send_messages(message)


def test_receive_and_delete_takes_the_messages_of_a_session(client: ServiceBusClient) -> None:
    send(client, "removed", "a", *"123")
    mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE
    with accept(client, "removed", "a", receive_mode=mode) as receiver:
        assert [*map(str, receive(receiver, 3))] == [*"123"]
    with accept(client, "removed", "a") as receiver:
        assert receiver.peek_messages(10) == []


def test_the_state_of_a_session_is_kept_until_it_is_cleared(client: ServiceBusClient) -> None:
    with accept(client, "states", "a") as receiver:
        session = session_of(receiver)
        assert session.get_state() is None
        session.set_state("first")
        session.set_state(b"\x00" * 100_000)
        with pytest.raises(ServiceBusError, match="maximum"):
            session.set_state(b"x" * (1024 * 1024 + 1))
    with accept(client, "states", "a") as receiver:
        session = session_of(receiver)
        assert session.get_state() == b"\x00" * 100_000
        session.set_state(None)
        assert session.get_state() is None
        session.set_state("again")
        session.set_state(b"")
        assert session.get_state() is None
    assert list(client.list_queue_sessions("states")) == []


def test_sessions_are_listed_with_messages_or_state_over_all_partitions_page_by_page(
    client: ServiceBusClient,
) -> None:
    assert list(client.list_queue_sessions("listed")) == []
    names = {f"s{number:03}" for number in range(104)}
    send_all(client, "listed", *((name, "message") for name in sorted(names)))
    before = datetime.now(UTC) - timedelta(minutes=5)
    assert list(client.list_queue_sessions("listed", state_updated_after=before)) == []
    with accept(client, "listed", "only a state") as receiver:
        session_of(receiver).set_state("here")
    with accept(client, "listed", "s007") as receiver:
        session_of(receiver).set_state("here too")
    found = list(client.list_queue_sessions("listed"))
    assert sorted(found) == sorted({*names, "only a state"}), "each once"
    changed = list(client.list_queue_sessions("listed", state_updated_after=before))
    assert sorted(changed) == ["only a state", "s007"]
    later = datetime.now(UTC) + timedelta(minutes=5)
    assert list(client.list_queue_sessions("listed", state_updated_after=later)) == []
