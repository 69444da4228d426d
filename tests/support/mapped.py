"""Large blocks of checkpoints as they are when they were read from the disk."""

from __future__ import annotations

from collections import deque
from mmap import mmap


def mapped(data: bytes, part_bytes: int) -> deque[mmap]:
    """A block in parts of this size."""
    parts: deque[mmap] = deque()
    for begin in range(0, len(data), part_bytes):
        parts.append(mmap(-1, len(data[begin : begin + part_bytes])))
        parts[-1][:] = data[begin : begin + part_bytes]
    return parts
