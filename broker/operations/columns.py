"""Columns: what is known of each message, in operations and answers, beside the message itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(slots=True, frozen=True)
class Column:
    """One thing that is known of each message. Operations and answers hold it as a list in parallel with the
    messages."""

    name: str
    """In `columns` of operations and answers, and in a partition's reference."""
    number: int
    """In records and checkpoints. It identifies this column for ever: never reuse a number."""
    code: str
    """How a value is stored: the array type of a number (Q 8 bytes, I 4, H 2), or "" for bytes, where None
    means no value."""
    default: int | bytes | None
    """The value of messages that came without one. A column in which all values are the default is not
    stored."""
    is_answered: bool = True
    """Whether `Locked` and `Peeked` show it to receivers. `Locked` shows all columns of messages that were
    asked for by number, or by the broker itself."""


SESSION_ID: Final = "session_id"
DESTINATION: Final = "destination"
"""The name of the entity that a message in the transfer subqueue is for, in UTF-8."""
COLUMNS: Final[tuple[Column, ...]] = (
    Column(SESSION_ID, 1, "", None, is_answered=False),
    Column(DESTINATION, 2, "", None, is_answered=False),
)
"""The columns that a sender may give to its messages, and that stay with them from then on.

*To add one, add it here.* A `Send` with the column in its `columns` has it stored with the message. Recovery,
compaction, checkpoints and repair keep it (`broker/partition/columns.py`), receivers' shelves split it like
all other lists, and `Locked` and `Peeked` return it in their `columns`.
"""

ColumnLists = dict[str, list[int | bytes | None]]
"""Columns of some messages, by name."""

KNOWN_COLUMNS: Final = {
    "sequence_numbers": "sequence_number",
    "enqueued_at_ms": "enqueued_at_ms",
    "delivery_counts": "delivery_count",
    "expires_at_ms": "expires_at_ms",
    "messages": "payload",
    "changed": "changed",
}
"""The lists of `Locked` and `Peeked` that all messages have, and the attributes of references they show."""
