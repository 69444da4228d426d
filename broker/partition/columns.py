"""Columns of messages in references, records and checkpoints. Pure.

`COLUMNS` in `broker/operations/columns.py` declares the columns; this file knows none by name. A reference
has a slot for each column, unless all its columns have their defaults (`ColumnedReference`). If any message
has a value other than the default, the tables of a record or checkpoint block end with a *column part*, and a
flag in the head says so. Little endian:

    offset  size  field
         0     2  number of columns
         2     2  zero
    then for each column, ascending by its number:
         0     2  number
         2     2  zero
         4     4  size b
         8     b  numbers: a table with one entry for each of the n messages
                  bytes: a table of n 4-byte sizes, 2^32 - 1 for none; then the values, back to back

A release that does not know a column's number refuses to read the record (`UnreadableRecord`).
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat
from operator import attrgetter
from types import MappingProxyType

from broker.operations.columns import COLUMNS, Column, ColumnLists
from broker.partition.references import ColumnedReference, Reference

Columns = Mapping[str, Sequence[int | bytes | None]]
"""Columns of some messages, by name. All messages have the default in a missing column."""
NO_COLUMNS: Columns = MappingProxyType({})

_PART = struct.Struct("<HH")
_COLUMN = struct.Struct("<HHI")
_NO_VALUE = 0xFFFFFFFF
_BY_NUMBER = {column.number: column for column in COLUMNS}
_GETTERS = [(column.name, attrgetter(column.name)) for column in COLUMNS]
_ANSWERED = [(column.name, attrgetter(column.name)) for column in COLUMNS if column.is_answered]
_OF_BYTES = [column.name for column in COLUMNS if not column.code]

assert len(_BY_NUMBER) == len(COLUMNS) == len(set(_GETTERS)), "names and numbers are given once"

PART_BYTES = _PART.size + len(COLUMNS) * _COLUMN.size if COLUMNS else 0
"""The maximum size of a column part, excluding its tables."""
MESSAGE_BYTES = sum(array(column.code or "I").itemsize for column in COLUMNS)
"""The maximum size of one message's entries in the tables of a column part, excluding values of type
bytes."""


class UnreadableColumns(Exception):
    """A column part that this release does not understand."""


def of_references(references: Sequence[Reference]) -> ColumnLists:
    """All columns of some messages; empty if none of them has columns."""
    if set(map(type, references)) <= {Reference}:
        return {}
    return {name: list(map(get, references)) for name, get in _GETTERS}


def answered(references: Sequence[Reference]) -> ColumnLists:
    """The columns that clients are told of some messages."""
    return {name: list(map(get, references)) for name, get in _ANSWERED}


def class_for(columns: Columns) -> type[Reference]:
    """The class for references to messages with these columns."""
    return ColumnedReference if columns else Reference


def give(references: Sequence[Reference], columns: Columns) -> None:
    """Set the columns of new references, which `class_for` has chosen the class of. References that exist
    already may be without columns; they keep the defaults."""
    if not columns:
        return
    for column in COLUMNS:
        values: Iterable[int | bytes | None] = columns.get(column.name) or repeat(column.default)
        for reference, value in zip(references, values, strict=False):
            if type(reference) is not Reference:
                setattr(reference, column.name, value)


def part_of(columns: Columns, here: slice) -> Columns:
    """The columns of some of the messages."""
    return {name: values[here] for name, values in columns.items()} if columns else columns


def value_bytes(references: Iterable[Reference]) -> int:
    """Total size of these messages' values in columns of type bytes."""
    if not _OF_BYTES:
        return 0
    return sum(
        len(getattr(reference, name) or b"")
        for reference in references
        if type(reference) is not Reference
        for name in _OF_BYTES
    )


def list_bytes(columns: Columns) -> int:
    """Total size of the values in columns of type bytes."""
    if not columns:
        return 0
    return sum(len(value) for values in columns.values() for value in values if isinstance(value, bytes))


def encode(columns: Columns) -> bytes:
    """Encode the column part; empty if all messages have the defaults."""
    tables: list[bytes] = []
    for number, column in sorted(_BY_NUMBER.items()):
        values = columns.get(column.name)
        if values is not None and any(value != column.default for value in values):
            table = _encode_values(column, values)
            tables += _COLUMN.pack(number, 0, len(table)), table
    return _PART.pack(len(tables) // 2, 0) + b"".join(tables) if tables else b""


def decode(view: memoryview, offset: int, count: int) -> tuple[Columns, int]:
    """Decode the column part of `count` messages at this offset. Also returns the offset after it. Raises
    UnreadableColumns."""
    columns: dict[str, Sequence[int | bytes | None]] = {}
    try:
        parts, _ = _PART.unpack_from(view, offset)
        end = offset + _PART.size
        for _ in range(parts):
            number, _, size = _COLUMN.unpack_from(view, end)
            column = _BY_NUMBER.get(number)
            if column is None:
                raise UnreadableColumns(f"column {number} is unknown to this release")
            begin, end = end + _COLUMN.size, end + _COLUMN.size + size
            if end > len(view):
                raise UnreadableColumns(f"column {number} ends at byte {end} of {len(view)}")
            columns[column.name] = _decode_values(column, view[begin:end], count)
    except struct.error as error:
        raise UnreadableColumns(f"a column part ends early: {error}") from error
    return columns, end


def _encode_values(column: Column, values: Sequence[int | bytes | None]) -> bytes:
    if column.code:
        return _table(column.code, values)
    sizes = [len(value) if isinstance(value, bytes) else _NO_VALUE for value in values]
    return _table("I", sizes) + b"".join(value for value in values if isinstance(value, bytes))


def _decode_values(column: Column, view: memoryview, count: int) -> Sequence[int | bytes | None]:
    numbers = array(column.code or "I")
    end = count * numbers.itemsize
    if end > len(view):
        raise UnreadableColumns(f"column {column.number} has {len(view)} bytes; {count} messages need {end}")
    numbers.frombytes(view[:end])
    if sys.byteorder == "big":
        numbers.byteswap()
    values: list[int | bytes | None] = list(numbers)
    if not column.code:
        for place, size in enumerate(numbers):
            values[place] = None if size == _NO_VALUE else bytes(view[end : end + size])
            end += 0 if size == _NO_VALUE else size
    if end != len(view):
        raise UnreadableColumns(f"column {column.number} has {len(view)} bytes; {count} messages need {end}")
    return values


def _table(code: str, values: Sequence[int | bytes | None]) -> bytes:
    numbers: array[int] = array(code, [value for value in values if isinstance(value, int)])
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()
