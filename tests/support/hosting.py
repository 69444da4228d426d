"""What a host of partitions needs: settings, an index, and a meter."""

from __future__ import annotations

from pathlib import Path

from broker.entities.descriptions import QueueDescription, QueueSettings
from broker.hosting.host import HostFolder, HostSettings
from broker.partition.summary import Summary

QUEUE = QueueDescription("orders", "0" * 32, 4, QueueSettings())
"""A queue of four partitions."""


class Register:
    """An index of one partition."""

    def __init__(self) -> None:
        self.entries: list[str | Summary] = []

    def summary(self) -> Summary | None:
        return None

    def expected_bytes(self) -> int:
        return 0

    async def opening(self) -> None:
        self.entries.append("open")

    def closed(self, summary: Summary) -> None:
        self.entries.append(summary)


class Meter:
    """Counts the records of commits."""

    def __init__(self) -> None:
        self.records = 0

    def committed(self, records: int, size: int, seconds: float) -> None:
        self.records += records

    def commit_failed(self) -> None:
        raise AssertionError("no disk fails here")

    def restarted(self) -> None:
        raise AssertionError("no disk fails here")

    def lapsed(self, dead_lettered: int, expired_messages: int, expired_locks: int) -> None:
        raise AssertionError("nothing expires here")


def settings_of(folder: Path) -> HostSettings:
    """The settings of a host with this folder alone."""
    return HostSettings(
        folders=(HostFolder(str(folder), "", is_missing=False),),
        unknown=str(folder / "unknown"),
        open_files_max=16,
        open_segments_max=16,
        log_idle_ms=60_000,
        fsync="always",
        fsync_interval_ms=100,
        segment_bytes=1 << 20,
        committer_threads=1,
        checkpoint_bytes=1 << 20,
        disk_timeout_ms=30_000,
        payload_memory_bytes=1 << 20,
        message_ids_max=1_000_000,
    )
