"""The keys of the namespace are in files, and are rotated while official clients are connected."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusAuthenticationError, ServiceBusAuthorizationError

from tests.support.azure_client import azure_client
from tests.support.broker_process import BrokerDied, BrokerProcess, queue
from tests.support.rest_client import RestClient
from tests.support.waiting import until

OLD, NEW = "b2xkIGtleQ==", "bmV3IGtleQ=="


def client_with(broker: BrokerProcess, key: str) -> ServiceBusClient:
    return azure_client(broker.addresses.connection_string(key=key), retry_total=1, retry_backoff_factor=0.05)


async def test_keys_are_rotated_without_a_restart(tmp_path: Path) -> None:
    primary, secondary = tmp_path / "primary", tmp_path / "secondary"
    primary.write_text(OLD)
    secondary.write_text(OLD)
    environment = {
        "PARTIBUS_SAS_KEY_FILE": str(primary),
        "PARTIBUS_SAS_SECONDARY_KEY_FILE": str(secondary),
    }
    with BrokerProcess(tmp_path / "broker", [queue("orders")], environment=environment) as broker:

        async def rotate(file: Path) -> None:
            changes = broker.log.count("keys.changed")
            file.write_text(NEW)  # noqa: ASYNC240 - a few bytes
            await until(lambda: broker.log.count("keys.changed") > changes)

        with client_with(broker, OLD) as old, old.get_queue_sender("orders") as sender:
            sender.send_messages(ServiceBusMessage("with the old key"))
            await rotate(secondary)
            sender.send_messages(ServiceBusMessage("with the old key, which is still in force"))
            with client_with(broker, NEW) as new, new.get_queue_sender("orders") as other:
                other.send_messages(ServiceBusMessage("with the new key"))
                await rotate(primary)
                other.send_messages(ServiceBusMessage("with the new key, on the same link"))
            with pytest.raises((ServiceBusAuthorizationError, ServiceBusAuthenticationError)):
                sender.send_messages(ServiceBusMessage("with a key that is no longer in force"))
        assert OLD not in broker.log and NEW not in broker.log


async def test_a_request_that_waits_for_a_message_ends_with_its_key(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(OLD)
    environment = {"PARTIBUS_SAS_KEY_FILE": str(file)}
    with (
        BrokerProcess(tmp_path / "broker", [queue("orders")], environment=environment) as broker,
        RestClient(broker.addresses.http_port, key=OLD) as old,
        RestClient(broker.addresses.http_port, key=NEW) as new,
    ):
        waiting = asyncio.create_task(asyncio.to_thread(old.receive, "/orders", method="DELETE", timeout=30))
        assert await asyncio.to_thread(new.receive, "/orders"), "the first request has begun"
        file.write_text(NEW)
        await until(lambda: "keys.changed" in broker.log)
        assert (await waiting).status == 401
        new.send("/orders", b"kept")
        assert new.receive("/orders", timeout=30).body == b"kept"


def test_an_empty_key_file_keeps_the_broker_from_starting(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.touch()
    broker = BrokerProcess(tmp_path / "broker", [], environment={"PARTIBUS_SAS_KEY_FILE": str(key)})
    with pytest.raises(BrokerDied, match=f"status 2 (?s:.*) {key}: the file is empty"):
        broker.start()
