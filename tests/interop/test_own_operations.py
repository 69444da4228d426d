"""Operations of our own, through the management links of unchanged clients: Qpid Proton and the official
Python client (AMQP contract 7.5)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceiver, ServiceBusSubQueue
from proton import Delivery, symbol, timestamp

from tests.interop.own_management import longs, management, uuids
from tests.interop.proton_blocking import Receiver, connected
from tests.support.azure_client import azure_client
from tests.support.broker_process import BrokerProcess, queue

WITHIN_S = 30.0
DEAD = "/$deadletterqueue"
DEAD_LETTERS = ServiceBusSubQueue.DEAD_LETTER
KEYS = [f"key {number}" for number in range(8)]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    names = (
        "deleting",
        "purging",
        "redriving",
        "filtering",
        "renewing",
        "refusing",
        "official",
        "delaying",
        "deferring",
        "rescheduling",
        "counting",
        "batch-deleting",
        "misspelling",
        "instructing",
        "ready",
    )
    queues = [queue(name, PartitionCount=4, Partitioned=True) for name in names]
    queues[4]["Properties"]["LockDuration"] = "PT1S"  # type: ignore[index]
    queues.append(queue("sessions", RequiresSession=True, RequiresDuplicateDetection=True, PartitionCount=4))
    queues.append(queue("purged-sessions", RequiresSession=True, PartitionCount=4))
    with BrokerProcess(tmp_path_factory.mktemp("own"), queues) as running:
        yield running


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[ServiceBusClient]:
    with azure_client(broker.addresses.connection_string()) as connected_client:
        yield connected_client


def send(client: ServiceBusClient, name: str, count: int = len(KEYS), **given: Any) -> None:
    with client.get_queue_sender(name) as sender:
        for number in range(count):
            key = KEYS[number % len(KEYS)]
            sender.send_messages(ServiceBusMessage(f"{number}", partition_key=key, **given))


def peek(client: ServiceBusClient, name: str, **given: Any) -> dict[str, Any]:
    with client.get_queue_receiver(name, **given) as receiver:
        return {str(message): message for message in receiver.peek_messages(100, sequence_number=1)}


def bury(client: ServiceBusClient, name: str, reason: str, count: int = len(KEYS)) -> None:
    """Send messages and dead-letter them."""
    send(client, name, count, application_properties={"colour": "red"})
    with client.get_queue_receiver(name) as receiver:
        left = count
        while left:
            messages = receiver.receive_messages(left, max_wait_time=WITHIN_S)
            assert messages
            for message in messages:
                receiver.dead_letter_message(message, reason=reason, error_description="no use")
            left -= len(messages)


def test_exactly_the_named_messages_are_deleted(broker: BrokerProcess, client: ServiceBusClient) -> None:
    send(client, "deleting")
    numbers = {body: each.sequence_number for body, each in peek(client, "deleting").items()}
    with client.get_queue_receiver("deleting") as receiver:
        (locked,) = receiver.receive_messages(1, max_wait_time=WITHIN_S)
        (deferred,) = receiver.receive_messages(1, max_wait_time=WITHIN_S)
        receiver.defer_message(deferred)
        kept = next(body for body in numbers if body not in (str(locked), str(deferred)))
        named = [number for body, number in numbers.items() if body != kept]
        with connected(broker.addresses) as connection, management(connection, "deleting") as node:
            status, body = node.ask("partibus:delete-messages", sequence_numbers=longs([*named, 99 << 48]))
            assert status == 200
            assert body["locked"] == [locked.sequence_number] and body["missing"] == [99 << 48]
            assert sorted(body["deleted"]) == sorted(set(named) - {locked.sequence_number})
            assert node.ask("partibus:count-messages") == (
                200,
                {"active": 2, "locked": 1, "deferred": 0, "scheduled": 0}
                | {"size-in-bytes": node.ask("partibus:count-messages")[1]["size-in-bytes"]},
            )
        receiver.complete_message(locked)
    assert list(peek(client, "deleting")) == [kept]


def test_messages_kept_ready_for_a_receiver_do_not_count_as_locked(
    broker: BrokerProcess, client: ServiceBusClient
) -> None:
    send(client, "counting")
    with client.get_queue_receiver("counting") as receiver:
        (seen,) = receiver.receive_messages(1, max_wait_time=WITHIN_S)
        with connected(broker.addresses) as connection, management(connection, "counting") as node:
            counted = node.ask("partibus:count-messages")[1]
            assert (counted["active"], counted["locked"]) == (len(KEYS), 1)
            receiver.complete_message(seen)
            (seen,) = receiver.receive_messages(1, max_wait_time=WITHIN_S)
            counted = node.ask("partibus:count-messages")[1]
            assert (counted["active"], counted["locked"]) == (len(KEYS) - 1, 1)


def test_messages_kept_ready_for_a_receiver_are_deleted_in_bulk(
    broker: BrokerProcess, client: ServiceBusClient
) -> None:
    send(client, "batch-deleting")
    with client.get_queue_receiver("batch-deleting") as receiver:
        (seen,) = receiver.receive_messages(1, max_wait_time=WITHIN_S)
        with connected(broker.addresses) as connection, management(connection, "batch-deleting") as node:
            asked = {"message_count": 3, "enqueued_time_utc": timestamp(int((time.time() + 3600) * 1000))}
            answers = [node.ask("com.microsoft:batch-delete-messages", **asked) for _ in range(4)]
            assert [body.get("message-count") for _, body in answers] == [3, 3, 1, None]
        receiver.complete_message(seen)
    assert peek(client, "batch-deleting") == {}


def test_a_purge_takes_the_states_and_the_age_asked_for(
    broker: BrokerProcess, client: ServiceBusClient
) -> None:
    send(client, "purging")
    with client.get_queue_receiver("purging") as receiver:
        (deferred,) = receiver.receive_messages(1, max_wait_time=WITHIN_S)
        receiver.defer_message(deferred)
    with connected(broker.addresses) as connection, management(connection, "purging") as node:
        old = timestamp(int((time.time() - 3600) * 1000))
        assert node.ask("partibus:purge-messages", enqueued_time_utc=old) == (200, {"message-count": 0})
        assert node.ask("partibus:purge-messages", states=["deferred"])[1]["message-count"] == 1
        status, body = node.ask("partibus:purge-messages", states=["active"], message_count=3)
        assert (status, body["message-count"]) == (200, 3)
        purged = 3
        while "next-sequence-number" in body:
            body = node.ask("partibus:purge-messages", from_sequence_number=body["next-sequence-number"])[1]
            purged += body["message-count"]
        assert purged == len(KEYS) - 1
    assert peek(client, "purging") == {}


def test_dead_letters_kept_ready_for_a_receiver_are_redriven(
    broker: BrokerProcess, client: ServiceBusClient
) -> None:
    bury(client, "ready", "broken")
    numbers = [each.sequence_number for each in peek(client, "ready", sub_queue=DEAD_LETTERS).values()]
    with client.get_queue_receiver("ready", sub_queue=DEAD_LETTERS) as receiver:
        (seen,) = receiver.receive_messages(1, max_wait_time=WITHIN_S)
        with connected(broker.addresses) as connection, management(connection, "ready" + DEAD) as node:
            answer = node.ask("partibus:redrive-messages", sequence_numbers=longs(numbers))[1]
        assert answer["missing"] == [seen.sequence_number]
        receiver.complete_message(seen)
    assert len(peek(client, "ready")) == len(numbers) - 1


def test_named_dead_letters_are_redriven(broker: BrokerProcess, client: ServiceBusClient) -> None:
    redrive_named(broker, client)


def test_partitions_in_another_process_do_the_same(tmp_path: Path) -> None:
    queues = [queue("redriving", PartitionCount=4, Partitioned=True)]
    with BrokerProcess(tmp_path, queues, environment={"PARTIBUS_PARTITION_PROCESS": "true"}) as split:
        with azure_client(split.addresses.connection_string()) as client:
            redrive_named(split, client)
        with connected(split.addresses) as connection:
            with management(connection, "redriving" + DEAD) as node:
                assert node.ask("partibus:purge-messages")[1] == {"message-count": len(KEYS) - 3}
                assert node.ask("partibus:redrive-messages")[1] == {"message-count": 0}
            with management(connection, "redriving") as node:
                assert node.ask("partibus:delete-messages", sequence_numbers=[1])[1]["missing"] == [1]
                assert node.ask("partibus:deliver-scheduled-messages", sequence_numbers=[1])[1][
                    "missing"
                ] == [1]
                assert node.ask("partibus:count-messages")[1]["active"] == 0


def test_one_session_is_purged_or_deleted_and_the_others_stay(
    broker: BrokerProcess, client: ServiceBusClient
) -> None:
    with client.get_queue_sender("purged-sessions") as sender:
        for session_id in "abc":
            for number in range(3):
                sender.send_messages(ServiceBusMessage(f"{session_id}{number}", session_id=session_id))
    with client.get_queue_receiver("purged-sessions", session_id="a") as receiver:
        (held,) = receiver.receive_messages(1, max_wait_time=WITHIN_S)
        with connected(broker.addresses) as connection:
            with management(connection, "purged-sessions") as node:
                body = node.ask("partibus:purge-messages", session_id="a")[1]
                assert body == {"message-count": 2}, "the third is locked"
                soon = timestamp(int((time.time() + 3600) * 1000))
                some = {"message_count": 9, "enqueued_time_utc": soon, "session_id": "b"}
                assert node.ask("com.microsoft:batch-delete-messages", **some) == (200, {"message-count": 3})
                assert node.ask("com.microsoft:batch-delete-messages", **some | {"session_id": "x"})[0] == 204
                assert node.ask("partibus:count-messages")[1]["active"] == 4
            with management(connection, "refusing") as node:
                for operation in ("partibus:purge-messages", "com.microsoft:batch-delete-messages"):
                    status, error = node.ask(operation, session_id="a")
                    assert (status, error["condition"]) == (400, "com.microsoft:argument-error")
        receiver.complete_message(held)
    with client.get_queue_receiver("purged-sessions", session_id="c") as receiver:
        assert len(receiver.peek_messages(9)) == 3


def test_scheduled_messages_are_given_another_time_or_delivered_now(
    broker: BrokerProcess, client: ServiceBusClient
) -> None:
    later = datetime.now(UTC) + timedelta(hours=2)
    with client.get_queue_sender("rescheduling") as sender:
        messages = [ServiceBusMessage(key, partition_key=key, message_id=key) for key in KEYS]
        numbers = sender.schedule_messages(messages, later)
    assert len({number >> 48 for number in numbers}) > 1, "the keys belong to several partitions"
    now, kept = numbers[:-2], numbers[-2:]
    with connected(broker.addresses) as connection, management(connection, "rescheduling") as node:
        body = node.ask("partibus:deliver-scheduled-messages", sequence_numbers=longs([*now, 99 << 48]))[1]
        assert body == {"delivered": now, "missing": [99 << 48]}
        at = timestamp(int(later.timestamp() * 1000) + 3_600_000)
        asked = {"sequence_numbers": longs(kept), "scheduled_enqueue_time": at}
        assert node.ask("partibus:reschedule-messages", **asked)[1] == {"rescheduled": kept, "missing": []}
    with client.get_queue_receiver("rescheduling") as receiver:
        found: list[str] = []
        while len(found) < len(now):
            for message in receiver.receive_messages(len(now), max_wait_time=WITHIN_S):
                found.append(str(message))
                receiver.complete_message(message)
        assert sorted(found) == sorted(KEYS[:-2])
        waiting = receiver.peek_messages(9, sequence_number=1)
        assert sorted(each.sequence_number or 0 for each in waiting) == sorted(kept)
        assert {
            int(each.enqueued_time_utc.timestamp() * 1000) for each in waiting if each.enqueued_time_utc
        } == {int(at)}
    with connected(broker.addresses) as connection, management(connection, "rescheduling") as node:
        body = node.ask("partibus:deliver-scheduled-messages", sequence_numbers=longs(now))[1]
        assert body == {"delivered": [], "missing": now}, "they are active"


def test_a_redriven_message_keeps_its_session_and_is_no_duplicate(
    broker: BrokerProcess, client: ServiceBusClient
) -> None:
    with client.get_queue_sender("sessions") as sender:
        sender.send_messages(ServiceBusMessage("a", session_id="s", message_id="1"))
    with client.get_queue_receiver("sessions", session_id="s") as receiver:
        (message,) = receiver.receive_messages(1, max_wait_time=WITHIN_S)
        receiver.dead_letter_message(message, reason="broken")
    with connected(broker.addresses) as connection, management(connection, "sessions" + DEAD) as node:
        assert node.ask("partibus:redrive-messages") == (200, {"message-count": 1})
    with client.get_queue_receiver("sessions", session_id="s") as receiver:
        (again,) = receiver.receive_messages(1, max_wait_time=WITHIN_S)
        assert (str(again), again.message_id, again.delivery_count) == ("a", "1", 0)
        assert again.sequence_number != message.sequence_number
        receiver.complete_message(again)


def redrive_named(broker: BrokerProcess, client: ServiceBusClient) -> None:
    bury(client, "redriving", "broken")
    dead = peek(client, "redriving", sub_queue=DEAD_LETTERS)
    named = [dead[body].sequence_number for body in ("1", "2", "3")]
    with connected(broker.addresses) as connection, management(connection, "redriving" + DEAD) as node:
        status, body = node.ask("partibus:redrive-messages", sequence_numbers=longs([*named, 5 << 48]))
        assert (status, body["message-count"], body["missing"]) == (200, 3, [5 << 48])
        assert sorted(body["redriven"]) == sorted(named)
        shown = peek(client, "redriving")
        assert set(shown) == {"1", "2", "3"}
        assert {each.sequence_number for each in shown.values()} == set(body["sequence-numbers"])
        assert not set(body["sequence-numbers"]) & set(named)
    with client.get_queue_receiver("redriving") as receiver:
        for _ in range(3):
            (message,) = receiver.receive_messages(1, max_wait_time=WITHIN_S)
            assert message.delivery_count == 0 and message.dead_letter_reason is None
            assert message.application_properties == {b"colour": b"red"}
            receiver.complete_message(message)
    assert len(peek(client, "redriving", sub_queue=DEAD_LETTERS)) == len(KEYS) - 3


def test_dead_letters_are_redriven_by_reason_in_slices_and_survive_a_kill(
    broker: BrokerProcess, client: ServiceBusClient
) -> None:
    bury(client, "filtering", "broken", 6)
    bury(client, "filtering", "late", 2)
    with connected(broker.addresses) as connection, management(connection, "filtering" + DEAD) as node:
        redriven, body = 0, {"next-sequence-number": 0}
        while "next-sequence-number" in body:
            start = body["next-sequence-number"]
            status, body = node.ask(
                "partibus:redrive-messages",
                deadletter_reason="broken",
                message_count=2,
                from_sequence_number=start,
            )
            assert status == 200 and body["message-count"] <= 2
            redriven += body["message-count"]
        assert redriven == 6
    broker.kill()
    broker.start()
    with azure_client(broker.addresses.connection_string()) as again:
        assert len(peek(again, "filtering")) == 6
        left = peek(again, "filtering", sub_queue=DEAD_LETTERS)
        assert [each.dead_letter_reason for each in left.values()] == ["late", "late"]


def test_a_lock_is_renewed_for_as_long_as_asked(broker: BrokerProcess, client: ServiceBusClient) -> None:
    send(client, "renewing", 1)
    with client.get_queue_receiver("renewing") as receiver:
        (message,) = receiver.receive_messages(1, max_wait_time=WITHIN_S)
        with connected(broker.addresses) as connection, management(connection, "renewing") as node:
            before_ms = time.time() * 1000
            tokens = uuids([message.lock_token])
            status, body = node.ask("partibus:renew-lock", lock_tokens=tokens, duration=600_000)
            assert status == 200 and body["expirations"][0] >= before_ms + 599_000
            assert node.ask("partibus:renew-lock", lock_tokens=tokens, duration=3_600_001)[0] == 400
            time.sleep(1.2)  # longer than the queue's lock duration
            assert node.ask("partibus:count-messages")[1]["locked"] == 1
            completed = {"disposition_status": "completed", "lock_tokens": tokens}
            assert node.ask("com.microsoft:update-disposition", **completed)[0] == 200
    assert peek(client, "renewing") == {}


def test_an_abandoned_message_comes_back_after_its_delay_even_after_a_kill(
    broker: BrokerProcess, client: ServiceBusClient
) -> None:
    """Once over the management node, and once as an outcome on the link, with the broker killed meanwhile."""
    send(client, "delaying", 1)
    with client.get_queue_receiver("delaying") as receiver:
        (message,) = receiver.receive_messages(1, max_wait_time=WITHIN_S)
        with connected(broker.addresses) as connection, management(connection, "delaying") as node:
            abandoned = {"disposition_status": "abandoned", "lock_tokens": uuids([message.lock_token])}
            delay = {"partibus:delay": 1_000}
            assert (
                node.ask("com.microsoft:update-disposition", **abandoned, properties_to_modify=delay)[0]
                == 200
            )
            assert node.ask("partibus:count-messages")[1]["locked"] == 1
        (again,) = receiver.receive_messages(1, max_wait_time=WITHIN_S)
        assert (again.sequence_number, again.delivery_count) == (message.sequence_number, 1)
        assert again.application_properties is None
        receiver.abandon_message(again)
    with connected(broker.addresses) as connection:
        link = Receiver(connection, "delaying")
        (received,) = link.receive(1)
        received.delivery.local.annotations = {symbol("partibus:delay"): 3_000}
        received.delivery.local.failed = True
        began = time.monotonic()
        link.settle(received, Delivery.MODIFIED)
    broker.kill()
    broker.start()
    with (
        azure_client(broker.addresses.connection_string()) as restarted,
        restarted.get_queue_receiver("delaying") as receiver,
    ):
        (last,) = receiver.receive_messages(1, max_wait_time=WITHIN_S)
        assert (last.sequence_number, last.delivery_count) == (message.sequence_number, 3)
        assert time.monotonic() - began > 2.9
        receiver.complete_message(last)


def test_a_refused_abandon_leaves_the_message_locked(broker: BrokerProcess, client: ServiceBusClient) -> None:
    send(client, "delaying", 1)
    with connected(broker.addresses) as connection, management(connection, "delaying") as node:
        link = Receiver(connection, "delaying")
        (received,) = link.receive(1)
        received.delivery.local.annotations = {symbol("partibus:delay"): -1}
        received.delivery.local.failed = True
        with pytest.raises(AssertionError, match="refused"):
            link.settle(received, Delivery.MODIFIED)
        assert node.ask("partibus:count-messages")[1]["locked"] == 1
        completed = {"disposition_status": "completed", "lock_tokens": uuids([received.lock_token])}
        assert node.ask("com.microsoft:update-disposition", **completed)[0] == 200


def large_ones(client: ServiceBusClient, receiver: ServiceBusReceiver) -> list[int]:
    """Defer five messages of almost 1 MiB in several partitions; their sequence numbers."""
    with client.get_queue_sender("deferring") as sender:
        for number in range(5):
            sender.send_messages(ServiceBusMessage("x" * 1_000_000, partition_key=KEYS[number]))
    numbers: list[int] = []
    while len(numbers) < 5:
        for message in receiver.receive_messages(5, max_wait_time=WITHIN_S):
            receiver.defer_message(message)
            assert message.sequence_number is not None
            numbers.append(message.sequence_number)
    return numbers


def test_deferred_messages_of_several_partitions_are_received_together(
    broker: BrokerProcess, client: ServiceBusClient
) -> None:
    send(client, "deferring")
    with client.get_queue_receiver("deferring") as receiver:
        numbers: list[Any] = []
        while len(numbers) < len(KEYS):
            for message in receiver.receive_messages(len(KEYS), max_wait_time=WITHIN_S):
                receiver.defer_message(message)
                numbers.append(message.sequence_number)
        assert len({number >> 48 for number in numbers}) > 1
        with connected(broker.addresses) as connection, management(connection, "deferring") as node:
            named = {"sequence_numbers": longs([*numbers, numbers[0] + 1_000])}
            status, error = node.ask("com.microsoft:receive-by-sequence-number", **named)
            assert (status, error["condition"]) == (404, "com.microsoft:message-not-found")
            large = large_ones(client, receiver)
            named = {"sequence_numbers": longs(large)}
            status, error = node.ask("com.microsoft:receive-by-sequence-number", **named)
            assert (status, error["condition"]) == (400, "com.microsoft:argument-error")
            assert node.ask("partibus:count-messages")[1]["locked"] == 0
        for some in (large[:4], large[4:]):
            found = receiver.receive_deferred_messages(some)
            assert [each.sequence_number for each in found] == some
            for message in found:
                receiver.complete_message(message)
        numbers.reverse()
        found = receiver.receive_deferred_messages(numbers)  # none was locked by the refused request
        assert [each.sequence_number for each in found] == numbers
        for message in found:
            receiver.complete_message(message)
    assert peek(client, "deferring") == {}


def test_requests_that_make_no_sense_are_refused_and_change_nothing(
    broker: BrokerProcess, client: ServiceBusClient
) -> None:
    send(client, "refusing", 2)
    with connected(broker.addresses) as connection:
        with management(connection, "refusing") as node:
            assert node.ask("partibus:redrive-messages")[1]["condition"] == "amqp:not-allowed"
            for operation, body in (
                ("delete-messages", {}),
                ("delete-messages", {"sequence_numbers": longs([])}),
                ("purge-messages", {"states": ["gone"]}),
                ("purge-messages", {"message_count": 0}),
                ("purge-messages", {"message_count": 4_001}),
                ("purge-messages", {"enqueued_time_utc": "yesterday"}),
                ("renew-lock", {"duration": 1}),
            ):
                status, error = node.ask(f"partibus:{operation}", **body)
                assert (status, error["condition"]) == (400, "com.microsoft:argument-error"), operation
        with management(connection, "refusing" + DEAD) as node:
            assert node.ask("partibus:redrive-messages", deadletter_reason=5)[0] == 400
    assert len(peek(client, "refusing")) == 2


def test_the_official_client_makes_the_same_requests(client: ServiceBusClient) -> None:
    """Python's client sends any operation over its own management link."""
    bury(client, "official", "broken")

    def answer(status: int, message: Any, description: str, **_: Any) -> Any:
        assert status == 200, description
        return message.value

    with client.get_queue_receiver("official", sub_queue=DEAD_LETTERS) as receiver:
        ask: Any = receiver._mgmt_request_response_with_retry
        assert ask(b"partibus:count-messages", {}, answer)[b"active"] == len(KEYS)
        body = ask(b"partibus:redrive-messages", {"deadletter-reason": "broken"}, answer)
        assert body == {b"message-count": len(KEYS)}
    assert set(peek(client, "official")) == set(map(str, range(len(KEYS))))


def test_a_misspelt_field_is_refused_and_touches_no_message(client: ServiceBusClient) -> None:
    bury(client, "misspelling", "broken", 2)
    send(client, "misspelling", 2)

    def refused(field: bytes) -> Any:
        def answer(status: int, message: Any, description: bytes, **_: Any) -> None:
            assert (status, field in description) == (400, True), (status, description)

        return answer

    with client.get_queue_receiver("misspelling") as receiver:
        ask: Any = receiver._mgmt_request_response_with_retry
        ask(b"partibus:purge-messages", {"state": ["scheduled"]}, refused(b"'state'"))
    with client.get_queue_receiver("misspelling", sub_queue=DEAD_LETTERS) as receiver:
        ask = receiver._mgmt_request_response_with_retry
        fields = {"dead-letter-reason": "another"}
        ask(b"partibus:redrive-messages", fields, refused(b"'dead-letter-reason'"))
    assert len(peek(client, "misspelling")) == 2
    assert len(peek(client, "misspelling", sub_queue=DEAD_LETTERS)) == 2


@pytest.mark.parametrize(
    ("status", "instruction"),
    [("defered", "partibus:delay"), ("suspended", "partibus:delay"), ("abandoned", "partibus:dealy")],
)
def test_a_settlement_refuses_a_property_of_ours_that_it_does_not_have(
    client: ServiceBusClient, status: str, instruction: str
) -> None:
    send(client, "instructing", 1)

    def answer(code: int, message: Any, description: bytes, **_: Any) -> None:
        assert (code, instruction.encode() in description) == (400, True), (code, description)

    with client.get_queue_receiver("instructing") as receiver:
        (message,) = receiver.receive_messages(1, max_wait_time=WITHIN_S)
        ask: Any = receiver._mgmt_request_response_with_retry
        request = {
            "disposition-status": status,
            "lock-tokens": [message.lock_token],
            "properties-to-modify": {instruction: 5_000},
        }
        ask(b"com.microsoft:update-disposition", request, answer)
        receiver.complete_message(message)  # it is still locked
    assert peek(client, "instructing") == {}
