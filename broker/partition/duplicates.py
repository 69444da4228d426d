"""Durable state: the message-ids sent within the window of duplicate detection (AMQP contract 10.5). Pure.

A message-id comes as an *identity*: 120 bits of a keyed hash over the id and the key that places the message
(`broker/message/identity.py`). If two different ids had the same identity within a window, the second message
would be lost. With a million ids in the window, the chance of that is one in 10^24, and nobody outside can
compute identities.

Identities are kept in *slots*, in the order in which they came, for a part of the window each. A slot is
forgotten as a whole when the window has passed since its latest identity, so an identity is remembered for at
most one part in SLOTS_PER_WINDOW longer than the window. A lookup looks at the exact time of the slot, so it
does not matter when a slot that has ended is removed.

    24 SENT_IDS  offset  size  field                       a slot in a block of the section "message-ids":
                      0     8  slot                             0     8  time of the latest, wall time
                      8     8  sent at, wall time               8   15n  identities
                     16   15n  identities

A block holds one slot and has its number. Slots are numbered by positions in the log, so no number ever comes
again. All numbers are little endian. The window counts in monotonic time; only a restart has to go by wall
time.

Memory is about 100 bytes for each identity: an object of 48 bytes, its place in the table and in the slot.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator, Sequence

from broker.base.errors import Reason, Refused
from broker.partition._untracked import untrack
from broker.partition.blocks import InBlocks
from broker.partition.divided_table import DividedTable
from broker.partition.durable_state import NewRecord
from broker.partition.tables import UnreadableRecord
from storage.log import Position, Record

SENT_IDS = 24
IDENTITY_BYTES = 15
"""With 15 bytes, the object of an identity takes 48 bytes; with 16 it would take 64."""
MEMORY_BYTES = 100
"""The memory that one identity takes."""
SLOTS_PER_WINDOW = 64
SLOT_MAX = 2048
"""Identities in one slot: it is encoded, or forgotten, in less than a millisecond."""
FORGOTTEN_AT_ONCE = 2
"""Slots that one cycle forgets."""
DROPPED_AT_ONCE = 2048
"""Identities that one step of `drop` frees: less than a millisecond."""
_RECORD, _BLOCK = struct.Struct("<QQ"), struct.Struct("<Q")


class _Slot:
    __slots__ = ("begun_ms", "identities", "now_ms", "number", "wall_ms")

    def __init__(self, number: int, begun_ms: int | None = None) -> None:
        self.number = number
        """Also the value in the table; one object for all of its identities."""
        self.identities: list[bytes] = []
        self.begun_ms = begun_ms
        """Monotonic time of its first identity; None if the slot was read back, and so takes no more."""
        self.now_ms: int | None = None
        """Monotonic time of its latest identity; None until the first cycle after it was read back."""
        self.wall_ms = 0
        """The same in wall time."""
        untrack([self.identities])


class Duplicates(InBlocks):
    """The identities of one partition. Owned by its state machine."""

    def __init__(self) -> None:
        super().__init__()
        self.name, self.version = "message-ids", 1
        self.record_kinds: Collection[int] = (SENT_IDS,)
        self._known: DividedTable[bytes, int] = DividedTable()
        """Numbers of slots by identity."""
        self.slots: dict[int, _Slot] = {}
        """By number, ascending."""
        self._latest: _Slot | None = None
        self._unanchored = False
        """Whether a slot has no monotonic time yet."""

    @property
    def count(self) -> int:
        """Identities, including those of slots that have ended but are not forgotten."""
        return self._known.count

    @property
    def state_bytes(self) -> int:
        """Memory used."""
        return self._known.count * MEMORY_BYTES

    # --- looking and adding ---------------------------------------------------------------------------------

    def known(self, identities: Sequence[bytes], now_ms: int, window_ms: int) -> list[int]:
        """The places of those that were sent within the window, or that come a second time here."""
        found: list[int] = []
        here: set[bytes] = set()
        number_of, slots = self._known.get, self.slots
        for place, identity in enumerate(identities):
            number = number_of(identity)
            if number is not None:
                since_ms = slots[number].now_ms
                if since_ms is not None and since_ms + window_ms > now_ms:
                    found.append(place)
                    continue
            if identity in here:
                found.append(place)
            here.add(identity)
        return found

    def records_of(
        self, identities: Sequence[bytes], now_ms: int, wall_ms: int, window_ms: int, position: Position
    ) -> Iterator[NewRecord]:
        """The records of these identities. Each must be written and applied before the next is taken;
        `position` is that of the commit."""
        start = 0
        while start < len(identities):
            slot = self._slot_for(now_ms, window_ms, position)
            stop = start + SLOT_MAX - len(slot.identities)
            body = _RECORD.pack(slot.number, wall_ms) + b"".join(identities[start:stop])
            yield NewRecord(SENT_IDS, body)
            slot.now_ms = now_ms
            start = stop

    def _slot_for(self, now_ms: int, window_ms: int, position: Position) -> _Slot:
        latest = self._latest
        if (
            latest is None
            or latest.begun_ms is None
            or len(latest.identities) >= SLOT_MAX
            or now_ms - latest.begun_ms >= window_ms // SLOTS_PER_WINDOW
        ):
            number = position if latest is None else max(position, latest.number + 1)
            latest = self._latest = self.slots[number] = _Slot(number, now_ms)
        return latest

    # --- time -----------------------------------------------------------------------------------------------

    def forget_old(self, now_ms: int, wall_ms: int, window_ms: int, position: Position) -> None:
        """Forget slots that have ended, a few at a time. Marks their blocks with `position`, the end of the
        log."""
        if self._unanchored:
            for slot in self.slots.values():
                if slot.now_ms is None:
                    slot.now_ms = now_ms - min(max(wall_ms - slot.wall_ms, 0), window_ms)
            self._unanchored = False
        for _ in range(FORGOTTEN_AT_ONCE):
            due_ms = self.next_due_ms(window_ms)
            if due_ms is None or due_ms > now_ms:
                return
            slot = next(iter(self.slots.values()))
            self._changed.touch_blocks((slot.number,), position)
            self._remove(slot)

    def next_due_ms(self, window_ms: int) -> int | None:
        """When the next slot ends, in monotonic time; None if there is none."""
        slot = next(iter(self.slots.values()), None)
        return None if slot is None else (slot.now_ms or 0) + window_ms

    def _remove(self, slot: _Slot) -> None:
        for identity in slot.identities:
            self._take_out(slot, identity)
        del self.slots[slot.number]
        if slot is self._latest:
            slot.begun_ms = None  # its number must not come again

    def _take_out(self, slot: _Slot, identity: bytes) -> None:
        if self._known.get(identity) == slot.number:  # else it was sent again after the window
            del self._known[identity]

    # --- records --------------------------------------------------------------------------------------------

    def apply(self, record: Record, position: Position) -> None:
        """Remember the identities of messages. Raises UnreadableRecord."""
        count, rest = divmod(len(record.body) - _RECORD.size, IDENTITY_BYTES)
        if record.version != 1 or rest or count < 0:
            raise UnreadableRecord(
                f"record kind {record.kind} has version {record.version} and {len(record.body)} bytes"
            )
        number, wall_ms = _RECORD.unpack_from(record.body)
        self._changed.touch_blocks((number,), position)
        self._add(number, wall_ms, bytes(record.body[_RECORD.size :]))

    def undo(self, record: Record, position: Position) -> None:
        """Forget the identities of a send that was refused."""
        number, _ = _RECORD.unpack_from(record.body)
        slot = self.slots[number]
        for _ in range((len(record.body) - _RECORD.size) // IDENTITY_BYTES):
            self._take_out(slot, slot.identities.pop())

    def as_records(self) -> Iterator[NewRecord]:
        """Everything, as records."""
        for slot in self.slots.values():
            yield NewRecord(SENT_IDS, _RECORD.pack(slot.number, slot.wall_ms) + b"".join(slot.identities))

    def _add(self, number: int, wall_ms: int, identities: bytes) -> None:
        slot = self.slots.get(number)
        if slot is None:
            slot = self._latest = self.slots[number] = _Slot(number)
        if slot.now_ms is None:
            self._unanchored = True
        slot.wall_ms = wall_ms
        known, number = self._known, slot.number
        for start in range(0, len(identities), IDENTITY_BYTES):
            identity = identities[start : start + IDENTITY_BYTES]
            known[identity] = number
            slot.identities.append(identity)

    # --- checkpoints ----------------------------------------------------------------------------------------

    def encode(self, block: int) -> bytes:
        slot = self.slots.get(block)
        if slot is None or not slot.identities:
            return b""
        return _BLOCK.pack(slot.wall_ms) + b"".join(slot.identities)

    def decode(self, block: int, data: bytes) -> None:
        if len(data) < _BLOCK.size or (len(data) - _BLOCK.size) % IDENTITY_BYTES:
            raise UnreadableRecord(f"a checkpoint has {len(data)} bytes of message-ids in block {block}")
        self._add(block, _BLOCK.unpack_from(data)[0], data[_BLOCK.size :])

    def cost(self, base: Position | None) -> int:
        changed = self._changed.count_since(base)
        identities = min(changed * SLOT_MAX, sum(len(slot.identities) for slot in self.slots.values()))
        return identities * IDENTITY_BYTES + changed * _BLOCK.size + 40 * len(self._changed)

    def drop(self) -> Iterator[None]:
        """Free the memory, in steps."""
        self._latest = None
        while self.slots:
            self.slots.popitem()
            yield
        while self._known.pop_some(DROPPED_AT_ONCE):
            yield

    def check(self) -> None:
        """Assert all invariants."""
        self._changed.check_blocks({number for number, slot in self.slots.items() if slot.identities})
        assert list(self.slots) == sorted(self.slots)
        self._known.check()
        for identity, number in self._known.items():
            assert identity in self.slots[number].identities
        assert self._unanchored or all(slot.now_ms is not None for slot in self.slots.values())


def check_count(entity: str, number: int, count: int, added: int, limit: int) -> None:
    """Check that a partition may remember more message-ids. Raises Refused(QUOTA_EXCEEDED)."""
    if count + added > limit:
        raise Refused(
            Reason.QUOTA_EXCEEDED,
            f"Partition {number} of '{entity}' remembers {count} message-ids to detect duplicates, and the "
            f"limit is {limit}. Shorten the window (DuplicateDetectionHistoryTimeWindow) or send less.",
        )
