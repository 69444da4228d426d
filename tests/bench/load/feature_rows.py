"""The rows of features (sessions, duplicate detection, topics, transactions, schedules), for each broker that
has the feature over AMQP 1.0.

Responsible for what a row sends and receives at one broker, and for the entities that it needs there. Bodies
have 1 KiB. Knows neither rounds nor the table.
"""

from __future__ import annotations

import math
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from proton import Message, symbol, timestamp

from tests.bench.load import session_receivers, sessions, traffic, transactions
from tests.bench.load.comparison import OURS, Measure
from tests.bench.load.fan_outs import TEN
from tests.bench.load.features import DETECTS
from tests.bench.load.footprint import PARTITIONS, lasting_queue
from tests.bench.load.percentiles import percentile
from tests.bench.load.topic_brokers import Partibus, Topic, TopicBroker, running_partibus
from tests.bench.load.traffic import BODY_BYTES, Load, Target

ARTEMIS, RABBITMQ = "artemis", "rabbitmq"
MULTIPLE = math.lcm(sessions.MESSAGES, transactions.MESSAGES)
"""Rows send multiples of this many messages: whole sessions and transactions."""
PACED_MIN = 20
SESSIONS_AT_ONCE = 8
"""What the processor of the official client for .NET does unless it is told otherwise."""
CONNECTIONS = 8
"""Of the row of transactions, each with one transaction at a time."""
LEAD_S, SENT_PER_S = 3.0, 4_000
"""Scheduled messages are due this long after the first is sent, plus what sending takes at this rate."""
EARLY_S = 0.2
"""Receivers of scheduled messages attach this long before they are due."""
_PLACEHOLDER = "0" * 36


class Feature(ABC):
    """What a row does at one broker."""

    deliveries = 1
    """How often each message is delivered."""

    @abstractmethod
    def send(self, count: int) -> float:
        """Send `count` messages; gives how many a second were acknowledged."""

    @abstractmethod
    def paced(self, count: int, per_s: float) -> list[float]:
        """Send `count` messages, `per_s` a second; gives the seconds from when each (or each transaction) was
        due to its outcome."""

    def wait(self) -> None:
        """Return when what was sent can be received: at once, for most features."""
        return

    @abstractmethod
    def receive(self, count: int) -> Mapping[Measure, float]:
        """Receive and complete what was sent; gives the measures of it, none if the feature plays no part."""


class QueueFeature(Feature):
    """Everything but topics uses one queue."""

    def __init__(self, queue: Target) -> None:
        self.queue = queue

    def receive(self, count: int) -> Mapping[Measure, float]:
        return {Measure.OUT: traffic.receive(self.queue, count)}


class SentFeature(QueueFeature):
    """One connection sends the messages, which alone make the difference."""

    @abstractmethod
    def load(self, count: int) -> Load:
        """The next `count` messages."""

    def send(self, count: int) -> float:
        return traffic.send(self.queue, count, load=self.load(count))

    def paced(self, count: int, per_s: float) -> list[float]:
        return traffic.paced_latencies_s(self.queue, self.load(count), count, per_s, receive=False)


class Sessions(SentFeature):
    """Messages of many sessions, one of each in turn. Artemis keeps each group of messages at one consumer,
    but nobody accepts a group there, so what it delivers is not compared."""

    def load(self, count: int) -> Load:
        return Load([_message(group=f"session-{number:06}") for number in range(count // sessions.MESSAGES)])

    def receive(self, count: int) -> Mapping[Measure, float]:
        if self.queue.name != OURS:
            traffic.receive(self.queue, count)
            return {}
        each = sessions.MESSAGES
        found = session_receivers.drain(self.queue, count // each, each, BODY_BYTES, SESSIONS_AT_ONCE)
        return {
            Measure.OUT: found.per_s,
            Measure.ACCEPT_P50: percentile(found.accepted_s, 0.5) * 1000,
            Measure.ACCEPT_P99: percentile(found.accepted_s, 0.99) * 1000,
        }


class Duplicates(SentFeature):
    """Messages with random ids, none of which the broker has seen."""

    def load(self, count: int) -> Load:
        template, placeholder = _message(_PLACEHOLDER), _PLACEHOLDER.encode()
        return Load([template.replace(placeholder, str(uuid.uuid4()).encode()) for _ in range(count)])


class Transactions(QueueFeature):
    """Messages sent in transactions. They are received as any others, so that is not measured."""

    def send(self, count: int) -> float:
        return transactions.committed_per_s(self.queue, count, CONNECTIONS)

    def paced(self, count: int, per_s: float) -> list[float]:
        return transactions.paced_latencies_s(self.queue, count, per_s, CONNECTIONS)

    def receive(self, count: int) -> Mapping[Measure, float]:
        traffic.receive(self.queue, count)
        return {}


class Scheduled(SentFeature):
    """Messages that are all due at the same time, after the last was sent. They are received from then on."""

    due_s = 0.0

    def load(self, count: int) -> Load:
        due_ms = int(self.due_s * 1000)
        if self.queue.name == ARTEMIS:
            return Load([_message(annotations={"x-opt-delivery-time": due_ms})])
        return Load([_message(annotations={"x-opt-scheduled-enqueue-time": timestamp(due_ms)})])

    def send(self, count: int) -> float:
        self.due_s = time.time() + LEAD_S + count / SENT_PER_S
        return traffic.send_scheduled(self.queue, count, self.load(count), self.due_s)

    def paced(self, count: int, per_s: float) -> list[float]:
        self.due_s = time.time() + LEAD_S + count / per_s
        took_s = super().paced(count, per_s)
        traffic.refuse_due(self.due_s)
        return took_s

    def wait(self) -> None:
        time.sleep(max(0.0, self.due_s - EARLY_S - time.time()))

    def receive(self, count: int) -> Mapping[Measure, float]:
        super().receive(count)
        return {Measure.OUT: count / (time.time() - self.due_s)}


class Published(Feature):
    """Messages to a topic, all of whose subscriptions get each of them."""

    deliveries = TEN.matching

    def __init__(self, topic: Topic) -> None:
        self._topic = topic
        self._load = Load(TEN.messages(), TEN.body_bytes, TEN.window)

    def send(self, count: int) -> float:
        return traffic.send(self._topic.publish, count, load=self._load)

    def paced(self, count: int, per_s: float) -> list[float]:
        return traffic.paced_latencies_s(self._topic.publish, self._load, count, per_s, receive=False)

    def receive(self, count: int) -> Mapping[Measure, float]:
        rate = traffic.receive_from(self._topic.subscriptions, count, TEN.receive_window, self._load)
        return {Measure.OUT: rate}


@dataclass(slots=True, frozen=True)
class FeatureRow:
    """One row."""

    name: str
    feature: Callable[[Target], Feature] | None
    """None: the row of topics, whose entities are more than a queue."""
    peers: Sequence[str]
    """Those that have the feature."""
    share: float
    """The number of messages, as a share of that of plain messages."""
    entity: str = ""
    """The name of our queue; a peer uses the one of its address."""
    properties: Mapping[str, object] | None = None
    """More settings of our queue."""

    @property
    def queue(self) -> Mapping[str, object] | None:
        """Our queue in the configuration file; None for the topic."""
        return lasting_queue(self.entity, self.properties) if self.entity else None

    def is_at(self, broker: TopicBroker) -> bool:
        """Whether the broker has the feature."""
        return broker.name == OURS or broker.name in self.peers

    def opened(self, broker: TopicBroker) -> AbstractContextManager[Feature]:
        """The feature at a broker; a peer has the topic only in the meantime."""
        if self.feature is None:
            return _published(broker)
        if broker.name == OURS:
            return nullcontext(self.feature(broker.target(self.entity)))
        queue = broker.target(broker.endpoint.address)
        traffic.drain(queue)  # what earlier loads left would count for this row
        return nullcontext(self.feature(queue))

    def count(self, messages: int) -> int:
        """How many messages it sends, if there are so many plain ones."""
        return max(MULTIPLE, int(messages * self.share) // MULTIPLE * MULTIPLE)


@contextmanager
def _published(broker: TopicBroker) -> Iterator[Feature]:
    with broker.topic(TEN) as topic:
        yield Published(topic)


ROWS: Final = (
    FeatureRow("sessions", Sessions, [ARTEMIS], 0.2, "sessions", {"RequiresSession": True}),
    FeatureRow("duplicate detection", Duplicates, [], 1.0, "duplicates", DETECTS),
    FeatureRow(TEN.name, None, [RABBITMQ, ARTEMIS], TEN.share),
    FeatureRow("transactions of 10", Transactions, [ARTEMIS], 0.4, "transactions"),
    FeatureRow("scheduled", Scheduled, [ARTEMIS], 0.4, "scheduled"),
)


def running(folder: Path) -> AbstractContextManager[Partibus]:
    """A broker of ours with the entities of all rows, on an empty data folder inside `folder`."""
    queues = [row.queue for row in ROWS if row.queue is not None]
    return running_partibus(folder, [TEN], PARTITIONS, queues)


@dataclass(slots=True, frozen=True)
class Measured:
    """One round of a row at a broker."""

    values: Mapping[Measure, float]
    took_ms: Sequence[float]
    """The times of the paced sender."""


def measured(row: FeatureRow, broker: TopicBroker, messages: int, paced_s: float) -> Measured:
    """Send and receive the messages of a row; then for `paced_s` seconds at half of the rate of sending."""
    count = row.count(messages)
    with row.opened(broker) as feature:
        begun_s = broker.cpu_s
        values = {Measure.IN: feature.send(count)}
        sent_s = broker.cpu_s
        values_cpu = {Measure.CPU_IN: (sent_s - begun_s) / count * 1e6}
        feature.wait()  # what a broker does meanwhile belongs to the delivery
        received = feature.receive(count)
        values |= received
        if Measure.OUT in received:
            values_cpu[Measure.CPU_OUT] = (broker.cpu_s - sent_s) / (count * feature.deliveries) * 1e6
        rate = values[Measure.IN] / 2
        paced = max(PACED_MIN, int(rate * paced_s) // MULTIPLE * MULTIPLE)
        traffic.sync_disks()
        took_ms = [each * 1000 for each in feature.paced(paced, rate)]
        feature.wait()
        feature.receive(paced)
    return Measured(values if broker.pid is None else values | values_cpu, took_ms)


def _message(
    message_id: str = "message-00000000",
    group: str | None = None,
    annotations: dict[str, object] | None = None,
) -> bytes:
    """A durable message with a body of 1 KiB."""
    message = Message(
        body=bytes(BODY_BYTES),
        durable=True,
        inferred=True,
        annotations={symbol(name): value for name, value in (annotations or {}).items()},
    )
    message.id = message_id
    if group is not None:
        message.group_id = group
    return bytes(message.encode())
