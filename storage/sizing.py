"""How large a segment may become, and how much space is reserved for a full disk, in proportion to the disk
and to the log. Pure."""

from __future__ import annotations

SEGMENT_BYTES_MIN = 16 << 10
"""The bound is never lower, however little space there is."""
SEGMENT_BYTES_FIRST = 4 << 20
"""The bound for the first segments of a log. With smaller ones, traffic through a short log would cost more
syncs than they save in space."""
SEGMENTS_PER_LOG = 16
"""A long log has about this many segments, so that what a few messages hold back is a small part of it."""
SEGMENTS_PER_FREE = 64
"""This many segments fit into the free space: sixteen partitions fill four each before the disk is full."""

RESERVE_BYTES_MAX = 4 << 20
RESERVES_PER_DISK = 10
"""On a disk of less than 40 MiB, the reserve is the disk divided by this."""
UPKEEP_RESERVES = 2
"""The reserve for upkeep alone is the reserve for settlements divided by this."""


def segment_bytes(log_bytes: int, free_bytes: int, bytes_max: int) -> int:
    """The bound for a segment that begins now, from the log's length, the disk's free space and the
    setting."""
    return min(_wanted(log_bytes, bytes_max), max(SEGMENT_BYTES_MIN, free_bytes // SEGMENTS_PER_FREE))


def is_confined(log_bytes: int, free_bytes: int, bytes_max: int) -> bool:
    """Whether the disk's free space lowers that bound."""
    return free_bytes // SEGMENTS_PER_FREE < _wanted(log_bytes, bytes_max)


def _wanted(log_bytes: int, bytes_max: int) -> int:
    return min(bytes_max, max(SEGMENT_BYTES_FIRST, log_bytes // SEGMENTS_PER_LOG))


def reserve_bytes_of(disk_bytes: int) -> int:
    """The reserve for settlements on a disk of this size, in bytes."""
    return min(RESERVE_BYTES_MAX, disk_bytes // RESERVES_PER_DISK)
