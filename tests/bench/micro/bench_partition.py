"""The partition alone, on a log in memory: CPU per message for send, lock and complete; memory of a million
references; restart.

Expected (before it runs): at most 2 µs a message in each of send, lock and complete, in operations of 30
messages of 1 KiB; at most 280 bytes a waiting message; a checkpoint of 62,500 references saved in 50 ms and
loaded in 100 ms.

    python -m tests.bench.micro.bench_partition
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import time
import tracemalloc
from collections import deque

import structlog

from broker.entities.descriptions import MAIN, QUEUE_SUBQUEUES
from broker.operations.receiving import Demand, Locked
from broker.operations.sending import Send
from broker.operations.settling import Complete
from broker.partition.messages import Messages
from broker.partition.payloads import PayloadBudget
from broker.partition.records import Enqueued
from broker.partition.snapshot import Snapshot
from storage.log import Position
from tests.support.partition_harness import Harness

PER_OPERATION = 30
OPERATIONS = 2000
ROUNDS = 5


async def throughput() -> dict[str, float]:
    """Microseconds per message, with 30 messages per operation and 8 operations per commit."""
    message = bytes(1024)
    harness = Harness(payload_bytes=1 << 30)
    task = harness.task
    got: list[Locked] = []
    best = {"send": 1e9, "lock": 1e9, "complete": 1e9}
    total = PER_OPERATION * OPERATIONS

    for _ in range(ROUNDS):
        harness.log.disk.frames.clear()
        harness.received.clear()
        got.clear()
        gc.collect()
        elapsed = 0.0
        for _ in range(OPERATIONS // 8):
            sends = [Send([bytes(message) for _ in range(PER_OPERATION)], None) for _ in range(8)]
            began = time.process_time()
            for send in sends:
                harness.post(1, send)
            await task.step()
            elapsed += time.process_time() - began
        best["send"] = min(best["send"], elapsed / total * 1e6)

        elapsed = 0.0
        for _ in range(OPERATIONS // 8):
            began = time.process_time()
            for client in range(8):
                task.post(Demand(MAIN, PER_OPERATION), client, got.append)  # type: ignore[arg-type]
            await task.step()
            elapsed += time.process_time() - began
        assert sum(len(each.tokens) for each in got) == total
        best["lock"] = min(best["lock"], elapsed / total * 1e6)

        elapsed = 0.0
        for index in range(0, len(got), 8):
            began = time.process_time()
            for each in got[index : index + 8]:
                harness.post(1, Complete(each.tokens))
            await task.step()
            elapsed += time.process_time() - began
        best["complete"] = min(best["complete"], elapsed / total * 1e6)
        task.check()
        assert harness.live_bytes == 0
    return best


def memory(count: int = 1_000_000, per_record: int = 30, default_ttl: bool = False) -> float:
    """Bytes per waiting message whose body is on disk."""
    gc.collect()
    tracemalloc.start()
    messages = Messages(3, QUEUE_SUBQUEUES, PayloadBudget(0, 0), 20)
    deque(messages.finish_steps(0), maxlen=0)
    before, _ = tracemalloc.get_traced_memory()
    for index in range(count // per_record):
        now_ms = 1_700_000_000_000 + index
        expiries = [now_ms + 3_600_000] * per_record if default_ttl else None
        enqueued = Enqueued(messages.next_number, now_ms, [1040] * per_record, expiries, 200)
        messages.apply_enqueued(Position(index * 32_000), enqueued, now_ms=now_ms)
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return (after - before) / messages.count


def checkpoints(count: int = 62_500) -> tuple[float, float]:
    """Milliseconds to make and to load a checkpoint."""
    messages = Messages(3, QUEUE_SUBQUEUES, PayloadBudget(0, 0), 20)
    deque(messages.finish_steps(0), maxlen=0)
    for index in range(count // 30):
        messages.apply_enqueued(
            Position(index * 32_000),
            Enqueued(messages.next_number, 1_700_000_000_000 + index, [1040] * 30, None, 200),
        )
    began = time.process_time()
    taking = Snapshot(messages).take(None)
    deque(taking.steps(), maxlen=0)
    checkpoint = taking.checkpoint(Position(count * 32_000))
    saved = time.process_time() - began
    began = time.process_time()
    again = Messages(3, QUEUE_SUBQUEUES, PayloadBudget(0, 0), 20)
    snapshot = Snapshot(again)
    deque(snapshot.load_steps(checkpoint), maxlen=0)
    deque(snapshot.loaded_steps(checkpoint), maxlen=0)
    deque(again.finish_steps(0), maxlen=0)
    loaded = time.process_time() - began
    assert again.count == messages.count
    return saved * 1e3, loaded * 1e3


def main() -> None:
    """Run all benchmarks and print one line of JSON for each figure."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    for figure, microseconds in asyncio.run(throughput()).items():
        print(
            json.dumps(
                {
                    "figure": f"partition.{figure}",
                    "us_per_message": round(microseconds, 2),
                    "expected_max": 2.0,
                }
            )
        )
    print(
        json.dumps(
            {"figure": "partition.memory", "bytes_per_message": round(memory(), 1), "expected_max": 280}
        )
    )
    with_ttl = round(memory(default_ttl=True), 1)
    print(
        json.dumps(
            {"figure": "partition.memory_with_ttl", "bytes_per_message": with_ttl, "expected_max": 280}
        )
    )
    saved, loaded = checkpoints()
    print(
        json.dumps(
            {"figure": "partition.checkpoint_save", "ms_per_62500": round(saved, 1), "expected_max": 50}
        )
    )
    print(
        json.dumps(
            {"figure": "partition.checkpoint_load", "ms_per_62500": round(loaded, 1), "expected_max": 100}
        )
    )


if __name__ == "__main__":
    main()
