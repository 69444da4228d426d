"""The link to the coordinator, and links on which clients send and settle in transactions: real engine and
connection, with partitions that the tests answer for."""

from __future__ import annotations

from typing import Any

import pytest

from broker.base.errors import Reason
from broker.entities.descriptions import QueueSettings
from broker.entities.tiers import tier_of
from broker.message.stored import bare_message_offset
from broker.namespace.router import partition_of_key
from broker.operations.columns import DESTINATION
from broker.operations.general import Failed
from broker.operations.receiving import Locked
from broker.operations.settling import Abandon, Complete, DeadLetter, Defer
from broker.operations.transactions import Transact, Transacted
from protocol.codec import Described, Symbol, UByte, UInt, ULong
from tests.support import raw_amqp as raw
from tests.support.amqp_messages import DATA, message, sections
from tests.support.link_stack import Client, LinkStack, until
from tests.support.put_token import put
from tests.support.receiving import give, receiving
from tests.support.transactions import (
    Coordinator,
    condition_of,
    coordinator_attach,
    declare,
    discharge,
    outcome_of,
    state_of,
    value,
)

KEY = "k"


def keyed(text: bytes, key: str = KEY) -> bytes:
    return message(annotations={"x-opt-partition-key": key}, body=[text])


async def sending(partitions: int = 4, **given: Any) -> tuple[LinkStack, Client, Coordinator]:
    stack = LinkStack(partitions, **given)
    client = await stack.connect()
    coordinator = await Coordinator.attach(client)
    await client.sender(0)
    return stack, client, coordinator


async def locked(partitions: int = 4, count: int = 4) -> tuple[LinkStack, Client, Coordinator, Locked]:
    """A receiver that holds messages of partition 1."""
    stack, client = await receiving(count, partitions=partitions)
    coordinator = await Coordinator.attach(client)
    messages = give(stack, 1 if partitions > 1 else 0, count)
    await client.hear()
    return stack, client, coordinator, messages


def bodies(transact: Transact) -> list[bytes]:
    return [bytes(sections(each[bare_message_offset(each) :])[DATA]) for each in transact.send.messages]


def nothing_posted(stack: LinkStack) -> bool:
    return not any(part.has(Transact) for part in stack.parts)


# --- the coordinator's link ---------------------------------------------------------------------------------


async def test_the_attach_is_echoed_with_its_target_and_credit() -> None:
    client = await LinkStack().connect()
    attach, flow = await client.attach(coordinator_attach(0))
    assert attach.field(6).descriptor == 0x30 and flow.field(6) > 0


async def test_the_attach_of_the_net_client_is_accepted() -> None:
    """Its source has an address of its own and the distribution mode `move`; its target no capabilities."""
    client = await LinkStack().connect()
    fields = coordinator_attach(0)
    source = ["d6c2a1e0-5a3f-4f5e-9d0a-1f6a7c1f0b11", None, None, None, None, None, Symbol("move")]
    fields[5] = Described(ULong(raw.SOURCE), source)
    fields[6] = Described(ULong(0x30), [])
    attach, flow = await client.attach(fields)
    assert attach.field(5).value[0] == source[0] and flow.code == raw.FLOW
    client.transfer(0, 0, declare())
    assert outcome_of(await client.hear()).descriptor == 0x33


@pytest.mark.parametrize("settled_mode", [True, False])
async def test_a_settled_declare_is_refused(settled_mode: bool) -> None:
    client = await LinkStack().connect()
    fields = coordinator_attach(0)
    if settled_mode:
        fields[3] = UByte(1)
    frames = await client.attach(fields)
    if not settled_mode:
        assert frames[-1].code == raw.FLOW
        client.transfer(0, 0, declare(), settled=True)
        frames = await client.hear()
    assert frames[-1].code == raw.DETACH and raw.condition_of(frames[-1]) == "amqp:not-allowed"


async def test_a_coordinator_for_distributed_transactions_is_refused() -> None:
    client = await LinkStack().connect()
    frames = await client.attach(coordinator_attach(0, "amqp:distributed-transactions"))
    assert raw.condition_of(frames[-1]) == "amqp:not-implemented"


async def test_the_basic_tier_has_no_transactions() -> None:
    stack = LinkStack()
    stack.namespace.tier = tier_of("basic", partitioned=True, partitions=16)
    client = await stack.connect()
    frames = await client.attach(coordinator_attach(0))
    assert raw.condition_of(frames[-1]) == "amqp:not-allowed"


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xff",
        message(),
        value(None),
        value("declare"),
        value(Described(ULong(0x55), [])),
        value(Described(ULong(0x31), "text")),
        value(Described([1], [])),
        discharge(None),
        discharge("text"),
        discharge(b"txn", "yes"),
        value(Described(ULong(0x32), [])),
    ],
)
async def test_what_is_no_declare_or_discharge_is_rejected_and_its_credit_comes_back(payload: bytes) -> None:
    _, client, coordinator = await sending()
    coordinator.say(payload)
    frames = await client.hear()
    assert condition_of(outcome_of(frames))[0] == "amqp:decode-error"
    flow = [frame for frame in frames if frame.code == raw.FLOW][-1]
    assert flow.field(5) + flow.field(6) == 101
    assert await coordinator.declare()


async def test_transactions_have_different_ids_and_an_id_ends_with_its_transaction() -> None:
    _, _, coordinator = await sending()
    one, other = await coordinator.declare(), await coordinator.declare()
    assert one != other
    assert (await coordinator.discharge(one)).descriptor == raw.ACCEPTED
    assert (await coordinator.discharge(other, fail=True)).descriptor == raw.ACCEPTED
    for txn_id in (one, other, b"never", b""):
        for fail in (True, False, None):
            condition = condition_of(await coordinator.discharge(txn_id, fail))[0]
            assert condition == "amqp:transaction:unknown-id"


async def test_a_distributed_transaction_is_not_declared() -> None:
    _, client, coordinator = await sending()
    coordinator.say(declare(b"global"))
    assert condition_of(outcome_of(await client.hear()))[0] == "amqp:not-implemented"


async def test_declares_are_bounded_on_a_connection() -> None:
    _, client, coordinator = await sending(transactions_per_connection_max=2)
    first = await coordinator.declare()
    await coordinator.declare()
    coordinator.say(declare())
    assert condition_of(outcome_of(await client.hear()))[0] == "amqp:resource-limit-exceeded"
    await coordinator.discharge(first, fail=True)
    await coordinator.declare()


async def test_a_client_without_a_token_may_declare_few() -> None:
    stack = LinkStack()
    client = await stack.connect(raw.sasl_anonymous())
    coordinator = await Coordinator.attach(client)
    for _ in range(10):
        await coordinator.declare()
    coordinator.say(declare())
    assert condition_of(outcome_of(await client.hear()))[0] == "amqp:unauthorized-access"


async def test_clients_without_a_token_keep_no_client_from_declaring() -> None:
    stack = LinkStack(transactions_max=20)
    others = [await Coordinator.attach(await stack.connect(raw.sasl_anonymous())) for _ in range(3)]
    first, *_ = [await other.declare() for other in others for _ in range(10)][:1]
    assert stack.services.transactions.count == 2, "a tenth"
    client = await stack.connect()
    coordinator = await Coordinator.attach(client)
    for _ in range(18):
        await coordinator.declare()
    condition, _ = condition_of(await others[0].discharge(first))
    assert condition == "amqp:transaction:unknown-id"


# --- sending ------------------------------------------------------------------------------------------------


async def test_what_is_sent_is_accepted_at_once_and_stored_when_the_commit_is_durable() -> None:
    stack, client, coordinator = await sending()
    txn_id = await coordinator.declare()
    for number in range(3):
        coordinator.send(0, keyed(b"%d" % number), txn_id)
        outcome = outcome_of(await client.hear())
        assert outcome.descriptor == raw.TRANSACTIONAL and outcome.value[0] == txn_id
        assert outcome.value[1].descriptor == raw.ACCEPTED
    assert nothing_posted(stack)
    assert await coordinator.discharge(txn_id) is None, "durability rule 1"
    part = stack.parts[partition_of_key(KEY, 4)]
    transact, sink = part.take(Transact)
    assert bodies(transact) == [b"0", b"1", b"2"] and transact.settlements == []
    sink(Transacted(3, transact.cookie))
    assert outcome_of(await client.hear()).descriptor == raw.ACCEPTED
    meter = stack.metrics.entities["queue"]
    assert (meter.incoming_messages, meter.successful_requests) == (3, 3)
    assert (stack.services.transactions.bytes, stack.services.inflight.bytes) == (0, 0)


async def test_times_to_live_go_along() -> None:
    stack, _, coordinator = await sending(1)
    txn_id = await coordinator.declare()
    coordinator.send(0, message(), txn_id)
    coordinator.send(0, message(header=[None, None, UInt(5_000)]), txn_id)
    await coordinator.discharge(txn_id)
    assert stack.parts[0].take(Transact)[0].send.time_to_live_ms == [None, 5_000]


async def test_a_batch_goes_along_as_its_messages() -> None:
    stack, client, coordinator = await sending()
    txn_id = await coordinator.declare()
    coordinator.send(0, message(body=[keyed(b"1"), message(body=[b"2"])]), txn_id, batch=True)
    assert outcome_of(await client.hear()).descriptor == raw.TRANSACTIONAL
    await coordinator.discharge(txn_id)
    assert bodies(stack.parts[partition_of_key(KEY, 4)].take(Transact)[0]) == [b"1", b"2"]


async def test_messages_sent_settled_go_along_and_fail_the_transaction_silently() -> None:
    stack, client, coordinator = await sending()
    one, other = await coordinator.declare(), await coordinator.declare()
    coordinator.send(0, keyed(b"1"), one, settled=True)
    coordinator.send(0, keyed(b"2"), other, settled=True)
    coordinator.send(0, message(), other, settled=True)
    assert outcome_of(await client.hear()) is None
    assert condition_of(await coordinator.discharge(other))[0] == "amqp:transaction:rollback"
    assert await coordinator.discharge(one) is None
    assert bodies(stack.parts[partition_of_key(KEY, 4)].take(Transact)[0]) == [b"1"]


async def test_the_credit_of_what_is_sent_comes_back() -> None:
    _, client, coordinator = await sending(link_credit=4)
    txn_id = await coordinator.declare()
    for number in range(20):
        coordinator.send(0, keyed(b"%d" % number), txn_id)
    flows = [frame for frame in await client.hear() if frame.code == raw.FLOW and frame.field(4) == 1]
    assert flows[-1].field(5) + flows[-1].field(6) >= 20 + 4 - 1


async def test_a_roll_back_stores_nothing() -> None:
    stack, _, coordinator = await sending()
    txn_id = await coordinator.declare()
    coordinator.send(0, keyed(b"1"), txn_id)
    assert (await coordinator.discharge(txn_id, fail=True)).descriptor == raw.ACCEPTED
    assert nothing_posted(stack) and stack.services.transactions.bytes == 0


@pytest.mark.parametrize("how", ["detach", "connection"])
async def test_the_end_of_the_coordinators_link_rolls_back(how: str) -> None:
    stack, client, coordinator = await sending()
    other = await Coordinator.attach(client, 8)
    other.number = coordinator.number
    txn_id = await coordinator.declare()
    coordinator.send(0, keyed(b"1"), txn_id)
    await client.hear()
    if how == "detach":
        client.detach(coordinator.handle)
        await client.hear()
        other.number = coordinator.number
        assert condition_of(await other.discharge(txn_id))[0] == "amqp:transaction:unknown-id"
    else:
        client.connection.connection_lost()
    assert nothing_posted(stack)
    assert (stack.services.transactions.count, stack.services.transactions.bytes) == (0, 0)


async def test_a_commit_that_the_partition_refuses_is_rejected_as_a_roll_back() -> None:
    stack, client, coordinator = await sending()
    txn_id = await coordinator.declare()
    coordinator.send(0, keyed(b"1"), txn_id)
    await coordinator.discharge(txn_id)
    stack.part_of(Transact).answer(Transact, lambda each: Failed(Reason.DISK_FULL, "no room", each.cookie))
    condition, description = condition_of(outcome_of(await client.hear()))
    assert condition == "amqp:transaction:rollback" and "no room" in description
    assert (stack.services.transactions.bytes, stack.services.inflight.bytes) == (0, 0)


async def test_an_outcome_after_the_end_of_the_link_reaches_nobody() -> None:
    stack, client, coordinator = await sending()
    txn_id = await coordinator.declare()
    coordinator.send(0, keyed(b"1"), txn_id)
    await coordinator.discharge(txn_id)
    client.detach(coordinator.handle)
    await client.hear()
    stack.part_of(Transact).answer(Transact, lambda each: Transacted(1, each.cookie))
    assert outcome_of(await client.hear()) is None


# --- what fails a transaction -------------------------------------------------------------------------------


async def failed_by(stack: LinkStack, client: Client, coordinator: Coordinator, txn_id: bytes) -> str:
    """Check that the operation just said was refused, and all of its transaction with it. Gives the
    description of the refusal."""
    outcome = outcome_of(await client.hear())
    description = condition_of(outcome)[1]
    assert stack.services.transactions.bytes == 0
    coordinator.send(0, keyed(b"later"), txn_id)
    assert condition_of(outcome_of(await client.hear()))[0] == "amqp:transaction:rollback"
    condition, why = condition_of(await coordinator.discharge(txn_id))
    assert condition == "amqp:transaction:rollback" and description in why
    assert nothing_posted(stack)
    return description


async def test_a_message_without_a_key_fails_it_on_a_partitioned_entity() -> None:
    stack, client, coordinator = await sending()
    txn_id = await coordinator.declare()
    coordinator.send(0, keyed(b"1"), txn_id)
    await client.hear()
    coordinator.send(0, message(), txn_id)
    assert "without a key" in await failed_by(stack, client, coordinator, txn_id)


@pytest.mark.parametrize("sessions", [False, True])
async def test_two_keys_fail_it_on_a_partitioned_entity(sessions: bool) -> None:
    def of(key: str) -> bytes:
        return message(properties=[None] * 10 + [key]) if sessions else keyed(b"x", key)

    stack, client, coordinator = await sending()
    txn_id = await coordinator.declare()
    coordinator.send(0, of("one"), txn_id)
    await client.hear()
    same = next(f"k{n}" for n in range(99) if partition_of_key(f"k{n}", 4) == partition_of_key("one", 4))
    coordinator.send(0, of(same), txn_id)
    description = await failed_by(stack, client, coordinator, txn_id)
    assert "'one'" in description and f"'{same}'" in description


async def test_an_empty_session_id_is_a_session() -> None:
    stack, client, coordinator = await sending(settings=QueueSettings(requires_session=True))
    txn_id = await coordinator.declare()
    for _ in range(2):
        coordinator.send(0, message(properties=[None] * 10 + [""]), txn_id)
        assert outcome_of(await client.hear()).descriptor == raw.TRANSACTIONAL
    await coordinator.discharge(txn_id)
    assert len(stack.parts[partition_of_key("", 4)].take(Transact)[0].send.messages) == 2


async def test_keys_do_not_matter_on_an_entity_with_one_partition() -> None:
    stack, client, coordinator = await sending(1)
    txn_id = await coordinator.declare()
    for payload in (
        message(),
        keyed(b"x", "one"),
        keyed(b"x", "two"),
        message(properties=[None] * 10 + ["s"]),
    ):
        coordinator.send(0, payload, txn_id)
        assert outcome_of(await client.hear()).descriptor == raw.TRANSACTIONAL
    await coordinator.discharge(txn_id)
    assert len(stack.parts[0].take(Transact)[0].send.messages) == 4


async def test_sends_to_another_entity_go_through_the_first_one_of_the_amqp_session() -> None:
    stack, client, coordinator = await sending()
    stack.add_queue("other", 4)
    await client.sender(1, "other")
    txn_id = await coordinator.declare()
    for handle in (1, 0, 1):
        coordinator.send(handle, keyed(b"1"), txn_id)
        assert outcome_of(await client.hear()).descriptor == raw.TRANSACTIONAL
    await coordinator.discharge(txn_id)
    transact, _ = stack.part_of(Transact).take(Transact)
    assert len(transact.send.messages) == 1 and transact.transfers is not None
    assert transact.transfers.columns == {DESTINATION: [b"other", b"other"]}


async def test_two_entities_fail_it_if_their_links_do_not_share_the_coordinators_amqp_session() -> None:
    stack, client, coordinator = await sending()
    stack.add_queue("other", 4)
    client.say(
        raw.frame(raw.BEGIN, raw.begin_fields(), channel=1),
        raw.frame(raw.ATTACH, raw.sender_attach(0, "other"), channel=1),
    )
    await client.hear()
    txn_id = await coordinator.declare()
    coordinator.send(0, keyed(b"1"), txn_id)
    await client.hear()
    fields = raw.transfer_fields(0, 0, state=state_of(txn_id))
    client.say(raw.frame(raw.TRANSFER, fields, keyed(b"1"), channel=1))
    description = await failed_by(stack, client, coordinator, txn_id)
    assert "'queue'" in description and "'other'" in description


@pytest.mark.parametrize("is_permitted", [True, False])
async def test_the_first_entity_of_the_amqp_session_passes_nothing_on_without_a_right_to_it(
    is_permitted: bool,
) -> None:
    stack = LinkStack(1)
    client = await stack.connect(raw.sasl_anonymous())
    await put(client, stack, "queue", seconds=600 if is_permitted else 60)
    await client.sender(0)
    for handle, name in enumerate(("b", "c"), 1):
        stack.add_queue(name, 1)
        await put(client, stack, name)
        await client.sender(handle, name)
    coordinator = await Coordinator.attach(client)
    stack.clock.advance(60_000)
    client.connection.clock_was_set()
    assert len(await client.heard(raw.DETACH)) == (0 if is_permitted else 1)
    txn_id = await coordinator.declare()
    for handle in (1, 2):
        coordinator.send(handle, message(body=[b"x"]), txn_id)
    outcome = await coordinator.discharge(txn_id)
    assert stack.parts[0].has(Transact) is is_permitted
    if not is_permitted:
        condition, text = condition_of(outcome)
        assert condition == "amqp:transaction:rollback" and "Unauthorized" in text and "/queue'" in text


async def test_too_many_messages_fail_it() -> None:
    stack, client, coordinator = await sending(transaction_messages_max=3)
    txn_id = await coordinator.declare()
    for number in range(3):
        coordinator.send(0, keyed(b"%d" % number), txn_id)
        assert outcome_of(await client.hear()).descriptor == raw.TRANSACTIONAL
    coordinator.send(0, keyed(b"3"), txn_id)
    description = await failed_by(stack, client, coordinator, txn_id)
    assert "4 messages" in description and "limit is 3" in description


async def test_too_many_bytes_on_a_connection_fail_it() -> None:
    _, client, coordinator = await sending(connection_transaction_bytes_max=100_000)
    one, other = await coordinator.declare(), await coordinator.declare()
    coordinator.send(0, keyed(bytes(60_000)), one)
    assert outcome_of(await client.hear()).descriptor == raw.TRANSACTIONAL
    coordinator.send(0, keyed(bytes(60_000)), other)
    assert "limit is 100000" in condition_of(outcome_of(await client.hear()))[1]
    await coordinator.discharge(one, fail=True)
    third = await coordinator.declare()
    coordinator.send(0, keyed(bytes(60_000)), third)
    assert outcome_of(await client.hear()).descriptor == raw.TRANSACTIONAL


async def test_a_message_that_is_too_large_fails_it() -> None:
    stack, client, coordinator = await sending(settings=QueueSettings(max_message_size_kb=1))
    txn_id = await coordinator.declare()
    coordinator.send(0, keyed(b"1"), txn_id)
    await client.hear()
    coordinator.send(0, keyed(bytes(stack.queue.message_bytes_max)), txn_id, settled=True)
    assert outcome_of(await client.hear()) is None
    assert condition_of(await coordinator.discharge(txn_id))[0] == "amqp:transaction:rollback"


async def test_lasting_too_long_fails_it() -> None:
    stack, client, coordinator = await sending(transaction_timeout_ms=500)
    quiet, txn_id = await coordinator.declare(), await coordinator.declare()
    coordinator.send(0, keyed(b"1"), txn_id)
    await client.hear()
    await until(lambda: stack.services.transactions.bytes == 0)
    condition, description = condition_of(await coordinator.discharge(txn_id))
    assert condition == "amqp:transaction:rollback" and "0.5 seconds" in description
    assert nothing_posted(stack)
    await until(lambda: stack.services.transactions.count == 0)
    condition, description = condition_of(await coordinator.discharge(quiet))
    assert condition == "amqp:transaction:unknown-id" and "0.5 seconds" in description


async def test_a_link_that_the_broker_closes_fails_it() -> None:
    """What the client sent settled since then is dropped, and it does not know."""
    stack = LinkStack(4)
    client = await stack.connect()
    coordinator = await Coordinator.attach(client)
    fields = raw.sender_attach(0, "queue")
    fields[3] = UByte(2)
    await client.attach(fields)
    txn_id = await coordinator.declare()
    coordinator.send(0, keyed(b"1"), txn_id)
    await client.hear()
    (link,) = (each for each in client.connection.engine.links() if each.target_address)
    link.context.queue_ended(stack.namespace.missing("queue"))
    await client.hear()
    assert condition_of(await coordinator.discharge(txn_id))[0] == "amqp:transaction:rollback"


# --- settling -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sent", "fields", "kind"),
    [
        (raw.ACCEPTED, [], Complete),
        (raw.REJECTED, [], DeadLetter),
        (raw.MODIFIED, [True, False], Abandon),
        (raw.MODIFIED, [True, True], Defer),
    ],
    ids=["complete", "dead-letter", "abandon", "defer"],
)
@pytest.mark.parametrize("settled", [False, True])
async def test_a_settlement_is_answered_at_once_and_carried_out_with_the_commit(
    sent: int, fields: list[Any], kind: type[Any], settled: bool
) -> None:
    stack, client, coordinator, messages = await locked()
    txn_id = await coordinator.declare()
    client.dispose(0, 1, state_of(txn_id, raw.outcome(sent, fields)), settled=settled)
    answers = await client.heard(raw.DISPOSITION)
    assert len(answers) == (0 if settled else 2)
    for answer in answers:
        assert answer.field(3) is True and answer.field(4).descriptor == raw.TRANSACTIONAL
        assert answer.field(4).value[0] == txn_id and answer.field(4).value[1].descriptor == sent
    client.dispose(2, 2, state_of(txn_id, raw.outcome(sent, fields)), settled=settled)
    await client.hear()
    assert await coordinator.discharge(txn_id) is None
    transact, sink = stack.parts[1].take(Transact)
    (settlement,) = transact.settlements
    assert isinstance(settlement, kind) and list(settlement.tokens) == messages.tokens[:3]
    sink(Transacted(0, transact.cookie))
    assert outcome_of(await client.hear()).descriptor == raw.ACCEPTED
    assert stack.services.transactions.bytes == 0


async def test_a_send_and_settlements_of_one_partition_go_together() -> None:
    stack, client, coordinator, messages = await locked()
    key = next(f"k{n}" for n in range(99) if partition_of_key(f"k{n}", 4) == 1)
    await client.sender(1)
    txn_id = await coordinator.declare()
    client.dispose(0, 0, state_of(txn_id, raw.outcome(raw.ACCEPTED)))
    coordinator.send(1, keyed(b"new", key), txn_id)
    client.dispose(1, 1, state_of(txn_id, raw.outcome(raw.REJECTED)))
    await client.hear()
    await coordinator.discharge(txn_id)
    transact, _ = stack.parts[1].take(Transact)
    assert bodies(transact) == [b"new"]
    assert [list(each.tokens) for each in transact.settlements] == [[each] for each in messages.tokens[:2]]


async def test_settlements_of_two_partitions_fail_it_and_the_messages_stay_locked() -> None:
    stack, client = await receiving(8)
    coordinator = await Coordinator.attach(client)
    give(stack, 1, 1)
    give(stack, 2, 1)
    await client.hear()
    txn_id = await coordinator.declare()
    client.dispose(0, 1, state_of(txn_id, raw.outcome(raw.ACCEPTED)))
    answers = await client.heard(raw.DISPOSITION)
    assert {answer.field(4).descriptor for answer in answers} == {raw.REJECTED}
    condition, description = condition_of(answers[0].field(4))
    assert condition == "amqp:not-allowed" and "partition 1" in description and "partition 2" in description
    assert condition_of(await coordinator.discharge(txn_id))[0] == "amqp:transaction:rollback"
    assert not any(part.has(kind) for part in stack.parts for kind in (Transact, Complete))


async def test_a_key_of_another_partition_than_the_settled_messages_fails_it() -> None:
    _, client, coordinator, _ = await locked()
    key = next(f"k{n}" for n in range(99) if partition_of_key(f"k{n}", 4) == 3)
    await client.sender(0)
    txn_id = await coordinator.declare()
    client.dispose(0, 0, state_of(txn_id, raw.outcome(raw.ACCEPTED)))
    await client.hear()
    coordinator.send(0, keyed(b"new", key), txn_id)
    condition, description = condition_of(outcome_of(await client.hear()))
    assert condition == "amqp:not-allowed"
    assert f"'{key}'" in description and "partition 1" in description and "partition 3" in description


@pytest.mark.parametrize("outcome", [raw.RELEASED, None])
async def test_a_transaction_releases_no_messages(outcome: int | None) -> None:
    stack, client, coordinator, _ = await locked()
    txn_id = await coordinator.declare()
    client.dispose(0, 0, state_of(txn_id, None if outcome is None else raw.outcome(outcome)))
    assert condition_of(outcome_of(await client.hear()))[0] == "amqp:not-allowed"
    assert condition_of(await coordinator.discharge(txn_id))[0] == "amqp:transaction:rollback"
    assert nothing_posted(stack)


async def test_after_a_roll_back_the_locks_are_left_alone() -> None:
    stack, client, coordinator, _ = await locked()
    txn_id = await coordinator.declare()
    client.dispose(0, 3, state_of(txn_id, raw.outcome(raw.ACCEPTED)))
    await client.hear()
    before = [len(part.posted) for part in stack.parts]
    assert (await coordinator.discharge(txn_id, fail=True)).descriptor == raw.ACCEPTED
    assert [len(part.posted) for part in stack.parts] == before
