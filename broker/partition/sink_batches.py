"""Commits the batches of sinks in the same commit as their messages (AMQP contract 7.6.6, 7.6.7). Pure."""

from __future__ import annotations

from broker.base.errors import Reason, Refused
from broker.identifiers import ClientId
from broker.operations.streams import GetSinkBatch, SendSinkBatch, SinkBatch, SinkBatchSent
from broker.partition.keyed_entries import ENTRY_BYTES
from broker.partition.sending import Sending
from broker.partition.sink_ledger import Committed, SinkLedger, key_of
from broker.partition.workspace import Workspace


class SinkBatches:
    """Commits the batches of sinks, with their messages. Owned by the state machine."""

    __slots__ = ("_sending", "_space")

    def __init__(self, space: Workspace, sending: Sending) -> None:
        self._space, self._sending = space, sending

    @property
    def _ledger(self) -> SinkLedger:
        return self._space.messages.states.of(SinkLedger)

    def send(self, client: ClientId, operation: SendSinkBatch) -> None:
        """Enqueue the messages of a batch and note the batch, unless it or a later one was committed before.
        Raises Refused."""
        space, key, send = self._space, key_of(operation.sink), operation.send
        stored = self._ledger.entries.get(key)
        if stored is not None and operation.batch <= stored.batch:
            everything = list(range(len(send.messages)))
            space.answer(client, SinkBatchSent(0, everything, False, stored.batch, operation.cookie))
            return
        if stored is None:
            self._check_room(operation.sinks_max)
        first, known = self._sending.send_new(space.cycle, space.description, send)
        before = None if stored is None else stored.batch
        # Undone with all sends on a full disk, even if no message is new: a duplicate may be one of a message
        # that is undone.
        committed = Committed(operation.batch, before, space.cycle.wall_ms)
        space.record(self._ledger.record_of(key, committed), with_send=True)
        space.answer(client, SinkBatchSent(first, known, True, operation.batch, operation.cookie))

    def get(self, client: ClientId, get: GetSinkBatch) -> None:
        """Say what a sink has committed. Raises Refused."""
        stored = self._ledger.entries.get(key_of(get.sink))
        if stored is None and get.sinks_max is not None:
            self._check_room(get.sinks_max)
        self._space.answer(client, SinkBatch(None if stored is None else stored.batch, get.cookie))

    def _check_room(self, sinks_max: int) -> None:
        """A sink that is not in the ledger yet has room there. Raises Refused."""
        space, count = self._space, len(self._ledger.entries)
        if count >= sinks_max:
            raise Refused(
                Reason.QUOTA_EXCEEDED,
                f"{count} sinks have written to partition {space.number} of '{space.description.name}'; "
                f"{sinks_max} are the maximum (PARTIBUS_SINKS_MAX).",
            )
        space.check_room(ENTRY_BYTES)
