"""Cursors of one partition: created once, moved forward by their owner alone, and kept over restarts."""

from __future__ import annotations

from typing import Any

import pytest

from broker.base.errors import Reason
from broker.entities.descriptions import DEAD_LETTER, MAIN
from broker.operations.general import Failed
from broker.operations.interface import Answer
from broker.operations.settling import DeadLetter
from broker.operations.streams import (
    EARLIEST,
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
from tests.support.partition_harness import NUMBER, Harness, one

FIRST = NUMBER << 48 | 1
ME, YOU = b"me", b"you"


async def create(harness: Harness, begin: int = EARLIEST, owner: bytes = ME, **given: Any) -> Answer:
    fields = {"takes_over": False, "expires_after_ms": 0, "cursors_max": 2} | given
    operation = CreateCursor(fields.pop("subqueue", MAIN), fields.pop("name", b"c"), owner, begin, **fields)
    (answer,) = await harness.do(3, operation)
    return answer


async def created(harness: Harness, *args: Any, **given: Any) -> CursorState:
    answer = await create(harness, *args, **given)
    assert isinstance(answer, CursorState), answer
    return answer


async def advance(harness: Harness, position: int, owner: bytes = ME, *, completes: bool = False) -> Answer:
    (answer,) = await harness.do(3, AdvanceCursor(MAIN, b"c", owner, position, completes, "mine"))
    return answer


async def state(harness: Harness, subqueue: str = MAIN) -> CursorState:
    return one(await harness.do(3, GetCursor(subqueue, b"c")), CursorState)


def reason(answer: Answer) -> Reason:
    assert isinstance(answer, Failed), answer
    return answer.reason


async def test_a_cursor_begins_where_its_owner_says() -> None:
    harness = Harness()
    await harness.send(b"a", b"b", b"c")
    for name, begin, position in (
        (b"1", EARLIEST, FIRST),
        (b"2", LATEST, FIRST + 3),
        (b"3", FIRST + 1, FIRST + 1),
    ):
        found = await created(harness, begin, name=name, cursors_max=9)
        assert (found.position, found.is_new, found.backlog) == (position, True, FIRST + 3 - position)
    assert reason(await create(harness, FIRST + 4, name=b"4", cursors_max=9)) is Reason.ARGUMENT
    assert (await created(harness, 0, name=b"5", cursors_max=9)).position == FIRST


async def test_a_cursor_that_exists_keeps_its_position_when_its_owner_creates_it_again() -> None:
    harness = Harness()
    await created(harness)
    await harness.send(b"a")
    await advance(harness, FIRST + 1)
    again = await created(harness)
    assert (again.position, again.is_new) == (FIRST + 1, False)


async def test_a_cursor_only_moves_forward_and_survives_a_restart() -> None:
    harness = Harness()
    await harness.send(b"a", b"b", b"c")
    await created(harness)
    assert await advance(harness, FIRST + 2) == CursorAdvanced(FIRST + 2, 0, 0, "mine")
    before = harness.log.end
    assert await advance(harness, FIRST + 1) == CursorAdvanced(FIRST + 2, 0, 0, "mine")
    assert await advance(harness, FIRST + 2) == CursorAdvanced(FIRST + 2, 0, 0, "mine")
    assert harness.log.end == before, "nothing is written"
    for clean in (False, True):
        await harness.restart(clean=clean)
        assert (await state(harness)).position == FIRST + 2
    assert reason(await advance(harness, FIRST + 4)) is Reason.ARGUMENT
    assert (await harness.peek()).messages == [b"a", b"b", b"c"], "a cursor holds and removes nothing"


async def test_an_advance_completes_what_is_before_it_if_asked_to() -> None:
    harness = Harness()
    await harness.send(b"a", b"b", b"c")
    await harness.receive(1)
    await created(harness)
    assert await advance(harness, FIRST + 2, completes=True) == CursorAdvanced(FIRST + 2, 1, 1, "mine")
    await harness.restart()
    assert (await harness.peek()).messages == [b"a", b"c"] and (await state(harness)).position == FIRST + 2


async def test_an_advance_of_a_new_owner_completes_only_what_is_before_its_own_position() -> None:
    harness = Harness()
    await harness.send(b"a", b"b", b"c")
    await created(harness)
    await advance(harness, FIRST + 3)
    await created(harness, owner=YOU, takes_over=True)
    answer = await advance(harness, FIRST + 1, YOU, completes=True)
    assert answer == CursorAdvanced(FIRST + 3, 1, 0, "mine")
    assert (await harness.peek()).messages == [b"b", b"c"]


async def test_only_the_owner_moves_and_deletes_a_cursor() -> None:
    harness = Harness()
    await harness.send(b"a")
    await created(harness)
    assert reason(await create(harness, owner=YOU)) is Reason.CURSOR_OWNED
    assert reason(await advance(harness, FIRST + 1, YOU, completes=True)) is Reason.CURSOR_OWNED
    (answer,) = await harness.do(3, DeleteCursor(MAIN, b"c", YOU))
    assert reason(answer) is Reason.CURSOR_OWNED
    assert (await state(harness)).position == FIRST and (await harness.peek()).messages == [b"a"]


async def test_a_cursor_that_was_taken_over_is_fenced_from_its_former_owner() -> None:
    harness = Harness()
    await harness.send(b"a", b"b")
    first = await created(harness)
    await advance(harness, FIRST + 1)
    taken = await created(harness, owner=YOU, takes_over=True)
    assert (taken.position, taken.owner, taken.is_new) == (FIRST + 1, YOU, False)
    assert taken.owned_since_ms > first.owned_since_ms and taken.born_ms == first.born_ms
    assert reason(await advance(harness, FIRST + 2)) is Reason.CURSOR_OWNED
    assert await advance(harness, FIRST + 2, YOU) == CursorAdvanced(FIRST + 2, 0, 0, "mine")
    await harness.restart()
    assert reason(await advance(harness, FIRST + 2)) is Reason.CURSOR_OWNED


async def test_other_partitions_follow_what_the_first_has_decided() -> None:
    harness = Harness()
    await harness.send(b"a", b"b")
    await created(harness, born_ms=100, owned_since_ms=100)
    await advance(harness, FIRST + 1)
    found = await created(harness, owner=YOU, born_ms=100, owned_since_ms=200)
    assert (found.owner, found.position, found.is_new) == (YOU, FIRST + 1, False)
    late = await create(harness, owner=ME, born_ms=100, owned_since_ms=150)
    assert reason(late) is Reason.CURSOR_OWNED, "decided before, and overtaken"
    found = await created(harness, owner=ME, born_ms=300, owned_since_ms=300)
    assert (found.owner, found.position, found.is_new) == (ME, FIRST, True), "what is left of an earlier one"


async def test_a_cursor_is_deleted_by_its_owner_or_for_an_owner_who_came_later() -> None:
    harness = Harness()
    for owner, since_ms in ((ME, -1), (YOU, 1 << 60)):
        await created(harness)
        assert one(await harness.do(3, DeleteCursor(MAIN, b"c", owner, since_ms, 5)), CursorDeleted) == (
            CursorDeleted(True, 5)
        )
        assert one(await harness.do(3, DeleteCursor(MAIN, b"c", owner, since_ms, 5)), CursorDeleted) == (
            CursorDeleted(False, 5)
        )
        assert reason((await harness.do(3, GetCursor(MAIN, b"c")))[0]) is Reason.CURSOR_NOT_FOUND
        assert reason(await advance(harness, FIRST)) is Reason.CURSOR_NOT_FOUND


async def test_cursors_of_each_subqueue_are_listed_and_bounded_by_themselves() -> None:
    harness = Harness()
    await created(harness, name=b"a")
    await created(harness, name=b"b")
    refused = await create(harness, name=b"c")
    assert isinstance(refused, Failed) and refused.reason is Reason.QUOTA_EXCEEDED
    assert "PARTIBUS_CURSORS_MAX" in refused.description
    await created(harness, name=b"c", subqueue=DEAD_LETTER)
    listed = one(await harness.do(3, ListCursors(MAIN, 7)), CursorList)
    assert ([each.name for each in listed.cursors], listed.cookie) == ([b"a", b"b"], 7)


async def test_a_cursor_of_dead_letters_stands_at_their_head() -> None:
    harness = Harness()
    await harness.send(b"a", b"b")
    await harness.do(1, DeadLetter((await harness.receive(1, 2)).tokens[1:]))
    assert (await created(harness, LATEST, subqueue=DEAD_LETTER)).position == FIRST


@pytest.mark.parametrize("clean", [False, True])
async def test_a_cursor_that_nobody_uses_expires_and_any_advance_is_a_use(clean: bool) -> None:
    harness = Harness()
    await created(harness, expires_after_ms=16_000)
    for _ in range(4):
        await harness.advance(8_000)
        await advance(harness, FIRST)
        await harness.restart(clean=clean)
    await harness.advance(15_999)
    assert (await state(harness)).position == FIRST
    await harness.advance(1)
    assert reason((await harness.do(3, GetCursor(MAIN, b"c")))[0]) is Reason.CURSOR_NOT_FOUND


HOUR_MS = 3_600_000


@pytest.mark.parametrize("step_ms", [2 * HOUR_MS, -2 * HOUR_MS], ids=["forward", "back"])
async def test_setting_the_clock_ends_a_cursor_neither_early_nor_late(step_ms: int) -> None:
    harness = Harness()
    await created(harness, expires_after_ms=HOUR_MS)
    harness.clock.step(step_ms)
    await harness.advance(HOUR_MS - 1)
    assert (await state(harness)).position == FIRST
    await harness.advance(1)
    assert reason((await harness.do(3, GetCursor(MAIN, b"c")))[0]) is Reason.CURSOR_NOT_FOUND


@pytest.mark.parametrize("step_ms", [2 * HOUR_MS, -2 * HOUR_MS], ids=["forward", "back"])
async def test_a_cursor_is_used_also_while_the_clock_is_set(step_ms: int) -> None:
    harness = Harness()
    await created(harness, expires_after_ms=HOUR_MS)
    for sign in (1, -1):
        harness.clock.step(sign * step_ms)
        await harness.advance(HOUR_MS // 2)
        await advance(harness, FIRST)
        await harness.restart()
        await harness.advance(HOUR_MS // 2)
        assert (await state(harness)).position == FIRST
        await advance(harness, FIRST)
