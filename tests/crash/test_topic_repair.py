"""`partibus check` and `partibus repair` on the data folder of a topic: every subscription has exactly what
the command says."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusSubQueue

from broker.maintenance.check import check_folders
from broker.partition.salvage import Range
from tests.crash.test_repair import (
    SMALL_LOGS,
    Ledger,
    Written,
    body_of,
    fingerprint,
    flip_frames,
    is_gone,
    run,
    segments,
)
from tests.support.broker_process import BrokerProcess, topic

TOPIC, ONE, TWO = "events", "one", "two"
BATCHES, IN_BATCH = 48, 4
DAMAGED = 1
"""The partition whose log is damaged."""


@dataclass
class Subscription:
    """What clients know of a subscription."""

    there: dict[int, tuple[bytes, bool]] = field(default_factory=dict)
    """By sequence number: the body, and whether the message is a dead letter."""
    settled: set[int] = field(default_factory=set)


def peeked(client: ServiceBusClient, name: str) -> dict[int, tuple[bytes, bool]]:
    found: dict[int, tuple[bytes, bool]] = {}
    for subqueue in (None, ServiceBusSubQueue.DEAD_LETTER):
        with client.get_subscription_receiver(TOPIC, name, sub_queue=subqueue) as receiver:
            start = 1
            while page := receiver.peek_messages(max_message_count=200, sequence_number=start, timeout=20):
                for message in page:
                    assert message.sequence_number is not None
                    assert message.sequence_number not in found, "it is there twice"
                    found[message.sequence_number] = body_of(message), subqueue is not None
                start = max(message.sequence_number or 0 for message in page) + 1
    return found


def work(client: ServiceBusClient) -> dict[str, Subscription]:
    """Publish messages; the first subscription completes some and dead-letters some."""
    known = {ONE: Subscription(), TWO: Subscription()}
    with client.get_topic_sender(TOPIC) as sender:
        for batch in range(BATCHES):
            numbers = range(batch * IN_BATCH, (batch + 1) * IN_BATCH)
            sender.send_messages([ServiceBusMessage(b"<m%d>" % number * 90) for number in numbers])
    with client.get_subscription_receiver(TOPIC, ONE) as receiver:
        found = receiver.receive_messages(max_message_count=48, max_wait_time=20)
        for place, message in enumerate(found):
            assert message.sequence_number is not None
            if place % 6 == 0:
                receiver.dead_letter_message(message, reason="asked for")
            else:
                receiver.complete_message(message)
                known[ONE].settled.add(message.sequence_number)
    for name, subscription in known.items():
        subscription.there = peeked(client, name)
        assert len(subscription.there) + len(subscription.settled) == BATCHES * IN_BATCH
    return known


def test_after_a_repair_every_subscription_has_what_the_command_says(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path, [], topics=[topic(TOPIC, (ONE, TWO))], environment=SMALL_LOGS)
    broker.start()
    try:
        with ServiceBusClient.from_connection_string(broker.addresses.connection_string()) as client:
            known = work(client)
    finally:
        broker.kill()
    [generation] = [path.name for path in (broker.data_dir / "logs").iterdir()]
    written = Written(broker.data_dir, Ledger(), generation)
    flip_frames(0.3, 0.6)(written)
    assert segments(written, DAMAGED)
    folder = ("--data-dir", str(broker.data_dir))
    assert run("check", *folder).returncode == 1
    before = fingerprint(broker.data_dir)
    planned = run("repair", *folder)
    assert planned.returncode == 1 and TOPIC in planned.stdout, planned
    assert fingerprint(broker.data_dir) == before
    done = run("repair", "--yes", "--json", *folder)
    assert done.returncode == 0, done
    [log] = json.loads(done.stdout)["logs"]
    gone = [Range(each["first"], each["last"]) for each in log["gone"]]
    assert log["partition"] == DAMAGED and gone
    assert not check_folders([broker.data_dir]).damaged
    with broker, ServiceBusClient.from_connection_string(broker.addresses.connection_string()) as client:
        found = {name: peeked(client, name) for name in known}
    for name, subscription in known.items():
        mine, there = subscription.there, found[name]
        lost = {number for number in mine if number >> 48 == DAMAGED and is_gone(number, gone)}
        assert mine.keys() - there.keys() == lost, name
        again = there.keys() - mine.keys()
        assert again <= {each for each in subscription.settled if each >> 48 == DAMAGED}, "in lost commits"
        for number in mine.keys() & there.keys():
            assert there[number][0] == mine[number][0]
            assert number >> 48 == DAMAGED or there[number] == mine[number]
