"""The buckets of a timer wheel: keys that come due together. Pure.

A bucket keeps its keys in arrays of 8 bytes each, in the order in which they came, and only counts how many
of them are live. When most of them are cancelled, the others are sifted out. A bucket with a single array
does that at once. A long one sifts a few keys for each one that is cancelled: a million would take 200 ms.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from itertools import chain

from broker.partition._untracked import keep_untracked, untrack

ARRAY_MAX = 1024
"""Keys in one array. Sifting them takes a third of a millisecond at most."""
UNCOUNTED = 1 << 62
"""What `live` is, about, if nobody knows how many keys are live. Such a bucket is kept until its time."""
_SLACK = 64
"""With fewer stale keys than this, a bucket is not sifted."""
_SIFTED_FOR_EACH = 4
"""Keys that a long bucket looks at for each one that is cancelled: it is through before as many are stale
again."""
_SEEN_SHIFT = 16


class Seen:
    """Remembers numbers, with a bit each. They should be dense, as sequence numbers are."""

    __slots__ = ("_bits",)

    def __init__(self) -> None:
        self._bits: dict[int, bytearray] = {}

    def add(self, number: int) -> bool:
        """Returns whether the number is new."""
        bits = self._bits.get(number >> _SEEN_SHIFT)
        if bits is None:
            bits = self._bits[number >> _SEEN_SHIFT] = bytearray(1 << _SEEN_SHIFT >> 3)
        place, bit = number >> 3 & len(bits) - 1, 1 << (number & 7)
        if bits[place] & bit:
            return False
        bits[place] |= bit
        return True


Live = Callable[["array[int]", Seen], "array[int]"]
"""Gives those of some keys that are live, and that were not seen before if keys may be there twice."""


@keep_untracked  # messages sent one by one have a bucket each
class Bucket:
    """Keys in a single array."""

    __slots__ = ("keys", "live")

    def __init__(self) -> None:
        self.keys: array[int] = array("Q")
        """The keys that came last, and cancelled ones among them. The owner divides the bucket when there are
        more than ARRAY_MAX."""
        self.live = 0
        """How many keys are live."""
        untrack([self, self.keys])

    def arrays(self) -> list[array[int]]:
        """All keys, in the order in which they came."""
        return [self.keys]

    def sift(self, cancelled: int, live: Live) -> None:
        """Sift out stale keys if there are many, after so many more were cancelled."""
        if len(self.keys) > _SLACK + 2 * self.live:
            self.keys = live(self.keys, Seen())

    def forget_latest(self, first: int, count: int) -> None:
        """Remove `count` keys from `first` on. They were added last, among others."""
        self.keys = array("Q", [key for key in self.keys if key < first])


class _Sift:
    """A sift in progress: the arrays before `read` have been sifted, and those before `write` are left of
    them."""

    __slots__ = ("allowance", "read", "seen", "write")

    def __init__(self) -> None:
        self.read = self.write = 0
        self.seen = Seen()
        self.allowance = 0
        """Keys that it may look at."""


@keep_untracked
class LongBucket(Bucket):
    """Keys in several arrays."""

    __slots__ = ("_count", "_full", "_sift")

    def __init__(self, bucket: Bucket | None = None) -> None:
        """Takes over the keys of a bucket that has become too long."""
        super().__init__()
        self._full: list[array[int]] = []
        """The keys before those in `keys`."""
        self._count = 0
        """How many keys `_full` has."""
        self._sift: _Sift | None = None
        if bucket is not None:
            self.keys, self.live = bucket.keys, bucket.live

    def divide(self) -> None:
        """Begin another array when the latest one is full."""
        keys = self.keys
        while len(keys) >= ARRAY_MAX:
            self.put_back(keys[:ARRAY_MAX])
            keys = keys[ARRAY_MAX:]
        self.keys = keys

    def put_back(self, keys: array[int]) -> None:
        """Add an array before the latest keys."""
        self._full.append(keys)
        self._count += len(keys)

    def arrays(self) -> list[array[int]]:
        return [keys for keys in (*self._full, self.keys) if keys]

    def sift(self, cancelled: int, live: Live) -> None:
        sift, full = self._sift, self._full
        if sift is None:
            if self._count + len(self.keys) <= _SLACK + 2 * self.live:
                return
            sift = self._sift = _Sift()
        sift.allowance += _SIFTED_FOR_EACH * cancelled
        while sift.read < len(full) and sift.allowance >= len(full[sift.read]):
            before = full[sift.read]
            kept = live(before, sift.seen)
            sift.allowance -= len(before)
            self._count -= len(before) - len(kept)
            full[sift.read] = array("Q")
            sift.read += 1
            if sift.write and len(full[sift.write - 1]) + len(kept) <= ARRAY_MAX:
                full[sift.write - 1].extend(kept)
            else:
                full[sift.write] = kept
                sift.write += 1
        if sift.read == len(full):
            del full[sift.write :]
            self._sift = None

    def forget_latest(self, first: int, count: int) -> None:
        for keys in chain((self.keys,), reversed(self._full)):
            kept = array("Q", [key for key in keys if key < first])
            gone = len(keys) - len(kept)
            if keys is not self.keys:
                self._count -= gone
            keys[:] = kept
            count -= gone
            if count <= 0:
                return
