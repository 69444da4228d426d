"""storage/threads.py: work in a thread runs to its end, whatever happens to its caller."""

from __future__ import annotations

import asyncio
import threading

import pytest

from storage.threads import ask_each, report_to_loop, run_to_end, start_background


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


async def test_the_owner_of_a_background_task_hears_of_its_death_and_not_of_its_end() -> None:
    deaths: list[tuple[str, str]] = []

    async def die() -> None:
        raise ValueError("unforeseen")

    tasks = [
        start_background(work, name, lambda name, error: deaths.append((name, str(error))))
        for work, name in ((die(), "dies"), (asyncio.sleep(0), "ends"), (asyncio.sleep(60), "cancelled"))
    ]
    tasks[2].cancel()
    await asyncio.wait(tasks)
    await asyncio.sleep(0)
    assert deaths == [("dies", "unforeseen")]


async def test_a_death_that_no_owner_hears_of_is_reported_by_the_loop() -> None:
    reported: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: reported.append(context))

    async def die() -> None:
        raise ValueError("unforeseen")

    await asyncio.wait([start_background(die(), "dies", report_to_loop)])
    await asyncio.sleep(0)
    assert [(each["message"], str(each["exception"])) for each in reported] == [
        ("the background task dies has died", "unforeseen")
    ]


def test_each_is_asked_at_once_and_nobody_waits_for_one_that_never_answers() -> None:
    gate = threading.Event()
    both = threading.Barrier(2)

    def ask(thing: str) -> str:
        if thing == "hangs":
            gate.wait()
        if thing == "fails":
            both.wait()
            raise ValueError(thing)
        if thing == "answers":
            both.wait()
        return thing.upper()

    try:
        answers = ask_each(("hangs", "fails", "answers"), ask, 0.5, "test")
    finally:
        gate.set()
    assert answers["answers"] == "ANSWERS"
    assert isinstance(answers["fails"], ValueError) and isinstance(answers["hangs"], TimeoutError)
    assert ask_each((), ask, 0.5, "test") == {}
