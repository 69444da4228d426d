"""Bytes that are not AMQP, and malformed frames (AMQP 1.0 §2.2, §2.3)."""

from __future__ import annotations

import contextlib
import struct
from random import Random

import pytest

from protocol.codec import Described, Symbol, UInt, ULong, encode
from tests.hostile.bystander import ending, part_politely
from tests.support import raw_amqp as raw
from tests.support.broker_process import BrokerProcess
from tests.support.raw_amqp import ConnectionEnded, RawConnection, opened

FRAMING_ERROR = "amqp:connection:framing-error"
FRAME_BYTES_MAX = 256 * 1024


@pytest.mark.parametrize(
    "login", [b"", raw.SASL_HEADER, raw.sasl_anonymous(), raw.sasl_plain() + raw.AMQP_HEADER], ids=str
)
def test_random_bytes_end_the_connection_at_any_stage(broker: BrokerProcess, login: bytes) -> None:
    random = Random(login)
    for _ in range(40):
        with RawConnection(broker.addresses.amqp_port) as connection, contextlib.suppress(ConnectionEnded):
            connection.send(login, random.randbytes(random.choice((1, 3, 8, 9, 64, 4_096, 70_000))))
            with contextlib.suppress(OSError):
                connection.socket.shutdown(1)
            while True:
                connection.read_bytes(1)


@pytest.mark.parametrize(
    "header",
    [
        b"GET / HTTP/1.1\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01",
        b"AMQP\x00\x00\x09\x01",
        b"AMQP\x00\x01\x01\x00",
        b"AMQP\x07\x01\x00\x00",
    ],
    ids=["HTTP", "TLS", "AMQP 0-9-1", "AMQP 1.1", "unknown protocol id"],
)
def test_a_wrong_protocol_header_is_answered_with_one_we_speak_and_the_end(
    broker: BrokerProcess, header: bytes
) -> None:
    with RawConnection(broker.addresses.amqp_port) as connection:
        connection.send(header)
        assert connection.read_bytes(8) in (raw.SASL_HEADER, raw.AMQP_HEADER)  # §2.2
        with pytest.raises(ConnectionEnded):
            connection.read_bytes(1)


def test_a_wrong_header_after_the_login_is_answered_with_ours_and_the_end(broker: BrokerProcess) -> None:
    with RawConnection(broker.addresses.amqp_port) as connection:
        connection.log_in()
        connection.send(b"AMQP\x00\x00\x09\x01")
        assert connection.read_bytes(8) == raw.AMQP_HEADER
        ending(connection)


SASL_FRAMES = {
    "too large": raw.raw_frame(bytes(600), frame_type=1),
    "size below the header": raw.raw_frame(b"", frame_type=1, size=4),
    "offset beyond the frame": raw.raw_frame(b"", frame_type=1, doff=2, size=8)[:4] + b"\xff\x01\x00\x00",
    "offset below the header": struct.pack(">IBBH", 8, 1, 1, 0),
    "an AMQP frame": raw.frame(raw.OPEN, raw.open_fields()),
    "an outcome": raw.sasl_frame(raw.SASL_OUTCOME, [0]),
    "no performative": raw.raw_frame(b"\xff\xff\xff", frame_type=1),
    "unknown mechanism": raw.sasl_frame(raw.SASL_INIT, [Symbol("CRAM-MD5"), b""]),
    "no mechanism": raw.sasl_frame(raw.SASL_INIT, []),
    "mechanism of a wrong type": raw.sasl_frame(raw.SASL_INIT, [UInt(1), b""]),
    "response of a wrong type": raw.sasl_frame(raw.SASL_INIT, [Symbol("PLAIN"), {"a": 1}]),
    "PLAIN without a response": raw.sasl_frame(raw.SASL_INIT, [Symbol("PLAIN")]),
    "PLAIN of one part": raw.sasl_frame(raw.SASL_INIT, [Symbol("PLAIN"), b"user"]),
    "PLAIN that is no text": raw.sasl_frame(raw.SASL_INIT, [Symbol("PLAIN"), b"\0\xff\xfe\0\xff"]),
    "PLAIN with a wrong key": raw.sasl_plain(password="wrong")[8:],
    "PLAIN with an unknown name": raw.sasl_plain(user="nobody")[8:],
}


@pytest.mark.parametrize("name", SASL_FRAMES)
def test_a_bad_login_is_refused_and_the_connection_ended(broker: BrokerProcess, name: str) -> None:
    with RawConnection(broker.addresses.amqp_port) as connection:
        connection.send(raw.SASL_HEADER, SASL_FRAMES[name])
        assert connection.read_bytes(8) == raw.SASL_HEADER
        frames = connection.frames_until_end()
        assert [found.field(0) for found in frames if found.code == raw.SASL_OUTCOME] in (
            [],
            [1],
        )  # §5.3.3.6: auth


@pytest.mark.parametrize(
    "wrong",
    [
        raw.raw_frame(b"", size=7),
        raw.raw_frame(b"", size=0),
        struct.pack(">IBBH", 8, 1, 0, 0),
        struct.pack(">IBBH", 8, 0, 0, 0),
        struct.pack(">IBBH", 12, 200, 0, 0) + bytes(4),
        raw.raw_frame(b"", size=FRAME_BYTES_MAX + 1),
        raw.raw_frame(b"", size=2**31),
        raw.raw_frame(b"", size=2**32 - 1),
    ],
    ids=["size 7", "size 0", "doff 1", "doff 0", "doff beyond", "over our maximum", "2 GiB", "4 GiB"],
)
def test_a_frame_whose_header_lies_is_a_framing_error_at_once(broker: BrokerProcess, wrong: bytes) -> None:
    with opened(broker.addresses.amqp_port) as connection:
        connection.send(wrong)
        closed = ending(connection)
        assert closed is not None and raw.condition_of(closed) == FRAMING_ERROR


def test_a_frame_as_large_as_we_announce_is_taken(broker: BrokerProcess) -> None:
    with RawConnection(broker.addresses.amqp_port) as connection:
        assert connection.open().field(2) == FRAME_BYTES_MAX
        connection.begin()
        connection.attach_sender(0, "target")
        head = raw.performative(raw.TRANSFER, raw.transfer_fields(0, 0, settled=True))
        body_bytes = FRAME_BYTES_MAX - 8 - len(head) - 8
        connection.send(
            raw.raw_frame(head + b"\x00\x53\x75\xb0" + struct.pack(">I", body_bytes) + bytes(body_bytes))
        )
        assert part_politely(connection) is None


@pytest.mark.parametrize("cut", [1, 4, 7, 8, 11, 20])
def test_a_frame_that_never_ends_ends_with_its_connection(broker: BrokerProcess, cut: int) -> None:
    with opened(broker.addresses.amqp_port) as connection:
        connection.send(raw.frame(raw.ATTACH, raw.sender_attach(0, "target"))[:cut])
        connection.socket.shutdown(1)
        ending(connection)


BODIES = {
    "no performative": b"\xff\xff\xff\xff",
    "a string": encode("open"),
    "a list without descriptor": encode([1, 2]),
    "an unknown descriptor": encode(Described(ULong(0x99), [])),
    "a descriptor of another type": encode(Described("open", [])),
    "a map of fields": encode(Described(ULong(raw.FLOW), {"a": 1})),
    "a list cut off": raw.performative(raw.FLOW, raw.flow_fields())[:-3],
    "a count that lies": b"\x00\x53\x13\xc0\x03\xff\x40\x40",
    "a size that lies": b"\x00\x53\x13\xd0\xff\xff\xff\xff\x00\x00\x00\x01\x40",
    "a sasl performative": raw.performative(raw.SASL_OUTCOME, [0]),
    "too many fields": raw.performative(raw.FLOW, [*raw.flow_fields(), *[None] * 200]),
    "no fields": raw.performative(raw.BEGIN, []),
}


@pytest.mark.parametrize("name", BODIES)
def test_a_frame_without_a_good_performative_never_hangs_the_connection(
    broker: BrokerProcess, name: str
) -> None:
    with opened(broker.addresses.amqp_port) as connection:
        connection.send(raw.raw_frame(BODIES[name]))
        part_politely(connection)


@pytest.mark.parametrize("frame_type", [2, 255])
def test_a_frame_of_an_unknown_type_is_no_danger(broker: BrokerProcess, frame_type: int) -> None:
    with opened(broker.addresses.amqp_port) as connection:
        connection.send(raw.raw_frame(raw.performative(raw.FLOW, raw.flow_fields()), frame_type=frame_type))
        part_politely(connection)


def nested_lists(depth: int) -> bytes:
    value = b"\x45"
    for _ in range(depth):
        value = b"\xd0" + struct.pack(">II", len(value) + 4, 1) + value
    return value


BOMBS = {
    "lists in lists": nested_lists(20_000),
    "descriptors of descriptors": b"\x00\x53\x01" * 60_000 + b"\x40",
    "2^31 nulls in nine bytes": b"\xf0" + struct.pack(">II", 5, 2**31 - 1) + b"\x40",
    "a list of 2^32 nothings": b"\xd0" + struct.pack(">II", 4, 2**32 - 1),
    "100,000 small values": b"\xd0" + struct.pack(">II", 4 + 100_000, 100_000) + b"\x40" * 100_000,
}


@pytest.mark.parametrize("bomb", BOMBS)
@pytest.mark.parametrize(
    "place", ["link properties", "filter", "open properties", "state", "application properties", "body"]
)
def test_a_value_that_is_larger_than_it_looks_does_no_harm(
    broker: BrokerProcess, bomb: str, place: str
) -> None:
    value = BOMBS[bomb]
    mapped = b"\xd1" + struct.pack(">II", 4 + 3 + len(value), 2) + b"\xa3\x01a" + value
    with RawConnection(broker.addresses.amqp_port) as connection:
        connection.log_in()
        properties = mapped if place == "open properties" else b"\x40"
        connection.send(
            raw.AMQP_HEADER, with_last_field(raw.OPEN, [*raw.open_fields(), *[None] * 4], properties)
        )
        connection.send_frame(raw.BEGIN, raw.begin_fields())
        if place == "link properties":
            connection.send(
                with_last_field(raw.ATTACH, [*raw.sender_attach(0, "target"), None, None, None], mapped)
            )
        elif place == "filter":
            source = b"\x00\x53\x28" + described_list([encode("target"), *[b"\x40"] * 6, mapped])
            fields = [encode(field) for field in raw.receiver_attach(1, "target")]
            fields[5] = source
            connection.send(raw.raw_frame(b"\x00\x53\x12" + described_list(fields)))
        elif place == "state":
            connection.send_frame(raw.ATTACH, raw.receiver_attach(1, "target"))
            connection.send_frame(raw.FLOW, raw.flow_fields(1, 0, 1))
            state = b"\x00\x53\x27" + described_list([b"\x41", b"\x41", mapped])
            connection.send(with_last_field(raw.DISPOSITION, [True, UInt(0), UInt(0), False], state))
        else:
            section = (
                b"\x00\x53\x74" + mapped if place == "application properties" else b"\x00\x53\x77" + value
            )
            connection.send_frame(raw.ATTACH, raw.sender_attach(0, "target"))
            connection.send_frame(raw.TRANSFER, raw.transfer_fields(0, 0), section)
        part_politely(connection)


def described_list(fields: list[bytes]) -> bytes:
    """A list32 of encoded fields."""
    body = b"".join(fields)
    return b"\xd0" + struct.pack(">II", 4 + len(body), len(fields)) + body


def with_last_field(code: int, fields: list[object], last: bytes) -> bytes:
    """A frame whose last field is given in encoded form."""
    return raw.raw_frame(
        encode(ULong(code)).join((b"\x00", b""))
        + described_list([*(encode(field) for field in fields), last])
    )
