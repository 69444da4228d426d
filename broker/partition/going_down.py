"""What clients are told when a partition goes down, or is down.

Waiting operations are refused, each with the answer that its kind calls for. Attached clients are told once
that their demand and their locks are void (`Unavailable`), and may ask again. If the partition will come
back, a client that asks for messages or sessions meanwhile is told when it has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from broker.base.errors import Reason
from broker.identifiers import ClientId
from broker.operations.browsing import Watch
from broker.operations.general import Detach, Failed, Unavailable, Update, Updated
from broker.operations.interface import Operation
from broker.operations.needed_locks import refusal_while_down
from broker.operations.outlook import outlook_of
from broker.operations.receiving import Demand, Recalled, ReceiveDeferred, Withdraw, Withdrawn
from broker.operations.selecting import WatchReturned
from broker.operations.sessions import WatchSessions
from broker.operations.settling import Release
from broker.partition.health import FOR_GOOD, Health
from broker.partition.mailbox import Mailbox, Waiting

DAMAGED_ADVICE = (
    "'partibus check' shows everything that is damaged; 'partibus repair' saves what can be read, with the "
    "broker stopped."
)
"""What is logged with the failure of a partition whose log is damaged."""
_NEEDS_NO_LOG = (Withdraw, Detach, Release, Recalled, Update)
"""Operations that do not open a closed partition, because no client waits or holds anything in it."""


class GoingDown:
    """Refuses the operations in a partition's mailbox. Owned by the partition's task."""

    __slots__ = ("_entity", "_mailbox", "_number", "health")

    def __init__(self, number: int, entity: str, mailbox: Mailbox) -> None:
        """`number`: the partition's."""
        self._number, self._entity, self._mailbox = number, entity, mailbox
        self.health = Health.CLOSED
        """The partition's health. Set by the task."""

    @property
    def why_full(self) -> str:
        """The description if the disk is full, without advice. What the disk has said is for the log: it
        names files."""
        return (
            f"Partition {self._number} of '{self._entity}': the disk is full, and nothing was stored or "
            "changed."
        )

    def start_anew(self, reason: Reason = Reason.PARTITION_UNAVAILABLE, why: str | None = None) -> None:
        """Refuse waiting operations, and tell each attached client once that its demand and locks are void.
        `why`: see `refuse`."""
        self.refuse_waiting(reason, why)
        for sink in list(self._mailbox.attached.values()):
            sink(self._unavailable())

    def refuse_waiting(self, reason: Reason = Reason.PARTITION_UNAVAILABLE, why: str | None = None) -> None:
        """Refuse waiting operations and a cycle whose commit failed."""
        for entry in self._mailbox.take_all():
            self.refuse(entry, reason, why)

    def refuse(
        self, entry: Waiting, reason: Reason = Reason.PARTITION_UNAVAILABLE, why: str | None = None
    ) -> None:
        """Refuse one operation. `why` is the description without advice, by default that of the partition's
        health."""
        client, operation, sink, _ = entry
        match operation:
            case Demand() | WatchSessions() | WatchReturned():
                self._mailbox.attached[client] = sink  # so that it is told when the partition is back
            case Watch():
                sink(self._unavailable())
            case Withdraw():
                sink(Withdrawn(self._number, operation.subqueue))
            case Detach():
                self._mailbox.attached.pop(client, None)
            case Release() | Recalled():
                pass
            case _:
                sink(self._failed(operation, operation.cookie, reason, why))

    def refuse_for_good(self, entry: Waiting) -> None:
        """Refuse one operation of a partition that will not come back."""
        _, operation, sink, _ = entry
        if isinstance(operation, Demand | WatchSessions | WatchReturned):
            sink(self._unavailable())
        else:
            self.refuse(entry)

    def answer_while_closed(self) -> None:
        """If no waiting operation needs the log, answer them all without opening it."""
        if all(isinstance(operation, _NEEDS_NO_LOG) for _, operation, _, _ in self._mailbox.waiting):
            for entry in self._mailbox.take_all():
                operation = entry[1]
                if isinstance(operation, Update):
                    entry[2](Updated(operation.cookie))
                else:
                    self.refuse(entry)

    def refusing(self, waiting: Sequence[Waiting]) -> Callable[[ClientId, object], Failed]:
        """The refusals of a cycle's requests, by client and cookie, if its commit stands, but the partition
        goes down before they can be answered."""
        asked = [(each[0], each[1]) for each in waiting if isinstance(each[1], ReceiveDeferred)]

        def refusal(client: ClientId, cookie: object) -> Failed:
            operations = [each for other, each in asked if (other, each.cookie) == (client, cookie)]
            return self._failed(operations[0] if operations else None, cookie)

        return refusal

    def _failed(
        self,
        operation: Operation | None,
        cookie: object,
        reason: Reason = Reason.PARTITION_UNAVAILABLE,
        why: str | None = None,
    ) -> Failed:
        down, advice = refusal_while_down(operation)
        if reason is Reason.PARTITION_UNAVAILABLE:
            reason = down
        if why is None:
            why = f"Partition {self._number} of '{self._entity}' {outlook_of(self.health, advice)}"
        else:
            why = f"{why} {advice}"
        return Failed(reason, why, cookie)

    def _unavailable(self) -> Unavailable:
        return Unavailable(self._number, for_good=self.health in FOR_GOOD)
