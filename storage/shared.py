"""What all logs of a store share. Data only; `file_store.py` makes it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Literal, TypeVar

from storage.committer import Committer
from storage.disk import Disk
from storage.drain_room import DrainRoom
from storage.full_disk import Reserves
from storage.log import RoomLock
from storage.open_files import OpenFiles
from storage.open_segments import OpenSegments
from storage.pools import Pools

Fsync = Literal["always", "interval", "never"]
OneLog = TypeVar("OneLog")


@dataclass(slots=True, frozen=True)
class Shared(Generic[OneLog]):
    """What all logs of a store share."""

    root: Path
    extents: Path
    """The folder of all logs' extents. Outside `root`, so that it survives the loss of a log's folder."""
    disk: Disk
    committer: Committer
    executor: Executor
    """Runs everything that is not a commit and has no pool of its own."""
    pools: Pools
    files: OpenFiles
    """The files open for reading."""
    open_segments: OpenSegments
    """The logs whose active segment is open."""
    reserve: Reserves
    drain_room: DrainRoom
    fsync: Fsync
    segment_bytes_max: int
    make_salt: Callable[[], bytes]
    prepare: Callable[[], Awaitable[None]]
    """Awaited before the first file is touched."""
    unsynced: Callable[[OneLog], None]
    """Called when a commit was acknowledged before it was synced."""
    reserve_released: Callable[[], None]
    """Called when a reserve is found to be released."""
    found_full: Callable[[bool], None]
    """Called when a commit found no room besides what draining needs: with True if it is refused as
    `DiskFull`, with False if it is written nevertheless."""
    asked_if_full: Callable[[], None]
    """Called when a log's owner is about to hear that the disk is full, which may be out of date."""
    making_room: RoomLock
    put_away: Callable[[OneLog], None]
    """Called when a log has closed its files until the next commit."""
    untidy: Callable[[OneLog], None]
    """Called when the disk refused to remove a trimmed file. The callee calls `tidy` later."""
