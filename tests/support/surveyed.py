"""A log of several segments, and what a check of it finds."""

from __future__ import annotations

from pathlib import Path

from storage.check import Progress, check_log, log_folders
from storage.disk import LocalDisk
from storage.log import Position
from storage.survey import Finding, LogFolder
from tests.support.logs import acquired, append, checkpoint_of

DISK = LocalDisk()


async def written(root: Path, *, trim: bool = False) -> list[Position]:
    """Write twelve commits, three to a segment, with two checkpoints, the last one at the end; returns the
    commits' positions."""
    positions: list[Position] = []
    async with acquired(root, segment_bytes_max=700) as log:
        for number in range(12):
            positions.append(await append(log, b"%02d" % number * 30))
            if number in (7, 11):
                await log.save_checkpoint(checkpoint_of(log.end, b"state"))
        if trim:
            await log.trim(positions[4])
    return positions


def folder_of(root: Path) -> LogFolder:
    """The only log in a data folder."""
    [folder] = log_folders(DISK, root)
    return folder


def check(root: Path) -> list[Finding]:
    """What a check of that log finds."""
    return check_log(DISK, folder_of(root), lambda seconds: None, Progress())


def files(root: Path, suffix: str) -> list[Path]:
    """The files in a data folder whose names end so."""
    return sorted(path for path in root.rglob(f"*{suffix}") if path.is_file())
