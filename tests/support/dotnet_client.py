"""A client that writes frames in the shapes of `Azure.Messaging.ServiceBus`, the official client for .NET,
which does not run here (AMQP contract 1.2, 2, 4 to 8: the columns and remarks about .NET).

Other clients do not do what follows. It logs in with MSSBCBS. Its token is for the namespace, in lower case,
while its audience names the entity. Addresses begin with a slash and are percent-encoded, except those of
`$management`. Requests to `$cbs` and `$management` are settled, and so are the responses. Each link has an
AMQP session of its own, except with transactions, where all links share one. Abandoning says nothing of a
failed delivery, and dead-lettering without a reason has no error.
"""

from __future__ import annotations

import itertools
import time
import urllib.parse
import uuid
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from protocol.codec import Described, Symbol, Timestamp, UByte, UInt, ULong, decode, encode
from tests.support import raw_amqp as raw
from tests.support.sas import sas_token

HOST = "localhost"
TIMEOUT = {Symbol("com.microsoft:timeout"): UInt(60_000)}
WINDOW, CREDIT = 5_000, 50
HEADER, DELIVERY, ANNOTATIONS, PROPERTIES, APPLICATION, DATA, VALUE = 0x70, 0x71, 0x72, 0x73, 0x74, 0x75, 0x77
COORDINATOR, DECLARE, DISCHARGE, DECLARED = 0x30, 0x31, 0x32, 0x33


def described(code: int, value: Any) -> Described:
    return Described(ULong(code), value)


def message(
    body: bytes,
    message_id: str | None = None,
    session_id: str | None = None,
    application_properties: Mapping[str, Any] | None = None,
    **annotations: Any,
) -> bytes:
    """A message as this client encodes it. Annotations are named without `x-opt-`, with underscores."""
    sections = [described(HEADER, [])]
    if annotations:
        keys = {Symbol(f"x-opt-{name.replace('_', '-')}"): value for name, value in annotations.items()}
        sections.append(described(ANNOTATIONS, keys))
    properties = [message_id, *[None] * 9, session_id] if session_id is not None else [message_id]
    application = described(APPLICATION, dict(application_properties or {}))
    sections += [described(PROPERTIES, properties), application, described(DATA, body)]
    return b"".join(map(encode, sections))


def batch(*messages: bytes, message_id: str | None = None, session_id: str | None = None) -> bytes:
    """The envelope of a batch: the first message's ids, and each message in a data section."""
    properties = [message_id, *[None] * 9, session_id] if session_id is not None else [message_id]
    return encode(described(PROPERTIES, properties)) + b"".join(
        encode(described(DATA, each)) for each in messages
    )


def sections_of(payload: bytes) -> dict[int, Any]:
    """The sections of a message with one section of each kind, by code."""
    found, offset = {}, 0
    while offset < len(payload):
        section, offset = decode(payload, offset)
        found[int(section.descriptor)] = section.value
    return found


@dataclass(slots=True)
class Delivered:
    """A delivery as it came."""

    link: Link
    number: int
    tag: bytes
    settled: bool
    payload: bytes

    @property
    def lock_token(self) -> uuid.UUID:
        return uuid.UUID(bytes_le=self.tag)

    @property
    def body(self) -> bytes:
        return bytes(sections_of(self.payload)[DATA])

    @property
    def annotations(self) -> dict[str, Any]:
        return {str(key): value for key, value in sections_of(self.payload)[ANNOTATIONS].items()}

    @property
    def application_properties(self) -> dict[str, Any]:
        return dict(sections_of(self.payload).get(APPLICATION, {}))

    @property
    def delivery_count(self) -> int:
        header = sections_of(self.payload)[HEADER]
        return int(header[4] or 0) if len(header) > 4 else 0


@dataclass(slots=True)
class Link:
    """An attached link."""

    channel: int
    handle: int
    attach: raw.Frame
    """The broker's."""
    received: int = 0


class DotNetClient:
    """A connection with its links."""

    def __init__(self, port: int, *, shares_session: bool = False) -> None:
        """shares_session: all links of entities use one AMQP session, as with transactions over several
        entities."""
        self._raw = raw.RawConnection(port)
        self._shared = 1 if shares_session else None
        self._channels = itertools.count(2)
        self._handles = itertools.count()
        self._requests = itertools.count(1)
        self._sent: dict[int, int] = {}
        self._nodes: dict[str, tuple[Link, Link, str]] = {}
        self._delivered: defaultdict[tuple[int, int], deque[raw.Frame]] = defaultdict(deque)
        """Deliveries that nobody has asked for yet, by the broker's channel and handle."""
        init = [Symbol("MSSBCBS"), b"", HOST]
        self._raw.log_in(raw.SASL_HEADER + raw.sasl_frame(raw.SASL_INIT, init))
        self._raw.send(raw.AMQP_HEADER, raw.frame(raw.OPEN, [uuid.uuid4().hex, HOST, UInt(65_536)]))
        assert self._raw.read_bytes(8) == raw.AMQP_HEADER
        self._raw.read_until(raw.OPEN)
        self._begin(0)
        if shares_session:
            self._begin(1)
        self._node("$cbs", 0)

    def __enter__(self) -> DotNetClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._raw.socket.close()

    # --- links

    def authorize(self, entity: str) -> None:
        """Put a token: of the namespace, for the entity."""
        expires_s = int(time.time()) + 1_200
        application = {
            "operation": "put-token",
            "type": "servicebus.windows.net:sastoken",
            "name": f"sb://{HOST}/{entity}",
            "expiration": Timestamp(expires_s * 1_000),
        }
        token = sas_token(f"amqps://{HOST}/", expires_at_s=expires_s)
        answer = sections_of(self._request("$cbs", application, token))
        assert answer[APPLICATION]["status-code"] in (200, 202), answer

    def sender(self, entity: str) -> Link:
        """A sender, with the credit that the broker grants."""
        source = described(raw.SOURCE, [f"{entity}-{uuid.uuid4()}"])
        link = self._attach(entity, raw.SENDER, source, described(raw.TARGET, [address_of(entity)]))
        self._read_until(raw.FLOW)
        return link

    def receiver(self, entity: str, *, session: Any = ..., credit: int = CREDIT) -> Link:
        """A receiver in peek-lock mode, with credit. `session` is the value of its session filter."""
        source: list[Any] = [address_of(entity)]
        if session is not ...:
            source += [None] * 6 + [{Symbol("com.microsoft:session-filter"): session}]
        target = described(raw.TARGET, [f"{entity}-{uuid.uuid4()}"])
        link = self._attach(entity, raw.RECEIVER, described(raw.SOURCE, source), target)
        self.grant(link, credit)
        return link

    def coordinator(self) -> Link:
        """The link that declares and discharges transactions."""
        assert self._shared is not None
        source = described(raw.SOURCE, [uuid.uuid4().hex, *[None] * 5, Symbol("move")])
        capabilities = [Symbol("amqp:local-transactions"), Symbol("amqp:multi-txns-per-ssn")]
        link = self._attach("", raw.SENDER, source, described(COORDINATOR, [capabilities]))
        self._read_until(raw.FLOW)
        return link

    def grant(self, link: Link, credit: int) -> None:
        fields = [UInt(0), UInt(WINDOW), UInt(0), UInt(WINDOW)]
        fields += [UInt(link.handle), UInt(link.received), UInt(credit)]
        self._raw.send_frame(raw.FLOW, fields, channel=link.channel)

    def _begin(self, channel: int) -> int:
        fields = [None, UInt(0), UInt(WINDOW), UInt(WINDOW), UInt(0xFFFF_FFFF)]
        self._raw.send_frame(raw.BEGIN, fields, channel=channel)
        self._read_until(raw.BEGIN)
        return channel

    def _attach(
        self,
        entity: str,
        role: bool,
        source: Described,
        target: Described,
        *,
        channel: int | None = None,
        settled: bool = False,
        properties: Mapping[Symbol, Any] | None = None,
    ) -> Link:
        if channel is None:
            channel = self._begin(next(self._channels)) if self._shared is None else self._shared
        handle = next(self._handles)
        modes = [UByte(1), None] if settled else [UByte(0), UByte(1)] if role else [None, None]
        count = None if role else UInt(0)
        name = f"{uuid.uuid4()}:{entity}"
        fields = [name, UInt(handle), role, *modes, source, target, None, None, count]
        fields += [None, None, None, dict(properties or TIMEOUT)]
        self._raw.send_frame(raw.ATTACH, fields, channel=channel)
        answer = self._read_until(raw.ATTACH)
        if answer.field(5) is None and answer.field(6) is None:
            raise AssertionError(f"{entity} is refused: {self._read_until(raw.DETACH)}")
        return Link(channel, handle, answer)

    # --- messages

    def send(
        self, link: Link, payload: bytes, *, batched: bool = False, txn: bytes | None = None
    ) -> Described:
        """Send a message, or a batch, and wait for its outcome."""
        state = described(raw.TRANSACTIONAL, [txn]) if txn is not None else None
        self._transfer(link, payload, batched=batched, state=state)
        answer = self._read_until(raw.DISPOSITION)
        assert answer.field(0) is raw.RECEIVER and answer.field(3) is True, answer
        return answer.field(4)  # type: ignore[no-any-return]

    def _transfer(
        self,
        link: Link,
        payload: bytes,
        *,
        batched: bool = False,
        settled: bool = False,
        state: Any = None,
    ) -> None:
        number = self._sent.get(link.channel, 0)
        self._sent[link.channel] = number + 1
        fields = raw.transfer_fields(link.handle, number, batch=batched, settled=settled)
        fields += [None, state, None, None, True]  # batchable
        self._raw.send_frame(raw.TRANSFER, fields, payload, link.channel)

    def receive(self, link: Link, count: int) -> list[Delivered]:
        """The next deliveries of a link, each of one frame."""
        found = []
        for _ in range(count):
            waiting = self._delivered[link.attach.channel, link.attach.field(1)]
            while not waiting:
                self._keep(self._raw.read_until(raw.TRANSFER))
            frame = waiting.popleft()
            assert frame.field(3) == 0 and not frame.field(5), frame
            link.received += 1
            tag = bytes(frame.field(2))
            found.append(Delivered(link, frame.field(1), tag, bool(frame.field(4)), frame.payload))
        return found

    def settle(self, delivered: Delivered, state: Described, *, txn: bytes | None = None) -> Described:
        """Settle a message, and wait for the answer."""
        if txn is not None:
            state = described(raw.TRANSACTIONAL, [txn, state])
        number = UInt(delivered.number)
        fields = [raw.RECEIVER, number, number, False, state, True]  # batchable
        self._raw.send_frame(raw.DISPOSITION, fields, channel=delivered.link.channel)
        answer = self._read_until(raw.DISPOSITION)
        assert (answer.field(0), answer.field(1), answer.field(3)) == (raw.SENDER, number, True), answer
        return answer.field(4)  # type: ignore[no-any-return]

    def _read_until(self, code: int) -> raw.Frame:
        """The next frame of this performative; keeps deliveries that come before it."""
        while (frame := self._raw.read_until(code, raw.TRANSFER)).code != code:
            self._keep(frame)
        return frame

    def _keep(self, frame: raw.Frame) -> None:
        self._delivered[frame.channel, frame.field(0)].append(frame)

    # --- transactions

    def declare(self, coordinator: Link) -> bytes:
        state = self.send(coordinator, encode(described(VALUE, described(DECLARE, [None]))))
        assert state.descriptor == DECLARED
        return bytes(state.value[0])

    def discharge(self, coordinator: Link, txn: bytes, *, fail: bool) -> Described:
        return self.send(coordinator, encode(described(VALUE, described(DISCHARGE, [txn, fail]))))

    # --- requests

    def ask(
        self,
        entity: str,
        operation: str,
        body: Mapping[str, Any],
        link: Link | None = None,
        *,
        txn: bytes | None = None,
    ) -> tuple[int, Any, dict[str, Any]]:
        """A request to the entity's `$management`: status, body and the response's application properties."""
        path = f"{entity}/$management"
        if path not in self._nodes:
            kind = {Symbol("com.microsoft:entity-type"): "entity-mgmt", **TIMEOUT}
            self._node(path, self._begin(next(self._channels)), kind)
        application = {"operation": operation, "com.microsoft:server-timeout": UInt(60_000)}
        if link is not None:
            application["associated-link-name"] = link.attach.field(0)
        answer = sections_of(self._request(path, application, dict(body), txn))
        properties = {str(key): value for key, value in answer[APPLICATION].items()}
        assert type(properties["statusCode"]) is int, "an AMQP int"
        if "errorCondition" in properties:
            assert isinstance(properties["errorCondition"], Symbol)
        return properties["statusCode"], answer.get(VALUE), properties

    def _node(self, path: str, channel: int, properties: Mapping[Symbol, Any] | None = None) -> None:
        reply_to = uuid.uuid4().hex
        mine, theirs = described(raw.TARGET, [path]), described(raw.SOURCE, [path])
        requests = self._attach(
            path, raw.SENDER, described(raw.SOURCE, []), mine, channel=channel, settled=True,
            properties=properties,
        )  # fmt: skip
        self._read_until(raw.FLOW)
        responses = self._attach(
            path, raw.RECEIVER, theirs, described(raw.TARGET, [reply_to]), channel=channel, settled=True,
            properties=properties,
        )  # fmt: skip
        self.grant(responses, CREDIT)
        self._nodes[path] = requests, responses, reply_to

    def _request(
        self, path: str, application: Mapping[str, Any], body: Any, txn: bytes | None = None
    ) -> bytes:
        """Send a settled request; gives the response, which comes settled, with the request's id."""
        requests, responses, reply_to = self._nodes[path]
        request_id = f"request{next(self._requests)}"
        parts: Sequence[Described] = (
            described(PROPERTIES, [request_id, None, None, None, reply_to]),
            described(APPLICATION, dict(application)),
            described(VALUE, body),
        )
        state = described(raw.TRANSACTIONAL, [txn]) if txn is not None else None
        self._transfer(requests, b"".join(map(encode, parts)), settled=True, state=state)
        (response,) = self.receive(responses, 1)
        assert response.settled
        assert sections_of(response.payload)[PROPERTIES][5] == request_id
        return response.payload


def address_of(entity: str) -> str:
    """An entity's address: the path of a URI."""
    return "/" + urllib.parse.quote(entity)
