"""Encodes and decodes the delivery states of transactions (AMQP 1.0 §4.5).

    transactional-state  0x34  [txn-id, outcome]   what is said of a delivery within a transaction (§4.5.6)
    declared             0x33  [txn-id]            the answer to a declare (§4.5.5)

Proton knows neither. It hands over the fields of such a state as they came, and writes the fields that it is
given. This file does not know what a transaction is, or which ones exist.
"""

from __future__ import annotations

from typing import Any

from protocol import codec
from protocol.codec import DecodeError, Described, Symbol, ULong
from protocol.events import ErrorCondition, Outcome, TransactionalState
from protocol.values import decode_bounded

_OUTCOMES = {
    0x24: Outcome.ACCEPTED,
    0x25: Outcome.REJECTED,
    0x26: Outcome.RELEASED,
    0x27: Outcome.MODIFIED,
    "amqp:accepted:list": Outcome.ACCEPTED,
    "amqp:rejected:list": Outcome.REJECTED,
    "amqp:released:list": Outcome.RELEASED,
    "amqp:modified:list": Outcome.MODIFIED,
}
_ERROR = (0x1D, "amqp:error:list")


def read_transactional_state(fields: bytes) -> TransactionalState:
    """Decode a state from its fields, an encoded list. A state that cannot be read names no transaction: its
    txn-id is empty."""
    try:
        value, _ = decode_bounded(fields)
        txn_id, outcome = _of_types(value, bytes, Described)
        if txn_id is None:
            raise DecodeError("a transactional state without a txn-id")
        state = TransactionalState(txn_id)
        if outcome is not None:
            _read_outcome(state, outcome)
    except (DecodeError, IndexError):
        return TransactionalState(b"")
    return state


def _read_outcome(state: TransactionalState, outcome: Described) -> None:
    state.outcome = _OUTCOMES.get(_name_of(outcome), Outcome.NONE)
    if state.outcome == Outcome.NONE:
        raise DecodeError("a transactional state with an unknown outcome")
    if state.outcome == Outcome.REJECTED:
        (error,) = _of_types(outcome.value, Described)
        if error is not None:
            state.error = _error(error)
    elif state.outcome == Outcome.MODIFIED:
        failed, undeliverable_here, annotations = _of_types(outcome.value, bool, bool, dict)
        state.failed, state.undeliverable_here = bool(failed), bool(undeliverable_here)
        state.annotations = codec.encode(annotations) if annotations is not None else b""


def _error(error: Described) -> ErrorCondition:
    if _name_of(error) not in _ERROR:
        raise DecodeError("an error with another descriptor")
    condition, description, info = _of_types(error.value, Symbol, str, dict)
    if condition is None:
        raise DecodeError("an error without a condition")
    return ErrorCondition(condition, description or "", codec.encode(info) if info is not None else b"")


def _name_of(value: Described) -> Any:
    """The descriptor, if it has a type that a known descriptor may have; else None."""
    return value.descriptor if isinstance(value.descriptor, int | Symbol) else None


def _of_types(value: Any, *kinds: type) -> list[Any]:
    """The fields of a list; None for a field that is left out. Raises DecodeError if a field has another
    type."""
    if not isinstance(value, list):
        raise DecodeError("the fields are not a list")
    fields = [*value[: len(kinds)], *[None] * (len(kinds) - len(value))]
    for field, kind in zip(fields, kinds, strict=True):
        if field is not None and not isinstance(field, kind):
            raise DecodeError(f"a {type(field).__name__} where a {kind.__name__} is expected")
    return fields


def transactional_state(
    txn_id: bytes, outcome: int, *, error: bytes = b"", failed: bool = False, undeliverable_here: bool = False
) -> bytes:
    """Encode the fields of a transactional-state, which need no outcome (§4.5.8). `error` is an encoded
    error, for REJECTED; the two flags are for MODIFIED."""
    if outcome == Outcome.NONE:
        return codec.encode_list([codec.encode(txn_id)])
    fields = []
    if outcome == Outcome.REJECTED and error:
        fields = [error]
    elif outcome == Outcome.MODIFIED:
        fields = [codec.encode(failed), codec.encode(undeliverable_here)]
    described = b"\x00" + codec.encode(ULong(outcome)) + codec.encode_list(fields)
    return codec.encode_list([codec.encode(txn_id), described])


def declared(txn_id: bytes) -> bytes:
    """Encode the fields of a declared state."""
    return codec.encode_list([codec.encode(txn_id)])
