"""storage/workers.py: a thread pool that keeps working while some work hangs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator

import pytest

from storage import workers as module
from storage.workers import Workers

WAIT_S = 20


@pytest.fixture
def released() -> threading.Event:
    """What work that hangs waits for. Set after each test, so that a test that fails does not hang."""
    return threading.Event()


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch, released: threading.Event) -> Iterator[Workers]:
    monkeypatch.setattr(module, "LOOK_S", 0.01)
    pool = Workers(2, "test")
    yield pool
    released.set()
    pool.shutdown(wait=False)
    assert pool.join(WAIT_S)


async def run(pool: Workers, *functions: Callable[[], object]) -> list[object]:
    loop = asyncio.get_running_loop()
    return list(
        await asyncio.wait_for(
            asyncio.gather(*(loop.run_in_executor(pool, each) for each in functions)), WAIT_S
        )
    )


async def test_results_and_errors_reach_whoever_has_asked(workers: Workers) -> None:
    assert await run(workers, lambda: 1, lambda: 2, lambda: 3, lambda: 4) == [1, 2, 3, 4]
    with pytest.raises(ZeroDivisionError):
        await run(workers, lambda: 1 // 0)
    assert await run(workers, lambda: 5) == [5]


async def test_no_more_threads_work_at_a_time_than_there_may_be(workers: Workers) -> None:
    meet = threading.Barrier(2)
    assert await run(workers, *[lambda: meet.wait(WAIT_S) for _ in range(10)])
    assert len(workers._threads) == 2


async def test_how_long_work_has_been_under_way_is_known_until_it_ends(
    workers: Workers, released: threading.Event
) -> None:
    assert workers.busy_s(1.0) == 0
    begun = threading.Event()

    def hang() -> None:
        begun.set()
        released.wait()

    hung = asyncio.get_running_loop().run_in_executor(workers, hang)
    assert await asyncio.to_thread(begun.wait, WAIT_S)
    assert workers.busy_s(2.0) == 0, "it has only just been seen"
    assert workers.busy_s(5.0) == 3.0
    await run(workers, lambda: 1)
    assert workers.busy_s(6.0) == 4.0, "the oldest counts"
    released.set()
    await hung
    workers.shutdown()
    assert workers.busy_s(9.0) == 0


async def test_work_that_hangs_holds_up_no_other_work(workers: Workers, released: threading.Event) -> None:
    loop = asyncio.get_running_loop()
    hung = [loop.run_in_executor(workers, released.wait) for _ in range(6)]
    assert await run(workers, lambda: 1) == [1]
    assert not any(each.done() for each in hung)
    released.set()
    await asyncio.wait_for(asyncio.gather(*hung), WAIT_S)
    await run(workers, *[lambda: None for _ in range(20)])
    assert not workers._stuck


async def test_the_end_does_not_wait_for_work_that_hangs(workers: Workers, released: threading.Event) -> None:
    hung = asyncio.get_running_loop().run_in_executor(workers, released.wait)
    workers.shutdown(wait=False)
    assert not workers.join(0.01)
    with pytest.raises(RuntimeError, match="after the end"):
        workers.submit(int)
    released.set()
    assert await hung
    assert workers.join(WAIT_S)


def refuse_to_start(monkeypatch: pytest.MonkeyPatch, times: int) -> Callable[[], int]:
    """Have the next starts of a thread fail; gives how many of them are left."""
    start, left = threading.Thread.start, times

    def refuse(thread: threading.Thread) -> None:
        nonlocal left
        if left and thread.name.startswith("test-"):
            left -= 1
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    return lambda: left


async def test_without_any_thread_work_waits_until_one_can_be_started(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = refuse_to_start(monkeypatch, 5)
    assert await run(workers, lambda: 1, lambda: 2, lambda: 3) == [1, 2, 3]
    assert not left()


async def test_without_a_new_thread_work_waits_for_another_one(
    workers: Workers, released: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = asyncio.get_running_loop().run_in_executor(workers, released.wait)
    refuse_to_start(monkeypatch, 1_000_000)
    waits = asyncio.get_running_loop().run_in_executor(workers, lambda: 1)
    released.set()
    assert await asyncio.wait_for(begun, WAIT_S) and await asyncio.wait_for(waits, WAIT_S) == 1


async def test_work_that_no_thread_can_begin_is_cancelled_at_the_end(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_to_start(monkeypatch, 1_000_000)
    future = workers.submit(int)
    workers.shutdown(wait=False)
    assert future.cancelled() and workers.join(WAIT_S)


def test_without_an_event_loop_work_that_no_thread_can_begin_is_refused(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_to_start(monkeypatch, 1_000_000)
    with pytest.raises(RuntimeError, match="can't start a thread"):
        workers.submit(int)
    assert not workers._threads and not workers._waiting
