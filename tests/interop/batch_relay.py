"""A relay between the broker and a client that cannot mark a Service Bus batch: forwards all bytes and sets
one field.

    client ── transfer, message-format 0 ──▶ relay ── the same transfer, message-format 0x80013700 ──▶ broker
    client ◀──────────────────────────────── all as it comes ──────────────────────────────────────── broker

Every transfer of the connection is marked (§2.7.5, AMQP contract 4.5), so use a connection through the relay
for batches only. The field grows by four bytes: a transfer that already fills its frame would become too
long.
"""

from __future__ import annotations

import select
import socket
import struct
import threading
from types import TracebackType

from protocol.codec import UInt, decode
from tests.support.raw_amqp import BATCH_FORMAT, TRANSFER, WAIT_S, frame

_TRANSFER_BEGINS = b"\x00\x53\x14"
_PROTOCOL_HEADER_BYTES = 8


class BatchRelay:
    """Listens on its own loopback port, for one connection.

    A thread serves it until either side closes, or both are silent for `WAIT_S`.
    """

    def __init__(self, broker_port: int) -> None:
        self._broker_port = broker_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(WAIT_S)
        self._thread = threading.Thread(target=self._serve, name="batch-relay", daemon=True)
        self.port = int(self._listener.getsockname()[1])
        self.marked = 0
        """Number of transfers so far."""

    def __enter__(self) -> BatchRelay:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.join(WAIT_S)
        self._listener.close()

    def _serve(self) -> None:
        client = self._listener.accept()[0]
        with client, socket.create_connection(("127.0.0.1", self._broker_port), WAIT_S) as broker:
            begun = b""  # the incomplete last frame from the client
            while ready := select.select([client, broker], [], [], WAIT_S)[0]:
                for side in ready:
                    data = side.recv(256 * 1024)
                    if not data:
                        return
                    if side is broker:
                        client.sendall(data)
                    else:
                        whole, begun = self._mark(begun + data)
                        broker.sendall(whole)

    def _mark(self, data: bytes) -> tuple[bytes, bytes]:
        """Whole frames in the data, with transfers marked, and the rest."""
        whole, offset = bytearray(), 0
        while len(data) - offset >= _PROTOCOL_HEADER_BYTES:
            is_header = data.startswith(b"AMQP", offset)
            end = offset + (
                _PROTOCOL_HEADER_BYTES if is_header else struct.unpack_from(">I", data, offset)[0]
            )
            if end > len(data):
                break
            whole += data[offset:end] if is_header else self._marked(data[offset:end])
            offset = end
        return bytes(whole), data[offset:]

    def _marked(self, one: bytes) -> bytes:
        """The frame, with the batch's message-format if it begins a delivery."""
        body = one[4 * one[4] :]
        if one[5] != 0 or not body.startswith(_TRANSFER_BEGINS):
            return one
        performative, end = decode(body)
        fields = performative.value
        assert fields[3] == 0, "the client says 0 in each transfer"
        fields[3] = UInt(BATCH_FORMAT)
        self.marked += 1
        return frame(TRANSFER, fields, body[end:], int.from_bytes(one[6:8], "big"))
