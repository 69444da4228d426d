"""Locked messages waiting for credit: bounded per connection, recalled by their partitions, returned at
close.

A receive request fans out to all partitions. What comes back beyond the link's credit waits on the link's
*shelf* and are given to its next requests without a fan-out. All shelves of a connection share one bound in
messages and bytes. No client has seen a message on a shelf, so giving it back counts no delivery. Pure: no
engine, no loop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Iterator
from dataclasses import fields
from itertools import accumulate, islice
from operator import attrgetter
from typing import Any

from broker.base._sizes import total_bytes
from broker.identifiers import LockToken
from broker.operations.columns import KNOWN_COLUMNS
from broker.operations.receiving import Locked


class ReceiveCache:
    """The bound that all shelves of one connection share."""

    __slots__ = ("bytes", "bytes_max", "messages", "messages_max")

    def __init__(self, messages_max: int, bytes_max: int) -> None:
        self.messages_max, self.bytes_max = messages_max, bytes_max
        self.messages = 0
        self.bytes = 0


class Shelf:
    """The messages that one link holds ready, in the order in which they came."""

    __slots__ = ("_cache", "_chunks", "_kept_ready")

    def __init__(self, cache: ReceiveCache, kept_ready: dict[str, int]) -> None:
        """`kept_ready` counts the messages on all shelves of an entity, by subqueue."""
        self._cache, self._kept_ready = cache, kept_ready
        self._chunks: deque[Locked] = deque()

    def __bool__(self) -> bool:
        return bool(self._chunks)

    def put(self, locked: Locked) -> Locked | None:
        """Keep as many messages as fit; returns the rest, to be released."""
        cache = self._cache
        room = min(cache.messages_max - cache.messages, len(locked.tokens))
        size = 0
        for index, until in enumerate(accumulate(map(len, islice(locked.messages, max(room, 0))))):
            if cache.bytes + until > cache.bytes_max:
                room = index
                break
            size = until
        kept, rest = split(locked, room)
        if kept is not None:
            cache.messages += room
            cache.bytes += size
            self._kept_ready[kept.subqueue] = self._kept_ready.get(kept.subqueue, 0) + room
            self._chunks.append(kept)
        return rest

    def take(self, count: int) -> Locked | None:
        """The oldest messages, up to `count`, all from one chunk; None if the shelf is empty."""
        if not self._chunks or count <= 0:
            return None
        taken, rest = split(self._chunks.popleft(), count)
        if rest is not None:
            self._chunks.appendleft(rest)
        assert taken is not None, "no chunk on a shelf is empty"
        self._left(taken)
        return taken

    def recall(self, partition: int, subqueue: str) -> list[LockToken]:
        """Take everything of a partition's subqueue off the shelf."""
        return self._drop(lambda chunk: chunk.partition == partition and chunk.subqueue == subqueue)

    def expire(self, until_ms: int) -> list[LockToken]:
        """Take off messages whose lock ends at `until_ms` or earlier, in monotonic time."""
        return self._drop(lambda chunk: chunk.locked_until_ms <= until_ms)

    def clear(self) -> Iterator[Locked]:
        """Take everything off."""
        while self._chunks:
            chunk = self._chunks.popleft()
            self._left(chunk)
            yield chunk

    def locked_until_ms(self) -> int | None:
        """When the first lock on the shelf runs out, in monotonic time."""
        return min((chunk.locked_until_ms for chunk in self._chunks), default=None)

    def _drop(self, dropped: Callable[[Locked], bool]) -> list[LockToken]:
        tokens: list[LockToken] = []
        kept: deque[Locked] = deque()
        for chunk in self._chunks:
            if dropped(chunk):
                tokens.extend(chunk.tokens)
                self._left(chunk)
            else:
                kept.append(chunk)
        self._chunks = kept
        return tokens

    def _left(self, chunk: Locked) -> None:
        self._cache.messages -= len(chunk.tokens)
        self._kept_ready[chunk.subqueue] -= len(chunk.tokens)
        self._cache.bytes -= total_bytes(chunk.messages)


def split(locked: Locked, count: int) -> tuple[Locked | None, Locked | None]:
    """The first `count` messages and the rest; None for an empty part."""
    total = len(locked.tokens)
    if count >= total:
        return locked, None
    if count <= 0:
        return None, locked
    return _part(locked, 0, count), _part(locked, count, total)


def without(locked: Locked, places: Container[int]) -> Locked:
    """The messages except those at `places`."""
    kept = [index for index in range(len(locked.tokens)) if index not in places]
    lists = [[values[index] for index in kept] for values in _lists_of(locked)]
    columns = {name: [values[index] for index in kept] for name, values in locked.columns.items()}
    values: list[Any] = [*_before(locked), *lists, *_behind(locked), columns]
    return Locked(*values)


def _part(locked: Locked, start: int, stop: int) -> Locked:
    here = slice(start, stop)
    lists = [values[here] for values in _lists_of(locked)]
    columns = locked.columns
    if columns:
        columns = {name: values[here] for name, values in columns.items()}
    values: list[Any] = [*_before(locked), *lists, *_behind(locked), columns]
    return Locked(*values)


Getter = Callable[[Locked], tuple[Any, ...]]


def _getters() -> tuple[Getter, Getter, Getter]:
    """Getters for the fields of an answer except its columns: those before its lists, the lists, those after
    them."""
    names = [each.name for each in fields(Locked)]
    begin, end = names.index("tokens"), names.index("locked_until_ms")
    assert set(names[begin:end]) == {"tokens", *KNOWN_COLUMNS} and names[-1] == "columns"
    return attrgetter(*names[:begin]), attrgetter(*names[begin:end]), attrgetter(*names[end:-1])


_before, _lists_of, _behind = _getters()
