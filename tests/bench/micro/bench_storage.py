"""Cost of a commit; one JSON line per figure. Run by hand: `python -m tests.bench.micro.bench_storage
[folder]`.

Expected on the 2-core test machine (ext4): 16 logs × 32 KiB a round in under 1.6 ms of wall and 1.5 ms of
CPU; one 1 KiB commit at a time in under 2 × the disk's own write + fdatasync.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import resource
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import structlog
import uvloop

from storage.file_log import FileLog
from storage.file_store import FileLogStore

ROUNDS = 400
SINGLE_COMMITS = 2_000


def cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def report(figure: str, **values: object) -> None:
    print(
        json.dumps({"figure": figure, **values, "machine": f"{os.cpu_count()} cores, {platform.release()}"}),
        flush=True,
    )


async def commit(log: FileLog, body: bytes) -> None:
    gathered = log.begin()
    gathered.add(1, [body])
    await log.append(gathered)


async def rounds(store: FileLogStore, logs: int, size: int, label: str) -> None:
    """Rounds in which each log makes one commit; each round waits for all of them."""
    opened = [store.log("rounds", partition) for partition in range(logs)]
    await asyncio.gather(*(log.acquire() for log in opened))
    body = os.urandom(size)
    walls: list[float] = []
    cpu = cpu_seconds()
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        await asyncio.gather(*(commit(log, body) for log in opened))
        walls.append(time.perf_counter() - begin)
    cpu = cpu_seconds() - cpu
    for log in opened:
        await log.close()
    await store.delete("rounds")
    report(
        label,
        logs=logs,
        commit_bytes=size,
        wall_ms=round(1e3 * statistics.fmean(walls), 3),
        wall_median_ms=round(1e3 * statistics.median(walls), 3),
        cpu_ms=round(1e3 * cpu / ROUNDS, 3),
    )


async def independent(store: FileLogStore, logs: int, size: int) -> None:
    """Each log commits independently, as fast as it can."""
    opened = [store.log("independent", partition) for partition in range(logs)]
    await asyncio.gather(*(log.acquire() for log in opened))
    body = os.urandom(size)

    async def run(log: FileLog) -> None:
        for _ in range(ROUNDS):
            await commit(log, body)

    cpu, begin = cpu_seconds(), time.perf_counter()
    await asyncio.gather(*(run(log) for log in opened))
    wall, cpu = time.perf_counter() - begin, cpu_seconds() - cpu
    for log in opened:
        await log.close()
    await store.delete("independent")
    commits = ROUNDS * logs
    report(
        "independent commits",
        logs=logs,
        commit_bytes=size,
        commits_per_s=round(commits / wall),
        cpu_us_per_commit=round(1e6 * cpu / commits, 1),
    )


async def single(store: FileLogStore, raw_us: float) -> None:
    """Latency of small commits, one at a time."""
    log = store.log("single", 0)
    await log.acquire()
    body = os.urandom(1024)
    walls: list[float] = []
    for _ in range(SINGLE_COMMITS):
        begin = time.perf_counter()
        await commit(log, body)
        walls.append(time.perf_counter() - begin)
    await log.close()
    await store.delete("single")
    median_us = 1e6 * statistics.median(walls)
    report(
        "single commit",
        commit_bytes=1024,
        median_us=round(median_us, 1),
        raw_us=round(raw_us, 1),
        ratio=round(median_us / raw_us, 2),
    )


def raw(folder: Path) -> float:
    """Median of the disk's own append and fdatasync, in microseconds."""
    fd = os.open(folder / "raw", os.O_RDWR | os.O_CREAT)
    body, walls = os.urandom(1024), []
    for number in range(SINGLE_COMMITS):
        begin = time.perf_counter()
        os.pwrite(fd, body, number * len(body))
        os.fdatasync(fd)
        walls.append(time.perf_counter() - begin)
    os.close(fd)
    return 1e6 * statistics.median(walls)


async def reading(store: FileLogStore) -> None:
    """Replay a log of 64 MiB, and fetch from it."""
    log = store.log("reading", 0)
    await log.acquire()
    positions = []
    for _ in range(2048):
        gathered = log.begin()
        positions.append(gathered.start)
        for _ in range(31):
            gathered.add(1, [bytes(1024)])
        await log.append(gathered)
    await log.close()
    begin = time.perf_counter()
    await log.acquire()
    acquired = time.perf_counter() - begin
    begin, records = time.perf_counter(), 0
    async for frame in log.replay(log.start):
        records += len(frame.records())
    replayed = time.perf_counter() - begin
    report(
        "acquire and replay",
        megabytes=64,
        acquire_ms=round(1e3 * acquired, 1),
        replay_ms=round(1e3 * replayed, 1),
        records=records,
    )
    for count, step in ((1, 7), (16, 1), (16, 64)):
        walls = []
        for first in range(512):
            begin = time.perf_counter()
            await log.fetch(positions[first : first + count * step : step])
            walls.append(time.perf_counter() - begin)
        report(
            "fetch",
            frames=count,
            neighbours=step == 1,
            frame_bytes=32_000,
            median_us=round(1e6 * statistics.median(walls), 1),
        )
    await log.close()
    await store.delete("reading")


async def main(folder: Path) -> None:
    def store(**settings: Callable[..., object] | object) -> FileLogStore:
        return FileLogStore(folder / "store", **settings)  # type: ignore[arg-type]

    raw_us = raw(folder)
    for threads in (2, 4, 8):
        one = store(committer_threads=threads)
        await rounds(one, 16, 32 << 10, f"round of commits, {threads} threads")
        await independent(one, 16, 32 << 10)
        await one.close()
    one = store()
    await rounds(one, 16, 2 << 10, "round of commits")
    await rounds(one, 1, 32 << 10, "round of commits")
    await single(one, raw_us)
    await reading(one)
    await one.close()
    one = store(fsync="never")
    await rounds(one, 16, 32 << 10, "round of commits, fsync never")
    await one.close()


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    place = Path(tempfile.mkdtemp(prefix="bench-storage-", dir=sys.argv[1] if len(sys.argv) > 1 else None))
    try:
        uvloop.run(main(place))
    finally:
        shutil.rmtree(place)
