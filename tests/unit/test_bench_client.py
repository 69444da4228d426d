"""The benchmarks' load client, against a peer that stores nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.bench.load import traffic
from tests.bench.load.bare_peer import BarePeer
from tests.bench.load.client import LoadConnection, Receiver, Sender, drive, encode_message, numbered
from tests.bench.load.endpoint import LoadError
from tests.bench.load.engine_socket import spell_out_unsettled
from tests.bench.load.traffic import Target
from tests.support.amqp_messages import PROPERTIES, sections
from tests.support.bare_peers import endpoint_of, running_bare_peer

WITHIN_S = 10.0


@pytest.fixture
def peer() -> Iterator[BarePeer]:
    with running_bare_peer() as started:
        yield started


def test_a_sender_keeps_to_its_window_and_counts_what_was_accepted(peer: BarePeer) -> None:
    with LoadConnection(endpoint_of(peer)) as connection:
        sender = Sender(connection, encode_message(1024), window=10)
        sender.send(200)
        most_unacknowledged = 0

        def done() -> bool:
            nonlocal most_unacknowledged
            most_unacknowledged = max(most_unacknowledged, sender.unacknowledged)
            return sender.is_done

        drive([connection], done, WITHIN_S)
    assert (sender.accepted, peer.queue.waiting) == (200, 200)
    assert 0 < most_unacknowledged <= 10


def test_a_receiver_takes_what_it_asked_for_and_waits_for_each_settlement(peer: BarePeer) -> None:
    traffic.send(Target("peer", endpoint_of(peer), settles_first=False), 300)
    with LoadConnection(endpoint_of(peer)) as connection:
        receiver = Receiver(connection, window=50, body_bytes=1024)
        receiver.receive(250)
        drive([connection], lambda: receiver.is_done, WITHIN_S)
    assert (receiver.received, receiver.completed, peer.queue.completed, peer.queue.waiting) == (
        250,
        250,
        250,
        50,
    )


@pytest.mark.parametrize("count", [0, 7, 10, 95])
def test_draining_leaves_nothing_and_ends(peer: BarePeer, count: int) -> None:
    target = Target("peer", endpoint_of(peer), settles_first=True)
    traffic.send(target, count)
    assert traffic.drain(target, window=10) == count
    assert (peer.queue.completed, peer.queue.waiting) == (count, 0)


@pytest.mark.parametrize("settles_first", [False, True])
def test_many_connections_send_and_receive_at_once(peer: BarePeer, settles_first: bool) -> None:
    rate = traffic.send_and_receive(
        Target("peer", endpoint_of(peer), settles_first), 800, connection_count=4, window=20
    )
    assert rate > 0
    assert (peer.queue.completed, peer.queue.waiting) == (800, 0)


def test_a_message_shorter_than_it_should_be_is_no_figure(peer: BarePeer) -> None:
    traffic.send(Target("peer", endpoint_of(peer), settles_first=False), 1)
    with LoadConnection(endpoint_of(peer)) as connection:
        receiver = Receiver(connection, window=1, body_bytes=4096)
        receiver.receive(1)
        with pytest.raises(LoadError, match="shorter"):
            drive([connection], lambda: receiver.is_done, WITHIN_S)


def test_each_single_send_has_a_latency(peer: BarePeer) -> None:
    latencies_us = traffic.send_latencies_us(Target("peer", endpoint_of(peer), settles_first=False), 20)
    assert len(latencies_us) == 20
    assert min(latencies_us) > 0


def test_a_disposition_with_no_settled_field_is_spelled_out_and_others_stay() -> None:
    silent = b"\x00\x53\x15\xc0\x09\x05\x41\x52\x07\x70\x00\x00\x01\x00\x40\x00\x53\x24\x45"
    settled = b"\x00\x53\x15\xc0\x08\x05\x41\x43\x52\x07\x41\x00\x53\x24\x45"
    buffer = bytearray(silent + settled)
    spell_out_unsettled(buffer, len(buffer))
    assert bytes(buffer) == silent[:14] + b"\x42" + silent[15:] + settled


def test_a_numbered_message_differs_in_its_id_only() -> None:
    plain = encode_message(1024)
    before, after = (numbered(plain, number) for number in (0, 1_234_567_890))
    assert before == plain and len(after) == len(plain)
    assert after.replace(b"1234567890", b"0000000000") == plain
    assert sections(after)[PROPERTIES] == ["bench-1234567890"]
