"""Deleting messages that nobody has locked: in bulk, and by sequence number. Pure.

Messages sent in the current cycle stay, because they may still be refused (durability rule 3).
"""

from __future__ import annotations

from broker.identifiers import ClientId
from broker.operations.deleting import Delete, Deleted, DeletedExactly, DeleteExactly
from broker.partition import records
from broker.partition.records import Mark
from broker.partition.references import SCHEDULED
from broker.partition.time_to_live import TimeToLive
from broker.partition.workspace import Workspace


class Deleting:
    """Deletes messages of one partition."""

    __slots__ = ("_space", "_time_to_live")

    def __init__(self, space: Workspace, time_to_live: TimeToLive) -> None:
        self._space, self._time_to_live = space, time_to_live

    def delete(self, client: ClientId, delete: Delete) -> None:
        """Delete in bulk: messages of given states, by age. Overdue messages are left to expire."""
        space, cycle = self._space, self._space.cycle
        subqueue = space.messages.find(delete.subqueue)
        numbers: list[int] = []
        next_number: int | None = None
        looked_at = 0
        states, recalls, session_id = frozenset(delete.states), False, delete.session_id
        for looked_at, reference in enumerate(subqueue.browse(max(delete.from_sequence_number, 0))):
            number = reference.sequence_number
            if cycle.has_sent and number >= cycle.first_sent:
                break
            if reference.state is not SCHEDULED and reference.enqueued_at_ms >= delete.enqueued_before_ms:
                break  # enqueued times never go back, so later messages are no older
            if len(numbers) >= delete.count or looked_at >= space.bounds.deleted_max:
                next_number = number
                break
            if session_id is not None and reference.session_id != session_id:
                continue
            if reference.lease is not None:
                if delete.recalls:
                    recalls = space.recall_from(reference.lease) or recalls
            elif (
                reference.state in states
                and reference.enqueued_at_ms < delete.enqueued_before_ms
                and not self._time_to_live.is_overdue(subqueue, reference)
            ):
                numbers.append(number)
        if numbers:
            space.mark(Mark(records.REMOVED, subqueue.number, numbers))
        cycle.work += looked_at + 1
        space.answer(client, Deleted(len(numbers), next_number, delete.cookie, recalls))

    def delete_exactly(self, client: ClientId, delete: DeleteExactly) -> None:
        """Delete these messages. Those sent in this cycle count as missing."""
        space, cycle = self._space, self._space.cycle
        subqueue = space.messages.find(delete.subqueue)
        numbers: list[int] = []
        locked: list[int] = []
        missing: list[int] = []
        recalls = False
        for number in dict.fromkeys(delete.sequence_numbers):
            reference = subqueue.references.get(number)
            if reference is None or (cycle.has_sent and number >= cycle.first_sent):
                missing.append(number)
            elif reference.lease is not None:
                locked.append(number)
                recalls = space.recall_from(reference.lease) or recalls
            else:
                numbers.append(number)
        if numbers:
            space.mark(Mark(records.REMOVED, subqueue.number, numbers))
        cycle.work += len(delete.sequence_numbers)
        space.answer(client, DeletedExactly(locked, missing, delete.cookie, recalls))
