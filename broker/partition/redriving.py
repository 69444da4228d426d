"""Re-driving: finding dead letters, and enqueueing them again. Pure.

A dead letter is enqueued anew, as if it had just been sent: with a new sequence number and enqueued
time, no failed deliveries and its full time to live. The new message and the removal of the old one are in
one commit, so a crash leaves the message in exactly one place. On a full disk neither happens: `undo_sends`
in `state.py` cuts the new messages off, and `restore` puts the old ones back.
"""

from __future__ import annotations

from typing import NamedTuple

from broker.base.errors import Reason, Refused
from broker.identifiers import ClientId, sequence_of_token
from broker.message.changes import has_reason
from broker.operations.columns import DESTINATION
from broker.operations.redriving import FindDeadLetters, Found, Redrive, Redriven
from broker.operations.sending import Send
from broker.partition import records
from broker.partition.changed_properties import MERGED_AT_ONCE, WORK_COST, cost_of
from broker.partition.columns import of_references
from broker.partition.quotas import freed_by
from broker.partition.records import Mark
from broker.partition.references import ACTIVE, Reference
from broker.partition.sending import Sending
from broker.partition.subqueue import Subqueue
from broker.partition.workspace import Workspace


class _Again(NamedTuple):
    """What a re-drive enqueues."""

    send: Send
    target: int
    """The number of the subqueue that the dead letters return to."""
    places: list[int]
    """Those of the tokens whose locks have not ended."""
    dead: list[Reference]


class Redriving:
    """Re-drives dead letters of one partition."""

    __slots__ = ("_sending", "_space")

    def __init__(self, space: Workspace, sending: Sending) -> None:
        self._space, self._sending = space, sending

    def find(self, client: ClientId, find: FindDeadLetters) -> None:
        """Find dead letters that are not locked and can be re-driven. Raises Refused(NOT_ALLOWED) for another
        subqueue."""
        space = self._space
        subqueue = space.messages.find(find.subqueue)
        _check_dead_letters(subqueue)
        numbers: list[int] = []
        next_number: int | None = None
        looked_at = 0
        reading = MERGED_AT_ONCE
        recalls = False
        for looked_at, reference in enumerate(subqueue.browse(max(find.from_sequence_number, 0))):
            number = reference.sequence_number
            if reference.enqueued_at_ms >= find.enqueued_before_ms:
                break  # enqueued times never go back, so later messages are no older
            if len(numbers) >= find.count or looked_at >= space.bounds.deleted_max or reading <= 0:
                next_number = number
                break
            if find.reason is not None:
                reading -= cost_of(reference.changed)
            if reference.lease is not None:
                recalls = space.recall_from(reference.lease) or recalls
            elif (
                reference.state is ACTIVE
                and not self._lacks_session(subqueue, reference)
                and (find.reason is None or has_reason(reference.changed, find.reason))
            ):
                numbers.append(number)
        space.cycle.work += looked_at + 1 + (MERGED_AT_ONCE - reading) // WORK_COST
        space.answer(client, Found(numbers, next_number, find.cookie, recalls))

    def published_by(self, redrive: Redrive) -> Send | None:
        """What a re-drive sends to all subscriptions of a topic, if it sends anything to them. Raises Refused
        as `redrive` does."""
        again = self._again(redrive)
        return again.send if again.target == self._space.messages.main.number else None

    def redrive(self, client: ClientId, redrive: Redrive) -> None:
        """Enqueue locked dead letters anew. Raises Refused; the locks then stay."""
        space = self._space
        again = self._again(redrive)
        # A topic publishes what comes back to itself, as it does with everything that is sent to it.
        only = None if again.target == space.messages.main.number else again.target
        freed = freed_by(again.dead, space.messages.bodies)
        first = self._sending.send(space.cycle, space.description, again.send, freed, only=only)
        for subqueue, references in space.locks.unlock(
            [redrive.tokens[place] for place in again.places], space.arrived_ms
        ):
            space.cycle.redriven.append((subqueue.number, references))
            for reference in references:
                reference.frame.live += 1  # until the cycle is durable, so that the frame is kept
            mark = Mark(records.REMOVED, subqueue.number, [each.sequence_number for each in references])
            # Not `Workspace.mark`: on a full disk, this record must not outlive the new messages.
            space.cycle.commit.add(mark.kind, [records.encode_mark(mark)], records.VERSION)
            space.messages.apply_mark(mark)
        numbers = [0] * len(redrive.tokens)
        for new_number, place in enumerate(again.places, first):
            numbers[place] = new_number
        space.answer(client, Redriven(numbers, redrive.cookie))

    def _again(self, redrive: Redrive) -> _Again:
        """What a re-drive enqueues. Raises Refused."""
        space = self._space
        found: list[int] = []
        dead: list[Reference] = []
        target = 0
        for place, token in enumerate(redrive.tokens):
            subqueue = space.locks.subqueue_of(token, space.arrived_ms)
            if subqueue is None:
                continue
            _check_dead_letters(subqueue)
            target = subqueue.redrives_to
            reference = subqueue.references[sequence_of_token(token)]
            if self._lacks_session(subqueue, reference):
                raise Refused(
                    Reason.NOT_ALLOWED,
                    f"Message {reference.sequence_number} was sent to another entity, and "
                    f"'{space.description.path_of(subqueue.name)}' requires sessions. Receive the message, "
                    "and send it again.",
                )
            found.append(place)
            dead.append(reference)
        if target not in space.description.subqueues:
            raise Refused(Reason.ENTITY_NOT_FOUND, "The subscription of these dead letters was deleted.")
        times_to_live_ms = redrive.time_to_live_ms
        columns = of_references(dead) | {
            name: [values[place] for place in found] for name, values in redrive.columns.items()
        }
        columns.pop(DESTINATION, None)  # this entity is the destination now
        send = Send(
            [redrive.messages[place] for place in found],
            None if times_to_live_ms is None else [times_to_live_ms[place] for place in found],
            columns=columns,
            tells_numbers=True,
        )
        return _Again(send, target, found, dead)

    def _lacks_session(self, subqueue: Subqueue, dead: Reference) -> bool:
        """Whether nobody could receive the message again. A transfer to another entity that failed keeps
        neither the session of the message nor the partition that the session has here."""
        space = self._space
        rules = space.description.delivery(space.subqueues[subqueue.redrives_to].name)
        return dead.session_id is None and rules.requires_session


def restore(space: Workspace) -> None:
    """Put back the dead letters that this cycle has enqueued anew, because the disk is full."""
    for number, references in space.cycle.redriven:
        space.messages.bring_back(space.subqueues[number], references)
    let_go(space)


def let_go(space: Workspace) -> None:
    """Let go of the frames of these dead letters, because the cycle is durable or was undone."""
    for _, references in space.cycle.redriven:
        for reference in references:
            reference.frame.live -= 1
    space.cycle.redriven.clear()


def _check_dead_letters(subqueue: Subqueue) -> None:
    if subqueue.role.counts_deliveries:
        raise Refused(Reason.NOT_ALLOWED, "Only the messages of a dead-letter queue can be re-driven.")
