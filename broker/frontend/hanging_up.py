"""The end of a connection that the broker closes: its socket stays until the client has read why (§2.4.3).

The system discards what a client has not read yet if it sends to a closed socket. Clients that send several
frames at once would not learn why the broker closes the connection. So the broker shows that nothing more
comes, goes on reading for a moment, and discards what arrives. Runs in the event loop.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from broker.frontend.byte_stream import ByteStream

CLOSE_TIMEOUT_S = 5.0
"""How long a client may take to read the broker's last bytes once the socket is to be closed."""
LINGER_S, DISCARDED_BYTES_MAX = 1.0, 1024 * 1024
"""How long, and for how many bytes, to go on reading after the broker's last bytes. The official Python
client takes a third of a second to come to the close of a connection that is refused."""


class Ending(Protocol):
    """The connection, as it is seen here."""

    stream: ByteStream

    def retire(self) -> None:
        """Nothing more is served; only the socket stays."""


class HangUp:
    """Ends the socket of one connection, once. Owned by the event loop."""

    def __init__(self, connection: Ending) -> None:
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._discarded_bytes = 0

    def linger(self) -> None:
        """Everything is written: wait a moment until the client closes."""
        if self._timer is not None:
            return
        self._timer = self._loop.call_later(LINGER_S, self._close)
        stream = self._connection.stream
        if stream.can_write_eof() and not stream.is_closing():  # over TLS, both directions end together
            stream.write_eof()
        self._loop.call_soon(self._connection.retire)  # not now: what has caused the last bytes goes on

    def discard(self, size: int) -> None:
        """The client has sent more: end the socket if that is too much."""
        self._discarded_bytes += size
        if self._discarded_bytes > DISCARDED_BYTES_MAX:
            self._connection.stream.abort()

    def close(self) -> None:
        """Close the socket once it has taken what was written. A client that does not read cannot keep it
        open."""
        if self._timer is None:
            self._close()

    def _close(self) -> None:
        self._connection.stream.close()
        self._timer = self._loop.call_later(CLOSE_TIMEOUT_S, self._abort)

    def _abort(self) -> None:
        self._connection.stream.abort()

    def lost(self) -> None:
        """The socket is gone."""
        if self._timer is not None:
            self._timer.cancel()
