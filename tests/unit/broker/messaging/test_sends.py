"""broker/messaging/sends.py: what a `Send` says of the messages depends on the queue."""

from __future__ import annotations

from broker.entities.descriptions import QueueSettings
from broker.identifiers import encode_session_id
from broker.message.stored import store_run
from broker.messaging.sends import send_of
from broker.operations.columns import SESSION_ID
from broker.operations.sending import Send
from tests.support.amqp_messages import message
from tests.support.link_stack import LinkStack


def sent_to(settings: QueueSettings) -> Send:
    of_session = message(properties=["one"] + [None] * 9 + ["cart"], body=[b"a"])
    return send_of(store_run([of_session, message(body=[b"b"])], lambda: "two"), LinkStack(2, settings).queue)


async def test_a_plain_queue_gets_the_messages_and_nothing_else() -> None:
    send = sent_to(QueueSettings())
    assert len(send.messages) == 2
    assert (send.columns, send.identities, send.time_to_live_ms, send.scheduled_ms) == ({}, None, None, None)


async def test_a_queue_with_sessions_gets_the_session_of_each_message() -> None:
    send = sent_to(QueueSettings(requires_session=True))
    assert list(send.columns) == [SESSION_ID]
    first, second = send.columns[SESSION_ID]
    assert first == encode_session_id("cart") != second, "the second one is refused later"


async def test_a_queue_that_detects_duplicates_gets_an_identity_for_each_message() -> None:
    send = sent_to(QueueSettings(requires_duplicate_detection=True))
    assert send.identities is not None and len(set(send.identities)) == 2
