"""Links on which clients look at messages and take none (`distribution-mode: copy`, §3.5.7): what all of them
have in common. Credit, room, deliveries, and outcomes that change nothing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from broker.access.addresses import Address
from broker.base.errors import Refused
from broker.frontend.connection_view import ConnectionView
from broker.frontend.links.receive_watch import ReceiveWatch
from broker.namespace.entity import Entity
from broker.refusal_wording import error_of, no_transactions
from protocol.events import DeliveriesUpdated, Outcome
from protocol.links import SETTLED, Delivery, Link
from protocol.unwritten import take_back


class CopyLink(ABC):
    """A link on which a client is shown messages. Owned by its connection."""

    rights = ("Listen",)

    def __init__(self, connection: ConnectionView, link: Link, queue: Entity, address: Address) -> None:
        self.link, self.queue, self.subqueue, self.paths = link, queue, address.subqueue, (address.path,)
        self._connection, self._engine = connection, connection.engine
        self._unsettled: dict[Delivery, None] = {}
        """Oldest first."""
        self._tags = 0
        self._watch = ReceiveWatch(connection, link, queue, self.subqueue)
        self._gate = None if queue.throttle is None else queue.throttle.gate(self._resumed, self._refuse)
        """What the namespace's throttling lets through; None if it is not throttled."""

    @abstractmethod
    def credit_granted(self) -> None:
        """The client's credit has changed, the wire takes bytes again, or there may be more to show."""

    def _wanted(self) -> int:
        """How many deliveries may be made now. Returns 0 without room; `credit_granted` is then called once
        there is room."""
        credit = self._engine.credit(self.link)
        if credit <= 0 or not (room := self._connection.room_for(self)):
            return 0
        services, unsettled = self._connection.services, len(self._unsettled)
        wanted = min(credit, room, services.settings.unsettled_per_link_max - unsettled)
        if services.memory.exceeded:
            wanted = min(wanted, self._connection.room_above_mark(self, unsettled))
        return wanted if self._gate is None or wanted <= 0 else min(wanted, self._gate.room())

    def _resumed(self) -> None:
        """The namespace has credits again. An error here ends this client, and no other."""
        try:
            self.credit_granted()
        except Exception:
            self._connection.fail()

    def _refuse(self, why: Refused) -> None:
        self._connection.close_link(self.link, why)

    def _deliver(self, messages: Sequence[bytes], count: int) -> None:
        """Send deliveries that show `count` messages, within the credit."""
        if self._gate is not None:
            self._gate.charge(count)
        first, self._tags = self._tags, self._tags + len(messages)
        tags = [tag.to_bytes(8, "big") for tag in range(first, self._tags)]
        settled = self.link.snd_settle_mode == SETTLED
        # As rests, large ones are not copied by the engine.
        deliveries = self._engine.send(self.link, tags, [b""] * len(messages), settled, messages)
        services = self._connection.services
        if not settled:
            self._unsettled.update(dict.fromkeys(deliveries))
            services.memory.deliver(len(messages))
        self.queue.note_access(self.subqueue, services.clock.now_ms())
        self._connection.sent(sum(map(len, messages)))

    def _answer_drain(self) -> None:
        """Answer a drain (§2.6.7), if the client has asked for one: there is nothing more to show.

        Behind deliveries that wait, the answer has to wait as well. `credit_granted` is called when they may
        have gone, and comes here again.
        """
        engine, connection = self._engine, self._connection
        if engine.draining(self.link) and engine.credit(self.link) > 0 and connection.may_answer_drain(self):
            engine.drained(self.link)
            connection.flush_soon()

    def updated(self, event: DeliveriesUpdated) -> None:
        """Answer the client's outcomes (§2.7.6) with the same outcomes; they change nothing."""
        known = [delivery for delivery in event.deliveries if delivery in self._unsettled]
        before = len(self._unsettled)
        for delivery in known:
            self._unsettled.pop(delivery, None)  # an event may name one twice
        self._connection.services.memory.settled(before - len(self._unsettled))
        if event.transaction is not None:
            self._connection.transactions.fail(event.transaction.txn_id, no_transactions())
        if event.settled:
            self._engine.settle(known, 0)
        elif event.outcome == Outcome.TRANSACTIONAL:
            self._engine.reject(known, error_of(no_transactions()))
        else:
            self._engine.settle(
                known, event.outcome, failed=event.failed, undeliverable_here=event.undeliverable_here
            )
        self._connection.flush_soon()
        self.credit_granted()  # the bound on unsettled deliveries may have held messages back

    def detached(self) -> None:
        """Clean up after the link. Take back what its session's window has held back."""
        self._watch.end()
        if self._gate is not None:
            self._gate.end()
        take_back(self.link, reversed(self._unsettled))
        self._connection.services.memory.settled(len(self._unsettled))
        self._unsettled.clear()
