"""The timer wheel alone."""

from __future__ import annotations

import random
from array import array

import pytest

from broker.partition.timer_buckets import ARRAY_MAX
from broker.partition.timers import Due, DueKeys, MovableTimers, TimerWheel

TICK_MS = 20


class Counted(set[int]):
    """Live keys; counts the look-ups."""

    looks = 0

    def __contains__(self, key: object) -> bool:
        self.looks += 1
        return super().__contains__(key)


def keys_of(due: list[Due]) -> list[list[int]]:
    return [list(keys) for _, keys in due]


def wheel(live: set[int] | None = None) -> TimerWheel:
    return TimerWheel(TICK_MS, (live if live is not None else set(range(10_000))).__contains__)


def test_a_key_never_comes_out_before_its_time_and_at_most_a_tick_after() -> None:
    for due_ms in range(1, 200):
        timers = wheel()
        timers.add(due_ms, 7)
        came_out = next(now for now in range(400) if timers.expire(now))
        assert due_ms <= came_out <= due_ms + TICK_MS


def test_the_wheel_is_due_from_the_time_at_which_a_key_comes_out() -> None:
    timers = wheel()
    assert not timers.is_due(1_000_000)
    timers.add(90, 7)
    assert [timers.is_due(now) for now in (0, 89, 99, 100, 500)] == [False, False, False, True, True]
    timers.expire(100)
    assert not timers.is_due(500)


def test_keys_come_out_in_the_order_of_their_ticks() -> None:
    timers = wheel()
    for due_ms in (500, 100, 300):
        timers.add_all(due_ms, [due_ms, due_ms + 1])
    assert keys_of(timers.expire(400)) == [[100, 101], [300, 301]]
    assert timers.next_due_ms() == 500


def test_the_next_time_is_that_of_the_first_key_that_was_not_cancelled() -> None:
    timers = wheel()
    assert timers.next_due_ms() is None
    timers.add(100, 1)
    timers.add(200, 2)
    timers.cancel(100)
    assert timers.next_due_ms() == 200
    timers.cancel(200)
    assert timers.next_due_ms() is None
    assert timers.expire(1000) == []


def test_a_bucket_drops_its_cancelled_keys_once_they_are_most_of_it() -> None:
    live = set(range(1000))
    timers = wheel(live)
    timers.add_all(100, range(1000))
    for key in range(900):
        live.discard(key)
        timers.cancel(100)
    timers.check([100] * 100)
    ((_, keys),) = timers.expire(100)
    assert len(keys) < 350 and set(range(900, 1000)) <= set(keys)


def test_ticks_that_emptied_early_do_not_pile_up() -> None:
    timers = wheel()
    for round_ in range(10_000):
        timers.add(1_000_000 + round_ * TICK_MS, round_)
        timers.cancel(1_000_000 + round_ * TICK_MS)
    assert len(timers._ticks) < 200


def test_cancelling_what_has_come_out_does_nothing() -> None:
    timers = wheel()
    timers.add(100, 1)
    timers.expire(100)
    timers.cancel(100)
    assert timers.next_due_ms() is None


@pytest.mark.parametrize("seed", range(5))
def test_keys_that_are_cancelled_together_are_cancelled_like_each_by_itself(seed: int) -> None:
    chance = random.Random(seed)
    live = set(range(5_000))
    together, singly = wheel(live), wheel(live)
    due_ms = [chance.randrange(1, 4_000) for _ in live]
    for key, each in enumerate(due_ms):
        together.add(each, key)
        singly.add(each, key)
    for now_ms in range(0, 1_600, 200):
        assert together.expire(now_ms) == singly.expire(now_ms)  # what has come out is cancelled as well
        gone = chance.sample(sorted(live), 500)
        live.difference_update(gone)
        cancelled = [(due_ms[key], 1) for key in gone]
        together.cancel_each(cancelled)
        for each, count in cancelled:
            singly.cancel(each, count)
        for timers in (together, singly):
            timers.check(due_ms[key] for key in live if -(-due_ms[key] // TICK_MS) > now_ms // TICK_MS)
        assert together.next_due_ms() == singly.next_due_ms()
        assert len(together._ticks) <= len(singly._ticks) + 200


def test_keys_that_were_forgotten_can_be_used_again() -> None:
    for count in (2, ARRAY_MAX + 2):
        timers = wheel(set(range(2 * count)))
        timers.add_all(100, range(count))
        timers.forget_latest([*[100] * (count - 1), None], 1)
        timers.check([100])
        timers.add(100, 1)
        assert [key for keys in keys_of(timers.expire(100)) for key in keys] == [0, 1]
        timers.add(200, 1)
        timers.forget_latest([200], 1)
        timers.forget_latest([200], 1)  # it is no longer there
        assert timers.next_due_ms() is None


def test_cancelling_in_a_long_bucket_looks_at_a_few_keys_at_a_time() -> None:
    live = Counted(range(50_000))
    timers = wheel(live)
    for first in range(0, 50_000, 3_000):
        timers.add_all(100, range(first, min(first + 3_000, 50_000)))
    chance = random.Random(7)
    cancelled = chance.sample(range(50_000), 49_000)
    held = most = 0
    for key in cancelled:
        live.discard(key)
        live.looks = 0
        timers.cancel(100)
        most = max(most, live.looks)
        held += live.looks
    assert most <= ARRAY_MAX and held < 4 * 49_000 + ARRAY_MAX
    timers.check([100] * 1_000)
    found = [key for keys in keys_of(timers.expire(100)) for key in keys]
    assert len(found) < 5_000 and set(found) > live, "most of those cancelled are gone"
    assert [key for key in found if key in live] == sorted(live)


def test_many_ticks_that_are_due_come_out_a_few_at_a_time() -> None:
    timers = wheel()
    for key in range(10):
        timers.add(key * TICK_MS, key)
    assert keys_of(timers.expire(1000, 4)) == [[0], [1], [2], [3]]
    assert timers.next_due_ms() == 4 * TICK_MS
    assert sum(len(timers.expire(1000, 4)) for _ in range(2)) == 6 and timers.next_due_ms() is None


def test_cancelled_times_are_passed_over_a_bounded_number_at_a_time() -> None:
    live = set(range(9_001))
    timers = wheel(live)
    for key in live:
        timers.add(20 * (key + 1), key)
    for key in range(1, 4_500):
        live.discard(key)
        timers.cancel(20 * (key + 1))
    assert timers.next_due_ms() == 20
    live.discard(0)
    timers.cancel(20)
    found = [timers.next_due_ms() for _ in range(6)]
    assert found == sorted(found, key=lambda due_ms: due_ms or 0) and found[-1] == 20 * 4_501
    assert 20 < (found[0] or 0) < 20 * 4_501, "a moment's work, not half a second"
    assert not any(keys_of(timers.expire(20 * 4_500))), "a timer that is early finds nothing"


@pytest.mark.parametrize("count", [100, 3_000])
def test_keys_that_are_moved_do_not_pile_up(count: int) -> None:
    times = dict.fromkeys(range(count), 1_000)
    timers = MovableTimers(TICK_MS, times.get)
    timers.add_all(1_000, times)
    for round_ in range(20 * count):
        key = round_ % count
        before_ms, times[key] = times[key], 2_020 - times[key]
        timers.cancel(before_ms)
        timers.add(times[key], key)
    for bucket in timers._buckets.values():
        assert sum(map(len, bucket.arrays())) < 6 * count
    found = [key for keys in keys_of(timers.expire(2_000)) for key in keys]
    assert set(found) == set(times)


def test_keys_that_are_put_back_come_before_the_others() -> None:
    due = DueKeys()
    due.put_back([])
    assert not due and due.take_all() == []
    due.add([(1, array("Q", [1, 2, 3])), (2, array("Q", [4])), (3, array("Q"))])
    assert due.take(2) == [1, 2]
    due.put_back([7, 1])
    assert due.take(3) == [7, 1, 3] and due.take(9) == [4] and not due
    due.put_back([5])
    assert due and due.take(1) == [5]
    due.add([(1, array("Q", [1, 2])), (2, array("Q", [4]))])
    assert due.take(1) == [1]
    assert due.take_all() == [(1, array("Q", [2])), (2, array("Q", [4]))] and not due


def test_keys_that_came_out_before_the_clock_was_set_back_come_out_again() -> None:
    due_ms = {1: 100, 2: 100, 3: 140, 4: 100, 5: 100, 7: 500}
    timers = MovableTimers(TICK_MS, due_ms.get)
    for key, at_ms in due_ms.items():
        timers.add(at_ms, key)
    came_out = timers.expire(200)
    del due_ms[4]  # cancelled
    due_ms[5] = 300  # moved
    timers.add(300, 5)
    due_ms[6] = 100  # new
    timers.add(100, 6)
    timers.put_back([*came_out, (None, array("Q", [7, 8]))])
    timers.cancel(due_ms.pop(1))  # what was cancelled meanwhile takes no other key along
    timers.cancel(due_ms.pop(6))
    wanted = [(5, [2]), (7, [3]), (15, [5]), (25, [7])]
    found = [
        (tick, [key for key in keys if -(-due_ms.get(key, 0) // TICK_MS) == tick])
        for tick, keys in timers.expire(500)
    ]
    assert [(tick, keys) for tick, keys in found if keys] == [*wanted[:3], (25, [7, 7])]


def test_a_million_keys_come_back_as_they_are() -> None:
    live = Counted(range(100_000))
    timers = MovableTimers(TICK_MS, lambda key: 100 if key in live else None)
    timers.add_all(100, range(100_000))
    came_out = timers.expire(100)
    live.looks = 0
    timers.put_back(came_out)
    assert not live.looks and timers.next_due_ms() == 100
    for key in range(90_000):
        live.discard(key)
        timers.cancel(100)
    assert not live.looks, "nobody knows how many are live"
    timers.check([100] * 10_000)
    assert sum(map(len, keys_of(timers.expire(100)))) == 100_000
