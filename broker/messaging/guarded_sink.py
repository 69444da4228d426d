"""A sink for the answers of partitions, whose errors spare the partition."""

from __future__ import annotations

from collections.abc import Callable

from broker.operations.interface import Answer, Sink


def guarded(take: Callable[[Answer], None], fail: Callable[[], None]) -> Sink:
    """A sink that passes answers to `take`. The partitions' tasks call it, so an exception there must end the
    client, with `fail`, and not the partition."""

    def answered(answer: Answer) -> None:
        try:
            take(answer)
        except Exception:
            fail()

    return answered
