"""Transactions as the engine passes them on: coordinators, messages and outcomes with a transactional state,
and the answers to them (AMQP 1.0 §4)."""

from __future__ import annotations

from typing import Any

import pytest
from proton import Connection, Delivery, Message, Sender, Terminus, Transport, symbol, ulong
from proton import Described as Wrapped

from protocol.codec import Array, Described, Symbol, TypeCode, ULong, decode_all, encode
from protocol.events import (
    ConnectionOpened,
    CreditGranted,
    DeliveriesUpdated,
    ErrorCondition,
    Event,
    LinkAttached,
    MessagesReceived,
    MessageTooLarge,
    Outcome,
    TransactionalState,
)
from protocol.links import Link
from tests.support import raw_amqp as raw
from tests.support.engine_frames import assert_has_three_fields, detach, disposition, tags, transfer
from tests.support.engine_peer import EnginePeer, message, of, only

COORDINATOR, DECLARE, DISCHARGE, DECLARED = 0x30, 0x31, 0x32, 0x33
TXN, OTHER = b"transaction-1", b"transaction-2"
LOCAL = Array(TypeCode.SYMBOL, [Symbol("amqp:local-transactions")])


def state(txn_id: object = TXN, outcome: object = None) -> Described:
    return raw.outcome(raw.TRANSACTIONAL, [txn_id, outcome] if outcome is not None else [txn_id])


def request(code: int, fields: list[Any]) -> bytes:
    """A message to a coordinator: an amqp-value (§4.2)."""
    return b"\x00\x53\x77" + encode(Described(ULong(code), fields))


def states(peer: EnginePeer) -> list[tuple[int, int, bool, Any]]:
    """The dispositions that the engine writes: first and last delivery-id, whether settled, and the state."""
    return [
        (
            frame.field(1),
            frame.field(1) if frame.field(2) is None else frame.field(2),
            frame.field(3),
            frame.field(4),
        )
        for frame in peer.heard(raw.DISPOSITION)
    ]


# --- coordinators -------------------------------------------------------------------------------------------


def coordinator(peer: EnginePeer, handle: int = 7) -> Link:
    fields = raw.sender_attach(handle, None)
    fields[6] = Described(ULong(COORDINATOR), [LOCAL])
    link = only(peer.say(raw.frame(raw.ATTACH, fields)), LinkAttached).link
    peer.engine.accept_link(link, max_message_bytes=4_096)
    peer.engine.grant(link, 10)
    return link


def test_a_link_to_a_coordinator_can_be_accepted_with_its_target_and_capabilities(peer: EnginePeer) -> None:
    link = coordinator(peer)
    assert link.incoming and link.target_is_coordinator and link.target_address is None
    assert peer.engine.node_capabilities(link) == ("amqp:local-transactions",)
    (answer,) = peer.heard(raw.ATTACH)
    assert answer.field(6) == Described(ULong(COORDINATOR), [LOCAL])


def test_a_declare_and_a_discharge_are_messages_of_the_coordinators_link(peer: EnginePeer) -> None:
    link = coordinator(peer)
    peer.hear()
    requests = [request(DECLARE, []), request(DISCHARGE, [TXN, False])]
    event = only(
        peer.say(*(transfer(7, number, each) for number, each in enumerate(requests))), MessagesReceived
    )
    assert event.link is link and event.payloads == requests and event.transaction is None
    declare, discharge = event.deliveries
    peer.engine.declare([declare], TXN)
    peer.engine.accept([discharge])
    assert states(peer) == [
        (0, 0, True, raw.outcome(DECLARED, [TXN])),
        (1, 1, True, raw.outcome(raw.ACCEPTED)),
    ]


def test_a_discharge_can_be_rejected(peer: EnginePeer) -> None:
    coordinator(peer)
    peer.hear()
    event = only(peer.say(transfer(7, 0, request(DISCHARGE, [OTHER, False]))), MessagesReceived)
    peer.engine.reject(event.deliveries, ErrorCondition("amqp:transaction:unknown-id", "no such transaction"))
    ((_, _, settled, answer),) = states(peer)
    assert settled and answer.descriptor == raw.REJECTED
    assert_has_three_fields(answer.value[0], "amqp:transaction:unknown-id")


def test_a_state_of_one_delivery_is_not_left_to_the_next_that_takes_its_place(peer: EnginePeer) -> None:
    coordinator(peer)
    peer.sender(0)
    for number in range(0, 8, 2):
        event = only(peer.say(transfer(7, number, request(DECLARE, []))), MessagesReceived)
        peer.engine.declare(event.deliveries, TXN)
        assert states(peer) == [(number, number, True, raw.outcome(DECLARED, [TXN]))]
        event = only(peer.say(transfer(0, number + 1)), MessagesReceived)
        assert event.transaction is None
        peer.engine.accept(event.deliveries)
        assert states(peer) == [(number + 1, number + 1, True, raw.outcome(raw.ACCEPTED))]


# --- messages -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settled", [False, True])
@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("parts", [(state(),), (state(), state()), (state(), None, None)], ids=len)
@pytest.mark.parametrize("at_once", [False, True])
def test_a_message_comes_with_its_transaction(
    peer: EnginePeer, settled: bool, batch: bool, parts: tuple[Any, ...], at_once: bool
) -> None:
    link = peer.sender()
    last = len(parts) - 1
    frames = [
        transfer(0, 0, b"before"),
        *(
            transfer(0, 1, b"part", more=at < last, settled=settled, batch=batch, state=each)
            for at, each in enumerate(parts)
        ),
        transfer(0, 2, b"behind"),
    ]
    events = peer.say(*frames) if at_once else [event for frame in frames for event in peer.say(frame)]
    before, event, behind = of(events, MessagesReceived)
    assert (before.payloads, before.transaction) == ([b"before"], None)
    assert (behind.payloads, behind.transaction) == ([b"behind"], None)
    assert event.link is link and event.transaction == TransactionalState(TXN)
    assert event.payloads == [b"part" * len(parts)] and (event.settled, event.batch) == (settled, batch)
    assert len(event.deliveries) == (0 if settled else 1) and peer.engine.partial_bytes == 0
    peer.engine.settle_in_transaction(event.deliveries, TXN, Outcome.ACCEPTED)
    accepted = state(TXN, raw.outcome(raw.ACCEPTED))
    assert states(peer) == ([] if settled else [(1, 1, True, accepted)])


def test_messages_of_one_transaction_are_one_event_and_others_are_not_mixed_with_them(
    peer: EnginePeer,
) -> None:
    peer.sender()
    of_which = [TXN, TXN, OTHER, None, None, TXN]
    events = peer.say(
        *(
            transfer(0, number, b"%d" % number, state=None if each is None else state(each))
            for number, each in enumerate(of_which)
        )
    )
    assert [
        (event.payloads, event.transaction and event.transaction.txn_id)
        for event in of(events, MessagesReceived)
    ] == [([b"0", b"1"], TXN), ([b"2"], OTHER), ([b"3", b"4"], None), ([b"5"], TXN)]


def test_an_unfinished_message_of_a_transaction_leaves_nothing_to_the_next_one(peer: EnginePeer) -> None:
    peer.sender()
    aborted = raw.frame(raw.TRANSFER, [*raw.transfer_fields(0, 0), None, None, None, True])
    assert peer.say(transfer(0, 0, b"part", more=True, state=state())) == []
    assert peer.say(aborted) == []
    event = only(peer.say(transfer(0, 1, b"a", more=True), transfer(0, 1, b"b")), MessagesReceived)
    assert (event.payloads, event.transaction) == ([b"ab"], None)


def test_a_link_that_ends_within_a_message_of_a_transaction_leaves_nothing_behind(peer: EnginePeer) -> None:
    peer.sender()
    peer.release(peer.say(transfer(0, 0, b"part", more=True, state=state()), detach(0)))
    peer.sender()
    event = only(peer.say(transfer(0, 1, b"whole")), MessagesReceived)
    assert (event.payloads, event.transaction) == ([b"whole"], None) and peer.engine.partial_bytes == 0


def test_a_message_of_a_transaction_may_be_too_large(peer: EnginePeer) -> None:
    peer.sender(max_message_bytes=1_000)
    assert only(peer.say(transfer(0, 0, b"x" * 1_001, state=state())), MessageTooLarge).size == 1_001


def test_a_state_that_cannot_be_read_names_no_transaction(peer: EnginePeer) -> None:
    peer.sender()
    broken = raw.outcome(raw.TRANSACTIONAL, ["no binary"])
    event = only(peer.say(transfer(0, 0, b"x", state=broken)), MessagesReceived)
    assert event.transaction == TransactionalState(b"")


def test_a_message_can_be_refused_within_its_transaction(peer: EnginePeer) -> None:
    peer.sender()
    event = only(peer.say(transfer(0, 0, b"x", state=state())), MessagesReceived)
    error = ErrorCondition("amqp:not-allowed", "another partition key")
    peer.engine.settle_in_transaction(event.deliveries, TXN, Outcome.REJECTED, error=error)
    ((_, _, settled, answer),) = states(peer)
    txn_id, outcome = answer.value
    assert settled and answer.descriptor == raw.TRANSACTIONAL and txn_id == TXN
    assert outcome.descriptor == raw.REJECTED
    assert_has_three_fields(outcome.value[0], "amqp:not-allowed")


# --- outcomes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (raw.outcome(raw.ACCEPTED), TransactionalState(TXN, Outcome.ACCEPTED)),
        (raw.outcome(raw.RELEASED), TransactionalState(TXN, Outcome.RELEASED)),
        (
            raw.outcome(
                raw.REJECTED, [Described(ULong(raw.ERROR), [Symbol("a:b"), "why", {Symbol("k"): 1}])]
            ),
            TransactionalState(TXN, Outcome.REJECTED, ErrorCondition("a:b", "why", encode({Symbol("k"): 1}))),
        ),
        (
            raw.outcome(raw.MODIFIED, [True, True, {Symbol("note"): "x"}]),
            TransactionalState(TXN, Outcome.MODIFIED, None, True, True, encode({Symbol("note"): "x"})),
        ),
    ],
    ids=["accepted", "released", "rejected", "modified"],
)
def test_an_outcome_comes_with_its_transaction_and_is_answered_with_it(
    peer: EnginePeer, given: Described, expected: TransactionalState
) -> None:
    link = peer.receiver()
    deliveries = peer.engine.send(link, tags(1, 2), [message()] * 2, False)
    peer.hear()
    event = only(peer.say(disposition(0, 1, state(TXN, given))), DeliveriesUpdated)
    assert event.deliveries == deliveries and (event.outcome, event.settled) == (Outcome.TRANSACTIONAL, False)
    found = event.transaction
    assert found is not None and event.bytes == found.bytes
    if found.error is not None:
        found.error.info = encode(decode_all(found.error.info))  # proton writes maps in their long form
    found.annotations = found.annotations and encode(decode_all(found.annotations))
    assert found == expected
    peer.engine.settle_in_transaction(
        deliveries, TXN, found.outcome, failed=found.failed, undeliverable_here=found.undeliverable_here
    )
    fields = [True, True] if found.outcome == Outcome.MODIFIED else []
    answer = state(TXN, raw.outcome(found.outcome, fields))
    assert states(peer) == [(0, 0, True, answer), (1, 1, True, answer)]


def test_outcomes_of_two_transactions_are_two_events(peer: EnginePeer) -> None:
    link = peer.receiver()
    peer.engine.send(link, tags(*range(4)), [message()] * 4, False)
    peer.hear()
    accepted = raw.outcome(raw.ACCEPTED)
    events = of(
        peer.say(
            disposition(0, 0, state(TXN, accepted)),
            disposition(1, 1, state(TXN, accepted)),
            disposition(2, 2, state(OTHER, accepted)),
            disposition(3, 3, accepted),
        ),
        DeliveriesUpdated,
    )
    assert [(len(event.deliveries), event.transaction and event.transaction.txn_id) for event in events] == [
        (2, TXN),
        (1, OTHER),
        (1, None),
    ]


# --- with proton as the peer --------------------------------------------------------------------------------


class ProtonPeer:
    """The Python client's own engine, connected to ours in memory. Ours accepts links and grants credit."""

    def __init__(self) -> None:
        self.ours = EnginePeer().engine
        self.connection = Connection()
        self.connection.container = "peer"
        self._transport = Transport()
        self._transport.bind(self.connection)
        self.connection.open()
        self.session = self.connection.session()
        self.session.open()

    def exchange(self) -> list[Event]:
        """Carry bytes both ways until both sides are silent; returns the events of our engine."""
        found: list[Event] = []
        while True:
            written = b"".join(self.ours.output())
            if written:
                self._transport.push(written)
            events = self.ours.take_events()
            pending = self._transport.pending()
            if pending > 0:
                events += self.ours.receive(bytes(self._transport.peek(pending) or b""))
                self._transport.pop(pending)
            for event in events:
                if isinstance(event, ConnectionOpened):
                    self.ours.open({})
                elif isinstance(event, LinkAttached):
                    self.ours.accept_link(event.link, max_message_bytes=10_000 if event.link.incoming else 0)
                    if event.link.incoming:
                        self.ours.grant(event.link, 100)
            found += events
            if not written and pending <= 0:
                return found


def sent_on(link: Sender, body: Any) -> Delivery:
    delivery = link.send(Message(body=body))
    assert isinstance(delivery, Delivery)
    return delivery


def say_within(txn_id: bytes, delivery: Delivery, *outcome: Any) -> None:
    """Give a delivery a transactional state."""
    fields: Any = [txn_id, *outcome]
    delivery.local.data = fields
    delivery.update(raw.TRANSACTIONAL)


def said_of(delivery: Delivery) -> Any:
    """The fields of the state that the engine sent for a delivery, once it is settled."""
    assert delivery.settled
    return delivery.remote.data


def only_messages(events: list[Event]) -> MessagesReceived:
    """The only event, not counting those about credit."""
    return only([event for event in events if not isinstance(event, CreditGranted)], MessagesReceived)


def test_proton_declares_sends_settles_and_discharges_within_a_transaction() -> None:
    peer, accepted = ProtonPeer(), Wrapped(ulong(raw.ACCEPTED), [])
    control, sender, receiver = (
        peer.session.sender("control"),
        peer.session.sender("sender"),
        peer.session.receiver("receiver"),
    )
    control.target.type = Terminus.COORDINATOR
    control.target.capabilities.put_object(symbol("amqp:local-transactions"))
    sender.target.address = receiver.source.address = "queue"
    for link in (control, sender, receiver):
        link.open()
    receiver.flow(10)
    links = {event.link.name: event.link for event in of(peer.exchange(), LinkAttached)}
    assert links["control"].target_is_coordinator and not links["sender"].target_is_coordinator
    assert control.remote_target.type == Terminus.COORDINATOR

    declare = sent_on(control, Wrapped(symbol("amqp:declare:list"), [None]))
    event = only_messages(peer.exchange())
    assert event.link is links["control"]
    peer.ours.declare(event.deliveries, TXN)
    peer.exchange()
    assert declare.remote_state == DECLARED
    (txn_id,) = said_of(declare)
    assert txn_id == TXN

    sent = sent_on(sender, "in a transaction")
    say_within(txn_id, sent)
    event = only_messages(peer.exchange())
    assert event.link is links["sender"] and event.transaction == TransactionalState(TXN)
    assert b"in a transaction" in event.payloads[0]
    peer.ours.settle_in_transaction(event.deliveries, TXN, Outcome.ACCEPTED)
    peer.exchange()
    assert sent.remote_state == raw.TRANSACTIONAL and said_of(sent) == [TXN, accepted]

    peer.ours.send(links["receiver"], tags(1), [message()], False)
    peer.exchange()
    received = receiver.current
    assert received is not None
    receiver.recv(received.pending)
    say_within(txn_id, received, accepted)
    (update,) = of(peer.exchange(), DeliveriesUpdated)
    assert update.link is links["receiver"]
    assert update.transaction == TransactionalState(TXN, Outcome.ACCEPTED)
    peer.ours.settle_in_transaction(update.deliveries, TXN, Outcome.ACCEPTED)
    peer.exchange()
    assert received.remote_state == raw.TRANSACTIONAL and said_of(received) == [TXN, accepted]

    discharge = sent_on(control, Wrapped(symbol("amqp:discharge:list"), [txn_id, False]))
    event = only_messages(peer.exchange())
    peer.ours.accept(event.deliveries)
    peer.exchange()
    assert discharge.settled and discharge.remote_state == Delivery.ACCEPTED
