"""Well-formed AMQP from clients that lack rights or mean harm: rights, sizes, messages, credit, time."""

from __future__ import annotations

import contextlib
import time

import pytest

from broker.base.limited_log import LINES_MAX
from protocol.codec import Described, Symbol, UInt, ULong, encode
from tests.hostile.bystander import Bystander, ending, part_politely, resident_mib
from tests.hostile.conftest import OPEN_TIMEOUT_S
from tests.support import raw_amqp as raw
from tests.support.amqp_messages import message, section
from tests.support.broker_process import BrokerProcess
from tests.support.raw_amqp import ConnectionEnded, Frame, RawConnection, opened
from tests.support.sas import KEY, KEY_NAME, sas_token

UNAUTHORIZED, NOT_FOUND = "amqp:unauthorized-access", "amqp:not-found"
TOO_LARGE, DECODE_ERROR = "amqp:link:message-size-exceeded", "amqp:decode-error"
AUDIENCE = "sb://127.0.0.1/target"
MESSAGE_BYTES_MAX = 1024 * 1024


def token_for(audience: str, valid_s: int, *, key_name: str = KEY_NAME, key: str = KEY) -> str:
    return sas_token(audience, key_name=key_name, key=key, expires_at_s=int(time.time()) + valid_s)


def rejected_with(found: Frame) -> str:
    """The condition of a rejected outcome, whose error must have all three fields (AMQP contract 0.4.7)."""
    state = found.field(4)
    assert found.field(3) and state.descriptor == raw.REJECTED, f"not rejected: {found}"
    error = state.value[0].value
    assert len(error) == 3 and error[1] and error[2]
    return str(error[0])


# --- missing rights -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "address", ["target", "target/$deadletterqueue", "no-such-queue", "target/$management"]
)
@pytest.mark.parametrize("sends", [True, False], ids=["sender", "receiver"])
def test_without_a_token_nothing_is_attached_and_nothing_betrayed(
    broker: BrokerProcess, address: str, sends: bool
) -> None:
    with RawConnection(broker.addresses.amqp_port) as connection:
        connection.open(raw.sasl_anonymous())
        connection.begin()
        answer = connection.attach(
            raw.sender_attach(0, address) if sends else raw.receiver_attach(0, address)
        )
        assert raw.condition_of(answer) == UNAUTHORIZED
        assert part_politely(connection) is None


@pytest.mark.parametrize(
    "token",
    [
        token_for(AUDIENCE, 60, key="wrong"),
        token_for(AUDIENCE, 60, key_name="nobody"),
        token_for(AUDIENCE, -10),
        token_for("sb://127.0.0.1/another", 60),
        token_for(AUDIENCE, 60) + "x",
        "SharedAccessSignature",
        "SharedAccessSignature sr=&sig=&se=&skn=",
        "SharedAccessSignature sr=a&sr=b&sig=%%%&se=9999999999999999999999&skn=\x00",
        "",
        "eyJhbGciOiJub25lIn0.e30.",
    ],
    ids=[
        "wrong key",
        "unknown key",
        "expired",
        "another's",
        "changed",
        "no fields",
        "empty fields",
        "odd fields",
        "empty",
        "JWT",
    ],
)
def test_a_bad_token_is_refused_and_gives_no_rights(broker: BrokerProcess, token: str) -> None:
    with RawConnection(broker.addresses.amqp_port) as connection:
        connection.open(raw.sasl_anonymous())
        connection.begin()
        with pytest.raises(AssertionError, match=r"answered with 40[0-9]"):
            connection.put_token(token, AUDIENCE, 1)
        assert raw.condition_of(connection.attach(raw.sender_attach(0, "target"))) == UNAUTHORIZED


@pytest.mark.parametrize("sends", [True, False], ids=["sender", "receiver"])
def test_a_token_that_expires_ends_its_links_and_no_others(broker: BrokerProcess, sends: bool) -> None:
    with RawConnection(broker.addresses.amqp_port) as connection:
        connection.open(raw.sasl_anonymous())
        connection.begin()
        connection.put_token(token_for(AUDIENCE, 2), AUDIENCE, 1)
        connection.put_token(token_for("sb://127.0.0.1/bulk", 60), "sb://127.0.0.1/bulk", 2)
        assert connection.attach(raw.sender_attach(0, "bulk")).code == raw.ATTACH
        assert (
            connection.attach(
                raw.sender_attach(1, "target") if sends else raw.receiver_attach(1, "target")
            ).code
            == raw.ATTACH
        )
        ended = connection.read_until(raw.DETACH, within_s=4)
        assert ended.field(0) == 1 and raw.condition_of(ended) == UNAUTHORIZED
        connection.send_frame(raw.DETACH, [UInt(1), True])
        assert raw.condition_of(connection.attach(raw.sender_attach(2, "target"))) == UNAUTHORIZED
        connection.send_frame(raw.TRANSFER, raw.transfer_fields(0, 0), message())
        assert connection.read_until(raw.DISPOSITION).field(4).descriptor == raw.ACCEPTED


@pytest.mark.parametrize(
    "address", ["no-such-queue", "", "/", "$", "target/$nothing", "../target", "x" * 5_000, "\x00", None]
)
def test_an_unknown_entity_is_refused_on_its_link_alone(broker: BrokerProcess, address: str | None) -> None:
    with opened(broker.addresses.amqp_port) as connection:
        for handle, fields in enumerate((raw.sender_attach(0, address), raw.receiver_attach(1, address))):
            condition = raw.condition_of(connection.attach(fields))
            assert condition in (NOT_FOUND, "com.microsoft:argument-error", "amqp:not-implemented")
            connection.send_frame(raw.DETACH, [UInt(handle), True])
        assert part_politely(connection) is None


def test_links_and_sessions_over_the_bound_are_refused(broker: BrokerProcess) -> None:
    with opened(broker.addresses.amqp_port) as connection:
        for handle in range(100):
            assert connection.attach(raw.sender_attach(handle, "target")).code == raw.ATTACH
        assert (
            raw.condition_of(connection.attach(raw.sender_attach(100, "target")))
            == "amqp:resource-limit-exceeded"
        )
        for channel in range(1, 32):
            connection.begin(channel)
        connection.send_frame(raw.BEGIN, raw.begin_fields(), channel=32)
        assert part_politely(connection) is not None


# --- invalid messages ---------------------------------------------------------------------------------------


def send_in_frames(
    connection: RawConnection, number: int, payload: bytes, frame_bytes: int = 200_000
) -> None:
    for begin in range(0, len(payload), frame_bytes):
        more = begin + frame_bytes < len(payload)
        connection.send_frame(
            raw.TRANSFER, raw.transfer_fields(0, number, more=more), payload[begin : begin + frame_bytes]
        )


@pytest.mark.parametrize("size", [MESSAGE_BYTES_MAX + 1, 3 * MESSAGE_BYTES_MAX])
def test_a_message_over_the_limit_is_rejected_and_the_next_one_taken(
    broker: BrokerProcess, size: int
) -> None:
    with opened(broker.addresses.amqp_port) as connection:
        connection.attach_sender(0, "target")
        head = b"\x00\x53\x75\xb0" + (size - 8).to_bytes(4, "big")
        send_in_frames(connection, 0, head + bytes(size - 8))
        assert rejected_with(connection.read_until(raw.DISPOSITION)) == TOO_LARGE
        connection.send_frame(raw.TRANSFER, raw.transfer_fields(0, 1), message())
        assert connection.read_until(raw.DISPOSITION).field(4).descriptor == raw.ACCEPTED


def test_a_message_without_end_is_rejected_before_it_fills_the_memory(broker: BrokerProcess) -> None:
    before = resident_mib(broker.pid)
    with opened(broker.addresses.amqp_port) as connection:
        connection.attach_sender(0, "target")
        for _ in range(400):
            connection.send_frame(raw.TRANSFER, raw.transfer_fields(0, 0, more=True), bytes(200_000))
        assert rejected_with(connection.read_until(raw.DISPOSITION)) == TOO_LARGE
        assert resident_mib(broker.pid) - before < 30


def test_many_messages_that_never_end_are_bounded_together(broker: BrokerProcess) -> None:
    before = resident_mib(broker.pid)
    with opened(broker.addresses.amqp_port) as connection:
        with contextlib.suppress(ConnectionEnded):  # the broker had heard enough
            for handle in range(90):
                connection.send_frame(raw.ATTACH, raw.sender_attach(handle, "target"))
                for _ in range(4):
                    connection.send_frame(
                        raw.TRANSFER, raw.transfer_fields(handle, handle, more=True), bytes(250_000)
                    )
            assert part_politely(connection) == "amqp:resource-limit-exceeded"
        assert resident_mib(broker.pid) - before < 100


MALFORMED = {
    "random bytes": b"\xde\xad\xbe\xef" * 10,
    "an unknown section": section(0x7A, [1]),
    "a section cut off": message()[:-2],
    "a size that lies": b"\x00\x53\x75\xb0\xff\xff\xff\xff",
    "properties that are a map": section(0x73, {"a": 1}),
    "properties with too many fields": section(0x73, [None] * 50),
    "annotations that are a list": section(0x72, [1, 2]),
    "two kinds of body": section(0x75, b"x") + section(0x77, 1),
    "properties twice": message(properties=["a"]) + section(0x73, ["b"]),
    "a session-id that is no text": section(0x73, [*["x"] * 10, 5]) + section(0x75, b""),
    "a partition key that is a map": section(0x72, {Symbol("x-opt-partition-key"): {"a": 1}})
    + section(0x75, b""),
    "a partition key of 200 characters": message(annotations={"x-opt-partition-key": "k" * 200}),
    "a message-id of 200 characters": message(properties=["i" * 200]),
    "100 KB of properties": message(application={"a": "x" * 100_000}),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_message_is_rejected_alone(broker: BrokerProcess, name: str) -> None:
    with opened(broker.addresses.amqp_port) as connection:
        connection.attach_sender(0, "target")
        for number, batch in ((0, False), (1, True)):
            payload = message(body=[message(), MALFORMED[name]]) if batch else MALFORMED[name]
            connection.send_frame(raw.TRANSFER, raw.transfer_fields(0, number, batch=batch), payload)
            condition = rejected_with(connection.read_until(raw.DISPOSITION))
            assert condition.startswith(("amqp:", "com.microsoft:argument-error"))
        connection.send_frame(raw.TRANSFER, raw.transfer_fields(0, 2), message())
        assert connection.read_until(raw.DISPOSITION).field(4).descriptor == raw.ACCEPTED


@pytest.mark.parametrize(
    "payload",
    [b"", b"\xff\xff", section(0x77, "no data"), message(body=[b"\xff", message()]), message(body=[])],
    ids=repr,
)
def test_a_malformed_batch_is_rejected_whole(broker: BrokerProcess, payload: bytes) -> None:
    with opened(broker.addresses.amqp_port) as connection:
        connection.attach_sender(0, "target")
        connection.send_frame(raw.TRANSFER, raw.transfer_fields(0, 0, batch=True), payload)
        assert rejected_with(connection.read_until(raw.DISPOSITION)).startswith(
            ("amqp:", "com.microsoft:argument-error")
        )
        assert part_politely(connection) is None


REQUESTS = {
    "no operation": section(0x77, None),
    "a text": section(0x77, "junk"),
    "a number as operation": section(0x74, {"operation": 5}),
    "no body": section(0x74, {"operation": "com.microsoft:peek-message"}),
    "an unknown operation": section(0x74, {"operation": "no-such-operation"}) + section(0x77, {}),
    "no message": b"\xff\xff\xff",
    "peek of wrong types": section(0x74, {"operation": "com.microsoft:peek-message"})
    + section(0x77, {"from-sequence-number": "x", "message-count": -1}),
    "renewal of wrong types": section(0x74, {"operation": "com.microsoft:renew-lock"})
    + section(0x77, {"lock-tokens": "all"}),
    "settlement of wrong types": section(0x74, {"operation": "com.microsoft:update-disposition"})
    + section(0x77, {"disposition-status": 1, "lock-tokens": [1]}),
}


@pytest.mark.parametrize("name", REQUESTS)
@pytest.mark.parametrize("node", ["$cbs", "target/$management"])
def test_a_malformed_request_is_answered_or_rejected(broker: BrokerProcess, node: str, name: str) -> None:
    with opened(broker.addresses.amqp_port) as connection:
        assert connection.attach(raw.sender_attach(0, node)).code == raw.ATTACH
        connection.read_until(raw.FLOW)
        receiver = raw.receiver_attach(1, node)
        receiver[6] = Described(ULong(raw.TARGET), ["reply"])
        assert connection.attach(receiver).code == raw.ATTACH
        connection.send_frame(raw.FLOW, raw.flow_fields(1, 0, 5))
        connection.send_frame(
            raw.TRANSFER,
            raw.transfer_fields(0, 0),
            section(0x73, ["id", None, node, None, "reply"]) + REQUESTS[name],
        )
        found = connection.read_until(raw.TRANSFER, raw.DISPOSITION)
        if found.code == raw.DISPOSITION and found.field(4).descriptor == raw.ACCEPTED:
            found = connection.read_until(raw.TRANSFER)  # the answer itself
        assert part_politely(connection) is None


# --- credit and time ----------------------------------------------------------------------------------------


def fill(port: int, queue: str, messages: int, body_bytes: int) -> None:
    """Fill a queue with a backlog."""
    payload = message(body=[bytes(body_bytes)])
    with opened(port) as connection:
        connection.attach_sender(0, queue)
        for begin in range(0, messages, 50):
            numbers = range(begin, min(begin + 50, messages))
            connection.send(
                *[raw.frame(raw.TRANSFER, raw.transfer_fields(0, number), payload) for number in numbers]
            )
            waiting = len(numbers)
            while waiting:
                found = connection.read_until(raw.DISPOSITION)
                assert found.field(4).descriptor == raw.ACCEPTED
                waiting -= (found.field(2) or found.field(1)) - found.field(1) + 1


@pytest.mark.parametrize("credit", [10_000, 2**31, 2**32 - 1])
def test_a_client_that_never_reads_gets_no_more_than_a_buffer_full(
    broker: BrokerProcess, credit: int
) -> None:
    port = broker.addresses.amqp_port
    if credit == 10_000:
        fill(port, "backlog", 600, 100_000)
    before = resident_mib(broker.pid)
    readers = []
    try:
        for _ in range(3):
            reader = opened(port, receive_buffer_bytes=4_096)
            readers.append(reader)
            reader.attach_receiver(1, "backlog")
            reader.send_frame(raw.FLOW, raw.flow_fields(1, 0, credit))
        with Bystander(port) as bystander:
            slowest_s = max(bystander.round_trip() for _ in range(50))
        assert slowest_s < 1.0
        assert resident_mib(broker.pid) - before < 100
    finally:
        for reader in readers:
            reader.socket.close()


def test_huge_credit_on_many_empty_links_costs_nothing(broker: BrokerProcess) -> None:
    before = resident_mib(broker.pid)
    with opened(broker.addresses.amqp_port) as connection:
        for handle in range(90):
            connection.send_frame(raw.ATTACH, raw.receiver_attach(handle, "bulk/$deadletterqueue"))
            connection.send_frame(raw.FLOW, raw.flow_fields(handle, 0, 2**32 - 1))
            connection.send_frame(raw.FLOW, raw.flow_fields(handle, 2**32 - 1, 2**32 - 1))
        assert part_politely(connection) is None
    assert resident_mib(broker.pid) - before < 20


def test_a_client_that_asks_and_never_reads_the_answers_is_held_back(broker: BrokerProcess) -> None:
    before = resident_mib(broker.pid)
    with opened(broker.addresses.amqp_port, receive_buffer_bytes=4_096) as connection:
        echo = raw.frame(raw.FLOW, [*raw.flow_fields(), None, None, None, None, None, True]) * 1_000
        connection.socket.settimeout(0.5)
        sent_bytes = 0
        with contextlib.suppress(TimeoutError, ConnectionError):  # it reads no more, or has hung up
            while sent_bytes < 60_000_000:
                sent_bytes += connection.socket.send(echo)
        assert resident_mib(broker.pid) - before < 40


def test_a_sender_that_ignores_its_credit_is_served_or_refused_but_not_collected(
    broker: BrokerProcess,
) -> None:
    before = resident_mib(broker.pid)
    payload = message(body=[bytes(20_000)])
    with opened(broker.addresses.amqp_port) as connection:
        assert connection.attach(raw.sender_attach(0, "bulk")).code == raw.ATTACH
        connection.socket.settimeout(10.0)
        with contextlib.suppress(ConnectionEnded):
            for begin in range(0, 4_000, 100):
                numbers = range(begin, begin + 100)
                connection.send(
                    *[
                        raw.frame(raw.TRANSFER, raw.transfer_fields(0, number, settled=True), payload)
                        for number in numbers
                    ]
                )
        part_politely(connection, within_s=20)
    assert resident_mib(broker.pid) - before < 120


@pytest.mark.parametrize(
    "said",
    [b"", raw.SASL_HEADER, raw.sasl_plain(), raw.sasl_plain() + raw.AMQP_HEADER],
    ids=["nothing", "header", "login", "AMQP"],
)
def test_a_client_that_never_finishes_its_open_is_hung_up_on(broker: BrokerProcess, said: bytes) -> None:
    with RawConnection(broker.addresses.amqp_port) as connection:
        begin = time.monotonic()
        connection.send(said)
        with pytest.raises(ConnectionEnded):
            while True:
                connection.read_bytes(1, within_s=OPEN_TIMEOUT_S + 3)
        assert time.monotonic() - begin > OPEN_TIMEOUT_S - 0.5


def test_a_login_that_drips_is_cut_off_and_an_open_connection_may_drip(broker: BrokerProcess) -> None:
    with RawConnection(broker.addresses.amqp_port) as connection, pytest.raises(ConnectionEnded):
        for byte in raw.sasl_plain() + raw.AMQP_HEADER + raw.frame(raw.OPEN, raw.open_fields()):
            connection.send(bytes((byte,)))
            time.sleep(0.05)
        ending(connection)
        raise ConnectionEnded
    with opened(broker.addresses.amqp_port) as connection:
        for byte in raw.frame(raw.ATTACH, raw.sender_attach(0, "target")):
            connection.send(bytes((byte,)))
        assert connection.read_until(raw.ATTACH).field(6) is not None


def test_changes_without_end_are_refused_before_they_fill_the_memory(broker: BrokerProcess) -> None:
    fill(broker.addresses.amqp_port, "bulk", 1, 10)
    with opened(broker.addresses.amqp_port) as connection:
        connection.attach_receiver(1, "bulk")
        connection.send_frame(raw.FLOW, raw.flow_fields(1, 0, 1))
        number = connection.read_until(raw.TRANSFER).field(1)
        changes = {Symbol(f"k{index}"): "x" * 1_000 for index in range(100)}
        assert len(encode(changes)) > 65_536
        state = raw.outcome(raw.MODIFIED, [True, False, changes])
        connection.send_frame(
            raw.DISPOSITION, raw.disposition_fields(raw.RECEIVER, number, number, False, state)
        )
        assert rejected_with(connection.read_until(raw.DISPOSITION)).startswith(
            ("amqp:", "com.microsoft:argument-error")
        )


def test_large_settlements_in_masses_are_forgotten_once_they_are_answered(broker: BrokerProcess) -> None:
    fill(broker.addresses.amqp_port, "changed", 1_000, 10)
    with opened(broker.addresses.amqp_port) as connection:
        connection.attach_receiver(1, "changed")
        connection.send_frame(raw.FLOW, raw.flow_fields(1, 0, 1_000))
        numbers = [connection.read_until(raw.TRANSFER).field(1) for _ in range(1_000)]
        before = resident_mib(broker.pid)
        for number in numbers:
            state = raw.outcome(raw.MODIFIED, [True, True, {Symbol("note"): f"{number:060000}"}])
            connection.send_frame(
                raw.DISPOSITION, raw.disposition_fields(raw.RECEIVER, number, number, False, state)
            )
            assert rejected_with(connection.read_until(raw.DISPOSITION)) == "com.microsoft:argument-error"
        assert resident_mib(broker.pid) - before < 20, "60 MB were sent"
        assert part_politely(connection) is None


def test_a_settlement_said_twice_in_one_breath_counts_once(broker: BrokerProcess) -> None:
    fill(broker.addresses.amqp_port, "twice", 4, 10)
    with opened(broker.addresses.amqp_port) as connection:
        connection.attach_receiver(1, "twice")
        for settled in (True, False):
            connection.send_frame(raw.FLOW, raw.flow_fields(1, 0 if settled else 1, 1))
            number = connection.read_until(raw.TRANSFER).field(1)
            said = raw.frame(
                raw.DISPOSITION,
                raw.disposition_fields(raw.RECEIVER, number, number, settled, raw.outcome(raw.ACCEPTED)),
            )
            connection.send(said, said, said)
        assert connection.read_until(raw.DISPOSITION).field(4).descriptor == raw.ACCEPTED
        assert part_politely(connection) is None


def test_wrong_passwords_in_masses_leave_few_log_lines(broker: BrokerProcess) -> None:
    before, began = broker.log.count('"connection.refused"'), time.monotonic()
    for _ in range(300):
        with (
            RawConnection(broker.addresses.amqp_port) as connection,
            contextlib.suppress(AssertionError, ConnectionEnded),
        ):
            connection.log_in(raw.sasl_plain(password="wrong"))
    took_s = time.monotonic() - began
    assert 0 < broker.log.count('"connection.refused"') - before <= LINES_MAX * (took_s + 2)
