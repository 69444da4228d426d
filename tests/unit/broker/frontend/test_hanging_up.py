"""A connection that the broker closes keeps its socket until the client has read why."""

from __future__ import annotations

import pytest

from broker.frontend import hanging_up
from tests.support import raw_amqp as raw
from tests.support.link_stack import LinkStack, turn
from tests.support.waiting import until


async def test_the_broker_reads_on_for_a_while_after_its_close(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the system would discard the close, if the client sends more before it has read that far."""
    monkeypatch.setattr(hanging_up, "LINGER_S", 0.01)
    client = await LinkStack().connect()
    client.connection.shut_down()
    await client.heard(raw.CLOSE)
    client.say(b"what was on its way, not even read as frames")
    assert client.stream.ended and not client.stream.is_closing()
    await until(lambda: client.stream.closed)
    assert not client.stream.aborted


async def test_a_client_that_does_not_stop_after_the_brokers_close_is_cut_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hanging_up, "LINGER_S", 60.0)
    client = await LinkStack().connect()
    client.connection.shut_down()
    await client.heard(raw.CLOSE)
    for _ in range(16):
        client.say(bytes(65_536))
    assert not client.stream.aborted
    client.say(b"x")
    assert client.stream.aborted


async def test_a_client_that_does_not_read_our_last_words_does_not_keep_its_socket(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hanging_up, "CLOSE_TIMEOUT_S", 0.01)
    client = await LinkStack().connect()
    client.say(raw.frame(raw.CLOSE, []))
    await turn()
    assert client.stream.closed and not client.stream.aborted
    await until(lambda: client.stream.aborted)
