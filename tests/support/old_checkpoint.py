"""Checkpoints of format version 1, as written by releases before blocks."""

from __future__ import annotations

import struct
from pathlib import Path

from broker.partition.messages import Messages
from broker.partition.tables import table
from storage.disk import LocalDisk
from storage.record import crc32c
from storage.segment import SEGMENT_HEADER_BYTES, decode_segment_header
from tests.support.partition_messages import live_frames


def state_of_version_1(messages: Messages) -> bytes:
    """The state as releases before blocks wrote it."""
    frames = live_frames(messages)
    parts = [
        struct.pack(
            "<4sIQQII",
            b"PbS1",
            len(frames),
            messages.next_number,
            messages.latest_enqueued_ms,
            len(messages.subqueues),
            0,
        )
    ]
    parts.append(table("Q", [frame.position for frame in frames]))
    for subqueue in messages.subqueues:
        found = list(subqueue.browse(0))
        changed = [(place, each.changed) for place, each in enumerate(found) if each.changed is not None]
        parts += [
            struct.pack("<II", len(found), len(changed)),
            table("Q", [each.sequence_number for each in found]),
            table("Q", [each.enqueued_at_ms for each in found]),
            table("Q", [each.expires_at_ms or 0 for each in found]),
            table("I", [frames.index(each.frame) for each in found]),
            table("I", [each.offset for each in found]),
            table("I", [each.size for each in found]),
            table("I", [each.delivery_count for each in found]),
            table("H", [each.state for each in found]),
            table("I", [place for place, _ in changed]),
            table("I", [len(each) for _, each in changed]),
            *(each for _, each in changed),
        ]
    return b"".join(parts)


def write_version_1(directory: Path, position: int, state: bytes) -> Path:
    """Write such a checkpoint into a log's folder, replacing all checkpoints there."""
    for path in directory.glob("*.checkpoint"):
        path.unlink()
    segment = min(directory.glob("*.segment"))
    header = decode_segment_header(segment.read_bytes()[:SEGMENT_HEADER_BYTES], segment)
    rest = (
        struct.pack(
            "<HHIIQQ16s16sQ",
            1,
            header.partition,
            header.epoch,
            0,
            position,
            0,
            bytes(16),
            header.salt,
            len(state),
        )
        + state
    )
    path = directory / f"{position:016x}.checkpoint"
    path.write_bytes(struct.pack("<8sI", b"PbChckpt", crc32c(rest)) + rest)
    LocalDisk().sync_directory(directory)
    return path
