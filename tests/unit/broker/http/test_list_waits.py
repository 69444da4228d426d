"""How long a list waits for partitions whose content is unknown after a crash."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from broker.namespace.namespace import COUNTED_WITHIN_S, OPENED_WITHIN_S, Namespace
from tests.support.http_stack import StillPartition, http_stack
from tests.support.many_queues import write_queues
from tests.support.waiting import WAIT_S

QUEUES = 40
CLIENTS_GIVE_UP_S = 15.0


async def test_a_list_of_queues_whose_disk_hangs_is_answered_with_what_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"queue-{number:02}" for number in range(QUEUES)]
    await asyncio.to_thread(write_queues, tmp_path / "data", names)

    async def opened(partition: StillPartition) -> None:
        await asyncio.Event().wait()

    assert COUNTED_WITHIN_S + OPENED_WITHIN_S < CLIENTS_GIVE_UP_S
    monkeypatch.setattr(StillPartition, "opened", opened)
    monkeypatch.setattr(Namespace.counted, "__defaults__", (0.02,))
    monkeypatch.setattr(Namespace.opened, "__defaults__", (0.1,))
    async with http_stack(tmp_path) as stack:
        for queue in stack.namespace.live_entities():
            stack.namespace._resting._wait_for(queue.description.generation, range(16))
        asking = stack.ask("GET", f"/$Resources/queues?$skip=0&$top={QUEUES}")
        status, text, _ = await asyncio.wait_for(asking, WAIT_S)
    assert status == 200 and text.count("<entry") == QUEUES
