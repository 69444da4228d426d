"""What a salvaged partition may hold in an older form, because commits that changed it cannot be read. Pure.

A record says what is true from then on, so what a record after the last gap has set is certain. All else may
have been changed in a gap: it is then as it was before, or gone if it was new there. A name that only records
in a gap have mentioned is not known to anybody; those of sessions are also known from their messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from broker.partition.cursors import Cursors
from broker.partition.messages import Messages
from broker.partition.session_states import SessionStates
from broker.partition.sink_ledger import SinkLedger
from broker.partition.state_kinds import DurableStates
from storage.log import Record

SESSION_STATE = "session-state"

Key = tuple[int, bytes]
"""The number of a subqueue, and a name."""


class OlderEntry(NamedTuple):
    """Something with a name that clients know."""

    kind: str
    """SESSION_STATE, "cursor" or "sink"."""
    subqueue: str
    """The name of its subqueue; empty for the main one, and for sinks."""
    name: str


@dataclass(slots=True)
class Older:
    """What may be older than clients were told, or gone."""

    before: int | None
    """Messages with lower sequence numbers may be in an older state: not settled, deferred or scheduled yet,
    or with fewer deliveries. None: all messages."""
    messages: int
    """How many of those that are kept have such numbers."""
    entries: list[OlderEntry] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    """Other kinds of state that the partition keeps, by the names of their sections: their entries have no
    names."""

    def as_json(self) -> dict[str, Any]:
        """For programs, and for `report.json`."""
        return {
            "before": self.before,
            "messages": self.messages,
            "entries": [each._asdict() for each in self.entries],
            "kinds": self.kinds,
        }


class Doubts:
    """Follows a salvage through the log."""

    __slots__ = ("_before", "_sure", "is_any")

    def __init__(self) -> None:
        self.is_any = False
        """Whether anything may have been changed in a gap."""
        self._before: int | None = None
        self._sure: dict[str, set[Key]] = {}
        """What records after the last gap have set, by kind."""

    def gap(self) -> None:
        """Commits are missing here."""
        self.is_any, self._before = True, None
        self._sure = {}

    def applied(self, record: Record, states: DurableStates) -> None:
        """A record of a durable state was applied."""
        if self.is_any:
            for kind, state in _named(states):
                if record.kind in state.record_kinds:
                    self._sure.setdefault(kind, set()).add(state.key_of(record))

    def goes_on(self, number: int) -> None:
        """After a gap, this sequence number is the next one."""
        if self.is_any and self._before is None:
            self._before = number

    def found(self, messages: Messages) -> Older | None:
        """What may be older in these messages and states; None if nothing may."""
        if not self.is_any:
            return None
        before = self._before
        count = sum(
            before is None or number < before
            for subqueue in messages.subqueues
            for number in subqueue.references
        )
        names = {subqueue.number: subqueue.name for subqueue in messages.subqueues}
        entries = [
            OlderEntry(kind, names.get(number, ""), name.decode(errors="replace"))
            for kind, state in _named(messages.states)
            for number, name in sorted(
                _known(kind, state.entries, messages) - self._sure.get(kind, frozenset())
            )
        ]
        named = {state.name for _, state in _named(messages.states)}
        kinds = [
            state.name
            for state in messages.states.all
            if state.name not in named and next(iter(state.as_records()), None) is not None
        ]
        return Older(before, count, entries, kinds)


def _known(kind: str, entries: Iterable[Key], messages: Messages) -> set[Key]:
    known = set(entries)
    if kind == SESSION_STATE:
        known.update(
            (subqueue.number, reference.session_id)
            for subqueue in messages.subqueues
            for reference in subqueue.references.values()
            if reference.session_id is not None
        )
    return known


def _named(states: DurableStates) -> Iterator[tuple[str, SessionStates | Cursors | SinkLedger]]:
    """The states whose entries have names that clients know, each with the kind of its entries."""
    for state in states.all:
        if isinstance(state, SessionStates):
            yield SESSION_STATE, state
        elif isinstance(state, Cursors):
            yield "cursor", state
        elif isinstance(state, SinkLedger):
            yield "sink", state
