"""Syncs by the kernel's own workers."""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path

from storage.disk import LocalDisk
from storage.kernel_sync import open_sync_queue

DISK = LocalDisk()


async def test_the_kernel_syncs_many_files_and_tells_when(tmp_path: Path) -> None:
    queue = open_sync_queue()
    assert queue is not None, "Linux on this machine has kernel AIO"
    fds = [DISK.create(tmp_path / str(number)) for number in range(20)]
    for fd in fds:
        DISK.write(fd, [b"x" * 10_000], 0)
    assert queue.ended() == []
    ready = asyncio.Event()
    ended: list[tuple[int, int]] = []
    asyncio.get_running_loop().add_reader(queue.ready_fd, ready.set)
    assert queue.submit(list(enumerate(fds, start=100))) == 20
    async with asyncio.timeout(10):
        while len(ended) < 20:
            await ready.wait()
            ready.clear()
            ended += queue.ended()
    assert sorted(ended) == [(number, 0) for number in range(100, 120)]
    asyncio.get_running_loop().remove_reader(queue.ready_fd)
    queue.close()
    for fd in fds:
        DISK.close(fd)


def test_a_sync_that_the_kernel_does_not_take_is_not_counted(tmp_path: Path) -> None:
    queue = open_sync_queue()
    assert queue is not None
    fd = DISK.create(tmp_path / "file")
    DISK.close(fd)
    assert queue.submit([(1, fd)]) == 0
    assert queue.ended() == []
    queue.close()


async def test_the_kernel_tells_of_every_sync_however_many_have_ended_before_anybody_asks(
    tmp_path: Path,
) -> None:
    queue = open_sync_queue()
    assert queue is not None
    fd = DISK.create(tmp_path / "file")
    accepted, refused = 0, False
    while accepted < 3_000 and not refused:
        begun = queue.submit([(accepted + number, fd) for number in range(1_500)])
        accepted, refused = accepted + begun, begun < 1_500
    assert accepted > 1_024, "more than one system call reaps"
    async with asyncio.timeout(30):
        while True:  # until all have ended; the count is read and then written back
            with contextlib.suppress(BlockingIOError):
                count = os.eventfd_read(queue.ready_fd)
                os.eventfd_write(queue.ready_fd, count)
                if count == accepted:
                    break
            await asyncio.sleep(0.01)
    assert sorted(queue.ended()) == [(number, 0) for number in range(accepted)]
    assert queue.ended() == []
    queue.close()
    DISK.close(fd)
