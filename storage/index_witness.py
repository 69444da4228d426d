"""Witness: what a data folder records about the index of partitions, so that an old index is not trusted.

The index (`partition_index.py`) is one file for all data folders, and an old one looks as intact as a new
one. It can be wrong without being damaged in two ways: somebody restores an older one from a backup, or its
disk hangs and partitions in other folders are opened without being entered. So each data folder has a file of
its own, `partitions.witness`. It belongs to the folder, whichever namespaces have entities there. All numbers
are little endian.

    offset  size  field
         0     8  magic "PbWitnss"
         8     4  CRC-32C of everything behind
        12     2  format version, 1
        14     2  1 if no index may be trusted, else 0
        16     8  number: the index had reached this frame

An index is trusted about a folder if its witness is not void and names no later frame than the index has. A
missing or damaged witness counts as void. The number is updated some seconds after the index was written, and
when it is closed. The numbers of frames only rise: a new index continues far above all witnesses.
"""

from __future__ import annotations

import asyncio
import enum
import struct
from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path
from typing import TypeVar

import structlog

from storage.disk import Disk, close_quietly, commit_error, publish, read_file
from storage.errors import DiskFull
from storage.record import crc32c
from storage.threads import UnderWay, run_to_end

T = TypeVar("T")

FORMAT_VERSION = 1
WITNESS_NAME = "partitions.witness"

_MAGIC = b"PbWitnss"
_HEAD = struct.Struct("<8sI")
_TAIL = struct.Struct("<HHQ")

_log = structlog.get_logger("index")


class Says(enum.Enum):
    """The known content of the file on the disk."""

    UNKNOWN = "unknown"
    """The file has not been read, or a write of it has failed."""
    VOID = "void"
    VALID = "valid"


class Witness:
    """The witness of one folder. Used from one event loop."""

    def __init__(
        self,
        root: Path,
        disk: Disk,
        *,
        admit: Callable[[], None] = lambda: None,
        executor: Executor | None = None,
    ) -> None:
        """`admit` raises DiskFailed if the folder is missing or has been replaced. It is called in a thread.

        `executor`: its threads do the work; the event loop's own by default.
        """
        self.path = root / WITNESS_NAME
        self._disk, self._admit, self._executor = disk, admit, executor
        self._one_at_a_time = asyncio.Lock()
        self._under_way = UnderWay()
        self.is_read = False
        """Whether the file was read. Until then only `make_void` overwrites it, as its content is unknown."""
        self.says = Says.UNKNOWN
        self.number = 0
        """The last number that was read or written."""
        self.is_given_up = False
        """Whether it was made void, so that nothing in this folder waits for the index."""

    @property
    def is_busy(self) -> bool:
        """Whether it is being read or written."""
        return self._one_at_a_time.locked()

    async def read(self) -> None:
        """Read the file. Raises DiskFailed if the folder is missing."""
        async with self._one_at_a_time:
            found = await self._in_thread(self._read)
            if not self.is_read and self.says is not Says.VOID:
                self.says, self.number = (Says.VOID, 0) if found is None else found
            self.is_read = True

    async def make_void(self) -> None:
        """Let no index be trusted about this folder. Durable when it returns. Raises StorageError: then the
        file may say either."""
        async with self._one_at_a_time:
            if self.says is not Says.VOID:
                await self._write(Says.VOID, self.number)
            self.is_given_up = True

    async def confirm(self, number: Callable[[], int | None]) -> None:
        """Let an index be trusted that has reached the frame of this number; None changes nothing. Durable
        when it returns.

        `number` is called at the decisive moment: from then on, no partition may be opened that has not been
        entered. Raises StorageError.
        """
        async with self._one_at_a_time:
            reached = number() if self.is_read else None
            if reached is not None and (self.says is not Says.VALID or self.number != reached):
                self.is_given_up = False
                await self._write(Says.VALID, reached)

    def let_go(self) -> None:
        """Stop waiting for work under way."""
        self._under_way.let_go()

    async def _write(self, says: Says, number: int) -> None:
        before, self.says = self.says, Says.UNKNOWN
        try:
            await self._in_thread(lambda: self._publish(says, number))
        except DiskFull:
            self.says = before
            raise
        self.says, self.number = says, number

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await run_to_end(self._executor, work, self._under_way)

    def _read(self) -> tuple[Says, int] | None:
        """Read the file; None if it is missing, damaged or unreadable. Runs in a thread."""
        self._admit()
        try:
            data = read_file(self._disk, self.path)
        except FileNotFoundError:
            return None
        except OSError as error:  # everything in it can be found out again
            _log.error("witness.unreadable", path=str(self.path), error=error.strerror)
            return None
        found = decode(data)
        if found is None:
            _log.error(
                "witness.damaged",
                path=str(self.path),
                advice="The partitions of this folder are counted again.",
            )
        return found

    def _publish(self, says: Says, number: int) -> None:
        self._admit()
        tail = _TAIL.pack(FORMAT_VERSION, says is Says.VOID, number)
        try:
            close_quietly(
                self._disk, publish(self._disk, self.path, [_HEAD.pack(_MAGIC, crc32c(tail)) + tail])
            )
        except OSError as error:
            raise commit_error(error, self.path) from error


def damage(disk: Disk, root: Path) -> list[tuple[Path, int, str]]:
    """Damage to a folder's witness, if it has one: path, byte and reason. Changes nothing. Raises OSError if
    the folder cannot be listed."""
    path = root / WITNESS_NAME
    if WITNESS_NAME not in disk.names(root):
        return []
    try:
        if decode(read_file(disk, path)) is not None:
            return []
        what = "the witness's checksum does not match"
    except OSError as error:
        what = f"the witness cannot be read ({error.strerror})"
    return [(path, 0, f"{what}, so the next start counts all partitions of this folder")]


def decode(data: bytes) -> tuple[Says, int] | None:
    """What a witness says; None if it is damaged or from a later release, so that it counts as void."""
    if len(data) != _HEAD.size + _TAIL.size:
        return None
    magic, crc = _HEAD.unpack_from(data)
    version, is_void, number = _TAIL.unpack_from(data, _HEAD.size)
    if magic != _MAGIC or crc != crc32c(data[_HEAD.size :]) or version != FORMAT_VERSION:
        return None
    return Says.VOID if is_void else Says.VALID, number
