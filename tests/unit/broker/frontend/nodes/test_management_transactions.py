"""Requests to `$management` that are part of a transaction (AMQP contract 8.2)."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from broker.access.addresses import NODE_MANAGEMENT
from broker.base.errors import Refused
from broker.entities.descriptions import MAIN, QueueSettings
from broker.operations.browsing import Peek
from broker.operations.interface import Operation
from broker.operations.scheduling import Promised, PromiseNumbers
from broker.operations.sessions import ListSessions
from broker.operations.settling import Complete, Defer, Renewed, RenewLocks
from broker.operations.transactions import Transact
from protocol.codec import Array, TypeCode
from tests.support import raw_amqp as raw
from tests.support.amqp_messages import APPLICATION, VALUE, message, section, sections
from tests.support.link_stack import LinkStack
from tests.support.locked import locked
from tests.support.management_bench import bench, down, status
from tests.support.transactions import Coordinator, outcome_of


def uuids(tokens: list[bytes]) -> Array:
    return Array(TypeCode.UUID, [uuid.UUID(bytes_le=token) for token in tokens])


async def test_a_disposition_waits_for_the_commit() -> None:
    work = await bench(4)
    coordinator = await Coordinator.attach(work.client)
    txn_id = await coordinator.declare()
    tokens = locked(2, 3).tokens
    for some, how in ((tokens[:2], "completed"), (tokens[2:], "defered")):
        body = {"lock-tokens": uuids(some), "disposition-status": how}
        assert status(await work.ask("update-disposition", body, txn_id=txn_id)) == (200, None)
    assert not work.stack.parts[2].posted
    await coordinator.discharge(txn_id)
    transact, _ = work.stack.parts[2].take(Transact)
    assert list(transact.settlements) == [
        Complete(tokens[:2], subqueue=MAIN),
        Defer(tokens[2:], subqueue=MAIN),
    ]


async def test_messages_are_scheduled_and_cancelled_with_the_commit() -> None:
    work = await bench(1)
    coordinator = await Coordinator.attach(work.client)
    txn_id = await coordinator.declare()
    body: dict[str, Any] = {"messages": [{"message": message(body=[each])} for each in (b"x", b"y")]}
    answers = {PromiseNumbers: lambda number, each: Promised(7, each.cookie)}
    response = await work.ask("schedule-message", body, answers, txn_id=txn_id)
    assert status(response) == (200, None) and response.body["sequence-numbers"].values == [7, 8]
    body = {"sequence-numbers": [5]}
    assert status(await work.ask("cancel-scheduled-message", body, txn_id=txn_id)) == (200, None)
    assert not work.stack.parts[0].has(Transact)
    await coordinator.discharge(txn_id)
    transact, _ = work.stack.parts[0].take(Transact)
    assert transact.scheduled is not None and len(transact.scheduled.messages) == 2
    assert (transact.promised, transact.cancelled) == ([7, 8], [5])


async def test_a_refused_request_fails_the_transaction() -> None:
    work = await bench(4)
    coordinator = await Coordinator.attach(work.client)
    for operation, body in (
        ("update-disposition", {"lock-tokens": uuids([bytes(16)]), "disposition-status": "eaten"}),
        ("receive-by-sequence-number", {"sequence-numbers": [1], "receiver-settle-mode": 0}),
        ("set-session-state", {"session-id": "s", "session-state": b"x"}),
        ("batch-delete-messages", {"message-count": 1, "enqueued-time-utc": 0}),
        ("no-such-operation", {}),
        ("cancel-scheduled-message", {"sequence-numbers": []}),
        ("schedule-message", {"messages": []}),
        ("schedule-message", {"messages": [{"message": message(body=[b"x"])}]}),  # without a key
    ):
        txn_id = await coordinator.declare()
        assert status(await work.ask(operation, body, txn_id=txn_id))[0] in (400, 501)
        with pytest.raises(Refused):
            work.client.connection.transactions.commit(txn_id, lambda why: None)


@pytest.mark.parametrize("own", ["com.microsoft", "partibus"])
async def test_a_lock_is_renewed_at_once(own: str) -> None:
    work = await bench(4)
    txn_id = await (await Coordinator.attach(work.client)).declare()
    answers = {RenewLocks: lambda number, each: Renewed(1_000, each.cookie)}
    body = {"lock-tokens": uuids(locked(1).tokens), "duration": 1_000}
    assert status(await work.ask(f"{own}:renew-lock", body, answers, txn_id=txn_id)) == (200, None)


async def test_what_only_reads_or_locks_is_carried_out_at_once() -> None:
    work = await bench(1, settings=QueueSettings(requires_session=True))
    coordinator = await Coordinator.attach(work.client)
    txn_id = await coordinator.declare()
    of_session = {"session-id": "s"}
    reads: tuple[tuple[str, dict[str, Any], type[Operation]], ...] = (
        ("peek-message", {"from-sequence-number": 0, "message-count": 1}, Peek),
        ("get-message-sessions", {"last-updated-time": 0, "skip": 0, "top": 5}, ListSessions),
    )
    for name, body, asked in reads:
        response = await work.ask(name, body, {asked: down}, txn_id=txn_id)
        assert status(response)[1] == "com.microsoft:server-busy", name
    for name, body in (
        ("get-session-state", of_session),
        ("receive-by-sequence-number", {**of_session, "sequence-numbers": [1]}),
        ("renew-session-lock", of_session),
    ):
        response = await work.ask(name, body, txn_id=txn_id)
        assert status(response)[1] == "com.microsoft:session-lock-lost", name
    assert (await coordinator.discharge(txn_id)).descriptor == raw.ACCEPTED


async def test_a_request_in_an_unknown_transaction_is_refused_in_its_response() -> None:
    work = await bench(4)
    body = {"lock-tokens": uuids(locked(1).tokens), "disposition-status": "completed"}
    response = await work.ask("update-disposition", body, txn_id=b"never")
    assert status(response) == (400, "amqp:transaction:unknown-id")


async def test_the_transfer_of_a_request_is_answered_in_the_transaction() -> None:
    stack = LinkStack()
    client = await stack.connect()
    coordinator = await Coordinator.attach(client)
    await client.sender(0, f"queue/{NODE_MANAGEMENT}")
    await client.receiver(1, address=f"queue/{NODE_MANAGEMENT}", credit=1)
    txn_id = await coordinator.declare()
    body = {"lock-tokens": uuids(locked(1).tokens), "disposition-status": "completed"}
    operation = {"operation": "com.microsoft:update-disposition"}
    coordinator.send(0, section(APPLICATION, operation) + section(VALUE, body), txn_id)
    frames = await client.hear()
    outcome = outcome_of(frames)
    assert outcome.descriptor == raw.TRANSACTIONAL and outcome.value[0] == txn_id
    (response,) = (frame for frame in frames if frame.code == raw.TRANSFER)
    assert sections(response.payload)[APPLICATION]["statusCode"] == 200
