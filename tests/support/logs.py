"""Small helpers for tests that write and read logs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from storage.file_log import FileLog
from storage.file_store import FileLogStore
from storage.log import Checkpoint, Ended, Log, Position, Section, whole
from tests.support.faulty_disk import FaultyDisk

ENTITY = "orders#1"
Setting = object


def small_store(root: Path, disk: object = None, **settings: Setting) -> FileLogStore:
    """A store that uses few resources: no reserve, two threads of each kind."""
    values: dict[str, Setting] = {"reserve_bytes": 0, "committer_threads": 2, "worker_threads": 2, **settings}
    return FileLogStore(root, disk, **values)  # type: ignore[arg-type]


@asynccontextmanager
async def acquired(
    root: Path, disk: object = None, *, entity: str = ENTITY, partition: int = 0, **settings: Setting
) -> AsyncIterator[Log]:  # fmt: skip
    """An acquired log in its own store, closed at the end of the block."""
    store = small_store(root, disk, **settings)
    log = store.log(entity, partition)
    try:
        await log.acquire()
        yield log
    finally:
        await log.close()
        await store.close()


@asynccontextmanager
async def on_faulty_disk(root: Path, disk: FaultyDisk, **settings: Setting) -> AsyncIterator[FileLog]:
    """As `acquired`, on a disk that may hang at the end of the block: it is released first."""
    async with acquired(root, disk, entity=ENTITY, partition=0, **settings) as log:
        assert isinstance(log, FileLog)
        try:
            yield log
        finally:
            disk.release()


async def append(log: Log, *bodies: bytes, urgent: bool = False) -> Position:
    """Append these records in one commit; gives its position."""
    commit = log.begin()
    for number, body in enumerate(bodies):
        commit.add(number % 256, [body])
    await log.append(commit, urgent)
    return commit.start


def no_more_waits(told: Callable[[Exception | None], object]) -> Ended:
    """Passes the end of a commit on to `told`, and says that no more messages wait."""

    def ended(error: Exception | None) -> bool:
        told(error)
        return False

    return ended


async def contents(log: Log, since: Position | None = None) -> list[list[bytes]]:
    """Bodies of the records, by commit."""
    frames = log.replay(log.start if since is None else since)
    return [[bytes(record.body) for record in frame.records()] async for frame in frames]


def checkpoint_of(position: Position, state: bytes) -> Checkpoint:
    """A checkpoint with one block, written in full each time."""
    return Checkpoint(position, (Section("state", 1, {0: b"state: " + state}),))


async def save_twice(log: Log, position: Position | None = None) -> None:
    """Save two checkpoints, so that the log can be trimmed to their position, by default the end of
    the log.
    """
    for _ in range(2):
        await log.save_checkpoint(checkpoint_of(log.end if position is None else position, b"state"))


def state_of(checkpoint: Checkpoint | None) -> bytes | None:
    """The state in such a checkpoint."""
    return None if checkpoint is None else whole(checkpoint.sections[0].blocks[0]).removeprefix(b"state: ")


def flip(path: Path, offset: int) -> None:
    """Flip one bit of a byte in a real file."""
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x10
    path.write_bytes(data)


def flat(commits: Sequence[Sequence[bytes]]) -> list[bytes]:
    """Bodies of all records."""
    return [body for commit in commits for body in commit]
