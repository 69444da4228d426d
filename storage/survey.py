"""Surveys one log, damaged or not: which files it has, which frames are whole, what is damaged or missing.

It only reads and needs no lock, so it can also look at the log of a running broker. When a survey has
findings, the caller repeats it and keeps only what every survey finds (`check.py`). `recovery.py` stops at
the first damage; a survey continues with the next whole frame. A frame counts as whole if both of its
checksums match and it names its own position. No message can contain such a frame, because the checksum
covers the log's salt (`record.py`).

A survey distinguishes a torn tail from damage by the same rules as `recovery.py`: anything may follow the
last whole frame of the last segment, unless the extent, a checkpoint or a later frame says that this place
was durable (durability rule 5).
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from storage.checkpoint import (
    CHECKPOINT_SUFFIX,
    FOREIGN,
    StoredCheckpoint,
    checkpoint_paths,
    lacks_one,
    position_of,
    read_checkpoint,
)
from storage.checkpoint_blocks import check_blocks
from storage.checkpoints import CHECKPOINTS_KEPT
from storage.disk import Disk, close_quietly
from storage.errors import CorruptRecord, UnknownFormat
from storage.extent import SLOT_BYTES, Extent, ExtentFile
from storage.log import FRAME_HEADER_BYTES, Frame, Position
from storage.record import MAGIC, Chain, FrameCodec, crc32c
from storage.scan import CHUNK_BYTES, FrameScanner, durable_witness, is_zero
from storage.segment import (
    SEGMENT_HEADER_BYTES,
    SEGMENT_SUFFIX,
    Segment,
    SegmentHeader,
    decode_segment_header,
    segment_name,
)

_SEGMENT_NAME = re.compile(rf"([0-9a-f]{{16}})-([0-9a-f]{{8}}){re.escape(SEGMENT_SUFFIX)}")


class Severity(enum.StrEnum):
    """How serious a finding is."""

    UNUSABLE = "unusable"
    """The broker cannot serve the queue or partition, or cannot read some of its messages."""
    UNREAD = "unread"
    """A data folder of the broker was not named, so nothing in it was read."""
    SPARE = "spare"
    """One of two copies is damaged or missing. The other serves, and nothing is lost."""
    NOTE = "note"
    """Not damage: a crash left it, and the next start removes it."""


@dataclass(slots=True, frozen=True)
class Finding:
    """Something wrong in one file."""

    severity: Severity
    entity: str | None
    """The entity's identifier (for a queue, its generation), if known."""
    partition: int | None
    path: str
    offset: int
    """In bytes from the start of the file; 0 if the file is missing."""
    size: int
    """How many bytes of the file are affected; 0 if unknown."""
    why: str


@dataclass(slots=True, frozen=True)
class Gap:
    """A part of a log that is unreadable."""

    path: Path
    offset: int
    position: Position
    """The position at which it begins."""
    end: Position | None
    """The position at which the log continues; None if nothing readable follows."""
    why: str


@dataclass(slots=True)
class LogFolder:
    """The location of one log's files."""

    directory: Path
    extents: Path
    """The folder that holds the extents of all logs."""
    entity: str
    partition: int


@dataclass(slots=True)
class Survey:
    """The findings about one log. `findings` is complete once `frames` has been read to its end."""

    folder: LogFolder
    findings: list[Finding] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)
    """The segments that hold a part of the log, in order. The header of a damaged one is reconstructed from
    its name and its neighbours."""
    sizes: list[int] = field(default_factory=list)
    """The sizes of the segments' files, in bytes."""
    checkpoints: list[StoredCheckpoint] = field(default_factory=list)
    """The checkpoints that are whole, newest first."""
    extent: Extent | None = None
    codec: FrameCodec | None = None
    """None if no file tells the log's salt; then its frames cannot be told from other bytes."""
    epoch: int = 0
    """The highest epoch found."""
    named: Position = Position(0)  # noqa: RUF009 - a number
    """The highest position of a damaged checkpoint, which was durable."""

    is_of_later_release: bool = False
    """A file has a format version that this release does not know."""
    missing_extent: Path | None = None
    """The extent's file, if it is missing and that is not reported yet. A log that holds nothing may be
    without one: a crash came between its first segment and its extent."""

    def report(self, severity: Severity, path: Path, offset: int, why: str, size: int = 0) -> None:
        """Add a finding."""
        self.findings.append(
            Finding(severity, self.folder.entity, self.folder.partition, str(path), offset, size, why)
        )

    def report_missing_extent(self) -> None:
        """The log was used: report its extent if that is missing."""
        if self.missing_extent is not None:
            why = "the extent is missing: if the log's last files are missing too, nothing shows it"
            self.report(Severity.SPARE, self.missing_extent, 0, why)
            self.missing_extent = None

    @property
    def start(self) -> Position:
        """The position at which the log begins, as far as any file tells."""
        if self.extent is not None:
            return self.extent.start
        return self.segments[0].base if self.segments else Position(0)


def survey_files(disk: Disk, folder: LogFolder) -> Survey:
    """Read the names, headers, checkpoints and extent of a log. `frames` reads the rest. Raises OSError."""
    survey = Survey(folder)
    extents = ExtentFile(disk, folder.extents, folder.directory.parent.name, folder.entity, folder.partition)
    try:
        slots = extents.slots()
    except UnknownFormat as error:
        survey.is_of_later_release = True
        survey.report(Severity.UNUSABLE, extents.path, 0, str(error))
        slots = []
    except IsADirectoryError:
        survey.report(Severity.UNUSABLE, extents.path, 0, "it is a folder where a file belongs")
        slots = []
    names = disk.names(folder.directory)
    headers = _read_headers(disk, survey, names)
    _read_extent(survey, extents, slots)
    salt = (
        survey.extent.salt
        if survey.extent
        else next((header.salt for header, _ in headers.values() if header), None)
    )
    if salt is not None:
        survey.codec = FrameCodec(salt, folder.partition)
    _choose_segments(survey, headers, salt)
    _read_checkpoints(disk, survey, names, salt)
    if slots is None and survey.segments:
        survey.missing_extent = extents.path
        if len(survey.segments) > 1 or checkpoint_paths(folder.directory, names):
            survey.report_missing_extent()
    return survey


def _read_headers(
    disk: Disk, survey: Survey, names: list[str]
) -> dict[str, tuple[SegmentHeader | None, int]]:
    """By file name: the header (None if damaged) and the size of the file."""
    found: dict[str, tuple[SegmentHeader | None, int]] = {}
    folder = survey.folder
    for name in sorted(name for name in names if name.endswith(SEGMENT_SUFFIX)):
        path, header, size = folder.directory / name, None, 0
        if not _SEGMENT_NAME.fullmatch(name):
            survey.report(Severity.UNUSABLE, path, 0, "the name is not that of a segment")
            continue
        try:
            fd = disk.open_read(path)
            try:
                size = disk.size(fd)
                header = decode_segment_header(disk.read(fd, SEGMENT_HEADER_BYTES, 0), path)
            finally:
                disk.close(fd)
        except CorruptRecord as error:
            survey.report(Severity.UNUSABLE, path, error.position, error.why, SEGMENT_HEADER_BYTES)
        except UnknownFormat as error:
            survey.is_of_later_release = True
            survey.report(Severity.UNUSABLE, path, 0, str(error))
            continue
        except FileNotFoundError:
            continue
        except OSError as error:
            survey.report(Severity.UNUSABLE, path, 0, f"it cannot be read: {error.strerror}")
        if header is not None and (header.entity, header.partition, segment_name(header)) != (
            folder.entity,
            folder.partition,
            name,
        ):
            why = (
                f"the segment is {segment_name(header)} of partition {header.partition} of {header.entity!r}"
            )
            survey.report(Severity.UNUSABLE, path, 0, why)
            continue
        found[name] = (header, size)
    return found


def _read_extent(survey: Survey, extents: ExtentFile, slots: list[tuple[int, Extent] | None] | None) -> None:
    for place, slot in enumerate(slots or ()):
        if slot is None:
            survey.report(
                Severity.SPARE,
                extents.path,
                place * SLOT_BYTES,
                "the slot's checksum does not match",
                SLOT_BYTES,
            )
    whole = [slot for slot in slots or () if slot is not None]
    survey.extent = max(whole)[1] if whole else None


def _choose_segments(
    survey: Survey, headers: dict[str, tuple[SegmentHeader | None, int]], salt: bytes | None
) -> None:
    """Choose the segments that hold the log as `recovery.py` does, but by their names, because headers may be
    damaged."""
    live: list[tuple[Segment, int]] = []
    by_epoch = sorted(headers, key=lambda name: (int(name[17:25], 16), int(name[:16], 16)))
    for name in by_epoch:
        header, size = headers[name]
        base, epoch = Position(int(name[:16], 16)), int(name[17:25], 16)
        if header is not None and salt is not None and header.salt != salt:
            survey.report(
                Severity.UNUSABLE, survey.folder.directory / name, 56, "the segment belongs to another log"
            )
            continue
        if header is None:
            header = SegmentHeader(
                survey.folder.entity, survey.folder.partition, epoch, salt or b"", Chain(base, 0, None)
            )
        while live and live[-1][0].base >= base:
            live.pop()
        live.append((Segment(survey.folder.directory / name, header), size))
        survey.epoch = max(survey.epoch, epoch)
    known = survey.extent
    if known is not None:
        live = [each for each in live if each[0].base >= known.start]
        survey.epoch = max(survey.epoch, known.epoch)
    survey.segments, survey.sizes = [segment for segment, _ in live], [size for _, size in live]


def _read_checkpoints(disk: Disk, survey: Survey, names: list[str], salt: bytes | None) -> None:
    damaged: list[tuple[Path, int, str]] = []
    start = survey.start
    # The files of replaced checkpoints hold blocks of the two that are kept. Nothing reads the tables in
    # them.
    paths = checkpoint_paths(survey.folder.directory, names)
    known = survey.extent.checkpoint if survey.extent else None
    newest_is_missing = known is not None and (not paths or paths[0].name < f"{known:016x}")
    for path in paths[: CHECKPOINTS_KEPT - newest_is_missing]:
        try:
            stored = read_checkpoint(disk, path, salt or b"")
            blocks = list(check_blocks(disk, survey.folder.directory, stored))
        except CorruptRecord as error:
            damaged.append((path, error.position, error.why))
            if error.why != FOREIGN:
                survey.named = max(survey.named, position_of(path))
        except UnknownFormat as error:
            survey.is_of_later_release = True
            damaged.append((path, 0, str(error)))
        except FileNotFoundError:
            continue
        except OSError as error:
            damaged.append((path, 0, f"it cannot be read: {error.strerror}"))
        else:
            survey.epoch = max(survey.epoch, stored.epoch)
            damaged += [(Path(error.path), error.position, error.why) for error in blocks]
            if blocks:
                survey.named = max(survey.named, stored.position)
            elif stored.position >= start:
                survey.checkpoints.append(stored)
    newest = survey.checkpoints[0].position if survey.checkpoints else None
    if known is not None and (newest is None or newest < known) and not damaged and survey.segments:
        path = survey.folder.directory / f"{known:016x}-*.checkpoint"
        damaged.append((path, 0, "the newest checkpoint is missing"))
    severity = Severity.SPARE if survey.checkpoints or start == 0 else Severity.UNUSABLE
    if not damaged and severity is Severity.UNUSABLE and survey.segments:
        damaged.append((survey.folder.directory, 0, "the log was trimmed, and its checkpoint is missing"))
    if not damaged and lacks_one(survey.checkpoints):
        before = f"…-{survey.checkpoints[0].serial - 1:08x}{CHECKPOINT_SUFFIX}"
        damaged.append((survey.folder.directory / before, 0, "the older of the two checkpoints is missing"))
    for path, offset, why in damaged:
        survey.report(severity, path, offset, why)


def frames(
    disk: Disk, survey: Survey, progress: Callable[[int], None] = lambda size: None
) -> Iterator[Frame | Gap]:
    """All whole frames of a log in order, and the gaps between them. Adds to the survey's findings. Raises
    OSError.

    `progress` is called with the number of bytes read since its last call.
    """
    folder, known = survey.folder, survey.extent
    if not survey.segments:
        if known is not None or survey.findings:
            why = "all segments of the log are missing"
            survey.report(Severity.UNUSABLE, folder.directory, 0, why)
            yield Gap(folder.directory, 0, known.start if known else Position(0), None, why)
        return
    if survey.codec is None:
        why = "nothing that is whole says which salt the log has, so its frames cannot be verified"
        survey.report(Severity.UNUSABLE, survey.segments[0].path, 0, why)
        yield Gap(survey.segments[0].path, 0, survey.segments[0].base, None, why)
        return
    if known is not None and survey.segments[0].base > known.start:
        why = (
            f"the first segments are missing: the log began at position {known.start} and begins at "
            f"{survey.segments[0].base}"
        )
        survey.report(Severity.UNUSABLE, folder.directory, 0, why)
        yield Gap(folder.directory, 0, known.start, survey.segments[0].base, why)
    for number, segment in enumerate(survey.segments):
        successor = survey.segments[number + 1] if number + 1 < len(survey.segments) else None
        reader = _Reader(disk, survey, segment, survey.sizes[number], successor)
        try:
            yield from reader.read(progress)
        finally:
            reader.close()
    last = survey.segments[-1]
    if known is not None and (last.base, last.header.epoch) < (known.base, known.epoch):
        path = folder.directory / f"{known.base:016x}-{known.epoch:08x}{SEGMENT_SUFFIX}"
        survey.report(Severity.UNUSABLE, path, 0, f"the segment is missing, and {last.path.name} is the last")
        yield Gap(path, 0, known.base, None, "the segment is missing")


class _Reader:
    """Reads the frames and gaps of one segment."""

    def __init__(
        self, disk: Disk, survey: Survey, segment: Segment, size: int, successor: Segment | None
    ) -> None:
        self._disk, self._survey, self._segment, self._size, self._successor = (
            disk,
            survey,
            segment,
            size,
            successor,
        )
        assert survey.codec is not None
        self._codec = survey.codec
        self._until = (
            successor.base if successor is not None else max(segment.position_at(size), segment.base)
        )
        self._fd = -1

    def close(self) -> None:
        close_quietly(self._disk, self._fd)

    def read(self, progress: Callable[[int], None]) -> Iterator[Frame | Gap]:
        chain = self._segment.header.chain
        try:
            self._fd = self._disk.open_read(self._segment.path)
        except OSError as error:
            yield self._gap(chain.position, self._end_of_gap(None), f"it cannot be read: {error.strerror}")
            return
        while True:
            scanner = FrameScanner(self._disk, self._fd, self._segment, self._codec, chain, self._until)
            failure = ""
            try:
                while found := scanner.frames():
                    self._survey.report_missing_extent()
                    yield from found
                    progress(sum(len(frame.data) for frame in found))
            except OSError as error:
                failure = f"it cannot be read: {error.strerror}"
            place = scanner.chain.position
            if not failure and (
                place >= self._until if self._successor is not None else self._is_end(place, scanner.why)
            ):
                return
            behind = self._next_frame(place)
            why = failure or scanner.why or "the end of the log is missing"
            if (
                behind is None
                and self._successor is not None
                and self._segment.offset_of(self._until) > self._size
            ):
                why = f"the segment ends before {self._successor.path.name} begins"
            yield self._gap(place, self._end_of_gap(behind), why)
            if behind is None:
                return
            chain = Chain(behind, 0, None)

    def _end_of_gap(self, behind: Position | None) -> Position | None:
        """The position at which the log continues after a gap, in this segment or the next one."""
        return behind if behind is not None or self._successor is None else self._successor.base

    def _gap(self, position: Position, end: Position | None, why: str) -> Gap:
        offset = self._segment.offset_of(position)
        size = (end if end is not None else self._segment.position_at(self._size)) - position
        self._survey.report(Severity.UNUSABLE, self._segment.path, offset, why, max(0, size))
        return Gap(self._segment.path, offset, position, end, why)

    def _is_end(self, place: Position, why: str) -> bool:
        """Whether the log may end here in its last segment, because nothing says that more was durable."""
        survey, offset = self._survey, self._segment.offset_of(place)
        witness = max(
            [
                survey.extent.durable if survey.extent else 0,
                survey.named,
                *(each.chain.position for each in survey.checkpoints),
            ]
        )
        last = survey.extent
        if last is not None and (self._segment.base, self._segment.header.epoch) < (last.base, last.epoch):
            witness = last.base
        is_clean = is_zero(self._disk, self._fd, offset)
        if not is_clean:
            witness = max(witness, durable_witness(self._disk, self._fd, self._segment, self._codec, offset))
        if witness > place:
            return False
        if not is_clean:
            size = self._disk.size(self._fd) - offset
            survey.report(
                Severity.NOTE,
                self._segment.path,
                offset,
                f"an unfinished commit, which nobody was told of ({why})",
                size,
            )
        return True

    def _next_frame(self, position: Position) -> Position | None:
        """The position of the next whole frame of this segment, at or behind `position`."""
        offset = max(self._segment.offset_of(position), SEGMENT_HEADER_BYTES)
        end = self._segment.offset_of(self._until)
        while offset + FRAME_HEADER_BYTES <= end:
            try:
                chunk = self._disk.read(self._fd, CHUNK_BYTES, offset)
            except OSError:
                offset += CHUNK_BYTES  # skip what the disk cannot read
                continue
            if len(chunk) < FRAME_HEADER_BYTES:
                return None
            found = chunk.find(MAGIC)
            while found >= 0:
                if self._is_whole(offset + found, end):
                    return self._segment.position_at(offset + found)
                found = chunk.find(MAGIC, found + 1)
            offset += len(chunk) - FRAME_HEADER_BYTES + 1  # a header may span two chunks
        return None

    def _is_whole(self, offset: int, end: int) -> bool:
        try:
            header = self._codec.parse_header(self._disk.read(self._fd, FRAME_HEADER_BYTES, offset))
            if header is None or header.position != self._segment.position_at(offset):
                return False
            body_at = offset + FRAME_HEADER_BYTES
            if body_at + header.body_length > end:
                return False
            return bool(crc32c(self._disk.read(self._fd, header.body_length, body_at)) == header.body_crc)
        except OSError:
            return False
