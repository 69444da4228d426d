"""The events that the engine reports. Messages or outcomes that arrive together make one event.

Events are consumed in order. The deliveries in an event stay valid until they are settled or their link is
gone (`Link.gone`). A link that the peer has detached is gone only once its `LinkDetached` has been consumed
(`Engine.release_link`).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

from protocol.links import Delivery, Link


class Outcome(enum.IntEnum):
    """Delivery states by descriptor (AMQP 1.0 §3.4, §4.5)."""

    NONE = 0
    RECEIVED = 0x23
    ACCEPTED = 0x24
    REJECTED = 0x25
    RELEASED = 0x26
    MODIFIED = 0x27
    DECLARED = 0x33
    TRANSACTIONAL = 0x34


@dataclass(slots=True)
class ErrorCondition:
    """An AMQP error (§2.8.14)."""

    condition: str
    description: str = ""
    info: bytes = b""
    """An encoded AMQP map, or empty."""

    @property
    def bytes(self) -> int:
        """The size of `description` and `info`."""
        return len(self.description) + len(self.info)


@dataclass(slots=True)
class TransactionalState:
    """The state that a peer gives deliveries within a transaction (§4.5.6)."""

    txn_id: bytes
    """Identifies the transaction. Empty if the state cannot be read; no transaction has an empty id."""
    outcome: int = Outcome.NONE
    """Takes effect when the transaction is committed. Usually NONE on a transfer."""
    error: ErrorCondition | None = None
    """The error of a REJECTED outcome."""
    failed: bool = False
    """The delivery-failed field of a MODIFIED outcome."""
    undeliverable_here: bool = False
    """The undeliverable-here field of a MODIFIED outcome."""
    annotations: bytes = b""
    """The message-annotations of a MODIFIED outcome, as an encoded AMQP map; empty if there are none."""

    @property
    def bytes(self) -> int:
        """The size of `txn_id`, `error` and `annotations`."""
        return len(self.txn_id) + len(self.annotations) + (self.error.bytes if self.error is not None else 0)


@dataclass(slots=True, eq=False)
class SharedState:
    """Stands for the state of one disposition in all events about it."""

    made: object = None
    """What whoever gets the first of these events makes of the state, for use with the others."""


@dataclass(slots=True)
class ConnectionOpened:
    """The peer's open has arrived (§2.7.1). The engine waits for `Engine.open`."""

    container_id: str
    hostname: str
    properties: dict[str, Any]
    desired_capabilities: tuple[str, ...]


@dataclass(slots=True)
class ConnectionClosed:
    """The peer closed the connection (§2.7.9), broke the protocol, or was silent for too long; `error` says
    which."""

    error: ErrorCondition | None


@dataclass(slots=True)
class LinkAttached:
    """The peer attached a link (§2.7.3), which waits for `Engine.accept_link` or `Engine.refuse_link`."""

    link: Link


@dataclass(slots=True)
class LinkDetached:
    """The peer detached or closed a link (§2.7.7), or ended its session. The link waits for
    `Engine.release_link`."""

    link: Link
    closed: bool
    error: ErrorCondition | None


@dataclass(slots=True)
class CreditGranted:
    """A receiving peer sent a flow, or credit was used (§2.6.7). `Engine.credit(link)` and
    `Engine.draining(link)` return the new state."""

    link: Link


@dataclass(slots=True)
class MessagesReceived:
    """Whole messages from a sending peer, in order (§2.7.5)."""

    link: Link
    deliveries: list[Delivery]
    """One delivery for each payload; empty if the messages were sent settled."""
    payloads: list[bytes]
    settled: bool
    """Whether all of them were sent settled, so that the peer expects no outcome."""
    batch: bool
    """Whether the message has the format of Service Bus batches (0x80013700). A batch always comes alone."""
    transaction: TransactionalState | None = None
    """All of them were sent as work of this transaction (§4.4.2), and must not be enqueued outside it."""


@dataclass(slots=True)
class MessageTooLarge:
    """A message exceeds the link's max-message-size (§2.7.3). The rest of it is discarded."""

    link: Link
    deliveries: list[Delivery]
    """The message's delivery, to be rejected; empty if it was sent settled."""
    size: int
    """How many bytes have arrived."""
    transaction: TransactionalState | None = None
    """It was sent as work of this transaction (§4.4.2)."""


@dataclass(slots=True)
class DeliveriesUpdated:
    """A receiving peer gave outgoing deliveries a state (§2.7.6), which is the same for all of them."""

    link: Link
    deliveries: list[Delivery]
    outcome: int
    """An `Outcome` as a number, or any other state that the peer sent."""
    settled: bool
    """Whether the peer has already settled them, and expects no answer."""
    error: ErrorCondition | None = None
    """The error of a REJECTED outcome."""
    failed: bool = False
    """For MODIFIED: delivery-failed. Also False if the peer left it out, which proton does not tell."""
    undeliverable_here: bool = False
    """The undeliverable-here field of a MODIFIED outcome."""
    annotations: bytes = b""
    """The message-annotations of a MODIFIED outcome, as an encoded AMQP map; empty if there are none."""
    transaction: TransactionalState | None = None
    """For TRANSACTIONAL: the transaction, and the outcome that takes effect with it (§4.4.3)."""
    shared: SharedState | None = None
    """The same in each event about one disposition with a large state; None for others."""

    @property
    def bytes(self) -> int:
        """The size of `error`, `annotations` and `transaction`."""
        found = len(self.annotations)
        if self.error is not None:
            found += self.error.bytes
        if self.transaction is not None:
            found += self.transaction.bytes
        return found


Event = (
    ConnectionOpened | ConnectionClosed | LinkAttached | LinkDetached | CreditGranted | MessagesReceived
    | MessageTooLarge | DeliveriesUpdated
)  # fmt: skip


def same_update(one: DeliveriesUpdated, other: DeliveriesUpdated) -> bool:
    """Whether two updates say the same about their deliveries, so that they can be merged."""
    return (
        one.link is other.link
        and one.outcome == other.outcome
        and one.settled is other.settled
        and one.failed is other.failed
        and one.undeliverable_here is other.undeliverable_here
        and one.annotations == other.annotations
        and one.error == other.error
        and one.transaction == other.transaction
    )
