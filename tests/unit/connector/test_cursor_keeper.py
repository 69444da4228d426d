"""Settling what a query has committed: once, in its own name, and never at the cost of the query for a
moment's trouble."""

from __future__ import annotations

from typing import Any, cast

import pytest

from pyspark_partibus.client.operations import Cursor, Node
from pyspark_partibus.cursor_keeper import PAUSE_S, CursorKeeper
from pyspark_partibus.errors import DataLoss, OptionError, Refused
from pyspark_partibus.offsets import Offset
from pyspark_partibus.options import source_options
from tests.support.fake_node import FakeNode

OFFSET = Offset("gen", "me", {0: 5})
LATER = Offset("gen", "me", {0: 9})
THEIRS = Cursor("them", "gen", {0: 3})


def keeper(node: FakeNode, cursor: str | None = "c", **given: str) -> CursorKeeper:
    named = {} if cursor is None else {"cursor": cursor}
    options = source_options({"endpoint": "amqp://host", "entity": "orders", **named, **given})
    return CursorKeeper(cast(Node, node), options)


def test_the_cursor_is_made_with_the_first_batch_that_is_settled_and_then_moves() -> None:
    node = FakeNode({0: 10})
    keeps = keeper(node)
    keeps.check_before_first_batch()
    assert node.cursors == {}
    keeps.settle(OFFSET)
    keeps.settle(LATER)
    assert node.cursors == {"c": Cursor("me", "gen", {0: 9})}
    assert node.completed == {}


def test_what_is_settled_is_not_settled_again() -> None:
    node = FakeNode({0: 10})
    keeps = keeper(node)
    keeps.settle(OFFSET)
    asked = len(node.asked)
    keeps.settle(OFFSET)
    assert len(node.asked) == asked


def test_messages_are_completed_if_wanted_with_a_cursor_or_without() -> None:
    node = FakeNode({0: 10})
    keeper(node, settle="complete").settle(OFFSET)
    assert (node.completed, node.cursors["c"].positions) == ({0: 5}, {0: 5})
    node = FakeNode({0: 10})
    keeper(node, settle="complete", cursor=None).settle(OFFSET)
    assert (node.completed, node.cursors) == ({0: 5}, {})


def test_nothing_is_settled_if_nothing_is_to_be() -> None:
    node = FakeNode({0: 10})
    keeps = keeper(node, settle="none")
    keeps.check_before_first_batch()
    keeps.settle(OFFSET)
    assert node.asked == []


def test_a_broker_that_is_down_is_asked_once_and_again_after_a_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    node = FakeNode({0: 10})
    keeps = keeper(node)
    node.down = True
    for _ in range(3):
        keeps.settle(OFFSET)
    assert len(node.asked) == 1
    node.down = False
    now += PAUSE_S - 0.1
    keeps.settle(OFFSET)
    assert node.cursors == {}
    now += 0.1
    keeps.settle(OFFSET)
    assert node.cursors["c"].positions == {0: 5}


def test_requests_that_settle_are_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    node = FakeNode({0: 10})
    once: list[bool] = []
    monkeypatch.setattr(node, "_note", lambda _: once.append(node.tries_once))
    keeps = keeper(node)
    keeps.check_before_first_batch()
    keeps.settle(OFFSET)
    assert once == [False, True, True, True, True, True]


def test_the_cursor_of_another_query_is_left_alone() -> None:
    node = FakeNode({0: 10})
    node.cursors["c"] = THEIRS
    keeps = keeper(node)
    for settles in (keeps.check_before_first_batch, lambda: keeps.settle(OFFSET)):
        with pytest.raises(OptionError, match=r"option 'cursor'.*cursorTakeover"):
            settles()
    assert node.cursors["c"] == THEIRS


@pytest.mark.parametrize("settle", ["cursor", "complete"])
def test_a_checkpoint_that_is_older_than_the_cursor_is_noticed(
    settle: str, caplog: pytest.LogCaptureFixture
) -> None:
    node = FakeNode({0: 10})
    keeper(node, settle=settle).settle(LATER)
    assert "older" not in caplog.text
    restored = keeper(node, settle=settle)
    if settle == "complete":
        with pytest.raises(
            DataLoss, match=r"older than the cursor 'c' of 'orders'.*at 9 in partition 0.*at 5"
        ):
            restored.settle(OFFSET)
        restored = keeper(node, settle=settle, failOnDataLoss="false")
    restored.settle(OFFSET)
    assert "the checkpoint is older than the cursor 'c'" in caplog.text
    caplog.clear()
    restored.settle(LATER)
    keeper(node, settle=settle).settle(LATER)
    assert "older" not in caplog.text


def test_a_broker_that_was_restored_from_an_older_copy_is_noticed(caplog: pytest.LogCaptureFixture) -> None:
    """Its head has passed the query's position again, with other messages."""
    node = FakeNode({0: 90})
    keeps = keeper(node)
    assert keeps.confirmed("gen") is None
    keeps.settle(LATER)
    assert (keeps.confirmed("gen"), keeps.confirmed("other")) == ({0: 9}, None)
    latest = LATER.ending({0: 12}, "gen", keeps.confirmed("gen"))
    keeper(node).settle(latest)
    node.cursors["c"] = Cursor("me", "gen", {0: 8})
    with pytest.raises(
        DataLoss, match=r"'c' of 'orders' has gone back to 8 in partition 0, and was at 9: the b"
    ):
        keeper(node).settle(latest)
    keeper(node, failOnDataLoss="false").settle(latest)
    assert "Going on with what is there" in caplog.text
    assert node.cursors["c"].positions == {0: 12}


def test_a_cursor_can_be_taken_over() -> None:
    node = FakeNode({0: 10})
    node.cursors["c"] = THEIRS
    keeps = keeper(node, cursorTakeover="true")
    keeps.check_before_first_batch()
    keeps.settle(OFFSET)
    assert node.cursors["c"] == Cursor("me", "gen", {0: 5})


def test_a_refusal_ends_the_query(monkeypatch: pytest.MonkeyPatch) -> None:
    node = FakeNode({0: 10})

    def refused(*_: Any) -> None:
        raise Refused("advance", "amqp:unauthorized-access", "no right")

    monkeypatch.setattr(node, "advance_cursor", refused)
    with pytest.raises(Refused, match="no right"):
        keeper(node).settle(OFFSET)
