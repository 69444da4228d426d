"""Frees what ended links leave behind, a few links at a time.

A link and the objects that serve it refer to each other, so only Python's collector frees them: some 25
objects for each. The collector runs once many more objects were made than were freed, and so not while a
large queue is being emptied. Later it would find what thousands of links have left: to free what 2,700 left
held the event loop for 50 to 90 ms.
"""

from __future__ import annotations

import gc

LINKS_AT_ONCE = 100
"""Links that end between two collections of the youngest objects: some 3 ms each."""
OLDER_EVERY = 10
"""Every so many collections, those objects are looked at, too, that were in use at the last ones."""


class EndedLinks:
    """Counts the links of all connections that clients end. Owned by `Services`."""

    def __init__(self) -> None:
        self._count = 0

    def add(self) -> None:
        """One more has ended."""
        self._count += 1
        if self._count % LINKS_AT_ONCE == 0:
            gc.collect(1 if self._count % (LINKS_AT_ONCE * OLDER_EVERY) == 0 else 0)
