"""Files of every version of the storage format stay readable for ever, and the current version is still
written byte for byte."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from storage.catalogue import Catalogue
from storage.disk import LocalDisk
from storage.folder_identity import FILE_NAME, line_of, read_identity
from storage.log import Checkpoint, Section
from tests.formats import storage_v1, storage_v2, storage_v3, storage_v4
from tests.support.logs import acquired

VERSIONS = [storage_v1.FOLDER, storage_v2.FOLDER, storage_v3.FOLDER, storage_v4.FOLDER]


def files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "lock"
    }


@pytest.mark.parametrize("version", VERSIONS, ids=["1", "2", "3", "4"])
async def test_a_log_of_each_version_is_read(tmp_path: Path, version: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(version, folder)
    for appended in range(2):
        async with acquired(folder, entity=storage_v1.ENTITY, partition=storage_v1.PARTITION) as log:
            frames = [frame async for frame in log.replay(log.start)]
            found = [
                [(record.kind, record.version, bytes(record.body)) for record in frame.records()]
                for frame in frames
            ]
            assert found == [*storage_v1.COMMITS, *[[(1, 1, b"and goes on")]] * appended]
            position = frames[storage_v1.CHECKPOINT_AFTER].position
            checkpoint = await log.load_checkpoint()
            if version in (storage_v3.FOLDER, storage_v4.FOLDER):
                counters, nothing = storage_v3.checkpoint(position).sections
                there = {number: data for number, data in counters.blocks.items() if data}
                assert checkpoint == Checkpoint(position, (replace(counters, blocks=there), nothing))
                assert len(log.checkpoints) == 2
            else:
                assert checkpoint == Checkpoint(position, (Section("", 1, {0: storage_v1.CHECKPOINT_STATE}),))
                assert log.checkpoint_base is None
            fetched = await log.fetch([frame.position for frame in frames])
            assert [(frame.position, frame.size, frame.records()) for frame in fetched] == [
                (frame.position, frame.size, frame.records()) for frame in frames
            ]
            await storage_v1.append(log, [(1, 1, b"and goes on")])


@pytest.mark.parametrize("version", VERSIONS, ids=["1", "2", "3", "4"])
async def test_a_catalogue_of_each_version_is_read_and_kept_twice_from_then_on(
    tmp_path: Path, version: Path
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(version, folder)
    assert await Catalogue(folder / "catalogue", LocalDisk()).load_all() == storage_v1.DOCUMENTS
    for path in (folder / "catalogue").glob("*.document"):
        path.unlink()
    assert await Catalogue(folder / "catalogue", LocalDisk()).load_all() == storage_v1.DOCUMENTS


async def test_what_is_written_today_is_version_4_byte_for_byte(tmp_path: Path) -> None:
    await storage_v4.write(tmp_path)
    assert files(tmp_path) == files(storage_v4.FOLDER)


async def test_a_folder_of_version_3_is_of_version_4_once_it_was_used(tmp_path: Path) -> None:
    """Blocks of checkpoints may share changed properties since: an older broker would take them for
    damaged."""
    folder = tmp_path / "copy"
    shutil.copytree(storage_v3.FOLDER, folder)
    assert (folder / "version").read_text() == "3\n"
    async with acquired(folder, entity=storage_v1.ENTITY, partition=storage_v1.PARTITION):
        assert (folder / "version").read_text() == "4\n"


@pytest.mark.parametrize("version", [1, 2])
def test_the_file_folder_of_each_version_is_read_and_written_byte_for_byte(
    version: int, tmp_path: Path
) -> None:
    content = (Path(storage_v1.__file__).parent / "folders" / f"version-{version}").read_bytes()
    (tmp_path / FILE_NAME).write_bytes(content)
    identity = read_identity(LocalDisk(), tmp_path)
    assert identity is not None and identity.id == "b" * 32
    assert [id_[0] for id_, _ in identity.folders] == ["a", "b", "c" if version == 1 else "d"]
    assert identity.given_up == ((("c" * 32, Path("/disk3/über"), 2),) if version == 2 else ())
    assert line_of(identity) == content
