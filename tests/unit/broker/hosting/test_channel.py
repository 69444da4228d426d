"""Frames over a socket pair: in order, whole, and until the other end is gone."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest

from broker.hosting.channel import Channel
from broker.hosting.schema import LENGTH
from tests.support.waiting import WAIT_S


def frame(body: bytes) -> bytes:
    return LENGTH.pack(len(body)) + body


@pytest.fixture
async def ends() -> AsyncIterator[tuple[Channel, Channel]]:
    one, other = socket.socketpair()
    channels = await Channel.of(one), await Channel.of(other)
    yield channels
    for channel in channels:
        await channel.close()


async def test_frames_arrive_whole_and_in_order_however_large_they_are(ends: tuple[Channel, Channel]) -> None:
    here, there = ends
    bodies = [b"", b"one", bytes(3_000_000), b"last"]
    arrived: list[bytes] = []

    async def read() -> None:
        async for body in there.bodies():
            arrived.append(body)
            if body == b"last":
                return

    reading = asyncio.create_task(read())
    for body in bodies:
        here.send(frame(body))
    await asyncio.wait_for(reading, WAIT_S)
    assert arrived == bodies


async def test_what_is_queued_in_one_turn_leaves_in_one_piece_and_also_when_the_channel_closes() -> None:
    one, other = socket.socketpair()
    channel = await Channel.of(one)
    other.setblocking(False)
    for number in range(3):
        channel.send(frame(b"%d" % number))
    with pytest.raises(BlockingIOError):
        other.recv(1)
    await asyncio.sleep(0)
    assert other.recv(1_000) == b"".join(frame(b"%d" % number) for number in range(3))
    channel.send(frame(b"the last one"))
    await channel.close()
    assert other.recv(1_000) == frame(b"the last one")
    assert other.recv(1) == b""
    other.close()


async def test_reading_ends_with_the_other_end_even_in_the_middle_of_a_frame() -> None:
    one, other = socket.socketpair()
    channel = await Channel.of(one)
    other.sendall(frame(b"whole") + frame(b"cut off")[:-1])
    other.close()
    assert [body async for body in channel.bodies()] == [b"whole"]
    await channel.close()
