"""Reads the blocks of checkpoints: those of one in parts that fit into memory, or all to check them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from pathlib import Path

from storage.checkpoint import CHECKPOINT_SUFFIX, Place, StoredCheckpoint, checkpoint_paths, serial_of
from storage.disk import Disk
from storage.errors import CorruptRecord
from storage.log import Block, Checkpoint, Section
from storage.record import extend_crc32c

READ_BYTES = 1 << 20
"""How many bytes of a block are read at once. A larger block is in memory as parts of this size."""
PART_BYTES = 4 << 20
"""About how many bytes of blocks are in memory at once while a checkpoint is loaded, unless one has more."""


class BlockFiles:
    """Reads the files that hold a checkpoint's blocks, with one file open at a time, and none beyond the
    context."""

    def __init__(self, disk: Disk, directory: Path, stored: StoredCheckpoint) -> None:
        self._disk, self._directory, self._stored = disk, directory, stored
        self._paths: dict[int, Path] = {}
        self._file: int | None = None
        self._fd = -1

    def __enter__(self) -> BlockFiles:
        if self._paths:
            return self
        if self._stored.is_whole_state:
            self._paths = {0: self._directory / self._stored.name}
        else:
            paths = checkpoint_paths(self._directory, self._disk.names(self._directory))
            self._paths = {serial: path for path in paths if (serial := serial_of(path)) is not None}
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def _close(self) -> None:
        if self._fd >= 0:
            self._disk.close(self._fd)
            self._fd, self._file = -1, None

    def read(self, place: Place) -> bytes:
        """Read and check a block. Raises CorruptRecord, OSError."""
        return b"".join(self.parts(place))

    def read_in_parts(self, place: Place) -> Block:
        """As `read`; a large block is in parts."""
        if place.size <= READ_BYTES or self._stored.is_whole_state:
            return self.read(place)
        return deque(map(_mapped, self.parts(place)))

    def parts(self, place: Place) -> Iterator[bytes]:
        """Read a block in parts of READ_BYTES, one after the other. What was read is only known to be right
        at the end: raises CorruptRecord then at the latest, and OSError."""
        path = self._paths.get(place.file)
        if place.file != self._file:
            self._close()
            try:
                if path is None:
                    raise FileNotFoundError
                self._fd, self._file = self._disk.open_read(path), place.file
            except FileNotFoundError:
                missing = str(path or self._directory / f"…-{place.file:08x}{CHECKPOINT_SUFFIX}")
                raise CorruptRecord(
                    missing, 0, "the file is missing that holds blocks of a checkpoint"
                ) from None
        left, crc = place.size, 0
        while left:
            data = self._disk.read(self._fd, min(left, READ_BYTES), place.offset + place.size - left)
            if not data:
                break
            left, crc = left - len(data), extend_crc32c(crc, data)
            yield data
        if left or crc != place.crc:
            raise CorruptRecord(
                str(path), place.offset, "the checksum of a checkpoint's block does not match"
            )


def _mapped(data: bytes) -> mmap:
    """A copy in a mapping of its own."""
    part = mmap(-1, len(data), MAP_PRIVATE | MAP_ANONYMOUS)
    part[:] = data
    return part


class StoredBlocks(Mapping[int, Block]):
    """The blocks of one section of a checkpoint, each read anew when it is asked for. Reading waits for the
    disk, and raises CorruptRecord and OSError."""

    __slots__ = ("_files", "_places")

    def __init__(self, files: BlockFiles, places: Mapping[int, Place]) -> None:
        self._files, self._places = files, places

    def __getitem__(self, number: int) -> Block:
        with self._files as files:
            return files.read_in_parts(self._places[number])

    def __iter__(self) -> Iterator[int]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def read_each(self) -> Iterator[tuple[int, int, Block]]:
        """All blocks by ascending numbers, one after the other: the number, the size in bytes, the block."""
        with self._files as files:
            for number in sorted(self._places):
                place = self._places[number]
                yield number, place.size, files.read_in_parts(place)


def unread_checkpoint(disk: Disk, directory: Path, stored: StoredCheckpoint) -> Checkpoint:
    """A checkpoint whose blocks are read when they are asked for."""
    files = BlockFiles(disk, directory, stored)
    sections = tuple(
        Section(
            name,
            section.version,
            StoredBlocks(files, section.places),
            {number: place.taken for number, place in section.places.items()},
        )
        for name, section in stored.sections.items()
    )
    sizes = [place.size for section in stored.sections.values() for place in section.places.values()]
    return Checkpoint(stored.position, sections, sizes)


def checked_checkpoint(disk: Disk, directory: Path, stored: StoredCheckpoint) -> Checkpoint:
    """Check all blocks of a checkpoint. They are in memory if they are small, otherwise read when they are
    asked for. Raises CorruptRecord, OSError."""
    checkpoint = unread_checkpoint(disk, directory, stored)
    size = sum(checkpoint.block_sizes)
    if size <= PART_BYTES:
        return next(parts_of(checkpoint, bytes_max=size + 1))
    for error in check_blocks(disk, directory, stored):
        raise error
    return checkpoint


def parts_of(checkpoint: Checkpoint, bytes_max: int = PART_BYTES) -> Iterator[Checkpoint]:
    """The blocks of a loaded checkpoint, in parts of about this many bytes: each is the checkpoint with some
    of its blocks. Sections and the blocks of each come in order. Raises CorruptRecord, OSError."""
    found: dict[str, dict[int, Block]] = {}
    size, is_first = 0, True
    for section in checkpoint.sections:
        if not isinstance(section.blocks, StoredBlocks):  # all are in memory
            yield checkpoint
            return
        for number, block_size, block in section.blocks.read_each():
            found.setdefault(section.name, {})[number] = block
            size += block_size
            if size >= bytes_max:
                yield _part(checkpoint, found)
                found, size, is_first = {}, 0, False
    if found or is_first:
        yield _part(checkpoint, found)


def _part(checkpoint: Checkpoint, blocks: Mapping[str, Mapping[int, Block]]) -> Checkpoint:
    return replace(
        checkpoint,
        sections=tuple(
            replace(section, blocks=blocks.get(section.name, {})) for section in checkpoint.sections
        ),
    )


def read_blocks(disk: Disk, directory: Path, stored: Iterable[StoredCheckpoint]) -> Iterator[Checkpoint]:
    """Those of the given checkpoints whose blocks are all whole. Each is read when it is asked for. Raises
    OSError."""
    for each in stored:
        if next(check_blocks(disk, directory, each), None) is None:
            yield unread_checkpoint(disk, directory, each)


def check_blocks(disk: Disk, directory: Path, stored: StoredCheckpoint) -> Iterator[CorruptRecord]:
    """Read all blocks of a checkpoint; gives the errors of those that are damaged or missing. Raises
    OSError."""
    with BlockFiles(disk, directory, stored) as files:
        for section in stored.sections.values():
            for place in section.places.values():
                try:
                    deque(files.parts(place), maxlen=0)
                except CorruptRecord as error:
                    yield error
