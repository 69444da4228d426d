"""Sends the messages of one HTTP request, with the code that links use, and waits for their outcome (HTTP
contract 4.2)."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from broker.base.errors import Reason, Refused
from broker.base.strict_json import RepeatedField, without_repetition
from broker.http.broker_properties import set_properties
from broker.http.header_values import checked_properties
from broker.message.batch_envelope import BATCH_BYTES_MAX, batch_too_large, enveloped
from broker.message.plain_message import PlainMessage, encoded
from broker.messaging.sending import TAKEN_APART_AT_ONCE, Sending, too_large
from broker.namespace.entity import Entity
from broker.throttle.memory_mark import Memory

_DECODER = json.JSONDecoder(object_pairs_hook=without_repetition)
_SPACES = re.compile(r"[ \t\r\n]*")


class _Request:
    """The sender of one request (`broker.messaging.sending.UnderWay`), and its outcome."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self.outcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def took(self, size: int, messages: int) -> None:
        self._memory.under_way += messages

    def finished_with(self, size: int, messages: int) -> None:
        self._memory.under_way -= messages

    def fail(self) -> None:
        error = sys.exception()
        assert error is not None, "called where an exception is handled"
        self._end(error)

    def stored(self, receipts: Sequence[None], count: int) -> None:
        self._end(None)

    def refused(self, receipts: Sequence[None], why: Refused, count: int) -> None:
        self._end(why)

    def _end(self, why: BaseException | None) -> None:
        if self.outcome.done():  # nobody waits any more
            return
        if why is None:
            self.outcome.set_result(None)
        else:
            self.outcome.set_exception(why)


class RequestSends:
    """Sends for all requests of the HTTP port."""

    def __init__(self, memory: Memory, message_id: Callable[[], str]) -> None:
        """`message_id` makes ids for messages that have none."""
        self._memory, self._message_id = memory, message_id

    async def send(self, entity: Entity, message: PlainMessage) -> None:
        """Send one message; returns once it is durable. Raises Refused."""
        payload = encoded(message)
        limit, refusal = size_limit(entity, is_batch=False)
        if len(payload) > limit:
            raise refusal(len(payload))
        request, sending = self._begin(entity)
        sending.send((payload,), (None,))
        await request.outcome

    async def send_batch(self, entity: Entity, body: bytes) -> None:
        """Send the messages of a JSON array, all or none; returns once they are durable. Raises Refused."""
        batch = bytearray()
        limit, refusal = size_limit(entity, is_batch=True)
        for count, message in enumerate(_batch(body), start=1):
            batch += enveloped(encoded(message))
            if len(batch) > limit:  # now: encoded, small messages are many times as large
                raise refusal(len(batch))
            if not count % TAKEN_APART_AT_ONCE:
                await asyncio.sleep(0)
        if not batch:
            raise Refused(Reason.ARGUMENT, "The batch holds no message.")
        request, sending = self._begin(entity)
        for _ in sending.send_batch(bytes(batch), (None,)):
            await asyncio.sleep(0)
        await request.outcome

    def _begin(self, entity: Entity) -> tuple[_Request, Sending[None]]:
        request = _Request(self._memory)
        sending = Sending(
            entity,
            request,
            stored=request.stored,
            refused=request.refused,
            memory=self._memory,
            message_id=self._message_id,
        )
        return request, sending


def size_limit(entity: Entity, *, is_batch: bool) -> tuple[int, Callable[[int], Refused]]:
    """How large a message or a batch may be, in bytes, and what refuses a larger one, given its size. A batch
    as JSON may be no larger than it may be when it is encoded."""
    if is_batch and entity.message_bytes_max > BATCH_BYTES_MAX:
        return BATCH_BYTES_MAX, batch_too_large
    return entity.message_bytes_max, partial(too_large, entity)


def _batch(body: bytes) -> Iterator[PlainMessage]:
    """The messages of a batch, each decoded when it is asked for. Raises Refused."""
    count = 0
    try:
        for item in _items(body.decode("utf-8-sig")):
            yield _message(item)
            count += 1
    except Refused as why:
        raise Refused(why.reason, f"Message {count} of the batch: {why.description}") from why
    except RepeatedField as error:
        raise Refused(Reason.ARGUMENT, f"Message {count} of the batch: {error}.") from error
    except (ValueError, RecursionError) as error:
        raise Refused(
            Reason.ARGUMENT, f"The body is not a JSON array of messages: {error}, behind message {count}."
        ) from error


def _items(text: str) -> Iterator[Any]:
    """The elements of a JSON array, one after the other. Raises ValueError."""
    at = _behind_spaces(text, 0)
    if text[at : at + 1] != "[":
        raise ValueError("it does not begin with '['")
    at = _behind_spaces(text, at + 1)
    separator = "" if text[at : at + 1] == "]" else ","
    while separator == ",":
        item, at = _DECODER.raw_decode(text, at)
        yield item
        at = _behind_spaces(text, at)
        separator = text[at : at + 1]
        if separator == ",":
            at = _behind_spaces(text, at + 1)
    if text[at : at + 1] != "]" or _behind_spaces(text, at + 1) < len(text):
        raise ValueError(f"expected ',' or ']' at character {at}")


def _behind_spaces(text: str, at: int) -> int:
    found = _SPACES.match(text, at)
    assert found is not None, "it matches no space, too"
    return found.end()


def _message(item: object) -> PlainMessage:
    if not isinstance(item, dict):
        raise Refused(Reason.ARGUMENT, "A message of a batch must be a JSON object.")
    if unknown := item.keys() - {"Body", "BrokerProperties", "UserProperties"}:
        raise Refused(
            Reason.ARGUMENT,
            f"'{min(unknown):.80}' is not known; a message of a batch has Body, BrokerProperties and "
            "UserProperties.",
        )
    body, properties = item.get("Body") or "", item.get("UserProperties") or {}
    if not isinstance(body, str) or not isinstance(properties, dict):
        raise Refused(Reason.ARGUMENT, "Body must be text, and UserProperties an object.")
    message = PlainMessage(body.encode(errors="replace"), properties=checked_properties(properties))
    given = item.get("BrokerProperties")
    if given is not None:
        set_properties(given, message)
    return message
