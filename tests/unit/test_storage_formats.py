"""Files written by each version of the storage format are readable for ever, and today's are what they were."""

from __future__ import annotations

import shutil
from pathlib import Path

from storage.catalogue import Catalogue
from storage.disk import LocalDisk
from storage.log import Checkpoint
from tests.formats import storage_v1
from tests.support.logs import claimed


def files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file() and path.name != "lock"
    }


async def test_a_log_of_version_1_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(storage_v1.FOLDER, folder)
    async with claimed(folder, entity=storage_v1.ENTITY, partition=storage_v1.PARTITION) as log:
        frames = [frame async for frame in log.replay(log.start)]
        found = [[(record.kind, record.version, bytes(record.body)) for record in frame.records()] for frame in frames]
        assert found == storage_v1.COMMITS
        position = frames[storage_v1.CHECKPOINT_AFTER].position
        assert await log.load_checkpoint() == Checkpoint(position, storage_v1.CHECKPOINT_STATE)
        assert await log.fetch([frame.position for frame in frames]) == frames
        await storage_v1.append(log, [(1, 1, b"and goes on")])


async def test_a_catalogue_of_version_1_is_read() -> None:
    assert await Catalogue(storage_v1.FOLDER / "catalogue", LocalDisk()).load_all() == storage_v1.DOCUMENTS


async def test_what_is_written_today_is_version_1_byte_for_byte_and_the_extent(tmp_path: Path) -> None:
    await storage_v1.write(tmp_path)
    written = files(tmp_path)
    assert [name for name in written if name.endswith(".extent")] == ["catalogue/logs/orders%2F%C3%BC/0005.extent"]
    del written["catalogue/logs/orders%2F%C3%BC/0005.extent"]
    assert written == files(storage_v1.FOLDER)
