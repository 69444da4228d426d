"""A timer wheel: which keys come due when. Pure; the time is an argument.

Keys (integers of the owner's choice) are kept in *buckets*, one per tick; a heap orders the ticks that have a
bucket. Adding and cancelling cost O(1) however many keys wait, and nothing ever scans all keys at once. A
bucket (`timer_buckets.py`) takes 8 bytes for each key, so a million messages with a time to live cost 8 MB,
and only counts cancellations; when most of its keys are cancelled, they are sifted out bit by bit. So the
wheel may return cancelled keys: the owner looks each one up.

A key never comes out before its time, and at most one tick after it.
"""

from __future__ import annotations

from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from broker.base.sifted_heap import SiftedHeap
from broker.partition._untracked import untrack
from broker.partition.chunked_table import ChunkedTable
from broker.partition.timer_buckets import ARRAY_MAX, UNCOUNTED, Bucket, LongBucket, Seen

PASSED_OVER_MAX = 1024
"""Empty ticks that one search for the next due time skips: less than a millisecond."""
DROPPED_AT_ONCE = 1024
"""Buckets that one step of `drop` frees: less than a millisecond."""

Due = tuple[int | None, "array[int]"]
"""Keys that have come out, with their tick; None if they may be of several."""


class TimerWheel:
    """Keys by due time. Owned by the partition's state machine."""

    __slots__ = ("_buckets", "_is_live", "_tick_ms", "_ticks")

    def __init__(self, tick_ms: int, is_live: Callable[[int], bool]) -> None:
        """`is_live` says whether a key was added and not cancelled."""
        assert tick_ms > 0
        self._tick_ms = tick_ms
        self._is_live = is_live
        self._buckets: ChunkedTable[Bucket] = ChunkedTable()
        self._ticks: SiftedHeap[int] = SiftedHeap(untrack)

    def __bool__(self) -> bool:
        """Whether a key waits, which may have been cancelled."""
        return bool(self._buckets.count)

    def add(self, due_ms: int, key: int) -> None:
        """Add a key that comes due at `due_ms`."""
        bucket = self._bucket(due_ms)
        bucket.keys.append(key)
        bucket.live += 1
        if len(bucket.keys) > ARRAY_MAX:
            self._long(-(-due_ms // self._tick_ms)).divide()

    def add_all(self, due_ms: int, keys: Iterable[int]) -> None:
        """Add several keys that come due together."""
        bucket = self._bucket(due_ms)
        held = bucket.keys
        before = len(held)
        held.extend(keys)
        after = len(held)
        bucket.live += after - before
        if after > ARRAY_MAX:
            self._long(-(-due_ms // self._tick_ms)).divide()

    def cancel(self, due_ms: int, count: int = 1) -> None:
        """Cancel `count` keys with this due time. Does nothing for keys that have already come out."""
        tick = -(-due_ms // self._tick_ms)
        bucket = self._buckets.get(tick)
        if bucket is None:
            return
        bucket.live -= count
        assert bucket.live >= 0, "more was cancelled than added"
        if not bucket.live:
            self._drop(tick)
        else:
            bucket.sift(count, partial(self._live, tick))

    def cancel_each(self, cancelled: Iterable[tuple[int, int]]) -> None:
        """As `cancel`, for several due times, each with the number of keys that are cancelled."""
        tick_ms, find = self._tick_ms, self._buckets.finder()
        ended: list[int] = []
        for due_ms, count in cancelled:
            tick = -(-due_ms // tick_ms)
            bucket = find(tick)
            if bucket is None or not bucket.live:  # the keys came out before, or the bucket has just ended
                continue
            bucket.live -= count
            assert bucket.live >= 0, "more was cancelled than added"
            if bucket.live:
                bucket.sift(count, partial(self._live, tick))
            else:
                ended.append(tick)
        if ended:
            self._buckets.pop_each(ended)
            self._ticks.tidy(self._buckets, self._buckets.count, len(ended))

    def forget_latest(self, due_ms: Iterable[int | None], first: int) -> None:
        """Remove the keys from `first` on, which were added last and have these due times, because the same
        keys are about to be used again. Do not cancel them."""
        for each, count in Counter(due_ms).items():
            tick = -1 if each is None else -(-each // self._tick_ms)
            bucket = self._buckets.get(tick)
            if bucket is None:
                continue
            bucket.live -= count
            assert bucket.live >= 0, "more is forgotten than was added"
            if bucket.live:
                bucket.forget_latest(first, count)
            else:
                self._drop(tick)

    def _drop(self, tick: int) -> None:
        self._buckets.pop(tick)
        self._ticks.tidy(self._buckets, self._buckets.count)

    def _live(self, tick: int, keys: array[int], seen: Seen) -> array[int]:
        """Those of a bucket's keys that were not cancelled."""
        return array("Q", filter(self._is_live, keys))

    def expire(self, now_ms: int, ticks_max: int = 1 << 62) -> list[Due]:
        """Take out all due keys, earlier ticks first. Cancelled keys may be among them.

        Takes out at most `ticks_max` ticks; the others stay due. After a pause of hours there are hundreds of
        thousands.
        """
        due: list[Due] = []
        if not self._buckets.count:
            return due
        last = now_ms // self._tick_ms
        while ticks_max > 0 and (tick := self._ticks.least()) is not None and tick <= last:
            ticks_max -= 1
            self._ticks.pop()
            bucket = self._buckets.get(tick)
            if bucket is not None:
                self._buckets.pop(tick)
                due += [(tick, keys) for keys in bucket.arrays()]
        return due

    def is_due(self, now_ms: int) -> bool:
        """Whether `expire` would return keys, which may all have been cancelled."""
        tick = self._ticks.least() if self._buckets.count else None
        return tick is not None and tick <= now_ms // self._tick_ms

    def next_due_ms(self) -> int | None:
        """When the next key comes due; None if no key waits. May be too early if a great many keys were
        cancelled."""
        if not self._buckets.count:
            return None
        tick = self._ticks.least_found(self._buckets.finder(), PASSED_OVER_MAX)
        return None if tick is None else tick * self._tick_ms

    def drop(self) -> Iterator[int]:
        """Free everything, in steps, because messages sent one by one have a bucket each. The wheel is no
        longer used."""
        while dropped := len(self._buckets.pop_some(DROPPED_AT_ONCE)):
            yield dropped
        while self._ticks:
            self._ticks.shorten(DROPPED_AT_ONCE)
            yield 0

    def check(self, due_ms: Iterable[int]) -> None:
        """Assert that the live keys have exactly these due times, apart from keys that have come out."""
        expected: dict[int, int] = {}
        for each in due_ms:
            tick = -(-each // self._tick_ms)
            expected[tick] = expected.get(tick, 0) + 1
        assert set(self._buckets) <= set(self._ticks), "a bucket that no tick leads to"
        for tick, bucket in self._buckets.items():
            seen, found, wanted = Seen(), 0, expected.get(tick, 0)
            for keys in bucket.arrays():
                found += len(self._live(tick, keys, seen))
            assert found == wanted, (tick, found, wanted)
            assert bucket.live == wanted or bucket.live > UNCOUNTED // 2, (tick, bucket.live, wanted)

    def _bucket(self, due_ms: int) -> Bucket:
        tick = -(-due_ms // self._tick_ms)
        bucket = self._buckets.get(tick)
        if bucket is None:
            bucket = self._buckets[tick] = Bucket()
            self._ticks.push(tick)
        return bucket

    def _long(self, tick: int) -> LongBucket:
        """The bucket of a tick, which is or becomes a long one."""
        bucket = self._buckets.get(tick)
        if bucket is None:
            self._ticks.push(tick)
        if not isinstance(bucket, LongBucket):
            bucket = self._buckets[tick] = LongBucket(bucket)
        return bucket


class MovableTimers(TimerWheel):
    """A wheel whose keys may be moved: cancelled, and added again with another time while the first entry is
    still there. It may return a key before its time, or twice; the owner looks at the time of each one."""

    __slots__ = ("_due_ms",)

    def __init__(self, tick_ms: int, due_ms: Callable[[int], int | None]) -> None:
        """`due_ms` gives the time of a key; None if it was cancelled."""
        super().__init__(tick_ms, lambda key: due_ms(key) is not None)
        self._due_ms = due_ms

    def put_back(self, due: Iterable[Due]) -> None:
        """Take back keys that have come out, because the clock was set back. Cancelled ones and those that
        were moved, which are still here, may be among them.

        Arrays come back as they are, because there may be a million keys. Nobody counts their live keys, so
        their buckets stay until their time.
        """
        for tick, keys in due:
            if tick is not None:
                bucket = self._long(tick)
                bucket.put_back(keys)
                bucket.live = UNCOUNTED
                continue
            for key in keys:
                at_ms = self._due_ms(key)
                if at_ms is not None:
                    self.add(at_ms, key)
                    self._buckets[-(-at_ms // self._tick_ms)].live = UNCOUNTED

    def _live(self, tick: int, keys: array[int], seen: Seen) -> array[int]:
        tick_ms, due_ms = self._tick_ms, self._due_ms
        times = ((key, due_ms(key)) for key in keys)
        return array(
            "Q",
            [
                key
                for key, at_ms in times
                if at_ms is not None and -(-at_ms // tick_ms) == tick and seen.add(key)
            ],
        )


class DueKeys:
    """Due keys that have not been dealt with, in order. Keeps the wheel's arrays as they are, so a million
    keys cost no more than one."""

    __slots__ = ("_due", "_place")

    def __init__(self) -> None:
        self._due: deque[Due] | None = None
        """None while there are none: an empty deque takes 760 bytes, and each partition would have two."""
        self._place = 0
        """Index of the first key in the first array that was not taken."""

    def __bool__(self) -> bool:
        return self._due is not None

    def add(self, due: Iterable[Due]) -> None:
        """Add keys, as returned by `TimerWheel.expire`."""
        more = [(tick, keys) for tick, keys in due if keys]
        if more:
            self._due = self._due or deque()
            self._due.extend(more)

    def put_back(self, keys: Iterable[int]) -> None:
        """Have these keys taken out next, again."""
        again = array("Q", keys)
        if again:
            self._due = deque(((None, again), *self.take_all()))

    def take(self, count: int = 1 << 62) -> list[int]:
        """Take out the next keys, at most `count`."""
        taken: list[int] = []
        while self._due and len(taken) < count:
            first = self._due[0][1]
            end = min(self._place + count - len(taken), len(first))
            taken += first[self._place : end]
            if end == len(first):
                self._due.popleft()
                self._place = 0
            else:
                self._place = end
        if not self._due:
            self._due = None
        return taken

    def take_all(self) -> list[Due]:
        """Take out all keys, as they were added."""
        due = [*(self._due or ())]
        if self._place:
            tick, first = due[0]
            due[0] = tick, first[self._place :]
        self._due, self._place = None, 0
        return due
