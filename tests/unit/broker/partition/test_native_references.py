"""What C does for a run of messages is what Python says about each of them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import pytest

from broker.message.changes import encode_changes
from broker.operations.columns import KNOWN_COLUMNS
from broker.partition import _references
from broker.partition.changed_properties import laying_cost
from broker.partition.references import (
    ACTIVE,
    DEFERRED,
    STATES,
    TOKEN,
    ColumnedReference,
    Lease,
    Reference,
    StoredFrame,
)
from storage.log import Position

FIRST = 99 << 48
ROUNDS = 300
CHANGES = (
    None,
    None,
    encode_changes({"one": 1}),
    encode_changes({f"{number:05}": None for number in range(5_000)}),
)
HUGE = b"\xd1" + (1 << 24).to_bytes(4, "big") + (0x02_030406).to_bytes(4, "big") + b"\x40"
"""The head of a map with a count of four different bytes."""


def lease(nonce: int = 7) -> Lease:
    return Lease(1, nonce, 0, None, 1_000)


def some_references(chosen: random.Random, leases: Sequence[Lease | None] = (None,)) -> list[Reference]:
    frames = [StoredFrame(Position(place)) for place in range(3)]
    made: list[Reference] = []
    for number in range(FIRST, FIRST + chosen.randrange(12)):
        size, frame = chosen.choice((0, 1, 70_000)), chosen.choice(frames)
        lives_until_ms = chosen.choice((None, -5, 0, 1 << 40))
        make = chosen.choice((Reference, ColumnedReference))
        reference = make(number, frame, number, size, 5, chosen.choice((None, 6)), b"", lives_until_ms)
        reference.payload = bytes(size) if chosen.random() < 0.8 else b""
        reference.state = ACTIVE if chosen.random() < 0.9 else chosen.choice(STATES)
        reference.delivery_count = chosen.randrange(3)
        reference.changed = chosen.choice(CHANGES)
        reference.lease = chosen.choice(leases)
        frame.live += 1
        made.append(reference)
    return made


def reference_in(frame: Any) -> Reference:
    return Reference(FIRST, frame, 1, 1, 5, None)


def with_changes(changed: Any) -> Reference:
    reference = reference_in(StoredFrame(Position(0)))
    reference.changed = changed
    return reference


def can_be_locked(reference: Reference | None, now_ms: int | None) -> bool:
    if reference is None or reference.state is not ACTIVE or reference.lease is not None:
        return False
    return now_ms is None or reference.lives_until_ms is None or reference.lives_until_ms > now_ms


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_messages_are_locked_up_to_the_first_that_cannot_be(seed: int) -> None:
    chosen = random.Random(seed)
    found: list[Reference | None] = list(some_references(chosen, (None, None, None, None, lease())))
    if found and chosen.random() < 0.2:
        found[chosen.randrange(len(found))] = None
    now_ms = chosen.choice((None, 0, -6))
    left = bytes_max = chosen.choice((0, 1, 3, 80_000, 1 << 62))
    expected: list[Reference] = []
    for reference in found:
        if left <= 0 or reference is None or not can_be_locked(reference, now_ms):
            break
        left -= reference.size + laying_cost(reference)
        expected.append(reference)
    own = lease()
    before = [None if each is None else each.lease for each in found]
    assert _references.lock(found, ACTIVE, own, bytes_max, now_ms) == (expected, left)
    assert all(each.lease is own for each in expected)
    after = [None if each is None else each.lease for each in found]
    assert after[len(expected) :] == before[len(expected) :]


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_tokens_unlock_messages_up_to_the_first_that_their_lease_does_not_hold(seed: int) -> None:
    chosen = random.Random(seed)
    own, renewed, other = lease(), lease(), lease((3 << 32) + 7)
    leases = [own] * 6 + [renewed, other, None]
    references = some_references(chosen, leases)
    table = {each.sequence_number: each for each in references}
    tokens = [TOKEN.pack(each.sequence_number, own.nonce) for each in references if each.lease is own]
    if not tokens:
        return
    wrong = chosen.choice(
        [
            TOKEN.pack(FIRST - 1, own.nonce),
            b"",
            tokens[0],
            *(TOKEN.pack(each.sequence_number, 7 + (chosen.randrange(2) << 32)) for each in references),
        ]
    )
    tokens.insert(chosen.randrange(1, len(tokens) + 1), wrong)
    begin = chosen.randrange(len(tokens))
    expected: list[Reference] = []
    place = begin
    while place < len(tokens) and len(tokens[place]) == 16:
        number, nonce = TOKEN.unpack(tokens[place])
        reference = table.get(number)
        if reference is None or reference.lease is not own or nonce != own.nonce or reference in expected:
            break
        expected.append(reference)
        place += 1
    if place == begin:  # the caller has looked at the first
        return
    held = {each.sequence_number: each.lease for each in references if each not in expected}
    unlocked: list[Reference] = []
    assert _references.unlock(tokens, begin, table, own, unlocked) == place
    assert unlocked == expected and all(each.lease is None for each in expected)
    assert all(table[number].lease is each for number, each in held.items())


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_what_is_known_of_messages_is_shown_and_summed_up(seed: int) -> None:
    chosen = random.Random(seed)
    references = some_references(chosen)
    numbers = [each.sequence_number for each in references]
    assert _references.numbers(references) == numbers
    assert _references.shown(references) == tuple(
        [getattr(each, attribute) for each in references] for attribute in KNOWN_COLUMNS.values()
    )
    nonce = chosen.choice((0, 1, (1 << 64) - 1))
    assert _references.tokens(numbers, nonce) == [TOKEN.pack(number, nonce) for number in numbers]
    assert _references.tally(references, ACTIVE, DEFERRED) == (
        sum(each.size for each in references),
        sum(1 for each in references if each.state is ACTIVE),
        sum(1 for each in references if each.state is DEFERRED),
    )
    assert _references.laying_costs(references) == sum(map(laying_cost, references))
    lives = groupby(each.lives_until_ms for each in references)
    neighbours = [(until, len(list(each))) for until, each in lives]
    assert _references.lives(references) == [each for each in neighbours if each[0] is not None]


@pytest.mark.parametrize(
    "changed", [b"\xc1\x01\x00", b"\xc1\x03\x02\x40\x40", HUGE], ids=["empty", "short", "huge"]
)
def test_the_cost_of_changed_properties_follows_from_the_whole_count_in_their_head(changed: bytes) -> None:
    reference = with_changes(changed)
    assert _references.laying_costs([reference]) == laying_cost(reference)


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_frames_and_memory_let_messages_go(seed: int) -> None:
    chosen = random.Random(seed)
    references = some_references(chosen)
    gone = [each for each in references if chosen.random() < 0.7]
    chosen.shuffle(gone)
    in_memory = sum(len(each.payload) for each in gone)
    kept = {each.sequence_number: each.payload for each in references if each not in gone}
    assert _references.let_go(gone) == in_memory
    assert all(each.payload == b"" for each in gone)
    assert {each.sequence_number: each.payload for each in references if each not in gone} == kept
    for frame in {each.frame for each in references}:
        assert frame.live == sum(1 for each in references if each.frame is frame and each not in gone)


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_messages_that_are_not_in_memory_are_found_in_the_log_and_put_in(seed: int) -> None:
    chosen = random.Random(seed)
    references = some_references(chosen)
    messages = [each.payload for each in references]
    absent = [each for each in references if each.size and not each.payload]
    assert _references.missing(messages, references) == absent
    assert _references.stored_at(absent) == (
        [each.frame.position for each in absent],
        [each.offset for each in absent],
        [each.size for each in absent],
    )
    found = [b"earlier", *(b"%d" % each.sequence_number for each in absent), b"later"]
    assert _references.put_in(messages, references, found, 1) == 1 + len(absent)
    for message, reference in zip(messages, references, strict=True):
        read = reference.size and not reference.payload
        assert message == (b"%d" % reference.sequence_number if read else reference.payload)
    if absent:
        with pytest.raises(ValueError, match="one message for each"):
            _references.put_in([b""] * len(absent), absent, found[: len(absent)], 1)


def test_neighbours_that_give_the_same_are_named_once() -> None:
    assert _references.shifted([], 10) == []
    numbers = [FIRST, FIRST + 1, FIRST + 1_024, FIRST + 2_047, FIRST + 1, 0]
    first = FIRST >> 10
    assert _references.bounds(numbers) == (0, FIRST + 2_047)
    assert _references.shifted(numbers, 10) == [first, first + 1, first, 0]


@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        (_references.shown, ([object()],)),
        (_references.numbers, (("a", "tuple"),)),
        (_references.let_go, ([None],)),
        (_references.tally, ([None], ACTIVE, DEFERRED)),
        (_references.tally, ()),
        (_references.lives, ([1],)),
        (_references.lock, ([object()], ACTIVE, lease(), 1, None)),
        (_references.lock, ([], ACTIVE)),
        (_references.lock, ([with_changes("text")], ACTIVE, lease(), 1, None)),
        (_references.laying_costs, ((),)),
        (_references.laying_costs, ([None],)),
        (_references.laying_costs, ([with_changes(b"")],)),
        (_references.laying_costs, ([with_changes(b"\xc1\x00")],)),
        (_references.laying_costs, ([with_changes(b"\xd1" + bytes(7))],)),
        (_references.laying_costs, ([with_changes(b"\x40" + bytes(9))],)),
        (_references.set_costs, (1, 2)),
        (_references.set_costs, (1, 2, "text")),
        (_references.tokens, (["a"], 1)),
        (_references.unlock, ([b"short"], 0, {}, lease(), [])),
        (_references.unlock, ([bytes(16)], 1, {}, lease(), [])),
        (_references.unlock, ([bytes(16)], 0, {0: object()}, lease(0), [])),
        (_references.shifted, ([1.5], 1)),
        (_references.missing, ([b""], [None])),
        (_references.missing, ([None], [reference_in(None)])),
        (_references.missing, ([b""], [])),
        (_references.put_in, ([b""], [None], [], 0)),
        (_references.put_in, ([], [], [], None)),
        (_references.stored_at, ([None],)),
        (_references.stored_at, ([reference_in(None)],)),
    ],
)
def test_anything_else_is_refused(call: Any, arguments: tuple[Any, ...]) -> None:
    with pytest.raises(TypeError):
        call(*arguments)


def test_classes_without_the_fields_of_a_message_are_refused() -> None:
    for reference, frame in ((object, StoredFrame), (Reference, Lease)):
        with pytest.raises((TypeError, AttributeError)):
            _references.bind(reference, frame, ())  # type: ignore[arg-type]
    with pytest.raises(AttributeError):
        _references.bind(Reference, StoredFrame, ("missing",))
