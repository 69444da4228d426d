"""The memory that partitions take when they are opened, in all data folders of a broker.

A closed partition takes no memory, however much it holds. So after a restart, more may be stored than fits
below the memory mark, and requests that look at thousands of partitions would bring it all back. Therefore a
partition is opened only if there is room for it and its messages.

When there is none, receivers must still get on, for they free memory. So one partition after the other is
opened beyond the room, with a pause in which memory is measured and unused partitions are closed. Those that
were opened like this and are still open may together hold a part of the mark, or one of them more. Small ones
have a part of their own, so that a large one from which nobody takes anything does not keep them waiting; one
that has been drained is small. The data folders take turns. One whose disk does not answer keeps no other
folder waiting.

One that is larger than that part waits as well while it would take memory beyond EXCEEDING_SHARE of the mark.
Otherwise two partitions that each came near to the mark before a restart would have the kernel end the broker
when receivers want both. If little else is open, it need not wait for that: nothing would be gained.

What a partition holds is known for certain only when its log has been read: after a crash, its last note may
be old. So while it is read, more room is taken as soon as it turns out to be needed (`grow`). If there is
none, what was read is dropped, and the partition waits again, for more room (`EXPECTED_AGAIN` in
`openings.py`).

A partition whose state is read again, because a commit has failed, was let in before and does not wait. It
counts as it did until the new state is there (`Reload`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from broker.base.clock import elapsed_s

OPENING_BYTES = 36 * 1024
"""The most that a partition without messages takes until it is open, with a receiver that waits for them."""
PAUSE_S = 1.0
"""How long after a partition was opened beyond the room the next one may be."""
BEYOND_PARTS = 8
"""Small partitions that were opened beyond the room may hold this part of the mark, and so may large ones."""
EXCEEDING_SHARE = 3 / 2
"""How much memory may be in use, compared with the mark, once a large partition has been opened beyond the
room: nine tenths of all memory with the default mark."""
SMALL_PARTS = 64
"""A partition is small if it takes this part of the mark at most."""
ASKS_AGAIN_S = 2 * PAUSE_S
"""A folder that wants to open a partition beyond the room asks for it more often than this."""
UNKNOWN = 1 << 62
"""The room before memory was measured: more than any machine has."""


class Share(Protocol):
    """What an open partition takes."""

    @property
    def state_bytes(self) -> int:
        """The memory for the state of its messages; 0 once it is closed."""


class Reload:
    """Counts an open partition whose state is being read again, in place of its closed share."""

    __slots__ = ("_room", "come", "share", "state_bytes")

    def __init__(self, room: OpeningRoom, state_bytes: int) -> None:
        self._room = room
        self.state_bytes = state_bytes
        """What it took before, in bytes."""
        self.come = 0
        """How much of that is in memory again."""
        self.share: Share | None = None
        """What it takes once it is open again. Set by the owner."""

    def takes(self, size: int, come: int, likely: int) -> None:
        """As `Opening.takes`, but it need not ask for room."""
        come = min(come, self.state_bytes)
        if come > self.come:
            self._room.has_come(come - self.come)
            self.come = come


class OpeningRoom:
    """Owned by the event loop. All sizes are in bytes."""

    __slots__ = (
        "_asked_s",
        "_beyond",
        "_exceeding",
        "_held",
        "_in_partitions",
        "_let_in",
        "_mark",
        "_may_exceed_s",
        "_seconds",
        "left",
        "under_way",
    )

    def __init__(
        self, seconds: Callable[[], float] = elapsed_s, in_partitions: Callable[[], int] = lambda: 0
    ) -> None:
        """`seconds` is the clock. `in_partitions` gives what the messages of all partitions take by now, open
        or being opened."""
        self._seconds, self._in_partitions = seconds, in_partitions
        self.left = self._mark = UNKNOWN
        """`left`: what more partitions may take; below zero if some were opened beyond the room."""
        self.under_way = 0
        """What the partitions that are being opened will take beside what they take by now."""
        self._exceeding: object = None
        """The partition that is being opened beyond the room, and that others wait for."""
        self._let_in: dict[object, int] = {}
        """All that are being opened beyond the room, and what each has grown to, or 0. All but one of them
        have waited for a disk that was late."""
        self._may_exceed_s = float("-inf")
        """When the next one may be opened beyond the room."""
        self._asked_s: dict[object, float] = {}
        """The folders that want to open one, in the order of their turns, and when they last asked."""
        self._beyond: dict[bool, list[Share]] = {True: [], False: []}
        """Those that were opened beyond the room, by whether they are small."""
        self._held = {True: 0, False: 0}
        """What these held when a folder last had its turn, and those opened since."""

    @property
    def part_beyond(self) -> int:
        """What may be held beyond the room by partitions of one kind, or wait for one disk that is late."""
        return self._mark // BEYOND_PARTS

    def measured(self, used: int, mark: int) -> None:
        """The memory in use, without what is expected, and the mark."""
        self.left, self._mark = mark - used - self.under_way, mark

    def fits(self, size: int) -> bool:
        """Whether there is room for a partition of this size."""
        return size <= self.left or not size

    def take(self, size: int) -> bool:
        """Whether there is room for a partition of this size; if so, `give_back` must be called in the
        end."""
        if not self.fits(size):
            return False
        self._take(size)
        return True

    def _take(self, size: int) -> None:
        self.left -= size
        self.under_way += size

    def grow(self, partition: object, before: int, size: int) -> bool:
        """Whether a partition that is being opened may take this size instead of `before`, which is less. If
        so, the difference is taken."""
        is_beyond = partition in self._let_in
        if not self.fits(size - before) and not (
            is_beyond and self._may_grow_beyond(partition, before, size)
        ):
            return False
        if is_beyond:
            self._let_in[partition] = size
        self._take(size - before)
        return True

    def _may_grow_beyond(self, partition: object, before: int, size: int) -> bool:
        is_small = self._is_small(size)
        others = [grown for each, grown in self._let_in.items() if grown and each is not partition]
        of_its_kind = sum([each for each in others if self._is_small(each) is is_small])
        return self._may_be_beyond(size, size - before, of_its_kind)

    def has_come(self, size: int) -> None:
        """This many more bytes of what the partitions that are being opened will take are in memory now. They
        are measured with all else, so they are no longer under way."""
        self.under_way -= size

    @contextmanager
    def reload(self, before: Share, state_bytes: int) -> Iterator[Reload]:
        """The state of an open partition is read again within this block. `before`: its share, which is
        closed. `state_bytes`: what it took, in bytes."""
        reload = Reload(self, state_bytes)
        self._take(state_bytes)
        self._replace(before, reload)
        try:
            yield reload
        finally:
            self.under_way -= state_bytes - reload.come
            self._replace(reload, reload.share)

    def _replace(self, before: Share, after: Share | None) -> None:
        """If `before` was opened beyond the room, count `after` in its place."""
        for shares in self._beyond.values():
            if before in shares:
                shares.remove(before)
                if after is not None:
                    shares.append(after)

    def has_turn(self, folder: object) -> bool:
        """Whether a folder may open a partition beyond the room now. It has its turn until one has begun, or
        `pass_on` is called."""
        now_s = self._seconds()
        self._asked_s[folder] = now_s
        if self._exceeding is not None or now_s < self._may_exceed_s:
            return False
        while now_s - self._asked_s[first := next(iter(self._asked_s))] > ASKS_AGAIN_S:
            del self._asked_s[first]
        if first is not folder:
            return False
        shrunk = [share for share in self._beyond[False] if self._is_small(share.state_bytes)]
        self._beyond[False] = [share for share in self._beyond[False] if share not in shrunk]
        self._beyond[True] += shrunk
        for is_small, shares in self._beyond.items():  # once for all that the folder tries
            self._beyond[is_small] = [share for share in shares if share.state_bytes]
            self._held[is_small] = sum([share.state_bytes for share in shares])
        return True

    def pass_on(self, folder: object) -> None:
        """The folder lets others have their turn."""
        self._asked_s.pop(folder, None)

    def take_beyond(self, partition: object, size: int) -> bool:
        """Whether a partition of this size may be opened although there is no room, if it has its turn. If
        so, as `take`."""
        if not self._may_be_beyond(size, size):
            return False
        self._exceeding = partition
        self._let_in[partition] = 0
        self._take(size)
        return True

    def _may_be_beyond(self, size: int, more: int, grown: int = 0) -> bool:
        """Whether a partition of this size may be open, for which `more` bytes are still to be taken.
        `grown`: what others of its kind have grown to that are being opened beyond the room."""
        held = self._held[self._is_small(size)] + grown
        if held + size <= self.part_beyond:
            return True
        others = self._in_partitions() + self.under_way - (size - more)
        if others <= self.part_beyond:
            return True  # it is alone
        return not held and self._mark - self.left + more <= self._mark * EXCEEDING_SHARE

    def is_late(self, partition: object) -> None:
        """The disk has not answered in time. If the partition was let in beyond the room, the next one may
        be."""
        if self._exceeding is partition:
            self._exceeding, self._may_exceed_s = None, self._seconds() + PAUSE_S

    def give_back(self, partition: object, size: int, share: Share | None, come: int = 0) -> None:
        """The partition is open, and what it takes is measured from now on, or it could not be opened.
        `come`: what `has_come` was told of its size."""
        self.under_way -= size - come
        self.is_late(partition)
        if partition in self._let_in:
            del self._let_in[partition]
            if share is not None:
                is_small = self._is_small(size)
                self._beyond[is_small].append(share)
                self._held[is_small] += share.state_bytes

    def _is_small(self, size: int) -> bool:
        return size <= self._mark // SMALL_PARTS
