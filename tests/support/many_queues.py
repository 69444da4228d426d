"""Quickly created data folders with thousands of queues, written by the broker's own catalogue without
waiting for the disk.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterable
from pathlib import Path

from broker.base.clock import SystemClock
from broker.entities.descriptions import QueueDescription, QueueSettings
from broker.entities.documents import decode_description, encode_description
from broker.operations.message_states import SubqueueCounts
from broker.partition.drain_need import Need
from broker.partition.summary import Summary, Wake
from storage.catalogue import Catalogue
from storage.disk import LocalDisk
from storage.index_witness import Witness
from storage.partition_index import PartitionIndex


class _NewDisk(LocalDisk):
    """For a new, disposable folder: looks for no earlier files and waits for no write."""

    def names(self, directory: Path) -> list[str]:
        return []

    def sync(self, fd: int) -> None:
        pass

    def sync_directory(self, path: Path) -> None:
        pass


def write_queues(data: Path, names: Iterable[str], partitions: int = 16) -> None:
    """Write the catalogue of a new data folder: queues with default settings and no messages."""
    data.mkdir(parents=True, exist_ok=True)
    asyncio.run(_write(data, names, partitions))


async def _write(data: Path, names: Iterable[str], partitions: int) -> None:
    catalogue = Catalogue(data / "catalogue", _NewDisk())
    await catalogue.load_all()
    for number, name in enumerate(names):
        created_ms = 1_700_000_000_000 + 7 * number
        description = QueueDescription(
            name, uuid.uuid4().hex, partitions, QueueSettings(), created_ms, created_ms + number % 3, None
        )
        await catalogue.put(description.generation, encode_description(description))


def write_notes(data: Path, messages: int) -> None:
    """Record in the index of such a folder that each partition holds messages that expire in a day. There are
    no logs, since no test opens one.
    """
    asyncio.run(_write_notes(data, messages))


async def _write_notes(data: Path, messages: int) -> None:
    witness = Witness(data, LocalDisk())
    await witness.read()
    index = PartitionIndex(data / "catalogue", _NewDisk(), witnesses=[witness])
    catalogue = Catalogue(data / "catalogue", LocalDisk())
    day_ms = 24 * 3_600_000
    at_ms = SystemClock().now_ms() + day_ms
    for number, content in enumerate((await catalogue.load_all()).values()):
        description = decode_description(content)
        for partition in range(description.partitions):
            held = SubqueueCounts(active=messages, bytes=messages * (100 + partition))
            summary = Summary({0: held}, {Wake.EXPIRY: at_ms + number}, Need(8_192 + partition, 16_384))
            index.closed(description.generation, partition, summary.encode())
    await index.close()
