"""An error in what a client does with an answer ends the client, and never reaches the partition."""

from __future__ import annotations

from broker.messaging.guarded_sink import guarded
from broker.operations.general import Unavailable
from broker.operations.interface import Answer


class Client:
    """Takes answers, and has a bug that the second one shows."""

    def __init__(self) -> None:
        self.taken: list[Answer] = []
        self.failures = 0

    def _fail(self) -> None:
        self.failures += 1

    @guarded
    def answered(self, answer: Answer) -> None:
        self.taken.append(answer)
        if len(self.taken) == 2:
            raise ValueError("a bug")


def test_answers_are_passed_on_and_an_error_fails_the_client_alone() -> None:
    client = Client()
    for number in range(3):
        client.answered(Unavailable(number))
        assert client.failures == (number > 0)
    assert client.taken == [Unavailable(number) for number in range(3)]
