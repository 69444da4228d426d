"""Sorts many items in short steps, for work done in slices (`broker/base/slices.py`). Pure."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from typing import TypeVar

T = TypeVar("T")

AT_ONCE = 1024
"""Items that one step sorts or merges, which takes about a millisecond."""


def sort_gradually(items: Iterable[T], key: Callable[[T], int]) -> Iterator[list[T]]:
    """Give all items in order. Each step gives some items, or none yet. Nearly sorted input takes little
    longer than a plain sort."""
    runs: list[list[list[T]]] = []
    remaining = iter(items)
    while part := list(islice(remaining, AT_ONCE)):
        part.sort(key=key)
        if runs and key(runs[-1][-1][-1]) <= key(part[0]):
            runs[-1].append(part)
        else:
            runs.append([part])
        yield []
    flat = map(chain.from_iterable, runs)
    merged = heapq.merge(*flat, key=key) if len(runs) > 1 else chain.from_iterable(flat)
    while part := list(islice(merged, AT_ONCE)):
        yield part
