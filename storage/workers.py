"""A thread pool in which work that hangs does not delay the rest.

While work waits, the pool looks at its threads every LOOK_S seconds. A thread that is still busy with the
same work as at the last look counts as stuck, and another thread takes its place, at most STUCK_MAX times.
If the system starts no thread, the work waits, and each look tries again: to whoever waits, the disk hangs.
The threads are daemons, so a process that stops does not wait for a disk that hangs.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from itertools import count
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

LOOK_S = 1.0
STUCK_MAX = 64


class Workers(Executor):
    """A pool of `threads` threads, not counting stuck ones. Submit work from the event loop, or when no loop
    runs."""

    def __init__(self, threads: int, name: str) -> None:
        self._threads_max, self._name = threads, name
        self._changed = threading.Condition()
        # `_changed` guards everything below.
        self._waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._threads: dict[int, threading.Thread] = {}
        self._busy: dict[int, int] = {}
        """The number of the work that each busy thread is doing."""
        self._stuck: set[int] = set()
        """Threads that count as stuck."""
        self._seen: dict[int, int] = {}
        """`_busy` at the last look."""
        self._numbers = count(1)
        self._look_due = False
        self._closing = False
        self._seen_s: dict[int, float] = {}
        """When `busy_s` first saw work that is under way, by its number. Owned by the event loop."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Have a thread call the function. Raises RuntimeError after `shutdown`; or without an event loop, if
        there is no thread and none can be started."""
        future: Future[T] = Future()
        with self._changed:
            if self._closing:
                raise RuntimeError("work was submitted after the end")
            self._waiting.append((future, lambda: fn(*args, **kwargs)))
            try:
                self._provide()
            except RuntimeError:
                self._waiting.pop()
                raise
        return future

    def _provide(self) -> None:
        """Wake or start a thread for waiting work, or look again later. The caller holds `_changed`.

        Raises RuntimeError if there is neither a thread nor an event loop, so that the work would wait for
        nothing.
        """
        if len(self._threads) - len(self._busy) >= len(self._waiting):
            self._changed.notify()
            return
        if len(self._threads) < self._threads_max + len(self._stuck) and self._start_thread():
            return
        if not self._look_due:
            try:
                loop = asyncio.get_running_loop()
            except RuntimeError:
                if self._threads:
                    return  # without an event loop, no thread is replaced
                raise RuntimeError("can't start a thread") from None
            loop.call_later(LOOK_S, self._look)
            self._look_due = True

    def _start_thread(self) -> bool:
        """Start a thread; False if the system starts none."""
        number = next(self._numbers)
        thread = threading.Thread(
            target=self._work, args=(number,), name=f"{self._name}-{number}", daemon=True
        )
        self._threads[number] = thread
        try:
            thread.start()
        except RuntimeError:
            del self._threads[number]
            return False
        return True

    def _look(self) -> None:
        """Replace stuck threads, and start missing ones, if work waits for them."""
        with self._changed:
            self._look_due = False
            if not self._waiting or self._closing:
                self._seen = {}
                return
            for thread, work in self._busy.items():
                if self._seen.get(thread) == work and len(self._stuck) < STUCK_MAX:
                    self._stuck.add(thread)
            self._seen = dict(self._busy)
            for _ in range(len(self._waiting)):
                self._provide()
                if self._look_due:
                    break  # there is no other thread for now

    def _work(self, number: int) -> None:
        while True:
            with self._changed:
                self._busy.pop(number, None)
                self._stuck.discard(number)
                while not self._waiting:
                    if self._closing:
                        break
                    self._changed.wait()
                if not self._waiting or len(self._threads) > self._threads_max + len(self._stuck):
                    del self._threads[number]  # the pool closes, or this thread was replaced while stuck
                    self._changed.notify()
                    return
                future, function = self._waiting.popleft()
                self._busy[number] = next(self._numbers)
            if future.set_running_or_notify_cancel():
                try:
                    result = function()
                except BaseException as error:
                    future.set_exception(error)
                else:
                    future.set_result(result)
                    del result  # it may take some MiB, and the next job may be hours away
            del future, function

    def busy_s(self, now_s: float) -> float:
        """How long some work has been under way since a call of this first saw it, in seconds; 0 if there is
        none. `now_s` is the time by the event loop's clock."""
        with self._changed:
            busy = list(self._busy.values())
        self._seen_s = {work: self._seen_s.get(work, now_s) for work in busy}
        return now_s - min(self._seen_s.values(), default=now_s)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Let the threads end when their work is done; `wait` waits for that."""
        self._end(cancel_futures)
        if wait:
            self.join(None)

    def _end(self, cancel_futures: bool) -> None:
        with self._changed:
            self._closing = True
            if cancel_futures or not self._threads:
                for future, _ in self._waiting:
                    future.cancel()
                self._waiting.clear()
            self._changed.notify_all()

    def join(self, within_s: float | None) -> bool:
        """Wait for the threads after `shutdown`; False if some are still running after `within_s`."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._threads, within_s)
