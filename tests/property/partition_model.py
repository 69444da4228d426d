"""The naive model of a partition: plain lists of messages, and the client that holds each of them."""

from __future__ import annotations

from dataclasses import dataclass, field

from broker.entities.descriptions import DEAD_LETTER, MAIN
from broker.message.changes import encode_changes, merge_changes
from broker.operations import LockToken
from protocol.codec import decode
from tests.support.partition_harness import NUMBER

CLIENTS = (1, 2, 3)
CLIENT_SET = frozenset(CLIENTS)
SUBQUEUES = (MAIN, DEAD_LETTER)
LOCK_MS = 5_000
MAX_DELIVERIES = 2
TTL_DEFAULT_MS = 60_000
CHANGES = [
    None,
    encode_changes({"colour": "red"}),
    encode_changes({"colour": None, "size": 3}),
    encode_changes({"note": "x" * 300}),
]


@dataclass
class Lock:
    client: int
    until_ms: int
    token: LockToken


@dataclass
class Message:
    body: bytes
    number: int
    enqueued_ms: int | None
    """Enqueued time as shown to clients; None until first seen, because it may differ from the clock."""
    sent_ms: int
    """Wall time when it was sent."""
    time_to_live_ms: int
    lives_until_ms: int
    """In monotonic time."""
    subqueue: str = MAIN
    deliveries: int = 0
    deferred: bool = False
    changed: bytes | None = None
    lock: Lock | None = None

    def expired(self, now_ms: int) -> bool:
        return self.subqueue == MAIN and not self.deferred and self.lives_until_ms <= now_ms

    def saw_enqueued(self, enqueued_ms: int, expires_ms: int | None) -> None:
        """Check the shown times: the enqueued time never changes and is never before the clock's time, and
        the expiry follows from the time to live."""
        assert enqueued_ms == (self.enqueued_ms or enqueued_ms) >= self.sent_ms
        assert expires_ms == enqueued_ms + self.time_to_live_ms
        self.enqueued_ms = enqueued_ms


@dataclass
class Model:
    """What the queue holds, in the plainest form."""

    messages: list[Message] = field(default_factory=list)
    demand: dict[tuple[int, str], int] = field(default_factory=dict)
    dead_letter_expired: bool = False
    next_number: int = NUMBER << 48 | 1

    def available(self, subqueue: str) -> list[Message]:
        found = [
            each
            for each in self.messages
            if each.subqueue == subqueue and not each.deferred and each.lock is None
        ]
        return sorted(found, key=lambda each: each.number)

    def pass_time(self, now_ms: int) -> None:
        for each in list(self.messages):
            if each.lock is not None and each.lock.until_ms <= now_ms:
                self.failed_delivery(each, None)
        for each in list(self.messages):
            if each.lock is None and each.expired(now_ms):
                if self.dead_letter_expired:
                    self.to_dead_letter(each, "TTLExpiredException", None)
                else:
                    self.messages.remove(each)

    def failed_delivery(self, message: Message, changed: bytes | None) -> None:
        message.lock = None
        message.deliveries += message.subqueue == MAIN
        if message.subqueue == MAIN and message.deliveries >= MAX_DELIVERIES:
            self.to_dead_letter(message, "MaxDeliveryCountExceeded", changed)
        else:
            message.changed = merge_changes(message.changed, changed)

    def to_dead_letter(self, message: Message, reason: str | None, changed: bytes | None) -> None:
        message.lock, message.deferred, message.subqueue = None, False, DEAD_LETTER
        message.changed = merge_changes(message.changed, changed)
        if reason is not None:
            message.changed = merge_changes(message.changed, encode_changes({"DeadLetterReason": reason}))

    def find(self, token: LockToken) -> Message | None:
        return next(
            (each for each in self.messages if each.lock is not None and each.lock.token == token), None
        )

    def forget_volatile(self) -> None:
        self.demand.clear()
        for each in self.messages:
            each.lock = None


def properties(changed: bytes | None) -> dict[str, object]:
    """Changed properties as a dictionary, without the description of a dead-lettering."""
    found = dict(decode(changed)[0]) if changed is not None else {}
    found.pop("DeadLetterErrorDescription", None)
    return found
