"""Tables of numbers in records and checkpoints, little endian. Pure."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Sequence


class UnreadableRecord(Exception):
    """An intact record that this release does not understand."""


def table(code: str, values: Iterable[int]) -> bytes:
    """Encode numbers as a table. `code` is the array type: Q is 8 bytes, I 4, H 2."""
    numbers = array(code, values)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()


def read_table(code: str, view: memoryview, offset: int, count: int) -> tuple[array[int], int]:
    """Decode a table of `count` numbers; also returns the offset after it. Raises UnreadableRecord if it does
    not fit."""
    numbers: array[int] = array(code)
    end = end_of_table(numbers.itemsize, view, offset, count)
    numbers.frombytes(view[offset:end])
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers, end


def end_of_table(width: int, view: memoryview, offset: int, count: int) -> int:
    """Where a table of `count` numbers of `width` bytes ends. Raises UnreadableRecord if it does not fit."""
    end = offset + count * width
    if end > len(view):
        raise UnreadableRecord(f"a table of {count} numbers ends at byte {end} of {len(view)}")
    return end


def check_places(places: Sequence[int], count: int, what: str) -> None:
    """Raise UnreadableRecord if one of these places is not below `count`: there are so many of `what`, a word
    in the singular."""
    if places and (last := max(places)) >= count:
        raise UnreadableRecord(f"a checkpoint refers to {what} {last}, and there are {count}")
