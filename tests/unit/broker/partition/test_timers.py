"""The timer wheel alone."""

from __future__ import annotations

from array import array

from broker.partition.timers import DueKeys, MovableTimers, TimerWheel

TICK_MS = 20


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
    assert [list(keys) for keys in timers.expire(400)] == [[100, 101], [300, 301]]
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
    (keys,) = timers.expire(100)
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


def test_sifting_lets_a_cancelled_key_be_used_again() -> None:
    live = {1, 2}
    timers = wheel(live)
    timers.add_all(100, [1, 2])
    live.discard(2)
    timers.cancel(100)
    timers.sift(100)
    live.add(2)
    timers.add(100, 2)
    assert [list(keys) for keys in timers.expire(100)] == [[1, 2]]


def test_many_ticks_that_are_due_come_out_a_few_at_a_time() -> None:
    timers = wheel()
    for key in range(10):
        timers.add(key * TICK_MS, key)
    assert [list(keys) for keys in timers.expire(1000, 4)] == [[0], [1], [2], [3]]
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
    assert not [keys for keys in timers.expire(20 * 4_500) if keys], "a timer that is early finds nothing"


def test_keys_that_are_moved_do_not_pile_up() -> None:
    times = dict.fromkeys(range(100), 1_000)
    timers = MovableTimers(TICK_MS, times.get)
    timers.add_all(1_000, times)
    for round_ in range(1_000):
        key = round_ % 100
        before_ms, times[key] = times[key], 1_000 if round_ % 2 else 1_020
        timers.cancel(before_ms)
        timers.add(times[key], key)
    timers.check(times.values())
    assert sum(len(bucket.keys) for bucket in timers._buckets.values()) < 600
    found = [key for keys in timers.expire(2_000) for key in keys]
    assert set(found) == set(times)


def test_keys_that_are_put_back_come_before_the_others() -> None:
    due = DueKeys()
    due.put_back([])
    assert not due
    due.add([array("Q", [1, 2, 3]), array("Q", [4])])
    assert due.take(2) == [1, 2]
    due.put_back([7, 1])
    assert due.take(3) == [7, 1, 3] and due.take(9) == [4] and not due
    due.put_back([5])
    assert due and due.take(1) == [5]


def test_keys_that_came_out_before_the_clock_was_set_back_come_out_again_once() -> None:
    due_ms = {1: 100, 2: 100, 3: 140, 4: 100, 5: 100}
    timers = MovableTimers(TICK_MS, due_ms.get)
    for key, at_ms in due_ms.items():
        timers.add(at_ms, key)
    came_out = [key for keys in timers.expire(200) for key in keys]
    del due_ms[4]  # cancelled
    due_ms[5] = 300  # moved
    timers.add(300, 5)
    due_ms[6] = 100  # new
    timers.add(100, 6)
    timers.put_back(came_out)
    timers.check(due_ms.values())
    assert [list(keys) for keys in timers.expire(300)] == [[6, 1, 2], [3], [5]]
