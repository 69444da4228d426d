"""Frames in the shapes of the official client for .NET, which does not run here, against the running
broker.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator

import pytest

from protocol.codec import Array, Described, Int, Long, Symbol, Timestamp, TypeCode, UInt, encode
from tests.support import raw_amqp as raw
from tests.support.broker_process import BrokerProcess, queue
from tests.support.dotnet_client import (
    Delivered,
    DotNetClient,
    Link,
    batch,
    described,
    message,
    sections_of,
)

ACCEPTED = raw.outcome(raw.ACCEPTED)
TICKS_AT_EPOCH, TICKS_PER_MS = 621_355_968_000_000_000, 10_000
NON_EXCLUSIVE = 0x0000_0013_7000_000E
QUEUES = (
    *("folder/sub", "settled", "spoilt", "kinds", "managed", "scheduled", "bulk"),
    *("first", "second", "scope", "moved-from", "moved-to"),
)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    queues = [queue(name, PartitionCount=4) for name in QUEUES]
    queues += [queue(name, PartitionCount=4, RequiresSession=True) for name in ("sessions", "shared")]
    with BrokerProcess(tmp_path_factory.mktemp("dotnet"), queues) as process:
        yield process
        assert process.errors == []


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[DotNetClient]:
    with DotNetClient(broker.addresses.amqp_port) as connected:
        yield connected


def open_pair(client: DotNetClient, entity: str) -> tuple[Link, Link]:
    """A sender and a receiver."""
    client.authorize(entity)
    return client.sender(entity), client.receiver(entity)


def test_messages_and_batches_are_sent_received_and_completed(client: DotNetClient) -> None:
    sender, receiver = open_pair(client, "folder/sub")
    assert sender.attach.field(10) == 1024 * 1024, "the largest message, which this client checks itself"
    assert client.send(sender, message(b"one", "id-1")) == ACCEPTED
    three = [message(b"batched %d" % number, f"b-{number}", partition_key="k") for number in range(3)]
    assert client.send(sender, batch(*three, message_id="b-0"), batched=True) == ACCEPTED
    found = client.receive(receiver, 4)
    assert sorted(each.body for each in found) == [b"batched 0", b"batched 1", b"batched 2", b"one"]
    for each in found:
        assert each.annotations["x-opt-locked-until"] is not None and len(each.tag) == 16
        assert client.settle(each, ACCEPTED) == ACCEPTED
    assert client.ask("folder/sub", "com.microsoft:peek-message", peek_body())[0] == 204


def peek_body() -> dict[str, object]:
    return {"from-sequence-number": Long(0), "message-count": Int(10)}


def test_abandoning_deferring_and_dead_lettering_are_told_apart(client: DotNetClient) -> None:
    sender, receiver = open_pair(client, "settled")
    client.send(sender, message(b"x", "1", partition_key="k"))
    (first,) = client.receive(receiver, 1)
    changes = {Symbol("changed"): "yes"}
    abandoned = raw.outcome(raw.MODIFIED, [None, None, changes])
    assert client.settle(first, abandoned).descriptor == raw.MODIFIED
    (again,) = client.receive(receiver, 1)
    assert (again.delivery_count, again.application_properties) == (1, {"changed": "yes"})
    deferred = raw.outcome(raw.MODIFIED, [None, True])
    assert client.settle(again, deferred).descriptor == raw.MODIFIED
    number = again.annotations["x-opt-sequence-number"]
    body = {"sequence-numbers": Array(TypeCode.LONG, [Long(number)]), "receiver-settle-mode": 1}
    status, found, _ = client.ask("settled", "com.microsoft:receive-by-sequence-number", body, receiver)
    assert status == 200
    (entry,) = found["messages"]
    disposition = {
        "disposition-status": "abandoned",
        "lock-tokens": Array(TypeCode.UUID, [entry["lock-token"]]),
    }
    assert client.ask("settled", "com.microsoft:update-disposition", disposition, receiver)[0] == 200
    client.send(sender, message(b"y", "2"))
    (other,) = client.receive(receiver, 1)
    # Without a reason, this client's dead-lettering has no error.
    assert client.settle(other, raw.outcome(raw.REJECTED)) == raw.outcome(raw.REJECTED)
    client.authorize("settled/$DeadLetterQueue")
    (dead,) = client.receive(client.receiver("settled/$DeadLetterQueue"), 1)
    assert dead.body == b"y" and dead.application_properties == {}


def test_reasons_of_dead_letters_come_with_the_error_or_in_a_request(client: DotNetClient) -> None:
    """In a request for messages that were deferred."""
    sender, receiver = open_pair(client, "spoilt")
    for number in ("1", "2"):
        client.send(sender, message(b"x", number, partition_key="k"))
    first, second = client.receive(receiver, 2)
    reasons = {"DeadLetterReason": "broken", "DeadLetterErrorDescription": "why"}
    info = {Symbol(name): value for name, value in {**reasons, "seen": Int(1)}.items()}
    error = described(raw.ERROR, [Symbol("com.microsoft:dead-letter"), None, info])
    assert client.settle(first, raw.outcome(raw.REJECTED, [error])).descriptor == raw.REJECTED
    assert client.settle(second, raw.outcome(raw.MODIFIED, [None, True])).descriptor == raw.MODIFIED
    place = Long(second.annotations["x-opt-sequence-number"])
    body = {"sequence-numbers": Array(TypeCode.LONG, [place]), "receiver-settle-mode": UInt(1)}
    status, found, _ = client.ask("spoilt", "com.microsoft:receive-by-sequence-number", body, receiver)
    assert status == 200
    disposition = {
        "disposition-status": "suspended",
        "lock-tokens": Array(TypeCode.UUID, [found["messages"][0]["lock-token"]]),
        "deadletter-reason": "broken",
        "deadletter-description": "why",
        "properties-to-modify": {"seen": Int(2)},
    }
    assert client.ask("spoilt", "com.microsoft:update-disposition", disposition, receiver)[0] == 200
    client.authorize("spoilt/$DeadLetterQueue")
    dead = client.receive(client.receiver("spoilt/$DeadLetterQueue"), 2)
    assert [each.application_properties for each in dead] == [
        {**reasons, "seen": Int(1)},
        {**reasons, "seen": Int(2)},
    ]


def test_values_of_types_that_only_this_client_has_are_kept(client: DotNetClient) -> None:
    sender, receiver = open_pair(client, "kinds")
    values = {
        "span": Described(Symbol("com.microsoft:timespan"), Long(36_000_000_000)),
        "uri": Described(Symbol("com.microsoft:uri"), "https://example.com/"),
        "offset": Described(Symbol("com.microsoft:datetime-offset"), Long(638_000_000_000_000_000)),
        "id": uuid.UUID(int=7),
    }
    sections = [described(0x73, ["1"]), described(0x74, values), described(0x75, b"x")]
    client.send(sender, b"".join(map(encode, sections)))
    (found,) = client.receive(receiver, 1)
    assert found.application_properties == values


def test_locks_are_renewed_and_errors_have_a_symbol_and_an_int(client: DotNetClient) -> None:
    sender, receiver = open_pair(client, "managed")
    client.send(sender, message(b"x", "1"))
    (found,) = client.receive(receiver, 1)
    tokens = {"lock-tokens": Array(TypeCode.UUID, [found.lock_token])}
    status, answer, _ = client.ask("managed", "com.microsoft:renew-lock", tokens, receiver)
    (until,) = answer["expirations"].values
    assert status == 200 and isinstance(until, Timestamp) and until > time.time() * 1000
    assert client.settle(found, ACCEPTED) == ACCEPTED
    status, _, properties = client.ask("managed", "com.microsoft:renew-lock", tokens, receiver)
    assert (status, properties["errorCondition"]) == (410, "com.microsoft:message-lock-lost")


def test_messages_are_scheduled_and_cancelled(client: DotNetClient) -> None:
    sender, receiver = open_pair(client, "scheduled")
    soon, late = (Timestamp(int((time.time() + after_s) * 1000)) for after_s in (0.5, 3_600))
    entries = [
        {"message": message(b"soon", "1", scheduled_enqueue_time=soon), "message-id": "1"},
        {"message": message(b"late", "2", scheduled_enqueue_time=late), "message-id": "2"},
    ]
    body = {"messages": entries}
    status, answer, _ = client.ask("scheduled", "com.microsoft:schedule-message", body, sender)
    assert status == 200
    numbers = Array(TypeCode.LONG, [Long(answer["sequence-numbers"].values[1])])
    cancelled = {"sequence-numbers": numbers}
    assert client.ask("scheduled", "com.microsoft:cancel-scheduled-message", cancelled, sender)[0] == 200
    (found,) = client.receive(receiver, 1)
    assert found.body == b"soon"
    client.settle(found, ACCEPTED)
    assert client.ask("scheduled", "com.microsoft:peek-message", peek_body())[0] == 204


def test_messages_are_deleted_in_bulk_until_none_is_left(client: DotNetClient) -> None:
    client.authorize("bulk")
    sender = client.sender("bulk")
    for number in range(8):
        client.send(sender, message(b"x", str(number)))
    asked = {"message-count": Int(5), "enqueued-time-utc": Timestamp(int((time.time() + 60) * 1000))}
    operation = "com.microsoft:batch-delete-messages"
    for deleted in (5, 3):
        status, answer, _ = client.ask("bulk", operation, asked)
        assert (status, answer) == (200, {"message-count": deleted})
    assert client.ask("bulk", operation, asked)[0] == 204


def test_a_session_is_accepted_by_name_or_as_the_next_one(client: DotNetClient) -> None:
    client.authorize("sessions")
    sender = client.sender("sessions")
    for session in ("a", "b"):
        client.send(sender, message(session.encode(), session, session))
    named = client.receiver("sessions", session="a")
    (found,) = client.receive(named, 1)
    assert found.body == b"a"
    following = client.receiver("sessions", session=None)
    for link, session in ((named, "a"), (following, "b")):
        assert link.attach.field(5).value[7] == {"com.microsoft:session-filter": session}
        ticks = link.attach.field(13)["com.microsoft:locked-until-utc"]
        assert (ticks - TICKS_AT_EPOCH) / TICKS_PER_MS > time.time() * 1000
    (other,) = client.receive(following, 1)
    assert other.body == b"b"
    state = {"session-id": "a", "session-state": b"kept"}
    assert client.ask("sessions", "com.microsoft:set-session-state", state, named)[0] == 200
    status, answer, _ = client.ask("sessions", "com.microsoft:get-session-state", {"session-id": "a"}, named)
    assert (status, answer["session-state"]) == (200, b"kept")
    state["session-state"] = b""
    assert client.ask("sessions", "com.microsoft:set-session-state", state, named)[0] == 200
    status, answer, _ = client.ask("sessions", "com.microsoft:get-session-state", {"session-id": "a"}, named)
    assert (status, answer["session-state"]) == (200, None)
    status, answer, _ = client.ask("sessions", "com.microsoft:renew-session-lock", {"session-id": "a"}, named)
    assert status == 200 and isinstance(answer["expiration"], Timestamp)
    assert client.settle(found, ACCEPTED) == client.settle(other, ACCEPTED) == ACCEPTED


def test_receivers_share_a_session_with_a_filter_that_is_not_exclusive(client: DotNetClient) -> None:
    client.authorize("shared")
    sender = client.sender("shared")
    for number in range(2):
        client.send(sender, message(b"%d" % number, str(number), "s"))
    first = client.receiver("shared", session=described(NON_EXCLUSIVE, ["s", None]), credit=1)
    granted = first.attach.field(5).value[7]["com.microsoft:session-filter"]
    session, token = granted.value
    assert (granted.descriptor, session) == (NON_EXCLUSIVE, "s") and isinstance(token, uuid.UUID)
    (one,) = client.receive(first, 1)
    second = client.receiver("shared", session=described(NON_EXCLUSIVE, ["s", token]), credit=1)
    assert second.attach.field(5).value[7]["com.microsoft:session-filter"].value == ["s", token]
    (two,) = client.receive(second, 1)
    assert [one.body, two.body] == [b"0", b"1"]
    assert client.settle(one, ACCEPTED) == client.settle(two, ACCEPTED) == ACCEPTED


@pytest.mark.parametrize("fails", [False, True], ids=["commit", "roll back"])
def test_a_transaction_sends_and_settles_over_links_of_one_session(
    broker: BrokerProcess, fails: bool
) -> None:
    entity = "first" if fails else "second"
    with DotNetClient(broker.addresses.amqp_port, shares_session=True) as client:
        sender, receiver = open_pair(client, entity)
        client.send(sender, message(b"before", "1", partition_key="k"))
        (found,) = client.receive(receiver, 1)
        coordinator = client.coordinator()
        txn = client.declare(coordinator)
        in_transaction = described(raw.TRANSACTIONAL, [txn, ACCEPTED])
        assert client.send(sender, message(b"after", "2", partition_key="k"), txn=txn) == in_transaction
        assert client.settle(found, ACCEPTED, txn=txn) == in_transaction
        assert client.discharge(coordinator, txn, fail=fails) == ACCEPTED
        status, answer, _ = client.ask(entity, "com.microsoft:peek-message", peek_body(), receiver)
        bodies = [sections_of(each["message"])[0x75] for each in answer["messages"]]
        assert (status, bodies) == (200, [b"before"] if fails else [b"after"])


def test_a_transaction_takes_from_one_entity_and_sends_to_another(broker: BrokerProcess) -> None:
    """The messages go through the entity of the first link; the key in it is an annotation."""
    with DotNetClient(broker.addresses.amqp_port, shares_session=True) as client:
        source, receiver = open_pair(client, "moved-from")
        target, there = open_pair(client, "moved-to")
        client.send(source, message(b"before", "1", partition_key="k"))
        coordinator = client.coordinator()

        def move(*, fails: bool) -> Delivered:
            (found,) = client.receive(receiver, 1)
            txn = client.declare(coordinator)
            in_transaction = described(raw.TRANSACTIONAL, [txn, ACCEPTED])
            assert client.settle(found, ACCEPTED, txn=txn) == in_transaction
            for payload in (
                message(b"moved 0", "1", via_partition_key="k"),
                message(b"moved 1", "2", partition_key="other"),
            ):
                assert client.send(target, payload, txn=txn) == in_transaction
            assert client.discharge(coordinator, txn, fail=fails) == ACCEPTED
            return found

        tokens = Array(TypeCode.UUID, [move(fails=True).lock_token])
        assert client.ask("moved-to", "com.microsoft:peek-message", peek_body(), there)[0] == 204
        # The link has settled the delivery, so this client names the lock.
        abandoned = {"disposition-status": "abandoned", "lock-tokens": tokens}
        disposes = "com.microsoft:update-disposition"
        assert client.ask("moved-from", disposes, abandoned, receiver)[0] == 200
        move(fails=False)
        assert sorted(each.body for each in client.receive(there, 2)) == [b"moved 0", b"moved 1"]
        assert client.ask("moved-from", "com.microsoft:peek-message", peek_body(), receiver)[0] == 204


def test_requests_that_read_or_lock_do_not_disturb_the_transaction_they_are_made_in(
    broker: BrokerProcess,
) -> None:
    """In a transaction scope, this client makes every request a part of the transaction."""
    with DotNetClient(broker.addresses.amqp_port, shares_session=True) as client:
        sender, receiver = open_pair(client, "scope")
        for number in ("1", "2"):
            client.send(sender, message(b"before", number, partition_key="k"))
        found, deferred = client.receive(receiver, 2)
        assert client.settle(deferred, raw.outcome(raw.MODIFIED, [None, True])).descriptor == raw.MODIFIED
        coordinator = client.coordinator()
        txn = client.declare(coordinator)
        client.settle(found, ACCEPTED, txn=txn)
        place = Long(deferred.annotations["x-opt-sequence-number"])
        by_number = {"sequence-numbers": Array(TypeCode.LONG, [place]), "receiver-settle-mode": UInt(1)}
        ask = "com.microsoft:receive-by-sequence-number"
        status, answer, _ = client.ask("scope", ask, by_number, receiver, txn=txn)
        assert status == 200 and sections_of(answer["messages"][0]["message"])[0x75] == b"before"
        tokens = {"lock-tokens": Array(TypeCode.UUID, [found.lock_token])}
        assert client.ask("scope", "com.microsoft:renew-lock", tokens, receiver, txn=txn)[0] == 200
        assert client.ask("scope", ask, by_number, receiver, txn=txn)[0] == 404, "it is locked"
        status, answer, _ = client.ask("scope", "com.microsoft:peek-message", peek_body(), receiver, txn=txn)
        assert status == 200 and len(answer["messages"]) == 2
        assert client.discharge(coordinator, txn, fail=False) == ACCEPTED
        status, answer, _ = client.ask("scope", "com.microsoft:peek-message", peek_body(), receiver)
        assert status == 200 and len(answer["messages"]) == 1
