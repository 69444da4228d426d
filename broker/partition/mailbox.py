"""A partition's mailbox: waiting operations, the cycle being committed, and the clients to be answered."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice

from broker.identifiers import ClientId
from broker.operations.browsing import Watch
from broker.operations.general import Detach
from broker.operations.interface import Answer, Operation, Sink
from broker.operations.receiving import Demand, Recalled, Withdraw, Withdrawn
from broker.operations.selecting import WatchReturned
from broker.operations.sending import Send
from broker.operations.sessions import AcceptSession, WatchSessions
from broker.operations.settling import Abandon, Complete, GiveBack, Release, RenewLocks
from broker.operations.streams import SendSinkBatch
from broker.operations.transactions import Transact
from broker.operations.transfers import HandOver
from broker.partition.openings import Urgency, urgency_of
from broker.send_lists import add_to

Waiting = tuple[ClientId, Operation, Sink, int]
"""An operation in the mailbox, with its client, its sink and its arrival in monotonic time (ms)."""

GATHERED_MESSAGES = 64
"""From this many on, a cycle costs more for its messages than for itself."""

GATHERED_OPERATIONS = 64
"""Where more operations wait, nobody looks at all of them with each one that comes."""

ASKED_AT_ONCE = 256
"""How many demands, withdrawals, answers to recalls, watches, requests for sessions and departures a cycle
takes. With its answer, each takes the event loop some 5 to 10 µs, and a client that receives from 16
partitions with thousands of links makes tens of thousands at once."""

SETTLED_TOGETHER = 2
"""A client that settles at least this many messages at a time waits for none of them alone."""
SETTLED_PER_SENT = 4
"""To settle this many messages takes about as long as to store one."""

Patient = Callable[[ClientId, Demand], bool]
"""Whether a demand can wait, because there is nothing to give the client yet."""

_WITH_MESSAGES = (Send, HandOver)
_SETTLE = (Complete, Abandon, RenewLocks, Release, GiveBack, Recalled)
_ASK = (Demand, Withdraw)
_OF_RECEIVERS = (*_ASK, Recalled, Detach, Watch, AcceptSession, WatchSessions)
_JOINED_PAST = (Demand, Complete)
USUALLY_SHORT = frozenset((Send, *_SETTLE, *_ASK))
"""Operations whose cycles the task is seldom needed for (`Mailbox.is_short`)."""
_MAY_BE_ANSWERED_LATER = (Demand, Watch, AcceptSession, WatchSessions, WatchReturned)


class Mailbox:
    """The operations waiting for one partition. Owned by the partition's task."""

    __slots__ = ("accepting", "attached", "undecided", "waiting", "withdrawing")

    def __init__(self) -> None:
        self.waiting: deque[Waiting] = deque()
        self.undecided: list[Waiting] = []
        """The cycle being committed. If the commit fails, its operations are refused after the log has been
        reopened or could not be."""
        self.attached: dict[ClientId, Sink] = {}
        """Clients with demand, a watch or a session. They may be answered at any time until they detach."""
        self.accepting: dict[ClientId, Waiting] = {}
        """Clients that have asked for a session, and what they asked: the answer may take several cycles."""
        self.withdrawing: dict[ClientId, Waiting] = {}
        """Clients that have withdrawn, and their operation, until they hear `Withdrawn`."""

    def __bool__(self) -> bool:
        return bool(self.waiting)

    @property
    def since_ms(self) -> int | None:
        """When the oldest waiting operation arrived, in monotonic time; None if none waits."""
        return self.waiting[0][3] if self.waiting else None

    def join(self, more: Send, client: ClientId, cookie: object) -> bool:
        """Add messages to the client's send with this cookie if it waits, and nothing has come after it but
        what receivers want. Returns whether they were added."""
        for last_client, last, _, _ in islice(reversed(self.waiting), GATHERED_OPERATIONS):
            if isinstance(last, Send):
                if last_client != client or last.cookie != cookie:
                    return False
                add_to(last, more)
                return True
            if not isinstance(last, _JOINED_PAST):
                return False
        return False

    def can_gather(self, is_patient: Patient) -> bool:
        """Whether only a little waits that others can join: a few messages to be sent, a few that a client
        settles together, and demand that can wait. Then a cycle would cost more than it does for them. Looks
        at GATHERED_OPERATIONS at most."""
        messages = settled = 0
        if len(self.waiting) > GATHERED_OPERATIONS:
            return False
        for client, operation, _, _ in self.waiting:
            if isinstance(operation, Send):
                messages += len(operation.messages)
            elif isinstance(operation, Complete):
                if len(operation.tokens) < SETTLED_TOGETHER:
                    return False
                settled += len(operation.tokens)
            elif not isinstance(operation, Demand) or not is_patient(client, operation):
                return False
            if messages + settled // SETTLED_PER_SENT >= GATHERED_MESSAGES:
                return False
        return bool(self.waiting)

    @property
    def has_sends(self) -> bool:
        """Whether messages wait to be sent."""
        for _, operation, _, _ in self.waiting:  # noqa: SIM110 (asked for each message that comes alone)
            if isinstance(operation, Send):
                return True
        return False

    def has_only_sends(self, operations_max: int, messages_max: int) -> bool:
        """Whether nothing waits but messages to be sent, and no more than so many."""
        messages = 0
        for _, operation, _, _ in self.waiting:
            if not isinstance(operation, Send):
                return False
            messages += len(operation.messages)
        return 0 < messages <= messages_max and len(self.waiting) <= operations_max

    def is_short(self, operations_max: int, messages_max: int) -> bool:
        """Whether the first operations, as many as a cycle takes, only send messages, ask for some, settle
        some, give some back or renew their locks, and no more than so many."""
        messages = asked = 0
        for _, operation, _, _ in islice(self.waiting, operations_max):
            if isinstance(operation, Send):
                messages += len(operation.messages)
            elif isinstance(operation, _SETTLE):
                messages += len(operation.tokens)
            elif not isinstance(operation, _ASK):
                return False
            else:
                asked += 1
                if asked == ASKED_AT_ONCE:
                    break
        return bool(self.waiting) and messages <= messages_max

    def urgency(self, for_receivers: Urgency) -> Urgency:
        """How urgent it is to open the partition for what waits. `for_receivers`: if that is receivers."""
        return min(
            [urgency_of(operation, for_receivers) for _, operation, _, _ in self.waiting],
            default=for_receivers,
        )

    def gather(self, operations_max: int, bytes_max: int) -> list[Waiting]:
        """Take out the operations of the next cycle and remember them as undecided."""
        mailbox = self.waiting
        cycle: list[Waiting] = []
        room, asked = bytes_max, 0
        while mailbox and len(cycle) < operations_max and room > 0:
            entry = mailbox.popleft()
            operation = entry[1]
            cycle.append(entry)
            if isinstance(operation, _WITH_MESSAGES):
                room -= sum(map(len, operation.messages))
            elif isinstance(operation, _OF_RECEIVERS):
                asked += 1
                if asked == ASKED_AT_ONCE:
                    break
            elif isinstance(operation, SendSinkBatch):
                room -= sum(map(len, operation.send.messages))
            elif isinstance(operation, Transact):
                room -= sum(map(len, operation.send.messages))
                for more in (operation.scheduled, operation.transfers):
                    room -= 0 if more is None else sum(map(len, more.messages))
        self.undecided = cycle
        return cycle

    def put_back(self, cycle: list[Waiting], place: int) -> None:
        """End the cycle before the operation at `place`: that operation and all later ones wait for the next
        cycle."""
        if place < len(cycle):
            self.waiting.extendleft(reversed(cycle[place:]))
            del cycle[place:]

    def remember(self, client: ClientId, operation: Operation, sink: Sink) -> None:
        """Before an operation is carried out, remember its sink if the client may get answers later
        (`_MAY_BE_ANSWERED_LATER`). Forget the sink at a `Detach`."""
        if isinstance(operation, _MAY_BE_ANSWERED_LATER):
            self.attached[client] = sink
            if isinstance(operation, AcceptSession):
                self.accepting[client] = client, operation, sink, 0
        elif isinstance(operation, Withdraw):
            self.withdrawing[client] = client, operation, sink, 0
        elif isinstance(operation, Detach):
            self.attached.pop(client, None)
            self.withdrawing.pop(client, None)

    def deliver(self, answers: Iterable[tuple[ClientId, Answer]], cycle: Iterable[Waiting]) -> None:
        """Send each answer to its client, if the client has an operation in the cycle or is attached."""
        sinks = {client: sink for client, _, sink, _ in cycle}
        for client, answer in answers:
            sink = sinks.get(client) or self.attached.get(client)
            if sink is not None:
                sink(answer)
            if self.accepting:
                self.accepting.pop(client, None)
            if self.withdrawing and isinstance(answer, Withdrawn):
                self.withdrawing.pop(client, None)

    def take_all(self) -> list[Waiting]:
        """Take out all operations that are not answered yet, so that they can be refused."""
        entries = [*self.undecided, *self.waiting]
        if self.accepting or self.withdrawing:
            taken = {(client, id(operation)) for client, operation, _, _ in entries}
            late = [*self.accepting.values(), *self.withdrawing.values()]
            entries[:0] = [entry for entry in late if (entry[0], id(entry[1])) not in taken]
            self.accepting.clear()
            self.withdrawing.clear()
        self.undecided = []
        self.waiting.clear()
        return entries


def messages_sent(cycle: Iterable[Waiting]) -> int:
    """How many messages the sends of a cycle have."""
    messages = 0
    for _, operation, _, _ in cycle:
        if isinstance(operation, Send):
            messages += len(operation.messages)
    return messages


def sends_from(cycle: Sequence[Waiting], place: int) -> list[tuple[ClientId, Send]]:
    """The sends that follow one another in a cycle, from this place on."""
    sends: list[tuple[ClientId, Send]] = []
    for client, operation, _, _ in islice(cycle, place, None):
        if not isinstance(operation, Send):
            break
        sends.append((client, operation))
    return sends
