"""Index of partitions: what each partition holds, so that the broker can start without opening every log.

For each partition that was ever opened, the index holds a *note* (bytes chosen by the owner) and whether the
partition is *open*. While it is open, its note may be out of date and only its log is right. A partition that
is not in the index was never opened and holds nothing.

Before a partition's log is acquired, the partition is entered as open, durably. After its log is closed, it
is entered with its note. Commits never touch the index. So after a clean stop the index is right for all
partitions; after a crash it is right for all that were not open, and says which were. A last entry that was
not synced costs at most opening a partition that need not be opened.

The index is a file `partitions.index` of frames, and a copy of it. All numbers are little endian.

    offset  size  field
         0     4  magic "PbIx"
         4     4  CRC-32C of everything behind, up to the end of the frame
         8     4  length of the frame in bytes
        12     2  format version, 1
        14     2  1 for a frame that says everything, so that what is in front of it is void; else 0
        16     8  number of the frame: one more than that of the frame before
    then for each entry:
         0     1  1 if the partition is open; 2 if the whole entity is to be forgotten; else 0
         1     1  length of the entity's identifier in bytes
         2     2  partition
         4     2  length of the note in bytes
         6     …  the entity's identifier, UTF-8
         …     …  note

The first frame holds all entries. Each further frame is appended to the file and synced, then appended to the
copy without a sync. When most of the file is out of date, both files are replaced.

*Damage costs time, not truth.* Of the two files, the one whose last whole frame has the higher number
counts. A torn frame at the end was never acknowledged. If neither file is whole, or a damaged frame is
followed by others, `load` returns False: the owner then lists the partitions that exist, and all of them
count as open. The same happens in a folder that has no index yet. If the index cannot be written (the disk
is full or failing), its files are removed so that they cannot mislead, and partitions are opened all the
same; the index is written anew as soon as the disk accepts it.

*An outdated index* is not trusted: each data folder has a witness (`index_witness.py`) that says how far the
index had come. If a folder's witness contradicts the index, all partitions of that folder count as open.

*A disk that hangs* delays only the partitions of its own folder. If a partition in another folder has waited
for LATE_MS, that folder's witness is made void instead. From then on partitions there are opened without
waiting, and after a crash the whole folder would count as open. Once the index's disk answers, the missing
entries are written and the witness becomes valid again.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import NamedTuple, TypeVar

import structlog

from storage.disk import Disk, close_quietly, disk_error, make_directories, publish_together, write_all
from storage.errors import StorageError, UnknownFormat
from storage.index_witness import Says, Witness
from storage.record import crc32c
from storage.threads import (
    OwnerFailed,
    UnderWay,
    mark_retrieved,
    report_to_loop,
    run_to_end,
    start_background,
    within,
)

T = TypeVar("T")

FORMAT_VERSION = 1
INDEX_NAME = "partitions.index"
COPY_NAME = "partitions.index-copy"
NOTE_BYTES_MAX = 65_535
WRITE_DELAY_MS = 1_000
"""How long a note that nobody waits for may be delayed so that others join it."""
LATE_MS = 250
"""How long a partition in a folder other than the index's waits for the index before that folder goes on
without it."""
CONFIRM_DELAY_S = 10.0
"""The pause before the witnesses are told how far the index has come."""
NUMBERS_AHEAD = 1 << 32
"""How far above the numbers known to the witnesses a new index starts counting its frames."""
CLOSE_WITHIN_MS = 5_000
"""How long closing the index may take to write what is outstanding."""
RETRY_DELAY_S = 10.0
"""The pause before another attempt to write an index that the disk refused."""
STALE_BYTES_MIN = 1 << 20
"""The file is replaced once its out-of-date bytes exceed this plus what all entries took when it was last
replaced."""

_MAGIC = b"PbIx"
_HEAD = struct.Struct("<4sI")
_TAIL = struct.Struct("<IHHQ")
_FRAME_BYTES = _HEAD.size + _TAIL.size
_ENTRY = struct.Struct("<BBHH")
_OPEN, _FORGOTTEN = 1, 2
_AT_REST, _OPEN_MARK = b"\0", b"\1"

_log = structlog.get_logger("index")

_Rows = dict[str, dict[int, bytes]]
"""By entity and partition: one byte for the partition's state, then its note."""


class _File(NamedTuple):
    """The content of one of the two files."""

    number: int
    """The number of its last whole frame; 0 if it has none."""
    rows: _Rows
    size: int
    """The bytes of its whole frames."""
    all_bytes: int
    """The bytes of its last frame that holds all entries."""
    is_torn: bool
    """Whether anything follows the whole frames."""
    is_damaged: bool
    """Whether the first frame that is not whole is followed by another frame, or the start of one."""


class PartitionIndex:
    """The index in one folder. Used from one event loop."""

    def __init__(
        self,
        directory: Path,
        disk: Disk,
        *,
        write_delay_ms: int = WRITE_DELAY_MS,
        close_within_ms: int = CLOSE_WITHIN_MS,
        executor: Executor | None = None,
        witnesses: Sequence[Witness] = (),
        failed: OwnerFailed = report_to_loop,
    ) -> None:
        """`executor`: its threads do the work; the event loop's own by default.

        `witnesses`: one for each data folder, by number. The index lies in one of these folders.

        `failed`: called when the background task that writes has died.
        """
        self._directory, self._disk = directory, disk
        self._paths = (directory / INDEX_NAME, directory / COPY_NAME)
        self._write_delay_ms = write_delay_ms
        self._close_within_s, self._late_s = close_within_ms / 1_000, LATE_MS / 1_000
        self._executor = executor
        self._failed = failed
        self._under_way = UnderWay()
        self._is_left = False
        """Whether the disk hung when the index was closed; if so, nothing is written any more."""
        self._rows: _Rows = {}
        self._number = 0
        self._least = 0
        """The next frame that holds all entries gets a number above this one."""
        self._loaded = -1
        """The number of the last frame that was read by `load`."""
        self._size = 0
        """The file's bytes; 0 if the file must be written anew."""
        self._all_bytes = 0
        """The bytes of the last frame that held all entries."""
        self._pending: list[bytes] = []
        self._entered = self._written = 0
        """How many entries were made, and how many of them were written or given up."""
        self._one_at_a_time = asyncio.Lock()
        self._writing: asyncio.Task[None] | None = None
        self._retry_at_s = 0.0
        self.witnesses = witnesses
        self._giving_up: dict[Witness, asyncio.Task[None]] = {}
        """Witnesses that are being made void."""
        self._unconfirmed: set[Witness] = set()
        """Witnesses that could not be updated; this was logged."""
        self._confirming: asyncio.Task[None] | None = None
        self._is_urgent = asyncio.Event()
        """Set when a witness is void and can be made valid again."""
        self._is_wrong = False
        """Whether the disk refused the new index and also refused to remove the old one."""

    # --- what is known --------------------------------------------------------------------------------------

    def entities(self) -> Collection[str]:
        """The identifiers of all entities with a partition that was ever opened."""
        return self._rows.keys()

    def partitions(self, entity: str) -> Iterator[tuple[int, bool, bytes]]:
        """The partitions of an entity that were ever opened: number, whether it counts as open, last note."""
        for partition, row in self._rows.get(entity, {}).items():
            yield partition, bool(row[0]), row[1:]

    def note(self, entity: str, partition: int) -> bytes | None:
        """The note of a partition that is not open; None if it is open or was never opened."""
        row = self._rows.get(entity, {}).get(partition)
        return row[1:] if row is not None and not row[0] else None

    def last_note(self, entity: str, partition: int) -> bytes | None:
        """The last note of a partition, out of date if it is open; None if it was never opened."""
        row = self._rows.get(entity, {}).get(partition)
        return None if row is None else row[1:]

    def notes(self, entity: str, leave_out: Container[int]) -> list[bytes]:
        """The notes of an entity's partitions that are not open, except those in `leave_out`."""
        return [
            row[1:]
            for partition, row in self._rows.get(entity, {}).items()
            if not row[0] and partition not in leave_out
        ]

    # --- loading --------------------------------------------------------------------------------------------

    async def load(self) -> bool:
        """Read the index. False if it is missing or damaged: the caller must then call `rebuild`.

        Raises UnknownFormat, DiskFailed.
        """
        found = await self._in_thread(self._load)
        if found is None:
            return False
        self._rows = found.rows
        self._number = self._loaded = found.number
        self._size = 0 if found.is_torn else found.size
        self._all_bytes = found.all_bytes
        if not self._size:
            self._write_later()
        return True

    def look(self) -> bool:
        """Read the index and change nothing; False if it is missing or damaged. Raises UnknownFormat,
        DiskFailed."""
        found = self._load()
        if found is not None:
            self._rows = found.rows
        return found is not None

    def damage(self) -> list[tuple[Path, int, str]]:
        """The files that are damaged, unreadable or missing: path, byte and reason. Changes nothing. Raises
        OSError if the folder cannot be listed."""
        found: list[tuple[Path, int, str]] = []
        names = set(self._disk.names(self._directory))
        for path in self._paths if names & {INDEX_NAME, COPY_NAME} else ():
            if path.name not in names:
                found.append((path, 0, "the file is missing"))
                continue
            try:
                file = self._read(path)
            except UnknownFormat as error:
                found.append((path, 0, str(error)))
            except OSError as error:
                found.append((path, 0, f"it cannot be read: {error.strerror}"))
            else:
                if file.is_damaged or not file.number:
                    found.append((path, file.size, "the frame's checksum does not match"))
        return found

    async def rebuild(self, partitions: Mapping[str, Iterable[int]]) -> None:
        """Start over with exactly these partitions, all of which count as open.

        The caller has read the witnesses, as far as they can be read.
        """
        self._rows.clear()
        await self.doubt(partitions)

    def contradicts(self, witness: Witness) -> bool:
        """Whether a folder's witness says not to trust the loaded index about that folder.

        The witness must have been read. If so, the caller must call `doubt`.
        """
        return witness.says is Says.VOID or witness.number > self._loaded

    async def doubt(self, partitions: Mapping[str, Iterable[int]]) -> None:
        """Stop trusting what is known of these partitions: they count as open from now on."""
        for entity, numbers in partitions.items():
            rows = self._rows.setdefault(entity, {})
            for number in numbers:
                rows[number] = _OPEN_MARK + rows.get(number, _AT_REST)[1:]
        self._least = max((self._number, *(witness.number for witness in self.witnesses))) + NUMBERS_AHEAD
        self._entered += 1
        await self._write()
        await self._confirm()

    def _load(self) -> _File | None:
        try:
            names = set(self._disk.names(self._directory))
        except OSError as error:
            raise disk_error(error, self._directory) from error
        files: list[_File] = []
        for path in self._paths:
            try:
                files += [self._read(path)] if path.name in names else []
            except OSError as error:  # everything in it can be found out again
                _log.error("index.unreadable", path=str(path), error=error.strerror)
        if not files:
            return None
        best = max(files, key=lambda file: (file.number, not file.is_torn))
        if not best.number or best.is_damaged:
            _log.error("index.damaged", path=str(self._paths[0]), position=best.size)
            return None
        if best.is_torn or len(files) < 2 or any(file.is_damaged for file in files):
            _log.warning(
                "index.repaired",
                path=str(self._paths[0]),
                advice="The frames that are whole serve; both files are written anew.",
            )
            return best._replace(is_torn=True)
        # Nobody waits for the copy, so it may be behind. Each file is appended to at its own end, so both
        # are written anew then.
        return best._replace(is_torn=files[0].number != files[1].number)

    def _read(self, path: Path) -> _File:
        fd = self._disk.open_read(path)
        try:
            data = self._disk.read(fd, self._disk.size(fd), 0)
        finally:
            self._disk.close(fd)
        rows: _Rows = {}
        shared: dict[bytes, bytes] = {}
        number = at = all_bytes = 0
        while (frame := _frame_at(data, at, path)) is not None and (
            frame.number == number + 1 if at else frame.is_all
        ):
            if frame.is_all:
                rows.clear()
                all_bytes = frame.length
            _apply(rows, data, at + _FRAME_BYTES, at + frame.length, shared)
            number, at = frame.number, at + frame.length
        return _File(number, rows, at, all_bytes, at < len(data), data.find(_MAGIC, at + 1) >= 0)

    # --- writing --------------------------------------------------------------------------------------------

    async def opened(self, entity: str, partition: int, folder: int = 0) -> None:
        """Enter a partition that is about to be opened: its note stops counting.

        `folder`: the number of the data folder that holds its log.

        Returns once the entry is durable, or the index is given up. A cancelled caller returns at once, even
        while the disk hangs; the write goes on, and the next caller waits for it.
        """
        rows = self._rows.setdefault(entity, {})
        row = rows.get(partition, _AT_REST)
        if not row[0]:
            rows[partition] = _OPEN_MARK + row[1:]
            self._enter(entity, partition, rows[partition])
        elif self._entered == self._written:
            return
        witness = self.witnesses[folder] if folder < len(self.witnesses) else None
        if witness is not None and witness.is_given_up:
            self._write_later()
            return
        writing = start_background(self._write(), "index-write", self._failed)
        if witness is not None and witness.path.parent != self._directory.parent:
            await asyncio.wait([writing], timeout=self._late_s)
            if not writing.done() and await self._goes_without(witness, writing):
                return
        await asyncio.shield(writing)
        if self._is_wrong and witness is not None:
            await self._goes_without(witness)

    async def _goes_without(self, witness: Witness, writing: asyncio.Task[None] | None = None) -> bool:
        """Make a folder's witness void, unless the write that the caller waits for ends first.

        False if the write ended first or the witness could not be written.
        """
        giving_up = self._giving_up.get(witness)
        if giving_up is None:
            giving_up = self._giving_up[witness] = asyncio.create_task(
                witness.make_void(), name="index-witness"
            )
            giving_up.add_done_callback(lambda _: self._giving_up.pop(witness, None))
            giving_up.add_done_callback(mark_retrieved)
        await asyncio.wait(
            [giving_up] if writing is None else [giving_up, writing], return_when=asyncio.FIRST_COMPLETED
        )
        if not giving_up.done():
            return False
        if giving_up.cancelled() or (error := giving_up.exception()) is None:
            return not giving_up.cancelled()
        _log.warning("witness.not_written", path=str(witness.path), error=str(error))
        return False

    def closed(self, entity: str, partition: int, note: bytes) -> None:
        """Enter the note of a partition whose log was closed cleanly. It reaches the disk some time later."""
        assert len(note) <= NOTE_BYTES_MAX
        self._rows.setdefault(entity, {})[partition] = row = _AT_REST + note
        self._enter(entity, partition, row)
        self._write_later()

    def forget(self, entity: str) -> None:
        """Remove an entity that was deleted. This reaches the disk some time later."""
        if self._rows.pop(entity, None) is not None:
            self._enter(entity, 0, bytes([_FORGOTTEN]))
            self._write_later()

    async def close(self) -> None:
        """Write what is outstanding, but give up on a disk that hangs."""
        self._retry_at_s = 0.0
        for task in (self._confirming, *self._giving_up.values()):
            if task is not None:
                task.cancel()
        try:
            await within(self._close_within_s, self._write_all())
        except TimeoutError:
            _log.error(
                "index.not_closed",
                path=str(self._paths[0]),
                entries=self._entered - self._written,
                reason="The disk does not answer. What was not written counts as open at the next start.",
            )
            self._is_left = True
        await self._confirm()
        if self._writing is not None:
            self._writing.cancel()
        self._under_way.let_go()
        for witness in self.witnesses:
            witness.let_go()

    async def _write_all(self) -> None:
        if self._is_behind:
            await self._write()

    @property
    def _is_behind(self) -> bool:
        return self._entered > self._written or (not self._size and bool(self._rows))

    def _enter(self, entity: str, partition: int, row: bytes) -> None:
        self._pending.append(_encode_entry(entity, partition, row))
        self._entered += 1

    def _write_later(self) -> None:
        if self._writing is None or self._writing.done():
            self._writing = start_background(self._write_soon(), "index-write", self._failed)

    async def _write_soon(self) -> None:
        while self._is_behind:
            await asyncio.sleep(self._write_delay_ms / 1_000)
            await self._write()

    # --- witnesses ------------------------------------------------------------------------------------------

    def _reached(self) -> int | None:
        """The number of the frame that makes all entries durable; None if some are not durable yet."""
        is_durable = self._size and self._number >= self._least and not (self._is_behind or self._is_left)
        return self._number if is_durable else None

    async def _confirm(self) -> None:
        """Tell the witnesses how far the index has come. Waits no longer than `close_within_ms` for each."""
        await asyncio.gather(
            *(self._confirm_one(witness) for witness in self.witnesses if not witness.is_busy)
        )

    async def _confirm_one(self, witness: Witness) -> None:
        try:
            await within(self._close_within_s, witness.confirm(self._reached))
        except (StorageError, TimeoutError) as error:
            if witness not in self._unconfirmed:
                _log.warning("witness.not_written", path=str(witness.path), error=str(error))
            self._unconfirmed.add(witness)
        else:
            self._unconfirmed.discard(witness)

    def _confirm_later(self) -> None:
        if any(witness.is_read and witness.says is Says.VOID for witness in self.witnesses):
            self._is_urgent.set()
        if self.witnesses and not self._is_left and (self._confirming is None or self._confirming.done()):
            self._confirming = start_background(self._keep_confirming(), "index-confirm", self._failed)

    async def _keep_confirming(self) -> None:
        """Update the witnesses until all of them know what is durable."""
        while any(
            witness.is_read and (witness.says, witness.number) != (Says.VALID, self._number)
            for witness in self.witnesses
        ):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CONFIRM_DELAY_S):
                    await self._is_urgent.wait()
            self._is_urgent.clear()
            await self._confirm()

    async def _write(self) -> None:
        """Write all entries made so far. One write at a time: entries made meanwhile go out together."""
        entered = self._entered
        async with self._one_at_a_time:
            if (self._written >= entered and self._size) or self._is_left:
                return
            pending, self._pending = self._pending, []
            entered = self._entered
            try:
                is_new = (
                    not self._size
                    or self._number < self._least
                    or self._size > 2 * self._all_bytes + STALE_BYTES_MIN
                )
                if not is_new and not await self._in_thread(lambda: self._append(pending)):
                    is_new, self._retry_at_s = True, 0.0
                if is_new:
                    await self._write_anew()
            except asyncio.CancelledError:
                self._pending[:0] = (
                    pending  # entries that were written after all are written twice, which is harmless
                )
                raise
            self._written = entered
            self._confirm_later()

    async def _write_anew(self) -> None:
        """Write all entries to new files. If the disk refuses, remove the old files, which are outdated."""
        now_s = asyncio.get_running_loop().time()
        if now_s < self._retry_at_s:
            return
        rows = [(entity, dict(partitions)) for entity, partitions in self._rows.items()]
        if not await self._in_thread(lambda: self._publish(rows)):
            self._retry_at_s = now_s + RETRY_DELAY_S

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await run_to_end(self._executor, work, self._under_way)

    def _append(self, entries: list[bytes]) -> bool:
        frame = _encode_frame(self._number + 1, entries, is_all=False)
        try:
            self._write_at_end(self._paths[0], frame, sync=True)
        except OSError as error:
            _log.warning("index.not_written", path=str(self._paths[0]), error=error.strerror)
            return False  # durability rule 4: write to a new file
        with contextlib.suppress(
            OSError
        ):  # a copy that is behind is noticed, and does no harm while the file is whole
            self._write_at_end(self._paths[1], frame, sync=False)
        self._number += 1
        self._size += len(frame)
        return True

    def _write_at_end(self, path: Path, frame: bytes, *, sync: bool) -> None:
        fd = self._disk.open_write(path)
        try:
            write_all(self._disk, fd, [frame], self._size)
            if sync:
                self._disk.sync(fd)
        finally:
            close_quietly(self._disk, fd)

    def _publish(self, rows: list[tuple[str, dict[int, bytes]]]) -> bool:
        entries = [
            _encode_entry(entity, partition, row)
            for entity, partitions in rows
            for partition, row in partitions.items()
        ]
        number = max(self._number, self._least) + 1
        frame = _encode_frame(number, entries, is_all=True)
        try:
            make_directories(self._disk, self._directory.parent, [self._directory.name])
            publish_together(self._disk, self._paths, [frame])
        except (StorageError, OSError) as error:
            self._size = 0
            _log.warning(
                "index.given_up",
                path=str(self._paths[0]),
                error=str(error),
                reason="The next start opens every log.",
            )
            self._remove()
            return False
        self._number = number
        self._size = self._all_bytes = len(frame)
        self._is_wrong = False
        return True

    def _remove(self) -> None:
        try:
            for path in self._paths:
                self._disk.remove(path)
            self._disk.sync_directory(self._directory)
        except OSError as error:
            self._is_wrong = True
            _log.error(
                "index.not_removed",
                path=str(self._paths[0]),
                error=error.strerror,
                advice=(
                    "If the broker ends now, remove it by hand: the next start may show old counts until "
                    "partitions are used."
                ),
            )


class _Frame(NamedTuple):
    length: int
    number: int
    is_all: bool


def _frame_at(data: bytes, at: int, path: Path) -> _Frame | None:
    """The whole frame at this offset, or None. Raises UnknownFormat."""
    if len(data) < at + _FRAME_BYTES:
        return None
    magic, crc = _HEAD.unpack_from(data, at)
    length, version, is_all, number = _TAIL.unpack_from(data, at + _HEAD.size)
    if (
        magic != _MAGIC
        or not _FRAME_BYTES <= length <= len(data) - at
        or crc != crc32c(data[at + _HEAD.size : at + length])
    ):
        return None
    if version != FORMAT_VERSION:
        raise UnknownFormat(f"{path}: index format version {version} is not known, only {FORMAT_VERSION}")
    return _Frame(length, number, bool(is_all))


def _apply(rows: _Rows, data: bytes, at: int, end: int, shared: dict[bytes, bytes]) -> None:
    """Enter the entries of a whole frame.

    `shared` maps equal rows to one object, because most rows say that a partition is empty.
    """
    encoded, of_entity = b"", dict[int, bytes]()
    while at < end:
        state, length, partition, note_length = _ENTRY.unpack_from(data, at)
        at += _ENTRY.size
        name = data[at : at + length]
        at += length
        if state == _FORGOTTEN:
            rows.pop(name.decode(), None)
            encoded = b""
            continue
        if name != encoded:
            encoded, of_entity = name, rows.setdefault(name.decode(), {})
        row = (_OPEN_MARK if state else _AT_REST) + data[at : at + note_length]
        at += note_length
        of_entity[partition] = shared.setdefault(row, row)


def _encode_entry(entity: str, partition: int, row: bytes) -> bytes:
    name = entity.encode()
    return _ENTRY.pack(row[0], len(name), partition, len(row) - 1) + name + row[1:]


def _encode_frame(number: int, entries: list[bytes], *, is_all: bool) -> bytes:
    body = b"".join(entries)
    rest = _TAIL.pack(_FRAME_BYTES + len(body), FORMAT_VERSION, is_all, number) + body
    return _HEAD.pack(_MAGIC, crc32c(rest)) + rest
