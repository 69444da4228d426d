"""Runs of plain deliveries: the Python side of `native/runs.c`, which does in one call for many deliveries
what proton does one by one.

`native/runs.c` defines what is plain, and says why this is worth a file of C. The caller of `bind` provides
proton's functions, so that only one file names proton's module. Proton's objects pass through unchanged in
both directions; deliveries are plain numbers (`links.Delivery`).

The buffers are valid until the next call: all engines run in one thread, and these functions do not nest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from protocol._runs import ffi, lib
from protocol._spans import spans
from protocol.links import Delivery

TRANSFER_BYTES_MAX = 128
"""The size of the header and the performative of a transfer that we write, with a tag of 32 bytes and all its
nulls."""
MESSAGES_MAX = 1024
BYTES_MAX = 256 * 1024
"""The most bytes taken at once. What does not fit comes with the next call; a larger message is not plain."""

_take, _send, _send_parts, _settle, _take_back, _push, _output = (
    lib.runs_take,
    lib.runs_send,
    lib.runs_send_parts,
    lib.runs_settle,
    lib.runs_take_back,
    lib.runs_push,
    lib.runs_output,
)
_trim_all = lib.deliveries_trim_all
forget = lib.deliveries_forget
"""Free what proton keeps of the peer's state of a delivery, and the memory of its payload if nothing of that
is left."""
drop_unwritten = lib.runs_drop_unwritten
"""Drop all unwritten bytes of the messages sent on a link. Only for a link on which proton writes nothing any
more: proton frees those messages itself, but would go on counting their bytes in the session."""
_new, _unpack, _from_buffer, _cast = ffi.new, ffi.unpack, ffi.from_buffer, ffi.cast
_run = _new("run_t *")
_messages = _new("messages_t *")
_written = _new("output_t *")
_deliveries = _new("uintptr_t[]", MESSAGES_MAX)
_delivery_pointers = _cast("void **", _deliveries)
_sizes = _new("uint32_t[]", MESSAGES_MAX)
_bytes = _new("char[]", BYTES_MAX)
_left = _new("ssize_t *")


def bind(proton_ffi: Any, proton: Any) -> None:
    """Give the C side the functions of proton that it calls. Must be called before everything else."""
    addresses: list[int] = []
    while name := lib.runs_functions[len(addresses)]:
        address = proton_ffi.addressof(proton, ffi.string(name).decode())
        addresses.append(int(proton_ffi.cast("uintptr_t", address)))
    attached = proton.PN_LOCAL_ACTIVE | proton.PN_REMOTE_ACTIVE
    lib.runs_bind(_new("uintptr_t[]", addresses), proton.PN_TRANSPORT, attached, proton.PN_ACCEPTED)
    decref = proton_ffi.addressof(proton, "pn_decref")
    lib.deliveries_bind(int(proton_ffi.cast("uintptr_t", decref)))
    if not _layout_is_known(proton_ffi, proton):
        raise ImportError(
            "python-qpid-proton is not the version that this broker was built for: its sessions or "
            "deliveries have another layout"
        )


def _layout_is_known(proton_ffi: Any, proton: Any) -> bool:
    """Whether proton's sessions and deliveries have the expected layout, tried on those of a separate
    connection."""
    connection = proton.pn_connection()
    session = proton.pn_session(connection)
    is_known = lib.sessions_are_known(session, connection, proton.pn_session_attachments(session))
    link = proton.pn_sender(session, b"link")
    tag = proton_ffi.new("pn_bytes_t *", {"size": 0, "start": proton_ffi.NULL})
    delivery = proton.pn_delivery(link, tag[0])
    proton.pn_link_send(link, b"message", 7)
    remote = proton.pn_delivery_remote(delivery)
    info = proton.pn_condition_info(proton.pn_disposition_condition(remote))
    parts = (
        info,
        proton.pn_disposition_data(remote),
        proton.pn_disposition_annotations(remote),
        proton.pn_delivery_attachments(delivery),
    )
    known: bool = lib.deliveries_are_known(delivery, remote, *parts, proton.pn_delivery_pending(delivery))
    is_settled_early = lib.deliveries_mark_settled(delivery, False)
    proton.pn_delivery_settle(delivery)
    known = known and not is_settled_early and lib.deliveries_mark_settled(delivery, True)
    proton.pn_connection_release(connection)
    proton.pn_decref(connection)
    return is_known and known and all(parts) and _layout_of_links_is_known(proton_ffi, proton)


_PEER = {"channel": 5, "handle": 7, "window": 0x0102_0304, "credit": 0x0506_0708}
_SAID = (
    b"AMQP\x00\x01\x00\x00"
    b"\x00\x00\x00\x11\x02\x00\x00\x00\x00\x53\x10\xc0\x04\x01\xa1\x01p"  # open
    b"\x00\x00\x00\x16\x02\x00\x00\x05\x00\x53\x11\xc0\x09\x04\x40\x43\x70\x00\x00\x00\x09\x43"  # begin
    b"\x00\x00\x00\x14\x02\x00\x00\x05\x00\x53\x12\xc0\x07\x03\xa1\x01l\x52\x07\x41"  # attach
    b"\x00\x00\x00\x1e\x02\x00\x00\x05\x00\x53\x13\xc0\x11\x07"  # flow
    b"\x43\x70\x01\x02\x03\x04\x43\x43\x52\x07\x43\x70\x05\x06\x07\x08"
)
"""What a peer says that receives on a link, with these numbers."""


def _layout_of_links_is_known(proton_ffi: Any, proton: Any) -> bool:
    """Like `_layout_is_known`, for what a peer changes, and what is known once we have answered it, or have
    sent it a message."""
    connection, transport = proton.pn_connection(), proton.pn_transport()
    proton.pn_transport_set_server(transport)
    proton.pn_transport_bind(transport, connection)
    proton.pn_transport_push(transport, _SAID, len(_SAID))
    session, link = proton.pn_session_head(connection, 0), proton.pn_link_head(connection, 0)
    known = bool(session and link)
    if known:
        peer = _new("peer_t *", _PEER)
        known = lib.sessions_links_are_known(session, link, False, peer)
        proton.pn_connection_open(connection)
        proton.pn_session_open(session)
        proton.pn_link_open(link)
        proton.pn_transport_pending(transport)
        known = known and lib.sessions_links_are_known(session, link, True, peer)
        tag = proton_ffi.new("pn_bytes_t *", {"size": 0, "start": proton_ffi.NULL})
        delivery = proton.pn_delivery(link, tag[0])
        proton.pn_link_send(link, b"message", 7)
        proton.pn_link_advance(link)
        queues = _queues_of(proton, session, link)
        known = known and lib.sessions_queues_are_known(link, delivery, queues) and queues.queued == 1
        known = known and not lib.deliveries_is_begun(delivery)
        proton.pn_transport_pending(transport)
        known = known and lib.deliveries_is_begun(delivery)
        for _ in range(2):
            proton.pn_delivery(link, tag[0])
            proton.pn_link_send(link, b"message", 7)
            proton.pn_link_advance(link)
        known = known and _queues_of(proton, session, link).bytes == 14
        if known:
            lib.runs_drop_unwritten(link)
            known = _queues_of(proton, session, link).bytes == 0
    proton.pn_transport_unbind(transport)
    proton.pn_connection_release(connection)
    proton.pn_decref(connection)
    proton.pn_decref(transport)
    return known


def _queues_of(proton: Any, session: Any, link: Any) -> Any:
    """What proton says of a sender's link, and of the bytes that wait in its session."""
    return _new(
        "queues_t *",
        {
            "unsettled": proton.pn_link_unsettled(link),
            "bytes": proton.pn_session_outgoing_bytes(session),
            "credit": proton.pn_link_credit(link),
            "queued": proton.pn_link_queued(link),
        },
    )


def address_of(pointer: Any) -> int:
    """Where something is in memory, for native code that does not take cffi's pointers (`exchange.py`)."""
    return int(_cast("uintptr_t", pointer))


def buffers() -> tuple[int, int, int]:
    """The addresses of the buffers for deliveries, their sizes and bytes."""
    return address_of(_deliveries), address_of(_sizes), address_of(_bytes)


def take(collector: Any) -> Any:
    """Take the run at the front of a collector of events. Read it before the next call.

    Its fields: `count`, 0 if there is no run; `link`; `incoming`, true for received messages, false for
    outcomes `accepted` of sent ones; `settled`, by the peer; `last`, true if nothing follows in the
    collector, false if another run follows, or an event that is not plain.
    """
    _take(collector, _run, _delivery_pointers, _sizes, MESSAGES_MAX, _bytes, BYTES_MAX)
    return _run


def deliveries() -> list[Delivery]:
    """The deliveries of the run just taken; none for messages that were sent settled."""
    return [] if _run.incoming and _run.settled else _unpack(_deliveries, _run.count)


def payloads() -> list[bytes]:
    """The messages of the run just taken."""
    buffer = ffi.buffer(_bytes, _run.bytes)
    found = []
    begin = 0
    for size in _unpack(_sizes, _run.count):
        end = begin + size
        found.append(buffer[begin:end])
        begin = end
    return found


def send(
    link: Any,
    tags: list[bytes],
    fronts: list[bytes],
    settled: bool,
    rests: list[bytes],
    skipped: int,
) -> tuple[list[Delivery], bool]:
    """Send messages; gives their deliveries, and whether any is large. If so, pass all of them to `trim_all`
    once they are written.

    Deliveries that were sent settled may be used for nothing else. See `Engine.send`.
    """
    count = len(tags)
    if len(fronts) != count or len(rests) not in (0, count):
        raise ValueError("every message has a tag, a front, and a rest if there are any")
    messages = _messages
    messages.count, messages.skipped = count, skipped
    found = [_from_buffer("span_t[]", spans(each)) for each in (tags, fronts, rests)]
    messages.tags, messages.fronts = found[:2]
    messages.rests = found[2] if rests else ffi.NULL
    sent = _new("uintptr_t[]", count)
    any_large = _send(link, messages, settled, _cast("void **", sent))
    del found  # `messages` has pointed to them until here
    return _unpack(sent, count) if any_large or not settled else [], any_large


def send_parts(
    transport: Any,
    link: Any,
    tags: list[bytes],
    fronts: list[bytes],
    settled: bool,
    rests: list[bytes],
    parts: Sequence[int],
) -> tuple[list[Delivery], bytes, bool]:
    """Send messages of a front and a rest. Those with several parts get their rest so many times, each time
    in a transfer of its own.

    Gives the deliveries, all of which are to be passed to `trim_all`; bytes to write to the peer before
    everything else; and whether all is sent. If not, the connection cannot be used any more. The caller makes
    sure that proton has nothing else to write, and that the session's window is open for all transfers.
    """
    count, messages, written = len(tags), _messages, _written
    found = [_from_buffer("span_t[]", spans(each)) for each in (tags, fronts, rests)]
    numbers = _new("uint32_t[]", parts)
    messages.count, messages.skipped, messages.parts = count, 0, numbers
    messages.tags, messages.fronts, messages.rests = found
    size = sum(
        len(front) + each * (TRANSFER_BYTES_MAX + len(rest))
        for front, rest, each in zip(fronts, rests, parts, strict=True)
    )
    buffer = _bytes if size <= BYTES_MAX else _new("char[]", size)
    written.transport, written.bytes, written.size, written.taken = transport, buffer, size, 0
    sent = _new("uintptr_t[]", count)
    is_complete = _send_parts(link, messages, settled, _cast("void **", sent), written)
    del found, numbers  # `messages` has pointed to them until here
    return _unpack(sent, count), _unpack(buffer, written.taken), is_complete


def settle(deliveries: Sequence[Delivery], outcome: int) -> None:
    """Settle deliveries, with an outcome unless it is 0."""
    each = _new("uintptr_t[]", deliveries)
    _settle(_cast("void **", each), len(deliveries), outcome)


def take_back(deliveries: Sequence[Delivery]) -> list[Delivery]:
    """Take back those of which proton has not begun to write any, in their order: it never writes them, and
    they are gone. Only for a link that is ending: the credit that they have used up does not come back."""
    each = _new("uintptr_t[]", deliveries)
    return _unpack(each, taken) if (taken := _take_back(_cast("void **", each), len(deliveries))) else []


def trim_all(deliveries: Sequence[Delivery]) -> list[Delivery]:
    """Free the memory of large messages that have been written; gives the deliveries of those that have not.

    Their connection must not have been freed.
    """
    each = _new("uintptr_t[]", deliveries)
    return _unpack(each, left) if (left := _trim_all(_cast("void **", each), len(deliveries))) else []


def push(transport: Any, data: bytes | bytearray, begin: int, end: int) -> int:
    """Hand over a part of what the peer sent; gives how many bytes were taken. Fewer than all are taken if
    the connection is closed or broken."""
    taken: int = _push(transport, _from_buffer(data) + begin, end - begin)
    return taken


def output(transport: Any) -> tuple[list[bytes], int]:
    """Take the bytes to write to the peer, in order; and what is left: the size of a frame that exceeds the
    buffer, 0 for nothing now, -1 if nothing will ever follow."""
    chunks = []
    while count := _output(transport, _bytes, BYTES_MAX, _left):
        chunks.append(_unpack(_bytes, count))
        if _left[0] <= 0:
            break
    return chunks, _left[0]
