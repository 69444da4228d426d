"""The content of a checkpoint's block, taken piece by piece from its front. Pure.

Most blocks take a few KiB, but a thousand messages may have 64 KiB of changed properties each. So a large
block comes in parts, and is decoded in steps that take about STEP_BYTES each: copying and hashing as much
takes half a millisecond. What was taken leaves memory, if nobody else holds it, so the block and what is made
of it are not in memory at once.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Iterable, Iterator
from mmap import mmap

from broker.partition.tables import UnreadableRecord
from storage.log import Block

STEP_BYTES = 512 << 10
"""How much of a block one step decodes, apart from tables."""
_FED_BYTES = 64 << 10
"""How many packed bytes zlib gets at once: it copies those that it does not use yet."""
_UNPACKED_BYTES_MAX = 1 << 30
"""Far more than any block has: 1,024 messages have changed properties of 64 KiB each at most."""


class Content:
    """Bytes that come in parts."""

    __slots__ = ("_at", "_part", "_parts", "_taken")

    def __init__(self, parts: Iterable[bytes | mmap]) -> None:
        self._parts = iter(parts)
        self._part: bytes | mmap = b""
        self._at = 0
        """The part at the front, and how much of it was taken."""
        self._taken = 0
        """How many bytes were taken."""

    def take(self, size: int, what: str = "a checkpoint") -> bytes:
        """The next bytes. Raises UnreadableRecord, about a block of `what`, if there are fewer."""
        found: list[bytes] = []
        while size > 0:
            if not self._next():
                raise UnreadableRecord(f"a block of {what} ends early, at byte {self._taken}")
            found.append(self._from_front(size))
            size -= len(found[-1])
        return found[0] if len(found) == 1 else b"".join(found)

    def is_at_end(self) -> bool:
        """Whether everything was taken."""
        return not self._next()

    def rest(self) -> Iterator[bytes]:
        """All that was not taken, part by part."""
        while self._next():
            yield self._from_front(len(self._part))

    def _from_front(self, size: int) -> bytes:
        """What there is of the part at the front, `size` bytes at most."""
        data = self._part[self._at : self._at + size]
        self._at, self._taken = self._at + len(data), self._taken + len(data)
        return data

    def _next(self) -> bool:
        """Make sure that something is at the front. Returns whether anything is left."""
        while self._at == len(self._part):
            part = next(self._parts, None)
            if part is None:
                return False
            self._part, self._at = part, 0
        return True


def content_of(block: Block) -> Content:
    """The content of a block. If this is a deque, what was taken is not in it any more."""
    if isinstance(block, bytes):
        return Content((block,))
    return Content(_taken_out(block) if isinstance(block, deque) else block)


def _taken_out(parts: deque[mmap]) -> Iterator[mmap]:
    while parts:
        yield parts.popleft()


def unpacked(packed: Content) -> Content:
    """What was packed (zlib); it is unpacked as it is taken. Taking it raises UnreadableRecord if the packed
    content is cut off, or other bytes follow it."""
    return Content(_unpacked(packed))


def _unpacked(packed: Content) -> Iterator[bytes]:
    unpacking, size = zlib.decompressobj(), 0
    try:
        for part in packed.rest():
            for begin in range(0, len(part), _FED_BYTES):
                fed, more = part[begin : begin + _FED_BYTES], True
                while more:
                    data = unpacking.decompress(fed, STEP_BYTES)
                    size += len(data)
                    if size > _UNPACKED_BYTES_MAX:
                        raise UnreadableRecord(
                            f"a block of a checkpoint has more than {_UNPACKED_BYTES_MAX} bytes"
                        )
                    yield data
                    fed = unpacking.unconsumed_tail
                    more = bool(fed) or len(data) == STEP_BYTES
    except zlib.error as error:
        raise UnreadableRecord(f"a block of a checkpoint cannot be unpacked: {error}") from error
    if not unpacking.eof or unpacking.unused_data:
        raise UnreadableRecord("a packed block of a checkpoint is cut off, or bytes follow it")
