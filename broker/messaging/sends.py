"""Makes a `Send` of stored messages, with all its lists. Pure.

`broker/send_lists.py` takes them apart and puts them together. No other module on the way from a client to a
partition names these lists, so only these two change when a list is added (for a new column, for example).
"""

from __future__ import annotations

from broker.identifiers import encode_session_id
from broker.message.identity import identities
from broker.message.stored import StoredRun
from broker.namespace.entity import Entity
from broker.operations.columns import DESTINATION, SESSION_ID, ColumnLists
from broker.operations.sending import Send


def send_of(run: StoredRun, entity: Entity) -> Send:
    """An operation that enqueues all messages of a run."""
    return Send(
        run.data,
        run.times_to_live_ms,
        columns=_columns_of(run, entity) if entity.keeps_sessions else {},
        scheduled_ms=run.scheduled_enqueue_times_ms,
        identities=_identities_of(run, entity)
        if entity.description.settings.requires_duplicate_detection
        else None,
    )


def _identities_of(run: StoredRun, entity: Entity) -> list[bytes]:
    """The messages' identities, for a queue that detects duplicates (AMQP contract 10.5)."""
    none = [None] * len(run.data)
    sessions, keys = run.session_ids or none, run.partition_keys or none
    if not entity.sends_need_session:  # else an empty session-id is a session too
        sessions = [session or None for session in sessions]
    either = [
        key or None if session is None else session for session, key in zip(sessions, keys, strict=True)
    ]
    return identities(entity.description.generation, run.data, either)


def _columns_of(run: StoredRun, entity: Entity) -> ColumnLists:
    """The columns of messages whose sessions are kept: the session of each."""
    session_ids = run.session_ids or [None] * len(run.data)
    if not any(each is not None for each in session_ids) and not entity.sends_need_session:
        return {}
    encoded = {each: None if each is None else encode_session_id(each) for each in set(session_ids)}
    return {SESSION_ID: [encoded[each] for each in session_ids]}


def transfer_of(send: Send, destination: str) -> Send:
    """The messages of a send, to be kept until they are transferred to another entity. Everything else of
    the send is found in them again then."""
    name = destination.encode()
    return Send(send.messages, None, columns={DESTINATION: [name] * len(send.messages)})
