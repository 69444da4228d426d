"""One batch while it is handled: its time, its commit, its answers, and what the commit's failing on a full
disk would undo.

Plain data of the state machine (`state.py`) for the task (`task.py`). An answer may have *holes*: messages
that are not in memory, to be read from the log before the answer is released.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

from broker.base.errors import Reason
from broker.operations import COLUMNS, KNOWN_COLUMNS, Answer, ClientId, Failed, Locked, Peeked
from broker.partition.columns import of_references
from broker.partition.durable_state import NewRecord
from broker.partition.references import Lease, Reference
from storage.log import Commit, Frame, Position

Hole = tuple[list[bytes], Sequence[Reference]]
"""The messages of an answer, empty where they are missing, and their references."""


class Grant:
    """A `Locked` answer that may still grow while its batch lasts."""

    __slots__ = ("answer", "bytes_left", "client", "lease", "open", "void")

    def __init__(self, client: ClientId, lease: Lease, answer: Locked) -> None:
        self.client, self.lease, self.answer = client, lease, answer
        self.open = True
        """More may be added: the client has not withdrawn since."""
        self.bytes_left = 0
        """What the client might be given beyond this, when it was last given something."""
        self.void = 0
        """How much of its demand ended with its bytes."""


class Batch:
    """Made by `Partition.begin`, complete after `Partition.finish`."""

    __slots__ = (
        "answers", "arrived_in", "commit", "dead_lettered", "expired_locks", "expired_messages", "first_sent",
        "granted", "granted_bytes", "grants",
        "has_sent", "holes", "marks", "now_ms", "open_grants", "passing", "sent_with", "to_tell",
        "wall_ms", "work",
    )  # fmt: skip

    def __init__(self, commit: Commit, now_ms: int, wall_ms: int, first_sent: int) -> None:
        self.commit = commit
        self.now_ms = now_ms
        """The batch's monotonic time, for deadlines."""
        self.wall_ms = wall_ms
        """The same moment in wall time, for what is stored."""
        self.answers: list[tuple[ClientId, Answer]] = []
        """In the order in which they were decided; to be released once the commit is durable."""
        self.holes: list[Hole] = []
        self.has_sent = False
        """There are new messages in the commit: it is not urgent."""
        self.arrived_in: set[int] = set()
        """The numbers of subqueues in which messages have come up that nobody has seen there."""
        self.first_sent = first_sent
        """The sequence number of the first of them."""
        self.marks: list[tuple[int, bytes, int]] = []
        """Kind, body and version of each record but those of new messages."""
        self.sent_with: list[NewRecord] = []
        """What else is recorded because of the new messages."""
        self.grants: list[Grant] = []
        self.open_grants: dict[tuple[ClientId, int], Grant] = {}
        """By client and subqueue."""
        self.dead_lettered = self.expired_messages = self.expired_locks = 0
        """For the metrics: how many of each there were."""
        self.granted = self.granted_bytes = 0
        """What the subqueue in hand has given, or was looked at for it: messages and bytes."""
        self.work = 0
        """How many messages the operations have sent, settled or looked at."""
        self.to_tell: list[tuple[ClientId, int]] = []
        """Clients that want to know if their demand is not met, with the subqueue."""
        self.passing: list[Reference] = []
        """References to new messages for which there is no room in memory beyond the batch."""

    @property
    def missing(self) -> list[Position]:
        """The frames that `fill` needs, ascending."""
        if not self.holes:
            return []
        return sorted(
            {
                reference.frame.position
                for messages, references in self.holes
                for message, reference in zip(messages, references, strict=True)
                if not message and reference.size
            }
        )

    def fill(self, frames: Sequence[Frame]) -> None:
        """Put messages read from the log into the holes."""
        data = {frame.position: frame.data for frame in frames}
        for messages, references in self.holes:
            for index, reference in enumerate(references):
                if not messages[index] and reference.size:
                    messages[index] = data[reference.frame.position][
                        reference.offset : reference.offset + reference.size
                    ]

    def give_up_holes(self, reason: Reason, why: str) -> None:
        """The messages cannot be read: who asked for certain ones is refused; locks are void, the partition
        goes down."""
        holes = {id(messages) for messages, _ in self.holes}
        answers: list[tuple[ClientId, Answer]] = []
        for client, answer in self.answers:
            if not isinstance(answer, Locked | Peeked) or id(answer.messages) not in holes:
                answers.append((client, answer))
            elif isinstance(answer, Peeked) or answer.deferred:
                answers.append((client, Failed(reason, why, answer.cookie)))
        self.answers = answers


_GETTERS = [(name, attrgetter(attribute)) for name, attribute in KNOWN_COLUMNS.items()]
_STATE = attrgetter("state")


def write_locked(answer: Locked, lease: Lease) -> None:
    """Write the columns of a `Locked` answer, once per batch; messages that are not in memory are empty."""
    references = lease.references
    for name, get in _GETTERS:
        setattr(answer, name, list(map(get, references)))
    nonce = lease.nonce.to_bytes(8, "big")
    answer.tokens = [number.to_bytes(8, "big") + nonce for number in answer.sequence_numbers]
    if COLUMNS:
        answer.columns = of_references(references)


def peeked(found: Sequence[Reference], cookie: object, more: bool) -> Peeked:
    """The answer that shows these messages; those that are not in memory are empty."""
    states: list[int] = list(map(_STATE, found))
    known: dict[str, list[Any]] = {name: list(map(get, found)) for name, get in _GETTERS}
    return Peeked(**known, states=states, cookie=cookie, more=more, columns=of_references(found))
