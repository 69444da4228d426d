"""Official clients in two languages offer a throttled namespace three times as much as it takes."""

from __future__ import annotations

import asyncio
import json
import os
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from azure.core.exceptions import HttpResponseError
from azure.servicebus import ServiceBusMessage, ServiceBusReceivedMessage, ServiceBusReceiveMode
from azure.servicebus.exceptions import ServiceBusServerBusyError

from tests.interop.programs import run_node
from tests.support.azure_client import admin_of, aio_client, azure_client
from tests.support.broker_process import Addresses, BrokerProcess, queue, topic

SECONDS = float(os.environ.get("PARTIBUS_OVERLOAD_SECONDS", "8"))
"""`make interop` offers messages for longer."""
CREDITS, OFFERED = 1_000, 3_000
BATCH = 50
NAME = "throttled"


@dataclass(slots=True)
class Application:
    """What one client has sent: the number of each accepted batch and when it was accepted, in ms since the
    epoch; and how many attempts were refused."""

    accepted: list[tuple[int, float]] = field(default_factory=list)
    refused: int = 0


async def overload_from_python(addresses: Addresses, over: asyncio.Event) -> Application:
    """Offer half of the load until the other half is over. What was refused is offered again."""
    application, again, batches = Application(), list[int](), 0
    every_s = BATCH / (OFFERED / 2)
    async with (
        aio_client(addresses.connection_string(), retry_total=0) as client,
        client.get_queue_sender(NAME) as sender,
    ):
        due = time.time()
        while not over.is_set():
            await asyncio.sleep(max(due - time.time(), 0))
            due += every_s
            if again:
                number = again.pop(0)
            else:
                number, batches = batches, batches + 1
            ids = [f"python-{number}-{place}" for place in range(BATCH)]
            try:
                await sender.send_messages([ServiceBusMessage(b"x", message_id=id) for id in ids])
            except ServiceBusServerBusyError as busy:
                assert "Error code: 50009. Please wait 2 seconds and try again." in str(busy)
                application.refused += 1
                again.append(number)
            else:
                application.accepted.append((number, time.time() * 1_000))
    return application


def overload_from_javascript(addresses: Addresses) -> Application:
    """Offer the other half, for SECONDS from the first acceptance: a busy machine may take long to start this
    client."""
    extra = {
        "PARTIBUS_SCENARIOS": "overload",
        "PARTIBUS_QUEUE": NAME,
        "PARTIBUS_SECONDS": str(SECONDS),
        "PARTIBUS_BATCH": str(BATCH),
        "PARTIBUS_OFFERED_PER_S": str(OFFERED / 2),
    }
    report = run_node("throttling.mjs", "javascript", addresses, extra)
    report.check("overload")
    found = json.loads(report.results["overload"].detail)
    return Application([(number, at_ms) for number, at_ms in found["accepted"]], found["refused"])


async def received(addresses: Addresses) -> list[str]:
    """The ids of all messages in the queue."""
    ids: list[str] = []
    async with (
        aio_client(addresses.connection_string()) as client,
        client.get_queue_receiver(NAME, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE) as receiver,
    ):
        while found := await receiver.receive_messages(max_message_count=2_000, max_wait_time=3):
            ids += [str(message.message_id) for message in found]
    return ids


def per_second(applications: list[Application]) -> float:
    """How many messages were accepted per second, over whole periods in which all applications were sending.

    The credits of a period are used up in its first half, so the longest pause in the acceptances of all
    periods, laid one upon another, is where periods end.
    """
    times = sorted(at_ms for each in applications for _, at_ms in each.accepted)
    phases = sorted(at_ms % 1_000 for at_ms in times)
    following = [*phases[1:], phases[0] + 1_000]
    gaps = [(after - before, before) for before, after in zip(phases, following, strict=True)]
    longest, before = max(gaps)
    ends_at = (before + longest / 2) % 1_000
    first = max(each.accepted[0][1] for each in applications)
    begin = first - first % 1_000 + ends_at + (1_000 if first % 1_000 > ends_at else 0)
    last = min(each.accepted[-1][1] for each in applications)
    periods = int((last - begin) // 1_000)
    assert periods >= SECONDS // 2
    return BATCH * sum(begin <= at_ms < begin + periods * 1_000 for at_ms in times) / periods


async def test_what_is_accepted_under_overload_keeps_to_the_credits_and_is_there_once(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, [queue(NAME)], environment={"PARTIBUS_TIER": "standard"}) as broker:
        over = asyncio.Event()

        async def other_half() -> Application:
            try:
                return await asyncio.to_thread(overload_from_javascript, broker.addresses)
            finally:
                over.set()

        async with asyncio.timeout(SECONDS + 60):
            applications = list(
                await asyncio.gather(overload_from_python(broker.addresses, over), other_half())
            )
        assert '"event": "throttle.refused"' in broker.log
    assert all(each.refused and each.accepted for each in applications)
    accepted = per_second(applications)
    assert abs(accepted - CREDITS) <= CREDITS * 0.02, accepted
    sent = [
        f"{client}-{number}-{place}"
        for client, application in zip(("python", "js"), applications, strict=True)
        for number, _ in application.accepted
        for place in range(BATCH)
    ]
    with BrokerProcess(tmp_path, [queue(NAME)]) as broker:  # not throttled, to have the messages sooner
        async with asyncio.timeout(60 + 3 * SECONDS):
            assert sorted(await received(broker.addresses)) == sorted(sent)


def test_the_python_clients_see_the_tier_and_its_throttling(tmp_path: Path) -> None:
    environment = {"PARTIBUS_TIER": "basic", "PARTIBUS_THROTTLE_CREDITS": "30"}
    with BrokerProcess(tmp_path, [queue(NAME)], environment=environment) as broker, admin_of(broker) as admin:
        assert admin.get_namespace_properties().messaging_sku == "Basic"
        with pytest.raises(HttpResponseError, match="'RequiresSession' cannot be set when creating a Queue"):
            admin.create_queue("sessions", requires_session=True)
        with pytest.raises(HttpResponseError, match="Error code: 50009") as busy:
            for _ in range(1_000):
                admin.get_queue(NAME)
        assert busy.value.status_code == 503
        with (
            azure_client(broker.addresses.connection_string()) as client,
            client.get_queue_sender(NAME) as sender,
            client.get_queue_receiver(NAME) as receiver,
        ):
            # The client sends them again until the next period has begun.
            sender.send_messages([ServiceBusMessage(b"x") for _ in range(30)])
            found = list[ServiceBusReceivedMessage]()
            while len(found) < 30:
                more = receiver.receive_messages(max_message_count=30, max_wait_time=10)
                assert more, "there are credits again within a second"
                found += more
            assert len({message.sequence_number for message in found}) == 30


def test_filters_of_a_topic_cost_what_the_setting_says(tmp_path: Path) -> None:
    """The price is so high that one message takes many periods: no refill comes in between by chance."""
    environment = {
        "PARTIBUS_TIER": "standard",
        "PARTIBUS_THROTTLE_CREDITS": "10",
        "PARTIBUS_THROTTLE_FILTER_CREDITS": "1000",
    }
    topics = [topic("events", ["one", "two"])]
    with (
        BrokerProcess(tmp_path, [queue(NAME)], topics=topics, environment=environment) as broker,
        azure_client(broker.addresses.connection_string(), retry_total=0) as client,
        client.get_topic_sender("events") as publisher,
        client.get_queue_sender(NAME) as sender,
    ):
        sender.send_messages(ServiceBusMessage(b"a queue has no filters"))
        sender.send_messages(ServiceBusMessage(b"as cheap as before"))
        while True:
            try:
                publisher.send_messages(ServiceBusMessage(b"needs a full balance"))
                break
            except ServiceBusServerBusyError as busy:
                assert "Error code: 50009" in str(busy)
        for link, cost in ((publisher, 2_001), (sender, 1)):
            before = credits_refused(broker.addresses)
            with pytest.raises(ServiceBusServerBusyError, match="Error code: 50009"):
                link.send_messages(ServiceBusMessage(b"the debt lasts for 200 seconds"))
            assert credits_refused(broker.addresses) - before == cost


def test_a_restarted_broker_has_forgotten_its_debts(tmp_path: Path) -> None:
    environment = {"PARTIBUS_TIER": "standard", "PARTIBUS_THROTTLE_CREDITS": "10"}
    with BrokerProcess(tmp_path, [queue(NAME)], environment=environment) as broker:

        def send(count: int) -> None:
            with (
                azure_client(broker.addresses.connection_string(), retry_total=0) as client,
                client.get_queue_sender(NAME) as sender,
            ):
                sender.send_messages([ServiceBusMessage(b"x") for _ in range(count)])

        send(2_000)  # a full balance admits it
        with pytest.raises(ServiceBusServerBusyError, match="Error code: 50009"):
            send(1)
        broker.kill()
        broker.start()
        send(10)


def credits_refused(addresses: Addresses) -> float:
    with urllib.request.urlopen(f"{addresses.http_url}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    (line,) = (line for line in text.splitlines() if line.startswith("partibus_credits_refused_total"))
    return float(line.split()[-1])
