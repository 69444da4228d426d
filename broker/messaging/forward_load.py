"""Messages to forward, ready for the entity that they go to: checked, placed, and each with its trail.

They take the way of a client's messages (`sending.py`): the same checks, keys and partitions. A message
without a key goes to a partition that depends only on its sequence number. So if it is forwarded a second
time because of a crash, it comes to the same partition, and that one knows it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from broker.base.errors import Reason, Refused
from broker.identifiers import PARTITION_SHIFT, partition_of
from broker.message.changes import DEAD_LETTER_DESCRIPTION, DEAD_LETTER_REASON, encode_changes
from broker.message.forwarded import HOPS_MAX, Trail, as_sent, trail_of, with_trail
from broker.message.property_sizes import METADATA_BYTES_MAX
from broker.message.stored import store_run
from broker.messaging.sending import check, keys_of, too_large
from broker.messaging.sends import send_of
from broker.namespace.entity import Entity
from broker.operations.receiving import Locked
from broker.operations.sending import Send
from broker.send_lists import at, merged, part_of

PREPARED_AT_ONCE = 64
"""Messages that one turn of the event loop prepares at most: about half a millisecond."""
PREPARED_BYTES = 2 * METADATA_BYTES_MAX
"""A turn ends after so many bytes that may be properties: two messages with thousands of them take some
milliseconds."""
RUN_SHIFT = 6
"""Messages without a key go to the same partition in runs of 64 sequence numbers."""


class Rejection(NamedTuple):
    """Why a message cannot be forwarded, as its dead letter says (AMQP contract 10.4)."""

    reason: str
    description: str

    def as_changes(self) -> bytes | None:
        """The properties of the dead letter."""
        return encode_changes({DEAD_LETTER_REASON: self.reason, DEAD_LETTER_DESCRIPTION: self.description})


TOO_MANY_HOPS = Rejection(
    "MaxTransferHopCountExceeded",
    f"The maximum number of allowed hops is exceeded: the message was forwarded {HOPS_MAX} times.",
)
TOO_LARGE = "MessageSizeExceededException"
_REASONS = {
    Reason.NOT_ALLOWED: "Session id is null.",
    Reason.MESSAGE_TOO_LARGE: TOO_LARGE,
    Reason.ENTITY_NOT_FOUND: "MessagingEntityNotFoundException",
    Reason.ENTITY_DISABLED: "MessagingEntityDisabledException",
    Reason.QUOTA_EXCEEDED: "QuotaExceededException",
}
"""The dead-letter reason for each refusal that trying again does not help. The service documents only the
first; the others are the exceptions that a sender would get."""


def rejection_of(why: Refused) -> Rejection | None:
    """The rejection that follows from a refusal; None if it helps to try again."""
    reason = _REASONS.get(why.reason)
    return None if reason is None else Rejection(reason, why.description)


@dataclass(slots=True)
class Prepared:
    """The messages of one `Locked`, which are named by their places in it."""

    groups: dict[int, list[int]] = field(default_factory=dict)
    """By partition: the places of the messages that go there."""
    rejected: dict[Rejection, list[int]] = field(default_factory=dict)
    sends: list[Send] = field(default_factory=list)
    """The other messages, in pieces."""
    indexes: dict[int, int] = field(default_factory=dict)
    """By place: where the message is, counted over all pieces."""

    def send_of(self, places: Sequence[int]) -> Send:
        """What enqueues the messages of these places."""
        whole = merged(self.sends)
        self.sends = [whole]
        return part_of(whole, at([self.indexes[place] for place in places]))

    def reject(self, place: int, why: Rejection) -> None:
        """Note that the message at this place cannot be forwarded."""
        self.rejected.setdefault(why, []).append(place)


async def prepare(
    target: Entity,
    locked: Locked,
    *,
    message_id: Callable[[], str],
    dead_letter_source: str | None = None,
    is_transfer: bool = False,
) -> Prepared:
    """Prepare messages for an entity. `dead_letter_source`: the entity whose dead letters they are.
    `is_transfer`: they were sent to this entity through another one, so that counts as no hop, and their
    schedules have not come yet."""
    prepared = Prepared()
    for places in pieces_of(locked):
        if places.start:
            await asyncio.sleep(0)
        _prepare_some(prepared, target, locked, places, dead_letter_source, is_transfer, message_id)
    return prepared


def pieces_of(locked: Locked) -> Iterator[range]:
    """The places of messages that one turn of the event loop prepares."""
    begin = size = 0
    for place, (message, changed) in enumerate(zip(locked.messages, locked.changed, strict=True)):
        size += min(len(message), METADATA_BYTES_MAX) + len(changed or b"")
        if size >= PREPARED_BYTES or place + 1 - begin == PREPARED_AT_ONCE:
            yield range(begin, place + 1)
            begin, size = place + 1, 0
    if begin < len(locked.messages):
        yield range(begin, len(locked.messages))


def _prepare_some(
    prepared: Prepared,
    target: Entity,
    locked: Locked,
    places: Sequence[int],
    dead_letter_source: str | None,
    is_transfer: bool,
    message_id: Callable[[], str],
) -> None:
    trails: list[Trail] = []
    payloads: list[bytes] = []
    taken: list[int] = []
    for place in places:
        stored = locked.messages[place]
        trail = trail_of(stored, locked.sequence_numbers[place])
        if trail.hops >= HOPS_MAX and not is_transfer:
            prepared.reject(place, TOO_MANY_HOPS)
            continue
        payload = as_sent(stored, locked.changed[place])
        if len(payload) > target.message_bytes_max:
            prepared.reject(place, Rejection(TOO_LARGE, too_large(target, len(payload)).description))
            continue
        source = trail.dead_letter_source if dead_letter_source is None else dead_letter_source
        trails.append(Trail(trail.hops + (not is_transfer), trail.original, source))
        payloads.append(payload)
        taken.append(place)
    run = store_run(payloads, message_id)
    check(run, target)
    for index, trail in enumerate(trails):
        if index not in run.refused:
            try:
                run.data[index] = with_trail(run.data[index], trail)
            except Refused as why:
                run.refused[index] = why
    for index, refused in run.refused.items():
        prepared.reject(taken[index], _rejection(refused))
    keys = keys_of(run, target) or [None] * len(taken)
    offset = sum(len(send.messages) for send in prepared.sends)
    send = send_of(run, target)
    if not is_transfer:
        send.scheduled_ms = None  # its time had come when it became active at the source
    prepared.sends.append(send)
    for index, (place, key) in enumerate(zip(taken, keys, strict=True)):
        if index not in run.refused:
            if key is None:
                number = _place_of(locked.sequence_numbers[place], target)
            else:
                number = target.router.number_of(key)
            prepared.groups.setdefault(number, []).append(place)
            prepared.indexes[place] = offset + index


def _place_of(sequence_number: int, target: Entity) -> int:
    """The partition for a message without a key."""
    counter = sequence_number & (1 << PARTITION_SHIFT) - 1
    return ((counter >> RUN_SHIFT) + partition_of(sequence_number)) % target.description.partitions


def _rejection(why: Refused) -> Rejection:
    """The rejection of a message that this entity cannot store as it is."""
    if why.reason is Reason.MESSAGE_TOO_LARGE:
        return Rejection("HeaderSizeExceeded", why.description)
    return rejection_of(why) or Rejection(why.reason.value, why.description)
