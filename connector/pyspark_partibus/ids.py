"""Message-ids that are the same whenever the same row is written again, so that the broker drops the
repetition.

Ids never depend on the position of a row: the order of rows within a Spark partition changes from one
attempt to the next, and an id that moves from one row to another would make the broker drop a row that it
has never seen. Rows with equal content are told apart by counting them, which does not depend on their order
either.
"""

from __future__ import annotations

import secrets
from collections import Counter
from hashlib import blake2b

ID_BYTES = 16


class ContentIds:
    """Ids by content, for the rows of one task."""

    def __init__(self, *scope: str | int) -> None:
        """scope: what sets this task's rows apart from others that may have the same content: the sink, the
        batch, and the Spark partition unless rows may move to another one."""
        self._scope = blake2b("\x00".join(map(str, scope)).encode(), digest_size=ID_BYTES)
        self._seen: Counter[bytes] = Counter()

    def of(self, *parts: bytes) -> str:
        """The id of the next row with this content. The lengths of the parts belong to the content."""
        hashed = self._scope.copy()
        for part in parts:
            hashed.update(len(part).to_bytes(4, "big"))
            hashed.update(part)
        digest = hashed.digest()
        self._seen[digest] += 1
        occurrence = self._seen[digest]
        return digest.hex() if occurrence == 1 else f"{digest.hex()}-{occurrence}"


def random_id() -> str:
    """An id that no other message has."""
    return secrets.token_hex(ID_BYTES)


def source_id(writer: str, target: str, partition: int, sequence_number: int) -> str:
    """The id of a row that was read from an entity of the broker and is written as one message. writer: the
    query's name, because another one may copy another entity to the same target."""
    scope = blake2b(f"{writer}\x00{target.lower()}".encode(), digest_size=ID_BYTES).hexdigest()
    return f"{scope}-{partition}-{sequence_number}"


def partition_of_key(key: str, partitions: int) -> int:
    """The partition of a key: docs/partitioning.md, which promises that the rule never changes."""
    return int.from_bytes(blake2b(key.encode(), digest_size=8).digest(), "big") % partitions
