"""Keeps large delivery states, so that there is one copy of each, however many deliveries a disposition names
(AMQP 1.0 §2.7.6).

Proton copies the state of a disposition into each delivery: properties to modify of 60 KB, for 10,000
deliveries, took 1.6 GB and held the event loop for 1.5 s. So the state is kept here, and proton gets a short
one in its place: no fields, and a descriptor that is the number of the kept state. When the engine reads a
delivery with that number, it reports the kept state.

    the peer's frame   disposition [role, first, last, settled, modified [true, false, {…}], batchable]
    proton's           disposition [role, first, last, settled, 0x80000000:00000000 [], batchable]

The numbers are in the domain of a vendor that does not exist. A peer that sends one of them by itself names
one of its own states, or none, which is like any other outcome that nobody knows.

A state is read here as tolerantly as proton reads it: what is of another type than it should be is not set.
Annotations and info are not decoded.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from protocol._runs import lib
from protocol.events import DeliveriesUpdated, ErrorCondition, Outcome, SharedState, TransactionalState
from protocol.links import Delivery, Link
from protocol.sections import fields, text_bytes
from protocol.transactional_state import read_transactional_state
from protocol.values import is_true, skip

LIGHT_BYTES = int(lib.LIGHT_DISPOSITION)
"""The largest disposition whose state is left to proton, as a frame. Proton makes up to 100 bytes of each of
its bytes, for each of its deliveries."""
FIRST_NUMBER = 1 << 63
"""The descriptor of the first state that is kept. The others follow."""
_FIELDS_MAX = 255
_NULL, _DESCRIBED, _LISTS = 0x40, 0x00, (0x45, 0xC0, 0xD0)
_U64 = struct.Struct(">Q")


@dataclass(slots=True)
class HeavyState:
    """A state, as `DeliveriesUpdated` has it."""

    outcome: int
    error: ErrorCondition | None = None
    failed: bool = False
    undeliverable_here: bool = False
    annotations: bytes = b""
    transaction: TransactionalState | None = None
    shared: SharedState = field(default_factory=SharedState)

    def update(self, link: Link, delivery: Delivery, settled: bool) -> DeliveriesUpdated:
        """What is reported of a delivery with this state. All of its deliveries share what it has."""
        return DeliveriesUpdated(
            link,
            [delivery],
            self.outcome,
            settled,
            self.error,
            self.failed,
            self.undeliverable_here,
            self.annotations,
            self.transaction,
            self.shared,
        )


class HeavyStates:
    """The states that are kept for one connection."""

    __slots__ = ("_next", "_states")

    def __init__(self) -> None:
        self._next = FIRST_NUMBER
        self._states: dict[int, HeavyState] = {}

    def find(self, number: int) -> HeavyState | None:
        """The state that is kept under a descriptor."""
        return self._states.get(number)

    def forget(self) -> None:
        """Drop all states: the engine has read every delivery that has one of them."""
        self._states.clear()

    def keep(self, state: bytes) -> bytes:
        """Keep a state, given as encoded; gives what stands for it. That is null for a state that proton
        would not report.

        Raises DecodeError, IndexError or struct.error if it is malformed. Proton might take it all the same,
        so it must not get it.
        """
        if state[0] != _DESCRIBED or state[1] not in (0x44, 0x53, 0x80):
            return bytes((_NULL,))
        value = skip(state, 1)
        outcome = 0 if state[1] == 0x44 else state[2] if state[1] == 0x53 else _U64.unpack_from(state, 2)[0]
        number, self._next = self._next, self._next + 1
        self._states[number] = _read(outcome, state, value)
        return b"\x00\x80" + _U64.pack(number) + b"\x45"


def _read(outcome: int, state: bytes, value: int) -> HeavyState:
    if outcome == Outcome.REJECTED:
        (error,) = _items(state, value, 1)
        return HeavyState(outcome, _error(error))
    if outcome == Outcome.MODIFIED:
        failed, undeliverable, annotations = _items(state, value, 3)
        has_failed, is_undeliverable = (each != b"" and is_true(each, 0) for each in (failed, undeliverable))
        return HeavyState(outcome, None, has_failed, is_undeliverable, annotations)
    if outcome == Outcome.TRANSACTIONAL:
        return HeavyState(outcome, transaction=read_transactional_state(state[value:]))
    return HeavyState(outcome)


def _items(buffer: bytes, value: int, count: int) -> list[bytes]:
    """The first elements of a list, encoded; empty for those that are null or left out."""
    found = [b""] * count
    if buffer[value] in _LISTS:
        places = fields(buffer, value, skip(buffer, value), _FIELDS_MAX)
        for place in range(min(count, len(places) - 1)):
            if buffer[places[place]] != _NULL:
                found[place] = buffer[places[place] : places[place + 1]]
    return found


def _error(encoded: bytes) -> ErrorCondition | None:
    if not encoded or encoded[0] != _DESCRIBED:
        return None
    condition, description, info = _items(encoded, skip(encoded, 1), 3)
    if not (named := _text(condition)):
        return None
    return ErrorCondition(named, _text(description), info)


def _text(encoded: bytes) -> str:
    return (text_bytes(encoded, 0) or b"").decode("utf-8", "replace") if encoded else ""
