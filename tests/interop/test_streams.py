"""Reading and writing by position with a plain AMQP client, Qpid Proton (AMQP contract 7.6)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from proton import Delivery, Message, symbol, timestamp
from proton.reactor import LinkOption
from proton.utils import BlockingConnection, LinkDetached

from tests.interop.own_management import longs, management
from tests.interop.proton_blocking import Receiver
from tests.interop.range_reading import InRange, read
from tests.support.azure_client import admin_of
from tests.support.broker_process import BrokerProcess, queue

PARTITIONS = 2


@pytest.fixture(scope="module", params=["false", "true"], ids=["one process", "partitions apart"])
def broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BrokerProcess]:
    names = (
        "positions",
        "generations",
        "ranges",
        "sharing",
        "dead-letters",
        "cursors",
        "draining",
        "sinking",
    )
    queues = [queue(name, PartitionCount=PARTITIONS, Partitioned=True) for name in names]
    queues.append(
        queue("counted", PartitionCount=PARTITIONS, Partitioned=True, RequiresDuplicateDetection=True)
    )
    environment = {"PARTIBUS_PARTITION_PROCESS": request.param}
    with BrokerProcess(tmp_path_factory.mktemp("streams"), queues, environment=environment) as running:
        yield running


def send(connection: BlockingConnection, name: str, *bodies: bytes, **given: Any) -> None:
    """Send messages, all with the same partition key."""
    sender = connection.create_sender(name)
    for number, body in enumerate(bodies):
        annotations = {symbol("x-opt-partition-key"): "one key"}
        sender.send(Message(id=f"{number}", body=body, inferred=True, annotations=annotations, **given))
    sender.close()  # type: ignore[no-untyped-call]


class Properties(LinkOption):
    """Properties of an attach."""

    def __init__(self, **properties: Any) -> None:
        self._properties = {symbol(f"partibus:{name}"): value for name, value in properties.items()}

    def apply(self, link: Any) -> None:
        link.properties = self._properties


def test_positions_backlogs_and_times_of_all_partitions_come_in_one_response(
    connection: BlockingConnection,
) -> None:
    with management(connection, "positions") as node:
        status, before = node.ask("partibus:get-positions")
        assert status == 200 and before["partitions"] == [0, 1] and before["messages"] == [0, 0]
        assert before["starts"] == before["heads"] == [1, 1 << 48 | 1]
        between = int(time.time() * 1000)
        send(connection, "positions", b"a", b"bb", b"ccc")
        status, after = node.ask(
            "partibus:get-positions",
            enqueued_time=timestamp(between),
            positions=longs([head + 1 for head in before["heads"]]),
        )
        filled = after["messages"].index(3)
        moved = [head - old for head, old in zip(after["heads"], before["heads"], strict=True)]
        assert (moved[filled], moved[1 - filled]) == (3, 0)
        assert after["backlogs"][filled] == 2 and after["backlogs"][1 - filled] == 0
        assert after["positions-by-time"] == before["heads"]
        assert after["generation"] == before["generation"]
        assert node.ask("partibus:get-positions", cursors="all")[0] == 400


def test_a_link_is_told_the_generation_and_refused_if_it_expects_another(
    connection: BlockingConnection,
) -> None:
    with management(connection, "generations") as node:
        generation = node.ask("partibus:get-positions")[1]["generation"]
    receiver = connection.create_receiver("generations", options=Properties(generation=None))
    assert receiver.link.remote_properties["partibus:generation"] == generation
    receiver.close()  # type: ignore[no-untyped-call]
    sender = connection.create_sender("generations", options=Properties(generation=generation))
    assert sender.link.remote_properties["partibus:generation"] == generation
    with pytest.raises(LinkDetached, match="amqp:not-found"):
        connection.create_receiver("generations", options=Properties(generation="another"))


def filled(connection: BlockingConnection, name: str) -> tuple[int, int]:
    """The start and head of the partition that holds messages."""
    with management(connection, name) as node:
        found = node.ask("partibus:get-positions")[1]
    place = found["messages"].index(max(found["messages"]))
    return found["starts"][place], found["heads"][place]


def test_a_range_is_read_in_envelopes_as_often_as_a_client_wants(connection: BlockingConnection) -> None:
    bodies = [b"%d" % number * 100 for number in range(25)]
    send(connection, "ranges", *bodies, properties={"colour": "red"})
    start, head = filled(connection, "ranges")
    for _ in range(2):
        envelopes = read(connection, "ranges", from_=start, to=head, messages=10)
        assert [len(each.messages) for each in envelopes] == [10, 10, 5]
        assert [body for each in envelopes for body in each.bodies] == bodies
        assert [each.body for part in envelopes for each in part.messages] == bodies
        assert envelopes[0].messages[0].properties == {"colour": "red"}
        numbers = [number for each in envelopes for number in each.fields["sequence-numbers"]]
        assert numbers == list(range(start, head))
    (part,) = read(connection, "ranges", from_=start + 3, to=start + 5)
    assert part.bodies == bodies[3:5] and part.fields["partition"] == start >> 48
    with pytest.raises(LinkDetached, match="argument-error"):
        read(connection, "ranges", from_=start, to=head + 1)
    with pytest.raises(LinkDetached, match="argument-error"):
        connection.create_receiver("ranges", options=InRange(to=head))


def test_a_locked_message_is_read_and_one_that_a_consumer_completed_is_missing(
    connection: BlockingConnection,
) -> None:
    send(connection, "sharing", b"a", b"b", b"c")
    start, head = filled(connection, "sharing")
    consumer = Receiver(connection, "sharing")
    first, second = consumer.receive(2)
    (part,) = read(connection, "sharing", from_=start, to=head)
    assert part.bodies == [b"a", b"b", b"c"] and part.fields["locked"] >= 2
    consumer.settle(first, Delivery.ACCEPTED)
    (part,) = read(connection, "sharing", from_=start, to=head)
    assert part.bodies == [b"b", b"c"] and part.fields["missing"] == 1 and part.fields["start"] == start + 1
    consumer.settle(second, Delivery.REJECTED)
    (part,) = read(connection, "sharing", from_=start, to=head)
    assert part.bodies == [b"c"] and part.fields["dead-lettered"] == 1
    consumer.close()


def test_dead_letters_are_read_by_position_once_no_older_message_can_follow_them(
    connection: BlockingConnection,
) -> None:
    dead = "dead-letters/$deadletterqueue"
    send(connection, "dead-letters", b"a", b"b")
    start, head = filled(connection, "dead-letters")
    consumer = Receiver(connection, "dead-letters")
    first, second = consumer.receive(2)
    consumer.settle(second, Delivery.REJECTED)
    (part,) = read(connection, dead, from_=start)
    assert (part.bodies, part.fields["head"]) == ([], start)
    with management(connection, dead) as node:
        status, found = node.ask("partibus:get-positions", undecided=True)
        assert (status, sum(found["messages"])) == (200, 1) and head in found["heads"]
    (part,) = read(connection, dead, from_=start, to=head, undecided=True)
    assert (part.bodies, part.fields["head"]) == ([b"b"], head)
    consumer.settle(first, Delivery.REJECTED)
    (part,) = read(connection, dead, from_=start)
    assert (part.bodies, part.fields["head"]) == ([b"a", b"b"], head)
    consumer.close()


def test_a_cursor_stands_where_its_owner_left_it(connection: BlockingConnection) -> None:
    send(connection, "cursors", b"a", b"b", b"c")
    start, head = filled(connection, "cursors")
    mine = {"cursor": "mine", "owner": "me"}
    with management(connection, "cursors") as node:
        assert node.ask("partibus:get-cursor", cursor="mine")[0] == 404
        status, made = node.ask("partibus:create-cursor", **mine, start="earliest")
        assert status == 200 and made["created"] is True and start in made["positions"]
        status, moved = node.ask("partibus:advance-cursor", **mine, positions=longs([start + 2]))
        assert (status, moved["positions"]) == (200, [start + 2])
        status, again = node.ask("partibus:create-cursor", **mine, start="latest")
        assert again["created"] is False and start + 2 in again["positions"]
        status, error = node.ask("partibus:create-cursor", cursor="mine", owner="you", start="latest")
        assert (status, error["condition"]) == (409, "partibus:cursor-owned")
        status, found = node.ask("partibus:get-positions", cursor="mine")
        assert sum(found["backlogs"]) == 1 and head in found["heads"]
        taken = node.ask("partibus:create-cursor", cursor="mine", owner="you", start="latest", take_over=True)
        assert (taken[0], taken[1]["owner"]) == (200, "you") and start + 2 in taken[1]["positions"]
        status, error = node.ask("partibus:advance-cursor", **mine, positions=longs([start + 3]))
        assert (status, error["condition"]) == (409, "partibus:cursor-owned")
        status, listed = node.ask("partibus:list-cursors")
        assert [each["cursor"] for each in listed["cursors"]] == ["mine"]
        assert node.ask("partibus:delete-cursor", cursor="mine", owner="you") == (200, {"deleted": True})
        assert node.ask("partibus:list-cursors")[1]["cursors"] == []
    assert [part.bodies for part in read(connection, "cursors", from_=start)] == [[b"a", b"b", b"c"]]


def test_what_was_read_is_completed_by_position_and_a_consumer_keeps_what_it_holds(
    connection: BlockingConnection,
) -> None:
    send(connection, "draining", b"a", b"b", b"c", b"d")
    start, head = filled(connection, "draining")
    consumer = Receiver(connection, "draining")
    (held,) = consumer.receive(1)
    mine = {"cursor": "reader", "owner": "me"}
    with management(connection, "draining") as node:
        status, error = node.ask("partibus:settle-through", positions=longs([head + 1]))
        assert (status, error["condition"]) == (400, "com.microsoft:argument-error")
        status, settled = node.ask("partibus:settle-through", positions=longs([start + 2]))
        assert status == 200 and settled["completed"][0] + settled["locked"][0] == 2
        assert settled["locked"][0] >= 1
        node.ask("partibus:create-cursor", **mine, start="earliest")
        status, moved = node.ask(
            "partibus:advance-cursor", **mine, positions=longs([start + 3]), complete=True
        )
        assert (status, moved["positions"]) == (200, [start + 3]) and moved["locked"][0] >= 1
    consumer.settle(held, Delivery.MODIFIED)
    consumer.close()
    (part,) = read(connection, "draining", from_=start, to=head)
    assert part.bodies == [b"a", b"d"], "the consumer gave it back"


def encoded(*ids: str, key: str = "one key") -> list[bytes]:
    annotations = {symbol("x-opt-partition-key"): key}
    return [
        Message(id=each, body=each.encode(), inferred=True, annotations=annotations).encode() for each in ids
    ]


def test_a_request_with_many_messages_says_which_of_them_are_duplicates(
    connection: BlockingConnection,
) -> None:
    with management(connection, "counted") as node:
        status, first = node.ask("partibus:send-messages", messages=encoded("a", "b"))
        assert (status, first["accepted"], first["duplicates"]) == (200, 2, [])
        status, again = node.ask("partibus:send-messages", messages=encoded("b", "c", "a"))
        assert (status, again["accepted"], again["duplicates"]) == (200, 1, [0, 2])
        assert again["sequence-numbers"] == [0, first["sequence-numbers"][1] + 1, 0]
        status, error = node.ask("partibus:send-messages", messages=[b"no message"])
        assert (status, error["condition"]) == (400, "amqp:decode-error")
    (part,) = read(connection, "counted", from_=first["sequence-numbers"][0])
    assert part.bodies == [b"a", b"b", b"c"]


def test_a_batch_that_is_written_again_is_stored_once(connection: BlockingConnection) -> None:
    with management(connection, "sinking") as node:
        assert node.ask("partibus:get-batch", sink="mine") == (200, {"batch": None})
        written = node.ask("partibus:send-messages", messages=encoded("a", "b"), sink="mine", batch=0)[1]
        assert (written["accepted"], written["committed"], written["batch"]) == (2, True, 0)
        again = node.ask("partibus:send-messages", messages=encoded("b", "a"), sink="mine", batch=0)[1]
        assert (again["accepted"], again["duplicates"], again["committed"]) == (0, [0, 1], False)
        assert node.ask("partibus:commit-batch", sink="mine", batch=5) == (
            200,
            {"committed": True, "batch": 5},
        )
        assert node.ask("partibus:commit-batch", sink="mine", batch=4) == (
            200,
            {"committed": False, "batch": 5},
        )
        assert node.ask("partibus:get-batch", sink="mine") == (200, {"batch": 5})
        assert node.ask("partibus:get-batch", **{"sink": "new", "will-commit": True}) == (
            200,
            {"batch": None},
        )
        messages = [*encoded("c", key="1"), *encoded("d", key="2"), *encoded("e", key="3")]
        assert node.ask("partibus:send-messages", messages=messages, sink="mine", batch=9)[0] == 400
    (part,) = read(connection, "sinking", from_=written["sequence-numbers"][0])
    assert part.bodies == [b"a", b"b"]


def test_subscriptions_are_read_and_completed_by_position_each_for_itself(
    broker: BrokerProcess, connection: BlockingConnection
) -> None:
    with admin_of(broker) as admin:
        admin.create_topic("topic")
        for name in ("one", "two"):
            admin.create_subscription("topic", name)
    with management(connection, "topic") as node:
        sent = node.ask("partibus:send-messages", messages=encoded("a", "b", "c"))
        assert (sent[0], sent[1]["accepted"]) == (200, 3)
        for operation in ("get-positions", "create-cursor"):
            status, refused = node.ask(f"partibus:{operation}")
            assert (status, refused["condition"]) == (400, "amqp:not-allowed")
    one, two = ("topic/Subscriptions/one", "topic/Subscriptions/two")
    start, head = filled(connection, one)
    mine = {"cursor": "mine", "owner": "me"}
    with management(connection, one) as node:
        assert node.ask("partibus:create-cursor", **mine, start="earliest")[0] == 200
        (part,) = read(connection, one, from_=start, to=head)
        assert part.bodies == [b"a", b"b", b"c"]
        moved = node.ask("partibus:advance-cursor", **mine, positions=longs([start + 2]), complete=True)
        assert moved[1]["completed"] == [2]
    with management(connection, two) as node:
        assert node.ask("partibus:list-cursors")[1]["cursors"] == []
    assert [each.bodies for each in read(connection, one, from_=start)] == [[b"c"]]
    assert [each.bodies for each in read(connection, two, from_=start)] == [[b"a", b"b", b"c"]]
