"""Connections that fail are not used again, so that the next attempt has a new one."""

from __future__ import annotations

from typing import Any, cast

import pytest

from pyspark_partibus.client import operations, pool
from pyspark_partibus.client.operations import DUPLICATE_WINDOW, GENERATION, PARTITIONS, Facts, Node
from pyspark_partibus.client.patience import Patience
from pyspark_partibus.client.pool import checked_out
from pyspark_partibus.endpoint import Endpoint
from pyspark_partibus.errors import TimedOut

ENDPOINT = Endpoint("pool.test", 5672, False)
PATIENCE = Patience(1.0, 10.0)


class FakeConnection:
    """Looks alive; the first one of a test never answers."""

    made: list[FakeConnection]

    def __init__(self, endpoint: Endpoint, _timeout_s: float) -> None:
        self.endpoint = endpoint
        self.timeout_s = 0.0
        self.closed = False
        self.made.append(self)

    def is_alive(self) -> bool:
        return not self.closed

    def close(self) -> None:
        self.closed = True

    def answer(self) -> None:
        """Wait for the broker's answer."""
        if self is self.made[0]:
            raise TimedOut("no answer")


@pytest.fixture(autouse=True)
def made(monkeypatch: pytest.MonkeyPatch) -> list[FakeConnection]:
    FakeConnection.made = []
    monkeypatch.setattr(pool, "Connection", FakeConnection)
    monkeypatch.setattr(pool, "_connections", {})
    monkeypatch.setattr(pool, "_authorised", {})
    monkeypatch.setattr("time.sleep", lambda _: None)
    return FakeConnection.made


def test_a_connection_on_which_a_token_was_not_answered_is_dropped(
    made: list[FakeConnection], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "put_token", lambda connection, *_: connection.answer())
    endpoint = Endpoint("pool.test", 5672, False, token="t")
    with pytest.raises(TimedOut):
        checked_out(endpoint, 1.0, "orders")
    assert cast(Any, checked_out(endpoint, 1.0, "orders")) is made[1]
    assert made[0].closed


def test_a_node_may_try_once(made: list[FakeConnection], monkeypatch: pytest.MonkeyPatch) -> None:
    class FakeRequester:
        def __init__(self, connection: FakeConnection, _node: str) -> None:
            self._connection = connection

        def ask(self, operation: str, body: object) -> dict[str, int]:
            self._connection.answer()
            return {"batch": 5}

    monkeypatch.setattr(operations, "Requester", FakeRequester)
    node = Node(ENDPOINT, "orders", PATIENCE)
    with pytest.raises(TimedOut), node.trying_once():
        node.last_batch("sink")
    made.clear()
    assert node.last_batch("sink") == 5


def test_a_connection_on_which_a_sender_was_not_answered_is_dropped(
    made: list[FakeConnection], monkeypatch: pytest.MonkeyPatch
) -> None:
    class FakeSender:
        def __init__(self, connection: FakeConnection, *_: object) -> None:
            connection.answer()
            self.remote_properties = {GENERATION: "gen", PARTITIONS: 4, DUPLICATE_WINDOW: None}

        def close(self) -> None:
            """There is nothing to close."""

    monkeypatch.setattr(operations, "Sender", FakeSender)
    assert Node(ENDPOINT, "orders", PATIENCE).facts() == Facts("gen", 4, None)
    assert [each.closed for each in made] == [True, False]
