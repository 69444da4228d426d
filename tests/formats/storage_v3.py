"""The contents of `version-3/`, written by `python -m tests.formats.storage_v3 FOLDER`.

Since version 2, checkpoints are written in blocks, and no two checkpoints share a file.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from storage.catalogue import Catalogue
from storage.disk import LocalDisk
from storage.file_store import FileLogStore
from storage.log import Checkpoint, Position, Section
from tests.formats.storage_v1 import CHECKPOINT_AFTER, COMMITS, DOCUMENTS, ENTITY, PARTITION, append

FOLDER = Path(__file__).parent / "version-3"
SEGMENT_BYTES_MAX = 700


def checkpoint(position: Position, *, whole: bool = True) -> Checkpoint:
    """The state at a position: all of it, or the changes since the checkpoint before the last."""
    blocks = {0: b"counted: %d" % position} | ({7: b"the owner's state", 1 << 40: b""} if whole else {})
    return Checkpoint(position, (Section("counters", 1, blocks), Section("nothing", 2, {})))


async def write(folder: Path) -> None:
    """Write everything to a folder."""
    store = FileLogStore(
        folder, reserve_bytes=0, segment_bytes_max=SEGMENT_BYTES_MAX, make_salt=lambda: bytes(range(16))
    )
    log = store.log(ENTITY, PARTITION)
    await log.acquire()
    for number, records in enumerate(COMMITS):
        if number <= CHECKPOINT_AFTER:
            await log.save_checkpoint(checkpoint(log.end, whole=log.checkpoint_base is None))
        await append(log, records)
    await log.close()
    await store.close()
    catalogue = Catalogue(folder / "catalogue", LocalDisk())
    for name, document in DOCUMENTS.items():
        await catalogue.put(name, document)


if __name__ == "__main__":
    asyncio.run(write(Path(sys.argv[1])))
