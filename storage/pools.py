"""The threads of a store, in pools. Work of one kind never waits behind work of another.

The committer has threads of its own. For everything else: removing a large log, writing a checkpoint, or
reading messages that are not in memory may each take seconds on a slow disk, and many may come at once. The
catalogue and the index have one thread each, which nothing else in the process uses, so a hanging disk delays
only the work that needs it.
"""

from __future__ import annotations

from storage.threads import UnderWay
from storage.workers import Workers

READ_THREADS = 2
UPKEEP_THREADS = 2
DELETION_THREADS = 1
ZEROS_THREADS = 2


class Pools:
    """Created and closed by the store."""

    def __init__(self, work_threads: int) -> None:
        self.work = Workers(work_threads, "storage-work")
        """Opening, replaying, closing and listing logs."""
        self.reads = Workers(READ_THREADS, "storage-read")
        """Reading messages that are not in memory."""
        self.upkeep = Workers(UPKEEP_THREADS, "storage-upkeep")
        """Writing checkpoints and removing trimmed files."""
        self.deletions = Workers(DELETION_THREADS, "storage-delete")
        """Removing the logs of deleted entities."""
        self.zeros = Workers(ZEROS_THREADS, "storage-zeros")
        """Writing zeros ahead of commits."""
        self.catalogue = Workers(1, "storage-catalogue")
        """Reading and writing the entities' documents, if they are in this folder."""
        self.index = Workers(1, "storage-index")
        """Reading and writing the index of partitions."""
        self.look = Workers(1, "storage-look")
        """Checking that the folder is there."""
        self.hanging: set[UnderWay] = set()
        """What the disk has not answered in time and nobody waits for any more. Owned by the event loop."""
        self._all = (
            self.work,
            self.reads,
            self.upkeep,
            self.deletions,
            self.zeros,
            self.catalogue,
            self.index,
            self.look,
        )

    def waiting_s(self, now_s: float) -> float:
        """How long the disk has left a piece of work unanswered, in seconds, since a call of this first saw
        it; 0 if nothing is under way.

        Does not count upkeep and deletions, which may take long on a disk that answers, and the catalogue,
        which is in another folder as well. `now_s` is the time by the event loop's clock.
        """
        return max(workers.busy_s(now_s) for workers in (self.work, self.reads, self.zeros, self.index))

    def shutdown(self, *, cancel_futures: bool) -> None:
        """Let the threads end when their work is done."""
        for workers in self._all:
            workers.shutdown(wait=False, cancel_futures=cancel_futures)

    def join(self, within_s: float) -> bool:
        """Wait for all threads after `shutdown`; False if one has not ended in time."""
        ended = [workers.join(within_s / len(self._all)) for workers in self._all]
        return all(ended)
