"""Topics with subscriptions at Partibus, RabbitMQ and Artemis, each in the broker's own way.

- Partibus: subscriptions with rules, from the configuration file.
- RabbitMQ: a topic exchange and a quorum queue for each subscription, bound by the routing key.
- Artemis: an address and a durable queue with a filter for each subscription.

Knows neither loads nor figures.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from proton import Link, Message, symbol
from proton.reactor import LinkOption
from proton.utils import BlockingConnection

from tests.bench.load.comparison import OURS
from tests.bench.load.endpoint import Endpoint, LoadError
from tests.bench.load.fan_outs import COUNTRY, FanOut
from tests.bench.load.footprint import broker_with
from tests.bench.load.machine import cpu_s
from tests.bench.load.traffic import Target
from tests.support.broker_process import KEY, KEY_NAME
from tests.support.disk_use import allocated_bytes

ROUTING_KEY, BINDING_KEY = f"orders.{COUNTRY}", f"*.{COUNTRY}"
"""At RabbitMQ, where bindings take the place of filters."""
ANSWERED_WITHIN_S = 60.0
AMQP_VALUE_NULL = b"\x00\x53\x77\x40"
"""A body (§3.2.8) without a value, which RabbitMQ expects. Proton would leave the section out."""


@dataclass(slots=True, frozen=True)
class Topic:
    """A topic at one broker, and the subscriptions that get its messages."""

    publish: Target
    subscriptions: Sequence[Target]


@dataclass(slots=True, frozen=True)
class TopicBroker(ABC):
    """One broker, and its process and data folder if they are known."""

    name: str
    endpoint: Endpoint
    pid: int | None = None
    data: Path | None = None

    @property
    def cpu_s(self) -> float:
        """CPU time used so far; 0 if the process is unknown."""
        return 0.0 if self.pid is None else cpu_s(self.pid)

    @property
    def disk_bytes(self) -> int:
        """What its data takes on the disk; 0 if the folder is unknown."""
        return 0 if self.data is None else allocated_bytes(self.data)

    @abstractmethod
    def topic(self, fan_out: FanOut) -> AbstractContextManager[Topic]:
        """Where to send and to receive. The peers have the topic only in the meantime."""

    def target(self, address: str) -> Target:
        """One of its addresses."""
        endpoint = replace(self.endpoint, address=address)
        return Target(self.name, endpoint, settles_first=self.name != OURS, confirms=False)


def _names(fan_out: FanOut, count: int) -> list[str]:
    return [fan_out.subscription(number) for number in range(count)]


class Partibus(TopicBroker):
    """A broker started by `running_partibus`."""

    @contextmanager
    def topic(self, fan_out: FanOut) -> Iterator[Topic]:
        subscriptions = [self.subscription(fan_out, number) for number in range(fan_out.matching)]
        yield Topic(self.target(fan_out.entity), subscriptions)

    def subscription(self, fan_out: FanOut, number: int) -> Target:
        """One subscription, whether it gets the messages or not."""
        return self.target(f"{fan_out.entity}/Subscriptions/{fan_out.subscription(number)}")


@contextmanager
def running_partibus(
    folder: Path,
    fan_outs: Sequence[FanOut],
    partitions: int,
    queues: Sequence[Mapping[str, object]] = (),
) -> Iterator[Partibus]:
    """A broker with these topics and queues, on an empty data folder inside `folder`."""
    with broker_with(folder, queues, [entry(fan_out, partitions) for fan_out in fan_outs]) as broker:
        endpoint = Endpoint("127.0.0.1", broker.addresses.amqp_port, KEY_NAME, KEY, "none")
        yield Partibus(OURS, endpoint, broker.pid, broker.data_dir / "logs")


def entry(fan_out: FanOut, partitions: int) -> dict[str, Any]:
    """A topic in the configuration file. Nothing in it expires during a run."""
    common: dict[str, Any] = {"DefaultMessageTimeToLive": "P1D"}
    return {
        "Name": fan_out.entity,
        "Properties": {**common, "PartitionCount": partitions, "MaxSizeInMegabytes": 5120},
        "Subscriptions": [
            {
                "Name": fan_out.subscription(number),
                "Properties": {**common, "LockDuration": "PT5M"},
                "Rules": [{"Name": "rule", "Properties": fan_out.rule(number)}],
            }
            for number in range(fan_out.subscriptions)
        ],
    }


class Peer(TopicBroker):
    """Another broker, which runs already."""

    @contextmanager
    def topic(self, fan_out: FanOut) -> Iterator[Topic]:
        self.make(fan_out)
        try:
            yield self.made(fan_out)
        finally:
            self.remove(fan_out)

    @abstractmethod
    def made(self, fan_out: FanOut) -> Topic:
        """The topic, once it has been made."""

    @abstractmethod
    def make(self, fan_out: FanOut) -> None:
        """Make the topic, empty, with its subscriptions."""

    @abstractmethod
    def remove(self, fan_out: FanOut) -> None:
        """Remove both again, if they are there."""


class RabbitMQ(Peer):
    """RabbitMQ 4, with its management over AMQP 1.0: requests like those of HTTP."""

    def make(self, fan_out: FanOut) -> None:
        self.remove(fan_out)
        queue = {"durable": True, "arguments": {"x-queue-type": "quorum"}}
        exchange = {"durable": True, "type": "topic"}
        with _connected(self.endpoint) as connection:
            management = _RabbitManagement(connection)
            management.ask("PUT", f"/exchanges/{fan_out.entity}", exchange)
            for name in _names(fan_out, fan_out.subscriptions):
                management.ask("PUT", f"/queues/{name}", queue)
                binding = {"source": fan_out.entity, "binding_key": BINDING_KEY, "destination_queue": name}
                management.ask("POST", "/bindings", {**binding, "arguments": {}})

    def remove(self, fan_out: FanOut) -> None:
        with _connected(self.endpoint) as connection:
            management = _RabbitManagement(connection)
            for name in _names(fan_out, fan_out.subscriptions):
                management.ask("DELETE", f"/queues/{name}")
            management.ask("DELETE", f"/exchanges/{fan_out.entity}")

    def made(self, fan_out: FanOut) -> Topic:
        queues = [self.target(f"/queues/{name}") for name in _names(fan_out, fan_out.matching)]
        return Topic(self.target(f"/exchanges/{fan_out.entity}/{ROUTING_KEY}"), queues)


class _Paired(LinkOption):
    """The two links of requests and responses: the same name, both addresses, and settled transfers."""

    def apply(self, link: Link) -> None:
        link.properties = {symbol("paired"): True}
        link.snd_settle_mode = Link.SND_SETTLED
        link.source.address = link.target.address = "/management"


class _RabbitManagement:
    def __init__(self, connection: BlockingConnection) -> None:
        options: dict[str, Any] = {"name": "management", "options": [_Paired()]}
        self._receiver = connection.create_receiver("/management", credit=10, **options)
        self._sender = connection.create_sender("/management", **options)

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> None:
        """Raises LoadError unless it is done. Removing what is not there counts as done."""
        request = Message(id=1, subject=method, address=path, reply_to="$me", body=body)
        link = self._sender.link
        delivery = link.delivery("request")
        link.stream(request.encode() + (AMQP_VALUE_NULL if body is None else b""))
        link.advance()
        delivery.settle()
        answer = self._receiver.receive()
        status = str(answer.subject)
        if not status.startswith("2"):
            raise LoadError(f"RabbitMQ answers {status} to {method} {path}: {answer.body!r}")


class Artemis(Peer):
    """Artemis, with its management over AMQP: operations with their parameters as JSON."""

    def make(self, fan_out: FanOut) -> None:
        self.remove(fan_out)
        with _connected(self.endpoint) as connection:
            management = _ArtemisManagement(connection)
            management.ask("createAddress", fan_out.entity, "MULTICAST")
            for name in _names(fan_out, fan_out.subscriptions):
                queue = {
                    "name": name,
                    "address": fan_out.entity,
                    "routing-type": "MULTICAST",
                    "durable": True,
                    "filter-string": f"country = '{COUNTRY}'",
                }
                management.ask("createQueue", json.dumps(queue))

    def remove(self, fan_out: FanOut) -> None:
        with _connected(self.endpoint) as connection:
            management = _ArtemisManagement(connection)
            for name in {*management.ask("getQueueNames")} & {*_names(fan_out, fan_out.subscriptions)}:
                management.ask("destroyQueue", name, True)
            if fan_out.entity in management.ask("getAddressNames"):
                management.ask("deleteAddress", fan_out.entity, True)

    def made(self, fan_out: FanOut) -> Topic:
        names = _names(fan_out, fan_out.matching)
        queues = [self.target(f"{fan_out.entity}::{name}") for name in names]
        return Topic(self.target(fan_out.entity), queues)


class _ArtemisManagement:
    def __init__(self, connection: BlockingConnection) -> None:
        self._receiver = connection.create_receiver(None, dynamic=True, credit=10)
        self._sender = connection.create_sender("activemq.management")

    def ask(self, operation: str, *parameters: object) -> Any:
        """Gives the result. Raises LoadError unless the operation succeeded."""
        about = {"_AMQ_ResourceName": "broker", "_AMQ_OperationName": operation}
        reply_to = self._receiver.link.remote_source.address
        self._sender.send(Message(reply_to=reply_to, properties=about, body=json.dumps(parameters)))
        answer = self._receiver.receive()
        self._receiver.accept()
        properties: dict[Any, Any] = answer.properties or {}
        if not properties.get("_AMQ_OperationSucceeded"):
            raise LoadError(f"Artemis did not {operation}: {answer.body!r}")
        return json.loads(str(answer.body))[0] if answer.body else None


@contextmanager
def _connected(endpoint: Endpoint) -> Iterator[BlockingConnection]:
    url = f"amqp://{endpoint.user}:{endpoint.password}@{endpoint.host}:{endpoint.port}"
    connection = BlockingConnection(url, timeout=ANSWERED_WITHIN_S)
    try:
        yield connection
    finally:
        connection.close()


PEERS: dict[str, type[Peer]] = {"rabbitmq": RabbitMQ, "artemis": Artemis}
"""By the name that they have on the command line."""
