"""A broker above its memory mark, and crowds of clients, sessions and links: the largest give way."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from broker.frontend.crowds import PARTS_AT_ONCE, PARTS_MAX, STRANGERS_MAX, make_room_in_memory, may_have
from broker.frontend.room import CONNECTIONS_IN_A_CROWD
from broker.throttle.memory_mark import Memory
from protocol.codec import Symbol, UInt
from protocol.parts import Parts
from storage.disk import LocalDisk
from tests.support import raw_amqp as raw
from tests.support.broker_process import queue
from tests.support.broker_thread import BrokerThread
from tests.support.link_stack import LinkStack
from tests.support.raw_amqp import ConnectionEnded, RawConnection

WITHIN_S = 30.0


def above_its_mark(folder: Path) -> BrokerThread:
    """Any process uses much more memory than this mark."""
    return BrokerThread(folder, [queue("orders")], LocalDisk(), memory_bytes_max=1 << 20)


def links(count: int) -> bytes:
    return b"".join(raw.frame(raw.ATTACH, raw.receiver_attach(handle, "orders")) for handle in range(count))


def sessions(count: int) -> bytes:
    return b"".join(
        raw.frame(raw.BEGIN, raw.begin_fields(), channel=number) for number in range(1, count + 1)
    )


def is_served(client: RawConnection, channel: int = 200) -> bool:
    """Whether the broker answers a client."""
    try:
        client.send(
            raw.frame(raw.BEGIN, raw.begin_fields(), channel=channel), raw.frame(raw.END, [], channel=channel)
        )
        client.read_until(raw.END, within_s=WITHIN_S)
    except ConnectionEnded:
        return False
    return True


@pytest.mark.parametrize("many", [links, sessions])
def test_far_above_the_memory_mark_connections_with_very_many_links_or_sessions_are_cut_off(
    many: Callable[[int], bytes], tmp_path: Path
) -> None:
    with (
        above_its_mark(tmp_path) as broker,
        raw.opened(broker.addresses.amqp_port) as small,
        raw.opened(broker.addresses.amqp_port) as large,
    ):
        small.send(many(PARTS_MAX - 2))
        large.send(many(PARTS_MAX + 1))
        large.frames_until_end(WITHIN_S)
        assert is_served(small)


@pytest.mark.parametrize("many", [links, sessions])
def test_far_above_the_memory_mark_many_links_or_sessions_in_one_write_are_refused_without_a_close(
    many: Callable[[int], bytes], tmp_path: Path
) -> None:
    """Symptom: clients took all memory between two looks at it, and the kernel ended the broker. With a
    close, JavaScript's client waited for ever."""
    with above_its_mark(tmp_path) as broker, raw.opened(broker.addresses.amqp_port) as large:
        large.send(many(200))
        frames = large.frames_until_end(WITHIN_S)
        assert not [frame for frame in frames if frame.code == raw.CLOSE]
        begun = sum(frame.code in (raw.BEGIN, raw.ATTACH) for frame in frames)
        assert begun < PARTS_MAX


def test_far_above_the_memory_mark_links_with_many_values_count_as_more(tmp_path: Path) -> None:
    """Symptom: 1,800 links with 1,800 values each, 30 of them on each connection, took 230 MiB."""
    fields = [*raw.receiver_attach(1, "orders"), *[None] * 6, {Symbol("many"): [None] * 1_800}]
    with above_its_mark(tmp_path) as broker, raw.opened(broker.addresses.amqp_port) as client:
        client.send(raw.frame(raw.ATTACH, fields))
        client.read_until(raw.ATTACH, within_s=WITHIN_S)
        client.send(raw.frame(raw.ATTACH, [fields[0] + "2", UInt(2), *fields[2:]]))
        assert raw.ATTACH not in [frame.code for frame in client.frames_until_end(WITHIN_S)]


@pytest.mark.parametrize(
    ("links", "counted", "is_cut_off"),
    [(1, PARTS_MAX, False), (1, PARTS_MAX + 1, True), (PARTS_MAX - 1, 0, False), (PARTS_MAX, 0, True)],
)
async def test_a_client_is_as_large_as_what_was_counted_or_as_what_proton_has_of_it(
    links: int, counted: int, is_cut_off: bool
) -> None:
    """The values of few links may take more than many links, and links that were not counted take memory,
    too."""
    stack = LinkStack()
    client = await stack.connect()
    client.say(*(raw.frame(raw.ATTACH, raw.receiver_attach(handle, "queue")) for handle in range(links)))
    await client.hear()
    assert client.connection.engine.session_count + client.connection.engine.link_count == 1 + links
    client.connection.parts.count = counted
    stack.memory.limited = stack.memory.crowded = True
    make_room_in_memory(stack.services)
    assert client.stream.aborted is is_cut_off


def test_what_a_client_may_have_counts_with_its_values_and_its_sessions_and_links_without() -> None:
    memory = Memory(1 << 30, lambda: 0, lambda: 0)
    services: Any = SimpleNamespace(memory=memory)
    client: Any = SimpleNamespace(parts=Parts())
    assert may_have(services, client, 29, 1) and may_have(services, client, 1, 1)
    assert (memory.parts, memory.sessions_and_links) == (30, 2)
    assert may_have(services, client, -29, -1)
    assert (memory.parts, memory.sessions_and_links) == (1, 1)


def test_above_the_memory_mark_few_clients_without_a_credential_stay(tmp_path: Path) -> None:
    with above_its_mark(tmp_path) as broker, ExitStack() as stack:
        port = broker.addresses.amqp_port
        friend = stack.enter_context(raw.opened(port))
        crowd: list[RawConnection] = []
        deadline = time.monotonic() + WITHIN_S
        while len(crowd) < STRANGERS_MAX + 10:
            client = stack.enter_context(RawConnection(port))
            try:
                client.open(raw.sasl_anonymous())
                client.begin()
            except ConnectionEnded:  # there are too many at the moment
                assert time.monotonic() < deadline
                time.sleep(0.1)
                continue
            crowd.append(client)
        while sum(map(is_served, crowd)) > STRANGERS_MAX:
            assert time.monotonic() < deadline
            time.sleep(0.2)
        assert is_served(friend)


def test_far_above_the_memory_mark_a_crowd_with_credentials_grows_no_more(tmp_path: Path) -> None:
    with above_its_mark(tmp_path) as broker, ExitStack() as stack:
        port = broker.addresses.amqp_port
        for _ in range(CONNECTIONS_IN_A_CROWD):
            stack.enter_context(raw.opened(port))
        with pytest.raises(ConnectionEnded):
            stack.enter_context(raw.opened(port))


async def test_who_was_cut_off_makes_room_once_and_others_follow() -> None:
    """Symptom: a connection with thousands of links, which are freed by and by, was cut off 22 times, and
    nobody else was while it lasted."""
    cut: Counter[str] = Counter()

    class Large:
        is_cut_off = False

        def __init__(self, peer: str) -> None:
            self.peer, self.parts = peer, Parts()
            self.parts.count = PARTS_AT_ONCE
            self.engine = SimpleNamespace(session_count=1, link_count=PARTS_AT_ONCE - 1)

        def cut_off(self) -> None:
            self.is_cut_off = True
            cut[self.peer] += 1

    memory = SimpleNamespace(limited=True, crowded=True)
    sparing = SimpleNamespace(info=lambda *given, **more: None)
    services: Any = SimpleNamespace(memory=memory, strangers=[], sparing=sparing)
    services.connections = {Large("a"), Large("b"), Large("c")}
    for _ in range(5):
        make_room_in_memory(services)
    assert cut == {"a": 1, "b": 1, "c": 1}
