"""Transactions of Qpid Proton, a plain AMQP 1.0 client, unchanged, against the running broker.

Proton's own `Transaction` declares and discharges; messages are sent and settled through it.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any

import pytest
from proton import UNDESCRIBED, Array, Data, Message, symbol, timestamp
from proton.handlers import TransactionHandler

from tests.interop.proton_blocking import Destination
from tests.interop.proton_client import Received, Refused
from tests.interop.proton_reactor import ReactorClient, ReactorReceiver, ReactorSender, Script
from tests.interop.scenarios import TRANSACTIONS, queue_name
from tests.support.broker_process import Addresses, BrokerProcess

TRANSACTIONAL = 0x34
LATER = timestamp(4_102_444_800_000)
"""The year 2100."""
ACCEPTED, REJECTED, MODIFIED = 0x24, 0x25, 0x27
KEYS_OF_TWO_PARTITIONS = ("k", "other")


class Txn(TransactionHandler):
    """One transaction of a client."""

    def __init__(self, client: ReactorClient) -> None:
        super().__init__()
        self._client = client
        self._heard: list[str] = []
        self.condition: Any = None
        self.own: Any = None

    async def declare(self) -> Txn:
        container: Any = self._client.script.container
        self.own = container.declare_transaction(self._client.connection, handler=self)
        await self._hear("declared")
        return self

    async def commit(self) -> None:
        """Raises Refused if the broker rolls back instead."""
        self.own.commit()
        await self._hear("committed")

    async def abort(self) -> None:
        self.own.abort()
        await self._hear("aborted")

    async def send(self, sender: Any, message: Message) -> None:
        """Send within the transaction. Raises Refused."""
        await sender.until(lambda: sender.link.credit > 0, "credit")
        delivery = self.own.send(sender.link, message)
        await sender.until(lambda: delivery.settled, "the provisional outcome")
        if delivery.remote_state != TRANSACTIONAL:
            raise Refused(str(delivery.remote.condition))

    async def settle(self, receiver: Any, received: Received, outcome: int = ACCEPTED) -> None:
        """Settle within the transaction. Raises Refused."""
        delivery: Any = received.delivery
        self.own.update(delivery, outcome)
        await receiver.until(lambda: delivery.settled, "the provisional outcome")
        if delivery.remote_state != TRANSACTIONAL:
            raise Refused(str(delivery.remote.condition))

    async def _hear(self, what: str) -> None:
        await self._client.until(lambda: self._heard, f"{what} of a transaction")
        heard = self._heard.pop()
        if heard != what:
            raise Refused(f"{heard}: {self.condition}")

    def _note(self, what: str) -> None:
        self._heard.append(what)
        self._client.script.go_on()

    def on_transaction_declared(self, event: Any) -> None:
        self._note("declared")

    def on_transaction_committed(self, event: Any) -> None:
        self._note("committed")

    def on_transaction_aborted(self, event: Any) -> None:
        self._note("aborted")

    def on_transaction_declare_failed(self, event: Any) -> None:
        self.condition = event.delivery.remote.condition
        self._note("declare failed")

    def on_transaction_commit_failed(self, event: Any) -> None:
        self.condition = event.delivery.remote.condition
        self._note("commit failed")


class Bench:
    """A client with a sender and a receiver, and the broker."""

    def __init__(self, script: Script, client: Any, queue: str) -> None:
        self.script, self.client, self.queue = script, client, queue
        self.sender: Any = None
        self.receiver: Any = None

    async def declare(self) -> Txn:
        return await Txn(self.client).declare()

    async def attach(self) -> Bench:
        self.sender = await self.client.sender(self.queue)
        self.receiver = await self.client.receiver(self.queue)
        assert isinstance(self.sender, ReactorSender) and isinstance(self.receiver, ReactorReceiver)
        return self

    async def send(self, *bodies: str, key: str = "k") -> None:
        """Send messages with a key, outside any transaction."""
        for body in bodies:
            await self.sender.send(keyed(body, key))

    async def bodies(self) -> list[str]:
        """What is there to receive; settles it."""
        found = await self.receiver.drain(100)
        for each in found:
            await self.receiver.propose(each, ACCEPTED)
        return [each.message.body for each in found]


class Node:
    """The `$management` node of the client's queue."""

    def __init__(self, requests: Any, responses: Any) -> None:
        self._requests, self._responses = requests, responses

    @classmethod
    async def of(cls, bench: Bench) -> Node:
        address = f"{bench.queue}/$management"
        return cls(await bench.client.sender(address), await bench.client.receiver(address))

    async def ask(self, txn: Txn | None, operation: str, body: dict[str, Any]) -> Any:
        """Make a request, alone or as a part of a transaction; gives the body of the response."""
        request = Message(id="1", properties={"operation": operation}, body=body)
        await (self._requests.send(request) if txn is None else txn.send(self._requests, request))
        (response,) = await self._responses.receive(1)
        await self._responses.propose(response, ACCEPTED)
        assert response.message.properties["statusCode"] == 200, response.message.properties
        return response.message.body


def keyed(body: str, key: str = "k") -> Message:
    return Message(body=body, annotations={"x-opt-partition-key": key})


async def commit(bench: Bench) -> None:
    await bench.send("old 0", "old 1", "old 2", "old 3")
    found = await bench.receiver.receive(4)
    txn = await bench.declare()
    for number in range(3):
        await txn.send(bench.sender, keyed(f"new {number}"))
    for received, outcome in zip(found, (ACCEPTED, ACCEPTED, REJECTED, MODIFIED), strict=True):
        if outcome == MODIFIED:
            received.delivery.local.failed = True
        await txn.settle(bench.receiver, received, outcome)
    assert await bench.bodies() == []
    await txn.commit()
    left = await bench.bodies()
    assert sorted(left) == ["new 0", "new 1", "new 2", "old 3"]
    dead = await bench.client.receiver(f"{bench.queue}/$DeadLetterQueue")
    assert [each.message.body for each in await dead.receive(1)] == ["old 2"]


async def roll_back(bench: Bench) -> None:
    await bench.send("old")
    (found,) = await bench.receiver.receive(1)
    txn = await bench.declare()
    await txn.send(bench.sender, keyed("new"))
    await txn.settle(bench.receiver, found)
    await txn.abort()
    assert await bench.bodies() == [], "the lock stays"


async def connection_drops(bench: Bench) -> None:
    async with bench.script.connect() as other:
        gone = await Bench(bench.script, other, bench.queue).attach()
        await gone.send("old")
        (found,) = await gone.receiver.receive(1)
        txn = await gone.declare()
        await txn.send(gone.sender, keyed("new"))
        await txn.settle(gone.receiver, found)
    again = await bench.receiver.receive(1)
    assert again[0].message.body == "old", "once its lock has ended"
    assert await bench.bodies() == []


async def refusals(bench: Bench) -> None:
    for second, part in (
        (keyed("x", "other"), "'other'"),
        (Message(body="x"), "without a key"),
    ):
        txn = await bench.declare()
        await txn.send(bench.sender, keyed("kept back"))
        with pytest.raises(Refused, match="amqp:not-allowed") as why:
            await txn.send(bench.sender, second)
        assert part in str(why.value)
        with pytest.raises(Refused, match=r"commit failed.*amqp:transaction:rollback"):
            await txn.commit()
    assert await bench.bodies() == []
    await settlements_of_two_partitions(bench)


async def settlements_of_two_partitions(bench: Bench) -> None:
    """Both partitions are named, and both messages stay, with their locks."""
    for key in KEYS_OF_TWO_PARTITIONS:
        await bench.send(key, key=key)
    found = await bench.receiver.receive(2)
    places = {int(received.message.annotations["x-opt-sequence-number"]) >> 48 for received in found}
    assert len(places) == 2
    txn = await bench.declare()
    await txn.settle(bench.receiver, found[0])
    with pytest.raises(Refused, match="amqp:not-allowed") as why:
        await txn.settle(bench.receiver, found[1])
    assert all(f"(partition {place})" in str(why.value) for place in places), why.value
    with pytest.raises(Refused, match=r"commit failed.*amqp:transaction:rollback"):
        await txn.commit()
    counts = await (await Node.of(bench)).ask(None, "partibus:count-messages", {})
    assert (counts["active"], counts["locked"]) == (2, 2)


async def several_entities(bench: Bench) -> None:
    """All links of this client share one AMQP session. What goes to other entities goes through the one whose
    messages are settled."""
    other_name = bench.queue + ".to"
    other = await bench.client.sender(other_name)
    received: Any = await bench.client.receiver(other_name)
    await bench.send("old", "second")
    found, second = await bench.receiver.receive(2)
    gone = await bench.declare()
    await gone.send(other, keyed("never", "a"))
    await gone.settle(bench.receiver, found)
    await gone.abort()
    txn = await bench.declare()
    await txn.send(other, keyed("there", "a"))
    await txn.send(other, Message(body="without a key"))
    await txn.send(bench.sender, keyed("here"))
    await txn.settle(bench.receiver, found)
    await txn.commit()
    there = await received.receive(2)
    assert sorted(each.message.body for each in there) == ["there", "without a key"]
    refused = await bench.declare()
    await refused.settle(bench.receiver, second)
    with pytest.raises(Refused, match="amqp:not-allowed") as why:
        await refused.settle(received, there[0])
    assert bench.queue in str(why.value) and other_name in str(why.value)
    with pytest.raises(Refused, match=r"commit failed.*amqp:transaction:rollback"):
        await refused.commit()
    for each in there[1:]:
        await received.propose(each, ACCEPTED)
    assert await bench.bodies() == ["here"]


async def named_via(bench: Bench) -> None:
    """A sender that names its via entity, in a transaction and outside; then the destination is gone."""
    other_name = bench.queue + ".to"
    received: Any = await bench.client.receiver(other_name)
    via: Any = ReactorSender(bench.client)
    via.link = bench.script.container.create_sender(
        bench.client.connection, bench.queue, name="via", handler=via, options=Destination(other_name)
    )
    await via.attached(lambda: via.link.remote_target)
    await via.send(Message(body="outside"))
    txn = await bench.declare()
    await txn.send(via, keyed("inside"))
    await txn.send(bench.sender, keyed("here"))
    await txn.commit()
    found = await received.receive(2)
    assert sorted(each.message.body for each in found) == ["inside", "outside"]
    assert await bench.bodies() == ["here"]
    for each in found:
        await received.propose(each, ACCEPTED)


async def plain_entity(bench: Bench) -> None:
    txn = await bench.declare()
    for key in ("a", "b", "c"):
        await txn.send(bench.sender, keyed(key, key))
    await txn.send(bench.sender, Message(body="d"))
    await txn.commit()
    assert await bench.bodies() == ["a", "b", "c", "d"]


async def too_many(bench: Bench) -> None:
    txn = await bench.declare()
    for number in range(100):
        await txn.send(bench.sender, keyed(str(number)))
    await txn.commit()
    assert len(await bench.bodies()) == 100
    txn = await bench.declare()
    for number in range(100):
        await txn.send(bench.sender, keyed(str(number)))
    with pytest.raises(Refused, match="limit is 100"):
        await txn.send(bench.sender, keyed("one more"))
    with pytest.raises(Refused, match="commit failed"):
        await txn.commit()
    assert await bench.bodies() == []


async def schedules(bench: Bench) -> None:
    """Requests to `$management` that are part of a transaction."""
    node = await Node.of(bench)

    async def scheduled() -> int:
        counts = await node.ask(None, "partibus:count-messages", {})
        return int(counts["scheduled"])

    async def schedule(txn: Txn, *bodies: str) -> Any:
        notes: Any = {"x-opt-partition-key": "k", symbol("x-opt-scheduled-enqueue-time"): LATER}
        messages = [Message(body=body, annotations=notes) for body in bodies]
        encoded = [{"message": each.encode()} for each in messages]
        answer = await node.ask(txn, "com.microsoft:schedule-message", {"messages": encoded})
        return answer["sequence-numbers"]

    txn = await bench.declare()
    numbers = await schedule(txn, "a", "b")
    await bench.send("between")
    assert await scheduled() == 0
    await txn.commit()
    assert await scheduled() == 2 and await bench.bodies() == ["between"]
    gone = await bench.declare()
    await schedule(gone, "never")
    await gone.abort()
    first = Array(UNDESCRIBED, Data.LONG, numbers.elements[0])  # type: ignore[arg-type]
    for end, left in (("abort", 2), ("commit", 1)):
        txn = await bench.declare()
        await txn.send(bench.sender, keyed("sent"))
        await node.ask(txn, "com.microsoft:cancel-scheduled-message", {"sequence-numbers": first})
        await getattr(txn, end)()
        assert await scheduled() == left
    assert await bench.bodies() == ["sent"]
    late = await bench.declare()
    await late.send(bench.sender, keyed("kept back"))
    await node.ask(late, "com.microsoft:cancel-scheduled-message", {"sequence-numbers": first})
    with pytest.raises(Refused, match=r"commit failed.*amqp:transaction:rollback"):
        await late.commit()
    answer = await node.ask(None, "partibus:deliver-scheduled-messages", {"sequence-numbers": numbers})
    assert list(answer["delivered"].elements) == [numbers.elements[1]]
    (found,) = await bench.receiver.receive(1)
    assert found.message.body == "b"
    await bench.receiver.propose(found, ACCEPTED)
    assert await bench.bodies() == []


SCENARIOS: dict[str, Callable[[Bench], Coroutine[Any, Any, None]]] = {
    "commit": commit,
    "roll-back": roll_back,
    "connection-drops": connection_drops,
    "refusals": refusals,
    "several-entities": several_entities,
    "named-via": named_via,
    "plain-entity": plain_entity,
    "too-many": too_many,
    "schedules": schedules,
}


@pytest.mark.parametrize("name", TRANSACTIONS)
def test_transactions_of_proton(broker: BrokerProcess, name: str) -> None:
    run(broker.addresses, name)


def run(addresses: Addresses, name: str) -> None:
    """Run one scenario."""
    script = Script(addresses)

    async def scenario() -> None:
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(script.connect())
            bench = Bench(script, client, queue_name("proton-transactions", name))
            await SCENARIOS[name](await bench.attach())

    script.run(scenario())
