"""The mailbox of a partition: operations that wait, those on their way to the log, and whom answers reach."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from broker.operations import Answer, ClientId, Demand, Detach, Operation, Send, Sink, Watch

Waiting = tuple[ClientId, Operation, Sink, int]
"""An operation in the mailbox, and the monotonic time of its arrival."""

_MAY_BE_ANSWERED_LATER = (Demand, Watch)


class Mailbox:
    """Owned by a partition's task."""

    __slots__ = ("attached", "undecided", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[Waiting] = deque()
        self.undecided: list[Waiting] = []
        """A batch on its way to the log. If its commit fails: refused once the log was reopened, or could not
        be."""
        self.attached: dict[ClientId, Sink] = {}
        """Clients that have asked for messages: until they detach, answers may come at any time."""

    def __bool__(self) -> bool:
        return bool(self.waiting)

    @property
    def since_ms(self) -> int | None:
        """When the oldest operation that waits arrived, in monotonic time."""
        return self.waiting[0][3] if self.waiting else None

    def gather(self, operations_max: int, bytes_max: int) -> list[Waiting]:
        """Take out the operations of the next batch; they are undecided from now on."""
        mailbox = self.waiting
        batch: list[Waiting] = []
        room = bytes_max
        while mailbox and len(batch) < operations_max and room > 0:
            entry = mailbox.popleft()
            operation = entry[1]
            batch.append(entry)
            if isinstance(operation, Send):
                room -= sum(map(len, operation.messages))
        self.undecided = batch
        return batch

    def put_back(self, batch: list[Waiting], place: int) -> None:
        """The batch ends with the operation before `place`: the others wait for the next one."""
        self.waiting.extendleft(reversed(batch[place:]))
        del batch[place:]

    def note(self, client: ClientId, operation: Operation, sink: Sink) -> None:
        """The operation is about to be carried out: the client's answers may come at any time from now on, or
        do no more."""
        if isinstance(operation, _MAY_BE_ANSWERED_LATER):
            self.attached[client] = sink
        elif isinstance(operation, Detach):
            self.attached.pop(client, None)

    def deliver(self, answers: Iterable[tuple[ClientId, Answer]], batch: Iterable[Waiting]) -> None:
        """Hand out the answers of a batch, each to the client that sent an operation in it, or is
        attached."""
        sinks = {client: sink for client, _, sink, _ in batch}
        for client, answer in answers:
            sink = sinks.get(client) or self.attached.get(client)
            if sink is not None:
                sink(answer)

    def take_all(self) -> list[Waiting]:
        """Take out everything that is undecided or waits, to be refused."""
        entries = [*self.undecided, *self.waiting]
        self.undecided = []
        self.waiting.clear()
        return entries
