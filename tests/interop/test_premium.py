"""The premium tier: throttling as official clients see it, messaging units, and what comes from standard."""

from __future__ import annotations

import time
import urllib.error
import urllib.request
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from azure.core.exceptions import HttpResponseError
from azure.servicebus import ServiceBusMessage, ServiceBusReceivedMessage, ServiceBusReceiveMode
from azure.servicebus.exceptions import ServiceBusServerBusyError
from azure.servicebus.management import ServiceBusAdministrationClient
from proton import timestamp

from broker.throttle.resources import Usage
from storage.disk import LocalDisk
from tests.interop.own_management import longs, management
from tests.interop.proton_blocking import connected
from tests.support.azure_client import admin_of, azure_client
from tests.support.broker_process import BrokerProcess, queue
from tests.support.broker_thread import BrokerThread
from tests.support.http_entries import queue_body
from tests.support.rest_client import RestClient
from tests.support.sas import sas_token
from tests.support.waiting import until

DAY = timedelta(days=1)
NAMESPACE_INFO = """<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml">
<NamespaceInfo xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
><MessagingUnits>{}</MessagingUnits></NamespaceInfo></content></entry>"""
UNCHANGEABLE = {"<MessagingSKU>Premium<": "<MessagingSKU>Standard<", "<Name>sbemulatorns<": "<Name>other<"}


class Meter:
    """A meter that shows what a test sets."""

    def __init__(self) -> None:
        self.shown = Usage(0, 0, 0)

    def usage(self) -> Usage:
        return self.shown


def info(url: str, units: str | None = None, *, entry: str = NAMESPACE_INFO) -> tuple[int, str]:
    """Read the information about the namespace, or change its messaging units with this entry; returns status
    and text."""
    request = urllib.request.Request(
        f"{url}/$namespaceinfo",
        data=None if units is None else entry.format(units).encode(),
        headers={"Authorization": sas_token(url)},
        method="GET" if units is None else "PUT",
    )
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read().decode()


def metrics_of(url: str) -> list[str]:
    """The lines of the metrics."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
        text: str = answer.read().decode()
        return text.splitlines()


async def test_senders_are_refused_while_a_resource_is_short_and_more_messaging_units_help(
    tmp_path: Path,
) -> None:
    meter = Meter()
    with BrokerThread(tmp_path, [queue("orders")], LocalDisk(), meter=meter, tier="premium") as broker:
        url, throttle = broker.addresses.http_url, broker.broker.first.resources
        assert throttle is not None

        async def shows(usage: Usage, *over: str) -> None:
            meter.shown = usage
            await until(lambda: throttle.usage == usage and throttle.over == over)

        with (
            azure_client(broker.addresses.connection_string(), retry_total=0) as client,
            client.get_queue_sender("orders") as sender,
            client.get_queue_receiver(
                "orders", receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE
            ) as receiver,
        ):
            sender.send_messages(ServiceBusMessage("first"))
            for usage, name in (
                (Usage(91, 0, 0), "cpu"),
                (Usage(0, 91, 0), "memory"),
                (Usage(0, 0, 1_000_001), "disk"),
            ):
                await shows(usage, name)
                with pytest.raises(ServiceBusServerBusyError, match="Error code: 50009"):
                    sender.send_messages(ServiceBusMessage("refused"))
            assert [str(each) for each in receiver.receive_messages(5, max_wait_time=10)] == ["first"]
            await shows(Usage(170, 0, 0), "cpu")
            assert info(url)[0] == 503
            assert info(url, "3")[0] == 400
            status, text = info(url, "2")
            assert status == 200 and "<MessagingUnits>2</MessagingUnits>" in text
            for read, changed in UNCHANGEABLE.items():
                status, answer = info(url, "2", entry=text.replace(read, changed))
                assert status == 400 and "cannot be changed to" in answer
            assert info(url, "2", entry=text.replace("NamespaceInfo", "QueueDescription"))[0] == 400
            assert info(url, "2", entry=text) == (200, text)
            sender.send_messages(ServiceBusMessage("second"))
            assert [str(each) for each in receiver.receive_messages(5, max_wait_time=10)] == ["second"]
        metrics = metrics_of(url)
        for line in (
            "partibus_messaging_units 2.0",
            "partibus_namespace_cpu_usage 85.0",
            'partibus_throttled_by{resource="cpu"} 0.0',
        ):
            assert line in metrics


async def test_what_frees_memory_is_admitted_while_memory_is_short(tmp_path: Path) -> None:
    meter = Meter()
    with BrokerThread(tmp_path, [queue("orders")], LocalDisk(), meter=meter, tier="premium") as broker:
        throttle = broker.broker.first.resources
        assert throttle is not None
        with (
            azure_client(broker.addresses.connection_string(), retry_total=0) as client,
            client.get_queue_sender("orders") as sender,
            client.get_queue_receiver("orders") as receiver,
            connected(broker.addresses) as connection,
            management(connection, "orders") as node,
            RestClient(broker.addresses.http_port) as rest,
        ):
            sender.send_messages(ServiceBusMessage("deferred"))
            (deferred,) = receiver.receive_messages(1, max_wait_time=10)
            receiver.defer_message(deferred)
            (scheduled,) = sender.schedule_messages(ServiceBusMessage("later"), datetime.now(UTC) + DAY)
            sender.send_messages([ServiceBusMessage(str(number)) for number in range(9)])
            meter.shown = Usage(0, 95, 0)
            await until(lambda: throttle.over == ("memory",))
            assert node.ask("partibus:count-messages")[0] == 503, "this frees nothing"
            assert deferred.sequence_number is not None
            (found,) = receiver.receive_deferred_messages(deferred.sequence_number)
            receiver.complete_message(found)
            sender.cancel_scheduled_messages(scheduled)
            soon = timestamp(int((time.time() + 3600) * 1000))
            some = {"message_count": 3, "enqueued_time_utc": soon}
            assert node.ask("com.microsoft:batch-delete-messages", **some) == (200, {"message-count": 3})
            assert node.ask("partibus:purge-messages", message_count=2)[1]["message-count"] == 2
            assert node.ask("partibus:delete-messages", sequence_numbers=longs([1]))[0] == 200
            purged = rest.ask("POST", "/$partibus/purge-messages/orders", '{"messageCount": 2}')
            assert (purged.status, purged.json["messageCount"]) == (200, 2)
            named = rest.ask("POST", "/$partibus/delete-messages/orders", '{"sequenceNumbers": [1]}')
            assert named.status == 200
            assert broker.messages_of("orders") == 2
            assert rest.ask("PUT", "/more", queue_body()).status == 503
            assert rest.ask("DELETE", "/orders").status == 200
            assert broker.broker.namespace.find("orders") is None


def create_plain(admin: ServiceBusAdministrationClient, name: str) -> None:
    admin.create_queue(name, enable_partitioning=False)


def test_entities_from_standard_keep_working_in_premium(tmp_path: Path) -> None:
    environment = {"PARTIBUS_TIER": "standard"}
    with BrokerProcess(tmp_path, [queue("partitioned")], environment=environment) as broker:
        with (
            admin_of(broker) as admin,
            azure_client(broker.addresses.connection_string()) as client,
        ):
            create_plain(admin, "plain")
            for name in ("partitioned", "plain"):
                with client.get_queue_sender(name) as sender:
                    sender.send_messages(ServiceBusMessage("from standard"))
        broker.terminate()
        environment = {"PARTIBUS_TIER": "premium", "PARTIBUS_PARTITIONS_DEFAULT": "4"}
        with BrokerProcess(tmp_path, [queue("partitioned")], environment=environment) as premium:
            assert info(premium.addresses.http_url, "4")[0] == 200
            with (
                admin_of(premium) as admin,
                azure_client(premium.addresses.connection_string()) as client,
            ):
                with pytest.raises(HttpResponseError, match="Non-partitioned entities are not allowed"):
                    create_plain(admin, "another")
                properties = admin.get_queue("plain")
                properties.max_delivery_count = 3
                admin.update_queue(properties)
                for name in ("partitioned", "plain"):
                    with client.get_queue_sender(name) as sender, client.get_queue_receiver(name) as receiver:
                        sender.send_messages(ServiceBusMessage("in premium"))
                        found: list[ServiceBusReceivedMessage] = []
                        while len(found) < 2:
                            found += receiver.receive_messages(2, max_wait_time=10)
                        assert {str(each) for each in found} == {"from standard", "in premium"}
