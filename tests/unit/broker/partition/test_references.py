"""References, frames and the tables of them are hidden from the cyclic garbage collector; native code makes
runs of references."""

from __future__ import annotations

import gc
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.entities.descriptions import QueueSettings
from broker.operations.columns import COLUMNS
from broker.operations.settling import Complete, Defer
from broker.partition._new_references import learn, make
from broker.partition.references import ACTIVE, ColumnedReference, Reference, StoredFrame
from storage.log import Position
from tests.support.partition_harness import Harness


def _tracked(objects: Iterable[object]) -> set[int]:
    """The identities of the objects that the garbage collector tracks. (`gc.is_tracked` only looks at the
    type.)"""
    return set(map(id, objects)) & set(map(id, gc.get_objects()))


async def test_a_collection_takes_no_longer_because_messages_wait() -> None:
    harness = Harness()
    await harness.send(b"x")
    assert harness.task._partition is not None
    messages = harness.task._partition.messages
    gc.collect()
    before = len(gc.get_objects())
    for number in range(400):
        await harness.send(b"x", b"y", ttl=[60_000 + 50 * number, None])
    gc.collect()
    assert messages.count == 801 and len(gc.get_objects()) - before < 200, (
        "nothing for each message, frame or expiry"
    )
    assert messages.main.expiry is not None
    chunks = [*messages.main.references._chunks.values(), *messages.main.expiry._buckets._chunks.values()]
    assert len(chunks) == 2 and not _tracked([*chunks, messages._frames])


async def test_the_garbage_collector_does_not_look_at_waiting_messages_and_nothing_of_them_is_left() -> None:
    harness = Harness(QueueSettings(max_delivery_count=1))
    await harness.send(*[b"x"] * 200, ttl=[None, 60_000] * 100)
    locked = await harness.receive(1, 150)
    await harness.do(1, Complete(locked.tokens[:50]), Defer(locked.tokens[50:100]))
    assert harness.task._partition is not None
    before = list(harness.task._partition.messages.main.references.values())
    assert not _tracked([*before, *(each.frame for each in before)])
    await harness.restart(clean=True)  # locks are still held: they end with the state
    assert all(each.lease is None for each in before)
    await harness.receive(1, 10)
    assert harness.task._partition is not None
    after = list(harness.task._partition.messages.main.references.values())
    assert len(after) == 150 and not _tracked(after)
    await harness.task.stop()
    assert all(each.lease is None for each in after)


_SLOTS = (*Reference.__slots__, *(column.name for column in COLUMNS))


@settings(deadline=None)
@given(
    st.integers(0, (1 << 64) - 100),
    st.lists(
        st.tuples(
            st.integers(0, 1 << 31),
            st.sampled_from((0, 1, 1 << 45)),
            st.none() | st.integers(1, 1 << 45),
            st.binary(max_size=3),
        ),
        max_size=20,
    ),
    st.booleans(),
    st.sampled_from((Reference, ColumnedReference)),
)
def test_runs_of_references_are_what_the_class_makes_one_at_a_time(
    first: int, rows: list[tuple[int, int, int | None, bytes]], are_plain: bool, kind: type[Reference]
) -> None:
    frame, offset = StoredFrame(Position(7)), 1 << 40
    sizes = [row[0] for row in rows]
    expiries, lives, payloads = (None if are_plain else [row[place] for row in rows] for place in (1, 2, 3))
    made, numbers = make(kind, first, frame, offset, sizes, 1000, expiries, lives, payloads, ACTIVE)  # type: ignore[arg-type]
    assert numbers == list(range(first, first + len(rows)))
    for number, reference, (size, expiry, life, payload) in zip(numbers, made, rows, strict=True):
        known = (None,) if are_plain else (expiry or None, payload, life)
        expected = kind(number, frame, offset, size, 1000, *known)
        offset += size
        assert type(reference) is kind and reference.sequence_number is number
        for slot in _SLOTS:
            assert getattr(reference, slot, None) == getattr(expected, slot, None), slot
        assert reference.state is ACTIVE and reference.frame is frame


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({0: object}, TypeError),
        ({1: -1}, OverflowError),
        ({3: 1 << 63}, OverflowError),
        ({4: None}, TypeError),
        ({4: [1, -1]}, ValueError),
        ({4: [1, "x"]}, TypeError),
        ({6: [1]}, ValueError),
        ({7: [1, 2, 3]}, ValueError),
        ({8: 5}, TypeError),
    ],
)
def test_a_run_of_references_with_parts_that_do_not_fit_is_refused(
    change: dict[int, Any], error: type[Exception]
) -> None:
    arguments: list[Any] = [Reference, 1, StoredFrame(Position(0)), 0, [1, 2], 1000, None, None, None, ACTIVE]
    for place, value in change.items():
        arguments[place] = value
    with pytest.raises(error):
        make(*arguments)


def test_only_a_class_with_the_slots_of_references_is_learnt() -> None:
    with pytest.raises(AttributeError):
        learn(StoredFrame)
    with pytest.raises(TypeError):
        learn(Reference(1, StoredFrame(Position(0)), 0, 0, 0, None))  # type: ignore[type-var]
