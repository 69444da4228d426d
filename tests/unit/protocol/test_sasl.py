from typing import Any

import pytest

from protocol.codec import Array, Described, Symbol, ULong, decode, encode
from protocol.sasl import AMQP_HEADER, SASL_HEADER, SaslServer, Step


def frame(performative: Any, frame_type: int = 1) -> bytes:
    body = encode(performative)
    return (8 + len(body)).to_bytes(4, "big") + bytes((2, frame_type, 0, 0)) + body


def init(mechanism: str, response: bytes | None = None) -> bytes:
    return frame(Described(ULong(0x41), [Symbol(mechanism), response, "host"]))


def server() -> SaslServer:
    return SaslServer(lambda user, password: (user, password) == ("rule", "key=="))


def outcome_code(output: bytes) -> int:
    outcome, end = decode(output, 8)
    assert (outcome.descriptor, end) == (0x44, len(output))
    return int(outcome.value[0])


def run(*chunks: bytes) -> list[Step]:
    sasl = server()
    return [sasl.receive(chunk) for chunk in chunks]


def test_the_mechanisms_are_offered_as_an_array_of_symbols() -> None:
    [step] = run(SASL_HEADER)
    [output] = step.outputs
    assert output[:8] == SASL_HEADER
    offer, _ = decode(output, 16)
    assert offer == Described(ULong(0x40), [Array(0xA3, ["MSSBCBS", "PLAIN", "ANONYMOUS"])])
    assert all(type(mechanism) is Symbol for mechanism in offer.value[0].values)
    assert not step.done
    assert not step.failed


@pytest.mark.parametrize("mechanism", ["MSSBCBS", "ANONYMOUS"])
@pytest.mark.parametrize("response", [None, b"", b"\x00RootManageSharedAccessKey"])
def test_mechanisms_without_rights_let_anybody_in(mechanism: str, response: bytes | None) -> None:
    _, step = run(SASL_HEADER, init(mechanism, response))
    assert step.done
    assert [outcome_code(output) for output in step.outputs] == [0]
    assert step.rest == b""


@pytest.mark.parametrize("identity", [b"", b"someone"])
def test_plain_lets_in_who_knows_the_key(identity: bytes) -> None:
    _, step = run(SASL_HEADER, init("PLAIN", identity + b"\0rule\0key=="))
    assert step.done


@pytest.mark.parametrize(
    "response", [b"\0rule\0wrong", b"\0rule", b"", None, b"\0rule\0key==\0", b"\0\xff\0key=="]
)
def test_plain_refuses_everybody_else(response: bytes | None) -> None:
    _, step = run(SASL_HEADER, init("PLAIN", response))
    assert step.failed
    assert not step.done
    assert [outcome_code(output) for output in step.outputs] == [1]
    assert "key==" not in step.reason and "wrong" not in step.reason.replace("is wrong", "")


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "EXTERNAL"])
def test_a_mechanism_that_is_not_offered_is_an_authentication_failure(mechanism: str) -> None:
    _, step = run(SASL_HEADER, init(mechanism))
    assert step.failed and mechanism in step.reason
    assert outcome_code(step.outputs[0]) == 1


def test_what_a_client_pipelines_behind_its_init_is_handed_on() -> None:
    pipelined = AMQP_HEADER + b"open and more" * 100
    [step] = run(SASL_HEADER + init("ANONYMOUS") + pipelined)
    assert step.done
    assert step.rest == pipelined
    assert len(step.outputs) == 2, "header with mechanisms, and the outcome, to be written one by one"


def test_an_exchange_cut_at_any_byte_goes_the_same_way() -> None:
    stream = SASL_HEADER + init("PLAIN", b"\0rule\0key==") + AMQP_HEADER
    for cut in range(1, len(stream)):
        sasl = server()
        steps = [sasl.receive(stream[:cut])]
        if not steps[0].done:
            steps.append(sasl.receive(stream[cut:]))
        assert steps[-1].done
        assert len([output for step in steps for output in step.outputs]) == 2
        assert sasl.mechanism == "PLAIN"
        assert AMQP_HEADER.startswith(steps[-1].rest)


def test_a_client_that_skips_sasl_is_taken_as_anonymous() -> None:
    step = run(AMQP_HEADER + b"open")[0]
    assert (step.done, step.rest, step.outputs) == (True, AMQP_HEADER + b"open", [])
    first, second = run(AMQP_HEADER[:5], AMQP_HEADER[5:])
    assert not first.done
    assert second.done
    assert second.rest == AMQP_HEADER


@pytest.mark.parametrize(
    "header",
    [
        b"AMQP\x02\x01\x00\x00",
        b"AMQP\x00\x00\x09\x01",
        b"GET / HTTP/1.1\r\n",
        b"\x16\x03\x01",
        b"AMQP\x03\x01\x01",
    ],
)
def test_another_protocol_is_told_ours_and_refused(header: bytes) -> None:
    [step] = run(header)
    assert step.failed
    assert step.outputs == [SASL_HEADER]


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x00\x00\x00\x07\x02\x01\x00\x00",
        b"\x00\x00\x02\x01\x02\x01\x00\x00",
        b"\xff\xff\xff\xff\x02\x01\x00\x00",
        b"\x00\x00\x00\x10\x01\x01\x00\x00",
        b"\x00\x00\x00\x08\x02\x01\x00\x00",
        frame(Described(ULong(0x41), [Symbol("ANONYMOUS")]), frame_type=0),
        frame(Described(ULong(0x43), [b"response"])),
        frame(Described(ULong(0x41), [])),
        frame(Described(ULong(0x41), {})),
        frame(Described(ULong(0x41), [Symbol("PLAIN"), "text"])),
        frame(Described(ULong(0x41), [5])),
        frame(5),
        b"\x00\x00\x00\x0a\x02\x01\x00\x00\xff\xff",
    ],
)
def test_malformed_frames_end_the_exchange(garbage: bytes) -> None:
    _, step = run(SASL_HEADER, garbage)
    assert step.failed
    assert step.reason
    assert not step.done


def test_a_frame_of_the_largest_size_is_taken() -> None:
    room = 512 - len(init("ANONYMOUS", b"x" * 300)) + 300
    _, step = run(SASL_HEADER, init("ANONYMOUS", b"x" * room))
    assert step.done
    _, step = run(SASL_HEADER, init("ANONYMOUS", b"x" * (room + 1)))
    assert step.failed


def test_the_host_that_a_client_names_is_known_when_its_login_is_verified() -> None:
    hosts: list[str] = []

    def verify(user: str, password: str) -> bool:
        hosts.append(login.hostname)
        return True

    for fields in (["orders.example.com"], [None], [7], []):
        login = SaslServer(verify)
        init = encode(Described(ULong(0x41), [Symbol("PLAIN"), b"\0user\0password", *fields]))
        frame = (8 + len(init)).to_bytes(4, "big") + b"\x02\x01\0\0" + init
        assert login.receive(b"AMQP\x03\x01\0\0" + frame).done
    assert hosts == ["orders.example.com", "", "", ""]


@pytest.mark.parametrize("mechanism", ["MSSBCBS", "ANONYMOUS", "PLAIN"])
@pytest.mark.parametrize("host", ["host", "another"])
def test_the_host_counts_with_every_mechanism(mechanism: str, host: str) -> None:
    login = SaslServer(lambda user, password: True, serves=lambda named: named == host)
    login.receive(SASL_HEADER)
    step = login.receive(init(mechanism, b"\0rule\0key=="))
    assert (step.done, step.failed) == (host == "host", host != "host")
    assert outcome_code(step.outputs[0]) == (0 if host == "host" else 1)
