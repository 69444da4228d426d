import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus._pyamqp._encode import encode_payload

from broker.base.errors import Reason, Refused
from broker.message.batch_envelope import BATCH_BYTES_MAX, RoutingHint, split
from broker.message.stored import store
from tests.support.amqp_messages import DATA, VALUE, message, section


def test_each_data_section_is_a_message() -> None:
    inner = [message(properties=[f"id{n}"], body=[b"x" * n]) for n in (1, 200, 70_000)]
    messages, hint = split(message(body=inner))
    assert messages == inner
    assert hint == RoutingHint(None, None)


def test_the_envelope_hints_at_its_messages_keys_and_is_no_message() -> None:
    inner = message(properties=["own"])
    envelope = message(
        annotations={"x-opt-partition-key": "p"}, properties=["copied", *[None] * 9, "s"], body=[inner]
    )
    assert split(envelope) == ([inner], RoutingHint("s", "p"))


def test_keys_of_the_envelope_that_are_no_strings_are_no_hint() -> None:
    assert split(message(annotations={"x-opt-partition-key": 5}))[1] == RoutingHint(None, None)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"garbage",
        message(body=[]),
        section(VALUE, b"x"),
        message()[:-1],
        message(properties=[None] * 14),
    ],
)
def test_what_is_no_batch_is_refused(payload: bytes) -> None:
    with pytest.raises(Refused) as refused:
        split(payload)
    assert refused.value.reason is Reason.DECODE


def test_a_batch_has_a_limit_of_its_own() -> None:
    inner = message(body=[b"x" * (BATCH_BYTES_MAX - 100)])
    exact = message(body=[inner, b"y" * (BATCH_BYTES_MAX - len(message(body=[inner, b""])))])
    assert len(exact) == BATCH_BYTES_MAX and split(exact)[0][0] == inner
    with pytest.raises(Refused) as refused:
        split(exact + section(DATA, b""))
    assert (
        refused.value.reason is Reason.MESSAGE_TOO_LARGE and str(BATCH_BYTES_MAX) in refused.value.description
    )


def test_a_batch_of_the_official_python_client_is_taken_apart() -> None:
    batch = ServiceBusMessageBatch(max_size_in_bytes=100_000)
    for n in range(3):
        batch.add_message(ServiceBusMessage(b"x" * n, message_id=f"id{n}", session_id="s"))
    payload = bytes(encode_payload(bytearray(), batch._message))
    messages, hint = split(payload)
    assert [store(one, lambda: "given").session_id for one in messages] == ["s"] * 3
    assert hint.session_id == "s"
