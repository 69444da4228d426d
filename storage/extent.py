"""Extent: what a log is known to hold, kept outside the log's folder so that missing files are noticed.

A log's own files cannot show that its folder or its last segment is gone: the rest looks like an older log
that is intact. So a file outside that folder records which segments there are and up to which position
everything is durable. It is written
- when a log gets a new owner or a new segment, before the first commit in that segment is acknowledged: a
  segment that the extent does not know holds nothing that was acknowledged;
- after each checkpoint;
- some seconds after commits, in the background (`end_record.py`), and when the log is closed, unless that
  comes late;
- before trimmed segments are removed.
So after a crash at any moment, the log holds at least what its extent says.

The file has two slots of 512 bytes, one sector each. All numbers are little endian.

    offset  size  field
         0     8  magic "PbExtent"
         8     4  CRC-32C of the bytes 12 … 511
        12     2  format version, 1
        14     2  partition
        16     4  epoch of the last segment
        20     2  length of the entity's identifier in bytes
        22     2  zero
        24     8  number of this version of the extent: of two whole slots, the one with the higher number is
                  valid
        32     8  start: the base of the first segment
        40     8  base of the last segment
        48     8  durable: everything below was on stable storage
        56     8  position of the newest checkpoint, 2^64-1 for none
        64     4  how many segments there are
        68     4  zero
        72    16  the log's salt
        88   184  the entity's identifier, UTF-8
       272     …  zeros

Each new version is written to the slot that does not hold the latest one, and synced; then it is copied to
the other slot without a sync. So a torn write leaves the previous version, and one damaged slot costs nothing
but a report.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import structlog

from storage.disk import Disk, close_quietly, commit_error, make_directories, publish, write_all
from storage.errors import CorruptRecord, StorageError, UnknownFormat
from storage.log import Position
from storage.record import crc32c

FORMAT_VERSION = 1
EXTENT_SUFFIX = ".extent"
SLOT_BYTES = 512

CLOSED_WITHIN_S = 0.5
"""If the files of a log are closed later than this after they were to be, its end stays unrecorded."""

_MAGIC = b"PbExtent"
_HEAD = struct.Struct("<8sI")
_TAIL = struct.Struct("<HHIHHQQQQQII16s184s")
_NO_CHECKPOINT = (1 << 64) - 1

_log = structlog.get_logger()


class Extent(NamedTuple):
    """What a log is known to hold. The module docstring draws and explains the fields."""

    start: Position
    base: Position
    epoch: int
    durable: Position
    checkpoint: Position | None
    segments: int
    salt: bytes


class ExtentFile:
    """The extent of one log. Thread-safe: a roll, a checkpoint and a trim may happen at the same time."""

    def __init__(self, disk: Disk, root: Path, entity_directory: str, entity: str, partition: int) -> None:
        """`root` holds a folder for each entity. The caller has made it."""
        self._disk = disk
        self._root = root
        self._path = root / entity_directory / f"{partition:04x}{EXTENT_SUFFIX}"
        self._entity = entity
        self._partition = partition
        self._mutex = threading.Lock()
        self._number = 0
        self._bases: list[Position] = []
        self._extent: Extent | None = None
        """The extent that the file should hold."""
        self._kept: Extent | None = None
        """The extent that is known to be durable in the file."""
        self._is_sound = False
        """Whether the file may be written to: both slots are whole, and no write to it has failed."""

    @property
    def path(self) -> Path:
        """The file."""
        return self._path

    def slots(self) -> list[tuple[int, Extent] | None] | None:
        """The number and extent in each slot; None for a damaged slot, or if there is no file. Changes
        nothing.

        Raises UnknownFormat, OSError.
        """
        try:
            data = self._read()
        except FileNotFoundError:
            return None
        return [self._decode(data[at : at + SLOT_BYTES]) for at in (0, SLOT_BYTES)]

    def read(self) -> Extent | None:
        """The extent in the file; None if there is no file.

        Raises CorruptRecord if both slots are damaged; UnknownFormat, OSError.
        """
        with self._mutex:
            self._is_sound = False
            self._extent = self._kept = None
            try:
                data = self._read()
            except FileNotFoundError:
                return None
            slots = [self._decode(data[at : at + SLOT_BYTES]) for at in (0, SLOT_BYTES)]
            whole = [slot for slot in slots if slot is not None]
            if not whole:
                raise CorruptRecord(
                    str(self._path), 0, "both slots are damaged, so what the log held is not known"
                )
            self._number, extent = max(whole)
            self._is_sound = len(whole) == len(slots)
            if not self._is_sound:
                offset = SLOT_BYTES * slots.index(None)
                _log.warning(
                    "extent.slot_damaged",
                    path=str(self._path),
                    offset=offset,
                    advice="The other slot is used, and this one is repaired.",
                )
            return extent

    def acquired(self, bases: Sequence[Position], extent: Extent) -> None:
        """Record a new owner, with the bases of the log's segments. Raises DiskFull (nothing happened),
        CommitFailed."""
        with self._mutex:
            self._bases = list(bases)
            self._keep(extent)

    def rolled(self, base: Position) -> None:
        """Record that the owner began a segment at `base`, and that everything before it is durable.

        Raises what `acquired` raises.
        """
        with self._mutex:
            self._bases.append(base)
            self._keep(self._known()._replace(base=base, durable=base))

    def checkpointed(self, position: Position, durable: Position) -> None:
        """Record a saved checkpoint. Raises what `acquired` raises."""
        with self._mutex:
            extent = self._known()
            self._keep(extent._replace(checkpoint=position, durable=max(extent.durable, durable)))

    @property
    def durable(self) -> Position:
        """The position below which everything is durable according to the file."""
        return self._kept.durable if self._kept is not None else Position(0)

    def reached(self, durable: Position) -> None:
        """Record that everything below `durable` is on stable storage. Raises what `acquired` raises."""
        with self._mutex:
            extent = self._known()
            self._keep(extent._replace(durable=max(extent.durable, durable)))

    @contextlib.contextmanager
    def closing(self) -> Iterator[Callable[[Position], None]]:
        """While the files of the log are closed: gives what records its end, to be called in a thread.

        The end stays unrecorded, as after a crash, if the disk refuses, if an earlier write has failed, or if
        the call comes late, because many logs are closed at once on a slow disk: their owners do not wait
        long. Entered and left in the event loop.
        """
        late = threading.Event()
        timer = asyncio.get_running_loop().call_later(CLOSED_WITHIN_S, late.set)

        def record(durable: Position) -> None:
            if self._is_sound and not late.is_set():
                with contextlib.suppress(StorageError):
                    self.reached(durable)

        try:
            yield record
        finally:
            timer.cancel()

    def trimmed(self, start: Position) -> None:
        """Record that the segments below `start` are about to be removed. If this raises, as `acquired` does,
        they must stay."""
        with self._mutex:
            self._keep(self._known()._replace(start=start))

    def _known(self) -> Extent:
        assert self._extent is not None, "the log was acquired"
        return self._extent

    def _keep(self, extent: Extent) -> None:
        del self._bases[: bisect_left(self._bases, extent.start)]
        self._extent = extent = extent._replace(segments=len(self._bases))
        if extent == self._kept:
            return
        self._number += 1
        slot = self._encode(extent)
        try:
            if self._is_sound:
                self._write(slot)
            else:
                self._publish(slot)
        except StorageError:
            self._is_sound = False  # durability rule 4: after a failed sync, write to a new file
            raise
        except OSError as error:
            self._is_sound = False
            raise commit_error(error, self._path) from error
        self._is_sound = True
        self._kept = extent

    def _write(self, slot: bytes) -> None:
        first = SLOT_BYTES * (self._number % 2)
        fd = self._disk.open_write(self._path)
        try:
            write_all(self._disk, fd, [slot], first)
            self._disk.sync(fd)
            with contextlib.suppress(OSError):
                write_all(self._disk, fd, [slot], SLOT_BYTES - first)
        finally:
            close_quietly(self._disk, fd)

    def _publish(self, slot: bytes) -> None:
        try:
            make_directories(self._disk, self._root, [self._path.parent.name])
        except FileNotFoundError:  # somebody has removed the folder that holds all extents
            make_directories(self._disk, self._root.parent, [self._root.name, self._path.parent.name])
        close_quietly(self._disk, publish(self._disk, self._path, [slot, slot]))

    def _read(self) -> bytes:
        fd = self._disk.open_read(self._path)
        try:
            return self._disk.read(fd, 2 * SLOT_BYTES, 0)
        finally:
            self._disk.close(fd)

    def _encode(self, extent: Extent) -> bytes:
        entity = self._entity.encode()
        checkpoint = _NO_CHECKPOINT if extent.checkpoint is None else extent.checkpoint
        tail = _TAIL.pack(
            FORMAT_VERSION, self._partition, extent.epoch, len(entity), 0, self._number, extent.start,
            extent.base, extent.durable,
            checkpoint, extent.segments, 0, extent.salt, entity,
        ).ljust(SLOT_BYTES - _HEAD.size, b"\0")  # fmt: skip
        return _HEAD.pack(_MAGIC, crc32c(tail)) + tail

    def _decode(self, slot: bytes) -> tuple[int, Extent] | None:
        """The slot's number and extent; None if it is damaged or belongs to another log. Raises
        UnknownFormat."""
        if len(slot) < SLOT_BYTES:
            return None
        magic, crc = _HEAD.unpack_from(slot)
        if magic != _MAGIC or crc != crc32c(slot[_HEAD.size :]):
            return None
        (
            version,
            partition,
            epoch,
            length,
            _,
            number,
            start,
            base,
            durable,
            checkpoint,
            segments,
            _,
            salt,
            entity,
        ) = _TAIL.unpack_from(slot, _HEAD.size)
        if version != FORMAT_VERSION:
            raise UnknownFormat(
                f"{self._path}: extent format version {version} is not known, only {FORMAT_VERSION}"
            )
        if (entity[:length], partition) != (self._entity.encode(), self._partition):
            return None
        newest = None if checkpoint == _NO_CHECKPOINT else Position(checkpoint)
        return number, Extent(
            Position(start), Position(base), epoch, Position(durable), newest, segments, salt
        )
