"""Places for reading pages: a partition that is late takes none from those that read others."""

from __future__ import annotations

import asyncio

import pytest

from broker.base.errors import Reason, Refused
from broker.entities.descriptions import MAIN
from broker.messaging.page_places import PAGES_AT_ONCE, PagePlaces
from broker.messaging.peeking import peek_partition
from broker.operations.browsing import Peek, Peeked
from tests.support.link_stack import LinkStack, turn, until

NOTHING = Peeked([], [], [], [], [], [], [], None)


class Reading:
    """Readers of the partitions of one queue."""

    def __init__(self) -> None:
        self.stack, self.places = LinkStack(2), PagePlaces()

    def read(self, number: int) -> asyncio.Task[Peeked | None]:
        """Begin to read a page of a partition."""
        queue = self.stack.queue
        page = self.places.read(queue, MAIN, number, lambda: peek_partition(queue, number, Peek(MAIN, 0, 5)))
        return asyncio.create_task(page)

    def asked(self, number: int) -> list[int]:
        """The counts of the peeks at a partition that were not answered."""
        return [each.count for each, _, _ in self.stack.parts[number].posted if isinstance(each, Peek)]

    async def serve(self, number: int, *readers: asyncio.Task[Peeked | None]) -> None:
        """Have a partition answer until these readers have what they want."""
        async with asyncio.timeout(20):
            while not all(each.done() for each in readers):
                while self.stack.parts[number].has(Peek):
                    self.stack.parts[number].answer(Peek, lambda _: NOTHING)
                await turn()


async def test_few_pages_are_read_at_a_time() -> None:
    reading = Reading()
    readers = [reading.read(0) for _ in range(PAGES_AT_ONCE + 2)]
    await turn()
    assert len(reading.asked(0)) == PAGES_AT_ONCE
    await reading.serve(0, *readers)
    assert [each.result() for each in readers] == [NOTHING] * len(readers)


async def test_readers_of_a_partition_that_hangs_keep_nobody_from_another_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("broker.messaging.page_places.LATE_S", 0.005)
    reading = Reading()
    crowd = [reading.read(0) for _ in range(3 * PAGES_AT_ONCE)]
    await until(lambda: not reading.places.prompt.locked())
    await reading.serve(1, other := reading.read(1))
    assert other.result() is NOTHING and not any(each.done() for each in crowd)
    assert reading.places.late.locked() and reading.stack.queue.router.late == {0}
    again = reading.read(0)
    await turn()
    assert not reading.places.prompt.locked(), "nobody tries a partition that is known to be late"
    await reading.serve(0, again, *crowd)
    assert {each.result() is NOTHING for each in crowd} == {True}
    assert not reading.stack.queue.router.late


async def test_a_late_partition_that_goes_down_is_an_error_for_its_readers() -> None:
    reading = Reading()
    reading.stack.queue.router.late.add(0)

    async def page() -> None:
        raise Refused(Reason.PARTITION_UNAVAILABLE, "It is down.")

    with pytest.raises(Refused):
        await reading.places.read(reading.stack.queue, MAIN, 0, page)
    assert not reading.places.late.locked()
