"""broker/frontend/ended_links.py: what ended links leave is freed before there is much of it."""

from __future__ import annotations

import gc
import weakref
from collections import deque

from broker.frontend.ended_links import LINKS_AT_ONCE, OLDER_EVERY, EndedLinks


class _Link:
    """Refers to itself, as a link and its receiver refer to each other."""

    def __init__(self) -> None:
        self.receiver = self


def test_what_links_leave_is_freed_while_nothing_else_makes_the_collector_run() -> None:
    ended = EndedLinks()
    left: weakref.WeakSet[_Link] = weakref.WeakSet()
    in_use: deque[_Link] = deque()
    gc.collect()
    gc.disable()
    try:
        most = 0
        for _ in range(3 * LINKS_AT_ONCE * OLDER_EVERY):
            link = _Link()
            left.add(link)
            in_use.append(link)
            if len(in_use) > LINKS_AT_ONCE:  # the others are in use while the collector runs
                in_use.popleft()
            ended.add()
            most = max(most, len(left))
        # Symptom: all of them stayed, thousands, and were freed at once.
        assert most <= (OLDER_EVERY + 2) * LINKS_AT_ONCE
    finally:
        gc.enable()
