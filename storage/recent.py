"""RecentPlaces: the positions at which a log's latest commits ended, each with the digest that the next frame
must carry.

A checkpoint is saved some commits after the position for which it was taken. If the digest at that position
is still known, recovery can continue from the checkpoint; otherwise it reads from the start of the segment. A
ring holds 32 bytes for each commit, at most 32 KiB.
"""

from __future__ import annotations

import struct

from storage.log import Position
from storage.record import Chain

RECENT_MAX = 1024
"""How many commits are kept."""

_PLACE = struct.Struct("<QQ16s")


class RecentPlaces:
    """The latest places at which a log's commits ended."""

    __slots__ = ("_count", "_ring")

    def __init__(self) -> None:
        self._ring = bytearray()
        self._count = 0
        """How many places were added. The latest is at index `_count - 1`, modulo the ring's size."""

    def add(self, chain: Chain) -> None:
        """Add the place at which a commit ended."""
        offset = self._count % RECENT_MAX * _PLACE.size
        if offset == len(self._ring):
            self._ring += _PLACE.pack(*chain)
        else:
            _PLACE.pack_into(self._ring, offset, *chain)
        self._count += 1

    def keep_only(self, chain: Chain) -> None:
        """Forget all but this place."""
        self._ring, self._count = bytearray(), 0
        self.add(chain)

    def find(self, position: Position) -> Chain | None:
        """The place at a position, if it is one of the latest; else None."""
        for back in range(1, min(self._count, RECENT_MAX) + 1):
            at, sequence, before = _PLACE.unpack_from(
                self._ring, (self._count - back) % RECENT_MAX * _PLACE.size
            )
            if at <= position:
                return Chain(Position(at), sequence, before) if at == position else None
        return None
