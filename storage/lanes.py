"""The threads of a store, in lanes: work of one kind never waits behind work of another.

Commits have the committer's threads. As for the rest: to remove a large log, to write a checkpoint or to read
what is not in memory may each take seconds on a slow disk, and there may be many of them at a time. The
catalogue and the index have a thread each, which nothing else in the process shares: when their disk hangs,
whatever does not need it goes on.
"""

from __future__ import annotations

from storage.workers import Workers

READ_THREADS = 2
UPKEEP_THREADS = 2
DELETION_THREADS = 1


class Lanes:
    """Made by the store; closed with it."""

    def __init__(self, work_threads: int) -> None:
        self.work = Workers(work_threads, "storage-work")
        """Opening, replaying, closing and listing logs."""
        self.reads = Workers(READ_THREADS, "storage-read")
        """Messages that are not in memory, for whoever waits for them."""
        self.upkeep = Workers(UPKEEP_THREADS, "storage-upkeep")
        """Checkpoints, and removing what was trimmed."""
        self.deletions = Workers(DELETION_THREADS, "storage-delete")
        """The logs of deleted entities."""
        self.catalogue = Workers(1, "storage-catalogue")
        """The entities' documents, if they are in this folder."""
        self.index = Workers(1, "storage-index")
        """The index of partitions."""
        self._all = (self.work, self.reads, self.upkeep, self.deletions, self.catalogue, self.index)

    def shutdown(self, *, cancel_futures: bool) -> None:
        """Release the threads as they end."""
        for workers in self._all:
            workers.shutdown(wait=False, cancel_futures=cancel_futures)

    def join(self, within_s: float) -> bool:
        """Wait for all threads after `shutdown`; False if one has not ended in time."""
        ended = [workers.join(within_s / len(self._all)) for workers in self._all]
        return all(ended)
