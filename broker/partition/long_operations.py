"""A settlement or renewal of more messages than one cycle may handle: one part per cycle, and a common
answer. Pure."""

from __future__ import annotations

from dataclasses import replace

from broker.base.errors import Reason
from broker.operations.interface import Answer
from broker.operations.settling import Abandon, Complete, DeadLetter, Defer, Renewed, RenewLocks, Settled

Divisible = Complete | Abandon | Defer | DeadLetter | RenewLocks


class Parts:
    """One such operation in progress. Each part is durable by itself; the client is answered after the last
    one."""

    __slots__ = ("_failures", "_locked_until_ms", "done", "operation")

    def __init__(self, operation: Divisible) -> None:
        self.operation = operation
        self.done = 0
        """Tokens processed so far."""
        self._failures: dict[int, Reason] = {}
        self._locked_until_ms: int | None = None

    @property
    def is_done(self) -> bool:
        """Whether all tokens are processed."""
        return self.done >= len(self.operation.tokens)

    def next(self, count: int) -> Divisible:
        """The operation for the next `count` tokens."""
        return replace(self.operation, tokens=self.operation.tokens[self.done : self.done + count])

    def add(self, part: Divisible, answer: Answer) -> None:
        """A part was carried out, with this answer."""
        assert isinstance(answer, Settled | Renewed)
        if isinstance(answer, Renewed) and self._locked_until_ms is None:
            self._locked_until_ms = answer.locked_until_ms
        for place, reason in answer.failures.items():
            self._failures[self.done + place] = reason
        self.done += len(part.tokens)

    def refuse_rest(self, reason: Reason) -> None:
        """The next part was refused: all remaining tokens fail, but earlier parts stay in
        effect."""
        total = len(self.operation.tokens)
        self._failures |= dict.fromkeys(range(self.done, total), reason)
        self.done = total

    def answer(self) -> Answer:
        """The answer to the whole operation. Locks renewed by later parts last slightly longer than it
        says."""
        if self._locked_until_ms is not None:
            return Renewed(self._locked_until_ms, self.operation.cookie, self._failures)
        return Settled(self.operation.cookie, self._failures)
