"""Trying again: ever longer pauses, an end, and a new beginning after progress."""

from __future__ import annotations

from itertools import islice

import pytest

from pyspark_partibus.client import patience
from pyspark_partibus.client.patience import Attempts, Patience, patiently, pauses
from pyspark_partibus.errors import Refused, Unavailable


class Clock:
    """Time that passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(patience, "time", clock)
    return clock


def test_pauses_grow_up_to_a_bound() -> None:
    assert list(islice(pauses(), 8)) == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]


def test_it_gives_up_when_patience_is_at_its_end(clock: Clock) -> None:
    asked = []

    def fails() -> None:
        asked.append(clock.now)
        raise Unavailable("down")

    with pytest.raises(Unavailable, match="down"):
        patiently(fails, Patience(1, 10))
    assert 100 < clock.now <= 110
    assert len(asked) == 7


def test_without_patience_it_tries_once(clock: Clock) -> None:
    with pytest.raises(Unavailable):
        Attempts(Patience(1, 0)).failed(Unavailable("down"))
    assert clock.now == 100


def test_progress_begins_a_new_count(clock: Clock) -> None:
    attempts = Attempts(Patience(1, 1))
    for _ in range(20):
        attempts.failed(Unavailable("down"))
        attempts.progressed()


def test_a_refusal_is_final(clock: Clock) -> None:
    def refused() -> None:
        raise Refused("sending", "amqp:not-allowed", "no")

    with pytest.raises(Refused):
        patiently(refused, Patience(1, 10))
    assert clock.now == 100
