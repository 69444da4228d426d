"""The contents of `version-1/`.

The first version of the storage format wrote that folder. It is never written again: every later version must
be able to read it (`tests/unit/storage/test_formats.py`).
"""

from __future__ import annotations

from pathlib import Path

from storage.log import Log, Position

FOLDER = Path(__file__).parent / "version-1"
ENTITY = "orders/ü"
PARTITION = 5

COMMITS: list[list[tuple[int, int, bytes]]] = [
    [(1, 1, b"a message"), (2, 1, b"")],
    [(1, 1, b"x" * 200)],
    [(255, 7, bytes(range(256)))],
    [(3, 1, "settled: ü".encode())],
]
"""Kind, version and body of each record, per commit."""
CHECKPOINT_AFTER = 2
"""The checkpoint's state covers this many commits."""
CHECKPOINT_STATE = b"the owner's state"
DOCUMENTS = {"queues/orders": b'{"lockDuration": "PT30S"}', "settings": b""}


async def append(log: Log, records: list[tuple[int, int, bytes]]) -> Position:
    """Append one commit of these records and return its position."""
    commit = log.begin()
    for kind, version, body in records:
        commit.add(kind, [body], version)
    await log.append(commit)
    return commit.start
