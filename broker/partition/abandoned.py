"""Removes what is left in subqueues that were deleted, a bounded number of messages per cycle. Pure.

Nothing says durably that a subqueue was deleted but the description of the entity. So this begins again
whenever a partition opens, and ends when nothing is left.
"""

from __future__ import annotations

from itertools import islice

from broker.partition import records
from broker.partition.cursors import Cursors
from broker.partition.records import Mark
from broker.partition.references import Lease, Reference
from broker.partition.session_states import SessionStates, set_state
from broker.partition.workspace import Workspace


class Abandoned:
    """Owned by the state machine."""

    __slots__ = ("_has_states", "_space", "_subqueues")

    def __init__(self, space: Workspace) -> None:
        self._space = space
        self._subqueues = space.messages.subqueues.abandoned()
        self._has_states = self._may_have_states()
        """States of sessions, or cursors, may be left."""

    def look(self) -> None:
        """The set of subqueues has changed."""
        self._subqueues = self._space.messages.subqueues.abandoned()
        self._has_states = self._may_have_states()

    @property
    def has_more(self) -> bool:
        """Whether the next cycle has something to remove."""
        return bool(self._subqueues) or self._has_states

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
        if not self._subqueues and self._has_states:
            self._has_states = False
            self._remove_states()

    def _may_have_states(self) -> bool:
        table = self._space.description.subqueues
        states = self._space.messages.states
        return len(table) < table.end and bool(states.of(SessionStates).entries or states.of(Cursors).entries)

    def _remove_states(self) -> None:
        space, table = self._space, self._space.description.subqueues
        for subqueue, session_id in [*space.messages.states.of(SessionStates).entries]:
            if subqueue not in table:
                space.record(set_state(subqueue, session_id, None, space.cycle.wall_ms))
        cursors = space.messages.states.of(Cursors)
        for key in [*cursors.entries]:
            if key[0] not in table:
                space.record(cursors.record_of(key, None))
