"""A subqueue finds messages without visiting the others. Look-ups are counted."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from types import FrameType

import pytest

from broker.entities.descriptions import QUEUE_SUBQUEUES
from broker.message.changes import encode_changes
from broker.partition.changed_properties import laying_costs
from broker.partition.chunked_table import ChunkedTable
from broker.partition.clock_settings import ClockSettings
from broker.partition.order import CHUNK
from broker.partition.references import Lease, Reference, StoredFrame
from broker.partition.subqueue import REBUILT_AT_ONCE, RUN_FIRST, Subqueue
from broker.partition.work import Work
from storage.log import Position

MANY = 20_000


class Counting(ChunkedTable[Reference]):
    """References that count look-ups."""

    looks = 0

    def get(self, number: int) -> Reference | None:
        self.looks += 1
        return super().get(number)

    def get_each(self, numbers: Sequence[int]) -> Iterator[Reference | None]:
        return map(self.get, numbers)


class Number(int):
    """A sequence number that counts how often it is compared, as heaps do."""

    compared = 0

    def __lt__(self, other: int) -> bool:
        Number.compared += 1
        return int.__lt__(self, other)


def filled(
    count: int, size: int = 1, sequence_number: Callable[[int], int] = int
) -> tuple[Subqueue, Counting]:
    subqueue, references = Subqueue(0, QUEUE_SUBQUEUES[0], Work()), Counting()
    frame = StoredFrame(Position(0))
    for number in range(1, count + 1):
        references[number] = Reference(sequence_number(number), frame, 0, size, 0, None)
    subqueue.references = references
    assert max(subqueue.rebuild(ClockSettings())) == REBUILT_AT_ONCE
    references.looks = 0
    return subqueue, references


def test_a_browse_from_the_middle_does_not_visit_earlier_messages() -> None:
    subqueue, references = filled(MANY)
    page = subqueue.browse(15_000)
    assert [next(page).sequence_number for _ in range(250)] == list(range(15_000, 15_250))
    assert references.looks == 250


def test_reading_ahead_does_not_visit_messages_that_were_handed_out() -> None:
    subqueue, references = filled(MANY)
    lease = Lease(1, 1, subqueue.number, None, 1)
    subqueue.take(15_000, 1 << 40, lease, 0)
    references.looks = 0
    assert next(iter(subqueue.upcoming())).sequence_number == 15_001
    assert references.looks == 1


def test_messages_that_have_gone_are_passed_over_cheaply_although_an_older_one_stays() -> None:
    subqueue, references = filled(MANY)
    for start in range(2, 18_000, 100):
        subqueue.remove(list(range(start, start + 100)))
    references.looks = 0
    page = subqueue.browse(0)
    assert [next(page).sequence_number for _ in range(2)] == [1, 18_002]
    assert references.looks <= 2 * CHUNK
    subqueue.check()


def calls_of(work: Callable[[], object]) -> int:
    """The calls of functions, built-in ones included, that this takes."""
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.parametrize("each", [10_000, 200, 1])
def test_messages_with_changed_properties_take_no_calls_of_their_own(each: int) -> None:
    """Symptom: one message with a changed property made locking four times as slow for the whole subqueue,
    and that of dead letters, which have reasons, was never fast."""
    frame = StoredFrame(Position(0))
    references = [Reference(number, frame, 0, 1_000, 0, None) for number in range(1, MANY + 1)]
    for reference in references[each - 1 :: each]:
        reference.changed = encode_changes({"DeadLetterReason": f"number {reference.sequence_number}"})
    subqueue = Subqueue(0, QUEUE_SUBQUEUES[0], Work())
    subqueue.bring_back(references)
    assert max(subqueue.rebuild(ClockSettings())) == REBUILT_AT_ONCE and subqueue.changed_bytes
    lease = Lease(1, 1, subqueue.number, None, 1)

    def take() -> None:
        taken, _, looks = subqueue.take(MANY, 1 << 40, lease, 0)
        assert len(taken) == looks == MANY and laying_costs(taken)

    assert calls_of(take) < 300
    subqueue.check()


def test_messages_that_come_back_together_go_out_again_in_a_few_calls() -> None:
    """Symptom: to give back a message and lock it again took sixteen calls, and receivers of one queue had
    a quarter of all messages recalled from each other."""
    subqueue, references = filled(MANY)
    subqueue.references = ChunkedTable()  # this one does not count
    subqueue.references.add(list(references), list(references.values()))
    first, second = (Lease(each, each, subqueue.number, None, 1) for each in (1, 2))
    taken, _, _ = subqueue.take(1_000, 1 << 40, first, 0)
    for reference in taken:
        reference.lease = None

    def give_back_and_take() -> None:
        subqueue.unlock(taken)
        subqueue.give_back(taken)
        again, _, looks = subqueue.take(1_500, 1 << 40, second, 0)
        assert [each.sequence_number for each in again] == list(range(1, 1_501)) and looks == 1_500

    assert calls_of(give_back_and_take) < 200
    subqueue.check()


@pytest.mark.parametrize("have_come_back", [True, False])
@pytest.mark.parametrize(("size", "room"), [(16_384, 65_536), (262_144, 262_144), (1_000, 65_536)])
def test_what_does_not_fit_into_the_bytes_costs_little_however_much_is_asked_for(
    size: int, room: int, *, have_come_back: bool
) -> None:
    """Symptom: to take the four messages that fit, 2,000 left the heap of those that had come back, were
    looked up, and 1,996 went back into it: 264 microseconds a message."""
    subqueue, references = filled(16_000, size, Number)
    if have_come_back:
        taken, _, _ = subqueue.take(16_000, 1 << 50, Lease(1, 1, subqueue.number, None, 1), 0)
        for reference in taken:
            reference.lease = None
        subqueue.unlock(taken)
        for begin in range(0, len(taken), 256):
            subqueue.give_back(taken[begin : begin + 256])
    fit = -(-room // size)
    for each in range(50):
        references.looks = Number.compared = 0
        some, _, _ = subqueue.take(2_000, room, Lease(2, 2, subqueue.number, None, 1), 0)
        numbers = [reference.sequence_number for reference in some]
        assert numbers == list(range(each * fit + 1, (each + 1) * fit + 1))
        looks_max = 2 * fit + RUN_FIRST
        assert references.looks <= looks_max
        assert Number.compared <= 40 * looks_max  # half to leave the heap, half to go back
    subqueue.check()


def test_what_came_back_goes_out_in_order_past_what_has_gone_or_is_locked_since() -> None:
    subqueue, _ = filled(2_000)
    first, second, third = (Lease(each, each, subqueue.number, None, 1) for each in (1, 2, 3))
    taken, _, _ = subqueue.take(60, 1 << 40, first, 0)
    back = [reference for reference in taken if reference.sequence_number % 2]
    for reference in back:
        reference.lease = None
    subqueue.unlock(back)
    subqueue.give_back(back)
    subqueue.remove([5, 7])
    subqueue.lock_by_number([subqueue.references[each] for each in (11, 70)], second)
    some, _, _ = subqueue.take(3, 1 << 40, third, 0)
    assert [reference.sequence_number for reference in some] == [1, 3, 9]
    bounded, _, _ = subqueue.take(50, 2, third, 0)
    assert [reference.sequence_number for reference in bounded] == [13, 15], "bytes are bounded as well"
    rest, _, _ = subqueue.take(61, 1 << 40, third, 0)
    assert [reference.sequence_number for reference in rest] == [
        *range(17, 60, 2),
        *(number for number in range(61, 101) if number != 70),
    ]
    subqueue.check()
