"""The broker is stopped and started again while clients in two languages send and receive."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import time
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

from storage.storage_version import STORAGE_VERSION
from tests.interop.programs import JS, PREPARATION, run_node
from tests.support import raw_amqp as raw
from tests.support.azure_client import aio_client
from tests.support.broker_process import Addresses, BrokerDied, BrokerProcess, queue
from tests.support.raw_amqp import RawConnection
from tests.support.waiting import until

SECONDS = 4.0
NAME = "busy"


async def send_from_python(addresses: Addresses, until_ms: float) -> list[str]:
    """Send one message after the other; returns the ids of those that were accepted."""
    accepted: list[str] = []
    async with (
        aio_client(addresses.connection_string(), retry_backoff_factor=0.1) as client,
        client.get_queue_sender(NAME) as sender,
    ):
        while time.time() * 1_000 < until_ms:
            id = f"python-{len(accepted)}"
            try:
                await sender.send_messages(ServiceBusMessage(b"x", message_id=id))
            except ServiceBusError:
                continue
            accepted.append(id)
    return accepted


async def receive_from_python(addresses: Addresses, until_ms: float) -> list[tuple[str, int]]:
    """Complete messages until there are no more; returns the id and the sequence number of each."""
    received: list[tuple[str, int]] = []
    found = True
    async with (
        aio_client(addresses.connection_string(), retry_backoff_factor=0.1) as client,
        client.get_queue_receiver(NAME) as receiver,
    ):
        while time.time() * 1_000 < until_ms or found:
            try:
                messages = await receiver.receive_messages(20, max_wait_time=1)
            except ServiceBusError:
                continue
            found = bool(messages)
            for message in messages:
                assert message.sequence_number is not None
                received.append((str(message.message_id), message.sequence_number))
                try:
                    await receiver.complete_message(message)
                except (ServiceBusError, ValueError):  # the latter if the client has lost its connection
                    continue  # it comes again
    return received


def restart_in_the_middle(broker: BrokerProcess, until_ms: float) -> None:
    time.sleep((until_ms / 1_000 - time.time()) / 2)
    assert broker.terminate() == 0
    broker.start()


async def test_clients_that_go_on_over_a_restart_lose_nothing_and_store_nothing_twice(tmp_path: Path) -> None:
    PREPARATION.wait(JS)
    with BrokerProcess(tmp_path, [queue(NAME, LockDuration="PT5S")]) as broker:
        until_ms = (time.time() + SECONDS) * 1_000
        extra = {
            "PARTIBUS_SCENARIOS": "restart",
            "PARTIBUS_QUEUE": NAME,
            "PARTIBUS_UNTIL_MS": str(until_ms),
        }
        addresses = broker.addresses
        async with asyncio.timeout(SECONDS + 90):
            accepted, received, report, _ = await asyncio.gather(
                send_from_python(addresses, until_ms),
                receive_from_python(addresses, until_ms),
                asyncio.to_thread(run_node, "restart.mjs", "javascript", addresses, extra),
                asyncio.to_thread(restart_in_the_middle, broker, until_ms),
            )
            report.check("restart")
            found = json.loads(report.results["restart"].detail)
            received += await receive_from_python(addresses, 0)
            received += [(id, int(number)) for id, number in found["received"]]
    assert accepted and found["accepted"]
    numbers = {id: {number for each, number in received if each == id} for id, _ in received}
    assert set(accepted + found["accepted"]) <= numbers.keys()
    assert [id for id, stored in numbers.items() if len(stored) > 1] == []
    assert not {"connection.failed", "task.failed"} & set(re.findall(r'"event": "([^"]+)"', broker.log))


async def test_a_second_signal_ends_the_broker_at_once(tmp_path: Path) -> None:
    with (
        BrokerProcess(tmp_path, [queue(NAME)]) as broker,
        RawConnection(broker.addresses.amqp_port) as client,  # which does not answer the broker's close
    ):
        client.open()
        os.kill(broker.pid, signal.SIGTERM)
        client.read_until(raw.CLOSE)
        os.kill(broker.pid, signal.SIGTERM)
        with pytest.raises(BrokerDied, match=f"status -{signal.SIGTERM.value}"):
            await until(broker.check_alive)
        broker.restart()


def test_a_data_folder_that_a_newer_version_has_written_is_refused(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, [queue(NAME)]) as broker:
        version = broker.data_dir / "version"
        assert version.read_text() == f"{STORAGE_VERSION}\n"
        broker.terminate()
        version.write_text(f"{STORAGE_VERSION + 1}\n")
        with pytest.raises(BrokerDied, match=r"status 1 (?s:.*) was written by a newer version of Partibus"):
            broker.start()
        version.write_text("3\n")
        broker.restart()
        assert version.read_text() == f"{STORAGE_VERSION}\n"
