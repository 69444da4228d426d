"""One blocking AMQP connection: proton's C core does framing, flow and links; this file moves its bytes over
a socket.

The only file that opens sockets, and with `links.py` the only one that names `cproton_ffi`. A task of Spark
is a plain blocking loop, so there are no threads and no event loop: whoever waits (`run_until`) moves the
bytes. Proton's states are looked at instead of its events, because a connection has a few links. Every wait
has a deadline. TLS is Python's own, since proton's may be built without. Works in the process that made it
only.
"""

from __future__ import annotations

import select
import socket
import ssl
import time
from collections.abc import Callable
from typing import Any

from cproton_ffi import ffi, lib

from pyspark_partibus.client.values import encode
from pyspark_partibus.endpoint import Endpoint
from pyspark_partibus.errors import Busy, OptionError, Refused, TimedOut, Unavailable

CONTAINER = b"pyspark-partibus"
CHUNK_BYTES = 256 * 1024
FRAME_BYTES_MAX = 2 * 1024 * 1024
"""Holds an envelope of the largest size with its columns, so that the broker sends it without copying it."""
UNSENT_BYTES_MAX = 1024 * 1024
"""While this much waits for the socket, no more is taken from proton."""
TRANSIENT = frozenset(
    (
        "com.microsoft:server-busy",
        "com.microsoft:timeout",
        "amqp:connection:forced",
        "amqp:internal-error",
        "amqp:link:detach-forced",
    )
)
"""Conditions after which a client tries again (AMQP contract 9.2)."""


class Connection:
    """An open connection with one AMQP session."""

    def __init__(self, endpoint: Endpoint, timeout_s: float) -> None:
        """Connect and log in. Raises Unavailable, or Refused if the broker does not let us in."""
        self.endpoint, self.timeout_s = endpoint, timeout_s
        self._unsent = bytearray()
        self._ended = False
        self._socket = _connected(endpoint, timeout_s)
        self._pn, self._transport = lib.pn_connection(), lib.pn_transport()
        self.session = lib.pn_session(self._pn)
        try:
            self._log_in()
        except BaseException:
            self.close()
            raise

    def _log_in(self) -> None:
        endpoint = self.endpoint
        lib.pn_connection_set_container(self._pn, CONTAINER)
        lib.pn_connection_set_hostname(self._pn, endpoint.host.encode())
        lib.pn_transport_set_max_frame(self._transport, FRAME_BYTES_MAX)
        if endpoint.mechanism == "PLAIN" and endpoint.username is not None:
            lib.pn_connection_set_user(self._pn, endpoint.username.encode())
            lib.pn_connection_set_password(self._pn, (endpoint.password or "").encode())
        sasl = lib.pn_sasl(self._transport)
        lib.pn_sasl_allowed_mechs(sasl, endpoint.mechanism.encode())
        lib.pn_sasl_set_allow_insecure_mechs(sasl, True)  # TLS, if there is any, is outside of proton
        lib.pn_transport_bind(self._transport, self._pn)
        lib.pn_connection_open(self._pn)
        lib.pn_session_open(self.session)
        deadline = time.monotonic() + self.timeout_s
        try:
            self.run_until(
                lambda: lib.pn_session_state(self.session) & lib.PN_REMOTE_ACTIVE, "logging in", deadline
            )
        except Unavailable as error:
            if lib.pn_sasl_outcome(sasl) in (lib.PN_SASL_AUTH, lib.PN_SASL_PERM):
                raise Refused(
                    "logging in", "amqp:unauthorized-access", "the broker refused the credentials"
                ) from error
            raise

    # --- moving bytes -------------------------------------------------------------------------------------

    def run_until(self, done: Callable[[], Any], what: str, deadline: float) -> None:
        """Move bytes until `done()` is true. Raises TimedOut after the deadline (monotonic seconds), and
        what ended the connection if it ends before."""
        while True:
            self.check()
            if done():
                self._send_some()
                return
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise TimedOut(f"{what}: no answer from {self.endpoint.address} in time")
            self._move(remaining)

    def is_alive(self) -> bool:
        """Whether the broker has not ended the connection; looks at what has arrived, and waits for
        nothing."""
        try:
            self._move(0)
            self.check()
        except (Unavailable, Refused):
            return False
        return True

    def _move(self, timeout_s: float) -> None:
        """Send what can be sent, and receive what has arrived; wait for either, at most `timeout_s`."""
        if self._ended:
            raise Unavailable(f"the connection to {self.endpoint.address} is closed")
        next_tick_ms = lib.pn_transport_tick(self._transport, int(time.monotonic() * 1000))
        if next_tick_ms:
            timeout_s = min(timeout_s, max(0.0, next_tick_ms / 1000 - time.monotonic()))
        self._send_some()
        pending = isinstance(self._socket, ssl.SSLSocket) and self._socket.pending()
        if not pending:
            waiting = [self._socket] if self._unsent else []
            readable, writable, _ = select.select([self._socket], waiting, [], timeout_s)
            if writable:
                self._send_some()
            if not readable:
                return
        self._receive_some()

    def _send_some(self) -> None:
        unsent = self._unsent
        while True:
            size = lib.pn_transport_pending(self._transport)
            if size > 0 and len(unsent) < UNSENT_BYTES_MAX:
                chunk = bytearray(size)
                lib.pn_transport_peek(self._transport, ffi.from_buffer(chunk), size)
                lib.pn_transport_pop(self._transport, size)
                unsent += chunk
            if not unsent:
                return
            try:
                del unsent[: self._socket.send(unsent)]
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return
            except OSError as error:
                self._end()
                raise Unavailable(f"the connection to {self.endpoint.address} broke: {error}") from error

    def _receive_some(self) -> None:
        try:
            data = self._socket.recv(CHUNK_BYTES)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return
        except OSError as error:
            self._end()
            raise Unavailable(f"the connection to {self.endpoint.address} broke: {error}") from error
        if not data:
            lib.pn_transport_close_tail(self._transport)
            self.check()
            self._end()
            raise Unavailable(f"{self.endpoint.address} closed the connection")
        view = memoryview(data)
        while view:
            pushed = lib.pn_transport_push(self._transport, ffi.from_buffer(view), len(view))
            if pushed <= 0:
                self.check()
                self._end()
                raise Unavailable(f"{self.endpoint.address} sent something that is not AMQP")
            view = view[pushed:]

    def check(self) -> None:
        """Raise what the broker has ended the connection or session with."""
        for condition, closed in (
            (lib.pn_connection_remote_condition(self._pn), lib.pn_connection_state(self._pn)),
            (lib.pn_session_remote_condition(self.session), lib.pn_session_state(self.session)),
        ):
            if closed & lib.PN_REMOTE_CLOSED:
                self._end()
                raise failure(condition, f"connection to {self.endpoint.address}")

    def _end(self) -> None:
        self._ended = True
        self._socket.close()

    def close(self) -> None:
        """Close the connection, without waiting for the broker."""
        if self._ended:
            return
        lib.pn_connection_close(self._pn)
        try:
            self._send_some()
        except Unavailable:
            pass
        finally:
            self._end()

    def __del__(self) -> None:
        """Free the socket and proton's memory. Links refer to their connection, so none of them is in use
        any more."""
        if hasattr(self, "_transport"):
            self._socket.close()
            lib.pn_transport_unbind(self._transport)
            lib.pn_connection_release(self._pn)
            lib.pn_decref(self._pn)
            lib.pn_decref(self._transport)


def failure(condition: Any, what: str) -> Refused | Unavailable:
    """A condition of the broker as an exception: Busy if trying again may help."""
    if not lib.pn_condition_is_set(condition):
        return Unavailable(f"{what}: the broker closed it")
    name = text_of(lib.pn_condition_get_name(condition))
    return refusal(what, name, text_of(lib.pn_condition_get_description(condition)))


def refusal(what: str, condition: str, description: str) -> Refused | Unavailable:
    """A refusal as an exception: Busy if trying again may help."""
    if condition in TRANSIENT:
        return Busy(f"{what}: {condition}: {description}")
    return Refused(what, condition, description)


def text_of(characters: Any) -> str:
    """A string of C's."""
    return "" if characters == ffi.NULL else ffi.string(characters).decode("utf-8", "replace")


def put(data: Any, value: Any) -> None:
    """Set one of proton's values."""
    encoded = encode(value)
    lib.pn_data_decode(data, ffi.from_buffer(encoded), len(encoded))


def _connected(endpoint: Endpoint, timeout_s: float) -> socket.socket:
    context = _tls_context(endpoint) if endpoint.tls else None
    try:
        plain = socket.create_connection((endpoint.host, endpoint.port), timeout_s)
    except OSError as error:
        raise Unavailable(f"{endpoint.address} cannot be reached: {error}") from error
    try:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected = context.wrap_socket(plain, server_hostname=endpoint.host) if context else plain
    except ssl.SSLCertVerificationError as error:
        plain.close()
        raise Refused(
            "TLS", "certificate", f"the certificate of {endpoint.address} is not trusted: {error}"
        ) from error
    except OSError as error:
        plain.close()
        raise Unavailable(f"{endpoint.address}: no TLS connection: {error}") from error
    connected.setblocking(False)
    return connected


def _tls_context(endpoint: Endpoint) -> ssl.SSLContext:
    """Raises OptionError if a file cannot be used."""
    option, file = "tls.caFile", endpoint.ca_file
    try:
        context = ssl.create_default_context(cafile=file)
        if endpoint.cert_file is not None:
            option, file = "tls.certFile", endpoint.cert_file
            context.load_cert_chain(endpoint.cert_file, endpoint.key_file)
    except OSError as error:  # also what is no certificate, or not with this key (SSLError)
        problem = error.strerror or str(error)
        raise OptionError(option, f"'{file}' cannot be used on this machine: {problem}") from error
    return context
