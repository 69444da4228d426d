"""Reads the frames of one log, some of them by their positions or all from a position on, and checkpoints.

Knows nothing of the log's state: the caller gives it a log that may be read. Files are opened for each call
and may be closed in between (`open_files.py`), so nothing here holds a descriptor.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Executor
from functools import partial
from pathlib import Path
from typing import TypeVar

from storage.checkpoint_blocks import parts_of
from storage.disk import Disk, disk_error
from storage.errors import CorruptRecord, DiskFailed
from storage.fetch import PORTION_BYTES, Read, bounded, fetch_frames, fetch_parts, portions
from storage.log import Checkpoint, Frame, Parts, Position
from storage.open_files import OpenFiles, Reading
from storage.record import Chain, FrameCodec
from storage.recovery import OpenLog
from storage.scan import FrameScanner
from storage.segment import Segment
from storage.threads import UnderWay, run_to_end

Wanted = TypeVar("Wanted")
Found = TypeVar("Found")


class LogReader:
    """The reader of one log. Used in the event loop."""

    __slots__ = ("_directory", "_disk", "_executor", "_files", "_reads")

    def __init__(
        self, disk: Disk, files: OpenFiles, reads: Executor, executor: Executor, directory: Path
    ) -> None:
        """`reads` runs what fetches from the disk, `executor` what replays."""
        self._disk, self._files, self._directory = disk, files, directory
        self._reads, self._executor = reads, executor

    async def fetch(self, opened: OpenLog, positions: Sequence[Position]) -> list[Frame]:
        """See `Log.fetch`."""
        return await self._fetched(opened, fetch_frames, positions)

    async def fetch_parts(self, opened: OpenLog, parts: Parts) -> list[bytes]:
        """See `Log.fetch_parts`. Many bytes are fetched in portions, so that the event loop can read them
        all, and do something else between two of them."""
        if sum(parts.sizes) <= PORTION_BYTES:
            return await self._fetched(opened, fetch_parts, parts)
        found = [b""] * len(parts.sizes)
        for number, (places, portion) in enumerate(portions(parts)):
            if number:
                await asyncio.sleep(0)
            for place, part in zip(places, await self._fetched(opened, fetch_parts, portion), strict=True):
                found[place] = part
        return found

    async def _fetched(
        self,
        opened: OpenLog,
        fetch: Callable[[Read, Reading, Sequence[Segment], FrameCodec, Position, Wanted], list[Found]],
        wanted: Wanted,
    ) -> list[Found]:
        """What `fetch` finds, in the event loop if it need not wait."""
        disk, files = self._disk, self._files
        segments, end = tuple(opened.segments), opened.tail.position
        try:
            try:
                read, reading = bounded(disk.read_cached), files.reading_if_open
                return fetch(read, reading, segments, opened.codec, end, wanted)
            except BlockingIOError:  # it would wait for the disk or take long, so a thread does it
                return await asyncio.get_running_loop().run_in_executor(
                    self._reads, fetch, disk.read, files.reading, segments, opened.codec, end, wanted
                )
        except OSError as error:
            raise disk_error(error, self._directory) from error

    async def replay(self, opened: OpenLog, since: Position) -> AsyncIterator[Frame]:
        """See `Log.replay`."""
        segments, tail = tuple(opened.segments), opened.tail
        assert segments[0].base <= since <= tail.position, "only what is in the log is replayed"
        loop = asyncio.get_running_loop()
        for number, segment in enumerate(segments):
            behind = segments[number + 1].header.chain if number + 1 < len(segments) else tail
            if behind.position <= since:
                continue
            start = segment.header.chain if since <= segment.base else Chain(since, 0, None)
            try:
                scanner = FrameScanner(self._disk, -1, segment, opened.codec, start, behind.position)
                while frames := await loop.run_in_executor(
                    self._executor, _frames, self._files, scanner, segment.path
                ):
                    for frame in frames:
                        yield frame
            except OSError as error:
                raise disk_error(error, segment.path) from error
            if scanner.chain != behind:
                why = scanner.why or "the frames do not connect to those that follow"
                raise CorruptRecord(str(segment.path), segment.offset_of(scanner.chain.position), why)

    async def load_checkpoint(
        self, opened: OpenLog, start: Position, under_way: UnderWay
    ) -> Checkpoint | None:
        """See `Log.load_checkpoint`. The log begins at `start`."""
        try:
            return await run_to_end(
                self._executor, partial(opened.checkpoints.load, self._disk, start), under_way
            )
        except OSError as error:
            raise disk_error(error, self._directory) from error

    async def checkpoint_parts(self, checkpoint: Checkpoint) -> AsyncIterator[Checkpoint]:
        """See `Log.checkpoint_parts`."""
        loop, parts = asyncio.get_running_loop(), parts_of(checkpoint)
        try:
            while (part := await loop.run_in_executor(self._executor, next, parts, None)) is not None:
                yield part
        except OSError as error:
            raise disk_error(error, self._directory) from error
        except CorruptRecord as error:  # not for good: acquired again, the log has the older checkpoint left
            raise DiskFailed(f"{error}; it was whole when it was checked a moment ago") from error


def _frames(files: OpenFiles, scanner: FrameScanner, path: Path) -> list[Frame]:
    """The next frames. Runs in a thread. The replay holds no descriptor between two calls."""
    with files.reading(path) as scanner.fd:
        return scanner.frames()
