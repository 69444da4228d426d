"""The `$management` node of an entity: peek, renew lock, receive by sequence number, update disposition,
delete, schedule and cancel (AMQP contract 7).

A request about several partitions asks all of them. If some are down or refuse, the work of the others still
counts, and the response reports the first refusal.

Responses have camel-case keys, the status as an int, and the condition as a symbol (AMQP contract 0.4.3).
Every request gets a response, even after an unexpected error, because the official clients wait for ever.
"""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import Awaitable, Callable, Sequence, Set
from functools import partial
from typing import Any, TypeVar

import structlog

from broker.access.addresses import Address
from broker.base.clock import wall_ahead_ms
from broker.base.errors import Reason, Refused, not_found_text
from broker.frontend.connection_view import ConnectionView
from broker.frontend.links.outgoing import OutgoingLink
from broker.frontend.nodes.bodies import (
    NO_CONTENT,
    Operations,
    encoded_messages,
    expirations,
    integer,
    integers,
    lock_tokens,
    ok,
    refusal,
)
from broker.frontend.nodes.costs import FREES_MEMORY, cost_of
from broker.frontend.nodes.own_operations import (
    OWN_AT_ONCE,
    OWN_OPERATIONS,
    OWN_PAGES,
    OWN_WITHOUT_BODY,
    OwnOperations,
)
from broker.frontend.nodes.peek_paging import PeekWalks
from broker.frontend.nodes.request_node import Request, Response
from broker.frontend.nodes.rule_requests import RULE_AT_ONCE, RULE_OPERATIONS, RuleRequests
from broker.frontend.nodes.session_requests import (
    deleted_session_of,
    get_session_state,
    holder_of,
    list_sessions,
    peek_session,
    renew_session_lock,
    session_lock_ended,
    session_of,
    set_session_state,
)
from broker.frontend.nodes.stream_requests import (
    STREAM_AT_ONCE,
    STREAM_OPERATIONS,
    STREAM_PAGES,
    STREAM_WITHOUT_BODY,
    StreamRequests,
)
from broker.identifiers import LockToken, encode_session_id, partition_of
from broker.message.annotations import deliverables, joined
from broker.messaging.asking import answer_of, renew_locks
from broker.messaging.deferred import (
    Held,
    portions_of,
    receive_deferred,
    release,
    release_later,
    remove_all,
    room,
)
from broker.messaging.scheduling import cancel, check_schedules, schedule
from broker.messaging.settlement import COMPLETE, Settlement, abandon, dead_letter, defer, settle
from broker.messaging.storing import to_store
from broker.namespace.entity import Entity, ask
from broker.namespace.router import PartitionHandle
from broker.operations.deleting import Delete, Deleted
from broker.operations.interface import Answer
from broker.operations.receiving import Locked, ReceiveDeferred
from protocol.codec import Array, Int, Long, TypeCode
from protocol.values import VALUES_MAX

log = structlog.get_logger("management")

PEEK_MESSAGES_MAX = 250
DELETED_MESSAGES_MAX = 4_000
"""Per request, as in the service's largest tier (AMQP contract 7.3.11)."""
RECEIVE_AND_DELETE, PEEK_LOCK = 0, 1
RECEIVE = "com.microsoft:receive-by-sequence-number"
AT_ONCE = frozenset(
    (
        "com.microsoft:renew-lock",
        "com.microsoft:renew-session-lock",
        "com.microsoft:peek-message",
        "com.microsoft:get-session-state",
        "com.microsoft:get-message-sessions",
        *OWN_AT_ONCE,
        *STREAM_AT_ONCE,
        *RULE_AT_ONCE,
    )
)
"""Operations that read or lock, and so are no part of any transaction. The .NET client puts every request
made in a transaction scope into the transaction, whatever it asks for (AMQP contract 8.2)."""
WITHOUT_BODY = OWN_WITHOUT_BODY | STREAM_WITHOUT_BODY
"""Operations whose requests may have no body."""
PAGES = frozenset(
    (
        "com.microsoft:peek-message",
        RECEIVE,
        "com.microsoft:batch-delete-messages",
        "com.microsoft:get-message-sessions",
    )
)
"""Operations that can involve as many messages or sessions as a client asks for; each connection has one
served at a time. All others are served at once."""


class ManagementNode:
    """Serves one connection's requests about one subqueue."""

    request_bytes_max = 4 * 1024 * 1024
    request_values_max = VALUES_MAX
    serves_transactions = True

    def __init__(self, connection: ConnectionView, entity: Entity, address: Address) -> None:
        self._connection, self._entity, self._name = connection, entity, address.entity
        self._subqueue, self._path = address.subqueue, address.path
        self._peeks = PeekWalks()
        now = partial(_entity_now, connection, address.entity)
        self._own = OwnOperations(connection, address, now)
        self._streams = StreamRequests(connection, address, now)
        self._rules = RuleRequests(connection, address, now)

    def is_page(self, request: Request) -> bool:
        """Return whether the request's operation is one of `PAGES`, `OWN_PAGES` or `STREAM_PAGES`."""
        operation = str(request.properties.get("operation"))
        return operation in PAGES or operation in OWN_PAGES or operation in STREAM_PAGES

    async def respond(self, request: Request) -> Response:
        """Carry out one request. Every error becomes a response."""
        name = request.properties.get("operation")
        txn_id = None if _is_at_once(request) else request.txn_id
        try:
            right, operation = self._operation(str(name))
            self._connection.authorize(self._path, right)
            self._entity = _entity_now(self._connection, self._name)
            if request.body is None and name in WITHOUT_BODY:  # the Python client sends no empty map
                request.body = {}
            if not isinstance(request.body, dict):
                raise Refused(Reason.ARGUMENT, f"The operation '{name!s:.80}' needs a map as body.")
            self._entity.note_access(self._subqueue, self._connection.services.clock.now_ms())
            body = {str(key): value for key, value in request.body.items()}
            if name == RECEIVE and body.get("session-id") is None:  # the Go client names its link instead
                link_name = request.properties.get("associated-link-name")
                holders = self._connection.session_holders
                body["session-id"] = holders.session_of(self._entity, link_name)
            if cost := cost_of(str(name)):
                self._admit(cost, frees_memory=str(name) in FREES_MEMORY)
            if txn_id is not None:
                return await self._respond_in_transaction(txn_id, str(name), body)
            return await operation(body)
        except Refused as why:
            if txn_id is not None:
                self._connection.transactions.fail(txn_id, why)
            self._entity.meter.refused(why.reason, 1)
            return refusal(why)
        except Exception:
            log.exception("management.failed", operation=name, entity=self._entity.name)
            return refusal(
                Refused(Reason.INTERNAL, "The broker met an error it did not foresee. It has been logged.")
            )

    def _operation(self, name: str) -> tuple[str, Callable[[dict[str, Any]], Awaitable[Response]]]:
        """The right that an operation needs, and the function that carries it out. Raises
        Refused(NOT_IMPLEMENTED)."""
        found = (
            _bound(OPERATIONS, self, name)
            or _bound(OWN_OPERATIONS, self._own, name)
            or _bound(STREAM_OPERATIONS, self._streams, name)
            or _bound(RULE_OPERATIONS, self._rules, name)
        )
        if found is None:
            raise Refused(
                Reason.NOT_IMPLEMENTED, f"The operation '{name:.80}' is not supported by this version."
            )
        return found

    async def _respond_in_transaction(self, txn_id: bytes, name: str, body: dict[str, Any]) -> Response:
        """Carry out a request that is part of a transaction (AMQP contract 8.2): what it does waits for the
        commit. Raises Refused."""
        transaction = self._connection.transactions.find(txn_id)
        match name:
            case "com.microsoft:update-disposition":
                tokens = lock_tokens(body)
                transaction.settle(self._entity, self._subqueue, tokens, _settlement(body))
                self._forget(frozenset(tokens))
                return ok({})
            case "com.microsoft:cancel-scheduled-message":
                transaction.cancel(self._entity, self._to_cancel(body))
                return ok({})
            case "com.microsoft:schedule-message":
                check_schedules(self._entity, self._subqueue)
                services = self._connection.services
                collected = to_store(
                    self._entity,
                    encoded_messages(body),
                    memory=services.memory,
                    message_id=services.message_id,
                )
                return _numbers(await transaction.schedule(self._entity, collected))
            case _:
                change = self._rules.in_transaction(name, body)
                if change is None:
                    text = f"The operation '{name:.80}' is not supported in a transaction."
                    raise Refused(Reason.NOT_IMPLEMENTED, text)
                transaction.change_rules(self._entity, change)
                return ok({})

    def _admit(self, cost: int, *, frees_memory: bool = False) -> None:
        """Pay for a request. Raises Refused(THROTTLED)."""
        if self._entity.throttle is not None:
            self._entity.throttle.admit(cost, frees_memory=frees_memory)

    async def _peek(self, body: dict[str, Any]) -> Response:
        """Return one page, ordered by sequence number over all partitions; the next page begins after the
        last message seen.

        The broker builds a few pages at a time. A partition that is down is skipped, and one that is late is
        shown on a later page. If nothing else is left to show, the client is told to try again.
        """
        session_id = session_of(self._entity, self._subqueue, body)
        start = integer(body, "from-sequence-number")
        count = min(integer(body, "message-count"), PEEK_MESSAGES_MAX)
        if count <= 0:
            raise Refused(Reason.ARGUMENT, f"message-count is {count}; it must be positive.")
        self._admit(1)
        if session_id is None:
            return await self._page(max(start, 0), count)
        pages = self._connection.services.pages
        size_max = self._connection.served.settings.peek_kb_max * 1024
        return self._shown(
            await peek_session(
                self._entity, self._subqueue, session_id, max(start, 0), count, size_max, pages
            )
        )

    async def _page(self, start: int, count: int) -> Response:
        pages = self._connection.services.pages
        size_max = self._connection.served.settings.peek_kb_max * 1024
        page = await self._peeks.page(self._entity, self._subqueue, start, count, size_max, pages)
        if page.down and not page.messages:
            names = ", ".join(map(str, sorted(page.down)))
            raise Refused(
                Reason.PARTITION_UNAVAILABLE,
                f"There is nothing to show but what may be in partitions of '{self._entity.name}' that "
                f"are not available: {names}. {self._entity.outlook(page.down)}",
            )
        return self._shown(page.messages)

    def _shown(self, messages: Sequence[bytes]) -> Response:
        """The response to a peek. Its first message has been paid for with the request."""
        if not messages:
            return NO_CONTENT
        if self._entity.throttle is not None:
            self._entity.throttle.charge(len(messages) - 1)
        return ok({"messages": [{"message": each} for each in messages]})

    async def _renew_session_lock(self, body: dict[str, Any]) -> Response:
        return ok(await renew_session_lock(self._connection, self._entity, self._subqueue, body))

    async def _set_session_state(self, body: dict[str, Any]) -> Response:
        return ok(await set_session_state(self._connection, self._entity, self._subqueue, body))

    async def _get_session_state(self, body: dict[str, Any]) -> Response:
        return ok(await get_session_state(self._connection, self._entity, self._subqueue, body))

    async def _list_sessions(self, body: dict[str, Any]) -> Response:
        found = await list_sessions(self._entity, self._subqueue, body, self._connection.services.pages)
        return NO_CONTENT if found is None else ok(found)

    async def _renew_lock(self, body: dict[str, Any]) -> Response:
        until_ms = await renew_locks(self._entity, self._subqueue, lock_tokens(body))
        return expirations(until_ms, wall_ahead_ms(self._connection.services.clock))

    async def _receive_by_sequence_number(self, body: dict[str, Any]) -> Response:
        """Receive deferred messages, of any partitions (AMQP contract 7.3.4).

        Fails, and locks none, if one of them does not exist or they do not fit into one response.
        """
        self._entity.check_can_receive(self._subqueue)
        session_id = session_of(self._entity, self._subqueue, body)
        numbers = integers(body, "sequence-numbers")
        mode = integer(body, "receiver-settle-mode", PEEK_LOCK)
        if not numbers:
            raise Refused(Reason.ARGUMENT, "sequence-numbers is empty.")
        if mode not in (RECEIVE_AND_DELETE, PEEK_LOCK):
            raise Refused(
                Reason.ARGUMENT, f"receiver-settle-mode is {mode}; it is 0 to receive and delete, 1 to lock."
            )
        self._admit(len(numbers), frees_memory=True)
        if session_id is None:
            held = await receive_deferred(self._entity, self._subqueue, numbers)
        else:
            held = [await self._receive_of_session(session_id, numbers)]
        if mode == RECEIVE_AND_DELETE:
            held = await remove_all(held)
        try:
            messages = await self._prepared(held, peek_lock=mode == PEEK_LOCK)
        except BaseException:  # nobody waits for the response any more
            if mode == PEEK_LOCK:
                release(held)
            raise
        in_order = [messages[number] for number in dict.fromkeys(numbers) if number in messages]
        response = ok({"messages": in_order})
        # Removed messages are lost with their response, as with any receive-and-delete.
        response.unsent = release_later(held) if mode == PEEK_LOCK else None
        return response

    async def _prepared(self, held: Held, *, peek_lock: bool) -> dict[int, dict[str, Any]]:
        """Locked messages as a response has them, by their sequence numbers."""
        partitioned = self._entity.description.partitions > 1
        ahead_ms = wall_ahead_ms(self._connection.services.clock)
        messages: dict[int, dict[str, Any]] = {}
        for some in itertools.chain.from_iterable(portions_of(locked) for _, locked in held):
            if messages:
                await asyncio.sleep(0)  # each portion may take a millisecond
            parts = deliverables(some, peek_lock=peek_lock, partitioned=partitioned, wall_ahead_ms=ahead_ms)
            for number, payload, token in zip(some.sequence_numbers, joined(parts), some.tokens, strict=True):
                messages[number] = {"message": payload, "lock-token": uuid.UUID(bytes_le=token)}
        return messages

    async def _receive_of_session(
        self, session_id: str, numbers: list[int]
    ) -> tuple[PartitionHandle, Locked]:
        """Lock deferred messages of a session that this client holds. All are in the session's partition."""
        place = self._entity.router.number_of(session_id)
        for number in numbers:
            if partition_of(number) != place:
                text = f"Session '{session_id}' has no message with the sequence number {number}."
                raise Refused(Reason.MESSAGE_NOT_FOUND, text)
        handle = self._entity.router.of_sequence_number(numbers[0])
        receive = ReceiveDeferred(self._subqueue, numbers, bytes_max=room(numbers))
        receive.session_id = encode_session_id(session_id)
        receive.holder = holder_of(self._connection, self._entity, self._subqueue, session_id)
        locked = await ask(handle, receive)
        assert isinstance(locked, Locked), f"{locked} is not an answer to ReceiveDeferred"
        return handle, locked

    async def _update_disposition(self, body: dict[str, Any]) -> Response:
        session_id = session_of(self._entity, self._subqueue, body)
        settled, refusals = await settle(self._entity, self._subqueue, lock_tokens(body), _settlement(body))
        self._forget(frozenset(settled))
        if refusals:
            if session_id is not None and refusals[0].reason is Reason.LOCK_ENDED:
                raise session_lock_ended(session_id)
            if session_id is not None and refusals[0].reason is Reason.LOCK_LOST:
                # Refuses if the session is lost.
                holder_of(self._connection, self._entity, self._subqueue, session_id)
            raise refusals[0]
        return ok({})

    async def _batch_delete(self, body: dict[str, Any]) -> Response:
        """Remove the oldest messages of each partition, in equal numbers as long as every partition has
        enough; or the oldest of one session, which are all in one partition.

        The service does not offer this for partitioned entities (AMQP contract 7.3.11). A partition that is
        down keeps its messages; the client gets an error only if no other partition could remove any.
        """
        self._entity.check_can_receive(self._subqueue)
        session_id = deleted_session_of(self._entity, self._subqueue, body)
        count = integer(body, "message-count")
        if not 0 < count <= DELETED_MESSAGES_MAX:
            raise Refused(
                Reason.ARGUMENT, f"message-count is {count}; it must be from 1 to {DELETED_MESSAGES_MAX}."
            )
        # There is no default: a misspelt field must not delete messages that it was meant to keep.
        before_ms = integer(body, "enqueued-time-utc")
        deleted, refusals = 0, []
        numbers: Sequence[int] = range(self._entity.description.partitions)
        if session_id is not None:
            numbers = [self._entity.router.number_of(session_id)]
        starts = dict.fromkeys(numbers, 0)
        recalled_at: dict[int, int] = {}
        while starts and deleted < count:
            # There are few rounds: in the first, all partitions remove their share at once; in later ones,
            # only those that have more, or that have taken back messages kept ready for a receiver.
            for number, answer in await self._delete_shares(
                starts, recalled_at, count - deleted, before_ms, session_id
            ):
                if isinstance(answer, Refused):
                    refusals.append(answer)
                    del starts[number]
                    continue
                assert isinstance(answer, Deleted), f"{answer} is not an answer to Delete"
                deleted += answer.count
                if answer.recalls:
                    recalled_at[number] = starts[number]  # look again here, once
                elif answer.next_sequence_number is None:
                    del starts[number]
                else:
                    starts[number] = answer.next_sequence_number
        if refusals and not deleted:
            raise refusals[0]
        return ok({"message-count": Int(deleted)}) if deleted else NO_CONTENT

    async def _delete_shares(
        self,
        starts: dict[int, int],
        recalled_at: dict[int, int],
        count: int,
        before_ms: int,
        session_id: str | None,
    ) -> list[tuple[int, Answer | Refused]]:
        """Ask each of these partitions at once to delete an equal share of `count`, starting at its place;
        returns each partition's answer. A partition recalls messages that no client has seen, unless it has
        done so at this place."""
        share, more = divmod(count, len(starts))
        asked = [
            (number, share + (place < more)) for place, number in enumerate(starts) if share or place < more
        ]
        handles = self._entity.router.handles
        session = None if session_id is None else encode_session_id(session_id)

        def delete(number: int, part: int) -> Delete:
            start = starts[number]
            recalls = recalled_at.get(number) != start
            return Delete(self._subqueue, part, before_ms, start, recalls=recalls, session_id=session)

        answers = await asyncio.gather(
            *(answer_of(handles[number], delete(number, part)) for number, part in asked)
        )
        return [(number, answer) for (number, _), answer in zip(asked, answers, strict=True)]

    async def _schedule(self, body: dict[str, Any]) -> Response:
        check_schedules(self._entity, self._subqueue)
        services = self._connection.services
        numbers = await schedule(
            self._entity,
            encoded_messages(body),
            memory=services.memory,
            message_id=services.message_id,
        )
        return _numbers(numbers)

    async def _cancel_scheduled(self, body: dict[str, Any]) -> Response:
        """Remove scheduled messages. Those that are there are removed even if the response is that others are
        not."""
        refusals = await cancel(self._entity, self._to_cancel(body))
        if refusals:
            raise refusals[0]
        return ok({})

    def _to_cancel(self, body: dict[str, Any]) -> list[int]:
        """The sequence numbers of the messages to cancel. Raises Refused."""
        check_schedules(self._entity, self._subqueue)
        numbers = integers(body, "sequence-numbers")
        if not numbers:
            raise Refused(Reason.ARGUMENT, "sequence-numbers is empty.")
        return numbers

    def _forget(self, tokens: Set[LockToken]) -> None:
        """Settle messages that were delivered over links of this connection on those links, too."""
        for link in self._connection.engine.links():
            if (
                isinstance(link.context, OutgoingLink)
                and link.context.queue is self._entity
                and link.context.subqueue == self._subqueue
            ):
                link.context.forget(tokens)


OPERATIONS: Operations[ManagementNode] = {
    "com.microsoft:peek-message": ("Listen", ManagementNode._peek),
    "com.microsoft:renew-lock": ("Listen", ManagementNode._renew_lock),
    RECEIVE: ("Listen", ManagementNode._receive_by_sequence_number),
    "com.microsoft:update-disposition": ("Listen", ManagementNode._update_disposition),
    "com.microsoft:batch-delete-messages": ("Listen", ManagementNode._batch_delete),
    "com.microsoft:schedule-message": ("Send", ManagementNode._schedule),
    "com.microsoft:cancel-scheduled-message": ("Send", ManagementNode._cancel_scheduled),
    "com.microsoft:renew-session-lock": ("Listen", ManagementNode._renew_session_lock),
    "com.microsoft:set-session-state": ("Listen", ManagementNode._set_session_state),
    "com.microsoft:get-session-state": ("Listen", ManagementNode._get_session_state),
    "com.microsoft:get-message-sessions": ("Listen", ManagementNode._list_sessions),
}
S = TypeVar("S")


def _bound(
    operations: Operations[S], server: S, name: str
) -> tuple[str, Callable[[dict[str, Any]], Awaitable[Response]]] | None:
    """An operation of this object, with the right that it needs."""
    found = operations.get(name)
    return None if found is None else (found[0], partial(found[1], server))


def _entity_now(connection: ConnectionView, name: str) -> Entity:
    """Look up an entity again: it may have been deleted since the links were attached, and created anew."""
    entity = connection.served.namespace.find(name)
    if entity is None:
        raise Refused(Reason.ENTITY_NOT_FOUND, not_found_text(name))
    return entity


def _is_at_once(request: Request) -> bool:
    """Whether the request is carried out at once, even if its client made it in a transaction."""
    name, body = request.properties.get("operation"), request.body
    if name == RECEIVE and isinstance(body, dict):
        return bool(body.get("receiver-settle-mode", PEEK_LOCK) == PEEK_LOCK)
    return name in AT_ONCE


def _numbers(sequence_numbers: Sequence[int]) -> Response:
    """The response to a request to schedule messages."""
    return ok({"sequence-numbers": Array(TypeCode.LONG, [Long(number) for number in sequence_numbers])})


def _settlement(body: dict[str, Any]) -> Settlement:
    """Translate a request into a settlement of its messages (AMQP contract 7.3). Raises Refused."""
    changed = body.get("properties-to-modify")
    properties = changed if isinstance(changed, dict) else {}
    match status := body.get("disposition-status"):
        case "completed":
            return COMPLETE
        case "abandoned":
            return abandon(properties)
        case "defered":  # the protocol's own spelling
            return defer(properties)
        case "suspended":
            return dead_letter(properties, body.get("deadletter-reason"), body.get("deadletter-description"))
        case _:
            raise Refused(
                Reason.ARGUMENT,
                f"'{status}' is not a disposition-status; use completed, abandoned, defered or suspended.",
            )
