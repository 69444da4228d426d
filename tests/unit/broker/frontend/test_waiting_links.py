"""Links that wait for room are called a few in a turn, in their order, and connections take turns."""

from __future__ import annotations

import asyncio

from broker.base.few import Few
from broker.frontend.waiting_links import CONNECTIONS_AT_ONCE, LINKS_AT_ONCE, WaitingLinks


class Client:
    """A connection with numbered links, and the order in which they were called."""

    def __init__(self, later: Few, *, room: int = 1 << 30, wait_again: bool = False) -> None:
        """`wait_again`: its links wait again as soon as they are called."""
        self.room, self.called, self.wait_again = room, list[int](), wait_again
        self.has_failed = False
        self.links = WaitingLinks(later, lambda: self.room > 0, self.fail)

    def fail(self) -> None:
        self.has_failed = True

    def add(self, *numbers: int) -> None:
        for number in numbers:
            self.links.add(Numbered(self, number))


class Numbered:
    """A link, which takes one piece of room."""

    def __init__(self, client: Client, number: int) -> None:
        self._client, self._number = client, number

    def credit_granted(self) -> None:
        if self._number < 0:
            raise ValueError("a bug")
        self._client.room -= 1
        self._client.called.append(self._number)
        if self._client.wait_again:
            self._client.links.add(self)


async def test_few_links_are_called_at_once() -> None:
    client = Client(Few(1))
    client.add(*range(LINKS_AT_ONCE))
    assert client.links
    client.links.call_some()
    assert client.called == list(range(LINKS_AT_ONCE)) and not client.links


async def test_of_many_links_a_few_are_called_in_each_turn_in_the_order_in_which_they_began_to_wait() -> None:
    client = Client(Few(1))
    client.add(*range(3 * LINKS_AT_ONCE))
    client.links.call_some()
    for turn in (1, 2, 3):
        assert client.called == list(range(turn * LINKS_AT_ONCE))
        client.add(-1)  # a link that waits again is not called before the next round
        await asyncio.sleep(0)
    assert client.links and not client.has_failed


async def test_a_round_pauses_while_there_is_no_room_and_goes_on_where_it_was() -> None:
    client = Client(Few(1), room=3)
    client.add(*range(LINKS_AT_ONCE))
    client.links.call_some()
    await asyncio.sleep(0)
    assert client.called == [0, 1, 2], "nothing is called without room"
    assert client.links, "the others still wait"
    client.room = 2
    client.add(100)
    client.links.call_some()
    assert client.called == [0, 1, 2, 3, 4]
    client.room = 1 << 30
    client.links.call_some()
    client.links.call_some()
    assert client.called == [*range(LINKS_AT_ONCE), 100] and not client.links


async def test_links_that_begin_to_wait_during_a_round_are_called_if_there_was_a_write_meanwhile() -> None:
    """Symptom: a receiver with credit was given no more of its messages, because those called after it had
    nothing to write."""
    client = Client(Few(1))
    client.add(*range(3 * LINKS_AT_ONCE))
    client.links.call_some()
    client.add(100)
    client.links.call_some()  # what the first links have written
    for _ in range(3):
        await asyncio.sleep(0)
    assert client.called == [*range(3 * LINKS_AT_ONCE), 100] and not client.links


async def test_links_that_wait_again_are_called_once_more_after_a_write_and_not_for_ever() -> None:
    client = Client(Few(1), wait_again=True)
    client.add(*range(2 * LINKS_AT_ONCE))
    client.links.call_some()
    client.links.call_some()  # what the first links have written
    for _ in range(10):
        await asyncio.sleep(0)
    assert client.called == [*range(2 * LINKS_AT_ONCE)] * 2 and client.links


async def test_connections_with_many_links_take_turns() -> None:
    later = Few(CONNECTIONS_AT_ONCE)
    clients = [Client(later) for _ in range(2 * CONNECTIONS_AT_ONCE)]
    for client in clients:
        client.add(*range(4 * LINKS_AT_ONCE))
        client.links.call_some()
    for _ in range(2):
        await asyncio.sleep(0)
    assert {len(client.called) for client in clients} == {2 * LINKS_AT_ONCE}


async def test_an_unexpected_exception_in_a_later_turn_ends_its_connection_and_no_other() -> None:
    later = Few(CONNECTIONS_AT_ONCE)
    broken, sound = Client(later), Client(later)
    for client in (broken, sound):
        client.add(*range(LINKS_AT_ONCE))
    broken.add(-1)
    sound.add(100)
    for client in (broken, sound):
        client.links.call_some()
    await asyncio.sleep(0)
    assert broken.has_failed and not sound.has_failed and sound.called[-1] == 100
