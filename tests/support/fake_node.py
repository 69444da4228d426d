"""A management node for unit tests of the connector: positions as told, and a record of what was asked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from pyspark_partibus.client.operations import CURSOR_NOT_FOUND, CURSOR_OWNED, Cursor, Heads
from pyspark_partibus.errors import Refused, Unavailable
from pyspark_partibus.offsets import Positions


class FakeNode:
    """Stands in for `pyspark_partibus.client.operations.Node`."""

    def __init__(self, heads: Positions, starts: Positions | None = None, *, generation: str = "gen") -> None:
        starts = starts or dict.fromkeys(heads, 1)
        counts = {each: heads[each] - starts[each] for each in heads}
        sizes = {each: 1000 * count for each, count in counts.items()}
        self.answer = Heads(generation, starts, heads, counts, sizes, {}, ())
        self.cursors: dict[str, Cursor] = {}
        self.completed: Positions = {}
        self.asked: list[str] = []
        self.down = False
        self.closed = 0
        self.tries_once = False

    def __enter__(self) -> FakeNode:
        return self

    def __exit__(self, *_: object) -> None:
        self.closed += 1

    @contextmanager
    def trying_once(self) -> Iterator[None]:
        self.tries_once = True
        yield
        self.tries_once = False

    def move(self, heads: Positions, **changed: Any) -> None:
        """Messages have arrived."""
        self.answer = replace(self.answer, heads=heads, **changed)

    def heads(self, enqueued_time_ms: int | None = None, *, undecided: bool = False) -> Heads:
        self._note("heads")
        by_time = {} if enqueued_time_ms is None else dict.fromkeys(self.answer.heads, 5)
        return replace(self.answer, by_time=by_time)

    def cursor(self, name: str) -> Cursor | None:
        self._note("cursor")
        return self.cursors.get(name)

    def create_cursor(self, name: str, owner: str, positions: Positions, take_over: bool) -> None:
        self._note("create")
        existing = self.cursors.get(name)
        if existing is not None and existing.owner != owner and not take_over:
            raise Refused("create", CURSOR_OWNED, "")
        kept = positions if existing is None else existing.positions
        self.cursors[name] = Cursor(owner, self.answer.generation, kept)

    def advance_cursor(self, name: str, owner: str, positions: Positions, complete: bool) -> None:
        self._note("advance")
        if name not in self.cursors:
            raise Refused("advance", CURSOR_NOT_FOUND, "")
        if self.cursors[name].owner != owner:
            raise Refused("advance", CURSOR_OWNED, "")
        self.cursors[name] = replace(self.cursors[name], positions=positions)
        if complete:
            self.completed = positions

    def settle_through(self, positions: Positions) -> None:
        self._note("settle")
        self.completed = positions

    def _note(self, operation: str) -> None:
        self.asked.append(operation)
        if self.down:
            raise Unavailable("down")
