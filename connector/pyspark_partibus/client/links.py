"""Receiving and sending links of a blocking connection. Deliveries are raw bytes; nothing here knows what is
in them."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from cproton_ffi import ffi, lib

from pyspark_partibus.client.connection import Connection, failure, put
from pyspark_partibus.client.values import Described, Symbol, decode
from pyspark_partibus.errors import Refused, Unavailable

_numbers = itertools.count(1)


def address_of(text: str) -> bytes:
    """An address for C, whose strings end at the first zero: what is behind it would be left out, and another
    entity be meant. Raises Refused."""
    if "\0" in text:
        raise Refused("attaching", "amqp:invalid-field", f"the address {text!r} contains a NUL character")
    return text.encode()


class Link:
    """What both kinds of links have in common: attaching, detaching, and the broker's reasons for either."""

    def __init__(self, connection: Connection, pn: Any, what: str) -> None:
        self.connection, self.pn, self.what = connection, pn, what

    def attach(self) -> None:
        """Open the link and wait for the broker's answer. Raises Refused, or Unavailable."""
        lib.pn_link_open(self.pn)
        self.wait(lambda: lib.pn_link_state(self.pn) & lib.PN_REMOTE_ACTIVE, "attaching")
        if self._is_null():  # a refusal: the broker's detach with the reason follows (§2.6.3)
            self.wait(lambda: False, "attaching")

    def _is_null(self) -> bool:
        """Whether the broker's attach has no terminus at its own end."""
        terminus = (
            lib.pn_link_remote_source(self.pn)
            if lib.pn_link_is_receiver(self.pn)
            else lib.pn_link_remote_target(self.pn)
        )
        return bool(lib.pn_terminus_get_type(terminus) == lib.PN_UNSPECIFIED)

    def wait(self, done: Any, doing: str, timeout_s: float | None = None) -> None:
        """Move bytes until `done()` is true. Raises what the broker has detached the link with."""

        def checked() -> Any:
            self.check()
            return done()

        timeout_s = self.connection.timeout_s if timeout_s is None else timeout_s
        self.connection.run_until(checked, f"{doing} {self.what}", time.monotonic() + timeout_s)

    def check(self) -> None:
        """Raise what the broker has detached the link with."""
        if lib.pn_link_state(self.pn) & lib.PN_REMOTE_CLOSED:
            raise failure(lib.pn_link_remote_condition(self.pn), self.what)

    @property
    def remote_properties(self) -> dict[str, Any]:
        """The properties of the broker's attach."""
        data = lib.pn_link_remote_properties(self.pn)
        if data == ffi.NULL:  # the attach has none
            return {}
        size = lib.pn_data_encoded_size(data)
        if size <= 0:
            return {}
        encoded = bytearray(size)
        lib.pn_data_rewind(data)
        lib.pn_data_encode(data, ffi.from_buffer(encoded), size)
        value = decode(encoded)[0]
        return value if isinstance(value, dict) else {}

    def close(self) -> None:
        """Detach the link, without waiting for the broker."""
        lib.pn_link_close(self.pn)
        lib.pn_link_free(self.pn)


class Receiver(Link):
    """A receiving link whose messages come settled, on credit that the user grants."""

    def __init__(
        self,
        connection: Connection,
        address: str,
        *,
        target: str | None = None,
        copy: bool = False,
        filters: Mapping[str, Described] | None = None,
    ) -> None:
        """copy: browse instead of consuming (distribution-mode, §3.5.7)."""
        wanted = address_of(address)
        pn = lib.pn_receiver(connection.session, b"receiver-%d" % next(_numbers))
        super().__init__(connection, pn, f"receiver of '{address}'")
        source = lib.pn_link_source(pn)
        lib.pn_terminus_set_type(source, lib.PN_SOURCE)
        lib.pn_terminus_set_address(source, wanted)
        lib.pn_terminus_set_type(lib.pn_link_target(pn), lib.PN_TARGET)
        if target is not None:
            lib.pn_terminus_set_address(lib.pn_link_target(pn), target.encode())
        if copy:
            lib.pn_terminus_set_distribution_mode(source, lib.PN_DIST_MODE_COPY)
        if filters:
            put(lib.pn_terminus_filter(source), {Symbol(name): value for name, value in filters.items()})
        lib.pn_link_set_snd_settle_mode(pn, lib.PN_SND_SETTLED)
        lib.pn_link_set_rcv_settle_mode(pn, lib.PN_RCV_FIRST)
        self.attach()

    def grant(self, credit: int) -> None:
        """Grant credit; it is sent with the next wait."""
        lib.pn_link_flow(self.pn, credit)

    def receive(self, timeout_s: float | None = None) -> bytes:
        """The next whole message. Raises TimedOut."""
        self.wait(self._has_message, "waiting for a message on", timeout_s)
        delivery = lib.pn_link_current(self.pn)
        size = lib.pn_delivery_pending(delivery)
        buffer = bytearray(size)
        received = lib.pn_link_recv(self.pn, ffi.from_buffer(buffer), size) if size else 0
        lib.pn_link_advance(self.pn)
        lib.pn_delivery_settle(delivery)
        if received != size:
            raise Unavailable(f"{self.what}: a message was aborted")
        return bytes(buffer)

    def _has_message(self) -> bool:
        delivery = lib.pn_link_current(self.pn)
        return delivery != ffi.NULL and not lib.pn_delivery_partial(delivery)


class Sender(Link):
    """A sending link. Messages are sent one after the other; their outcomes are collected in the same
    order."""

    def __init__(
        self, connection: Connection, address: str, properties: Mapping[str, Any] | None = None
    ) -> None:
        wanted = address_of(address)
        pn = lib.pn_sender(connection.session, b"sender-%d" % next(_numbers))
        super().__init__(connection, pn, f"sender to '{address}'")
        target = lib.pn_link_target(pn)
        lib.pn_terminus_set_type(target, lib.PN_TARGET)
        lib.pn_terminus_set_address(target, wanted)
        lib.pn_terminus_set_type(lib.pn_link_source(pn), lib.PN_SOURCE)
        if properties:
            put(lib.pn_link_properties(pn), {Symbol(name): value for name, value in properties.items()})
        self._tags = itertools.count()
        self._under_way: deque[Any] = deque()
        self.attach()

    def send(self, message: bytes | bytearray) -> None:
        """Hand one message to the connection, when the broker has granted credit for it. Its outcome comes
        with `outcome`."""
        self.wait(lambda: lib.pn_link_credit(self.pn) > 0, "waiting for credit of")
        tag = next(self._tags).to_bytes(8, "big")
        held = ffi.from_buffer(tag)
        delivery = lib.pn_delivery(self.pn, ffi.new("pn_bytes_t *", (len(tag), held))[0])
        lib.pn_link_send(self.pn, ffi.from_buffer(message), len(message))
        lib.pn_link_advance(self.pn)
        self._under_way.append(delivery)

    def outcome(self, timeout_s: float | None = None) -> None:
        """Wait until the broker has accepted the oldest message. Raises Refused or Unavailable."""
        delivery = self._under_way[0]
        self.wait(
            lambda: lib.pn_delivery_remote_state(delivery),
            "waiting for the outcome of a message of",
            timeout_s,
        )
        self._under_way.popleft()
        state = lib.pn_delivery_remote_state(delivery)
        try:
            if state == lib.PN_ACCEPTED:
                return
            remote = lib.pn_delivery_remote(delivery)
            if state == lib.PN_REJECTED:
                raise failure(lib.pn_disposition_condition(remote), self.what)
            raise Refused(self.what, f"outcome {state}", "the broker did not take the message")
        finally:
            lib.pn_delivery_settle(delivery)
