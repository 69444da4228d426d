"""What is in `version-2/`, and how it was written: `python -m tests.formats.storage_v2 FOLDER`.

Since version 1: each document has two files and a number, and each log has an extent. Segments and checkpoints are as they were.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from storage.catalogue import Catalogue
from storage.disk import LocalDisk
from storage.file_store import FileLogStore
from storage.log import Checkpoint
from tests.formats.storage_v1 import CHECKPOINT_AFTER, CHECKPOINT_STATE, COMMITS, DOCUMENTS, ENTITY, PARTITION, append

FOLDER = Path(__file__).parent / "version-2"
SEGMENT_BYTES_MAX = 700


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
