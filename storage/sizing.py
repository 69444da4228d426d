"""How large a segment may become, and how much is held back for a full disk: in proportion to the disk and to
the log. Pure."""

from __future__ import annotations

SEGMENT_BYTES_MIN = 16 << 10
"""However little room there is."""
SEGMENT_BYTES_FIRST = 4 << 20
"""The first segments of a log. Smaller ones would cost traffic through a short log more syncs than they gain
room."""
SEGMENTS_PER_LOG = 16
"""A long log has about so many segments, so that what a few messages hold back is a small part of it."""
SEGMENTS_PER_FREE = 64
"""So many segments fit into what is free: each of sixteen partitions fills four before the disk is full."""

RESERVE_BYTES_MAX = 4 << 20
RESERVES_PER_DISK = 10
"""On a disk of less than 40 MiB the reserve is this part of it."""
UPKEEP_RESERVES = 2
"""The room that is kept for upkeep alone is this part of the reserve for settlements."""


def segment_bytes(log_bytes: int, free_bytes: int, bytes_max: int) -> int:
    """The bound for a segment that is begun now: the log's length, what the disk has free, and the
    setting."""
    return min(_wanted(log_bytes, bytes_max), max(SEGMENT_BYTES_MIN, free_bytes // SEGMENTS_PER_FREE))


def is_confined(log_bytes: int, free_bytes: int, bytes_max: int) -> bool:
    """Whether what the disk has free makes that bound smaller."""
    return free_bytes // SEGMENTS_PER_FREE < _wanted(log_bytes, bytes_max)


def _wanted(log_bytes: int, bytes_max: int) -> int:
    return min(bytes_max, max(SEGMENT_BYTES_FIRST, log_bytes // SEGMENTS_PER_LOG))


def reserve_bytes_of(disk_bytes: int) -> int:
    """The reserve for settlements on a disk of this size."""
    return min(RESERVE_BYTES_MAX, disk_bytes // RESERVES_PER_DISK)
