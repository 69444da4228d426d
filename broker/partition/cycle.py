"""A cycle of a partition: the operations that one commit makes durable, with its time, its answers, and what
must be undone if the disk is full.

The state machine (`state.py`) fills it in for the task (`task.py`); it is plain data. An answer may have
*holes*: messages that are not in memory and must be read from the log before the answer is released.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

from broker.identifiers import ClientId
from broker.operations.browsing import Peeked
from broker.operations.columns import COLUMNS, KNOWN_COLUMNS
from broker.operations.general import Failed
from broker.operations.interface import Answer
from broker.operations.receiving import Locked
from broker.operations.streams import RangeRead
from broker.operations.transfers import HandedOver
from broker.partition import _references
from broker.partition.changed_properties import MergingRoom
from broker.partition.columns import answered, of_references
from broker.partition.durable_state import NewRecord
from broker.partition.references import Lease, Reference
from storage.log import Commit, Parts

Hole = tuple[list[bytes], list[Reference]]
"""An answer's messages, empty where they are missing, and their references."""


class Grant:
    """A `Locked` answer that may still grow during its cycle."""

    __slots__ = ("answer", "bytes_left", "client", "lease", "open", "void")

    def __init__(self, client: ClientId, lease: Lease, answer: Locked) -> None:
        self.client, self.lease, self.answer = client, lease, answer
        self.open = True
        """More messages may be added: the client has not withdrawn since."""
        self.bytes_left = 0
        """Bytes that the client's demand still allowed after the latest grant."""
        self.void = 0
        """Messages of its demand that became void because its bytes were used up."""


class Cycle:
    """Created by `Partition.begin`; complete after `Partition.finish`."""

    __slots__ = (
        "answers", "arrived_in", "commit", "dead_lettered", "ended_leases", "ended_locks", "expired_locks",
        "expired_messages", "first_sent", "granted", "granted_bytes", "granted_leases", "grants",
        "has_handed_out", "has_sent", "holes", "is_quiet", "marks", "merging_room", "now_ms", "open_grants",
        "passing", "recalls", "redriven", "sent_with", "to_tell", "unsynced", "wall_ms", "work",
    )  # fmt: skip

    def __init__(self, commit: Commit, now_ms: int, wall_ms: int, first_sent: int) -> None:
        self.commit = commit
        self.now_ms = now_ms
        """Monotonic time, for deadlines."""
        self.wall_ms = wall_ms
        """The same moment in wall time, for stored times."""
        self.answers: list[tuple[ClientId, Answer]] = []
        """In the order in which they were decided. Released once the commit is durable."""
        self.holes: list[Hole] = []
        self.has_sent = False
        """The commit contains new messages, so it is not urgent."""
        self.is_quiet = False
        """Nobody waits for messages, nothing falls due, and so far there were only sends. So the commit has
        their records, and `Partition.finish` adds none."""
        self.unsynced: list[Locked | HandedOver] = []
        """Answers that wait until the log is synced, also if commits are otherwise acknowledged earlier
        (`fsync: interval` or `never`)."""
        self.arrived_in: set[int] = set()
        """Numbers of the subqueues that received messages in this cycle."""
        self.first_sent = first_sent
        """The sequence number that the first new message gets."""
        self.marks: list[tuple[int, bytes, int]] = []
        """Kind, body and version of every record that does not belong to a send."""
        self.sent_with: list[NewRecord] = []
        """Records of durable state that belong to the new messages."""
        self.redriven: list[tuple[int, list[Reference]]] = []
        """Messages removed because they were enqueued anew, with the number of the subqueue they were in."""
        self.grants: list[Grant] = []
        self.open_grants: dict[tuple[ClientId, int], Grant] = {}
        """By client and subqueue number."""
        self.dead_lettered = self.expired_messages = self.expired_locks = 0
        """Counts for the metrics."""
        self.granted = self.granted_bytes = 0
        """Messages looked at, and bytes granted, in the subqueue being handed out."""
        self.has_handed_out = False
        """Nothing more is handed out of that subqueue: expired messages lie there that do not fit into the
        cycle."""
        self.granted_leases = 0
        """Leases granted since this was last set to 0: by the operations, for the sessions of a subqueue, or
        at the end."""
        self.recalls = 0
        """Clients that messages were recalled from because others wait."""
        self.work = 0
        """Messages that the operations have sent, settled or looked at."""
        self.merging_room = MergingRoom()
        self.ended_leases = self.ended_locks = 0
        """Leases and locks of sessions that have ended, as their time was over or their holder has gone, and
        locks of messages. Those of a session's messages count as two."""
        self.to_tell: list[tuple[ClientId, int]] = []
        """Clients to tell if their demand is not met, each with the subqueue's number."""
        self.passing: list[Reference] = []
        """References to new messages that memory has no room for after the cycle."""

    def hand_out_anew(self) -> None:
        """Begin with another subqueue. Each has limits of its own, so that none starves the others."""
        self.granted_bytes = self.granted = 0
        self.has_handed_out = False

    @property
    def missing(self) -> list[Reference]:
        """The messages that `put_in` needs, in this order."""
        found: list[Reference] = []
        for messages, references in self.holes:
            found += _references.missing(messages, references)
        return found

    def put_in(self, found: list[bytes]) -> None:
        """Put messages read from the log into the holes."""
        place = 0
        for messages, references in self.holes:
            place = _references.put_in(messages, references, found, place)

    def give_up_rest(self, refusal: Callable[[ClientId, object], Failed]) -> None:
        """Refuse the requests whose messages cannot be read, and those that wait for a sync. Drop grants with
        holes: the partition goes down, so their locks are void. `refusal`: that of a request, by its client
        and cookie."""
        holes = {id(messages) for messages, _ in self.holes}
        unsynced = {id(answer) for answer in self.unsynced}
        answers: list[tuple[ClientId, Answer]] = []
        for client, answer in self.answers:
            if isinstance(answer, Locked | HandedOver) and id(answer) in unsynced:
                answers.append((client, refusal(client, answer.cookie)))
            elif not isinstance(answer, Locked | Peeked | RangeRead) or id(answer.messages) not in holes:
                answers.append((client, answer))
            elif isinstance(answer, Peeked | RangeRead) or answer.deferred:
                answers.append((client, refusal(client, answer.cookie)))
        self.answers = answers


def parts_of(missing: list[Reference], upcoming: list[list[Reference]]) -> Parts:
    """Where to read these messages: those that are missing, and each of the upcoming ones once."""
    return Parts(*_references.stored_at([*missing, *(references[0] for references in upcoming)]))


_STATE = attrgetter("state")


def write_locked(answer: Locked, lease: Lease) -> None:
    """Write the columns of a `Locked` answer. Called when the answer is complete, and again if a grant is
    undone. Messages that are not in memory are empty."""
    references = lease.references
    for name, values in zip(KNOWN_COLUMNS, _references.shown(references), strict=True):
        setattr(answer, name, values)
    answer.tokens = _references.tokens(answer.sequence_numbers, lease.nonce)
    if COLUMNS:
        answer.columns = of_references(references) if answer.deferred else answered(references)


def peeked(found: Sequence[Reference], cookie: object, more: bool) -> Peeked:
    """Make the answer that shows these messages. Messages that are not in memory are empty."""
    states: list[int] = list(map(_STATE, found))
    known: dict[str, list[Any]] = dict(zip(KNOWN_COLUMNS, _references.shown(list(found)), strict=True))
    return Peeked(**known, states=states, cookie=cookie, more=more, columns=answered(found))
