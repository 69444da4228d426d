"""Cost of one message on its way in (`store`) and out (`deliverables`), with 1 KiB bodies; one JSON line per
figure.

Expected on the 2-core test machine: at most 3 µs in and 1.5 µs out for a message with an id and no keys.

    python -m tests.bench.micro.bench_messages
"""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable

from broker.message.annotations import deliverables
from broker.message.batch_envelope import split
from broker.message.changes import encode_changes
from broker.message.stored import MessageIds, store
from broker.operations.receiving import Locked
from protocol.codec import Described, UInt, ULong, encode
from protocol.frames import BatchFrameFinder
from protocol.sections import find_sections
from tests.support.amqp_messages import message

BODY = b"x" * 1024
BATCH_MESSAGES = 100
ROUNDS, SECONDS_PER_ROUND = 5, 0.2

PLAIN = message(properties=["0123456789abcdef"], body=[BODY])
FULL_WIDTH = message(
    properties=["0123456789abcdef", *[None] * 12], application={"kind": "order", "n": 1}, body=[BODY]
)
KEYED = message(
    header=[True],
    annotations={"x-opt-partition-key": "customer-1"},
    properties=["id", *[None] * 9, "customer-1"],
    body=[BODY],
)
WITHOUT_ID = message(header=[], annotations={}, properties=[], body=[BODY])


def microseconds(work: Callable[[], object], messages: int) -> float:
    """Microseconds per message, the best of several rounds."""
    best = float("inf")
    for _ in range(ROUNDS):
        calls, begin = 0, time.perf_counter()
        while (spent := time.perf_counter() - begin) < SECONDS_PER_ROUND:
            work()
            calls += 1
        best = min(best, spent / (calls * messages))
    return round(best * 1e6, 3)


def locked(stored: bytes, changed: bytes | None = None, expires_at_ms: int | None = None) -> Locked:
    n = BATCH_MESSAGES
    return Locked(
        3,
        "",
        [b"t" * 16] * n,
        list(range(n)),
        [1] * n,
        [0] * n,
        [expires_at_ms] * n,
        [stored] * n,
        [changed] * n,
        60_000,
    )


def main() -> None:
    ids = MessageIds()
    many = range(BATCH_MESSAGES)
    plain = store(PLAIN, ids).data
    change = encode_changes({"DeadLetterReason": "tired"})
    envelope = message(body=[PLAIN] * BATCH_MESSAGES)
    body = encode(Described(ULong(0x14), [UInt(0), UInt(1), b"tag1", UInt(0), False])) + PLAIN
    frame = (8 + len(body)).to_bytes(4, "big") + b"\x02\x00\x00\x00" + body
    chunk, finder = frame * BATCH_MESSAGES, BatchFrameFinder()
    figures: dict[str, Callable[[], object]] = {
        "find_sections": lambda: [find_sections(PLAIN) for _ in many],
        "store": lambda: [store(PLAIN, ids) for _ in many],
        "store, all 13 properties and 2 application properties": lambda: [
            store(FULL_WIDTH, ids) for _ in many
        ],
        "store, session-id and partition-key": lambda: [store(KEYED, ids) for _ in many],
        "store, no message-id": lambda: [store(WITHOUT_ID, ids) for _ in many],
        "split": lambda: split(envelope),
        "walk frames": lambda: finder.pieces(chunk),
        "deliverables": lambda: deliverables(locked(plain)),
        "deliverables, with time to live": lambda: deliverables(locked(plain, expires_at_ms=9_000)),
        "deliverables, with changed properties": lambda: deliverables(locked(plain, change)),
    }
    for name, work in figures.items():
        line = {"figure": name, "us_per_message": microseconds(work, BATCH_MESSAGES), "body_bytes": len(BODY)}
        print(json.dumps(line | {"python": platform.python_version(), "machine": platform.machine()}))


if __name__ == "__main__":
    main()
