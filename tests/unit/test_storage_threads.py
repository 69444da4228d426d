"""storage/threads.py: a thread cannot be called back."""

from __future__ import annotations

import asyncio
import threading

import pytest

from storage.threads import run_to_end


async def test_a_result_and_an_error_come_back() -> None:
    assert await run_to_end(None, lambda: 5) == 5
    with pytest.raises(ZeroDivisionError):
        await run_to_end(None, lambda: 1 // 0)


@pytest.mark.parametrize("fails", [False, True])
async def test_a_cancelled_caller_waits_for_the_end_and_hears_of_the_cancellation(fails: bool) -> None:
    begun, gate, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        assert gate.wait(10)
        ended.set()
        if fails:
            raise ValueError

    task = asyncio.create_task(run_to_end(None, work))
    assert await asyncio.to_thread(begun.wait, 10)
    for _ in range(2):
        task.cancel()
        await asyncio.sleep(0)
    assert not task.done()
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()
