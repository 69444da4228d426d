"""Reads a range of one partition in envelopes, over as many connections as it takes, and checks that nothing
is left out."""

from __future__ import annotations

from collections.abc import Iterator

from pyspark_partibus.client.connection import Connection
from pyspark_partibus.client.links import Receiver
from pyspark_partibus.client.patience import Attempts, Patience
from pyspark_partibus.client.pool import checked_out, dropped
from pyspark_partibus.client.values import Described, Symbol, UInt
from pyspark_partibus.endpoint import Endpoint
from pyspark_partibus.errors import DataLoss, PartibusError, Refused, Unavailable
from pyspark_partibus.messages.envelope import Envelope, read_envelope
from pyspark_partibus.offsets import Range

FILTER = "partibus:range"
BEYOND_HEAD = "com.microsoft:argument-error"
"""Why the broker refuses a range that does not end at the partition's head or before."""
AHEAD = 2
"""Envelopes that the broker may send before the first of them is decoded, so that decoding overlaps with the
wire."""


class RangeReader:
    """Reads ranges of one subqueue."""

    def __init__(
        self,
        endpoint: Endpoint,
        address: str,
        patience: Patience,
        *,
        generation: str,
        messages: int,
        size: int,
        undecided: bool = False,
    ) -> None:
        """generation: of the entity that the ranges belong to. messages, size: bounds of an envelope.
        undecided: the ranges may end beyond the head (AMQP contract 7.6)."""
        self._endpoint, self._address, self._patience = endpoint, address, patience
        self._generation, self._messages, self._size = generation, messages, size
        self._undecided = undecided

    def envelopes(self, whole: Range) -> Iterator[Envelope]:
        """All of the range, in order. After a lost connection it goes on behind the last envelope. Raises
        DataLoss, Refused, or Unavailable when patience is at its end."""
        position = whole.first
        attempts = Attempts(self._patience)
        while True:
            connection: Connection | None = None
            try:
                connection = checked_out(self._endpoint, self._patience.request_s, self._address)
                for envelope in self._from(connection, whole, position):
                    self._check(envelope, whole, position)
                    position = envelope.next
                    attempts.progressed()
                    yield envelope
                return
            except Refused as refused:
                if refused.condition != BEYOND_HEAD:
                    raise
                raise DataLoss(
                    f"'{self._address}' ends before {whole.behind}, where it once ended"
                ) from refused
            except Unavailable as error:
                if connection is not None:
                    dropped(connection)
                attempts.failed(error)

    def _from(self, connection: Connection, whole: Range, position: int) -> Iterator[Envelope]:
        """The rest of the range, over one link."""
        wanted: dict[str, object] = {
            "from": position,
            "to": whole.behind,
            "messages": UInt(self._messages),
            "bytes": UInt(self._size),
            "undecided": self._undecided,
        }
        receiver = Receiver(
            connection,
            self._address,
            copy=True,
            filters={FILTER: Described(Symbol(f"{FILTER}:map"), wanted)},
        )
        try:
            receiver.grant(AHEAD)
            while True:
                envelope = read_envelope(receiver.receive())
                receiver.grant(1)
                yield envelope
                if envelope.last:
                    return
        finally:
            receiver.close()

    def _check(self, envelope: Envelope, whole: Range, position: int) -> None:
        """The envelope is the next one of the range, and its messages are in order and within it."""
        if envelope.generation != self._generation:
            raise DataLoss(
                f"'{self._address}' was deleted and created again: generation {envelope.generation} "
                f"instead of {self._generation}"
            )
        if envelope.start != position or not position <= envelope.next <= whole.behind:
            raise PartibusError(
                f"an envelope of '{self._address}' covers {envelope.start} to {envelope.next} instead of "
                f"going on at {position}"
            )
        if envelope.last and envelope.next != whole.behind:
            raise PartibusError(
                f"a range of '{self._address}' ends at {envelope.next} instead of {whole.behind}"
            )
        before = position - 1
        for number in envelope.sequence_numbers:
            if not before < number < envelope.next:
                raise PartibusError(
                    f"message {number} of '{self._address}' is out of order, or outside its envelope"
                )
            before = number
