"""What is in `version-1/`, and how it was written: `python -m tests.formats.storage_v1 FOLDER`.

The folder in the repository was written by the first version of the storage format, and is never written again: each later
version must read it (`tests/unit/test_storage_formats.py`).
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from storage.catalogue import Catalogue
from storage.disk import LocalDisk
from storage.file_store import FileLogStore
from storage.log import Checkpoint, Log, Position

FOLDER = Path(__file__).parent / "version-1"
ENTITY = "orders/ü"
PARTITION = 5
SEGMENT_BYTES_MAX = 700

COMMITS: list[list[tuple[int, int, bytes]]] = [
    [(1, 1, b"a message"), (2, 1, b"")],
    [(1, 1, b"x" * 200)],
    [(255, 7, bytes(range(256)))],
    [(3, 1, "settled: ü".encode())],
]
"""Kind, version and body of each record of each commit."""
CHECKPOINT_AFTER = 2
"""So many commits are in the checkpoint's state."""
CHECKPOINT_STATE = b"the owner's state"
DOCUMENTS = {"queues/orders": b'{"lockDuration": "PT30S"}', "settings": b""}


async def append(log: Log, records: list[tuple[int, int, bytes]]) -> Position:
    """One commit of these records; gives its position."""
    commit = log.begin()
    for kind, version, body in records:
        commit.add(kind, [body], version)
    await log.append(commit)
    return commit.start


async def write(folder: Path) -> None:
    """Write everything to a folder."""
    store = FileLogStore(folder, reserve_bytes=0, segment_bytes_max=SEGMENT_BYTES_MAX, make_salt=lambda: bytes(range(16)))
    log = store.log(ENTITY, PARTITION)
    await log.claim()
    for number, records in enumerate(COMMITS):
        if number == CHECKPOINT_AFTER:
            await log.save_checkpoint(Checkpoint(log.end, CHECKPOINT_STATE))
        await append(log, records)
    await log.close()
    await store.close()
    catalogue = Catalogue(folder / "catalogue", LocalDisk())
    for name, document in DOCUMENTS.items():
        await catalogue.put(name, document)


if __name__ == "__main__":
    asyncio.run(write(Path(sys.argv[1])))
