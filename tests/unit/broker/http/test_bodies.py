"""The memory that all request bodies take together."""

from __future__ import annotations

import contextlib
import gc
import tracemalloc
from pathlib import Path

import pytest

from broker.http.bodies import FREE_BYTES, Bodies
from broker.http.refusals import HttpRefusal
from broker.throttle.memory_mark import TRAFFIC_BYTES_MIN, TRAFFIC_PARTS, Memory
from tests.support.http_entries import queue_body
from tests.support.http_raw import client, status_of
from tests.support.http_stack import HttpStack, http_stack
from tests.support.sas import sas_token
from tests.support.waiting import until

UPLOAD = 500_000
MIB = 1024 * 1024


def ample(mark: int = 1 << 30) -> Memory:
    """A memory mark that nothing reaches."""
    return Memory(mark, lambda: 0, lambda: 0)


async def test_bodies_that_nobody_finishes_are_bounded_in_total(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A body gives its room back however it ends, and small bodies are always read."""
    monkeypatch.setattr("broker.http.bodies.SLOW_S", 3_600.0)
    bodies = Bodies(ample(), 0)  # only one that is large at a time
    monkeypatch.setattr("broker.http.server.Bodies", lambda memory: bodies)
    async with http_stack(tmp_path, http_transfer_timeout_ms=60_000, http_body_bytes_max=512 * 1024) as stack:
        token = sas_token(f"https://127.0.0.1:{stack.port}")
        head = (
            f"PUT /orders HTTP/1.1\r\nHost: localhost\r\nAuthorization: {token}\r\nContent-Length: "
            "500000\r\n\r\n"
        ).encode()

        async def answer(size: int) -> tuple[int, str | None]:
            status, _, headers = await stack.ask("PUT", "/orders", bytes(size))
            return status, headers.get("Retry-After")

        for size, status in (
            (500_000, 400),
            (600_000, 413),
            (500_000, 400),
        ):  # not XML; too large for one body; not XML
            assert await answer(size) == (status, None) and bodies.bytes == 0
        async with client(stack, head + bytes(450_000)):
            await until(lambda: bodies.bytes == 450_000 - FREE_BYTES)
            assert await answer(500_000) == (503, "2")
            assert await answer(FREE_BYTES) == (400, None)
            assert bodies.bytes == 450_000 - FREE_BYTES
        await until(lambda: bodies.bytes == 0)  # the client is gone
        assert await answer(500_000) == (400, None)


def test_a_body_counts_beyond_its_free_bytes_and_gives_them_back_however_it_ends() -> None:
    bodies = Bodies(ample(), 1 << 20)
    with bodies.read() as small, pytest.raises(RuntimeError), bodies.read() as large:
        small.grows(FREE_BYTES)
        assert bodies.bytes == 0
        large.grows(FREE_BYTES - 1)
        large.grows(3)
        assert bodies.bytes == 2
        raise RuntimeError("the client is gone")
    assert bodies.bytes == 0


def test_a_body_that_does_not_fit_is_refused_for_a_retry_and_counts_no_further() -> None:
    bodies = Bodies(ample(), 1 << 20)
    with bodies.read() as first, bodies.read() as second:
        first.grows(FREE_BYTES + bodies.bytes_max - 1)
        second.grows(FREE_BYTES + 1)
        with pytest.raises(HttpRefusal) as refused:
            second.grows(1)
        assert (refused.value.status, refused.value.headers) == (503, {"Retry-After": "2"})
        assert bodies.bytes == bodies.bytes_max


async def test_a_client_that_stalls_makes_room_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is slow keeps its connection until its room is needed."""
    monkeypatch.setattr("broker.http.bodies.SLOW_S", 0.0)
    bodies = Bodies(ample(), 0)
    monkeypatch.setattr("broker.http.server.Bodies", lambda memory: bodies)
    async with http_stack(tmp_path, http_transfer_timeout_ms=60_000) as stack:
        token = sas_token(f"https://127.0.0.1:{stack.port}")
        head = (
            f"PUT /orders HTTP/1.1\r\nHost: localhost\r\nAuthorization: {token}\r\nContent-Length: "
            "500000\r\n\r\n"
        ).encode()
        async with client(stack, head + bytes(450_000)) as (reader, _):
            await until(lambda: bodies.bytes == 450_000 - FREE_BYTES)
            assert (await stack.ask("PUT", "/orders", bytes(FREE_BYTES)))[0] == 400
            assert bodies.bytes == 450_000 - FREE_BYTES
            assert (await stack.ask("PUT", "/orders", bytes(500_000)))[0] == 400, "it was read"
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b"", "the client that stalled is disconnected"
        await until(lambda: bodies.bytes == 0)
        assert not bodies.arriving


def test_a_body_that_has_arrived_is_not_taken_for_a_slow_one() -> None:
    bodies = Bodies(ample(), 1 << 20)
    with bodies.read() as waiting_for_the_disk, bodies.read() as other:
        waiting_for_the_disk.grows(FREE_BYTES + bodies.bytes_max)
        assert not bodies.make_room(1, other)


async def test_what_has_arrived_of_a_broken_body_is_given_back_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not only when cycles of objects are collected: by then, many more bodies may have broken off."""
    bodies = Bodies(ample())
    monkeypatch.setattr("broker.http.server.Bodies", lambda memory: bodies)
    async with http_stack(tmp_path, http_body_bytes_max=1 << 20) as stack:
        token = sas_token(f"https://127.0.0.1:{stack.port}")
        head = (
            f"PUT /orders HTTP/1.1\r\nHost: localhost\r\nAuthorization: {token}\r\nContent-Length: "
            "1048576\r\n\r\n"
        ).encode()
        gc.disable()
        tracemalloc.start()
        try:
            for _ in range(8):
                async with client(stack, head + bytes(1_000_000)):
                    await until(lambda: bodies.bytes >= 1_000_000 - FREE_BYTES)
                await until(lambda: bodies.bytes == 0)
            held, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
            gc.enable()
        assert held < 4_000_000


# --- the memory mark ----------------------------------------------------------------------------------------


def test_all_bodies_together_may_take_an_eighth_of_the_memory_mark() -> None:
    assert Bodies(ample(400 * MIB)).bytes_max == 400 * MIB // TRAFFIC_PARTS
    assert Bodies(ample(20 * MIB)).bytes_max == TRAFFIC_BYTES_MIN
    assert Bodies(ample(1 << 40)).bytes_max == 64 * MIB


def test_what_bodies_take_counts_for_the_mark_at_once() -> None:
    """Not only when memory is measured the next time: many bodies may arrive in between."""
    measured = [95 * MIB]
    memory = Memory(100 * MIB, lambda: measured[0], lambda: 0)
    memory.look()
    bodies = Bodies(memory)
    with bodies.read() as first, bodies.read() as second:
        first.grows(MIB)
        measured[0] = 200 * MIB
        with pytest.raises(HttpRefusal):
            for _ in range(200):
                first.is_whole()
                second.grows(MIB)
        assert memory.limited


def upload(stack: HttpStack) -> bytes:
    """The head of a request with a body of UPLOAD bytes, and most of that body."""
    token = sas_token(f"https://127.0.0.1:{stack.port}")
    head = f"PUT /orders HTTP/1.1\r\nHost: localhost\r\nAuthorization: {token}\r\nContent-Length: {UPLOAD}"
    return head.encode() + b"\r\n\r\n" + bytes(UPLOAD - 50_000)


async def test_above_the_memory_mark_one_large_body_arrives_and_further_ones_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Symptom: with 64 MiB of unfinished bodies, the process grew as far beyond its mark."""
    monkeypatch.setattr("broker.http.bodies.SLOW_S", 3_600.0)
    found: list[Bodies] = []

    def bodies_of(memory: Memory) -> Bodies:
        found.append(Bodies(memory))
        return found[0]

    monkeypatch.setattr("broker.http.server.Bodies", bodies_of)
    async with http_stack(tmp_path, http_transfer_timeout_ms=60_000) as stack:
        stack.resident[0] = 2 << 30
        stack.memory.look()
        async with client(stack, upload(stack)):
            await until(lambda: found[0].bytes == UPLOAD - 50_000 - FREE_BYTES)
            for _ in range(3):
                async with client(stack, upload(stack)) as (reader, _):
                    assert await status_of(reader) == 503
            assert found[0].bytes == UPLOAD - 50_000 - FREE_BYTES
            assert (await stack.ask("PUT", "/orders", bytes(FREE_BYTES)))[0] == 400, "it was read"
        await until(lambda: found[0].bytes == 0)
        assert (await stack.ask("PUT", "/orders", bytes(UPLOAD)))[0] == 400, "it was read"


async def test_above_the_memory_mark_a_message_is_refused_before_its_body_arrives(tmp_path: Path) -> None:
    async with http_stack(tmp_path) as stack:
        assert (await stack.ask("PUT", "/orders", queue_body()))[0] == 201
        stack.resident[0] = 2 << 30
        token = sas_token(f"https://127.0.0.1:{stack.port}")
        head = (
            f"POST /orders/messages HTTP/1.1\r\nHost: localhost\r\nAuthorization: {token}\r\n"
            "Content-Length: 100000\r\n\r\n"
        )
        stack.memory.look()
        async with client(stack, head.encode()) as (reader, _):
            assert await status_of(reader) == 503
