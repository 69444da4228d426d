"""Calls that many ask for together are made a few in each turn of the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from broker.base.few import Few


class Calls:
    """Numbered calls, and in which order they were made in each turn."""

    def __init__(self, at_once: int) -> None:
        self.few = Few(at_once)
        self.made: list[int] = []
        self._calls: dict[int, Callable[[], None]] = {}

    def soon(self, *numbers: int, is_urgent: bool = False) -> None:
        for number in numbers:
            call = self._calls.setdefault(number, lambda number=number: self.made.append(number))  # type: ignore[misc]
            self.few.soon(call, is_urgent=is_urgent)

    async def turn(self) -> list[int]:
        """What was called in the next turn."""
        await asyncio.sleep(0)
        made, self.made = self.made, []
        return made


async def test_a_few_are_called_in_each_turn_in_their_order() -> None:
    calls = Calls(3)
    calls.soon(*range(7))
    assert calls.made == [], "never at once"
    assert [await calls.turn() for _ in range(4)] == [[0, 1, 2], [3, 4, 5], [6], []]
    calls.soon(0)
    assert [await calls.turn() for _ in range(2)] == [[0], []]


async def test_urgent_calls_come_first() -> None:
    calls = Calls(2)
    calls.soon(0, 1, 2, 3)
    calls.soon(4, 3, is_urgent=True)
    assert [await calls.turn() for _ in range(3)] == [[4, 3], [0, 1], [2]]


async def test_each_is_called_once_however_often_it_is_asked_for() -> None:
    calls = Calls(10)
    calls.soon(0, 0)
    calls.soon(1, 1, is_urgent=True)
    calls.soon(1)
    assert await calls.turn() == [1, 0]
    assert await calls.turn() == []


async def test_what_is_asked_for_meanwhile_is_called_in_a_later_turn() -> None:
    few, made = Few(10), list[str]()

    def ask_again() -> None:
        made.append("first")
        few.soon(lambda: made.append("second"))

    few.soon(ask_again)
    await asyncio.sleep(0)
    assert made == ["first"]
    await asyncio.sleep(0)
    assert made == ["first", "second"]
