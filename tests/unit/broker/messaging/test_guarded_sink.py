"""An error in what a client does with an answer ends the client, and never reaches the partition."""

from __future__ import annotations

from broker.messaging.guarded_sink import guarded
from broker.operations.general import Unavailable
from broker.operations.interface import Answer


def test_answers_are_passed_on_and_an_error_fails_the_client_alone() -> None:
    taken: list[Answer] = []
    failures: list[str] = []

    def take(answer: Answer) -> None:
        taken.append(answer)
        if len(taken) == 2:
            raise ValueError("a bug")

    sink = guarded(take, lambda: failures.append("failed"))
    for number in range(3):
        sink(Unavailable(number))
        assert failures == ["failed"][: number > 0]
    assert taken == [Unavailable(number) for number in range(3)]
