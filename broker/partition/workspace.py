"""The state that the parts of a partition's state machine share, and their current cycle. Pure.

`state.py` owns it and begins each cycle. The parts (`delivering.py`, `settling.py`, `time_to_live.py`,
`browsing.py`) change the durable state only through records: `mark` puts a record into the commit and applies
it at once, by the same method that replay uses.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

from broker.entities.descriptions import EntityDescription
from broker.identifiers import ClientId
from broker.operations.interface import Answer
from broker.operations.receiving import Recall
from broker.partition import records
from broker.partition.cycle import Cycle
from broker.partition.cycle_bounds import Bounds
from broker.partition.demand_and_recall import DemandBook
from broker.partition.durable_state import NewRecord, read_back
from broker.partition.enqueued_times import EnqueuedTimes
from broker.partition.locks import Locks
from broker.partition.messages import Messages
from broker.partition.quotas import DiskRoom, check_growth, check_size
from broker.partition.records import Mark
from broker.partition.references import Lease, Reference
from broker.partition.subqueue import Subqueue
from storage.log import Commit, Position

NO_CYCLE = Cycle(Commit(Position(0)), 0, 0, 0)
"""The placeholder between two cycles; nothing is ever added to it."""


class Workspace:
    """The state of one partition and its current cycle."""

    __slots__ = (
        "arrived_ms",
        "books",
        "bounds",
        "cycle",
        "description",
        "disk",
        "hands_out_later",
        "held",
        "locks",
        "messages",
        "number",
        "subqueues",
        "times",
    )

    def __init__(
        self,
        number: int,
        description: EntityDescription,
        messages: Messages,
        bounds: Bounds,
        epoch: int,
        first_nonce: int,
        disk: DiskRoom,
    ) -> None:
        self.number = number
        """The partition's number."""
        self.bounds = bounds
        self.disk = disk
        self.description = description
        self.messages = messages
        self.subqueues = messages.subqueues
        self.books: defaultdict[int, DemandBook] = defaultdict(DemandBook)
        """The demand for messages, by subqueue number."""
        self.locks = Locks(self.subqueues, self.books, epoch, first_nonce, bounds.tick_ms)
        self.times = EnqueuedTimes()
        self.cycle = NO_CYCLE
        self.held: list[Callable[[], None]] | None = None
        """Collects changes that are written now and applied once the commit is durable; None while changes
        are applied at once. Set by `transactions.py`."""
        self.hands_out_later = False
        """Changes wait for the commit, and may make older messages available: hand out nothing before."""
        self.arrived_ms = 0
        """When the current operation was put into the mailbox, in monotonic time. Time it has spent waiting
        for the disk since then ends no lock."""

    def locked_until_ms(self, subqueue: Subqueue) -> int:
        """When a lock that begins in this cycle ends."""
        return self.cycle.now_ms + self.description.delivery(subqueue.name).lock_duration_ms

    def check_room(self, added: int) -> None:
        """Check that there is room for `added` bytes of messages or state. Raises Refused(QUOTA_EXCEEDED)."""
        check_size(self.description, self.number, self.messages.size_bytes, added)

    def check_growth(self, each: int, messages: int = 1) -> None:
        """Check that a full disk has room for `each` bytes more of durable state for each of some messages.
        Raises Refused(DISK_FULL)."""
        if not check_growth(self.disk, self.number, each, messages):
            self.cycle.commit.grows_by += each * messages

    def take_growth(self, each: int, count: int) -> int:
        """For how many of `count` messages a full disk has room for `each` bytes more of durable state, which
        the broker adds of its own accord."""
        if not self.disk.is_full:
            self.cycle.commit.grows_by += each * count
            return count
        return self.disk.take_growth(each, count)

    def answer(self, client: ClientId, answer: Answer) -> None:
        """Add an answer, to be released once the cycle's commit is durable."""
        self.cycle.answers.append((client, answer))

    def record(self, record: NewRecord, *, with_send: bool = False) -> None:
        """Write a record of a `DurableState` and apply it.

        `with_send` means that the record belongs to messages that this cycle enqueues; if the disk is full,
        it is undone with them.
        """
        cycle = self.cycle
        cycle.commit.add(record.kind, [record.body], record.version)
        if self.held is not None:
            self.held.append(lambda: self.messages.states.apply(read_back(record), cycle.commit.start))
            return
        (cycle.sent_with if with_send else cycle.marks).append(record)
        self.messages.states.apply(read_back(record), cycle.commit.start)

    def recall_from(self, lease: Lease) -> bool:
        """Recall the messages that the holder of a lease may hold unseen. Returns whether some may come
        back: those of this lease are worth another look once the client has answered."""
        client = self.books[lease.subqueue].recall_from(lease)
        if client is not None:
            self.answer(client, Recall(self.number, self.subqueues[lease.subqueue].name))
        return lease.holder is not None

    def mark(self, mark: Mark) -> None:
        """Write a record of what happens to messages and apply it."""
        body = records.encode_mark(mark)
        self.cycle.commit.add(mark.kind, [body], records.VERSION)
        if self.held is not None:
            self.held.append(lambda: self.messages.apply_mark(mark))
            return
        self.cycle.marks.append((mark.kind, body, records.VERSION))
        self.messages.apply_mark(mark)

    def mark_applied(self, kind: int, body: bytes) -> None:
        """Write a record of what has already happened to messages in this cycle."""
        assert self.held is None, "it was not to be applied yet"
        self.cycle.commit.add(kind, [body], records.VERSION)
        self.cycle.marks.append((kind, body, records.VERSION))

    def give_back(self, subqueue: Subqueue, references: Sequence[Reference]) -> None:
        """Make unlocked messages available again."""
        if self.held is not None:
            self.held.append(lambda: subqueue.give_back(references))
        else:
            subqueue.give_back(references)
