import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus._pyamqp._encode import encode_payload

from broker.errors import Reason, Refused
from broker.frontend.batch import RoutingHint, split
from broker.stored_message import store
from tests.support.amqp_messages import VALUE, message, section


def test_each_data_section_is_a_message() -> None:
    inner = [message(properties=[f"id{n}"], body=[b"x" * n]) for n in (1, 200, 70_000)]
    messages, hint = split(message(body=inner))
    assert messages == inner
    assert hint == RoutingHint(None, None)


def test_the_envelope_hints_at_its_messages_keys_and_is_no_message() -> None:
    inner = message(properties=["own"])
    envelope = message(annotations={"x-opt-partition-key": "p"}, properties=["copied", *[None] * 9, "s"], body=[inner])
    assert split(envelope) == ([inner], RoutingHint("s", "p"))


def test_keys_of_the_envelope_that_are_no_strings_are_no_hint() -> None:
    assert split(message(annotations={"x-opt-partition-key": 5}))[1] == RoutingHint(None, None)


@pytest.mark.parametrize(
    "payload", [b"", b"garbage", message(body=[]), section(VALUE, b"x"), message()[:-1], message(properties=[None] * 14)]
)
def test_what_is_no_batch_is_refused(payload: bytes) -> None:
    with pytest.raises(Refused) as refused:
        split(payload)
    assert refused.value.reason is Reason.DECODE


def test_a_batch_of_the_official_python_client_is_taken_apart() -> None:
    batch = ServiceBusMessageBatch(max_size_in_bytes=100_000)
    for n in range(3):
        batch.add_message(ServiceBusMessage(b"x" * n, message_id=f"id{n}", session_id="s"))
    payload = bytes(encode_payload(bytearray(), batch._message))
    messages, hint = split(payload)
    assert [store(one, lambda: "given").session_id for one in messages] == ["s"] * 3
    assert hint.session_id == "s"
