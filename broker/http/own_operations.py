"""Our own operations over HTTP (HTTP contract 4.7): `POST /$partibus/{operation}/{path}` with JSON.

They are those of `$management` (AMQP contract 7.5), carried out by the same code, and settled by lock tokens.
This file knows rights, requests and answers.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any, Final
from urllib.parse import unquote

from aiohttp import web
from pydantic import BaseModel, ValidationError
from pydantic.alias_generators import to_camel

from broker.access.addresses import Address, BadAddress, parse_address
from broker.base.errors import Reason, Refused
from broker.base.strict_json import RepeatedField, read_json
from broker.entities.descriptions import MAIN
from broker.frontend.nodes.own_operations import NEVER_MS, STATES
from broker.frontend.nodes.session_requests import deleted_session_of
from broker.http.bodies import Bodies, gather
from broker.http.header_values import checked_properties
from broker.http.openapi import DESCRIPTION, OwnOperation, describe
from broker.http.own_models import (
    Abandon,
    AbandonAnswer,
    CountAnswer,
    DeleteAnswer,
    DeliverAnswer,
    Named,
    Nothing,
    ProgressAnswer,
    Purge,
    Redrive,
    RedriveAnswer,
    Reschedule,
    RescheduleAnswer,
)
from broker.http.refusals import HttpRefusal, counted, found
from broker.http.rights import Rights
from broker.messaging.housekeeping import (
    REDRIVES_MAX,
    Progress,
    check_redrive,
    delete_exactly,
    purge,
    redrive,
    redrive_exactly,
)
from broker.messaging.scheduling import check_schedules, reschedule
from broker.messaging.settlement import DELAY, abandon, settle
from broker.namespace.entity import Entity
from broker.namespace.namespace import Namespace
from broker.operations.message_states import SubqueueCounts
from broker.throttle.memory_mark import Memory

PREFIX: Final = "/$partibus/"
BODY_BYTES_MAX = 256 * 1024
"""Thousands of sequence numbers or lock tokens fit."""
JSON_TYPE: Final = "application/json; charset=utf-8"


OWN_OPERATIONS: Final = {
    "delete-messages": OwnOperation(
        "Delete exactly these messages, in any state but locked.",
        Named,
        DeleteAnswer,
        ("Listen",),
        frees_memory=True,
    ),
    "purge-messages": OwnOperation(
        "Delete messages by their state, age and session.",
        Purge,
        ProgressAnswer,
        ("Listen",),
        frees_memory=True,
    ),
    "redrive-messages": OwnOperation(
        "Send dead letters to their queue again.", Redrive, RedriveAnswer, ("Listen", "Send")
    ),
    "abandon-messages": OwnOperation(
        "Give locked messages back, to be offered again after a delay.",
        Abandon,
        AbandonAnswer,
        ("Listen",),
        0,
    ),
    "reschedule-messages": OwnOperation(
        "Give scheduled messages another time.", Reschedule, RescheduleAnswer, ("Send",)
    ),
    "deliver-scheduled-messages": OwnOperation(
        "Enqueue scheduled messages now.", Named, DeliverAnswer, ("Send",)
    ),
    "count-messages": OwnOperation("Count the messages by state.", Nothing, CountAnswer, ("Listen",)),
}


def is_own(raw_path: str) -> bool:
    """Whether a request with this path is for this module."""
    return unquote(raw_path[: len(PREFIX) + 2]).casefold().startswith(PREFIX)


class OwnRequests:
    """Answers requests for our own operations. One per namespace."""

    def __init__(self, namespace: Namespace, rights: Rights, memory: Memory, bodies: Bodies) -> None:
        """`bodies` are those of the whole port."""
        self._namespace, self._rights, self._memory = namespace, rights, memory
        self._bodies = bodies
        self._description = json.dumps(describe(OWN_OPERATIONS, PREFIX)).encode()
        self._pages = asyncio.Semaphore(REDRIVES_MAX)
        """Held while dead letters are in memory to be sent again."""
        self._handlers: dict[str, Callable[[Entity, Address, Any], Awaitable[BaseModel]]] = {
            "delete-messages": self._delete,
            "purge-messages": self._purge,
            "redrive-messages": self._redrive,
            "abandon-messages": self._abandon,
            "reschedule-messages": self._reschedule,
            "deliver-scheduled-messages": self._deliver,
            "count-messages": self._count,
        }

    async def handle(self, request: web.Request) -> web.Response:
        """Serve a request whose path begins with PREFIX. Raises HttpRefusal and Refused."""
        _, _, name, *rest = request.rel_url.raw_path.split("/", 3)
        name, path = unquote(name).casefold(), "".join(rest)
        if name == DESCRIPTION and request.method in ("GET", "HEAD"):
            return web.Response(body=self._description, headers={"Content-Type": JSON_TYPE})
        claim = self._rights.authenticate(request)
        operation = OWN_OPERATIONS.get(name)
        if operation is None:
            raise HttpRefusal(404, 0, f"There is no operation '{name:.80}'; see {PREFIX}{DESCRIPTION}.")
        if request.method != "POST":
            raise HttpRefusal(405, 0, "An operation needs a POST.", {"Allow": "POST"})
        try:
            address = parse_address("/" + path)
        except BadAddress as error:
            raise HttpRefusal(400, 40000, str(error)) from error
        if address.node:
            raise HttpRefusal(400, 40000, f"Messages are not kept at '{address.path}'.")
        for right in operation.rights:
            self._rights.require_right(claim, address.path, right)
        body = await self._body(request, operation.request)
        entity = found(self._namespace, address.entity)
        with counted(entity):
            if entity.throttle is not None and operation.cost:
                entity.throttle.admit(operation.cost, frees_memory=operation.frees_memory)
            answer = await self._handlers[name](entity, address, body)
        text = answer.model_dump_json(by_alias=True, exclude_none=True)
        return web.Response(body=text.encode(), headers={"Content-Type": JSON_TYPE})

    async def _body(self, request: web.Request, model: type[BaseModel]) -> BaseModel:
        with self._bodies.read() as buffer:
            text = await gather(request, buffer, BODY_BYTES_MAX)
        try:
            body = model.model_validate_json(text or b"{}")
            read_json(bytes(text or b"{}").decode())  # the model takes the last of two fields
        except ValidationError as error:
            problems = "; ".join(
                f"{'.'.join(map(str, each['loc'])) or 'body'}: {each['msg']}" for each in error.errors()[:5]
            )
            raise HttpRefusal(400, 40000, f"The request is wrong: {problems}.") from error
        except RepeatedField as error:
            raise HttpRefusal(400, 40000, f"The request is wrong: {error}.") from error
        return body

    # --- operations -----------------------------------------------------------------------------------------

    async def _delete(self, entity: Entity, address: Address, body: Named) -> DeleteAnswer:
        entity.check_can_receive(address.subqueue)
        done = await delete_exactly(entity, address.subqueue, body.sequence_numbers)
        return DeleteAnswer(deleted=done.done, locked=done.locked, missing=done.missing)

    async def _purge(self, entity: Entity, address: Address, body: Purge) -> ProgressAnswer:
        entity.check_can_receive(address.subqueue)
        states = sorted({STATES[name] for name in body.states or STATES})
        progress = await purge(
            entity,
            address.subqueue,
            states,
            _before_ms(body.enqueued_before),
            body.message_count,
            body.from_sequence_number,
            deleted_session_of(entity, address.subqueue, {"session-id": body.session_id}),
        )
        return ProgressAnswer(**_progress(progress))

    async def _redrive(self, entity: Entity, address: Address, body: Redrive) -> RedriveAnswer:
        check_redrive(entity, address.subqueue)
        self._memory.admit(1)
        if body.sequence_numbers is not None:
            if others := body.model_fields_set - {"sequence_numbers"}:
                raise Refused(Reason.ARGUMENT, f"{to_camel(min(others))} does not go with sequenceNumbers.")
            done = await redrive_exactly(entity, address.subqueue, body.sequence_numbers, lambda: self._pages)
            return RedriveAnswer(
                message_count=len(done.done),
                redriven=done.done,
                sequence_numbers=done.new_numbers,
                missing=done.missing,
            )
        progress = await redrive(
            entity,
            address.subqueue,
            body.dead_letter_reason,
            _before_ms(body.enqueued_before),
            body.message_count,
            body.from_sequence_number,
            lambda: self._pages,
        )
        return RedriveAnswer(**_progress(progress))

    async def _abandon(self, entity: Entity, address: Address, body: Abandon) -> AbandonAnswer:
        changes: dict[str, Any] = checked_properties(body.properties)
        if body.delay_milliseconds:
            changes[DELAY] = body.delay_milliseconds
        tokens = [token.bytes_le for token in body.lock_tokens]
        settled, refusals = await settle(entity, address.subqueue, tokens, abandon(changes))
        for why in refusals:
            if why.reason not in (Reason.LOCK_LOST, Reason.LOCK_ENDED):
                raise why
        done = frozenset(settled)
        return AbandonAnswer(
            abandoned=[token for token in body.lock_tokens if token.bytes_le in done],
            lost=[token for token in body.lock_tokens if token.bytes_le not in done],
        )

    async def _reschedule(self, entity: Entity, address: Address, body: Reschedule) -> RescheduleAnswer:
        at_ms = int(body.scheduled_enqueue_time.timestamp() * 1_000)
        done, missing = await _at(entity, address, body.sequence_numbers, at_ms)
        return RescheduleAnswer(rescheduled=done, missing=missing)

    async def _deliver(self, entity: Entity, address: Address, body: Named) -> DeliverAnswer:
        done, missing = await _at(entity, address, body.sequence_numbers, 0)
        return DeliverAnswer(delivered=done, missing=missing)

    async def _count(self, entity: Entity, address: Address, body: Nothing) -> CountAnswer:
        entity.check_can_receive(address.subqueue)
        await self._namespace.runtime(address.entity)
        counts = entity.counts_of((address.subqueue,)).get(address.subqueue, SubqueueCounts())
        kept_ready = entity.kept_ready.get(address.subqueue, 0)
        return CountAnswer(
            active=counts.active,
            locked=max(0, counts.locked - kept_ready),  # some locks may have just run out
            deferred=counts.deferred,
            scheduled=counts.scheduled,
            size_in_bytes=counts.bytes,
        )


async def _at(
    entity: Entity, address: Address, numbers: list[int], at_ms: int
) -> tuple[list[int], list[int]]:
    """Have scheduled messages enqueued at this time, in wall time. Returns those that are, and the others."""
    entity.check_can_send(MAIN)
    check_schedules(entity, address.subqueue)
    numbers = list(dict.fromkeys(numbers))
    missing = frozenset(await reschedule(entity, numbers, at_ms))
    return [each for each in numbers if each not in missing], [each for each in numbers if each in missing]


def _before_ms(moment: datetime | None) -> int:
    return NEVER_MS if moment is None else int(moment.timestamp() * 1_000)


def _progress(progress: Progress) -> dict[str, Any]:
    """The fields of an answer to a walk. Raises the first refusal if nothing was done and nothing is left to
    do."""
    if progress.refusals and not progress.count and progress.next_sequence_number is None:
        raise next(iter(progress.refusals.values()))
    return {
        "message_count": progress.count,
        "next_sequence_number": progress.next_sequence_number,
        "unavailable_partitions": sorted(progress.refusals) or None,
    }
