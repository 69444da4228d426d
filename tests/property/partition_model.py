"""The naive model of a partition: plain lists of messages, and the client that holds each of them."""

from __future__ import annotations

from dataclasses import dataclass, field

from broker.entities.descriptions import DEAD_LETTER, MAIN, TRANSFER, TRANSFER_DEAD_LETTER
from broker.identifiers import LockToken
from broker.message.changes import encode_changes, merge_changes
from broker.operations.message_states import MessageState
from protocol.codec import decode
from tests.support.partition_harness import NUMBER

CLIENTS = (1, 2, 3)
CLIENT_SET = frozenset(CLIENTS)
SUBQUEUES = (MAIN, DEAD_LETTER)
"""Those from which clients receive."""
ALL_SUBQUEUES = (*SUBQUEUES, TRANSFER_DEAD_LETTER, TRANSFER)
SESSIONS = (b"a", b"b", b"")
"""An empty session-id is a session like any other."""
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
    """Not used if the lock belongs to a session's."""
    token: LockToken
    is_of_session: bool = False
    """The lock ends with that of the message's session."""


@dataclass
class Message:
    body: bytes
    number: int
    enqueued_ms: int | None
    """Enqueued time as shown to clients; None until first seen, because it may differ from the clock."""
    sent_ms: int
    """Wall time when it was sent, or became active."""
    time_to_live_ms: int
    lives_until_ms: int
    """In monotonic time. Means nothing while the message is scheduled."""
    session: bytes | None = None
    scheduled_ms: int | None = None
    """When it becomes active, in wall time."""
    subqueue: str = MAIN
    deliveries: int = 0
    deferred: bool = False
    changed: bytes | None = None
    lock: Lock | None = None
    delayed_until_ms: int | None = None
    """It was abandoned with a delay that ends then, in monotonic time …"""
    delay_ends_ms: int | None = None
    """… and in wall time, which a restart goes by. Stays set after the end."""
    delay_may_be_over: bool = False
    """The wall clock has shown the end of the delay, so the partition may have forgotten it."""

    @property
    def is_locked(self) -> bool:
        return self.lock is not None or self.delayed_until_ms is not None

    @property
    def state(self) -> MessageState:
        if self.scheduled_ms is not None:
            return MessageState.SCHEDULED
        return MessageState.DEFERRED if self.deferred else MessageState.ACTIVE

    def expired(self, now_ms: int) -> bool:
        is_active = not self.deferred and self.scheduled_ms is None
        return self.subqueue == MAIN and is_active and self.lives_until_ms <= now_ms

    def saw_enqueued(self, enqueued_ms: int, expires_ms: int | None) -> None:
        """Check the shown times: the enqueued time never changes and is never before the clock's time, and
        the expiry follows from the time to live. A scheduled message shows the time of its schedule."""
        assert expires_ms == enqueued_ms + self.time_to_live_ms
        if self.scheduled_ms is not None:
            assert enqueued_ms == self.scheduled_ms
            return
        assert enqueued_ms == (self.enqueued_ms or enqueued_ms) >= self.sent_ms
        self.enqueued_ms = enqueued_ms


@dataclass
class Hold:
    """A locked session."""

    until_ms: int
    token: bytes
    is_shared: bool
    clients: dict[int, int]
    """Its holders, and how many messages each of them wants."""


@dataclass
class Model:
    """What the queue holds, in the plainest form."""

    messages: list[Message] = field(default_factory=list)
    demand: dict[tuple[int, str], int] = field(default_factory=dict)
    next_number: int = NUMBER << 48 | 1
    lock_ms: int = 5_000
    max_deliveries: int = 2
    dead_letter_expired: bool = False
    requires_session: bool = False
    holds: dict[bytes, Hold] = field(default_factory=dict)
    states: dict[bytes, tuple[bytes, int]] = field(default_factory=dict)
    """The state of each session, and when it was set, in wall time."""
    losers: list[int] = field(default_factory=list)
    """Clients that must be told next that they hold no session."""
    promises: dict[int, int] = field(default_factory=dict)
    """How many sequence numbers each promise has, by its first one."""
    used_promises: list[list[int]] = field(default_factory=list)
    """The numbers that transactions have used."""
    origins: dict[bytes, list[int]] = field(default_factory=dict)
    """The numbers that are kept of each source that has handed messages over."""

    def add(self, message: Message) -> None:
        """Store a message that has the next number."""
        assert message.number == self.next_number
        self.messages.append(message)
        self.use_number()

    def use_number(self) -> int:
        """Give the next number, for ever."""
        self.next_number += 1
        return self.next_number - 1

    def in_order(self, subqueue: str) -> list[Message]:
        return sorted((each for each in self.messages if each.subqueue == subqueue), key=lambda m: m.number)

    def available(self, subqueue: str) -> list[Message]:
        return [
            each
            for each in self.in_order(subqueue)
            if each.state is MessageState.ACTIVE and not each.is_locked
        ]

    def available_in(self, session: bytes) -> list[Message]:
        """What a session's holder may be given: nothing behind a message whose delay has not ended."""
        found: list[Message] = []
        for each in self.in_order(MAIN):
            if each.session != session or each.state is not MessageState.ACTIVE:
                continue
            if each.delayed_until_ms is not None:
                break
            if each.lock is None:
                found.append(each)
        return found

    @property
    def free_sessions(self) -> set[bytes]:
        return {each for each in SESSIONS if each not in self.holds and self.available_in(each)}

    def held_by(self, client: int) -> tuple[bytes, Hold] | None:
        """The session that a client holds."""
        return next(((name, hold) for name, hold in self.holds.items() if client in hold.clients), None)

    # --- time -----------------------------------------------------------------------------------------------

    def ends_ms(self, message: Message) -> int | None:
        """When a message's lock ends; None if nobody holds it."""
        if message.lock is None:
            return None
        if message.lock.is_of_session:
            assert message.session is not None
            return self.holds[message.session].until_ms
        return message.lock.until_ms

    def pass_time(self, now_ms: int, wall_ms: int) -> None:
        """Do everything that is due."""
        self.activate(now_ms, wall_ms)
        for each in list(self.messages):
            if each.delay_ends_ms is not None and each.delay_ends_ms <= wall_ms:
                each.delay_may_be_over = True
            if each.delayed_until_ms is not None and each.delayed_until_ms <= now_ms:
                each.delayed_until_ms = None
            ends_ms = self.ends_ms(each)
            if ends_ms is not None and ends_ms <= now_ms:
                self.failed_delivery(each, None)
        for name, hold in list(self.holds.items()):
            if hold.until_ms <= now_ms:
                del self.holds[name]
                self.losers += hold.clients
        for each in list(self.messages):
            if not each.is_locked and each.expired(now_ms):
                if self.dead_letter_expired:
                    self.to_dead_letter(each, "TTLExpiredException", None)
                else:
                    self.messages.remove(each)

    def activate(self, now_ms: int, wall_ms: int) -> None:
        """Scheduled messages go to the end of the queue at their time; their time to live begins."""
        due = [(m.scheduled_ms, m.number, m) for m in self.messages if m.scheduled_ms is not None]
        for at_ms, _, message in sorted(due, key=lambda row: row[:2]):
            if at_ms <= wall_ms:
                message.scheduled_ms, message.number = None, self.use_number()
                message.enqueued_ms, message.sent_ms = None, wall_ms
                message.lives_until_ms = now_ms + message.time_to_live_ms

    # --- settlements ----------------------------------------------------------------------------------------

    def failed_delivery(
        self, message: Message, changed: bytes | None, delay: tuple[int, int] | None = None
    ) -> None:
        """`delay`: when a delay ends, in monotonic and in wall time."""
        message.lock = None
        message.deliveries += message.subqueue == MAIN
        if message.subqueue == MAIN and message.deliveries >= self.max_deliveries:
            self.to_dead_letter(message, "MaxDeliveryCountExceeded", changed)
            return
        message.changed = merge_changes(message.changed, changed)
        if delay is not None:
            message.delayed_until_ms, message.delay_ends_ms = delay
            message.delay_may_be_over = False

    def defer(self, message: Message, changed: bytes | None) -> None:
        message.lock = None
        message.deliveries += message.subqueue == MAIN
        message.deferred = True
        message.changed = merge_changes(message.changed, changed)

    def to_dead_letter(self, message: Message, reason: str | None, changed: bytes | None) -> None:
        message.lock, message.deferred, message.subqueue = None, False, DEAD_LETTER
        message.changed = merge_changes(message.changed, changed)
        if reason is not None:
            message.changed = merge_changes(message.changed, encode_changes({"DeadLetterReason": reason}))

    def to_transfer_dead_letter(self, message: Message, changed: bytes | None) -> None:
        message.lock, message.deferred, message.subqueue = None, False, TRANSFER_DEAD_LETTER
        message.changed = merge_changes(message.changed, changed)

    def find(self, token: LockToken) -> Message | None:
        return next(
            (each for each in self.messages if each.lock is not None and each.lock.token == token), None
        )

    def forget_volatile(self) -> None:
        """Nothing is locked any more, but by delays that `PartitionFaults` looks at."""
        self.demand.clear()
        self.holds.clear()
        self.promises.clear()
        self.used_promises.clear()
        for each in self.messages:
            each.lock = each.delayed_until_ms = None


def properties(changed: bytes | None) -> dict[str, object]:
    """Changed properties as a dictionary, without the description of a dead-lettering."""
    found = dict(decode(changed)[0]) if changed is not None else {}
    found.pop("DeadLetterErrorDescription", None)
    return found
