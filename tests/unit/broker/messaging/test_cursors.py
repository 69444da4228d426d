"""A cursor over all partitions: the first one decides, and the others follow it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from broker.base.errors import Reason, Refused
from broker.messaging.cursors import (
    advance_cursor,
    create_cursor,
    delete_cursor,
    get_cursor,
    list_cursors,
)
from broker.operations.general import Failed
from broker.operations.streams import (
    LATEST,
    AdvanceCursor,
    CreateCursor,
    CursorAdvanced,
    CursorDeleted,
    CursorList,
    CursorState,
    DeleteCursor,
    GetCursor,
    ListCursors,
)
from tests.support.link_stack import LinkStack, turn

ME, YOU = b"me", b"you"


def state(position: int = 5, owner: bytes = ME, name: bytes = b"c", cookie: object = None) -> CursorState:
    return CursorState(name, owner, position, 1, 0, 100, 200, cookie, True)


class Asked:
    """A request about cursors under way, and what its partitions are asked."""

    def __init__(self, stack: LinkStack, work: Coroutine[Any, Any, Any]) -> None:
        self.stack, self.work = stack, asyncio.ensure_future(work)

    async def answer(self, number: int, kind: type[Any], make: Any) -> Any:
        """Answer the oldest operation of this kind in a partition; gives it."""
        await turn()
        return self.stack.parts[number].answer(kind, make)

    async def are_asked(self, kind: type[Any]) -> list[int]:
        await turn()
        return [part.number for part in self.stack.parts if part.has(kind)]


def asking(make: Any, partitions: int = 3) -> Asked:
    stack = LinkStack(partitions)
    return Asked(stack, make(stack.queue))


async def test_a_cursor_is_created_in_the_first_partition_before_the_others() -> None:
    create = CreateCursor("", b"c", ME, LATEST, True, 9, 7)
    asked = asking(lambda queue: create_cursor(queue, create, {2: 77}))
    assert await asked.are_asked(CreateCursor) == [0]
    first = await asked.answer(0, CreateCursor, lambda each: state(cookie=each.cookie))
    assert first == create
    assert await asked.are_asked(CreateCursor) == [1, 2]
    for number, begin in ((1, LATEST), (2, 77)):
        other = await asked.answer(number, CreateCursor, lambda each: state(6, cookie=each.cookie))
        assert (other.born_ms, other.owned_since_ms, other.begin) == (100, 200, begin)
        assert (other.owner, other.expires_after_ms, other.cursors_max) == (ME, 9, 7)
    cursor = await asked.work
    assert [each.position for each in cursor.parts.values()] == [5, 6, 6] and cursor.first.is_new


async def test_an_owner_is_refused_by_the_first_partition_and_the_others_are_not_asked() -> None:
    create = CreateCursor("", b"c", ME, LATEST, False, 0, 7)
    asked = asking(lambda queue: create_cursor(queue, create, {}))
    await asked.answer(0, CreateCursor, lambda each: Failed(Reason.CURSOR_OWNED, "It is yours.", each.cookie))
    with pytest.raises(Refused, match="It is yours"):
        await asked.work
    assert await asked.are_asked(CreateCursor) == []


async def test_a_cursor_is_read_and_moved_in_all_partitions_at_once() -> None:
    asked = asking(lambda queue: get_cursor(queue, "", b"c"))
    assert await asked.are_asked(GetCursor) == [0, 1, 2]
    for number in range(3):
        await asked.answer(number, GetCursor, lambda each: state(7, cookie=each.cookie))
    assert [each.position for each in (await asked.work).parts.values()] == [7, 7, 7]
    asked = asking(lambda queue: advance_cursor(queue, "", b"c", ME, {1: 8, 2: 9}, True))
    assert await asked.are_asked(AdvanceCursor) == [1, 2]
    await asked.answer(1, AdvanceCursor, lambda each: CursorAdvanced(each.position, 3, 1, each.cookie))
    last = await asked.answer(2, AdvanceCursor, lambda each: Failed(Reason.CURSOR_OWNED, "No.", each.cookie))
    assert (last.position, last.completes, last.owner) == (9, True, ME)
    with pytest.raises(Refused, match=r"No\."):
        await asked.work


async def test_the_first_partition_says_which_cursors_there_are() -> None:
    asked = asking(lambda queue: list_cursors(queue, ""))
    for number in range(3):
        names = [b"c", b"left over"] if number == 2 else [b"c"] if number == 0 else []
        await asked.answer(
            number,
            ListCursors,
            lambda each, names=names: CursorList([state(name=name) for name in names], each.cookie),
        )
    (cursor,) = await asked.work
    assert cursor.first.name == b"c" and sorted(cursor.parts) == [0, 2]


async def test_a_cursor_is_deleted_in_the_first_partition_last() -> None:
    asked = asking(lambda queue: delete_cursor(queue, "", b"c", ME))
    await asked.answer(0, ListCursors, lambda each: CursorList([state()], each.cookie))
    assert await asked.are_asked(DeleteCursor) == [1, 2]
    for number in (1, 2):
        other = await asked.answer(number, DeleteCursor, lambda each: CursorDeleted(True, each.cookie))
        assert (other.owner, other.owned_since_ms) == (ME, 200)
    assert await asked.are_asked(DeleteCursor) == [0]
    first = await asked.answer(0, DeleteCursor, lambda each: CursorDeleted(True, each.cookie))
    assert first.owned_since_ms == -1 and await asked.work is True


@pytest.mark.parametrize("cursors", [[], [state(owner=YOU)]])
async def test_a_cursor_of_somebody_else_or_none_is_left_to_the_first_partition(
    cursors: list[CursorState],
) -> None:
    asked = asking(lambda queue: delete_cursor(queue, "", b"c", ME))
    await asked.answer(0, ListCursors, lambda each: CursorList(cursors, each.cookie))
    assert await asked.are_asked(DeleteCursor) == [0]
    await asked.answer(0, DeleteCursor, lambda each: CursorDeleted(False, each.cookie))
    assert await asked.work is False
