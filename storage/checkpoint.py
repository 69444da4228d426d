"""One checkpoint of a log, byte by byte: the owner's state as of a position, in blocks.

A checkpoint's file holds a table of all blocks, and those blocks that have changed since the checkpoint on
which it builds. The other blocks are in the files of earlier checkpoints (`checkpoints.py` says which files
are used and kept). All numbers are little endian.

    offset  size  field
         0     8  magic "PbChckpt"
         8     4  CRC-32C of everything behind, up to the end of the table of blocks
        12     2  format version, 2
        14     2  partition
        16     4  epoch of the owner
        20     4  1 if sequence and digest are known, else 0
        24     8  position: replay goes on here
        32     8  sequence of the frame that is there, or will be
        40    16  digest of the frame before it
        56    16  the log's salt
        72     4  serial: the number of this checkpoint in the log
        76     4  sections s
        80     4  files f
        84     4  blocks b
        88   32s  sections: name (24 bytes of ASCII, then zeros), version (u32), how many of the blocks are
                  its own (u32)
         …   16f  files that hold the blocks: serial (u32), zero (u32), bytes of the blocks that it was
                  written with (u64)
         …   40b  blocks, section by section: number (u64), position of the checkpoint for which it was
                  written (u64), serial of the file (u32), size (u32), offset in the file (u64),
                  CRC-32C (u32), zero (u32)
         …     …  blocks

Its name is `<position>-<serial>.checkpoint`, in hexadecimal.

Version 1 held the whole state in one piece. It is still read but no longer written. Its header ends with the
length of the state (u64) at 72, and the state follows. The CRC-32C covers everything behind it, and the name
is `<position>.checkpoint`.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from storage.disk import Disk
from storage.errors import CorruptRecord, UnknownFormat
from storage.log import Position
from storage.record import NO_DIGEST, Chain, crc32c

FORMAT_VERSION = 2
CHECKPOINT_SUFFIX = ".checkpoint"
CHECKPOINT_HEADER_BYTES = 88
SECTION_NAME_BYTES = 24

FOREIGN = "the checkpoint belongs to another log"

_MAGIC = b"PbChckpt"
_HEAD = struct.Struct("<8sI")
_TAIL = struct.Struct("<HHIIQQ16s16sIIII")
_SECTION = struct.Struct(f"<{SECTION_NAME_BYTES}sII")
_FILE = struct.Struct("<IIQ")
_PLACE = struct.Struct("<QQIIQII")
assert _HEAD.size + _TAIL.size == CHECKPOINT_HEADER_BYTES

_TAIL_V1 = struct.Struct("<HHIIQQ16s16sQ")
_HEADER_BYTES_V1 = _HEAD.size + _TAIL_V1.size
_VERSION = struct.Struct("<H")
_READ_BYTES = 4096
"""How much is read first; small tables fit into it."""


class Place(NamedTuple):
    """The location of a block."""

    taken: Position
    """The position of the checkpoint that wrote it."""
    file: int
    """The serial of the checkpoint whose file holds it."""
    offset: int
    size: int
    crc: int


@dataclass(slots=True, frozen=True)
class StoredSection:
    """A section's blocks, as listed in a checkpoint's table."""

    version: int
    places: Mapping[int, Place]


@dataclass(slots=True, frozen=True)
class StoredCheckpoint:
    """A checkpoint without the content of its blocks."""

    chain: Chain
    """The place in the log for which it was taken; its digest is None if that was no longer known."""
    epoch: int
    partition: int
    salt: bytes
    serial: int
    sections: Mapping[str, StoredSection]
    files: Mapping[int, int]
    """By the serial of each file that holds some of its blocks: how many bytes of blocks the file was written
    with."""
    is_whole_state: bool = False
    """Whether it has version 1: one block in one unnamed section, in its own file."""

    @property
    def position(self) -> Position:
        """The position from which a replay continues."""
        return self.chain.position

    @property
    def name(self) -> str:
        """The name of its file."""
        if self.is_whole_state:
            return f"{self.position:016x}{CHECKPOINT_SUFFIX}"
        return f"{self.position:016x}-{self.serial:08x}{CHECKPOINT_SUFFIX}"


def checkpoint_paths(directory: Path, names: list[str]) -> list[Path]:
    """The checkpoint files among the names in a log's directory, newest first. Of two at one position, the
    one with version 1 is older."""
    found = [name for name in names if name.endswith(CHECKPOINT_SUFFIX)]
    return [
        directory / name
        for name in sorted(found, key=lambda name: name.removesuffix(CHECKPOINT_SUFFIX), reverse=True)
    ]


def serial_of(path: Path) -> int | None:
    """The serial in the name of a checkpoint file; None for version 1."""
    _, dash, serial = path.name.removesuffix(CHECKPOINT_SUFFIX).partition("-")
    try:
        return int(serial, 16) if dash else None
    except ValueError:
        return None


def position_of(path: Path) -> Position:
    """The position in the name of a checkpoint file; 0 if it has none."""
    try:
        return Position(int(path.name[:16], 16))
    except ValueError:
        return Position(0)


def lacks_one(usable: Sequence[StoredCheckpoint]) -> bool:
    """Whether the log of these checkpoints should have another one. From the second on, each is kept beside
    the one before, and the first has the serial 1. (A later serial may also mean that a save has failed. That
    log should have another checkpoint as well.)"""
    return len(usable) == 1 and usable[0].serial > 1


def table_bytes(sections: int, files: int, blocks: int) -> int:
    """The size of a checkpoint's header and tables, behind which its own blocks begin."""
    return CHECKPOINT_HEADER_BYTES + _SECTION.size * sections + _FILE.size * files + _PLACE.size * blocks


def encode_tables(stored: StoredCheckpoint) -> bytes:
    """The header and tables of a checkpoint, which come before its blocks."""
    chain = stored.chain
    before, known = (NO_DIGEST, 0) if chain.before is None else (chain.before, 1)
    blocks = sum(len(section.places) for section in stored.sections.values())
    parts = [
        _TAIL.pack(
            FORMAT_VERSION, stored.partition, stored.epoch, known, chain.position, chain.sequence, before,
            stored.salt,
            stored.serial, len(stored.sections), len(stored.files), blocks,
        )
    ]  # fmt: skip
    parts += [
        _SECTION.pack(name.encode("ascii"), section.version, len(section.places))
        for name, section in stored.sections.items()
    ]
    parts += [_FILE.pack(serial, 0, size) for serial, size in stored.files.items()]
    pack = _PLACE.pack
    for section in stored.sections.values():
        parts += [
            pack(number, at.taken, at.file, at.size, at.offset, at.crc, 0)
            for number, at in section.places.items()
        ]
    rest = b"".join(parts)
    return _HEAD.pack(_MAGIC, crc32c(rest)) + rest


def read_checkpoint(disk: Disk, path: Path, salt: bytes) -> StoredCheckpoint:
    """Read and check a checkpoint's header and tables; for version 1, also the state. Raises CorruptRecord,
    UnknownFormat, OSError."""
    fd = disk.open_read(path)
    try:
        size = disk.size(fd)
        head = disk.read(fd, _READ_BYTES, 0)
        if len(head) < _HEADER_BYTES_V1:
            raise CorruptRecord(str(path), size, "the checkpoint is cut off")
        (version,) = _VERSION.unpack_from(head, _HEAD.size)
        length = size
        if version == FORMAT_VERSION and len(head) >= CHECKPOINT_HEADER_BYTES:
            length = min(size, table_bytes(*_TAIL.unpack_from(head, _HEAD.size)[-3:]))
        data = head + disk.read(fd, length - len(head), len(head)) if length > len(head) else head[:length]
    finally:
        disk.close(fd)
    magic, crc = _HEAD.unpack_from(data)
    if magic != _MAGIC or crc != crc32c(data[_HEAD.size :]):
        raise CorruptRecord(str(path), 0, "the checkpoint's checksum does not match")
    if version == 1:
        stored = _decode_v1(data, path)
    elif version == FORMAT_VERSION:
        stored = _decode(data)
    else:
        raise UnknownFormat(
            f"{path}: checkpoint format version {version} is not known, only 1 to {FORMAT_VERSION}"
        )
    if stored.salt != salt or stored.name != path.name:
        raise CorruptRecord(str(path), 0, FOREIGN)
    return stored


def _decode(data: bytes) -> StoredCheckpoint:
    """Decode tables whose checksum has been verified."""
    _, partition, epoch, known, position, sequence, before, salt, serial, section_count, file_count, _ = (
        _TAIL.unpack_from(data, _HEAD.size)
    )
    files_at = CHECKPOINT_HEADER_BYTES + _SECTION.size * section_count
    places_at = files_at + _FILE.size * file_count
    files = {file: size for file, _, size in _FILE.iter_unpack(data[files_at:places_at])}
    sections: dict[str, StoredSection] = {}
    for name, version, count in _SECTION.iter_unpack(data[CHECKPOINT_HEADER_BYTES:files_at]):
        end = places_at + _PLACE.size * count
        places = {
            number: Place(Position(taken), file, offset, size, crc)
            for number, taken, file, size, offset, crc, _ in _PLACE.iter_unpack(data[places_at:end])
        }
        sections[name.rstrip(b"\0").decode("ascii")] = StoredSection(version, places)
        places_at = end
    chain = Chain(Position(position), sequence, before if known else None)
    return StoredCheckpoint(chain, epoch, partition, salt, serial, sections, files)


def _decode_v1(data: bytes, path: Path) -> StoredCheckpoint:
    _, partition, epoch, known, position, sequence, before, salt, length = _TAIL_V1.unpack_from(
        data, _HEAD.size
    )
    if length != len(data) - _HEADER_BYTES_V1:
        raise CorruptRecord(str(path), 0, "the checkpoint is not as long as it says")
    place = Place(Position(position), 0, _HEADER_BYTES_V1, length, crc32c(data[_HEADER_BYTES_V1:]))
    chain = Chain(Position(position), sequence, before if known else None)
    sections = {"": StoredSection(1, {0: place})}
    return StoredCheckpoint(chain, epoch, partition, salt, 0, sections, {}, is_whole_state=True)
