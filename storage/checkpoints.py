"""The checkpoints of one log: which two are kept, what a new one writes, which files may be removed.

*The two that are kept share no bytes.* Each new checkpoint replaces the older of the two and builds on it: it
writes the blocks that have changed since then, and refers to that checkpoint's files for all others. So
even-numbered and odd-numbered checkpoints use separate files. Whatever happens to one of the two, the other
is whole. The log is trimmed only up to the older one, so either checkpoint and the rest of the log recover
everything.

*What a checkpoint costs.* It writes the blocks that changed since the checkpoint before the last, and a table
with 40 bytes for each block. Every change is written twice, once to each set of files.

*Space.* A block that is written anew or removed leaves dead bytes in the file that held it. A file without a
live block is removed. If the dead bytes exceed the live ones (and some slack), or there are many small files,
the next checkpoint copies the live blocks out of some files, starting with the highest share of dead bytes.
It copies at most as many bytes as it writes anyway, or COPIED_BYTES_MIN. When half of all bytes are dead,
each copied byte frees another one, so copying at most doubles what is written.

A damaged checkpoint stops counting as soon as the damage is noticed. The next checkpoint replaces it and
contains all blocks.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import structlog

from storage.checkpoint import (
    FOREIGN,
    Place,
    StoredCheckpoint,
    StoredSection,
    checkpoint_paths,
    encode_tables,
    lacks_one,
    position_of,
    read_checkpoint,
    serial_of,
    table_bytes,
)
from storage.checkpoint_blocks import BlockFiles, checked_checkpoint
from storage.disk import Disk, publish
from storage.errors import CorruptRecord, DiskFailed
from storage.log import Block, Checkpoint, Position, Section, bytes_in
from storage.record import Chain, crc32c, extend_crc32c

CHECKPOINTS_KEPT = 2
DEAD_BYTES_SLACK = 256 << 10
"""How many dead bytes are tolerated, however few are live."""
COPIED_BYTES_MIN = 1 << 20
"""How much a checkpoint may copy even if it writes less."""
FILES_MIN = 16
"""How many files a checkpoint may always have."""
BYTES_PER_FILE = 1 << 20
"""A checkpoint may have one more file for each of this many live bytes."""

_log = structlog.get_logger()


@dataclass(slots=True, frozen=True)
class Anchor:
    """Where a checkpoint belongs: to which log, and to which position in it."""

    chain: Chain
    """The place in the log for which the checkpoint was taken."""
    epoch: int
    partition: int
    salt: bytes


class Checkpoints:
    """The checkpoints in a log's directory. Methods that touch files block; call one at a time."""

    def __init__(self, directory: Path) -> None:
        """Begin without checkpoints, for a new log."""
        self._directory = directory
        self._kept: tuple[StoredCheckpoint, ...] = ()
        """The usable checkpoints, newest first."""
        self._next_serial = 1
        self.named = Position(0)
        """The highest position in the names of damaged checkpoints of this log, which was durable."""
        self.is_damaged = False
        """Whether a checkpoint was found damaged or missing, and was not replaced since."""

    @staticmethod
    def find(disk: Disk, directory: Path, names: list[str], salt: bytes, start: Position) -> Checkpoints:
        """The usable checkpoints on disk of a log with this salt that begins at `start`. Does not read
        their blocks yet.

        Raises CorruptRecord if the log was trimmed and no checkpoint is left, UnknownFormat, OSError.
        """
        found = Checkpoints(directory)
        paths = checkpoint_paths(directory, names)
        serials = {serial for path in paths if (serial := serial_of(path)) is not None}
        found._next_serial = max(serials, default=0) + 1
        damage: CorruptRecord | None = None
        kept: list[StoredCheckpoint] = []
        for number, path in enumerate(paths):
            # A replaced checkpoint may lack some of its files. Try it only if nothing else is left.
            if len(kept) == CHECKPOINTS_KEPT or (kept and number >= CHECKPOINTS_KEPT):
                break
            try:
                stored = read_checkpoint(disk, path, salt)
                if missing := stored.files.keys() - serials:
                    raise CorruptRecord(
                        str(path),
                        0,
                        f"checkpoint file {min(missing):08x}, which holds some of its blocks, is missing",
                    )
            except CorruptRecord as error:
                _report(error)
                damage = damage or error
                found.is_damaged = True
                if error.why != FOREIGN:
                    found.named = max(found.named, position_of(path))
                continue
            if stored.position >= start:
                kept.append(stored)
            else:
                damage = damage or CorruptRecord(str(path), 0, f"the log was trimmed up to {start} since")
        found._kept = tuple(kept)
        found.is_damaged |= lacks_one(kept)
        if not kept:
            found._check_start(start, damage)
        return found

    def _check_start(self, start: Position, damage: CorruptRecord | None) -> None:
        """Without a usable checkpoint: raise CorruptRecord if the log was trimmed."""
        if start > 0:
            raise damage or CorruptRecord(
                str(self._directory), start, "the log was trimmed, and its checkpoint is missing"
            )

    @property
    def newest(self) -> StoredCheckpoint | None:
        """The newest usable checkpoint, or None."""
        return self._kept[0] if self._kept else None

    @property
    def positions(self) -> tuple[Position, ...]:
        """The positions of the usable checkpoints, newest first."""
        return tuple(stored.position for stored in self._kept)

    @property
    def trim_limit(self) -> Position | None:
        """The position up to which the log may be trimmed; None unless there are two checkpoints."""
        return self._kept[-1].position if len(self._kept) == CHECKPOINTS_KEPT else None

    @property
    def base(self) -> StoredCheckpoint | None:
        """The checkpoint on which the next one builds; None if the next one must contain all blocks."""
        # Nothing can build on a checkpoint of version 1, which is one whole state without blocks.
        if len(self._kept) < CHECKPOINTS_KEPT or any(stored.is_whole_state for stored in self._kept):
            return None
        return self._kept[-1]

    @property
    def base_position(self) -> Position | None:
        """The position of `base`."""
        return None if self.base is None else self.base.position

    @property
    def stored_bytes(self) -> int:
        """What the files of the usable checkpoints take, apart from the tables."""
        return sum(sum(stored.files.values()) for stored in self._kept)

    # --- reading ---

    def load(self, disk: Disk, start: Position) -> Checkpoint | None:
        """The newest whole checkpoint (see `checked_checkpoint`); None if the log must be replayed from its
        start at `start`.

        Raises CorruptRecord, OSError.
        """
        damage: CorruptRecord | None = None
        while self._kept:
            try:
                return checked_checkpoint(disk, self._directory, self._kept[0])
            except CorruptRecord as error:
                _report(error)
                damage, self.is_damaged = damage or error, True
                self._kept = self._kept[1:]
        self._check_start(start, damage)
        return None

    # --- writing ---

    def save(self, disk: Disk, checkpoint: Checkpoint, anchor: Anchor, *, is_complete: bool = False) -> None:
        """Save a checkpoint durably, in place of the older of the two. If it `is_complete`, it builds on
        none. Raises DiskFull, DiskFailed, CommitFailed."""
        base = None if is_complete else self.base
        kept = {section.name: self._unchanged(section, base) for section in checkpoint.sections}
        fresh = _given(checkpoint)
        moved = [] if base is None else _move_out(kept, _to_copy(base, kept, _size_of(fresh)))
        fresh += [_Fresh(name, number, place.taken, place.size, place.crc) for name, number, place in moved]
        stored = self._placed(checkpoint, anchor, base, kept, fresh)
        self._next_serial += 1  # even if this fails, because the file may exist then
        parts = (part for each in fresh for part in each.parts)
        copied = self._copied(disk, base, [place for _, _, place in moved])
        fd = publish(disk, self._directory / stored.name, chain((encode_tables(stored),), parts, copied))
        self._kept = (stored, *self._kept[: CHECKPOINTS_KEPT - 1])
        self.is_damaged = lacks_one(self._kept)
        with contextlib.suppress(OSError):  # what cannot be removed now is removed after the next checkpoint
            disk.close(fd)
            self._clear(disk)

    def _placed(
        self,
        checkpoint: Checkpoint,
        anchor: Anchor,
        base: StoredCheckpoint | None,
        kept: dict[str, dict[int, Place]],
        fresh: Sequence[_Fresh],
    ) -> StoredCheckpoint:
        """Add the `fresh` blocks to `kept`, with their places behind the tables of the new checkpoint's file.
        Returns that checkpoint, without the content of its blocks. Those that were `kept` before stay in the
        files of `base`."""
        serial = self._next_serial
        files = {place.file for places in kept.values() for place in places.values()}
        sizes = {file: size for file, size in base.files.items() if file in files} if base is not None else {}
        if written := _size_of(fresh):
            sizes[serial] = written
        blocks = len(fresh) + sum(map(len, kept.values()))
        offset = table_bytes(len(checkpoint.sections), len(sizes), blocks)
        for each in fresh:
            kept[each.section][each.number] = Place(each.taken, serial, offset, each.size, each.crc)
            offset += each.size
        sections = {
            section.name: StoredSection(section.version, kept[section.name])
            for section in checkpoint.sections
        }
        return StoredCheckpoint(
            anchor.chain, anchor.epoch, anchor.partition, anchor.salt, serial, sections, sizes
        )

    def _unchanged(self, section: Section, base: StoredCheckpoint | None) -> dict[int, Place]:
        """The blocks of a section that a new checkpoint takes over from its base."""
        if base is None:
            return {}
        older, newer = base.sections.get(section.name), self._kept[0].sections.get(section.name)
        if older is None or newer is None:
            return {}
        assert older.version == newer.version == section.version, "blocks of one format"
        given = section.blocks
        # A block that the newest checkpoint lacks was empty then. It has stayed empty, or else it would be in
        # `given`.
        return {
            number: place
            for number, place in older.places.items()
            if number not in given and number in newer.places
        }

    def _copied(self, disk: Disk, base: StoredCheckpoint | None, places: Iterable[Place]) -> Iterator[bytes]:
        """Read the blocks of `base` that a new checkpoint copies, each when it is to be written.

        Raises DiskFailed; if a block is damaged, `base` is no longer usable.
        """
        if base is None:
            return
        try:
            with BlockFiles(disk, self._directory, base) as files:
                for place in places:
                    yield files.read(place)
        except CorruptRecord as error:
            _report(error)
            self._kept, self.is_damaged = tuple(stored for stored in self._kept if stored is not base), True
            raise DiskFailed(f"{error}; the next checkpoint is written as a whole") from error
        except OSError as error:
            raise DiskFailed(f"{self._directory}: {error.strerror}") from error

    def _clear(self, disk: Disk) -> None:
        """Remove the files that neither kept checkpoint needs."""
        needed = {stored.name for stored in self._kept}
        serials = {serial for stored in self._kept for serial in stored.files}
        for path in checkpoint_paths(self._directory, disk.names(self._directory)):
            if path.name not in needed and serial_of(path) not in serials:
                disk.remove(path)


class _Fresh(NamedTuple):
    """A block that a checkpoint writes."""

    section: str
    number: int
    taken: Position
    size: int
    crc: int
    block: Block = ()
    """Empty if it is copied from another file."""

    @property
    def parts(self) -> tuple[bytes, ...]:
        """The block's content."""
        assert not isinstance(self.block, deque), "it was not read from the disk"
        return (self.block,) if isinstance(self.block, bytes) else self.block


def _given(checkpoint: Checkpoint) -> list[_Fresh]:
    """The blocks that are given with a checkpoint, apart from those that are empty now."""
    return [
        _Fresh(section.name, number, checkpoint.position, *_measured(block), block)
        for section in checkpoint.sections
        for number, block in section.blocks.items()
        if block
    ]


def _size_of(fresh: Iterable[_Fresh]) -> int:
    return sum([each.size for each in fresh])


def _measured(block: Block) -> tuple[int, int]:
    """The size and the CRC-32C of a block."""
    if isinstance(block, bytes):
        return len(block), crc32c(block)
    return bytes_in(block), reduce(extend_crc32c, block, 0)


def _move_out(kept: dict[str, dict[int, Place]], victims: set[int]) -> list[tuple[str, int, Place]]:
    """Move the live blocks of some files out of `kept`."""
    return [
        (name, number, places.pop(number))
        for name, places in kept.items()
        for number in [number for number, place in places.items() if place.file in victims]
    ]


def _to_copy(base: StoredCheckpoint, kept: dict[str, dict[int, Place]], written: int) -> set[int]:
    """The files whose live blocks the next checkpoint copies so that the files can be removed."""
    live: dict[int, int] = {}
    for places in kept.values():
        for place in places.values():
            live[place.file] = live.get(place.file, 0) + place.size
    room = max(written, COPIED_BYTES_MIN)
    excess = (
        sum(base.files[file] - size for file, size in live.items())
        - sum(live.values())
        - written
        - DEAD_BYTES_SLACK
    )
    too_many = len(live) - FILES_MIN - sum(live.values()) // BYTES_PER_FILE
    victims: set[int] = set()
    for file in sorted(live, key=lambda file: live[file] / base.files[file]):
        if excess <= 0 or live[file] > room:
            break
        victims.add(file)
        room -= live[file]
        excess -= base.files[file] - live[file]
    if too_many > len(victims):
        for file in sorted(live.keys() - victims, key=live.__getitem__)[: 2 * too_many + FILES_MIN // 2]:
            if live[file] > room:
                break
            victims.add(file)
            room -= live[file]
    return victims


def _report(error: CorruptRecord) -> None:
    _log.error("checkpoint.damaged", path=error.path, position=error.position, why=error.why)
