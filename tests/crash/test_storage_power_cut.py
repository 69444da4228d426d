"""Unsynced data is dropped: at every sync of a random workload, the disk that a power cut would leave has
everything acknowledged before (durability rules 1 and 3).
"""

from __future__ import annotations

import asyncio
import os
import random
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from storage.catalogue import Catalogue
from storage.file_log import FileLog
from storage.log import Position
from tests.support.logs import ENTITY, append, checkpoint_of, contents, flat, small_store, state_of
from tests.support.recording_disk import RecordingDisk

ROOT = Path("/data")
LOGS = 3
SEEDS = [int(os.environ["STORAGE_SEED"])] if "STORAGE_SEED" in os.environ else [1, 2, 3]


@dataclass
class Ledger:
    """What one log was told to write, and what it acknowledged."""

    submitted: list[tuple[Position, bytes]] = field(default_factory=list)
    acknowledged: int = 0
    trimmed: int = 0
    """The highest position passed to trim, whether or not trim has returned."""
    checkpoints: dict[int, bytes] = field(default_factory=dict)
    """Checkpoints passed to the log, whether or not saving has returned."""
    checkpoint_acknowledged: int = -1

    def copy(self) -> Ledger:
        return Ledger(
            list(self.submitted),
            self.acknowledged,
            self.trimmed,
            dict(self.checkpoints),
            self.checkpoint_acknowledged,
        )


async def work(log: FileLog, ledger: Ledger, rng: random.Random) -> None:
    closing = random.Random(rng.random())
    for number in range(25):
        body = bytes([number]) * rng.choice([1, 20, 600, 3_000])
        ledger.submitted.append((log.end, body))
        await append(log, body)
        ledger.acknowledged += 1
        if rng.random() < 0.15:
            checkpoint = checkpoint_of(log.end, b"state %d" % number)
            ledger.checkpoints[checkpoint.position] = state_of(checkpoint) or b""
            await log.save_checkpoint(checkpoint)
            ledger.checkpoint_acknowledged = checkpoint.position
        if rng.random() < 0.2:
            ledger.trimmed = max(ledger.trimmed, rng.choice(ledger.submitted)[0])
            await log.trim(Position(ledger.trimmed))
        if rng.random() < 0.1:
            await log.close()
            await log.acquire()
        if closing.random() < 0.2:
            await log.put_away()


async def check(disk: RecordingDisk, ledgers: list[Ledger]) -> None:
    store = small_store(ROOT, disk, segment_bytes_max=4_000)
    for partition, ledger in enumerate(ledgers):
        log = store.log(ENTITY, partition)
        await log.acquire()
        assert log.start <= ledger.trimmed
        written = [(position, body) for position, body in ledger.submitted if position >= log.start]
        found = flat(await contents(log))
        assert found == [body for _, body in written][: len(found)], "nothing but what was written, in order"
        missing = len(written) - len(found)
        assert missing <= len(ledger.submitted) - ledger.acknowledged, "all that was acknowledged"
        checkpoint = await log.load_checkpoint()
        if checkpoint is None:
            assert ledger.checkpoint_acknowledged < 0
        else:
            assert checkpoint.position >= ledger.checkpoint_acknowledged
            assert ledger.checkpoints[checkpoint.position] == state_of(checkpoint)
        end = log.end
        assert await append(log, b"goes on") == end
        await log.close()
    await store.close()


@pytest.mark.parametrize("queued", [False, True], ids=["threads", "queue"])
@pytest.mark.parametrize("seed", SEEDS)
async def test_at_every_sync_the_disk_holds_every_commit_acknowledged_before(seed: int, queued: bool) -> None:
    print(f"replay with STORAGE_SEED={seed}")
    rng = random.Random(seed)
    disk = RecordingDisk(queued=queued)
    ledgers = [Ledger() for _ in range(LOGS)]
    crashes: list[tuple[RecordingDisk, list[Ledger]]] = []

    def crash() -> None:
        ledgers_now = [ledger.copy() for ledger in ledgers]
        crashes.append((disk.after_power_cut(), ledgers_now))
        crashes.append((disk.after_power_cut(rng), ledgers_now))

    store = small_store(ROOT, disk, segment_bytes_max=4_000)
    disk.before_sync = crash
    logs = [store.log(ENTITY, partition) for partition in range(LOGS)]
    for log in logs:
        await log.acquire()
    await asyncio.gather(
        *(
            work(log, ledger, random.Random(f"{seed} {n}"))
            for n, (log, ledger) in enumerate(zip(logs, ledgers, strict=True))
        )
    )
    for log in logs:
        await log.close()
    await store.close()
    disk.before_sync = None
    assert len(crashes) > 100
    for left, ledgers_then in crashes:
        await check(left, ledgers_then)


@pytest.mark.parametrize("fsync", ["interval", "never"])
@pytest.mark.parametrize("seed", SEEDS)
async def test_without_a_sync_per_commit_a_power_cut_leaves_a_whole_prefix(seed: int, fsync: str) -> None:
    print(f"replay with STORAGE_SEED={seed}")
    rng = random.Random(seed)
    disk = RecordingDisk(queued=True)
    store = small_store(ROOT, disk, fsync=fsync, fsync_interval_ms=1, segment_bytes_max=4_000)
    log, ledger = store.log(ENTITY, 0), Ledger()
    await log.acquire()
    for number in range(60):
        body = bytes([number]) * rng.choice([1, 20, 600, 3_000])
        ledger.submitted.append((log.end, body))
        await append(log, body)
        if number % 20 == 19:
            checkpoint = checkpoint_of(log.end, b"state")
            ledger.checkpoints[checkpoint.position] = state_of(checkpoint) or b""
            await log.save_checkpoint(checkpoint)
            ledger.checkpoint_acknowledged = checkpoint.position
            ledger.acknowledged = len(ledger.submitted)  # a checkpoint covers only durable data
        await check(disk.after_power_cut(), [ledger])
        await check(disk.after_power_cut(rng), [ledger])
    await log.close()
    ledger.acknowledged = len(ledger.submitted)
    await check(disk.after_power_cut(), [ledger])
    await store.close()


@pytest.mark.parametrize("seed", SEEDS)
async def test_at_every_sync_the_catalogue_holds_each_document_old_or_new_as_a_whole(seed: int) -> None:
    print(f"replay with STORAGE_SEED={seed}")
    rng = random.Random(seed)
    disk = RecordingDisk()
    disk.make_directory(ROOT)
    disk.sync_directory(Path("/"))
    catalogue = Catalogue(ROOT / "catalogue", disk)
    durable: dict[str, bytes] = {}
    under_way: tuple[str, bytes | None] | None = None
    crashes: list[tuple[RecordingDisk, list[dict[str, bytes]]]] = []

    def crash() -> None:
        assert under_way is not None
        name, document = under_way
        after = {key: value for key, value in durable.items() if key != name}
        if document is not None:
            after[name] = document
        crashes.append((disk.after_power_cut(), [dict(durable), after]))
        crashes.append((disk.after_power_cut(rng), [dict(durable), after]))

    disk.before_sync = crash
    for number in range(40):
        name = rng.choice(["queues/a", "queues/b", "settings"])
        document = b"%d" % number * rng.choice([0, 1, 2_000]) if rng.random() < 0.75 else None
        under_way = (name, document)
        if document is None:
            await catalogue.delete(name)
            durable.pop(name, None)
        else:
            await catalogue.put(name, document)
            durable[name] = document
    disk.before_sync = None
    for left, allowed in crashes:
        assert await Catalogue(ROOT / "catalogue", left).load_all() in allowed
        assert not [name for name in left.names(ROOT / "catalogue") if name.endswith(".tmp")]
