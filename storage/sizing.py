"""How large a segment may become, and how much space is reserved for a full disk, in proportion to the disk
and to the log. Pure."""

from __future__ import annotations

from collections.abc import Callable

SEGMENT_BYTES_MIN = 16 << 10
"""The bound is never lower, however little space there is."""
SEGMENT_BYTES_FIRST = 5 << 20
"""The bound for the first segments of a log, which is 4 MiB on average (`SPREAD`). With smaller ones, traffic
through a short log would cost more syncs than they save in space."""
SEGMENTS_PER_LOG = 16
"""A long log has about this many segments, so that what a few messages hold back is a small part of it."""
SEGMENT_S = 10
"""If there is room, a segment lasts this long at the pace at which the one before it was filled. Beginning
a segment takes as long as ten to thirty commits, and the messages of its partition wait for that: with 3 s,
1 % to 2 % of them did."""
SEGMENTS_PER_FREE = 64
"""This many segments fit into the free space: sixteen partitions fill four each before the disk is full."""
SPREAD = 0.375
"""The bounds of a queue's partitions differ by up to this share. Messages without a key fill all partitions
alike, so with equal bounds all of them would begin a segment at the same moment. A commit that begins a
segment takes several syncs, and sixteen such commits together would hold up all senders."""
_GOLDEN = 0.6180339887
"""The fractional parts of its multiples lie far apart, however many there are."""

RESERVE_BYTES_MAX = 4 << 20
RESERVES_PER_DISK = 10
"""On a disk of less than 40 MiB, the reserve is the disk divided by this."""
UPKEEP_RESERVES = 2
"""The reserve for upkeep alone is the reserve for settlements divided by this."""
GROWTHS_PER_RESERVE = 8
"""On a full disk, settlements may add to what must be kept as much as their reserve divided by this."""


def segment_bytes(
    partition: int, log_bytes: int, free_bytes: int, bytes_max: int, bytes_per_s: float = 0
) -> int:
    """The bound for a segment that begins now, from the log's partition and length, the disk's free space,
    the setting, and the pace at which the segment before it was filled."""
    room = max(SEGMENT_BYTES_MIN, free_bytes // SEGMENTS_PER_FREE)
    lasting = _share(partition) * min(SEGMENT_S * bytes_per_s, bytes_max, room)
    return min(max(_wanted(partition, log_bytes, bytes_max), int(lasting)), room)


def is_confined(partition: int, log_bytes: int, free_bytes: int, bytes_max: int) -> bool:
    """Whether the disk's free space lowers that bound, apart from the pace."""
    return free_bytes // SEGMENTS_PER_FREE < _wanted(partition, log_bytes, bytes_max)


def _wanted(partition: int, log_bytes: int, bytes_max: int) -> int:
    return min(bytes_max, int(_share(partition) * max(SEGMENT_BYTES_FIRST, log_bytes // SEGMENTS_PER_LOG)))


def _share(partition: int) -> float:
    return 1 - SPREAD * (partition * _GOLDEN % 1)


class Pace:
    """The pace at which the segments of a log are filled."""

    __slots__ = ("_began_s", "_now_s")

    def __init__(self, now_s: Callable[[], float]) -> None:
        """`now_s` is a clock. When the active segment was begun is not known."""
        self._now_s = now_s
        self._began_s: float | None = None

    def next(self, filled: int) -> float:
        """The next segment begins: how many bytes a second have filled the one before; 0 if not known."""
        began_s, self._began_s = self._began_s, self._now_s()
        return 0.0 if began_s is None else filled / max(self._began_s - began_s, 0.001)


def reserve_bytes_of(disk_bytes: int) -> int:
    """The reserve for settlements on a disk of this size, in bytes."""
    return min(RESERVE_BYTES_MAX, disk_bytes // RESERVES_PER_DISK)
