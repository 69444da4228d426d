"""All kinds of durable state, and the states of one partition together. Pure.

`durable_state.py` says what a kind of state is. Adding one to `KINDS` is enough: records, checkpoints,
repair, quotas and timers reach every state through `DurableStates`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from broker.base.clock import STEP_MS_MIN
from broker.partition.cursors import Cursors
from broker.partition.delays import Delays
from broker.partition.duplicates import Duplicates
from broker.partition.durable_state import FIRST_KIND, DurableState, Ending, NewRecord
from broker.partition.origins import Origins
from broker.partition.rule_changes import RuleChanges
from broker.partition.session_states import SessionStates
from broker.partition.sink_ledger import SinkLedger
from broker.partition.tables import UnreadableRecord
from storage.log import Position, Record

KINDS: tuple[Callable[[], DurableState], ...] = (
    Delays,
    SessionStates,
    Duplicates,
    Origins,
    Cursors,
    SinkLedger,
    RuleChanges,
)
"""All kinds of durable state. Each `Messages` starts with an empty instance of each."""

T = TypeVar("T")


class DurableStates:
    """All durable states of one partition. Owned by its state machine."""

    __slots__ = ("_ahead_ms", "_by_kind", "_ending", "all")

    def __init__(self) -> None:
        self.all: tuple[DurableState, ...] = tuple(make() for make in KINDS)
        self._ending = [state for state in self.all if isinstance(state, Ending)]
        self._ahead_ms: int | None = None
        """How far wall time is ahead of monotonic time; None until the first cycle."""
        self._by_kind: dict[int, DurableState] = {}
        for state in self.all:
            assert not self._by_kind.keys() & set(state.record_kinds), "each record kind has one owner"
            assert min(state.record_kinds) >= FIRST_KIND
            self._by_kind |= dict.fromkeys(state.record_kinds, state)

    def of(self, kind: type[T]) -> T:
        """The state of this kind."""
        return next(state for state in self.all if isinstance(state, kind))

    @property
    def duplicates(self) -> Duplicates:
        """The message-ids of duplicate detection."""
        return next((state for state in self.all if isinstance(state, Duplicates)), None) or Duplicates()

    def apply(self, record: Record, position: Position) -> None:
        """Have the state that owns a record apply it. Raises UnreadableRecord."""
        self._owner(record).apply(record, position)

    def undo(self, record: Record, position: Position) -> None:
        """Have the state that owns a record undo it."""
        self._owner(record).undo(record, position)

    def _owner(self, record: Record) -> DurableState:
        owner = self._by_kind.get(record.kind)
        if owner is None:
            raise UnreadableRecord(f"record kind {record.kind} is unknown to this release")
        return owner

    def as_records(self) -> Iterator[NewRecord]:
        """All states, as records."""
        for state in self.all:
            yield from state.as_records()

    @property
    def bytes(self) -> int:
        """Memory used by all states, in bytes."""
        return sum([state.state_bytes for state in self.all])

    def next_expiry_ms(self) -> int | None:
        """When `expire` next has something to do, in wall time; None if never."""
        due_ms = None
        for state in self._ending:
            if state.ends and (due_ms is None or state.ends[0][0] < due_ms):
                due_ms = state.ends[0][0]
        return due_ms

    def expire(self, now_ms: int, wall_ms: int, position: Position) -> None:
        """Forget what has ended at a monotonic and a wall time, in all states."""
        ahead_ms = wall_ms - now_ms
        if self._ahead_ms is None:
            self._ahead_ms = ahead_ms
        elif abs(ahead_ms - self._ahead_ms) >= STEP_MS_MIN:
            for state in self._ending:
                state.clock_set(ahead_ms - self._ahead_ms)
            self._ahead_ms = ahead_ms
        for state in self._ending:
            if state.ends and state.ends[0][0] <= wall_ms:
                state.expire(wall_ms, position)

    def drop(self) -> Iterator[None]:
        """Free the memory, in steps."""
        for state in self.all:
            yield from state.drop()

    def check(self) -> None:
        """Assert that all invariants hold."""
        for state in self.all:
            state.check()
