"""Watches how much space is left in a data folder: whether it counts as full, and who is told.

A folder counts as *full* when hardly anything is left besides what draining needs (`drain_room.py`), or
messages were refused for lack of space within the last minute and none has come free since. So after a start,
the first measurement shows that a disk is full, before it refuses a message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from pathlib import Path
from typing import Protocol

from storage.disk import Disk
from storage.drain_room import UNKNOWN_BYTES, DrainRoom
from storage.full_disk import Reserves
from storage.threads import OwnerFailed, UnderWay, run_to_end, start_background

TOLD_AT_ONCE = 256
"""How many logs' owners are told of a full disk in one turn of the event loop."""
FULL_DISK_TOLD_S = 1.0
"""How often the owners of the logs are told that the disk is full, at most."""
FULL_DISK_SHOWN_S = 60.0
"""How long the folder counts as full after a commit found no space, if no more has come free since."""
FULL_DISK_LOOK_S = 1.0
"""How often to look meanwhile how much has come free."""
FULL_PER_RESERVE = 4
"""With less left than the reserve for settlements divided by this, the folder counts as full: 1 MiB, or a
fortieth of a small disk. Where a message found no room, less is left, unless it is a large one."""
FREED_BYTES_MIN = 64 << 10
"""With at least this much free space more, the folder no longer counts as full; with reserves, as much as
these take."""


class WatchedLog(Protocol):
    """A log whose owner is told of a full disk."""

    on_full: Callable[[], None]


class SpaceWatch:
    """Of one store. Lives in the event loop, apart from `measure`."""

    def __init__(
        self,
        root: Path,
        disk: Disk,
        room: DrainRoom,
        reserves: Reserves,
        executor: Executor,
        under_way: UnderWay,
        logs: Callable[[], Iterable[WatchedLog]],
        failed: OwnerFailed,
    ) -> None:
        """The free space is measured in a thread of `executor`. `failed` is called if a background task
        dies."""
        self._root, self._disk, self._room, self._reserves = root, disk, room, reserves
        self._executor, self._under_way, self._logs, self._failed = executor, under_way, logs, failed
        self._told_until = self._full_until = 0.0
        self._telling: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None
        self._free_when_full = UNKNOWN_BYTES
        """The least free space, in bytes, since a commit last found none, beginning with what was known then:
        the first look may be a second later, when much has come free."""
        self.is_open = False
        """Whether the folder is in use, so that its free space may be measured. Set by the store."""

    @property
    def is_full(self) -> bool:
        """Whether the folder counts as full."""
        return asyncio.get_running_loop().time() < self._full_until or self._is_filled

    @property
    def _is_filled(self) -> bool:
        """Whether hardly anything is left besides what draining needs."""
        return self._room.left < self._reserves.settlements.size_bytes // FULL_PER_RESERVE

    @property
    def tasks(self) -> Iterable[asyncio.Task[None] | None]:
        """The background tasks, to be cancelled when the store is closed."""
        return self._telling, self._looking

    def measure(self) -> None:
        """Measure the free space. Runs in a thread. Raises OSError."""
        self._room.measure(lambda: self._disk.space(self._root).free)

    def weigh(self) -> None:
        """The free space was measured, or needs have changed: go on looking if it is full."""
        self._room.weigh()
        if self._is_filled:
            self.look()

    def tell(self, is_full: bool = True) -> None:
        """Ask every log's owner to free space, at most once every FULL_DISK_TOLD_S. `is_full`: the folder
        counts as full from now on."""
        now = asyncio.get_running_loop().time()
        if is_full:
            self._full_until, self._free_when_full = now + FULL_DISK_SHOWN_S, self._room.free
        self.look()
        if now >= self._told_until:
            self._told_until = now + FULL_DISK_TOLD_S
            if self._telling is None or self._telling.done():
                self._telling = start_background(self._tell_all(), "storage-full", self._failed)

    async def _tell_all(self) -> None:
        for place, log in enumerate(list(self._logs()), 1):
            log.on_full()
            if place % TOLD_AT_ONCE == 0:
                await asyncio.sleep(0)

    def look(self) -> None:
        """Look soon how much space there is, unless that was done within FULL_DISK_LOOK_S."""
        if self._looking is None and self.is_open:
            self._looking = start_background(self._look(), "storage-space", self._failed)

    async def _look(self) -> None:
        """Look how much space there is, and again while the folder counts as full."""
        reserves, room = self._reserves, self._room
        freed_bytes = max(FREED_BYTES_MIN, reserves.settlements.size_bytes + reserves.upkeep.size_bytes)
        is_full = True
        while is_full:
            try:
                await run_to_end(self._executor, self.measure, self._under_way)
            except OSError:
                pass
            else:
                room.weigh()
                if reserves.held and room.left >= 0:
                    reserves.forget_growth()
                self._free_when_full = min(self._free_when_full, room.free)
                if reserves.held and room.free - self._free_when_full >= freed_bytes:
                    self._full_until = 0.0
            await asyncio.sleep(FULL_DISK_LOOK_S)
            is_full = self.is_full
        self._looking = None

    def has_room(self) -> None:
        """There is room for both reserves again."""
        self._full_until = 0.0
