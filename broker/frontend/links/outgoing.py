"""Links on which clients receive: takes credit, sends deliveries out, and takes settlements back.

`broker/messaging/receiver.py` decides what to ask of which partition and what waits for credit, and
`broker/messaging/settlement.py` decides what a settlement does. This link handles credit, drain, delivery
tags and outcomes: it turns messages into deliveries, and the client's dispositions into settlements. A
settlement is answered with the client's own outcome once it is durable (durability rule 1).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from typing import Any

from broker.access.addresses import Address
from broker.base._sizes import total_bytes
from broker.base.errors import Reason, Refused
from broker.frontend.connection_view import ConnectionView
from broker.frontend.links._unsettled import take
from broker.frontend.links.receive_watch import ReceiveWatch
from broker.frontend.links.termini import check_sessions, generation_of, selector_of
from broker.identifiers import LockToken
from broker.message.annotations import deliverables
from broker.message.changes import DEAD_LETTER_DESCRIPTION, DEAD_LETTER_REASON
from broker.message.stored import HEAD
from broker.messaging.accepting_sessions import HeldSession
from broker.messaging.receiver import Receiver
from broker.messaging.selecting import Selection
from broker.messaging.settlement import (
    COMPLETE,
    RELEASE,
    Settlement,
    abandon,
    dead_letter,
    defer,
    not_settled,
)
from broker.namespace.entity import Entity
from broker.operations.receiving import Locked
from broker.refusal_wording import error_of
from broker.rules.selectors import Selector
from protocol.codec import DecodeError
from protocol.events import DeliveriesUpdated, ErrorCondition, Outcome, TransactionalState
from protocol.links import SETTLED, Delivery, Link
from protocol.unwritten import take_back
from protocol.values import decode_bounded

DEAD_LETTER_CONDITION = "com.microsoft:dead-letter"

Settling = tuple[Sequence[Delivery], DeliveriesUpdated, int]
"""Deliveries whose settlement is being made durable (none if the client waits for nothing), the event in
which the client settled them, and how many messages they are."""


class OutgoingLink:
    """A link on which a client receives from a subqueue: the `Taker` of a `Receiver`. Owned by its
    connection."""

    rights = ("Listen",)

    @classmethod
    def attach(cls, connection: ConnectionView, link: Link, queue: Entity, address: Address) -> None:
        """Accept the link. Raises Refused."""
        selector = selector_of(connection.engine, link)
        accept_receiver(connection, link, queue, address)
        link.context = cls(connection, link, queue, address, selector=selector)

    def __init__(
        self,
        connection: ConnectionView,
        link: Link,
        queue: Entity,
        address: Address,
        session: HeldSession | None = None,
        selector: Selector | None = None,
    ) -> None:
        self.link, self.queue, self.subqueue = link, queue, address.subqueue
        self.paths = (address.path,)
        self._connection, self._engine = connection, connection.engine
        self._settled_mode = link.snd_settle_mode == SETTLED
        self._partitioned = len(queue.router.handles) > 1
        self._unsettled: dict[Delivery, LockToken] = {}
        self._unsettled_max = connection.services.settings.unsettled_per_link_max
        self._memory = connection.services.memory
        self._meter = queue.meter
        self._receiver: Receiver[Settling] = Receiver(
            queue,
            address.subqueue,
            self,
            cache=connection.cache,
            clock=connection.services.clock,
            due=connection.services.receivers_due,
            removes=self._settled_mode,
            session=session,
            selection=None if selector is None else self._selection(selector),
        )
        self.credit_granted = self._receiver.credit_granted
        """Called when the client's credit has changed, or the wire takes bytes again."""
        self._watch = ReceiveWatch(connection, link, queue, self.subqueue)

    def _selection(self, selector: Selector) -> Selection:
        connection, name = self._connection, f"scan of {self.queue.name}"
        return Selection(
            selector,
            connection.services.pages,
            lambda scan: connection.spawn(scan, name=name, size=0),
            self.fail,
        )

    # --- for the receiver (Taker) ---------------------------------------------------------------------------

    @property
    def allowance(self) -> int:
        """How many bytes may wait for the client."""
        return self._connection.allowance

    @property
    def is_removing(self) -> bool:
        """Whether messages are being removed that the client gets afterwards."""
        return self._receiver.is_removing

    def wanted(self) -> int:
        """How many messages the client may be given now."""
        credit = self._engine.credit(self.link)
        if credit <= 0 or not (room := self._connection.room_for(self)):
            return 0
        wanted = min(credit, room, self._unsettled_max - len(self._unsettled))
        if self._memory.exceeded and not self._settled_mode:
            return min(wanted, self._connection.room_above_mark(self, len(self._unsettled)))
        return wanted

    def has_credit(self) -> bool:
        """Whether the client has granted credit that is not used up."""
        return self._engine.credit(self.link) > 0

    def is_draining(self) -> bool:
        """Whether the client has asked to drain its credit."""
        return self._engine.draining(self.link)

    def is_blocked(self) -> bool:
        """Whether the client reads more slowly than it grants credit. If so, its connection calls
        `credit_granted` when there is room again."""
        return not self._connection.room_for(self)

    def may_answer_drain(self) -> bool:
        """Whether everything that was delivered has been written. If not, the connection calls
        `credit_granted` when it may have been."""
        return self._connection.may_answer_drain(self)

    def drained(self) -> None:
        """Answer the drain (§2.6.7)."""
        self._engine.drained(self.link)
        self._connection.flush_soon()

    def shelf_bytes(self) -> int:
        """How many bytes may be held ready beyond the credit."""
        connection = self._connection
        settings, output = connection.services.settings, connection.services.output
        return min(settings.receive_cache_bytes, output.shelf_bytes(connection.allowance))

    def shelved(self, size: int) -> None:
        """Count `size` more bytes held ready as pending output of this connection."""
        self._connection.services.output.add(self._connection, size)

    def refuse(self, why: Refused) -> None:
        """Close the link with an error."""
        self._connection.close_link(self.link, why)

    def session_lost(self) -> None:
        """Only the link of a session loses it (`session_link.py`)."""
        raise AssertionError("this link receives from no session")

    def fail(self) -> None:
        """End the connection after an unexpected exception."""
        self._connection.fail()

    # --- deliveries out -------------------------------------------------------------------------------------

    def take(self, locked: Locked) -> None:
        """Deliver messages: settled if they were removed, otherwise with their lock tokens as tags."""
        clock = self._connection.services.clock
        now_ms = clock.now_ms()
        fronts, rests = deliverables(
            locked,
            peek_lock=not self._settled_mode,
            partitioned=self._partitioned,
            wall_ahead_ms=now_ms - clock.monotonic_ms(),
        )
        size = total_bytes(fronts) + total_bytes(rests) - HEAD.size * (len(rests) - rests.count(b""))
        deliveries = self._engine.send(self.link, locked.tokens, fronts, self._settled_mode, rests, HEAD.size)
        if not self._settled_mode:
            self._unsettled.update(zip(deliveries, locked.tokens, strict=True))
            self._memory.deliver(len(fronts))
        self._meter.outgoing_messages += len(fronts)
        self._meter.outgoing_bytes += size
        self.queue.note_access(self.subqueue, now_ms)
        self._connection.sent(size)

    # --- settlements in -------------------------------------------------------------------------------------

    def updated(self, event: DeliveriesUpdated) -> None:
        """Settle deliveries as the client's outcome says (§2.7.6). The answer follows when that is durable
        (durability rule 1)."""
        before = len(self._unsettled)
        groups = take(self._unsettled, event.deliveries)  # without those settled before, or reported twice
        self._memory.settled(before - len(self._unsettled))
        if event.settled:
            for deliveries, _ in groups.values():
                self._engine.settle(deliveries, 0)
        if groups and event.transaction is not None:
            tokens = [token for _, group in groups.values() for token in group]
            known = [delivery for group, _ in groups.values() for delivery in group]
            self._settle_in_transaction(event, event.transaction, tokens, [] if event.settled else known)
        elif groups:
            self._settle(groups, event)
        if before >= self._unsettled_max:
            self.credit_granted()  # the bound had held messages back
        self._connection.flush_soon()

    def _settle(
        self, groups: Mapping[int, tuple[list[Delivery], list[LockToken]]], event: DeliveriesUpdated
    ) -> None:
        """Ask the partitions to settle. If the outcome cannot be carried out, the messages stay locked."""
        try:
            settlement = _settlement_of(event)
        except Refused as why:
            for deliveries, _ in groups.values():
                self._meter.refused(why.reason, len(deliveries))
                if not event.settled:
                    self._engine.reject(deliveries, error_of(why))
            return
        for number, (deliveries, tokens) in groups.items():
            if event.settled:
                deliveries = []
            elif settlement.is_answered:
                self._connection.settling += len(deliveries)
            self._receiver.settle(number, tokens, settlement, (deliveries, event, len(tokens)))
            if settlement is RELEASE:
                self._engine.settle(deliveries, Outcome.RELEASED)
            elif event.annotations or event.error is not None:
                self._connection.took_changes(event.bytes)

    def _settle_in_transaction(
        self,
        event: DeliveriesUpdated,
        state: TransactionalState,
        tokens: Sequence[LockToken],
        deliveries: Sequence[Delivery],
    ) -> None:
        """Add a settlement to a transaction (§4.4.3), and answer with the client's own state: the outcome
        takes effect with the commit. If it is refused, the messages stay locked."""
        try:
            transaction = self._connection.transactions.find(state.txn_id)
            try:
                settlement = _settlement_of(event)
            except Refused as why:
                transaction.fail(why)
                raise
            transaction.settle(self.queue, self.subqueue, tokens, settlement)
        except Refused as why:
            self._meter.refused(why.reason, len(tokens))
            self._engine.reject(deliveries, error_of(why))
            return
        self._engine.settle_in_transaction(
            deliveries,
            state.txn_id,
            state.outcome,
            failed=state.failed,
            undeliverable_here=state.undeliverable_here,
        )

    def settled(self, receipt: Settling, settlement: Settlement, failures: Mapping[int, Reason]) -> None:
        """Tell the client that a settlement is durable, except for the messages in `failures`."""
        deliveries, event, _ = receipt
        self._connection.settling -= len(deliveries)
        self._count_changes(event)
        for reason, count in Counter(failures.values()).items() if failures else ():
            self._meter.refused(reason, count)
        if self.link.gone or not deliveries:
            return
        if failures:
            for reason in set(failures.values()):
                refused = [deliveries[index] for index, each in failures.items() if each is reason]
                self._engine.reject(refused, error_of(not_settled(reason)))
            deliveries = [delivery for index, delivery in enumerate(deliveries) if index not in failures]
        # Repeat the client's outcome, but leave out the error of a dead-lettering (AMQP contract 6.2).
        self._engine.settle(
            deliveries, event.outcome, failed=event.failed, undeliverable_here=event.undeliverable_here
        )
        self._connection.flush_soon()

    def not_settled(self, receipt: Settling, why: Refused) -> None:
        """Tell the client that a settlement failed as a whole."""
        deliveries, event, messages = receipt
        self._connection.settling -= len(deliveries)
        self._count_changes(event)
        self._meter.refused(why.reason, messages)
        if not self.link.gone:
            self._engine.reject(deliveries, error_of(why))
            self._connection.flush_soon()

    def _count_changes(self, event: DeliveriesUpdated) -> None:
        if event.annotations or event.error is not None:
            self._connection.finished_with(event.bytes, 0)

    def forget(self, tokens: Set[LockToken]) -> None:
        """Settle this link's deliveries of messages that were settled in another way (`$management`; AMQP
        contract 6.2)."""
        deliveries = [delivery for delivery, held in self._unsettled.items() if held in tokens]
        if deliveries:
            for delivery in deliveries:
                del self._unsettled[delivery]
            self._memory.settled(len(deliveries))
            self._engine.settle(deliveries, Outcome.ACCEPTED)
            self._connection.flush_soon()
            self.credit_granted()  # the bound on unsettled deliveries may have held messages back

    # --- the end --------------------------------------------------------------------------------------------

    def detached(self) -> None:
        """End the receiver: messages the client has not seen go back at once, the others when their locks run
        out. What its session's window has held back, nobody has seen."""
        self._watch.end()
        unwritten = take_back(self.link, reversed(self._unsettled))
        self._receiver.end(list(map(self._unsettled.__getitem__, unwritten)))
        self._memory.settled(len(self._unsettled))
        self._unsettled.clear()
        # The receiver tells this link what becomes of settlements. If this link kept it, only Python's
        # collector could free the two.
        self.credit_granted = _nothing_to_give
        del self._receiver


def _nothing_to_give() -> None:
    """Do nothing: the link has ended."""


def _settlement_of(event: DeliveriesUpdated) -> Settlement:
    """Like `_settlement`, but once for all events about one disposition: its properties are decoded and
    encoded once, and all of its messages share them, or are refused. Raises Refused."""
    state, shared = event if event.transaction is None else event.transaction, event.shared
    if shared is None:
        return _settlement(state)
    if not isinstance(shared.made, Settlement | Refused):
        try:
            shared.made = _settlement(state)
        except Refused as why:
            shared.made = why
    if isinstance(shared.made, Refused):
        raise shared.made.with_traceback(None)  # each raise would add to the traceback
    return shared.made


def _settlement(event: DeliveriesUpdated | TransactionalState) -> Settlement:
    """Translate an outcome (§3.4) into a settlement. Raises Refused."""
    match event.outcome:
        case Outcome.ACCEPTED:
            return COMPLETE
        case Outcome.REJECTED:
            return dead_letter(_info(event.error))
        case Outcome.MODIFIED if event.undeliverable_here:
            return defer(_map(event.annotations))
        case Outcome.MODIFIED:
            return abandon(_map(event.annotations))
        case _:
            return RELEASE


def _info(error: ErrorCondition | None) -> dict[Any, Any]:
    """Return the reason for dead-lettering, as properties to set on the message (AMQP contract 6.1, 5.5)."""
    if error is None:
        return {}
    info = _map(error.info)
    if error.condition != DEAD_LETTER_CONDITION and DEAD_LETTER_REASON not in info:
        info |= {DEAD_LETTER_REASON: error.condition, DEAD_LETTER_DESCRIPTION: error.description or None}
    return info


def _map(encoded: bytes) -> dict[Any, Any]:
    try:
        value = decode_bounded(encoded)[0] if encoded else {}
    except DecodeError as error:
        raise Refused(Reason.DECODE, f"The outcome's map cannot be decoded: {error}.") from error
    return value if isinstance(value, dict) else {}


def accept_receiver(connection: ConnectionView, link: Link, queue: Entity, address: Address) -> None:
    """Accept a client's receiver. Raises Refused if the queue does not allow receiving, or if the receiver's
    use of sessions does not match the queue's."""
    queue.check_can_receive(address.subqueue)
    check_sessions(connection.engine, link, queue, address)
    connection.engine.accept_link(link, properties=generation_of(connection.engine, link, queue))
