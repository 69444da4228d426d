"""Which clients wait to be told of something in which subqueues of one partition. Pure.

A topic may have 2,000 subscriptions, each with clients that wait, and they may all go at once. So both ways
of finding take as long as what they find.
"""

from __future__ import annotations

from collections.abc import Iterable, KeysView

from broker.identifiers import ClientId


class WaitingClients:
    """Pairs of a client and a subqueue's number."""

    __slots__ = ("_by_client", "_by_number")

    def __init__(self) -> None:
        self._by_number: dict[int, dict[ClientId, None]] = {}
        self._by_client: dict[ClientId, tuple[int, ...]] = {}
        """A tuple, because nearly every client waits in one subqueue only."""

    def __bool__(self) -> bool:
        return bool(self._by_number)

    @property
    def numbers(self) -> KeysView[int]:
        """The subqueues in which somebody waits, the one in which that began first in front."""
        return self._by_number.keys()

    def clients(self, number: int) -> Iterable[ClientId]:
        """Who waits in a subqueue, the one that began first in front."""
        return self._by_number.get(number, {})

    def add(self, client: ClientId, number: int) -> None:
        """The client waits in this subqueue. Does nothing if it did."""
        clients = self._by_number.setdefault(number, {})
        if client not in clients:
            clients[client] = None
            self._by_client[client] = (*self._by_client.get(client, ()), number)

    def take(self, number: int) -> list[ClientId]:
        """Nobody waits in this subqueue any more. Returns who did."""
        clients = list(self._by_number.pop(number, ()))
        for client in clients:
            self._leave(client, number)
        return clients

    def forget(self, client: ClientId) -> list[int]:
        """The client has gone. Returns the subqueues in which it waited."""
        numbers = self._by_client.pop(client, ())
        for number in numbers:
            clients = self._by_number[number]
            del clients[client]
            if not clients:
                del self._by_number[number]
        return list(numbers)

    def _leave(self, client: ClientId, number: int) -> None:
        left = tuple([each for each in self._by_client[client] if each != number])
        if left:
            self._by_client[client] = left
        else:
            del self._by_client[client]
