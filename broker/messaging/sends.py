"""The lists of a `Send`: made from stored messages, taken apart and put together. Pure.

No other module on the way from a client to a partition names these lists, so another one (a column, for
example) is added here and nowhere else in this package.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from broker.entities.descriptions import MAIN
from broker.identifiers import encode_session_id
from broker.message.identity import identities
from broker.message.stored import StoredRun
from broker.namespace.entity import Entity
from broker.operations import COLUMNS, SESSION_ID, ColumnLists, Send

Take = Callable[[Sequence[Any]], Sequence[Any]]
"""Takes some values of a list, for example a slice."""


def send_of(run: StoredRun, queue: Entity) -> Send:
    """An operation that enqueues all messages of a run."""
    return Send(
        run.data,
        run.times_to_live_ms,
        columns=_columns_of(run) if queue.requires_session(MAIN) else {},
        scheduled_ms=run.scheduled_enqueue_times_ms,
        identities=_identities_of(run, queue),
    )


def _identities_of(run: StoredRun, queue: Entity) -> list[bytes] | None:
    """The messages' identities, if the queue detects duplicates (AMQP contract 10.5)."""
    if not queue.description.settings.requires_duplicate_detection:
        return None
    none = [None] * len(run.data)
    sessions, keys = run.session_ids or none, run.partition_keys or none
    if not queue.requires_session(MAIN):  # else an empty session-id is a session too
        sessions = [session or None for session in sessions]
    either = [
        key or None if session is None else session for session, key in zip(sessions, keys, strict=True)
    ]
    return identities(queue.description.generation, run.data, either)


def _columns_of(run: StoredRun) -> ColumnLists:
    """The columns of messages in a queue that requires sessions: the session of each."""
    session_ids = run.session_ids or [None] * len(run.data)  # those without a session are refused
    encoded = {each: encode_session_id(each or "") for each in set(session_ids)}
    return {SESSION_ID: [encoded[each] for each in session_ids]}


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
    )


def merged(sends: Sequence[Send]) -> Send:
    """One operation that enqueues the messages of all."""
    if len(sends) == 1:
        return sends[0]
    messages = [message for send in sends for message in send.messages]
    columns: ColumnLists = {}
    for column in COLUMNS:
        if any(column.name in send.columns for send in sends):
            columns[column.name] = [
                each
                for send in sends
                for each in send.columns.get(column.name) or [column.default] * len(send.messages)
            ]
    return Send(
        messages,
        _joined(sends, lambda send: send.time_to_live_ms),
        columns=columns,
        scheduled_ms=_joined(sends, lambda send: send.scheduled_ms),
        identities=[each for send in sends for each in send.identities or ()] if _detect(sends) else None,
    )


def _detect(sends: Sequence[Send]) -> bool:
    """Whether duplicates of the messages are to be dropped: of all, or of none."""
    return any(send.identities is not None for send in sends)


def _some(values: Sequence[int | None], take: Take) -> Sequence[int | None] | None:
    """Some of the values; None if none of them is set."""
    taken = take(values)
    return taken if any(taken) else None


def _joined(
    sends: Sequence[Send], times_of: Callable[[Send], Sequence[int | None] | None]
) -> list[int | None] | None:
    """The times of all messages; None if no message has one."""
    if all(times_of(send) is None for send in sends):
        return None
    return [each for send in sends for each in times_of(send) or [None] * len(send.messages)]
