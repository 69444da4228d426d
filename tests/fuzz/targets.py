"""The fuzz targets: everything that reads bytes from a client before the client is authenticated.

A target takes one input and returns. It may raise only the refusals it documents. Each target asserts
whatever else it checks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from broker.base.errors import Refused
from broker.message import _changes
from broker.message._stored import store as native_store
from broker.message.annotations import built, constants_of, deliverables, joined
from broker.message.batch_envelope import split
from broker.message.changes import encoded_in_python, entries_in_python, laid_over_in_python, merge_changes
from broker.message.forwarded import Trail, with_trail
from broker.message.identity import identities, key_text
from broker.message.property_sizes import METADATA_BYTES_MAX
from broker.message.stored import store, store_by_rules, store_run
from broker.namespace._placing import divide
from broker.namespace.router import partition_of_key
from broker.operations.receiving import Locked
from broker.partition.changed_properties import laying_cost, laying_costs
from broker.partition.references import Reference, StoredFrame
from protocol import codec
from protocol._runs import lib
from protocol.codec import DecodeError, decode, decode_all, encode
from protocol.engine import Engine
from protocol.events import (
    ConnectionOpened,
    CreditGranted,
    DeliveriesUpdated,
    ErrorCondition,
    Event,
    LinkAttached,
    LinkDetached,
    MessagesReceived,
    MessageTooLarge,
    Outcome,
    TransactionalState,
)
from protocol.frames import BatchFrameFinder, pad_performatives
from protocol.large_input import LargeInput
from protocol.lenience import Lenience
from protocol.links import Delivery, Link
from protocol.push_size import EVENTS_MAX
from protocol.sasl import SaslServer
from protocol.sections import find_sections
from protocol.transactional_state import read_transactional_state, transactional_state
from storage.log import Position
from tests.fuzz.mutate import cuts
from tests.fuzz.whole_broker import broker
from tests.support import plain_frames, plain_sections
from tests.support.delivery_numbers import native_ids, taken
from tests.support.large_frames import enlarged, pushed, restored, without_empty

OUTPUT_BYTES_MAX = 8 * 1024 * 1024
"""A case is at most 64 KiB, so nothing in it justifies an answer of this size."""
DESCRIBED_BYTES_MAX = 1_024
MESSAGE = bytes.fromhex("005373c00701a1046d2d3131005375a003626f64")
LARGE = [bytes(10_000), bytes(30_000), bytes(150_000)]
"""What goes through proton, past it in one frame, and past it in several, if the peer's frames are usual."""


@dataclass(slots=True, frozen=True)
class Target:
    """One thing to fuzz."""

    run: Callable[[bytes, Random], None]
    frames: bool
    """Whether its input is an AMQP stream."""


# --- the engine, within a broker that does what links do ----------------------------------------------------


class Peer:
    """The least that exercises all of an engine: accepts links, grants credit, settles, and sends what credit
    allows."""

    def __init__(self, random: Random) -> None:
        self.engine = Engine(
            container_id="fuzz", max_frame_bytes=16_384, channel_max=15, idle_timeout_ms=60_000
        )
        self._random = random
        self._waiting: dict[Link, list[Delivery]] = {}
        self._sent: dict[Link, set[Delivery]] = {}
        self._ended: set[Link] = set()
        self._tags = 0
        self._output_bytes = 0

    def receive(self, data: bytes) -> None:
        """Receive a piece of the stream and react as a broker does."""
        events_max = self._random.choice((1, 3, 64, EVENTS_MAX))
        self._serve(self.engine.receive(data, events_max))
        self._write()
        while self.engine.has_more:
            self._serve(self.engine.receive(b"", events_max))
            self._write()

    def end(self) -> None:
        """The client hangs up or falls silent."""
        if self._random.random() < 0.5:
            self._serve(self.engine.receive_eof())
        else:
            self.engine.tick(1)
            self.engine.tick(1_000_000)
            self._serve(self.engine.take_events())
        self._write()
        self.engine.free()

    def _write(self) -> None:
        if written := b"".join(self.engine.output()):
            self._output_bytes += len(written)
            pad_performatives(written)
            assert self.engine._large_output._mark not in written, "a payload is in place of each reference"
            assert not self.engine._large_output.is_stuck
        assert self._output_bytes < OUTPUT_BYTES_MAX, "a small input made a large answer"
        self._serve(self.engine.take_events())

    def _serve(self, events: list[Event]) -> None:
        engine, random = self.engine, self._random
        for event in events:
            match event:
                case ConnectionOpened():
                    engine.open({codec.Symbol("product"): "fuzz"})
                    assert engine.remote_max_frame_bytes >= 0
                case LinkAttached(link=link):
                    self._attached(link)
                case LinkDetached(link=link):
                    assert link not in self._ended, "a link is detached once"
                    self._ended.add(link)
                    engine.release_link(link)
                    assert link.gone
                    self._forget(link)
                case MessagesReceived(link=link) if not link.gone and link.target_is_coordinator:
                    engine.declare(event.deliveries, b"transaction")
                    engine.grant(link, len(event.payloads))
                case MessagesReceived(link=link, transaction=TransactionalState(txn_id=txn_id)) if (
                    not link.gone
                ):
                    engine.settle_in_transaction(event.deliveries, txn_id[:32], Outcome.ACCEPTED)
                    engine.grant(link, len(event.payloads))
                case MessagesReceived(link=link) if not link.gone:
                    assert link not in self._ended and len(event.deliveries) in (0, len(event.payloads))
                    if random.random() < 0.7:
                        engine.accept(event.deliveries)
                    else:
                        self._waiting[link].extend(event.deliveries)
                    engine.grant(link, len(event.payloads))
                case MessageTooLarge(link=link) if not link.gone:
                    assert event.size > link.max_message_bytes
                    engine.reject(
                        event.deliveries, ErrorCondition("amqp:link:message-size-exceeded", "too large")
                    )
                    engine.grant(link, 1)
                case DeliveriesUpdated(link=link) if not link.gone:
                    known = [delivery for delivery in event.deliveries if delivery in self._sent[link]]
                    self._sent[link].difference_update(known)
                    state = event.transaction
                    assert (state is not None) == (event.outcome == Outcome.TRANSACTIONAL)
                    if state is not None and not event.settled:
                        engine.settle_in_transaction(
                            known, state.txn_id[:32], state.outcome, error=state.error, failed=state.failed
                        )
                        continue
                    engine.settle(
                        known,
                        0 if event.settled else min(event.outcome, Outcome.MODIFIED),
                        failed=event.failed,
                    )
                case CreditGranted(link=link) if not link.gone:
                    self._credit(link)
                case _:
                    pass

    def _attached(self, link: Link) -> None:
        engine, random = self.engine, self._random
        engine.link_properties(link)
        engine.node_capabilities(link)
        try:
            engine.source_filter(link)
        except DecodeError as error:  # a malformed filter set is refused, like every filter but one
            engine.refuse_link(link, ErrorCondition("amqp:decode-error", str(error)))
            return
        if engine.source_is_dynamic(link) or engine.target_is_dynamic(link) or random.random() < 0.1:
            engine.refuse_link(link, ErrorCondition("amqp:not-found", "no such node"))
            return
        self._waiting[link], self._sent[link] = [], set()
        engine.accept_link(
            link, max_message_bytes=4_096 if link.incoming else 0, properties={codec.Symbol("a"): 1}
        )
        if link.incoming:
            engine.grant(link, random.choice((1, 10, 1_000)))

    def _credit(self, link: Link) -> None:
        engine = self.engine
        assert engine.credit(link) >= 0
        count = min(engine.credit(link), self._random.choice((0, 1, 5)))
        tags = [(self._tags + number).to_bytes(16, "big") for number in range(count)]
        self._tags += count
        settled = link.snd_settle_mode == 1
        if self._random.random() < 0.3 and self._output_bytes < OUTPUT_BYTES_MAX // 4:
            large = self._random.choices(LARGE, k=count)
            sent = engine.send(link, tags, [MESSAGE] * count, settled, large, self._random.choice((0, 5_000)))
        else:
            sent = engine.send(link, tags, [MESSAGE] * count, settled)
        if link in self._sent:
            self._sent[link].update(sent)
        if engine.draining(link):
            engine.drained(link)
        waiting = [delivery for link, each in self._waiting.items() if not link.gone for delivery in each]
        for deliveries in self._waiting.values():
            deliveries.clear()
        engine.reject(waiting, None)
        if self._random.random() < 0.05:
            engine.close_link(link, ErrorCondition("amqp:unauthorized-access", "expired"))
            self._forget(link)

    def _forget(self, link: Link) -> None:
        self._waiting.pop(link, None)
        self._sent.pop(link, None)


def engine(data: bytes, random: Random) -> None:
    peer = Peer(random)
    if random.random() < 0.3:
        data = enlarged(data, random)
    for piece in cuts(data, random):
        peer.receive(piece)
    peer.end()


# --- the other targets --------------------------------------------------------------------------------------


def values(data: bytes, random: Random) -> None:
    """A value that can be read can be written, and reads the same again."""
    try:
        value, end = decode(data)
    except DecodeError:
        return
    assert end <= len(data)
    written = encode(value)
    assert encode(decode_all(written)) == written


def transactional(data: bytes, random: Random) -> None:
    """A transactional state that can be read can be written again unchanged."""
    state = read_transactional_state(data)
    if not state.txn_id:
        return
    assert state.bytes <= 2 * len(data), "what is kept is no larger than what came"
    written = transactional_state(
        state.txn_id, state.outcome, failed=state.failed, undeliverable_here=state.undeliverable_here
    )
    again = read_transactional_state(written)
    state.error, state.annotations = None, b""
    assert again == state


def message(data: bytes, random: Random) -> None:
    """A message is either refused or deliverable, and what is delivered is again a message. Native code
    finds, stores and hands out what the Python rules do."""
    plain_sections.compare(data)
    try:
        by_rules = store_by_rules(data, lambda: "given")
    except Refused as why:
        assert [each.description for each in store_run((data,), str).refused.values()] == [why.description]
        return
    assert native_store((data,), str)[-1] == [], "it is left to Python only if it must be refused"
    assert store(data, lambda: "given") == by_rules
    stored = by_rules.data
    key = by_rules.session_id or by_rules.partition_key or key_text(stored)
    assert divide([key, None], 16, [[stored, b""]])[0][0] == partition_of_key(key, 16)
    assert all(identities("generation", [stored], [key]))
    if random.random() < 0.3:
        stored = forwarded(stored)
    locked = Locked(1, "", [bytes(range(16))], [1], [2], [0], [None], [stored], [None], 3)
    lock = constants_of(locked_until_ms=3, partition_id=1)
    assert joined(deliverables(locked, peek_lock=False)) == [
        built(locked, 0, constants_of(partition_id=1), None)
    ]
    (payload,) = joined(deliverables(locked))
    assert payload == built(locked, 0, lock, locked.tokens[0])
    find_sections(payload)
    assert store(payload, lambda: "given").data


def forwarded(stored: bytes) -> bytes:
    """The message as it comes to another entity, if its annotations leave room for its trail."""
    try:
        return with_trail(stored, Trail(1, 2**50, "source"))
    except Refused:
        return stored


def properties(data: bytes, random: Random) -> None:
    """A map of properties is read as the rules read it, and written again it is the same map. Its head tells
    what it costs to lay it over a message."""
    before, behind = random.randbytes(random.randrange(3)), random.randbytes(random.randrange(3))
    buffer, begin, end = before + data + behind, len(before), len(before) + len(data)
    _lay(data)
    found = _changes.entries(buffer, begin, end)
    try:
        by_rules = entries_in_python(buffer, begin, end)
    except (DecodeError, AssertionError, IndexError):
        assert found is None and _changes.laid_over(buffer, begin, end, {b"a": b"\x41"}) is None
        return
    assert found == by_rules or (found is None and data[0] not in (0xC1, 0xD1))
    written = _changes.encoded(by_rules)
    assert written == encoded_in_python(by_rules)
    changes = {key: random.choice((b"\x40", b"\x41", written)) for key in by_rules if random.random() < 0.5}
    changes |= {b"new %d" % number: b"\x41" for number in range(random.choice((0, 1, 20)))}
    if found is not None:
        laid_over = _changes.laid_over(buffer, begin, end, changes)
        assert laid_over == laid_over_in_python(buffer, begin, end, changes)
    assert merge_changes(written, written) == written or _changes.total(by_rules) > METADATA_BYTES_MAX


def _lay(changed: bytes) -> None:
    """What it costs to lay changed properties over a message is what Python says. Other bytes have none."""
    reference = Reference(1, StoredFrame(Position(0)), 0, 100, 0, None)
    reference.changed = changed
    head_bytes = {b"\xc1": 3, b"\xd1": 9}.get(changed[:1])
    try:
        cost = laying_costs([reference])
    except TypeError:
        assert head_bytes is None or len(changed) < head_bytes
    else:
        assert cost == laying_cost(reference)


def batch(data: bytes, random: Random) -> None:
    """Treat each message of a batch like any other message."""
    plain_sections.compare(data)
    try:
        messages, _ = split(data)
    except Refused:
        return
    for each in messages:
        message(each, random)


def finder(data: bytes, random: Random) -> None:
    """Nothing is lost or added before a refused frame, wherever the stream was cut."""
    found, seen = BatchFrameFinder(), b""
    for part in cuts(data, random):
        seen += b"".join(piece for piece, _ in found.pieces(part))
        while found.has_more and random.random() < 0.9:
            seen += b"".join(piece for piece, _ in found.pieces(b""))
    while found.has_more:
        seen += b"".join(piece for piece, _ in found.pieces(b""))
    assert data.startswith(seen) and (seen == data or found.refusal is not None)
    offset = 8 if data.startswith(b"AMQP") else 0
    while (size := int.from_bytes(data[offset : offset + 4], "big")) >= 8 and offset + size <= len(data):
        small = random.choice((8, 60, 2_048))
        passed = lib.frames_pass(data, offset, len(data), small)
        assert passed == plain_frames.passed(data, offset, small)
        offset = max(passed, offset + size)


def large(data: bytes, random: Random) -> None:
    """With the payloads in their places, the stream is what it was, wherever it was cut."""
    header = b"" if data.startswith(b"AMQP") else b"AMQP\0\1\0\0"
    data, apart = header + enlarged(data, random), LargeInput(random.choice((512, 16_384)))
    through = b"".join(pushed(apart, piece, random.choice((256, 4_096))) for piece in cuts(data, random))
    given, seen = without_empty(data), restored(apart, through)
    assert given.startswith(seen) and len(given) - len(seen) <= 16_384 + 8


def lenience(data: bytes, random: Random) -> None:
    """Corrections do not depend on where the stream was cut, and the C walk goes as far as its Python
    reference."""
    whole, parts = Lenience(15, 16_384), Lenience(15, 16_384)
    given = b"".join(taken(parts, piece) for piece in cuts(data, random))
    assert given + parts._head == taken(whole, data) + whole._head
    offset = 8 if data.startswith(b"AMQP") else 0
    while offset < len(data):
        session = plain_frames.SessionIds(
            random.choice((0, 1, 3, 2**32 - 1)),
            random.random() < 0.5,
            random.random() < 0.1,
            random.choice((None, 0, 3, 1_000, 2**32 - 1)),
            random.choice((16, 4_096)),
        )
        reference = plain_frames.DeliveryIds([session], 16_384, work=random.choice((0, 8_190)))
        ids, table = native_ids(reference)
        reached = lib.delivery_ids_walk(ids, data, offset, len(data))
        assert reached == plain_frames.walk(reference, data, offset)
        assert (table[0].next, table[0].known) == (session.next, session.known)
        assert (ids.received, ids.named, ids.work) == (reference.received, reference.named, reference.work)
        if len(data) - reached < 8 or (size := int.from_bytes(data[reached : reached + 4], "big")) < 8:
            return
        offset = reached + size


def sasl(data: bytes, random: Random) -> None:
    """The exchange ends in success or failure, and the bytes that follow it come out unchanged."""
    server = SaslServer(lambda user, password: len(user) < 5)
    pieces = cuts(data, random)
    for number, piece in enumerate(pieces):
        step = server.receive(piece)
        assert not (step.done and step.failed)
        if step.done:
            rest = step.rest + b"".join(pieces[number + 1 :])
            assert data.endswith(rest)
        if step.done or step.failed:
            return


TARGETS: dict[str, Target] = {
    "engine": Target(engine, frames=True),
    "broker": Target(broker, frames=True),
    "values": Target(values, frames=False),
    "transactional": Target(transactional, frames=False),
    "message": Target(message, frames=False),
    "properties": Target(properties, frames=False),
    "batch": Target(batch, frames=False),
    "finder": Target(finder, frames=True),
    "large": Target(large, frames=True),
    "lenience": Target(lenience, frames=True),
    "sasl": Target(sasl, frames=True),
}


def describe(data: bytes) -> str:
    """An input in a form to paste into a test, or its size if it is too long for that."""
    return f"bytes.fromhex({data.hex()!r})" if len(data) < DESCRIBED_BYTES_MAX else f"{len(data)} bytes"
