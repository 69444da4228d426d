"""What the clients of one crash round know: what they sent, what the broker acknowledged, what they received,
what the broker confirmed.

A *life* is one run of the broker process, numbered from 0; a connection belongs to the life in which it was
made. Many threads add entries, each before its consequence is possible: a message is recorded as received
before it is settled. A missing outcome is unknown and may turn out either way; nothing is ever sent twice.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from dataclasses import dataclass, field


@dataclass(slots=True, frozen=True)
class Receipt:
    """One delivery as a client saw it."""

    name: str
    life: int
    sequence_number: int


@dataclass
class QueueLedger:
    """The ledger of one queue. Names are unique; a name `sender/key/number` gives a message's sender, its key
    and its place in the order of sending.
    """

    attempted: set[str] = field(default_factory=set)
    acknowledged: set[str] = field(default_factory=set)
    receipts: list[Receipt] = field(default_factory=list)
    removals_asked: set[str] = field(default_factory=set)
    """Messages that the client has asked to complete or dead-letter, whether or not the broker received the
    request.
    """
    removed: dict[str, int] = field(default_factory=dict)
    """Name → the life in which the broker confirmed it."""
    dead_lettering: set[str] = field(default_factory=set)
    """Messages in `removals_asked` that may be in the dead-letter queue."""
    dead_lettered: set[str] = field(default_factory=set)
    """Messages that must be in the dead-letter queue, since the broker has confirmed it."""
    due_ms: dict[str, int] = field(default_factory=dict)
    """When scheduled messages become active."""
    errors: list[str] = field(default_factory=list)
    """Errors noticed as they happened."""
    _holders: dict[str, int] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def sending(self, names: list[str]) -> None:
        """Record messages about to be written to the socket."""
        with self._lock:
            self.attempted.update(names)

    def scheduling(self, names: list[str], due_ms: int) -> None:
        """Record when messages that are about to be sent may arrive."""
        with self._lock:
            self.due_ms.update(dict.fromkeys(names, due_ms))

    def sent(self, names: list[str]) -> None:
        """Record messages the broker has accepted."""
        with self._lock:
            self.acknowledged.update(names)

    def received(self, name: str, life: int, sequence_number: int) -> None:
        """Record a delivered message."""
        with self._lock:
            if time.time() * 1000 < self.due_ms.get(name, 0):
                self.errors.append(f"{name} came before its time")
            if name not in self.attempted:
                self.errors.append(f"{name} was never sent")
            if name in self.removed and self.removed[name] <= life:
                self.errors.append(
                    f"{name} came again in life {life}: its removal was confirmed in life "
                    f"{self.removed[name]}"
                )
            if self._holders.get(name) == life:
                self.errors.append(
                    f"{name} was delivered in life {life} to a second receiver while a first one held it"
                )
            self._holders[name] = life
            self.receipts.append(Receipt(name, life, sequence_number))

    def giving_back(self, name: str) -> None:
        """Record a message about to be abandoned."""
        with self._lock:
            self._holders.pop(name, None)

    def removing(self, name: str, *, dead_letter: bool = False) -> None:
        """Record a message about to be completed or dead-lettered."""
        with self._lock:
            self.removals_asked.add(name)
            if dead_letter:
                self.dead_lettering.add(name)

    def confirmed(self, name: str, life: int, *, dead_letter: bool = False) -> None:
        """Record that the broker settled the removal."""
        with self._lock:
            self.removed[name] = life
            if dead_letter:
                self.dead_lettered.add(name)

    # --- at the end of a round ------------------------------------------------------------------------------

    def problems(self) -> list[str]:
        """Everything wrong once the queue has been drained; empty if all is well."""
        found = list(self.errors)
        found += [
            f"{name} was acknowledged and is lost" for name in sorted(self.acknowledged - self.removals_asked)
        ]
        numbers: dict[str, set[int]] = defaultdict(set)
        names: dict[int, set[str]] = defaultdict(set)
        for receipt in self.receipts:
            numbers[receipt.name].add(receipt.sequence_number)
            names[receipt.sequence_number].add(receipt.name)
        found += [
            f"{name} had the sequence numbers {sorted(each)}"
            for name, each in numbers.items()
            if len(each) > 1
        ]
        found += [
            f"the sequence number {number} was given to {sorted(each)}"
            for number, each in names.items()
            if len(each) > 1
        ]
        found += self._order_problems({name: min(each) for name, each in numbers.items()})
        return found

    def _order_problems(self, numbers: dict[str, int]) -> list[str]:
        """Check that the messages of a key are in one partition, in the order of sending."""
        found = []
        by_key: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for name, sequence_number in numbers.items():
            key, sent_as = key_of(name)
            if key:
                by_key[key].append((sent_as, sequence_number))
        for key, pairs in by_key.items():
            placed = [sequence_number for _, sequence_number in sorted(pairs)]
            if placed != sorted(placed):
                found.append(f"the messages of {key} are not in the order of sending: {placed}")
            if len({sequence_number >> 48 for sequence_number in placed}) > 1:
                found.append(f"the messages of {key} are in several partitions")
        return found

    def delivery_order_problems(self) -> list[str]:
        """With one receiver that gives nothing back: check that within each life, each key's messages come in
        the order of sending.
        """
        found = []
        latest: dict[tuple[int, str], int] = {}
        for receipt in self.receipts:
            key, sent_as = key_of(receipt.name)
            if latest.get((receipt.life, key), -1) >= sent_as:
                found.append(
                    f"{receipt.name} was delivered behind number {latest[receipt.life, key]} in life "
                    f"{receipt.life}"
                )
            latest[receipt.life, key] = sent_as
        return found


def name_of(sender: str, key: str, number: int) -> str:
    """The name of one message; `key` is empty for a message without a key."""
    return f"{sender}/{key}/{number:06d}"


def key_of(name: str) -> tuple[str, int]:
    """The key in a name (empty for none), and the number."""
    sender, key, number = name.split("/")
    return (f"{sender}/{key}" if key else ""), int(number)
