"""Quotas of the tiers, as the official Python clients see them."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from azure.core.exceptions import HttpResponseError
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import MessageSizeExceededError, ServiceBusServerBusyError

from tests.support.azure_client import admin_of, azure_client
from tests.support.broker_process import BrokerProcess, queue
from tests.support.rest_client import RestClient

LIMITS = {
    "PARTIBUS_TIER": "standard",
    "PARTIBUS_ENTITIES_MAX": "3",
    "PARTIBUS_SUBSCRIPTIONS_MAX": "1",
    "PARTIBUS_RULES_MAX": "1",
    "PARTIBUS_RECEIVERS_PER_ENTITY_MAX": "1",
    "PARTIBUS_PROPERTIES_KB_MAX": "4",
    "PARTIBUS_PROPERTY_KB_MAX": "2",
}
LARGEST = 256 * 1024


@pytest.fixture(scope="module")
def standard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker of the standard tier that has room for one more entity, subscription and rule each."""
    folder: Path = tmp_path_factory.mktemp("standard")
    with BrokerProcess(folder, [queue("orders"), queue("labels")], environment=LIMITS) as broker:
        yield broker


def client_of(broker: BrokerProcess) -> ServiceBusClient:
    return azure_client(broker.addresses.connection_string(), retry_total=0)


def test_messages_batches_and_pages_of_the_standard_tier_have_256_kib(standard: BrokerProcess) -> None:
    with client_of(standard) as client:
        with client.get_queue_sender("orders") as sender:
            with pytest.raises(MessageSizeExceededError):
                sender.send_messages(ServiceBusMessage(bytes(LARGEST)))
            batch = sender.create_message_batch()
            assert batch.max_size_in_bytes == LARGEST
            batch.add_message(ServiceBusMessage(bytes(LARGEST // 3), partition_key="one"))
            sender.send_messages(batch)
            for _ in range(3):
                sender.send_messages(ServiceBusMessage(bytes(LARGEST // 3), partition_key="one"))
        with client.get_queue_receiver("orders") as receiver:
            shown, next_number = [], 0
            while page := receiver.peek_messages(10, sequence_number=next_number):
                shown.append(len(page))
                last = page[-1].sequence_number
                assert last is not None
                next_number = last + 1
            assert shown == [2, 2]


def test_messages_with_more_properties_than_the_settings_permit_are_too_large(
    standard: BrokerProcess,
) -> None:
    fits = ServiceBusMessage(b"x", application_properties={"one": "x" * 2_000, "two": "x" * 1_900})
    with client_of(standard) as client, client.get_queue_sender("labels") as sender:
        for sizes, words in (
            ([2_050], "The property '0' takes 2055 bytes; the limit is 2048"),
            ([1_000] * 5, "annotations and properties take .* is 4096"),
        ):
            large = ServiceBusMessage(
                b"x", application_properties={str(place): "x" * size for place, size in enumerate(sizes)}
            )
            with pytest.raises(MessageSizeExceededError, match=words):
                sender.send_messages(large)
            with pytest.raises(MessageSizeExceededError, match=words):
                sender.send_messages([fits, large])
        sender.send_messages(fits)
    with RestClient(standard.addresses.http_port) as rest:
        refused = rest.ask("POST", "/labels/messages", b"x", {"one": "x" * 2_050})
        assert refused.status == 403 and b"The property 'one' takes 2055 bytes" in refused.body
        assert rest.ask("POST", "/labels/messages", b"x", {"one": "x" * 2_000}).status == 201
        received = [rest.receive("/labels") for _ in range(2)]
        assert [len(answer.headers["one"].strip('"')) for answer in received] == [2_000, 2_000]


def test_an_entity_that_has_all_its_receivers_is_busy(standard: BrokerProcess) -> None:
    with client_of(standard) as client:
        with client.get_queue_receiver("orders") as first:
            first.receive_messages(1, max_wait_time=0.1)
            with pytest.raises(ServiceBusServerBusyError, match="'orders' has 1 receivers; the maximum is 1"):
                client.get_queue_receiver("orders").receive_messages(1, max_wait_time=10)
            with RestClient(standard.addresses.http_port) as rest:
                assert rest.receive("/orders").status == 503
        with client.get_queue_receiver("orders") as second:
            assert second.receive_messages(1, max_wait_time=10)


def test_entities_subscriptions_and_rules_beyond_their_quotas_are_refused(standard: BrokerProcess) -> None:
    with admin_of(standard) as admin:
        admin.create_topic("events")
        admin.create_subscription("events", "one")
        for create in (
            lambda: admin.create_queue("more"),
            lambda: admin.create_subscription("events", "two"),
            lambda: admin.create_rule("events", "one", "second"),
        ):
            with pytest.raises(HttpResponseError, match="SubCode=40300") as why:
                create()
            assert why.value.status_code == 403


def test_health_and_metrics_show_what_all_partitions_may_hold_together(standard: BrokerProcess) -> None:
    with urllib.request.urlopen(f"{standard.addresses.http_url}/health", timeout=10) as answer:
        assert json.load(answer)["entities"]["orders"]["size_bytes_max"] == 16 << 30
    with urllib.request.urlopen(f"{standard.addresses.http_url}/metrics", timeout=10) as answer:
        assert f'partibus_size_bytes_max{{entity="orders"}} {16 << 30}.0' in answer.read().decode()
