"""Topics through the official Python client: subscriptions give all that a queue gives."""

from __future__ import annotations

import datetime
import uuid
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import (
    NEXT_AVAILABLE_SESSION,
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusReceiveMode,
    ServiceBusSubQueue,
)
from azure.servicebus.exceptions import (
    MessagingEntityDisabledError,
    MessagingEntityNotFoundError,
    ServiceBusError,
)
from azure.servicebus.management import (
    CorrelationRuleFilter,
    EntityStatus,
    ServiceBusAdministrationClient,
    SqlRuleAction,
    SqlRuleFilter,
)

from tests.interop.topic_scenarios import TYPED, create_topics, topic_name
from tests.support.azure_client import azure_client
from tests.support.broker_process import BrokerProcess
from tests.support.broker_process import topic as topic_of_file
from tests.support.waiting import WAIT_S

DEAD = ServiceBusSubQueue.DEAD_LETTER


@pytest.fixture
def topic(admin: ServiceBusAdministrationClient) -> str:
    name = f"topic-{uuid.uuid4().hex}"
    admin.create_topic(name)
    admin.create_subscription(name, "all")
    return name


def publish(client: ServiceBusClient, topic: str, *messages: ServiceBusMessage) -> None:
    with client.get_topic_sender(topic) as sender:
        sender.send_messages(list(messages))


def bodies(received: list[Any]) -> list[str]:
    return sorted(str(each) for each in received)


def taken(client: ServiceBusClient, topic: str, name: str, count: int, **options: Any) -> list[Any]:
    """Receive and delete this many messages, and no more than there are."""
    found: list[Any] = []
    options = {"receive_mode": ServiceBusReceiveMode.RECEIVE_AND_DELETE, **options}
    with client.get_subscription_receiver(topic, name, **options) as receiver:
        while len(found) < count:
            some = receiver.receive_messages(max_message_count=count, max_wait_time=WAIT_S)
            assert some, f"{len(found)} of {count} messages came"
            found += some
        assert receiver.receive_messages(max_wait_time=0.2) == []
    return found


def test_each_subscription_gets_what_its_rules_say(
    admin: ServiceBusAdministrationClient, client: ServiceBusClient, topic: str
) -> None:
    for name, filter_, action in (
        ("correlation", CorrelationRuleFilter(label="red"), None),
        ("sql", SqlRuleFilter("price > 10 AND sys.Label IN ('red', 'blue')"), None),
        ("changed", SqlRuleFilter("price > 10"), SqlRuleAction("SET price = price * 2")),
    ):
        admin.create_subscription(topic, name)
        admin.delete_rule(topic, name, "$Default")
        admin.create_rule(topic, name, "rule", filter=filter_, action=action)
    messages = [
        ServiceBusMessage(f"{label} {price}", subject=label, application_properties={"price": price})
        for label in ("red", "blue", "green")
        for price in (5, 50)
    ]
    publish(client, topic, *messages)
    assert len(taken(client, topic, "all", 6)) == 6
    assert bodies(taken(client, topic, "correlation", 2)) == ["red 5", "red 50"]
    assert bodies(taken(client, topic, "sql", 2)) == ["blue 50", "red 50"]
    changed = taken(client, topic, "changed", 3)
    assert [each.application_properties[b"price"] for each in changed] == [100] * 3


def test_a_receiver_of_a_subscription_can_do_what_one_of_a_queue_can(
    client: ServiceBusClient, topic: str
) -> None:
    publish(client, topic, *(ServiceBusMessage(str(number)) for number in range(5)))
    with client.get_subscription_receiver(topic, "all") as receiver:
        assert len(receiver.peek_messages(10)) == 5
        received: list[Any] = []
        while len(received) < 5:
            received += receiver.receive_messages(5 - len(received), max_wait_time=WAIT_S)
        by_body = {str(each): each for each in received}
        receiver.complete_message(by_body["0"])
        receiver.abandon_message(by_body["1"])
        receiver.defer_message(by_body["2"])
        receiver.dead_letter_message(by_body["3"], reason="broken", error_description="why")
        receiver.renew_message_lock(by_body["4"])
        receiver.complete_message(by_body["4"])
        [again] = receiver.receive_messages(1, max_wait_time=WAIT_S)
        assert (str(again), again.delivery_count) == ("1", 1)
        receiver.complete_message(again)
        [deferred] = receiver.receive_deferred_messages(by_body["2"].sequence_number)
        assert str(deferred) == "2"
        receiver.complete_message(deferred)
    [dead] = taken(client, topic, "all", 1, sub_queue=DEAD)
    assert (str(dead), dead.dead_letter_reason, dead.dead_letter_error_description) == ("3", "broken", "why")


def test_scheduled_messages_reach_the_subscriptions_in_time_or_are_cancelled(
    client: ServiceBusClient, topic: str
) -> None:
    now = datetime.datetime.now(datetime.UTC)
    with client.get_topic_sender(topic) as sender:
        soon = now + datetime.timedelta(seconds=1)
        sender.schedule_messages([ServiceBusMessage("soon")], soon)
        [later] = sender.schedule_messages([ServiceBusMessage("never")], now + datetime.timedelta(seconds=2))
        sender.cancel_scheduled_messages(later)
    [message] = taken(client, topic, "all", 1)
    assert str(message) == "soon"


def test_a_topic_drops_duplicates_for_all_its_subscriptions(
    admin: ServiceBusAdministrationClient, client: ServiceBusClient
) -> None:
    """Also of messages that no subscription got, or that are only scheduled."""
    name = f"topic-{uuid.uuid4().hex}"
    admin.create_topic(name, requires_duplicate_detection=True)
    for subscription in ("all", "red"):
        admin.create_subscription(name, subscription)
    admin.create_rule(name, "red", "red", filter=CorrelationRuleFilter(label="red"))
    admin.delete_rule(name, "red", "$Default")

    def messages(text: str, *ids: str, subject: str = "blue") -> list[ServiceBusMessage]:
        return [ServiceBusMessage(f"{text} {each}", message_id=each, subject=subject) for each in ids]

    publish(client, name, *messages("first", *"abc", subject="red"))
    publish(client, name, *messages("again", *"abcd", subject="red"))  # over several partitions
    publish(client, name, *messages("blue", "e"))
    publish(client, name, *messages("again", "e", subject="red"))
    with client.get_topic_sender(name) as sender:
        tomorrow = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=1)
        sender.schedule_messages(messages("later", "f"), tomorrow)
    publish(client, name, *messages("again", "f"))
    red = ["again d", "first a", "first b", "first c"]
    assert bodies(taken(client, name, "red", len(red))) == red
    assert bodies(taken(client, name, "all", len(red) + 1)) == sorted([*red, "blue e"])


def test_the_shorter_time_to_live_of_message_topic_and_subscription_counts(
    admin: ServiceBusAdministrationClient, client: ServiceBusClient
) -> None:
    name, soon = f"topic-{uuid.uuid4().hex}", datetime.timedelta(seconds=1)
    admin.create_topic(name, default_message_time_to_live=60 * soon)
    admin.create_subscription(name, "lasting", dead_lettering_on_message_expiration=True)
    admin.create_subscription(
        name, "brief", dead_lettering_on_message_expiration=True, default_message_time_to_live=soon
    )
    publish(client, name, ServiceBusMessage("default"), ServiceBusMessage("brief", time_to_live=soon))
    assert bodies(taken(client, name, "brief", 2, sub_queue=DEAD)) == ["brief", "default"]
    assert bodies(taken(client, name, "lasting", 1, sub_queue=DEAD)) == ["brief"]
    [left] = taken(client, name, "lasting", 1)
    assert str(left) == "default" and left.expires_at_utc - left.enqueued_time_utc == 60 * soon


def test_a_subscription_with_sessions_and_one_without_get_the_same_messages(
    admin: ServiceBusAdministrationClient, client: ServiceBusClient, topic: str
) -> None:
    admin.create_subscription(topic, "sessions", requires_session=True)
    publish(client, topic, *(ServiceBusMessage(f"{each}", session_id="s") for each in range(3)))
    publish(client, topic, ServiceBusMessage("without"))
    assert len(taken(client, topic, "all", 4)) == 4
    with client.get_subscription_receiver(topic, "sessions", session_id=NEXT_AVAILABLE_SESSION) as receiver:
        assert receiver.session.session_id == "s"
        receiver.session.set_state(b"state")
        assert receiver.session.get_state() == b"state"
        received: list[Any] = []
        while len(received) < 3:
            received += receiver.receive_messages(3, max_wait_time=WAIT_S)
        assert [str(each) for each in received] == ["0", "1", "2"]
        for each in received:
            receiver.complete_message(each)
    [dead] = taken(client, topic, "sessions", 1, sub_queue=DEAD)
    assert (str(dead), dead.dead_letter_reason) == ("without", "Session id is null.")
    for name, session_id in (("sessions", None), ("all", "s")):
        receiver = client.get_subscription_receiver(topic, name, session_id=session_id)
        with pytest.raises(ServiceBusError, match=f"'{topic}/Subscriptions/{name}'"), receiver:
            pass


def test_what_is_forwarded_from_a_subscription_arrives_in_a_queue_or_another_topic(
    admin: ServiceBusAdministrationClient, client: ServiceBusClient, topic: str
) -> None:
    queue, other = f"queue-{uuid.uuid4().hex}", f"topic-{uuid.uuid4().hex}"
    admin.create_queue(queue)
    admin.create_topic(other)
    admin.create_subscription(other, "all", forward_to=queue)
    admin.create_subscription(topic, "on", forward_to=other)
    publish(client, topic, ServiceBusMessage("m"))
    with client.get_queue_receiver(queue) as receiver:
        [message] = receiver.receive_messages(max_wait_time=WAIT_S)
        assert str(message) == "m"
        receiver.complete_message(message)
    with (
        pytest.raises(ServiceBusError, match="auto-forwarding"),
        client.get_subscription_receiver(topic, "on") as it,
    ):
        it.receive_messages(max_wait_time=1)


def test_what_cannot_be_done_with_a_topic_is_refused(
    admin: ServiceBusAdministrationClient, client: ServiceBusClient, topic: str
) -> None:
    with (
        pytest.raises(MessagingEntityNotFoundError),
        client.get_subscription_receiver(topic, "missing") as receiver,
    ):
        receiver.receive_messages(max_wait_time=1)
    with (
        pytest.raises(MessagingEntityNotFoundError),
        client.get_subscription_receiver("missing", "all") as receiver,
    ):
        receiver.receive_messages(max_wait_time=1)
    with pytest.raises(ServiceBusError, match="subscriptions"), client.get_queue_receiver(topic) as receiver:
        receiver.receive_messages(max_wait_time=1)
    with pytest.raises(ServiceBusError), client.get_queue_sender(f"{topic}/Subscriptions/all") as sender:
        sender.send_messages(ServiceBusMessage("m"))
    properties = admin.get_topic(topic)
    properties.status = EntityStatus.SEND_DISABLED
    admin.update_topic(properties)
    with pytest.raises(MessagingEntityDisabledError):
        publish(client, topic, ServiceBusMessage("m"))


def test_a_subscription_that_is_deleted_ends_its_receivers_and_loses_its_messages(
    admin: ServiceBusAdministrationClient, client: ServiceBusClient, topic: str
) -> None:
    publish(client, topic, *(ServiceBusMessage(str(each)) for each in range(3)))
    with client.get_subscription_receiver(topic, "all") as receiver:
        assert receiver.receive_messages(max_wait_time=WAIT_S)
        admin.delete_subscription(topic, "all")
        with pytest.raises(ServiceBusError):
            while True:
                receiver.receive_messages(max_wait_time=1)
    admin.create_subscription(topic, "all")
    with client.get_subscription_receiver(topic, "all") as receiver:
        assert receiver.peek_messages(10) == []
    publish(client, topic, ServiceBusMessage("new"))
    assert bodies(taken(client, topic, "all", 1)) == ["new"]


@pytest.mark.parametrize("process", ["false", "true"], ids=["one process", "partitions in another"])
def test_a_topic_of_the_configuration_file_serves_and_keeps_its_messages_over_a_crash(
    tmp_path: Path, process: str
) -> None:
    topics = [topic_of_file("topic.1", ["s.1", "s.2"])]
    environment = {"PARTIBUS_PARTITION_PROCESS": process}
    with BrokerProcess(tmp_path, [], topics=topics, environment=environment) as broker:
        with azure_client(broker.addresses.connection_string(), retry_total=0) as client:
            publish(client, "topic.1", *(ServiceBusMessage(str(each)) for each in range(20)))
            assert len(taken(client, "topic.1", "s.2", 20)) == 20
        broker.kill()
        broker.start()
        with azure_client(broker.addresses.connection_string(), retry_total=0) as client:
            assert bodies(taken(client, "topic.1", "s.1", 20)) == sorted(map(str, range(20)))
            with client.get_subscription_receiver("topic.1", "s.2") as receiver:
                assert receiver.peek_messages(10) == []


def test_rules_see_each_type_of_property(
    admin: ServiceBusAdministrationClient, client: ServiceBusClient
) -> None:
    create_topics(admin, "python", ["typed-filters"])
    topic = topic_name("python", "typed-filters")
    at = datetime.datetime(2020, 7, 1, tzinfo=datetime.UTC)
    system = {"message_id": "typed", "correlation_id": "c", "to": "t", "reply_to": "r", "subject": "l"}
    properties = {"whole": 7, "fraction": 1.5, "text": "a_b", "yes": True, "no": False, "at": at}
    publish(
        client,
        topic,
        ServiceBusMessage("x", **system, content_type="ct", application_properties=properties),  # type: ignore[arg-type]
    )
    for subscription in TYPED:
        wanted = subscription.name not in ("unknown", "other-value")
        assert len(taken(client, topic, subscription.name, int(wanted))) == wanted
