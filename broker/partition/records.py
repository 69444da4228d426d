"""The records of a partition's log: their kinds, versions and bytes. Encodes and decodes; knows nothing of
state or files.

All numbers are little endian. A table is one number per message, in the order of the messages. Sequence
numbers are the full 64 bits. A subqueue is given by its number: 0 main, 1 dead-letter, 2 transfer
dead-letter, 3 transfer. Times are milliseconds since the Unix epoch; an expiry of 0 means never. Every body
begins as drawn here (version 1 of each kind):

     1 ENQUEUED    messages were sent to the main subqueue
     2 REMOVED     references were removed
     3 RETURNED    a delivery failed, and the messages stay
     4 DEFERRED    messages were deferred
     5 MOVED       messages were moved to another subqueue
     6 COUNTERS    what must survive when everything before is trimmed
     7 RELOCATED   whole messages, stored here from now on
     8 CHANGED     properties were changed, and nothing else
     9 ACTIVATED   scheduled messages became active, with new sequence numbers
    10 RESCHEDULED scheduled messages have another time
    11 REMOVED_RUNS  references were removed, named by runs of consecutive sequence numbers
    16 and above  other durable state (`durable_state.py`)

    ENQUEUED                                     REMOVED, RETURNED, DEFERRED, MOVED, CHANGED
    offset  size  field                          offset  size  field
         0     8  first sequence number               0     2  subqueue
         8     8  enqueued at                         2     2  subqueue it moves to (MOVED; else 0)
        16     4  messages n                          4     2  flags: 1 = a delivery is counted
        20     2  flags: 1 = expiries,                           (MOVED, DEFERRED)
                  2 = a column part,                  6     2  zero
                  4 = schedule follow,                8     4  messages n
                  8 = targets (version 2)
        22     2  zero                               12     4  size c of the changed properties, or 0
        24    4n  sizes                              16    8n  sequence numbers
      (then   8n  expiries)                           …     c  changed properties, an encoded AMQP map
      (then   8n  schedule: when each is enqueued,
                  0 for messages that are active)
      (then    …  column part, see `columns.py`)
      (then    …  targets, see `targets.py`)
         …     …  the stored messages

    RELOCATED                                    COUNTERS
    offset  size  field                          offset  size  field
         0     4  messages n                          0     8  next sequence number
         4     4  flags: 1 = a column part follows,   8     8  latest enqueued time
                  2 = bodies are shared (version 2),
                  4 = packed (version 3)
      (then     4  size p of what is packed,
            4 + p  its size unpacked, and itself)
         8    8n  sequence numbers
         …    8n  enqueued at
         …    8n  expiries
         …    4n  sizes
         …    4n  delivery counts
         …    4n  sizes of the changed properties
         …    2n  subqueues
         …    2n  states (`references.STATES`)
         …     …  changed properties, concatenated
      (then    …  column part, see `columns.py`)
         …     …  the stored messages

    ACTIVATED
    offset  size  field
         0     8  first new sequence number
         8     8  enqueued at
        16     4  messages n
        20     4  zero
        24    8n  sequence numbers until now
      (then    …  targets, see `targets.py`; version 2)

    RESCHEDULED
    offset  size  field
         0     8  when the messages are to be enqueued
         8     4  messages n
        12     4  zero
        16    8n  sequence numbers

    REMOVED_RUNS
    offset  size  field
         0     2  subqueue
         2     2  zero
         4     4  runs n
         8    8n  first sequence number of each run
         …    4n  how many numbers each run has

A scheduled message is in the main subqueue, in the state SCHEDULED; its enqueued time is the time at which it
will be enqueued, and its expiry counts from then. ACTIVATED gives it the next sequence number and its real
enqueued time, and moves its expiry by the difference. RESCHEDULED changes the time at which it will be
enqueued, and moves its expiry likewise.

Version 2 of ENQUEUED, ACTIVATED and RELOCATED is written for topics only. Without targets, messages go to the
main subqueue, and active ones stay there. With targets, each message goes to all its targets, under one
sequence number; a message without any is not stored, and its size is 0. A RELOCATED record with shared bodies
has the rows of one sequence number next to each other, and the stored message once for all of them. Its rows
are nearly the same, and there may be dozens for a message: unpacked they would take many times the space of
the message itself. So in version 3, everything between the head and the stored messages is packed (zlib).

A RETURNED record always counts a delivery. DEFERRED records without the flag were written by releases that
did not count the delivery. A record that cannot be read (a kind or version of a later release, tables that do
not fit) raises UnreadableRecord.
"""

from __future__ import annotations

import struct
import zlib
from array import array
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from broker.partition import columns as column_parts
from broker.partition import targets as target_parts
from broker.partition.columns import NO_COLUMNS, Columns, UnreadableColumns
from broker.partition.number_runs import NumberRuns
from broker.partition.tables import UnreadableRecord, read_table, table
from broker.partition.targets import Targets
from storage.log import FRAME_HEADER_BYTES, RECORD_HEADER_BYTES, Commit, Record

ENQUEUED, REMOVED, RETURNED, DEFERRED, MOVED, COUNTERS, RELOCATED, CHANGED, ACTIVATED = range(1, 10)
RESCHEDULED, REMOVED_RUNS = 10, 11
MARKS = frozenset((REMOVED, REMOVED_RUNS, RETURNED, DEFERRED, MOVED, CHANGED))
"""The kinds that `read_mark` reads."""
VERSION, VERSION_FOR_TOPICS, VERSION_PACKED = 1, 2, 3

RELOCATED_MESSAGE_BYTES = 3 * 8 + 3 * 4 + 2 * 2
"""Size of one message's row in the tables of a RELOCATED record. The message, its changed properties and its
columns (`columns.MESSAGE_BYTES` and their values) come on top."""

_HAS_EXPIRIES, _HAS_COLUMNS, _HAS_SCHEDULE, _HAS_TARGETS = 1, 2, 4, 8
_RELOCATED_HAS_COLUMNS, _SHARES_BODIES, _IS_PACKED = 1, 2, 4
_PACKING_LEVEL = 1
"""Of zlib: equal rows pack just as well as with higher levels, in a third of the time."""
_COUNTS_DELIVERY = 1

_ENQUEUED = struct.Struct("<QQIHH")
_MARK = struct.Struct("<HHHHII")
MARK_BYTES = _MARK.size
"""A mark without its sequence numbers and changed properties."""
_COUNTERS = struct.Struct("<QQ")
_RELOCATED = struct.Struct("<II")
_PACKED = struct.Struct("<II")
_ACTIVATED = struct.Struct("<QQII")
_RESCHEDULED = struct.Struct("<QII")
_RUNS = struct.Struct("<HHI")

assert array("Q").itemsize == 8 and array("I").itemsize == 4 and array("H").itemsize == 2


RELOCATED_FRAME_BYTES = FRAME_HEADER_BYTES + RECORD_HEADER_BYTES + _RELOCATED.size
"""Bytes in a frame with one RELOCATED record before the record's tables. A column part takes
`columns.PART_BYTES` besides."""


class Enqueued(NamedTuple):
    """Messages with consecutive sequence numbers."""

    first: int
    enqueued_at_ms: int
    sizes: Sequence[int]
    expires_at_ms: Sequence[int] | None
    """None if no message expires."""
    messages_offset: int
    """Offset of the first message's bytes from the start of the frame; the others follow."""
    columns: Columns = NO_COLUMNS
    scheduled_ms: Sequence[int] | None = None
    """When each message will be enqueued, 0 for active ones; None if all are active."""
    targets: Targets | None = None
    """None if all go to the main subqueue."""


class Activated(NamedTuple):
    """Scheduled messages that become active, in the order of their new sequence numbers."""

    first: int
    """The first new sequence number; the others follow."""
    enqueued_at_ms: int
    sequence_numbers: Sequence[int]
    """Those that they have had so far."""
    targets: Targets | None = None
    """None if all stay in the main subqueue."""


class Rescheduled(NamedTuple):
    """Scheduled messages of the main subqueue that have another time now."""

    at_ms: int
    sequence_numbers: Sequence[int]


class Mark(NamedTuple):
    """A change to some messages of one subqueue."""

    kind: int
    subqueue: int
    sequence_numbers: Sequence[int]
    changed: bytes | None = None
    target: int = 0
    counts_delivery: bool = False


class Counters(NamedTuple):
    """What a partition must still know once every older record is gone."""

    next_sequence_number: int
    latest_enqueued_at_ms: int


class Relocated(NamedTuple):
    """Messages with everything known about them."""

    sequence_numbers: Sequence[int]
    enqueued_at_ms: Sequence[int]
    expires_at_ms: Sequence[int]
    sizes: Sequence[int]
    delivery_counts: Sequence[int]
    subqueues: Sequence[int]
    states: Sequence[int]
    changed: Sequence[bytes | None]
    messages_offset: int
    columns: Columns = NO_COLUMNS
    shares_bodies: bool = False
    """Rows next to each other with the same sequence number share one stored message."""

    def rows(self) -> Iterator[tuple[int, int, int, int, int, int, int, bytes | None]]:
        """Everything but the columns, one row per message."""
        tables: tuple[Any, ...] = self[:_RELOCATED_TABLES]
        return zip(*tables, strict=True)

    def part(self, here: slice, messages_offset: int) -> Relocated:
        """Some of the messages. `messages_offset` is the offset of the first of them."""
        tables: tuple[Any, ...] = self[:_RELOCATED_TABLES]
        cut: dict[str, Any] = {name: each[here] for name, each in zip(self._fields, tables, strict=False)}
        columns = column_parts.part_of(self.columns, here)
        return self._replace(**cut, messages_offset=messages_offset, columns=columns)


_RELOCATED_TABLES = Relocated._fields.index("messages_offset")
"""The number of fields with one entry per message."""


def add_enqueued(
    commit: Commit,
    first: int,
    enqueued_at_ms: int,
    sizes: Sequence[int],
    expiries: Sequence[int] | None,
    messages: Sequence[bytes],
    columns: Columns = NO_COLUMNS,
    scheduled_ms: Sequence[int] | None = None,
    targets: Targets | None = None,
) -> int:
    """Append an ENQUEUED record. Returns the offset of the first message from the start of the frame."""
    flags = 0 if expiries is None else _HAS_EXPIRIES
    column_part = column_parts.encode(columns) if columns else b""
    if column_part:
        flags |= _HAS_COLUMNS
    if scheduled_ms is not None:
        flags |= _HAS_SCHEDULE
    if targets is not None:
        flags |= _HAS_TARGETS
    head = _ENQUEUED.pack(first, enqueued_at_ms, len(sizes), flags, 0) + table("I", sizes)
    if expiries is not None:
        head += table("Q", expiries)
    if scheduled_ms is not None:
        head += table("Q", scheduled_ms)
    head += column_part
    if targets is not None:
        head += targets.encode()
    version = VERSION if targets is None else VERSION_FOR_TOPICS
    return commit.add(ENQUEUED, [head, *messages], version) + len(head)


def read_enqueued(record: Record) -> Enqueued:
    """Decode an ENQUEUED record."""
    first, enqueued_at_ms, count, flags, _ = _head(_ENQUEUED, record, VERSION_FOR_TOPICS)
    sizes, end = read_table("I", record.body, _ENQUEUED.size, count)
    expiries: array[int] | None = None
    if flags & _HAS_EXPIRIES:
        expiries, end = read_table("Q", record.body, end, count)
    scheduled: array[int] | None = None
    if flags & _HAS_SCHEDULE:
        scheduled, end = read_table("Q", record.body, end, count)
    columns, end = read_columns(record.body, end, count) if flags & _HAS_COLUMNS else (NO_COLUMNS, end)
    targets: Targets | None = None
    if flags & _HAS_TARGETS:
        targets, end = target_parts.decode(record.body, end, count)
    _fits(record, end + sum(sizes))
    return Enqueued(first, enqueued_at_ms, sizes, expiries, record.offset + end, columns, scheduled, targets)


def encode_activated(activated: Activated) -> bytes:
    """Encode the body of an ACTIVATED record."""
    first, enqueued_at_ms, numbers, targets = activated
    body = _ACTIVATED.pack(first, enqueued_at_ms, len(numbers), 0) + table("Q", numbers)
    return body if targets is None else body + targets.encode()


def read_activated(record: Record) -> Activated:
    """Decode an ACTIVATED record."""
    first, enqueued_at_ms, count, _ = _head(_ACTIVATED, record, VERSION_FOR_TOPICS)
    numbers, end = read_table("Q", record.body, _ACTIVATED.size, count)
    targets: Targets | None = None
    if record.version == VERSION_FOR_TOPICS:
        targets, end = target_parts.decode(record.body, end, count)
    _fits(record, end)
    return Activated(first, enqueued_at_ms, numbers, targets)


def encode_rescheduled(rescheduled: Rescheduled) -> bytes:
    """Encode the body of a RESCHEDULED record."""
    at_ms, numbers = rescheduled
    return _RESCHEDULED.pack(at_ms, len(numbers), 0) + table("Q", numbers)


def read_rescheduled(record: Record) -> Rescheduled:
    """Decode a RESCHEDULED record."""
    at_ms, count, _ = _head(_RESCHEDULED, record)
    numbers, end = read_table("Q", record.body, _RESCHEDULED.size, count)
    _fits(record, end)
    return Rescheduled(at_ms, numbers)


def read_columns(view: memoryview, offset: int, count: int) -> tuple[Columns, int]:
    """Decode a column part; also returns the offset after it. Raises UnreadableRecord."""
    try:
        return column_parts.decode(view, offset, count)
    except UnreadableColumns as error:
        raise UnreadableRecord(str(error)) from error


def encode_mark(mark: Mark) -> bytes:
    """Encode the body of a REMOVED, RETURNED, DEFERRED, MOVED or CHANGED record."""
    changed = mark.changed or b""
    flags = _COUNTS_DELIVERY if mark.counts_delivery else 0
    head = _MARK.pack(mark.subqueue, mark.target, flags, 0, len(mark.sequence_numbers), len(changed))
    return head + table("Q", mark.sequence_numbers) + changed


def encode_runs(subqueue: int, firsts: Sequence[int], counts: Sequence[int]) -> bytes:
    """Encode the body of a REMOVED_RUNS record."""
    return _RUNS.pack(subqueue, 0, len(firsts)) + table("Q", firsts) + table("I", counts)


def read_mark(record: Record) -> Mark:
    """Decode a record of one of the kinds in MARKS; a REMOVED_RUNS record as a REMOVED one."""
    if record.kind == REMOVED_RUNS:
        subqueue, _, count = _head(_RUNS, record)
        firsts, end = read_table("Q", record.body, _RUNS.size, count)
        counts, end = read_table("I", record.body, end, count)
        _fits(record, end)
        return Mark(REMOVED, subqueue, NumberRuns(firsts, counts))
    subqueue, target, flags, _, count, changed_size = _head(_MARK, record)
    numbers, end = read_table("Q", record.body, _MARK.size, count)
    _fits(record, end + changed_size)
    changed = bytes(record.body[end:]) if changed_size else None
    return Mark(record.kind, subqueue, numbers, changed, target, bool(flags & _COUNTS_DELIVERY))


def encode_counters(counters: Counters) -> bytes:
    """Encode the body of a COUNTERS record."""
    return _COUNTERS.pack(*counters)


def read_counters(record: Record) -> Counters:
    """Decode a COUNTERS record."""
    return Counters(*_head(_COUNTERS, record))


def add_relocated(commit: Commit, relocated: Relocated, messages: Sequence[bytes]) -> int:
    """Append a RELOCATED record, ignoring its `messages_offset`. Returns the offset of the first message.
    `messages` has one entry for each body."""
    changed = [each or b"" for each in relocated.changed]
    column_part = column_parts.encode(relocated.columns)
    flags = (_RELOCATED_HAS_COLUMNS if column_part else 0) | (
        _SHARES_BODIES if relocated.shares_bodies else 0
    )
    tables = b"".join(
        [
            table("Q", relocated.sequence_numbers),
            table("Q", relocated.enqueued_at_ms),
            table("Q", relocated.expires_at_ms),
            table("I", relocated.sizes),
            table("I", relocated.delivery_counts),
            table("I", map(len, changed)),
            table("H", relocated.subqueues),
            table("H", relocated.states),
            *changed,
            column_part,
        ]
    )
    version = VERSION
    if relocated.shares_bodies:
        version, flags = VERSION_PACKED, flags | _IS_PACKED
        packed = zlib.compress(tables, _PACKING_LEVEL)
        tables = _PACKED.pack(len(packed), len(tables)) + packed
    head = _RELOCATED.pack(len(relocated.sequence_numbers), flags) + tables
    return commit.add(RELOCATED, [head, *messages], version) + len(head)


def _unpack(view: memoryview, offset: int) -> tuple[memoryview, int]:
    """What is packed at this offset of a RELOCATED record; also returns the offset after it. Raises
    UnreadableRecord."""
    size, unpacked_size = _PACKED.unpack_from(view, offset) if offset + _PACKED.size <= len(view) else (0, 0)
    end = offset + _PACKED.size + size
    unpacking = zlib.decompressobj()
    try:
        unpacked = unpacking.decompress(view[offset + _PACKED.size : end], unpacked_size + 1)
    except zlib.error as error:
        raise UnreadableRecord(f"the packed tables of a record cannot be unpacked: {error}") from error
    if end > len(view) or len(unpacked) != unpacked_size or not unpacking.eof:
        raise UnreadableRecord(f"the packed tables of a record end at byte {end} of {len(view)}")
    return memoryview(unpacked), end


def body_bytes(sequence_numbers: Sequence[int], sizes: Sequence[int], shares_bodies: bool) -> int:
    """What the stored messages of these rows take."""
    if not shares_bodies:
        return sum(sizes)
    following = (*sequence_numbers[1:], None)
    return sum(
        size
        for number, size, after in zip(sequence_numbers, sizes, following, strict=True)
        if number != after
    )


def read_relocated(record: Record) -> Relocated:
    """Decode a RELOCATED record."""
    body = record.body
    count, flags = _head(_RELOCATED, record, VERSION_PACKED)
    begin = whole = _RELOCATED.size
    if flags & _IS_PACKED:
        body, whole = _unpack(body, begin)
        begin = 0
    numbers, end = read_table("Q", body, begin, count)
    enqueued, end = read_table("Q", body, end, count)
    expiries, end = read_table("Q", body, end, count)
    sizes, end = read_table("I", body, end, count)
    deliveries, end = read_table("I", body, end, count)
    changed_sizes, end = read_table("I", body, end, count)
    subqueues, end = read_table("H", body, end, count)
    states, end = read_table("H", body, end, count)
    changed: list[bytes | None] = []
    for size in changed_sizes:
        changed.append(bytes(body[end : end + size]) if size else None)
        end += size
    columns = NO_COLUMNS
    if flags & _RELOCATED_HAS_COLUMNS:
        columns, end = read_columns(body, end, count)
    if flags & _IS_PACKED:
        if end != len(body):
            raise UnreadableRecord(f"packed tables have {len(body)} bytes, but need {end}")
        end = whole
    shares_bodies = bool(flags & _SHARES_BODIES)
    _fits(record, end + body_bytes(numbers, sizes, shares_bodies))
    return Relocated(
        numbers,
        enqueued,
        expiries,
        sizes,
        deliveries,
        subqueues,
        states,
        changed,
        record.offset + end,
        columns,
        shares_bodies,
    )


def _head(layout: struct.Struct, record: Record, latest: int = VERSION) -> tuple[int, ...]:
    if not VERSION <= record.version <= latest:
        raise UnreadableRecord(
            f"record kind {record.kind} has version {record.version}; this release reads up to {latest}"
        )
    if len(record.body) < layout.size:
        raise UnreadableRecord(
            f"record kind {record.kind} has {len(record.body)} bytes, its head alone has {layout.size}"
        )
    return layout.unpack_from(record.body)


def _fits(record: Record, size: int) -> None:
    if size != len(record.body):
        raise UnreadableRecord(
            f"record kind {record.kind} has {len(record.body)} bytes, but its tables need {size}"
        )
