"""Messages in transactions of ten: how many a second are sent and committed, and how long each takes.

Each connection has one transaction at a time: a declare, then ten messages of one key and the discharge in
one write, then their outcomes (§4). Knows neither figures nor rounds.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from cproton_ffi import ffi, lib

from tests.bench.load.client import LoadConnection, describe_outcome, drive, encode_message, sender_link
from tests.bench.load.endpoint import LoadError
from tests.bench.load.traffic import BODY_BYTES, DONE_WITHIN_S, PACED_EVERY_S, READY_WITHIN_S, Target
from tests.support.transactions import DECLARED, declare, discharge

MESSAGES = 10
"""In each transaction."""
TRANSACTIONAL = 0x34
"""The state of a message within a transaction (§4.5.8)."""


def committed_per_s(target: Target, count: int, connections: int) -> float:
    """Send `count` messages in transactions, on all connections at once; gives how many a second were
    committed. The messages stay in the queue."""
    agenda = Agenda(count // MESSAGES)
    with _opened(target, agenda, connections) as opened:
        agenda.begin()
        drive(opened, lambda: agenda.is_done, DONE_WITHIN_S)
        return count // MESSAGES * MESSAGES / (time.perf_counter() - agenda.began_s)


def paced_latencies_s(target: Target, count: int, per_s: float, connections: int) -> list[float]:
    """Send `count` messages in transactions, `per_s` messages a second; gives the seconds of each transaction
    from when its declare was due to the outcome of the commit. The messages stay in the queue."""
    agenda = Agenda(count // MESSAGES, per_s / MESSAGES)
    with _opened(target, agenda, connections) as opened:
        agenda.begin()
        drive(opened, lambda: agenda.is_done, DONE_WITHIN_S, write_every_s=PACED_EVERY_S)
        return agenda.latencies_s


class Agenda:
    """The transactions that all connections make together: whichever is free takes the next one, as soon as
    it is due. With a rate, each has its time; otherwise all are due at once."""

    def __init__(self, count: int, per_s: float | None = None) -> None:
        self.began_s = 0.0
        self.latencies_s: list[float] = []
        self._count = count
        self._per_s = per_s
        self._taken: int | None = None
        """How many transactions were begun; None before `begin`."""

    def begin(self) -> None:
        """The first transaction is due now. Called once."""
        self._taken, self.began_s = 0, time.perf_counter()

    @property
    def is_done(self) -> bool:
        return len(self.latencies_s) == self._count

    def take(self) -> float | None:
        """Take the next transaction; gives the time at which it was due, None if none is due by now."""
        if self._taken is None or self._taken == self._count:
            return None
        now_s = time.perf_counter()
        due_s = now_s if self._per_s is None else self.began_s + self._taken / self._per_s
        if due_s > now_s:
            return None
        self._taken += 1
        return due_s

    def note_commit(self, due_s: float) -> None:
        """A transaction that was due at that time is committed."""
        self.latencies_s.append(time.perf_counter() - due_s)


class TransactionalSender:
    """Makes one transaction after the other on its connection. Any refusal raises LoadError."""

    def __init__(self, connection: LoadConnection, payload: bytes, agenda: Agenda) -> None:
        self._payload, self._agenda = payload, agenda
        self._due_s: float | None = None
        """When the transaction under way was due; None between transactions."""
        self._txn_id = b""
        """Of the transaction whose messages have not been sent yet."""
        self._tag_number = 0
        session = connection.new_session()
        self._link = sender_link(connection, session, f"bench-transactional-{id(self)}")
        self._control = sender_link(connection, session, f"bench-coordinator-{id(self)}")
        coordinator = lib.pn_link_target(self._control)
        lib.pn_terminus_set_type(coordinator, lib.PN_COORDINATOR)
        capability = b"amqp:local-transactions"
        pointer = ffi.from_buffer(capability)
        lib.pn_data_put_symbol(lib.pn_terminus_capabilities(coordinator), (len(capability), pointer))
        for link in (self._link, self._control):
            lib.pn_link_open(link)
            connection.add_link(link, self)

    @property
    def is_ready(self) -> bool:
        """Whether the broker attached both links and granted credit."""
        return bool(lib.pn_link_credit(self._link) > 0 and lib.pn_link_credit(self._control) > 0)

    def replenish(self) -> None:
        if self._txn_id and lib.pn_link_credit(self._link) >= MESSAGES:
            for _ in range(MESSAGES):
                self._send(self._link, self._payload, self._txn_id)
            self._send(self._control, discharge(self._txn_id, False))
            self._txn_id = b""
        if self._due_s is None and self.is_ready:
            self._due_s = self._agenda.take()
            if self._due_s is not None:
                self._send(self._control, declare())

    def _send(self, link: Any, payload: bytes, txn_id: bytes = b"") -> None:
        tag = struct.pack(">Q", self._tag_number)
        self._tag_number += 1
        delivery = lib.pn_delivery(link, (len(tag), ffi.from_buffer(tag)))
        if txn_id:
            state = lib.pn_disposition_data(lib.pn_delivery_local(delivery))
            lib.pn_data_put_list(state)
            lib.pn_data_enter(state)
            lib.pn_data_put_binary(state, (len(txn_id), ffi.from_buffer(txn_id)))
            lib.pn_data_exit(state)
            lib.pn_delivery_update(delivery, TRANSACTIONAL)
        lib.pn_link_send(link, ffi.from_buffer(payload), len(payload))
        lib.pn_link_advance(link)

    def on_delivery(self, delivery: Any) -> None:
        state = lib.pn_delivery_remote_state(delivery)
        if lib.pn_delivery_link(delivery) == self._link:
            if state != TRANSACTIONAL:
                raise LoadError(f"a message was answered with {describe_outcome(delivery, state)}")
        elif state == DECLARED:
            self._txn_id = _declared_id(delivery)
        elif state == lib.PN_ACCEPTED and self._due_s is not None:
            self._agenda.note_commit(self._due_s)
            self._due_s = None
        else:
            raise LoadError(f"the coordinator answered with {describe_outcome(delivery, state)}")
        lib.pn_delivery_settle(delivery)


def _declared_id(delivery: Any) -> bytes:
    """The transaction's id in the state `declared` (§4.5.7)."""
    state = lib.pn_disposition_data(lib.pn_delivery_remote(delivery))
    lib.pn_data_rewind(state)
    lib.pn_data_next(state)
    lib.pn_data_enter(state)
    lib.pn_data_next(state)
    found = lib.pn_data_get_binary(state)
    return bytes(ffi.buffer(found.start, found.size))


@contextmanager
def _opened(target: Target, agenda: Agenda, connections: int) -> Iterator[list[LoadConnection]]:
    """Connections whose senders are ready; each has a key of its own."""
    with ExitStack() as stack:
        opened = [stack.enter_context(target.connect()) for _ in range(connections)]
        senders = [
            TransactionalSender(connection, encode_message(BODY_BYTES, b"%d" % key), agenda)
            for key, connection in enumerate(opened)
        ]
        drive(opened, lambda: all(sender.is_ready for sender in senders), READY_WITHIN_S)
        yield opened
