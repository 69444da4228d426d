"""Which of many subqueues has the message that expires first."""

from __future__ import annotations

import random

from broker.partition.timed import _SLACK, Timed
from broker.partition.timers import TimerWheel

TICK_MS = 20


class Wheels:
    """The wheels of some subqueues, whose keys are removed as those of messages are."""

    def __init__(self, count: int) -> None:
        self.timed = Timed()
        self.looks = 0
        self.keys: list[dict[int, int]] = [{} for _ in range(count)]
        self.wheels = [Looked(self, keys.__contains__) for keys in map(self.keys.__getitem__, range(count))]
        self.next_key = 0

    def add(self, number: int, due_ms: int) -> None:
        self.next_key += 1
        self.keys[number][self.next_key] = due_ms
        self.wheels[number].add(due_ms, self.next_key)
        self.timed.enter(number, self.wheels[number], due_ms)

    def remove(self, number: int) -> None:
        key = min(self.keys[number])
        self.wheels[number].cancel(self.keys[number].pop(key))

    def expected(self) -> int | None:
        return min(
            (-(-due // TICK_MS) * TICK_MS for keys in self.keys for due in keys.values()), default=None
        )

    def found(self) -> int | None:
        due = self.timed.next_due()
        for number, wheel in enumerate(self.wheels):
            self.timed.check(number, wheel)
        return None if due is None else due[0]


class Looked(TimerWheel):
    """Counts how often it is asked what comes due next."""

    def __init__(self, wheels: Wheels, is_live: object) -> None:
        super().__init__(TICK_MS, is_live)  # type: ignore[arg-type]
        self._wheels = wheels

    def next_due_ms(self) -> int | None:
        self._wheels.looks += 1
        return super().next_due_ms()


def test_the_first_of_all_is_found_whatever_comes_and_goes() -> None:
    dice = random.Random(9)
    for _ in range(30):
        wheels = Wheels(5)
        for _ in range(200):
            number = dice.randrange(5)
            if dice.random() < 0.55 or not wheels.keys[number]:
                wheels.add(number, dice.randrange(1, 2_000))
            else:
                wheels.remove(number)
            if dice.random() < 0.3:
                assert wheels.found() == wheels.expected()
        assert wheels.found() == wheels.expected()


def test_keys_that_have_come_out_are_not_found_again() -> None:
    wheels = Wheels(3)
    for number, due_ms in enumerate((100, 50, 300)):
        wheels.add(number, due_ms)
    found = []
    while (due := wheels.timed.next_due()) is not None:
        found.append(due[1])
        due[2].expire(due[0])
    assert found == [1, 0, 2]


def test_a_thousand_subqueues_are_not_looked_at_each_time() -> None:
    """Symptom: each cycle looked three times at all subscriptions of a topic, 1 ms for a thousand."""
    wheels = Wheels(1_000)
    for due_ms in (1_000, 2_000, 3_000):
        for number in range(1_000):
            wheels.add(number, due_ms)
    assert wheels.timed.next_due() is not None
    wheels.looks = 0
    for _ in range(100):
        assert wheels.timed.next_due() is not None
    assert wheels.looks == 100


def test_times_that_come_ever_earlier_leave_no_entries_behind() -> None:
    wheels = Wheels(2)
    for due_ms in range(100_000, 0, -20):
        wheels.add(due_ms // 20 % 2, due_ms)
        assert len(wheels.timed._entries) <= _SLACK + 2 * 2 + 1
    assert wheels.found() == 20
