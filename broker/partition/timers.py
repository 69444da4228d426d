"""A timer wheel: which keys come due when. Pure; the time is an argument.

Keys (integers of the owner's choice) are kept in *buckets*, one per tick; a heap orders the ticks that have a
bucket. Adding and cancelling cost O(1) however many keys wait, and nothing ever scans all keys. A bucket
keeps its keys in an array (8 bytes each: a million messages with a time to live cost 8 MB) and only counts
cancellations; when most of its keys are cancelled, the array is sifted once. So the wheel may return
cancelled keys: the owner looks each one up.

A key never comes out before its time, and at most one tick after it.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator

from broker.base.sifted_heap import SiftedHeap
from broker.partition._untracked import keep_untracked, untrack
from broker.partition.chunked_table import ChunkedTable

PASSED_OVER_MAX = 1024
"""Empty ticks that one search for the next due time skips: less than a millisecond."""
DROPPED_AT_ONCE = 1024
"""Buckets that one step of `drop` frees: less than a millisecond."""
_SLACK = 64
"""With fewer entries than this, a bucket is not sifted."""


@keep_untracked  # messages sent one by one have a bucket each
class _Bucket:
    __slots__ = ("keys", "live")

    def __init__(self) -> None:
        self.keys: array[int] = array("Q")
        self.live = 0
        untrack([self, self.keys])


class TimerWheel:
    """Keys by due time. Owned by the partition's state machine."""

    __slots__ = ("_buckets", "_is_live", "_tick_ms", "_ticks")

    def __init__(self, tick_ms: int, is_live: Callable[[int], bool]) -> None:
        """`is_live` says whether a key was added and not cancelled."""
        assert tick_ms > 0
        self._tick_ms = tick_ms
        self._is_live = is_live
        self._buckets: ChunkedTable[_Bucket] = ChunkedTable()
        self._ticks: SiftedHeap[int] = SiftedHeap()

    def add(self, due_ms: int, key: int) -> None:
        """Add a key that comes due at `due_ms`."""
        bucket = self._bucket(due_ms)
        bucket.keys.append(key)
        bucket.live += 1

    def add_all(self, due_ms: int, keys: Iterable[int]) -> None:
        """Add several keys that come due together."""
        bucket = self._bucket(due_ms)
        before = len(bucket.keys)
        bucket.keys.extend(keys)
        bucket.live += len(bucket.keys) - before

    def cancel(self, due_ms: int, count: int = 1) -> None:
        """Cancel `count` keys with this due time. Does nothing for keys that have already come out."""
        tick = -(-due_ms // self._tick_ms)
        bucket = self._buckets.get(tick)
        if bucket is None:
            return
        bucket.live -= count
        assert bucket.live >= 0, "more was cancelled than added"
        if not bucket.live:
            self._buckets.pop(tick)
            self._ticks.tidy(self._buckets, self._buckets.count)
        elif len(bucket.keys) > _SLACK + 2 * bucket.live:
            bucket.keys = self._live(tick, bucket.keys)

    def sift(self, due_ms: int) -> None:
        """Remove the cancelled keys with this due time now, because they are about to be used again."""
        tick = -(-due_ms // self._tick_ms)
        bucket = self._buckets.get(tick)
        if bucket is not None:
            bucket.keys = self._live(tick, bucket.keys)

    def _live(self, tick: int, keys: array[int]) -> array[int]:
        """Those of a bucket's keys that were not cancelled."""
        return array("Q", filter(self._is_live, keys))

    def expire(self, now_ms: int, ticks_max: int = 1 << 62) -> list[array[int]]:
        """Take out all due keys, earlier ticks first. Cancelled keys may be among them.

        Takes out at most `ticks_max` ticks; the others stay due. After a pause of hours there are hundreds of
        thousands.
        """
        due: list[array[int]] = []
        if not self._buckets.count:
            return due
        last = now_ms // self._tick_ms
        while ticks_max > 0 and (tick := self._ticks.least()) is not None and tick <= last:
            ticks_max -= 1
            self._ticks.pop()
            bucket = self._buckets.get(tick)
            if bucket is not None:
                self._buckets.pop(tick)
                due.append(bucket.keys)
        return due

    def is_due(self, now_ms: int) -> bool:
        """Whether `expire` would return keys, which may all have been cancelled."""
        tick = self._ticks.least() if self._buckets.count else None
        return tick is not None and tick <= now_ms // self._tick_ms

    def next_due_ms(self) -> int | None:
        """When the next key comes due; None if no key waits. May be too early if a great many keys were
        cancelled."""
        buckets, ticks = self._buckets, self._ticks
        if not buckets.count:
            return None
        tick = ticks.least()
        for _ in range(PASSED_OVER_MAX):
            if tick is None or tick in buckets:
                break
            ticks.pop()
            tick = ticks.least()
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
            assert bucket.live == len(self._live(tick, bucket.keys)) == expected.get(tick, 0), (
                tick,
                bucket.live,
                expected.get(tick),
            )

    def _bucket(self, due_ms: int) -> _Bucket:
        tick = -(-due_ms // self._tick_ms)
        bucket = self._buckets.get(tick)
        if bucket is None:
            bucket = self._buckets[tick] = _Bucket()
            self._ticks.push(tick)
        return bucket


class MovableTimers(TimerWheel):
    """A wheel whose keys may be moved: cancelled, and added again with another time while the first entry is
    still there. It may return a key before its time, or twice; the owner looks at the time of each one."""

    __slots__ = ("_due_ms",)

    def __init__(self, tick_ms: int, due_ms: Callable[[int], int | None]) -> None:
        """`due_ms` gives the time of a key; None if it was cancelled."""
        super().__init__(tick_ms, lambda key: due_ms(key) is not None)
        self._due_ms = due_ms

    def put_back(self, keys: Iterable[int]) -> None:
        """Take back keys that have come out, because the clock was set back. Cancelled ones and those that
        were moved, which are still here, may be among them."""
        ticks: set[int] = set()
        for key in keys:
            at_ms = self._due_ms(key)
            if at_ms is not None:
                self._bucket(at_ms).keys.append(key)
                ticks.add(-(-at_ms // self._tick_ms))
        for tick in ticks:
            bucket = self._buckets[tick]
            bucket.keys = self._live(tick, bucket.keys)
            bucket.live = len(bucket.keys)

    def _live(self, tick: int, keys: array[int]) -> array[int]:
        tick_ms, due_ms = self._tick_ms, self._due_ms
        times = ((key, due_ms(key)) for key in dict.fromkeys(keys))
        return array("Q", [key for key, at_ms in times if at_ms is not None and -(-at_ms // tick_ms) == tick])


class DueKeys:
    """Due keys that have not been dealt with, in order. Keeps the wheel's arrays as they are, so a million
    keys cost no more than one."""

    __slots__ = ("_keys", "_place")

    def __init__(self) -> None:
        self._keys: deque[array[int]] | None = None
        """None while there are none: an empty deque takes 760 bytes, and each partition would have two."""
        self._place = 0
        """Index of the first key in the first array that was not taken."""

    def __bool__(self) -> bool:
        return self._keys is not None

    def add(self, due: Iterable[array[int]]) -> None:
        """Add keys, as returned by `TimerWheel.expire`."""
        more = [keys for keys in due if keys]
        if more:
            self._keys = self._keys or deque()
            self._keys.extend(more)

    def put_back(self, keys: Iterable[int]) -> None:
        """Have these keys taken out next, again."""
        again = array("Q", keys)
        if not again:
            return
        self._keys = self._keys or deque()
        if self._place:
            self._keys[0] = self._keys[0][self._place :]
            self._place = 0
        self._keys.appendleft(again)

    def take(self, count: int = 1 << 62) -> list[int]:
        """Take out the next keys, at most `count`."""
        taken: list[int] = []
        while self._keys and len(taken) < count:
            first = self._keys[0]
            end = min(self._place + count - len(taken), len(first))
            taken += first[self._place : end]
            if end == len(first):
                self._keys.popleft()
                self._place = 0
            else:
                self._place = end
        if not self._keys:
            self._keys = None
        return taken
