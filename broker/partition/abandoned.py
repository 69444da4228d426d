"""Removes what is left in subqueues that were deleted, a bounded number of messages and states per cycle.
Pure.

Nothing says durably that a subqueue was deleted but the description of the entity. So this begins again
whenever a partition opens, and ends when nothing is left.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice

from broker.partition import records
from broker.partition.cursors import Cursors
from broker.partition.durable_state import NewRecord
from broker.partition.records import Mark
from broker.partition.references import Lease, Reference
from broker.partition.session_states import SessionStates, set_state
from broker.partition.workspace import Workspace


class Abandoned:
    """Owned by the state machine."""

    __slots__ = ("_space", "_states", "_subqueues")

    def __init__(self, space: Workspace) -> None:
        self._space = space
        self._subqueues = space.messages.subqueues.abandoned()
        self._states = self._removals()
        """Looks at the states of sessions, and at cursors; None once it has seen all of them."""

    def look(self) -> None:
        """The set of subqueues has changed."""
        self._subqueues = self._space.messages.subqueues.abandoned()
        self._states = self._removals()

    @property
    def has_more(self) -> bool:
        """Whether the next cycle has something to remove."""
        return bool(self._subqueues) or self._states is not None

    def remove_some(self) -> None:
        """Remove as much as one cycle may. Call this before the cycle's operations."""
        space = self._space
        left = space.bounds.deleted_max
        while self._subqueues and left > 0:
            subqueue = self._subqueues[-1]
            references = list(islice(subqueue.references.values(), left))
            left -= len(references)
            locked: dict[Lease, list[Reference]] = {}
            for reference in references:
                if reference.lease is not None:
                    locked.setdefault(reference.lease, []).append(reference)
            for lease, of_lease in locked.items():
                space.locks.take_back(lease, of_lease)
            if references:
                space.mark(Mark(records.REMOVED, subqueue.number, [r.sequence_number for r in references]))
            if not subqueue.references:
                self._subqueues.pop()
        if self._states is None or self._subqueues or left <= 0:
            return
        some = list(islice(self._states, left))
        for removal in some:
            if removal is not None:
                space.record(removal)
        if len(some) < left:
            self._states = None

    def _removals(self) -> Iterator[NewRecord | None] | None:
        """For each state of a session and each cursor: the record that removes it, if its subqueue is gone.
        None if there is nothing to look at."""
        table, states = self._space.description.subqueues, self._space.messages.states
        if len(table) >= table.end:
            return None  # no subqueue was ever deleted
        sessions, cursors = states.of(SessionStates), states.of(Cursors)
        if not (sessions.entries or cursors.entries):
            return None
        of_sessions = (
            set_state(*key, None, self._space.cycle.wall_ms)
            if key[0] not in table and key in sessions.entries
            else None
            for key in sessions.entries.walk()
        )
        of_cursors = (
            cursors.record_of(key, None) if key[0] not in table and key in cursors.entries else None
            for key in [*cursors.entries]
        )
        return chain(of_sessions, of_cursors)
