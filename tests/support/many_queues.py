"""Data folders with thousands of queues, in little time: written by the broker's own catalogue, to a disk that is not waited for."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterable
from pathlib import Path

from broker.entities import QueueDescription, QueueSettings
from broker.entity_documents import encode_description
from storage.catalogue import Catalogue
from storage.disk import LocalDisk


class _NewDisk(LocalDisk):
    """For a folder that begins empty and that nobody pulls out: looks for no earlier files, and waits for no write."""

    def names(self, directory: Path) -> list[str]:
        return []

    def sync(self, fd: int) -> None:
        pass

    def sync_directory(self, path: Path) -> None:
        pass


def write_queues(data: Path, names: Iterable[str], partitions: int = 16) -> None:
    """Make the catalogue of a new data folder, with queues. They have default settings and no messages."""
    data.mkdir(parents=True, exist_ok=True)
    asyncio.run(_write(data, names, partitions))


async def _write(data: Path, names: Iterable[str], partitions: int) -> None:
    catalogue = Catalogue(data / "catalogue", _NewDisk())
    await catalogue.load_all()
    for name in names:
        description = QueueDescription(name, uuid.uuid4().hex, partitions, QueueSettings(), 1_000, 2_000, None)
        await catalogue.put(description.generation, encode_description(description))
