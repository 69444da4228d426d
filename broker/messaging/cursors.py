"""Cursors of an entity, over all its partitions (AMQP contract 7.6.4).

Each partition keeps its own part of a cursor, durably. The first partition decides who owns it. So a cursor
is created there first, and deleted there last: whatever is interrupted can be repeated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from broker.base.errors import Refused
from broker.messaging.asking import answer_of
from broker.namespace.entity import Entity, ask
from broker.operations.interface import Answer, Operation
from broker.operations.streams import (
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


@dataclass(slots=True)
class CursorParts:
    """A cursor: its part in each partition, by number."""

    first: CursorState
    parts: dict[int, CursorState] = field(default_factory=dict)


async def ask_each(entity: Entity, operations: Mapping[int, Operation]) -> dict[int, Answer]:
    """Ask partitions, all at once. Raises the first refusal; the others have done their part all the same."""
    handles = entity.router.handles
    asked = (answer_of(handles[number], operation) for number, operation in operations.items())
    answers = dict(zip(operations, await asyncio.gather(*asked), strict=True))
    found: dict[int, Answer] = {}
    for number, answer in answers.items():
        if isinstance(answer, Refused):
            raise answer
        found[number] = answer
    return found


async def create_cursor(entity: Entity, create: CreateCursor, begins: Mapping[int, int]) -> CursorParts:
    """Create a cursor, or give one that exists to its owner again. `begins` has the partitions in which it
    begins somewhere else than `create` says. Raises Refused."""

    first = await ask(entity.router.handles[0], replace(create, begin=begins.get(0, create.begin)))
    assert isinstance(first, CursorState), f"{first} is not an answer to CreateCursor"
    followed = replace(create, born_ms=first.born_ms, owned_since_ms=first.owned_since_ms)
    others = {
        number: replace(followed, begin=begins.get(number, create.begin))
        for number in range(1, entity.description.partitions)
    }
    return _parts(first, await ask_each(entity, others))


async def get_cursor(entity: Entity, subqueue: str, name: bytes) -> CursorParts:
    """Where a cursor stands. Raises Refused."""
    answers = await ask_each(
        entity, {number: GetCursor(subqueue, name) for number in range(entity.description.partitions)}
    )
    first = answers.pop(0)
    assert isinstance(first, CursorState), f"{first} is not an answer to GetCursor"
    return _parts(first, answers)


async def advance_cursor(
    entity: Entity, subqueue: str, name: bytes, owner: bytes, positions: Mapping[int, int], completes: bool
) -> dict[int, CursorAdvanced]:
    """Move a cursor forward in some partitions. Raises Refused; other partitions may have moved."""
    answers = await ask_each(
        entity,
        {
            number: AdvanceCursor(subqueue, name, owner, position, completes)
            for number, position in positions.items()
        },
    )
    moved: dict[int, CursorAdvanced] = {}
    for number, answer in answers.items():
        assert isinstance(answer, CursorAdvanced), f"{answer} is not an answer to AdvanceCursor"
        moved[number] = answer
    return moved


async def list_cursors(entity: Entity, subqueue: str) -> list[CursorParts]:
    """All cursors of a subqueue. Raises Refused."""
    answers = await ask_each(
        entity, {number: ListCursors(subqueue) for number in range(entity.description.partitions)}
    )
    found: dict[bytes, CursorParts] = {}
    for number, answer in answers.items():
        assert isinstance(answer, CursorList), f"{answer} is not an answer to ListCursors"
        for part in answer.cursors:
            if number == 0:
                found[part.name] = CursorParts(part)
            if part.name in found:
                found[part.name].parts[number] = part
    return list(found.values())


async def delete_cursor(entity: Entity, subqueue: str, name: bytes, owner: bytes) -> bool:
    """Delete a cursor; returns whether there was one. Raises Refused."""
    first, others = entity.router.handles[0], range(1, entity.description.partitions)
    listed = await ask(first, ListCursors(subqueue))
    assert isinstance(listed, CursorList), f"{listed} is not an answer to ListCursors"
    owned = next((each for each in listed.cursors if each.name == name), None)
    if owned is not None and owned.owner == owner:
        await ask_each(
            entity,
            {number: DeleteCursor(subqueue, name, owner, owned.owned_since_ms) for number in others},
        )
    deleted = await ask(first, DeleteCursor(subqueue, name, owner))
    assert isinstance(deleted, CursorDeleted), f"{deleted} is not an answer to DeleteCursor"
    return deleted.existed


def _parts(first: CursorState, others: Mapping[int, Answer]) -> CursorParts:
    cursor = CursorParts(first, {0: first})
    for number, part in others.items():
        assert isinstance(part, CursorState), f"{part} is not the state of a cursor"
        cursor.parts[number] = part
    return cursor
