"""A subqueue finds messages without visiting the others. Look-ups are counted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from broker.entities.descriptions import QUEUE_SUBQUEUES
from broker.partition.chunked_table import ChunkedTable
from broker.partition.clock_settings import ClockSettings
from broker.partition.order import CHUNK
from broker.partition.references import Lease, Reference, StoredFrame
from broker.partition.subqueue import REBUILT_AT_ONCE, Subqueue
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


def filled(count: int) -> tuple[Subqueue, Counting]:
    subqueue, references = Subqueue(0, QUEUE_SUBQUEUES[0], Work()), Counting()
    frame = StoredFrame(Position(0))
    for number in range(1, count + 1):
        references[number] = Reference(number, frame, 0, 1, 0, None)
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
