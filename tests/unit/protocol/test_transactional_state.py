"""Transactional states, read and written (AMQP 1.0 §4.5)."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.codec import Described, Symbol, UInt, ULong, decode_all, encode
from protocol.events import ErrorCondition, Outcome, TransactionalState
from protocol.transactional_state import declared, read_transactional_state, transactional_state
from tests.support.raw_amqp import ACCEPTED, ERROR, MODIFIED, RECEIVED, REJECTED, RELEASED, outcome

UNREADABLE = TransactionalState(b"")
ANNOTATIONS = {Symbol("note"): "x"}
INFO = {Symbol("DeadLetterReason"): "broken"}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, TransactionalState(b"t")),
        (outcome(ACCEPTED), TransactionalState(b"t", Outcome.ACCEPTED)),
        (outcome(RELEASED), TransactionalState(b"t", Outcome.RELEASED)),
        (Described(Symbol("amqp:accepted:list"), []), TransactionalState(b"t", Outcome.ACCEPTED)),
        (outcome(REJECTED), TransactionalState(b"t", Outcome.REJECTED)),
        (
            outcome(REJECTED, [Described(ULong(ERROR), [Symbol("a:b"), "why", INFO])]),
            TransactionalState(b"t", Outcome.REJECTED, ErrorCondition("a:b", "why", encode(INFO))),
        ),
        (
            outcome(REJECTED, [Described(Symbol("amqp:error:list"), [Symbol("a:b")])]),
            TransactionalState(b"t", Outcome.REJECTED, ErrorCondition("a:b")),
        ),
        (outcome(MODIFIED), TransactionalState(b"t", Outcome.MODIFIED)),
        (
            outcome(MODIFIED, [True, None, ANNOTATIONS]),
            TransactionalState(b"t", Outcome.MODIFIED, failed=True, annotations=encode(ANNOTATIONS)),
        ),
        (
            outcome(MODIFIED, [False, True]),
            TransactionalState(b"t", Outcome.MODIFIED, undeliverable_here=True),
        ),
    ],
)
def test_a_state_is_read_with_its_outcome(given: Any, expected: TransactionalState) -> None:
    assert read_transactional_state(encode([b"t", given])) == expected


@pytest.mark.parametrize(
    "fields",
    [
        b"",
        b"\xc0",
        b"\x53",
        encode(None),
        encode([]),
        encode([None, outcome(ACCEPTED)]),
        encode(["text"]),
        encode({"a": 1}),
        encode([b"t", UInt(1)]),
        encode([b"t", outcome(RECEIVED)]),
        encode([b"t", outcome(0x34, [b"t"])]),
        encode([b"t", Described([], [])]),
        encode([b"t", Described(ULong(REJECTED), {})]),
        encode([b"t", outcome(REJECTED, ["error"])]),
        encode([b"t", outcome(REJECTED, [Described(ULong(ERROR), [])])]),
        encode([b"t", outcome(REJECTED, [Described(ULong(ERROR), ["text"])])]),
        encode([b"t", outcome(REJECTED, [Described(ULong(0x1C), [Symbol("a:b")])])]),
        encode([b"t", outcome(MODIFIED, [1])]),
        encode([b"t", outcome(MODIFIED, [None, None, [None] * 40_000])]),
        encode([b"t", outcome(MODIFIED, [None, None, dict.fromkeys(range(40000))])]),
    ],
)
def test_what_is_no_transactional_state_names_no_transaction(fields: bytes) -> None:
    assert read_transactional_state(fields) == UNREADABLE


@pytest.mark.parametrize(
    "outcome", [Outcome.NONE, Outcome.ACCEPTED, Outcome.RELEASED, Outcome.REJECTED, Outcome.MODIFIED]
)
def test_a_state_is_written_so_that_it_reads_the_same(outcome: Outcome) -> None:
    assert read_transactional_state(transactional_state(b"t" * 32, outcome)) == TransactionalState(
        b"t" * 32, outcome
    )


def test_a_state_is_written_with_what_belongs_to_its_outcome() -> None:
    error = encode(Described(ULong(ERROR), [Symbol("a:b"), "why", INFO]))
    assert decode_all(transactional_state(b"t", Outcome.REJECTED, error=error, failed=True)) == [
        b"t",
        outcome(REJECTED, [decode_all(error)]),
    ]
    assert decode_all(transactional_state(b"t", Outcome.MODIFIED, error=error, failed=True)) == [
        b"t",
        outcome(MODIFIED, [True, False]),
    ]
    assert decode_all(transactional_state(b"t", Outcome.ACCEPTED, error=error, failed=True)) == [
        b"t",
        outcome(ACCEPTED),
    ]


def test_a_declared_state_has_the_id_of_the_transaction() -> None:
    assert decode_all(declared(b"t" * 16)) == [b"t" * 16]


def test_the_size_of_a_state_is_that_of_what_the_peer_can_make_large() -> None:
    state = TransactionalState(b"12", Outcome.REJECTED, ErrorCondition("a:b", "345", b"6789"))
    assert state.bytes == 9
    assert TransactionalState(b"12", Outcome.MODIFIED, annotations=b"345").bytes == 5
