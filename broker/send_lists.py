"""The lists of a `Send`: taken apart and put together. Pure.

Only this module and the one that makes a `Send` of stored messages (`broker/messaging/sends.py`) name these
lists, so only these two change when a list is added.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any

from broker.operations.columns import COLUMNS, ColumnLists
from broker.operations.sending import Send

_COLUMNS_OF = attrgetter("columns")
_TELLS_NUMBERS = attrgetter("tells_numbers")
_OTHERS_OF = attrgetter("columns", "time_to_live_ms", "scheduled_ms", "identities", "tells_numbers")
_NONE: tuple[object, ...] = ({}, None, None, None, False)
"""All that is known of the messages of most sends, besides the messages."""

Take = Callable[[Sequence[Any]], Sequence[Any]]
"""Takes some values of a list, for example a slice."""


def at(indexes: Sequence[int]) -> Take:
    """Takes the values at these indexes."""
    return lambda values: [values[index] for index in indexes]


def part_of(send: Send, take: Take) -> Send:
    """An operation that enqueues some of the messages: those that `take` takes from each list."""
    columns, times_to_live_ms, scheduled_ms = send.columns, send.time_to_live_ms, send.scheduled_ms
    return Send(
        take(send.messages),
        None if times_to_live_ms is None else _some(times_to_live_ms, take),
        columns={name: take(values) for name, values in columns.items()} if columns else {},  # type: ignore[misc]
        scheduled_ms=None if scheduled_ms is None else _some(scheduled_ms, take),
        identities=None if send.identities is None else take(send.identities),
        tells_numbers=send.tells_numbers,
    )


def lists_of(send: Send) -> list[Sequence[Any]]:
    """All lists of a send that it has; `with_lists` makes a send of parts of them."""
    others = (send.time_to_live_ms, send.scheduled_ms, send.identities)
    return [send.messages, *send.columns.values(), *(each for each in others if each is not None)]


def with_lists(send: Send, lists: Sequence[Sequence[Any]]) -> Send:
    """An operation with these lists in place of those that `lists_of` has given for `send`."""
    messages, *rest = lists
    if not rest:
        return Send(messages, None, tells_numbers=send.tells_numbers)
    left = iter(rest)
    columns = {name: list(next(left)) for name in send.columns}
    times_to_live_ms = None if send.time_to_live_ms is None else next(left)
    scheduled_ms = None if send.scheduled_ms is None else next(left)
    return Send(
        messages,
        times_to_live_ms if any(times_to_live_ms or ()) else None,
        columns=columns,
        scheduled_ms=scheduled_ms if any(scheduled_ms or ()) else None,
        identities=None if send.identities is None else next(left),
        tells_numbers=send.tells_numbers,
    )


def merged(sends: Sequence[Send]) -> Send:
    """One operation that enqueues the messages of all, in their order."""
    if len(sends) == 1:
        return sends[0]
    columns: ColumnLists = {}
    if any(map(_COLUMNS_OF, sends)):
        for column in COLUMNS:
            if any(column.name in send.columns for send in sends):
                columns[column.name] = [
                    each
                    for send in sends
                    for each in send.columns.get(column.name) or [column.default] * len(send.messages)
                ]
    identities = [send.identities for send in sends]
    return Send(
        list(chain.from_iterable([send.messages for send in sends])),
        _joined(sends, [send.time_to_live_ms for send in sends]),
        columns=columns,
        scheduled_ms=_joined(sends, [send.scheduled_ms for send in sends]),
        # Duplicates of the messages are to be dropped: of all, or of none.
        identities=None
        if identities.count(None) == len(identities)
        else [each for some in identities for each in some or ()],
        tells_numbers=any(map(_TELLS_NUMBERS, sends)),
    )


def add_to(send: Send, more: Send) -> None:
    """Let an operation enqueue the messages of another one too, after its own."""
    if _OTHERS_OF(send) == _OTHERS_OF(more) == _NONE:
        send.messages = [*send.messages, *more.messages]
        return
    both = merged((send, more))
    send.messages, send.time_to_live_ms, send.columns = both.messages, both.time_to_live_ms, both.columns
    send.scheduled_ms, send.identities, send.tells_numbers = (
        both.scheduled_ms,
        both.identities,
        both.tells_numbers,
    )


def _some(values: Sequence[int | None], take: Take) -> Sequence[int | None] | None:
    """Some of the values; None if none of them is set."""
    taken = take(values)
    return taken if any(taken) else None


def _joined(sends: Sequence[Send], lists: Sequence[Sequence[int | None] | None]) -> list[int | None] | None:
    """The times of all messages; None if no message has one. `lists` has the times of each send."""
    if not any(lists):
        return None
    return [
        each
        for send, times in zip(sends, lists, strict=True)
        for each in times or [None] * len(send.messages)
    ]
