"""The content of a block is taken from its front, whatever parts it comes in."""

from __future__ import annotations

import random
import zlib
from collections import deque
from mmap import mmap

import pytest

from broker.partition.block_content import STEP_BYTES, Content, content_of, unpacked
from broker.partition.tables import UnreadableRecord
from tests.support.mapped import mapped

DATA = bytes(range(200))


@pytest.mark.parametrize(
    "block",
    [DATA, (DATA[:3], b"", DATA[3:100], DATA[100:]), mapped(DATA, 50)],
    ids=["whole", "written", "read"],
)
def test_what_is_taken_does_not_depend_on_the_parts(block: bytes | tuple[bytes, ...] | deque[mmap]) -> None:
    content = content_of(block)
    assert content.take(0) == b""
    assert [content.take(size) for size in (10, 45, 100)] == [DATA[:10], DATA[10:55], DATA[55:155]]
    assert not content.is_at_end()
    assert b"".join(content.rest()) == DATA[155:]
    assert content.is_at_end() and content.take(0) == b"" and list(content.rest()) == []


def test_more_than_there_is_cannot_be_taken() -> None:
    content = content_of((DATA, b"x"))
    content.take(150)
    with pytest.raises(UnreadableRecord, match="a block of things ends early, at byte 201"):
        content.take(52, "things")
    with pytest.raises(UnreadableRecord, match="a block of a checkpoint ends early, at byte 0"):
        Content(()).take(1)


def test_what_was_taken_is_not_in_memory_any_more() -> None:
    parts = mapped(DATA * 3, 200)
    content = content_of(parts)
    content.take(201)
    assert len(parts) == 1
    content.take(399)
    assert not parts


@pytest.mark.parametrize("level", [0, 1, 9])
@pytest.mark.parametrize("size", [0, 1, STEP_BYTES - 1, STEP_BYTES, STEP_BYTES + 1, 3 * STEP_BYTES])
@pytest.mark.parametrize("is_random", [False, True])
def test_packed_content_is_unpacked_as_it_is_taken(level: int, size: int, is_random: bool) -> None:
    data = random.Random(size).randbytes(size) if is_random else b"\x07" * size
    packed = zlib.compress(data, level)
    for part_bytes in (100_000, len(packed)):
        parts = tuple(packed[begin : begin + part_bytes] for begin in range(0, len(packed), part_bytes))
        assert unpacked(content_of(parts)).take(size) == data
        found = list(unpacked(content_of(parts)).rest())
        assert b"".join(found) == data and max(map(len, found), default=0) <= STEP_BYTES


def test_packed_content_that_is_cut_off_or_goes_on_is_not_read() -> None:
    packed = zlib.compress(DATA)
    for damaged in (b"", packed[:-1], packed + b"x", b"\xff" + packed[1:]):
        for parts in ((damaged,), (damaged[:-1], damaged[-1:])):
            with pytest.raises(UnreadableRecord, match="block of a checkpoint"):
                b"".join(unpacked(content_of(parts)).rest())


def test_packed_content_that_becomes_far_too_large_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.partition.block_content._UNPACKED_BYTES_MAX", 1_000)
    assert unpacked(content_of(zlib.compress(bytes(1_000)))).take(1_000) == bytes(1_000)
    with pytest.raises(UnreadableRecord, match="more than"):
        list(unpacked(content_of(zlib.compress(bytes(1_001)))).rest())
