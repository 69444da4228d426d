"""Converts values between proton's C engine and plain data: conditions, termini, encoded maps, links.

The only file that names `cproton_ffi`; other files take `ffi` and `lib` from here. Holds no state.
"""

from __future__ import annotations

from typing import Any

from cproton_ffi import ffi, lib

from protocol import codec, runs
from protocol.events import DeliveriesUpdated, ErrorCondition, Outcome, TransactionalState
from protocol.links import Delivery, Link, Session
from protocol.transactional_state import read_transactional_state
from protocol.values import decode_bounded

__all__ = [
    "condition_of",
    "delivery_of",
    "echo_terminus",
    "encoded_error",
    "encoded_of",
    "ffi",
    "fields_of",
    "free_if_settled",
    "free_link",
    "lib",
    "link_of",
    "map_of",
    "number_of",
    "put",
    "set_condition",
    "set_state",
    "symbols_of",
    "text_of",
    "transaction_of",
    "update_of",
    "written_by",
]

PRODUCT = "partibus"
_cast = ffi.cast
# Plain numbers, because comparing with an enum's members costs more than the calls around it.
_REJECTED, _MODIFIED = int(Outcome.REJECTED), int(Outcome.MODIFIED)
_TRANSACTIONAL = int(Outcome.TRANSACTIONAL)


def link_of(pn: Any, session: Session) -> Link:
    """The link that a peer attached, as plain data."""
    source, target = lib.pn_link_remote_source(pn), lib.pn_link_remote_target(pn)
    return Link(
        pn,
        session,
        incoming=bool(lib.pn_link_is_receiver(pn)),
        name=text_of(lib.pn_link_name(pn)) or "",
        source_address=text_of(lib.pn_terminus_get_address(source)),
        target_address=text_of(lib.pn_terminus_get_address(target)),
        target_is_coordinator=lib.pn_terminus_get_type(target) == lib.PN_COORDINATOR,
        snd_settle_mode=int(lib.pn_link_remote_snd_settle_mode(pn)),
        rcv_settle_mode=int(lib.pn_link_remote_rcv_settle_mode(pn)),
        copies=lib.pn_terminus_get_distribution_mode(source) == lib.PN_DIST_MODE_COPY,
        durable=lib.pn_terminus_get_durability(source) != lib.PN_NONDURABLE,
    )


def free_link(link: Link) -> None:
    """Free a link that is gone, only once. Freeing settles its deliveries without an outcome."""
    if not link.freed:
        link.freed = True
        lib.pn_link_free(link.pn)


def free_if_settled(link: Link) -> None:
    """Free a link that we closed, before the peer detaches it. Proton then forgets the link's name but keeps
    its handle."""
    if not link.freed and not lib.pn_link_unsettled(link.pn):
        free_link(link)


def number_of(delivery: Any) -> Delivery:
    """What stands for one of proton's deliveries outside of the engine."""
    return Delivery(int(_cast("uintptr_t", delivery)))


def delivery_of(number: Delivery) -> Any:
    """The opposite of `number_of`."""
    return _cast("pn_delivery_t *", number)


def update_of(link: Link, delivery: Any, outcome: int, settled: bool) -> DeliveriesUpdated:
    """The state that the peer gave one delivery. `runs.forget` frees proton's copy of it."""
    update = DeliveriesUpdated(link, [number_of(delivery)], outcome, settled)
    if outcome == _REJECTED:
        update.error = condition_of(lib.pn_disposition_condition(lib.pn_delivery_remote(delivery)))
    elif outcome == _MODIFIED:
        remote = lib.pn_delivery_remote(delivery)
        update.failed = bool(lib.pn_disposition_is_failed(remote))
        update.undeliverable_here = bool(lib.pn_disposition_is_undeliverable(remote))
        update.annotations = encoded_of(lib.pn_disposition_annotations(remote))
    elif outcome == _TRANSACTIONAL:
        update.transaction = transaction_of(delivery)
    return update


def transaction_of(delivery: Any) -> TransactionalState:
    """The transactional state that the peer gave a delivery. Read it before `runs.forget`."""
    return read_transactional_state(encoded_of(lib.pn_disposition_data(lib.pn_delivery_remote(delivery))))


def set_state(delivery: Any, fields: bytes) -> None:
    """Set our state of a delivery to one that proton does not know, given its fields as an encoded list."""
    put(lib.pn_disposition_data(lib.pn_delivery_local(delivery)), fields)


def written_by(transport: Any) -> tuple[list[bytes], bool]:
    """Everything to write now, in order, and whether nothing will follow."""
    chunks, left = runs.output(transport)
    while left > 0:
        buffer = ffi.new("char[]", left)
        count = lib.pn_transport_peek(transport, buffer, left)
        chunks.append(ffi.unpack(buffer, count))
        lib.pn_transport_pop(transport, count)
        left = lib.pn_transport_pending(transport)
    return chunks, left < 0


def text_of(value: Any) -> str | None:
    """A C string as text; None for a null pointer."""
    return None if not value else ffi.string(value).decode("utf-8", "replace")


def encoded_of(data: Any) -> bytes:
    """The encoded value of a pn_data; empty if it has none."""
    if not data or (size := lib.pn_data_encoded_size(data)) <= 0:
        return b""
    buffer = ffi.new("char[]", size)
    count = lib.pn_data_encode(data, buffer, size)
    return ffi.unpack(buffer, count) if count > 0 else b""


def echo_terminus(local: Any, remote: Any) -> None:
    """Copy the peer's source or target to ours, except for parts that cannot be encoded again, because proton
    would crash when writing them."""
    lib.pn_terminus_copy(local, remote)
    for part in (
        lib.pn_terminus_properties,
        lib.pn_terminus_capabilities,
        lib.pn_terminus_outcomes,
        lib.pn_terminus_filter,
    ):
        data = part(local)
        if lib.pn_data_encoded_size(data) < 0:
            lib.pn_data_clear(data)


def put(data: Any, encoded: bytes) -> None:
    """Fill a pn_data with an encoded value."""
    lib.pn_data_clear(data)
    lib.pn_data_decode(data, encoded, len(encoded))


def fields_of(data: Any) -> dict[str, Any]:
    """The content of a map keyed by symbols (§3.2.7 `fields`), with text keys; empty for anything else."""
    encoded = encoded_of(data)
    if not encoded:
        return {}
    try:
        value, _ = decode_bounded(encoded)
    except codec.DecodeError:
        return {}
    return {str(key): item for key, item in value.items()} if isinstance(value, dict) else {}


def map_of(data: Any) -> dict[str, Any]:
    """Like `fields_of`, but raises DecodeError for anything that is neither empty nor a map."""
    if lib.pn_data_encoded_size(data) < 0:
        raise codec.DecodeError("it cannot be read")
    encoded = encoded_of(data)
    value = codec.decode_all(encoded) if encoded else None
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise codec.DecodeError("it is not a map")
    return {str(key): item for key, item in value.items()}


def symbols_of(data: Any) -> tuple[str, ...]:
    """The content of a symbol or an array of symbols (§2.7.3 `capabilities`); empty for anything else."""
    encoded = encoded_of(data)
    try:
        value = codec.decode_all(encoded) if encoded else None
    except codec.DecodeError:
        return ()
    values = value.values if isinstance(value, codec.Array) else [value]
    return tuple(str(each) for each in values if isinstance(each, codec.Symbol))


def condition_of(pn: Any) -> ErrorCondition | None:
    """An error (§2.8.14), or None if none is set."""
    if not pn or not lib.pn_condition_is_set(pn):
        return None
    name = text_of(lib.pn_condition_get_name(pn)) or ""
    return ErrorCondition(
        name, text_of(lib.pn_condition_get_description(pn)) or "", encoded_of(lib.pn_condition_info(pn))
    )


_DEFAULT_INFO = codec.encode({codec.Symbol("product"): PRODUCT})


def set_condition(pn: Any, error: ErrorCondition) -> None:
    """Set an error with all three fields. An error with two fields hangs the Python SDK, and proton drops an
    empty map (AMQP contract 0.4.7)."""
    lib.pn_condition_set_name(pn, error.condition.encode())
    lib.pn_condition_set_description(pn, error.description.encode() or b" ")
    put(lib.pn_condition_info(pn), error.info or _DEFAULT_INFO)


def encoded_error(error: ErrorCondition) -> bytes:
    """The bytes that proton would write for the error after `set_condition`."""
    fields = [codec.encode(codec.Symbol(error.condition)), codec.encode(error.description or " ")]
    return b"\x00\x53\x1d" + codec.encode_list([*fields, error.info or _DEFAULT_INFO])
