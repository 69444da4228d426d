"""A sink for the answers of partitions, whose errors spare the partition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from broker.operations.interface import Answer


class Client(Protocol):
    """Whoever asks partitions."""

    def _fail(self) -> None:
        """An unexpected exception is being handled: end this client, and no other."""


C = TypeVar("C", bound=Client)


def guarded(take: Callable[[C, Answer], None]) -> Callable[[C, Answer], None]:
    """Make a method that takes answers a sink. The partitions' tasks call it, so an exception there must end
    the client, with `_fail`, and not the partition.

    A client does not keep its sink: the two would refer to each other, and only Python's collector could free
    them.
    """

    def answered(client: C, answer: Answer) -> None:
        try:
            take(client, answer)
        except Exception:
            client._fail()

    return answered
