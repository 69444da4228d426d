"""The storage version of a data folder: the file `version`, one line with a number.

Each file of the folder states the version of its own format, but a log is read only when its partition is
used. So the folder says which version of the storage format its latest broker wrote, and a broker that does
not know it refuses the folder at its start. Folders of builds that wrote no such file are older than all that
do.
"""

from __future__ import annotations

from pathlib import Path

from storage.disk import Disk, close_quietly, publish, read_file
from storage.errors import UnknownFormat

FILE_NAME = "version"
STORAGE_VERSION = 4
"""The version of docs/storage-format.md. It rises when an older broker could misread what a newer one has
written, or take it for damaged."""

_ADVICE = (
    "No message is affected, and the next start writes the file. Until then it keeps no older version of "
    "Partibus from the folder, so start none that is older than the last one that used it"
)


def check_version(disk: Disk, path: Path) -> int | None:
    """Check that this release knows what the data folder holds; returns the version that it states, None if
    it states none. Raises UnknownFormat, OSError."""
    version = _version_in(_content(disk, path))
    if version is not None and version > STORAGE_VERSION:
        raise UnknownFormat(
            f"{path} was written by a newer version of Partibus: its storage version is {version}, and this "
            f"one knows versions up to {STORAGE_VERSION}. Nothing was changed. Start the newer version, or "
            "restore a backup made by this one. If no newer version has ever used the folder, its file "
            f"{FILE_NAME!r} is damaged: remove it"
        )
    return version


def note_version(disk: Disk, path: Path) -> None:
    """Make the folder state the version of this release, durably. Raises StorageError."""
    close_quietly(disk, publish(disk, path / FILE_NAME, [b"%d\n" % STORAGE_VERSION]))


def what_is_wrong(disk: Disk, path: Path) -> str | None:
    """Why a data folder that was used does not state its version, and what to do; None if it does. Raises
    OSError."""
    content = _content(disk, path)
    if content is None:
        why = "the file is missing: the last version to use this data folder wrote none, or the file was lost"
    elif _version_in(content) is not None:
        return None
    elif not content.strip(b"\0"):
        why = f"the file is damaged: its {len(content)} bytes are zeros" if content else "the file is empty"
    else:
        why = f"the file is damaged: it holds {content[:20]!r} and not a number"
    return f"{why}. {_ADVICE}"


def _content(disk: Disk, path: Path) -> bytes | None:
    """None if there is no such file."""
    return read_file(disk, path / FILE_NAME) if FILE_NAME in disk.names(path) else None


def _version_in(content: bytes | None) -> int | None:
    """None also if the file is damaged: then each file of the folder still states its own version."""
    text = (content or b"").strip()
    return int(text) if text.isdigit() and len(text) <= 9 else None
