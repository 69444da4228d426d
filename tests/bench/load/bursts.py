"""What one client may have the broker do to tens of thousands of messages at once: take them in a few
batches, refuse too large a batch, settle them with one disposition, and let all their locks end together.

Each step is for a queue of one partition that holds messages (`backlogs.py`) and knows nothing of the meter.
Its client is a bare socket, so that nothing but the broker's own bounds divides the work.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping

from protocol.codec import Array, TypeCode, decode
from tests.support import raw_amqp as raw
from tests.support.amqp_messages import APPLICATION, DATA, PROPERTIES, VALUE, section
from tests.support.broker_process import Addresses
from tests.support.raw_amqp import RawConnection

MESSAGES, LOCKS = 90_000, 100_000
"""Messages that are sent and settled together, and locks that end together."""
BATCHES = 6
"""How many batches the messages come in: none may have more than 16,384."""
TINY = section(DATA, section(VALUE, None))
"""A message in a batch: 9 bytes."""
FRAME_BYTES = 128 * 1024
RENEWED_AT_ONCE = 10_000
LOOK_EVERY_S = 0.25
STEP_WITHIN_S = 60.0
PER_LINK = 5_000
"""A link gets no more messages before it settles some."""
_SENDER, _ASKING, _ANSWERS, _FIRST_RECEIVER = range(4)
"""Handles."""


def large_batches(addresses: Addresses, address: str) -> None:
    """Send MESSAGES tiny messages in a few deliveries and, in front of them, all of them in one, which is
    refused."""
    with _connected(addresses) as client:
        client.attach_sender(_SENDER, address)
        for number, messages in enumerate([MESSAGES] + [MESSAGES // BATCHES] * BATCHES):
            batch = TINY * messages
            for start in range(0, len(batch), FRAME_BYTES):
                more = start + FRAME_BYTES < len(batch)
                fields = raw.transfer_fields(_SENDER, number, batch=True, more=more)
                client.send_frame(raw.TRANSFER, fields, batch[start : start + FRAME_BYTES])
        outcomes: dict[int, int] = {}
        while len(outcomes) <= BATCHES:
            answer = client.read_until(raw.DISPOSITION, within_s=STEP_WITHIN_S)
            first, last = answer.field(1), answer.field(2)
            for each in range(first, (first if last is None else last) + 1):
                outcomes[each] = int(answer.field(4).descriptor)
        assert outcomes.pop(0) == raw.REJECTED and {*outcomes.values()} == {raw.ACCEPTED}, outcomes


def settle_at_once(addresses: Addresses, address: str) -> None:
    """Receive MESSAGES messages, and complete all of them with one disposition."""
    with _connected(addresses) as client:
        _receive(client, address, MESSAGES)
        fields = raw.disposition_fields(raw.RECEIVER, 0, MESSAGES - 1, False, raw.outcome(raw.ACCEPTED))
        client.send_frame(raw.DISPOSITION, fields)
        client.read_dispositions(MESSAGES, STEP_WITHIN_S)


def locks_end(addresses: Addresses, address: str, count: int) -> None:
    """Lock LOCKS messages, or all if there are fewer, renew the locks in a few requests so that they end at
    about the same time, and wait until none is locked."""
    with _connected(addresses) as client:
        tags = _receive(client, address, min(LOCKS, count))
        _attach_management(client, address)
        tokens = [uuid.UUID(bytes_le=tag) for tag in tags]
        asked = 0
        for start in range(0, len(tokens), RENEWED_AT_ONCE):
            body = {"lock-tokens": Array(TypeCode.UUID, tokens[start : start + RENEWED_AT_ONCE])}
            _ask(client, asked, "com.microsoft:renew-lock", body)
            asked += 1
        while _ask(client, asked, "partibus:count-messages", {})["locked"]:
            asked += 1
            time.sleep(LOOK_EVERY_S)


def _connected(addresses: Addresses) -> RawConnection:
    client = RawConnection(addresses.amqp_port)
    client.open(max_frame_bytes=2 * FRAME_BYTES)
    client.begin(window=1_000_000)
    return client


def _receive(client: RawConnection, address: str, count: int) -> list[bytes]:
    """Lock so many messages over several links of a session; gives their delivery tags."""
    credits = [min(PER_LINK, count - place) for place in range(0, count, PER_LINK)]
    for handle in range(len(credits)):
        client.attach_receiver(_FIRST_RECEIVER + handle, address)
    for handle, credit in enumerate(credits, _FIRST_RECEIVER):
        client.send_frame(raw.FLOW, raw.flow_fields(handle, 0, credit))
    return [client.read_until(raw.TRANSFER, within_s=STEP_WITHIN_S).field(2) for _ in range(count)]


def _attach_management(client: RawConnection, address: str) -> None:
    client.attach_sender(_ASKING, f"{address}/$management")
    client.attach_receiver(_ANSWERS, f"{address}/$management")


def _ask(client: RawConnection, number: int, operation: str, body: Mapping[str, object]) -> dict[str, int]:
    """Make the request with this number; gives the body of the answer."""
    client.send_frame(raw.FLOW, raw.flow_fields(_ANSWERS, number, 1))
    request = (
        section(PROPERTIES, [f"request-{number}"])
        + section(APPLICATION, {"operation": operation})
        + section(VALUE, body)
    )
    client.send_frame(raw.TRANSFER, raw.transfer_fields(_ASKING, number, settled=True), request)
    payload, more = b"", True
    while more:
        found = client.read_until(raw.TRANSFER, within_s=STEP_WITHIN_S)
        payload, more = payload + found.payload, bool(found.field(5))
    place = 0
    while True:
        described, place = decode(payload, place)
        if int(described.descriptor) == VALUE:
            return dict(described.value or {})
