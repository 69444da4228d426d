"""The surface of proton's C core that `protocol/engine.py` relies on. An upgrade that changes it fails here,
not in production.

It consists of the core's functions with their signatures, constants, and the few behaviours that no document
promises.
"""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from cproton_ffi import ffi, lib

from protocol._runs import ffi as runs_ffi
from protocol._runs import lib as runs
from protocol.codec import UInt
from protocol.events import Outcome
from tests.support import raw_amqp as raw
from tests.support.engine_peer import frames_of, message

ROOT = Path(__file__).parents[3]

FUNCTIONS = {
    "pn_collector": "pn_collector_t *()",
    "pn_collector_free": "void(pn_collector_t *)",
    "pn_collector_peek": "pn_event_t *(pn_collector_t *)",
    "pn_collector_pop": "_Bool(pn_collector_t *)",
    "pn_collector_release": "void(pn_collector_t *)",
    "pn_condition_get_description": "char *(pn_condition_t *)",
    "pn_condition_get_name": "char *(pn_condition_t *)",
    "pn_condition_info": "pn_data_t *(pn_condition_t *)",
    "pn_condition_is_set": "_Bool(pn_condition_t *)",
    "pn_condition_set_description": "int(pn_condition_t *, char *)",
    "pn_condition_set_name": "int(pn_condition_t *, char *)",
    "pn_connection": "pn_connection_t *()",
    "pn_connection_close": "void(pn_connection_t *)",
    "pn_connection_collect": "void(pn_connection_t *, pn_collector_t *)",
    "pn_connection_condition": "pn_condition_t *(pn_connection_t *)",
    "pn_connection_offered_capabilities": "pn_data_t *(pn_connection_t *)",
    "pn_connection_open": "void(pn_connection_t *)",
    "pn_connection_properties": "pn_data_t *(pn_connection_t *)",
    "pn_connection_release": "void(pn_connection_t *)",
    "pn_connection_remote_condition": "pn_condition_t *(pn_connection_t *)",
    "pn_connection_remote_container": "char *(pn_connection_t *)",
    "pn_connection_remote_desired_capabilities": "pn_data_t *(pn_connection_t *)",
    "pn_connection_remote_hostname": "char *(pn_connection_t *)",
    "pn_connection_remote_properties": "pn_data_t *(pn_connection_t *)",
    "pn_connection_set_container": "void(pn_connection_t *, char *)",
    "pn_connection_state": "int(pn_connection_t *)",
    "pn_data_clear": "void(pn_data_t *)",
    "pn_data_decode": "ssize_t(pn_data_t *, char *, size_t)",
    "pn_data_encode": "ssize_t(pn_data_t *, char *, size_t)",
    "pn_data_encoded_size": "ssize_t(pn_data_t *)",
    "pn_decref": "int(void *)",
    "pn_delivery": "pn_delivery_t *(pn_link_t *, pn_bytes_t)",
    "pn_delivery_abort": "void(pn_delivery_t *)",
    "pn_delivery_aborted": "_Bool(pn_delivery_t *)",
    "pn_delivery_attachments": "pn_record_t *(pn_delivery_t *)",
    "pn_delivery_link": "pn_link_t *(pn_delivery_t *)",
    "pn_delivery_local": "pn_disposition_t *(pn_delivery_t *)",
    "pn_delivery_partial": "_Bool(pn_delivery_t *)",
    "pn_delivery_pending": "size_t(pn_delivery_t *)",
    "pn_delivery_readable": "_Bool(pn_delivery_t *)",
    "pn_delivery_remote": "pn_disposition_t *(pn_delivery_t *)",
    "pn_delivery_remote_state": "uint64_t(pn_delivery_t *)",
    "pn_delivery_settle": "void(pn_delivery_t *)",
    "pn_delivery_settled": "_Bool(pn_delivery_t *)",
    "pn_delivery_update": "void(pn_delivery_t *, uint64_t)",
    "pn_disposition_annotations": "pn_data_t *(pn_disposition_t *)",
    "pn_disposition_data": "pn_data_t *(pn_disposition_t *)",
    "pn_disposition_condition": "pn_condition_t *(pn_disposition_t *)",
    "pn_disposition_is_failed": "_Bool(pn_disposition_t *)",
    "pn_disposition_is_undeliverable": "_Bool(pn_disposition_t *)",
    "pn_disposition_set_failed": "void(pn_disposition_t *, _Bool)",
    "pn_disposition_set_undeliverable": "void(pn_disposition_t *, _Bool)",
    "pn_event_delivery": "pn_delivery_t *(pn_event_t *)",
    "pn_event_link": "pn_link_t *(pn_event_t *)",
    "pn_event_session": "pn_session_t *(pn_event_t *)",
    "pn_event_type": "pn_event_type_t(pn_event_t *)",
    "pn_link_advance": "_Bool(pn_link_t *)",
    "pn_link_close": "void(pn_link_t *)",
    "pn_link_condition": "pn_condition_t *(pn_link_t *)",
    "pn_link_credit": "int(pn_link_t *)",
    "pn_link_current": "pn_delivery_t *(pn_link_t *)",
    "pn_link_detach": "void(pn_link_t *)",
    "pn_link_drained": "int(pn_link_t *)",
    "pn_link_flow": "void(pn_link_t *, int)",
    "pn_link_free": "void(pn_link_t *)",
    "pn_link_get_drain": "_Bool(pn_link_t *)",
    "pn_link_head": "pn_link_t *(pn_connection_t *, int)",
    "pn_link_is_receiver": "_Bool(pn_link_t *)",
    "pn_link_name": "char *(pn_link_t *)",
    "pn_link_open": "void(pn_link_t *)",
    "pn_link_properties": "pn_data_t *(pn_link_t *)",
    "pn_link_queued": "int(pn_link_t *)",
    "pn_link_recv": "ssize_t(pn_link_t *, char *, size_t)",
    "pn_link_remote_condition": "pn_condition_t *(pn_link_t *)",
    "pn_link_remote_properties": "pn_data_t *(pn_link_t *)",
    "pn_link_remote_rcv_settle_mode": "pn_rcv_settle_mode_t(pn_link_t *)",
    "pn_link_remote_snd_settle_mode": "pn_snd_settle_mode_t(pn_link_t *)",
    "pn_link_remote_source": "pn_terminus_t *(pn_link_t *)",
    "pn_link_remote_target": "pn_terminus_t *(pn_link_t *)",
    "pn_link_send": "ssize_t(pn_link_t *, char *, size_t)",
    "pn_link_session": "pn_session_t *(pn_link_t *)",
    "pn_link_max_message_size": "uint64_t(pn_link_t *)",
    "pn_link_set_max_message_size": "void(pn_link_t *, uint64_t)",
    "pn_link_set_rcv_settle_mode": "void(pn_link_t *, pn_rcv_settle_mode_t)",
    "pn_link_set_snd_settle_mode": "void(pn_link_t *, pn_snd_settle_mode_t)",
    "pn_link_state": "int(pn_link_t *)",
    "pn_link_source": "pn_terminus_t *(pn_link_t *)",
    "pn_link_target": "pn_terminus_t *(pn_link_t *)",
    "pn_link_unsettled": "int(pn_link_t *)",
    "pn_sender": "pn_link_t *(pn_session_t *, char *)",
    "pn_session": "pn_session_t *(pn_connection_t *)",
    "pn_session_attachments": "pn_record_t *(pn_session_t *)",
    "pn_session_close": "void(pn_session_t *)",
    "pn_session_free": "void(pn_session_t *)",
    "pn_session_head": "pn_session_t *(pn_connection_t *, int)",
    "pn_session_open": "void(pn_session_t *)",
    "pn_session_outgoing_bytes": "size_t(pn_session_t *)",
    "pn_session_remote_condition": "pn_condition_t *(pn_session_t *)",
    "pn_terminus_capabilities": "pn_data_t *(pn_terminus_t *)",
    "pn_terminus_copy": "int(pn_terminus_t *, pn_terminus_t *)",
    "pn_terminus_filter": "pn_data_t *(pn_terminus_t *)",
    "pn_terminus_get_address": "char *(pn_terminus_t *)",
    "pn_terminus_get_distribution_mode": "pn_distribution_mode_t(pn_terminus_t *)",
    "pn_terminus_get_durability": "pn_durability_t(pn_terminus_t *)",
    "pn_terminus_get_type": "pn_terminus_type_t(pn_terminus_t *)",
    "pn_terminus_is_dynamic": "_Bool(pn_terminus_t *)",
    "pn_terminus_outcomes": "pn_data_t *(pn_terminus_t *)",
    "pn_terminus_properties": "pn_data_t *(pn_terminus_t *)",
    "pn_terminus_set_type": "int(pn_terminus_t *, pn_terminus_type_t)",
    "pn_transport": "pn_transport_t *()",
    "pn_transport_bind": "int(pn_transport_t *, pn_connection_t *)",
    "pn_transport_close_tail": "int(pn_transport_t *)",
    "pn_transport_condition": "pn_condition_t *(pn_transport_t *)",
    "pn_transport_get_remote_idle_timeout": "uint32_t(pn_transport_t *)",
    "pn_transport_get_remote_max_frame": "uint32_t(pn_transport_t *)",
    "pn_transport_peek": "ssize_t(pn_transport_t *, char *, size_t)",
    "pn_transport_pending": "ssize_t(pn_transport_t *)",
    "pn_transport_pop": "void(pn_transport_t *, size_t)",
    "pn_transport_push": "ssize_t(pn_transport_t *, char *, size_t)",
    "pn_transport_set_channel_max": "int(pn_transport_t *, uint16_t)",
    "pn_transport_set_idle_timeout": "void(pn_transport_t *, uint32_t)",
    "pn_transport_set_max_frame": "void(pn_transport_t *, uint32_t)",
    "pn_transport_set_server": "void(pn_transport_t *)",
    "pn_transport_tick": "int64_t(pn_transport_t *, int64_t)",
    "pn_transport_unbind": "int(pn_transport_t *)",
}
"""The functions that the engine calls: result and arguments."""

CONSTANTS = {
    "PN_ACCEPTED": 36,
    "PN_CONNECTION_REMOTE_CLOSE": 11,
    "PN_CONNECTION_REMOTE_OPEN": 9,
    "PN_COORDINATOR": 3,
    "PN_DIST_MODE_COPY": 1,
    "PN_LINK_FINAL": 27,
    "PN_LINK_FLOW": 26,
    "PN_LINK_REMOTE_CLOSE": 23,
    "PN_LINK_REMOTE_DETACH": 25,
    "PN_LINK_REMOTE_OPEN": 21,
    "PN_LOCAL_ACTIVE": 2,
    "PN_LOCAL_CLOSED": 4,
    "PN_NONDURABLE": 0,
    "PN_REMOTE_ACTIVE": 16,
    "PN_REMOTE_CLOSED": 32,
    "PN_SESSION_REMOTE_CLOSE": 17,
    "PN_SESSION_REMOTE_OPEN": 15,
    "PN_TRANSPORT": 29,
    "PN_TRANSPORT_CLOSED": 34,
    "PN_TRANSPORT_ERROR": 31,
    "PN_TRANSPORT_TAIL_CLOSED": 33,
    "PN_UNSPECIFIED": 0,
}


def names_in_runs() -> set[str]:
    """The functions that `protocol/native/runs.c` calls."""
    names: list[str] = []
    while name := runs.runs_functions[len(names)]:
        names.append(runs_ffi.string(name).decode())
    return set(names)


def test_the_installed_proton_is_the_pinned_one() -> None:
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "dependencies"
    ]
    assert f"python-qpid-proton=={version('python-qpid-proton')}" in dependencies


def test_the_lists_here_name_all_that_the_engine_uses_and_nothing_else() -> None:
    protocol = ROOT / "protocol"
    users = [
        path.read_text(encoding="utf-8")
        for path in sorted(protocol.glob("*.py"))
        if "protocol.proton_values" in path.read_text(encoding="utf-8")
    ]
    sources = [(protocol / "proton_values.py").read_text(encoding="utf-8"), *users]
    used = {name for source in sources for name in re.findall(r"\blib\.(\w+)", source)}
    used |= set(re.findall(r"\bproton\.(\w+)", (ROOT / "protocol" / "runs.py").read_text(encoding="utf-8")))
    assert used | names_in_runs() == FUNCTIONS.keys() | CONSTANTS.keys()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_has_the_signature_that_the_engine_expects(name: str) -> None:
    assert ffi.typeof(getattr(lib, name)).cname.replace("(*)", "").replace("struct ", "") == FUNCTIONS[name]


@pytest.mark.parametrize("name", CONSTANTS)
def test_a_constant_has_the_value_that_the_engine_was_tested_with(name: str) -> None:
    assert getattr(lib, name) == CONSTANTS[name]


def test_the_outcomes_of_the_events_are_protons_numbers() -> None:
    assert (lib.PN_ACCEPTED, lib.PN_REJECTED, lib.PN_RELEASED, lib.PN_MODIFIED) == (
        Outcome.ACCEPTED,
        Outcome.REJECTED,
        Outcome.RELEASED,
        Outcome.MODIFIED,
    )


def test_bytes_are_a_size_and_a_start() -> None:
    assert {name for name, _ in ffi.typeof("pn_bytes_t").fields} == {"size", "start"}


# --- behaviour ----------------------------------------------------------------------------------------------


class Core:
    """A bare connection of the core, with one session; all links are accepted."""

    def __init__(self, *attaches: list[Any]) -> None:
        self.connection, self.transport, self.collector = (
            lib.pn_connection(),
            lib.pn_transport(),
            lib.pn_collector(),
        )
        lib.pn_transport_set_server(self.transport)
        lib.pn_connection_collect(self.connection, self.collector)
        lib.pn_connection_set_container(self.connection, b"core")
        lib.pn_transport_bind(self.transport, self.connection)
        lib.pn_connection_open(self.connection)
        self.links: list[Any] = []
        self.push(
            raw.AMQP_HEADER, raw.frame(raw.OPEN, raw.open_fields()), raw.frame(raw.BEGIN, raw.begin_fields())
        )
        self.push(*(raw.frame(raw.ATTACH, fields) for fields in attaches))
        self.output()

    def push(self, *frames: bytes) -> list[Any]:
        """Give bytes to the core and return the deliveries of the resulting events."""
        data = b"".join(frames)
        assert lib.pn_transport_push(self.transport, data, len(data)) == len(data)
        deliveries = []
        while event := lib.pn_collector_peek(self.collector):
            match lib.pn_event_type(event):
                case lib.PN_SESSION_REMOTE_OPEN:
                    lib.pn_session_open(lib.pn_event_session(event))
                case lib.PN_LINK_REMOTE_OPEN:
                    self.links.append(lib.pn_event_link(event))
                    lib.pn_link_open(self.links[-1])
                case lib.PN_DELIVERY:
                    deliveries.append(lib.pn_event_delivery(event))
            lib.pn_collector_pop(self.collector)
        return deliveries

    def output(self) -> bytes:
        """Everything that the core has to write."""
        chunks = []
        while (pending := lib.pn_transport_pending(self.transport)) > 0:
            buffer = ffi.new("char[]", pending)
            count = lib.pn_transport_peek(self.transport, buffer, pending)
            chunks.append(ffi.unpack(buffer, count))
            lib.pn_transport_pop(self.transport, count)
        return b"".join(chunks)


def transfer(number: int, payload: bytes, *, more: bool = False) -> bytes:
    return raw.frame(raw.TRANSFER, raw.transfer_fields(0, number, more=more), payload)


def test_consecutive_dispositions_of_one_outcome_go_out_as_one_range() -> None:
    core = Core(raw.sender_attach(0, "queue"))
    deliveries = core.push(*(transfer(number, message()) for number in range(50)))
    for delivery in deliveries:
        lib.pn_link_advance(core.links[0])
        lib.pn_delivery_update(delivery, lib.PN_ACCEPTED)
        lib.pn_delivery_settle(delivery)
    dispositions = [frame for frame in frames_of(core.output()) if frame.code == raw.DISPOSITION]
    assert [(frame.field(1), frame.field(2), frame.field(3)) for frame in dispositions] == [(0, 49, True)]


def test_the_rest_of_an_incoming_delivery_that_was_settled_early_is_thrown_away() -> None:
    core = Core(raw.sender_attach(0, "queue"))
    (delivery,) = core.push(transfer(0, b"x" * 1000, more=True))
    assert lib.pn_delivery_partial(delivery) and lib.pn_delivery_pending(delivery) == 1000
    lib.pn_link_advance(core.links[0])
    lib.pn_delivery_settle(delivery)
    core.output()
    assert core.push(transfer(0, b"x" * 1000, more=True), transfer(0, b"x" * 1000)) == []
    (following,) = core.push(transfer(1, b"y"))
    assert lib.pn_delivery_pending(following) == 1


def test_deliveries_are_pooled_so_that_a_settled_one_may_come_back_as_another() -> None:
    core = Core(raw.sender_attach(0, "queue"))
    seen = set()
    for number in range(20):
        (delivery,) = core.push(transfer(number, b"x"))
        seen.add(delivery)
        lib.pn_link_advance(core.links[0])
        lib.pn_delivery_settle(delivery)
        core.output()
    assert len(seen) < 20


def test_peek_copies_output_and_pop_takes_it_away() -> None:
    core = Core(raw.sender_attach(0, "queue"))
    lib.pn_link_flow(core.links[0], 10)
    pending = lib.pn_transport_pending(core.transport)
    first, second = ffi.new("char[]", pending), ffi.new("char[]", pending)
    assert lib.pn_transport_peek(core.transport, first, pending) == pending
    assert lib.pn_transport_peek(core.transport, second, pending) == pending
    assert ffi.unpack(first, pending) == ffi.unpack(second, pending)
    lib.pn_transport_pop(core.transport, pending)
    assert lib.pn_transport_pending(core.transport) == 0


def test_what_was_sent_and_advanced_is_not_the_links_current_delivery_any_more() -> None:
    core = Core(raw.receiver_attach(0, "queue"))
    core.push(raw.frame(raw.FLOW, raw.flow_fields(0, 0, 10)))
    tag = ffi.new("pn_bytes_t *")
    tag.start, tag.size = (held := ffi.new("char[]", b"tag")), 3
    lib.pn_delivery(core.links[0], tag[0])
    lib.pn_link_send(core.links[0], b"x", 1)
    assert lib.pn_link_current(core.links[0]) != ffi.NULL
    lib.pn_link_advance(core.links[0])
    assert lib.pn_link_current(core.links[0]) == ffi.NULL and held


def test_bytes_that_a_shut_session_window_holds_back_are_counted() -> None:
    core = Core(raw.receiver_attach(0, "queue"))
    shut = raw.flow_fields(0, 0, 10)
    shut[1] = UInt(0)
    core.push(raw.frame(raw.FLOW, shut))
    tag = ffi.new("pn_bytes_t *")
    tag.start, tag.size = (held := ffi.new("char[]", b"tag")), 3
    delivery = lib.pn_delivery(core.links[0], tag[0])
    lib.pn_link_send(core.links[0], b"x" * 500, 500)
    lib.pn_link_advance(core.links[0])
    core.output()
    session = lib.pn_link_session(core.links[0])
    assert lib.pn_session_outgoing_bytes(session) == 500 and delivery and held
    core.push(raw.frame(raw.FLOW, raw.flow_fields()))
    core.output()
    assert lib.pn_session_outgoing_bytes(session) == 0


def test_a_link_that_the_peer_detached_is_another_link_when_it_is_attached_again_under_its_name() -> None:
    core = Core(raw.sender_attach(0, "queue", "name"))
    core.push(
        raw.frame(raw.DETACH, [UInt(0), False]), raw.frame(raw.ATTACH, raw.sender_attach(0, "queue", "name"))
    )
    first, second = core.links
    assert first != second
