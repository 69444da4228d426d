"""The queue that writes and syncs commits without the interpreter, on real files."""

from __future__ import annotations

import _testcapi  # type: ignore[import-not-found]
import asyncio
import errno
import os
import random
import resource
import select
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from storage.commit_queue import CommitQueue, open_commit_queue
from storage.disk import LocalDisk

DISK = LocalDisk()
WITHIN_S = 30.0
T = TypeVar("T")


def opened() -> CommitQueue:
    queue = open_commit_queue()
    assert queue is not None, "Linux on this machine has kernel AIO"
    return queue


def outcomes(queue: CommitQueue, count: int) -> dict[int, tuple[int, bool]]:
    """What became of this many shares, by number."""
    found: dict[int, tuple[int, bool]] = {}
    while len(found) < count:
        assert select.select([queue.ready_fd], [], [], WITHIN_S)[0], "the queue answers"
        for number, error, is_written in queue.ended():
            assert number not in found
            found[number] = error, is_written
    assert queue.ended() == []
    return found


@pytest.mark.parametrize("syncs", [True, False])
def test_many_files_are_written_and_synced_and_the_queue_tells_when(syncs: bool, tmp_path: Path) -> None:
    queue = opened()
    fds = [DISK.create(tmp_path / str(number)) for number in range(20)]
    bodies = [[os.urandom(size) for size in (64, 10_000 + number, 1)] for number in range(20)]
    assert queue.ended() == []
    shares = [(100 + number, fd, bodies[number], 7, syncs) for number, fd in enumerate(fds)]
    assert queue.submit(shares) == 20
    assert outcomes(queue, 20) == dict.fromkeys(range(100, 120), (0, True))
    queue.close()
    for number, fd in enumerate(fds):
        DISK.close(fd)
        assert (tmp_path / str(number)).read_bytes() == bytes(7) + b"".join(bodies[number])


def test_a_lone_commit_and_a_sync_without_a_write_are_carried_out(tmp_path: Path) -> None:
    queue = opened()
    fd = DISK.create(tmp_path / "file")
    for number in range(50):
        assert queue.submit([(number, fd, [b"%02d" % number], 2 * number, True)]) == 1
        assert outcomes(queue, 1) == {number: (0, True)}
    assert queue.submit([(60, fd, (), 0, True)]) == 1
    assert outcomes(queue, 1) == {60: (0, True)}
    DISK.close(fd)
    queue.close()
    assert (tmp_path / "file").read_bytes() == b"".join(b"%02d" % number for number in range(50))


def test_commits_of_one_file_in_one_call_are_written_in_order_whatever_their_buffers(tmp_path: Path) -> None:
    rng = random.Random(7)
    queue = opened()
    fd = DISK.create(tmp_path / "file")
    shares, offset, expected = [], 0, b""
    for number in range(30):
        buffers = [rng.randbytes(rng.choice((0, 1, 300))) for _ in range(rng.choice((0, 1, 5, 1_500)))]
        shares.append((number, fd, buffers, offset, rng.random() < 0.5))
        data = b"".join(buffers)
        offset, expected = offset + len(data), expected + data
    assert queue.submit(shares) == 30
    assert set(outcomes(queue, 30).values()) == {(0, True)}
    queue.close()
    DISK.close(fd)
    assert (tmp_path / "file").read_bytes() == expected


def test_a_failed_write_or_sync_is_the_files_own_and_says_which_it_was(tmp_path: Path) -> None:
    queue = opened()
    fd = DISK.create(tmp_path / "file")
    read_only = os.open(tmp_path / "file", os.O_RDONLY)
    reader, writer = os.pipe()
    shares = [
        (1, fd, [b"good"], 0, True),
        (2, read_only, [b"bad"], 0, True),
        (3, writer, (), 0, True),  # a pipe cannot be synced
        (4, fd, [b"more"], 4, True),
    ]
    assert queue.submit(shares) == 4
    assert outcomes(queue, 4) == {
        1: (0, True),
        2: (errno.EBADF, False),
        3: (errno.EINVAL, True),
        4: (0, True),
    }
    for each in (fd, read_only, reader, writer):
        os.close(each)
    queue.close()
    assert (tmp_path / "file").read_bytes() == b"goodmore"


def test_a_short_write_is_continued_until_it_fails(tmp_path: Path) -> None:
    """The system cuts off the first write at the bound of the file's size, and refuses the next one."""
    queue = opened()
    fd = DISK.create(tmp_path / "file")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5_000, before[1]))
    try:
        assert queue.submit([(1, fd, [b"x" * 4_000, b"y" * 4_000], 0, True)]) == 1
        assert outcomes(queue, 1) == {1: (errno.EFBIG, False)}
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (tmp_path / "file").read_bytes() == b"x" * 4_000 + b"y" * 1_000
    DISK.close(fd)
    queue.close()


def test_the_buffers_are_held_until_the_end_is_told_and_no_longer(tmp_path: Path) -> None:
    queue = opened()
    fd = DISK.create(tmp_path / "file")
    body = os.urandom(5_000)
    before = sys.getrefcount(body)
    queue.submit([(1, fd, [body], 0, True)])
    assert sys.getrefcount(body) > before
    outcomes(queue, 1)
    assert sys.getrefcount(body) == before
    with pytest.raises(TypeError):
        queue.submit([(2, fd, [body, "text"], 0, True)])  # type: ignore[list-item]
    assert sys.getrefcount(body) == before
    DISK.close(fd)
    queue.close()


def test_what_has_not_begun_can_be_taken_back_and_the_rest_goes_on(tmp_path: Path) -> None:
    queue = opened()
    fd = DISK.create(tmp_path / "file")
    queue.submit([(number, fd, [b"x" * 100_000], 0, True) for number in range(200)])
    taken = queue.take_back()
    assert taken == list(range(200 - len(taken), 200)), "the last ones, in order"
    assert set(outcomes(queue, 200 - len(taken))) == set(range(200)) - set(taken)
    assert queue.take_back() == []
    os.close(fd)
    queue.close()


@pytest.mark.parametrize("stuck", [False, True])
@pytest.mark.parametrize("place", range(6))
def test_without_memory_for_its_answers_the_queue_loses_nothing(
    place: int, stuck: bool, tmp_path: Path
) -> None:
    queue = opened()
    fd = DISK.create(tmp_path / "file")
    shares = [(number, fd, [b"x" * 200_000], 0, number % 2 == 0) for number in range(1_000, 1_040)]
    assert without_memory(place, lambda: queue.submit(shares)) is None, "none was begun"
    assert queue.submit(shares) == 40
    told: list[int] = []
    if stuck:
        told += without_memory(place, queue.take_back) or []
    while len(told) < 40:
        assert select.select([queue.ready_fd], [], [], WITHIN_S)[0], "the queue answers"
        told += [each[0] for each in without_memory(place, queue.ended) or []]
        told += [each[0] for each in queue.ended()]
    assert sorted(told) == [each[0] for each in shares]
    os.close(fd)
    queue.close()  # it refuses while anything is under way


def without_memory(place: int, call: Callable[[], T]) -> T | None:
    """The result of a call for which memory is missing once, after so many allocations; None if it raises
    MemoryError."""
    _testcapi.set_nomemory(place, place + 1)
    try:
        return call()
    except MemoryError:
        return None
    finally:
        _testcapi.remove_mem_hooks()


async def test_the_queue_tells_of_every_sync_however_many_have_ended_before_anybody_asks(
    tmp_path: Path,
) -> None:
    queue = opened()
    fd = DISK.create(tmp_path / "file")
    assert queue.submit([(number, fd, (), 0, True) for number in range(3_000)]) == 3_000
    ended: list[int] = []
    async with asyncio.timeout(WITHIN_S):
        await asyncio.sleep(0.05)
        while len(ended) < 3_000:
            ended += [number for number, error, _ in queue.ended() if not error]
            await asyncio.sleep(0.001)
    assert sorted(ended) == list(range(3_000))
    queue.close()
    DISK.close(fd)


def test_a_queue_is_closed_once_and_not_while_something_is_under_way(tmp_path: Path) -> None:
    queue = opened()
    fd = DISK.create(tmp_path / "file")
    queue.submit([(1, fd, [b"x"], 0, True)])
    with pytest.raises(ValueError, match="under way"):
        queue.close()
    outcomes(queue, 1)
    queue.close()
    for use in (queue.close, queue.ended, queue.take_back, lambda: queue.submit([])):
        with pytest.raises(ValueError, match="closed"):
            use()
    DISK.close(fd)


def test_a_queue_that_is_dropped_ends_its_threads_unless_they_have_work(tmp_path: Path) -> None:
    tasks = Path("/proc/self/task")

    def threads() -> int:
        return sum((each / "comm").read_text() == "storage-commits\n" for each in tasks.iterdir())

    before = threads()
    queue = opened()
    assert threads() == before, "they are started when there is work"
    fd = DISK.create(tmp_path / "file")
    queue.submit([(1, fd, [b"x"], 0, True)])
    outcomes(queue, 1)
    assert threads() == before + 2
    del queue
    assert threads() == before
    DISK.close(fd)
