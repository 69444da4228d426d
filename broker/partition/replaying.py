"""Records as a replay takes them: in parts that each take about a millisecond, with shared numbers. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from broker.operations.message_states import MessageState
from broker.partition import columns
from broker.partition.records import Enqueued, Relocated, body_bytes
from broker.partition.references import STATES
from broker.partition.tables import UnreadableRecord

REPLAYED_AT_ONCE = 1024
"""Messages that one step of a replay handles: about a millisecond."""


def state_of(number: int) -> MessageState:
    """The state with this number in records and checkpoints. Raises UnreadableRecord."""
    if number >= len(STATES):
        raise UnreadableRecord(f"a message has the state {number}, which is unknown to this release")
    return STATES[number]


def parts_of(enqueued: Enqueued) -> Iterator[Enqueued]:
    """Split the messages into parts of REPLAYED_AT_ONCE."""
    first, enqueued_ms, sizes, expiries, offset, column_lists, scheduled_ms, targets = enqueued
    if len(sizes) <= REPLAYED_AT_ONCE:
        yield enqueued
        return
    for start in range(0, len(sizes), REPLAYED_AT_ONCE):
        stop = start + REPLAYED_AT_ONCE
        part = sizes[start:stop]
        yield Enqueued(
            first + start,
            enqueued_ms,
            part,
            None if expiries is None else expiries[start:stop],
            offset,
            columns.part_of(column_lists, slice(start, stop)),
            None if scheduled_ms is None else scheduled_ms[start:stop],
            None if targets is None else targets.part(slice(start, stop)),
        )
        offset += sum(part)


def relocated_parts(relocated: Relocated) -> Iterator[Relocated]:
    """Split the messages into parts of REPLAYED_AT_ONCE."""
    offset, numbers = relocated.messages_offset, relocated.sequence_numbers
    start = 0
    while start < len(numbers):
        stop = min(start + REPLAYED_AT_ONCE, len(numbers))
        while relocated.shares_bodies and stop < len(numbers) and numbers[stop] == numbers[stop - 1]:
            stop += 1  # the rows of one message stay together
        part = relocated.part(slice(start, stop), offset)
        yield part
        offset += body_bytes(part.sequence_numbers, part.sizes, part.shares_bodies)
        start = stop


def shared(enqueued: Enqueued) -> Enqueued:
    """Let equal sizes and expiries share one number object; reading a table creates one for each entry."""
    numbers: dict[int, int] = {}
    sizes = [numbers.setdefault(each, each) for each in enqueued.sizes]
    expiries = enqueued.expires_at_ms
    return enqueued._replace(
        sizes=sizes,
        expires_at_ms=None if expiries is None else [numbers.setdefault(each, each) for each in expiries],
    )
