"""The stored messages that several references of a topic's partition share. Pure.

A message that was published to several subscriptions is in the log once, and in memory at most once. Its
references have the same sequence number in different subqueues, so the number identifies it. Messages with a
single reference need not be known here: nothing is counted for them beyond what the reference says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from broker.partition._untracked import keep_untracked, untrack
from broker.partition.chunked_table import ChunkedTable
from broker.partition.references import Reference
from broker.partition.subqueue import Subqueue

BODY_BYTES = 256
"""The memory that a shared message takes here besides its payload, about."""
DROPPED_AT_ONCE = 1024
"""Messages that one step of `drop` frees: less than a millisecond."""


@keep_untracked
class _Body:
    __slots__ = ("in_memory", "payload", "references", "size")

    def __init__(self, size: int, references: int, payload: bytes) -> None:
        self.size, self.references, self.payload = size, references, payload
        self.in_memory = references if payload else 0
        """How many of the references have the payload."""
        untrack([self])


class Bodies:
    """Owned by the partition's messages."""

    __slots__ = ("_by_number", "shared_bytes", "shared_count")

    def __init__(self) -> None:
        self._by_number: ChunkedTable[_Body] = ChunkedTable()
        self.shared_bytes = 0
        """By how much the sizes of all references together exceed what is stored."""
        self.shared_count = 0
        """By how many the references exceed the messages that they share."""

    def __bool__(self) -> bool:
        return self._by_number.count > 0

    @property
    def state_bytes(self) -> int:
        """Memory used, without payloads."""
        return BODY_BYTES * self._by_number.count

    def is_shared(self, reference: Reference) -> bool:
        """Whether other references have the same message."""
        body = self._by_number.get(reference.sequence_number)
        return body is not None and body.references > 1

    def add(self, number: int, size: int, references: int, payload: bytes = b"") -> None:
        """A message has just got references, all that it gets or some of several. `payload` is empty if
        memory does not keep it."""
        body = self._by_number.get(number)
        if body is None:
            self._by_number[number] = _Body(size, references, payload)
            references -= 1
        else:
            body.references += references
            if payload:
                body.in_memory += references
        self.shared_bytes += references * size
        self.shared_count += references

    def found(self, references: Iterable[Reference]) -> None:
        """Add references that were read back. Their messages may have others already."""
        for reference in references:
            body = self._by_number.get(reference.sequence_number)
            if body is None:
                self._by_number[reference.sequence_number] = _Body(reference.size, 1, b"")
            else:
                body.references += 1
                self.shared_bytes += body.size
                self.shared_count += 1

    def forget(self, references: Iterable[Reference]) -> int:
        """References are gone, and let go of their payloads. Returns how many bytes leave memory."""
        find = self._by_number.finder()
        gone: list[int] = []
        freed = 0
        for reference in references:
            payload, reference.payload = reference.payload, b""
            body = find(reference.sequence_number)
            if body is None:
                freed += len(payload)
                continue
            body.references -= 1
            if body.references:
                self.shared_bytes -= body.size
                self.shared_count -= 1
            else:
                gone.append(reference.sequence_number)
            if payload:
                body.in_memory -= 1
                freed += self._left(body)
        self._by_number.pop_each(gone)
        return freed

    def payload_of(self, reference: Reference) -> bytes:
        """The payload, if another reference has it in memory; this one gets it too."""
        body = self._by_number.get(reference.sequence_number)
        if body is None or not body.payload:
            return b""
        body.in_memory += 1
        reference.payload = body.payload
        return body.payload

    def take(self, reference: Reference, payload: bytes) -> None:
        """Memory keeps the payload of a reference from now on; no other reference has it."""
        reference.payload = payload
        body = self._by_number.get(reference.sequence_number)
        if body is not None:
            body.payload, body.in_memory = payload, 1

    def evict(self, reference: Reference, occupied: Iterable[Subqueue]) -> int:
        """All references to a message let go of its payload. Returns how many bytes leave memory."""
        body = self._by_number.get(reference.sequence_number)
        payload, reference.payload = reference.payload, b""
        if body is None or not payload:
            return len(payload)
        for subqueue in occupied:
            other = subqueue.references.get(reference.sequence_number)
            if other is not None:
                other.payload = b""
        body.in_memory = 0
        return self._left(body)

    def _left(self, body: _Body) -> int:
        if body.in_memory or not body.payload:
            return 0
        size, body.payload = len(body.payload), b""
        return size

    def drop(self) -> Iterator[None]:
        """Free everything, in steps. This object is no longer used."""
        while self._by_number.pop_some(DROPPED_AT_ONCE):
            yield

    def check(self, references: Iterable[Reference]) -> None:
        """Assert that everything agrees with all references of the partition."""
        count: Counter[int] = Counter()
        in_memory: Counter[int] = Counter()
        for reference in references:
            count[reference.sequence_number] += 1
            in_memory[reference.sequence_number] += bool(reference.payload)
        assert {number for number, each in count.items() if each > 1} <= set(self._by_number)
        for number, body in self._by_number.items():
            assert (body.references, body.in_memory) == (count[number], in_memory[number])
            assert bool(body.payload) == bool(body.in_memory)
        assert self.shared_count == sum(body.references - 1 for body in self._by_number.values())
        assert self.shared_bytes == sum(
            (body.references - 1) * body.size for body in self._by_number.values()
        )
