"""Pieces of work that begin together are spread over turns of the event loop."""

from __future__ import annotations

import asyncio

from broker.base.pace import PACE_S, WOKEN_AT_ONCE, Pace
from tests.support.waiting import WAIT_S


class Work:
    """Pieces of work that each take a while, by a clock of their own."""

    def __init__(self, takes_s: float) -> None:
        self.now_s, self.takes_s = 0.0, takes_s
        self.pace = Pace(lambda: self.now_s)
        self.turn = 0
        self.done: list[tuple[int, int]] = []
        """The turn in which each piece was done, and its number."""

    async def piece(self, number: int) -> None:
        await self.pace.begin()
        self.now_s += self.takes_s
        self.done.append((self.turn, number))

    async def all(self, count: int) -> None:
        pieces = [asyncio.create_task(self.piece(number)) for number in range(count)]
        deadline = asyncio.get_running_loop().time() + WAIT_S
        while not all(each.done() for each in pieces):
            assert asyncio.get_running_loop().time() < deadline
            await asyncio.sleep(0)
            self.turn += 1

    def most_in_a_turn(self) -> int:
        return max(sum(1 for turn, _ in self.done if turn == each) for each in range(self.turn + 1))


async def test_short_pieces_all_begin_in_the_turn_in_which_they_come() -> None:
    work = Work(PACE_S / 1000)
    await work.all(100)
    assert work.most_in_a_turn() == 100


async def test_long_pieces_begin_one_in_a_turn_and_in_their_order() -> None:
    work = Work(PACE_S)
    await work.all(3 * WOKEN_AT_ONCE)
    assert work.most_in_a_turn() == 1
    assert [number for _, number in work.done] == list(range(3 * WOKEN_AT_ONCE))


async def test_pieces_share_a_turn_until_its_time_is_used() -> None:
    work = Work(PACE_S / 4)
    await work.all(40)
    assert work.most_in_a_turn() == 4


async def test_pieces_begin_in_the_order_in_which_they_come_also_while_others_come() -> None:
    """Symptom: those that were woken too late went behind all others. Of 1,000 requests of one client, some
    were carried out 900 places late."""
    work = Work(PACE_S / 6)
    pieces: list[asyncio.Task[None]] = []
    for number in range(400):
        pieces.append(asyncio.create_task(work.piece(number)))
        if number % 7 == 0:
            await asyncio.sleep(0)
            work.turn += 1
    await asyncio.wait_for(asyncio.gather(*pieces), WAIT_S)
    assert [number for _, number in work.done] == list(range(400))


async def test_who_is_cancelled_holds_nobody_up() -> None:
    work = Work(PACE_S)
    pieces = [asyncio.create_task(work.piece(number)) for number in range(4 * WOKEN_AT_ONCE)]
    await asyncio.sleep(0)
    for each in pieces[1:-1]:
        each.cancel()
    await asyncio.wait_for(pieces[-1], WAIT_S)
    assert [number for _, number in work.done] == [0, len(pieces) - 1]
