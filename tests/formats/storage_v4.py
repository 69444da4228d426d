"""The contents of `version-4/`, written by `python -m tests.formats.storage_v4 FOLDER`.

Version 4 differs only in what partitions write into the blocks of their checkpoints, which storage does not
know: `test_snapshot.py` has such a block of either version.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from tests.formats import storage_v3

FOLDER = Path(__file__).parent / "version-4"
write = storage_v3.write


if __name__ == "__main__":
    asyncio.run(write(Path(sys.argv[1])))
