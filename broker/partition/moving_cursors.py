"""What a partition does with the cursors of its subqueues (AMQP contract 7.6.4). Pure.

A cursor is a bookmark: it holds no message and keeps none. It belongs to an owner, and only moves forward.
Each partition keeps its own part of a cursor. The first partition of the entity decides who owns it, and the
others follow: what it has decided is known by two times. A cursor that was born later replaces an earlier one
of the same name, of which something may be left where a deletion has not come; and an owner who got the
cursor later replaces an earlier one.
"""

from __future__ import annotations

from broker.base.errors import Reason, Refused
from broker.identifiers import ClientId
from broker.operations.streams import (
    EARLIEST,
    LATEST,
    AdvanceCursor,
    CreateCursor,
    CursorAdvanced,
    CursorDeleted,
    CursorList,
    CursorState,
    DeleteCursor,
    GetCursor,
    ListCursors,
)
from broker.partition.cursors import Cursor, Cursors
from broker.partition.keyed_entries import ENTRY_BYTES, Key
from broker.partition.reading import Reading
from broker.partition.settling_through import SettlingThrough
from broker.partition.subqueue import Subqueue
from broker.partition.workspace import Workspace

USES_PER_EXPIRY = 16
"""A use is noted this often within the time after which a cursor expires."""


class MovingCursors:
    """The cursors of one partition. Owned by the state machine."""

    __slots__ = ("_reading", "_settling", "_space")

    def __init__(self, space: Workspace, reading: Reading, settling: SettlingThrough) -> None:
        self._space, self._reading, self._settling = space, reading, settling

    @property
    def _cursors(self) -> Cursors:
        return self._space.messages.states.of(Cursors)

    def create(self, client: ClientId, create: CreateCursor) -> None:
        """Create a cursor, or give one that exists to its owner again, or to another one. Raises Refused:
        ARGUMENT, CURSOR_OWNED, QUOTA_EXCEEDED, DISK_FULL."""
        subqueue = self._space.messages.find(create.subqueue)
        key, wall_ms = (subqueue.number, create.name), self._space.cycle.wall_ms
        stored, born_ms, since_ms = self._cursors.entries.get(key), create.born_ms, create.owned_since_ms
        if born_ms is None:  # this partition decides
            if stored is not None and stored.owner != create.owner and not create.takes_over:
                raise _owned(create.name)
            born_ms = wall_ms if stored is None else stored.born_ms
            since_ms = wall_ms if stored is None else stored.owned_since_ms
            if stored is not None and stored.owner != create.owner:
                since_ms = max(wall_ms, since_ms + 1)
        elif stored is not None and (stored.born_ms, stored.owned_since_ms) > (born_ms, since_ms):
            raise _owned(create.name)
        is_new = stored is None or stored.born_ms < born_ms
        position = stored.position if stored is not None and not is_new else self._begin(subqueue, create)
        if stored is None:
            self._check_room(key, create)
        entry = Cursor(position, born_ms, since_ms, create.owner, wall_ms, create.expires_after_ms)
        self._space.record(self._cursors.record_of(key, entry))
        self._space.answer(client, self._state(subqueue, create.name, entry, create.cookie, is_new))

    def get(self, client: ClientId, get: GetCursor) -> None:
        """Say where a cursor stands. Raises Refused(CURSOR_NOT_FOUND)."""
        subqueue = self._space.messages.find(get.subqueue)
        entry = self._existing((subqueue.number, get.name))
        self._space.answer(client, self._state(subqueue, get.name, entry, get.cookie))

    def list(self, client: ClientId, listing: ListCursors) -> None:
        """Say where all cursors of a subqueue stand."""
        subqueue = self._space.messages.find(listing.subqueue)
        found = [
            self._state(subqueue, name, entry, None)
            for (number, name), entry in self._cursors.entries.items()
            if number == subqueue.number
        ]
        self._space.answer(client, CursorList(found, listing.cookie))

    def advance(self, client: ClientId, advance: AdvanceCursor) -> None:
        """Move a cursor forward. Raises Refused: CURSOR_NOT_FOUND, CURSOR_OWNED, ARGUMENT.

        Messages are completed up to the given position, even if the cursor stands beyond it: what is between
        the two was read by an earlier owner, and perhaps not by this one."""
        space = self._space
        subqueue = space.messages.find(advance.subqueue)
        key, wall_ms = (subqueue.number, advance.name), space.cycle.wall_ms
        entry = self._existing(key)
        if entry.owner != advance.owner:
            raise _owned(advance.name)
        self._reading.check_end(subqueue, advance.position)
        position = max(entry.position, advance.position)
        idle_ms = abs(wall_ms - entry.used_at_ms)  # a use before the clock was set back is noted, too
        if position > entry.position or (
            entry.expires_after_ms and idle_ms * USES_PER_EXPIRY >= entry.expires_after_ms
        ):
            space.record(self._cursors.record_of(key, entry._replace(position=position, used_at_ms=wall_ms)))

        def done(completed: int, locked: int) -> None:
            space.answer(client, CursorAdvanced(position, completed, locked, advance.cookie))

        if advance.completes:
            self._settling.start(subqueue, advance.position, done)
        else:
            done(0, 0)

    def delete(self, client: ClientId, delete: DeleteCursor) -> None:
        """Delete a cursor. Raises Refused(CURSOR_OWNED)."""
        key = self._space.messages.find(delete.subqueue).number, delete.name
        entry = self._cursors.entries.get(key)
        if entry is not None:
            if entry.owner != delete.owner and entry.owned_since_ms > delete.owned_since_ms:
                raise _owned(delete.name)
            self._space.record(self._cursors.record_of(key, None))
        self._space.answer(client, CursorDeleted(entry is not None, delete.cookie))

    def _existing(self, key: Key) -> Cursor:
        entry = self._cursors.entries.get(key)
        if entry is None:
            raise Refused(
                Reason.CURSOR_NOT_FOUND,
                f"Partition {self._space.number} has no cursor '{key[1].decode()}'. Create it first.",
            )
        return entry

    def _begin(self, subqueue: Subqueue, create: CreateCursor) -> int:
        """Where a new cursor begins."""
        if create.begin == EARLIEST:
            return self._reading.start(subqueue)
        if create.begin == LATEST:
            return self._reading.head(subqueue)
        self._reading.check_end(subqueue, create.begin)
        return max(create.begin, self._space.messages.first_number | 1)

    def _check_room(self, key: Key, create: CreateCursor) -> None:
        space = self._space
        others = sum(1 for number, _ in self._cursors.entries if number == key[0])
        if others >= create.cursors_max:
            raise Refused(
                Reason.QUOTA_EXCEEDED,
                f"'{space.description.name}' has {others} cursors here; {create.cursors_max} are the maximum "
                "(PARTIBUS_CURSORS_MAX). Delete those that are not used.",
            )
        space.check_room(ENTRY_BYTES)
        space.check_growth(ENTRY_BYTES)

    def _state(
        self, subqueue: Subqueue, name: bytes, entry: Cursor, cookie: object, is_new: bool = False
    ) -> CursorState:
        return CursorState(
            name,
            entry.owner,
            entry.position,
            self._reading.backlog(subqueue, entry.position),
            entry.expires_after_ms,
            entry.born_ms,
            entry.owned_since_ms,
            cookie,
            is_new,
        )


def _owned(name: bytes) -> Refused:
    return Refused(
        Reason.CURSOR_OWNED,
        f"The cursor '{name.decode()}' belongs to another owner. Take it over if that one is gone for good.",
    )
