"""Administration and REST while the disk of one partition hangs.

The administration clients of four languages do with other entities what they always do. The entity with the
partition shows that it is limited, changes of it take effect in all partitions, and it recovers by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from azure.core.exceptions import ResourceNotFoundError
from azure.servicebus import ServiceBusReceivedMessage, ServiceBusReceiver, ServiceBusSubQueue
from azure.servicebus.management import ServiceBusAdministrationClient, SqlRuleFilter

from broker.namespace.router import partition_of_key
from storage.disk import LocalDisk
from tests.interop.admin_programs import (
    IN_GO,
    administer_in_go,
    administer_in_java,
    administer_in_javascript,
)
from tests.support.azure_client import admin_of, azure_client
from tests.support.broker_process import queue
from tests.support.broker_thread import BrokerThread
from tests.support.faulty_disk import FaultyDisk
from tests.support.rest_client import RestClient
from tests.support.waiting import until_seen

PARTITIONS, VICTIM = 16, 5
KEYS = {partition_of_key(f"key{number}", PARTITIONS): f"key{number}" for number in range(400)}
"""A key for each partition."""
BUSY, SENT = 503, 201
IN_JAVASCRIPT = (
    "create-and-get",
    "update",
    "errors",
    "exists-and-delete",
    "runtime-properties",
    "subscriptions",
)
IN_JAVA = ("queues", "errors")
QUEUE = "orders"


def send(rest: RestClient, number: int | None = None) -> int:
    """Send a message, with the key of this partition or without a key; returns the status."""
    properties = "{}" if number is None else f'{{"PartitionKey": "{KEYS[number]}"}}'
    return rest.ask("POST", f"/{QUEUE}/messages", b"x", {"BrokerProperties": properties}).status


@contextmanager
def one_partition_down(folder: Path) -> Iterator[tuple[FaultyDisk, BrokerThread, RestClient]]:
    """Put a message into every partition of a queue, then make the syncs of one of them hang."""
    disk = FaultyDisk(LocalDisk())
    with (
        BrokerThread(folder, [queue(QUEUE)], disk, disk_timeout_ms=4_000) as broker,
        RestClient(broker.addresses.http_port) as rest,
    ):
        try:
            assert [send(rest, number) for number in range(PARTITIONS)] == [SENT] * PARTITIONS
            description = broker.broker.namespace.describe(QUEUE)
            assert description is not None
            disk.hang("sync", f"{description.generation}/{VICTIM:04x}")
            assert send(rest, VICTIM) == BUSY, "nobody knows yet what became of it"
            yield disk, broker, rest
        finally:
            disk.release()


def availability(admin: ServiceBusAdministrationClient) -> set[str]:
    """What the Python client sees of the queue, by itself and in the list."""
    listed = [each for each in admin.list_queues() if each.name == QUEUE]
    return {str(each.availability_status) for each in (*listed, admin.get_queue(QUEUE))}


def in_rest(rest: RestClient) -> str:
    """What the entry of the queue says."""
    text = rest.ask("GET", f"/{QUEUE}").body.decode()
    return text.split("<EntityAvailabilityStatus>")[1].split("<")[0]


def test_clients_of_four_languages_administer_while_a_partition_is_down(tmp_path: Path) -> None:
    with (
        one_partition_down(tmp_path) as (disk, broker, rest),
        admin_of(broker) as admin,
        ThreadPoolExecutor() as pool,
    ):
        work = [
            pool.submit(
                administer_in_javascript, broker, (*IN_JAVASCRIPT, "availability"), {"PARTIBUS_QUEUE": QUEUE}
            ),
            pool.submit(administer_in_go, broker),
            pool.submit(administer_in_java, broker, tmp_path, IN_JAVA),
        ]
        create_change_and_delete(admin)
        change_and_use_what_is_left(admin, rest)
        javascript, go, java = (each.result() for each in work)
        for report, scenarios in ((javascript, IN_JAVASCRIPT), (go, IN_GO), (java, IN_JAVA)):
            for scenario in scenarios:
                report.check(scenario)
        assert javascript.results["availability"].detail == "Limited,Limited"
        assert availability(admin) == {"Limited"} and in_rest(rest) == "Limited"

        disk.release()
        until_seen(lambda: availability(admin) == {"Available"} and in_rest(rest) == "Available")
        assert send(rest, VICTIM) == SENT
        check_that_the_change_counts(admin, broker)


def create_change_and_delete(admin: ServiceBusAdministrationClient) -> None:
    """Other entities."""
    described = admin.create_queue("python")
    described.user_metadata = "changed"
    admin.update_queue(described)
    admin.create_topic("events")
    admin.create_subscription("events", "all")
    admin.create_rule("events", "all", "one", filter=SqlRuleFilter("color = 'red'"))
    assert admin.get_topic_runtime_properties("events").subscription_count == 1
    admin.delete_topic("events")
    admin.delete_queue("python")


def change_and_use_what_is_left(admin: ServiceBusAdministrationClient, rest: RestClient) -> None:
    """Change the queue, and send and receive by way of its other partitions."""
    described = admin.get_queue(QUEUE)
    described.max_delivery_count = 1
    admin.update_queue(described)
    assert admin.get_queue(QUEUE).max_delivery_count == 1
    assert send(rest, VICTIM) == BUSY
    assert [send(rest) for _ in range(PARTITIONS)] == [SENT] * PARTITIONS
    received = [rest.receive(f"/{QUEUE}") for _ in range(2 * PARTITIONS - 1)]
    assert {answer.status for answer in received} == {201}
    assert {rest.ask("DELETE", answer.lock).status for answer in received} == {200}
    assert rest.receive(f"/{QUEUE}").status == 204, "the rest is in the partition that is down"
    assert admin.get_queue_runtime_properties(QUEUE).active_message_count in (0, 1), "as last known of it"


def check_that_the_change_counts(admin: ServiceBusAdministrationClient, broker: BrokerThread) -> None:
    """The messages of the partition that was down become dead letters at their first delivery."""
    left = admin.get_queue_runtime_properties(QUEUE).active_message_count
    assert left in (2, 3), "whether the message without an outcome was stored is open"
    with azure_client(broker.addresses.connection_string()) as client:
        with client.get_queue_receiver(QUEUE) as receiver:
            for each in received_by(receiver, left):
                receiver.abandon_message(each)
        with client.get_queue_receiver(QUEUE, sub_queue=ServiceBusSubQueue.DEAD_LETTER) as dead_letters:
            reasons = {each.dead_letter_reason for each in received_by(dead_letters, left)}
    assert reasons == {"MaxDeliveryCountExceeded"}


def received_by(receiver: ServiceBusReceiver, count: int) -> list[ServiceBusReceivedMessage]:
    found = list[ServiceBusReceivedMessage]()
    while len(found) < count:
        more = receiver.receive_messages(max_message_count=count - len(found), max_wait_time=10)
        assert more, "the messages are there"
        found += more
    return found


def test_an_entity_is_deleted_while_a_partition_is_down_and_its_name_is_free_again(tmp_path: Path) -> None:
    with one_partition_down(tmp_path) as (disk, broker, rest), admin_of(broker) as admin:
        admin.delete_queue(QUEUE)
        with pytest.raises(ResourceNotFoundError):
            admin.get_queue(QUEUE)
        assert send(rest) == 410
        admin.create_queue(QUEUE)
        assert [send(rest, number) for number in range(PARTITIONS)] == [SENT] * PARTITIONS
        assert availability(admin) == {"Available"}
        disk.release()
        logs = tmp_path / "data" / "logs"
        until_seen(lambda: len(list(logs.iterdir())) == 1)
        assert admin.get_queue_runtime_properties(QUEUE).active_message_count == PARTITIONS
