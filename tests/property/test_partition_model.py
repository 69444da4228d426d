"""Check the partition against a naive model: random operations, clock steps, restarts, failed commits, full
disks, compaction.

The partition runs through its task (`PartitionTask.step`) on a log in memory. The model is plain lists: each
message, and the client that holds it. Where the partition has a choice (which client it serves first), the
model checks that the choice was allowed: the oldest available messages go to a client that wants them, and no
message stays while a client waits for it.

`make test` runs the same examples each time; `make simulate` runs many more, from a seed that it draws. A
failure prints the line that replays it:

    MODEL_SEED=123 make test ARGS=tests/property/test_partition_model.py

MODEL_EXAMPLES and MODEL_STEPS make a run longer.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass, field

import hypothesis
import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from broker.base.clock import wall_ahead_ms
from broker.base.errors import Reason
from broker.entities.descriptions import DEAD_LETTER, MAIN, MESSAGE_OVERHEAD_BYTES, QueueSettings
from broker.message.changes import encode_changes, merge_changes
from broker.operations import (
    Abandon,
    Answer,
    Complete,
    DeadLetter,
    Defer,
    Delete,
    Deleted,
    Demand,
    Detach,
    Failed,
    Locked,
    LockToken,
    MessageState,
    Operation,
    Peek,
    Peeked,
    Recall,
    Recalled,
    ReceiveDeferred,
    Release,
    Renewed,
    RenewLocks,
    Send,
    Sent,
    Settled,
    Unavailable,
    Unmet,
    Withdraw,
    Withdrawn,
    partition_of,
)
from broker.partition.batch_bounds import Bounds
from broker.partition.clock_settings import TOLERANCE_MS
from broker.partition.task import Health, TaskLimits
from broker.partition.upkeep import UpkeepLimits
from protocol.codec import decode
from storage.errors import CommitFailed
from tests.support.partition_harness import NUMBER, Harness

EXAMPLES = int(os.environ.get("MODEL_EXAMPLES", "250"))
STEPS = int(os.environ.get("MODEL_STEPS", "80"))
SEED = int(os.environ.get("MODEL_SEED", "1"))

CLIENTS = (1, 2, 3)
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


class PartitionMachine(RuleBasedStateMachine):
    """Each rule runs one batch of the partition and applies the same operations to the model."""

    @initialize(
        payload_bytes=st.sampled_from([0, 4_000, 1 << 20]),
        dead_letter_expired=st.booleans(),
        small_log=st.booleans(),
        granted=st.sampled_from([600, 1 << 20]),
    )
    def start(self, payload_bytes: int, dead_letter_expired: bool, small_log: bool, granted: int) -> None:
        hypothesis.note(
            f"replay: MODEL_SEED={SEED} MODEL_EXAMPLES={EXAMPLES} MODEL_STEPS={STEPS} make test "
            "ARGS=tests/property/test_partition_model.py"
        )
        self.loop = asyncio.new_event_loop()
        upkeep = (
            UpkeepLimits(checkpoint_bytes=3_000, garbage_bytes_min=700, relocation_bytes=500)
            if small_log
            else UpkeepLimits()
        )
        self.harness = Harness(
            QueueSettings(
                lock_duration_ms=LOCK_MS,
                max_delivery_count=MAX_DELIVERIES,
                default_time_to_live_ms=TTL_DEFAULT_MS,
                dead_lettering_on_expiration=dead_letter_expired,
            ),
            payload_bytes=payload_bytes,
            segment_bytes=1_000 if small_log else 1 << 30,
            limits=TaskLimits(bounds=Bounds(granted_bytes_max=granted, expired_max=3), upkeep=upkeep),
        )
        self.model = Model(dead_letter_expired=dead_letter_expired)
        self.tokens_seen: set[LockToken] = set()
        self.lost_tokens: list[LockToken] = []
        self.bodies = 0
        self.stepped_back = False
        self.recalls: list[tuple[int, str]] = []
        self.leaving: set[tuple[int, str]] = set()

    def teardown(self) -> None:
        if hasattr(self, "loop"):
            self.loop.close()

    # --- driving both ---------------------------------------------------------------------------------------

    def run_batch(self, operations: Sequence[tuple[int, Operation]]) -> dict[int, list[Answer]]:
        """Run one batch of the partition. Take up answers to earlier operations; return the rest by
        client."""
        self.model.pass_time(self.harness.clock.monotonic_ms())
        for client, operation in operations:
            self.harness.post(client, operation)
        self.loop.run_until_complete(self.harness.settle())
        left: dict[int, list[Answer]] = {}
        for client in list(self.harness.received):
            for answer in self.harness.take(client):
                match answer:
                    case Locked() if not answer.deferred:
                        self.saw_locked(client, answer)
                    case Recall():
                        self.recalls.append((client, answer.subqueue))
                    case Withdrawn():
                        self.leaving.discard((client, answer.subqueue))
                        left.setdefault(client, []).append(answer)
                    case _:
                        left.setdefault(client, []).append(answer)
        partition = self.harness.task._partition
        for each in self.model.messages:
            if each.enqueued_ms is None and partition is not None:
                reference = partition.messages.find(each.subqueue).references[each.number]
                each.saw_enqueued(reference.enqueued_at_ms, reference.expires_at_ms)
        return left

    def one(self, client: int, operation: Operation) -> Answer:
        answers = self.run_batch([(client, operation)])
        assert answers.keys() <= CLIENT_SET and len(answers.get(client, [])) >= 1, answers
        return answers[client][0]

    def catch_up(self, client: int) -> None:
        """Have the log opened and overdue work done: each batch enforces the time to live of a bounded number
        of messages."""
        self.one(client, Peek(MAIN, 0, 1))

    def saw_locked(self, client: int, locked: Locked) -> None:
        """Check a grant: the oldest available messages, to a client that wants them, complete and as the
        model knows them."""
        count = len(locked.tokens)
        key = (client, locked.subqueue)
        wanted = self.model.demand.get(key, 0)
        assert 0 < count <= wanted, "more than was asked for"
        self.model.demand[key] = wanted - count
        self.check_columns(locked)
        for index, number in enumerate(locked.sequence_numbers):
            message = next(each for each in self.model.available(locked.subqueue) if each.number == number)
            self.lock(client, message, locked, index)

    def lock(self, client: int, message: Message, locked: Locked, index: int) -> None:
        now_ms = self.harness.clock.monotonic_ms()
        token = locked.tokens[index]
        assert token not in self.tokens_seen and token[:8] == message.number.to_bytes(8, "big")
        self.tokens_seen.add(token)
        assert locked.locked_until_ms == now_ms + LOCK_MS
        assert not message.expired(now_ms)
        assert locked.messages[index] == message.body
        message.saw_enqueued(locked.enqueued_at_ms[index], locked.expires_at_ms[index])
        assert self.stepped_back or message.enqueued_ms == message.sent_ms
        assert locked.delivery_counts[index] == message.deliveries
        assert properties(locked.changed[index]) == properties(message.changed)
        message.lock = Lock(client, locked.locked_until_ms, token)

    @staticmethod
    def check_columns(locked: Locked) -> None:
        columns = (
            locked.sequence_numbers,
            locked.messages,
            locked.changed,
            locked.delivery_counts,
            locked.expires_at_ms,
        )
        assert {len(column) for column in (*columns, locked.enqueued_at_ms)} == {len(locked.tokens)}
        assert locked.partition == NUMBER and all(
            partition_of(number) == NUMBER for number in locked.sequence_numbers
        )

    def someone_holds(self) -> bool:
        return hasattr(self, "model") and any(each.lock is not None for each in self.model.messages)

    def held(self, client: int) -> list[Message]:
        return [each for each in self.model.messages if each.lock is not None and each.lock.client == client]

    def pick(self, data: st.DataObject, client: int) -> list[LockToken]:
        """Pick some tokens of this client or of another (a token is valid whoever presents it), sometimes
        with an invalid one."""
        held = self.held(client) or self.model.messages
        tokens = [each.lock.token for each in held if each.lock is not None]
        chosen = (
            data.draw(st.lists(st.sampled_from(tokens), unique=True, min_size=1, max_size=4))
            if tokens
            else []
        )
        if self.lost_tokens and data.draw(st.integers(0, 4)) == 0:
            chosen.append(data.draw(st.sampled_from(self.lost_tokens)))
        if data.draw(st.integers(0, 9)) == 0:
            chosen.append(data.draw(st.sampled_from([b"", bytes(16), b"\xff" * 16, bytes(40)])))
        return chosen

    def expected_failures(self, tokens: Sequence[LockToken]) -> dict[int, Reason]:
        self.model.pass_time(self.harness.clock.monotonic_ms())
        return {
            index: Reason.LOCK_LOST for index, token in enumerate(tokens) if self.model.find(token) is None
        }

    def give_up(self, message: Message) -> None:
        if message.lock is not None:
            self.lost_tokens.append(message.lock.token)
            message.lock = None

    # --- rules ----------------------------------------------------------------------------------------------

    @rule(
        client=st.sampled_from(CLIENTS),
        count=st.integers(1, 5),
        size=st.sampled_from([1, 20, 400]),
        ttls=st.one_of(
            st.none(), st.lists(st.sampled_from([None, 1, 3_000, 90_000]), min_size=5, max_size=5)
        ),
    )
    def send(self, client: int, count: int, size: int, ttls: list[int | None] | None) -> None:
        self.send_batch(client, count, size, ttls)

    def new_messages(
        self, count: int, size: int, ttls: list[int | None] | None
    ) -> tuple[Send, list[Message]]:
        now_ms, wall_ms = self.harness.clock.monotonic_ms(), self.harness.clock.now_ms()
        made = []
        for index in range(count):
            self.bodies += 1
            ttl = min(each for each in (TTL_DEFAULT_MS, ttls[index] if ttls else None) if each is not None)
            body = b"%d:" % self.bodies + b"." * size
            made.append(Message(body, self.model.next_number + index, None, wall_ms, ttl, now_ms + ttl))
        return Send([each.body for each in made], ttls[:count] if ttls else None, cookie="send"), made

    def send_batch(self, client: int, count: int, size: int, ttls: list[int | None] | None) -> None:
        self.model.pass_time(self.harness.clock.monotonic_ms())
        send, made = self.new_messages(count, size, ttls)
        self.model.messages += made  # so that the model knows what the same batch grants
        self.model.next_number += count
        answer = self.one(client, send)
        assert answer == Sent(made[0].number, "send")

    @rule(
        client=st.sampled_from(CLIENTS),
        subqueue=st.sampled_from(SUBQUEUES),
        count=st.integers(1, 6),
        tell_unmet=st.booleans(),
    )
    def demand(self, client: int, subqueue: str, count: int, tell_unmet: bool) -> None:
        self.catch_up(client)
        key = (client, subqueue)
        if key in self.leaving:
            self.leaving.discard(key)
            self.model.demand[key] = 0
        self.model.demand[key] = self.model.demand.get(key, 0) + count
        answers = self.run_batch([(client, Demand(subqueue, count, tell_unmet))]).get(client, [])
        if self.harness.limits.bounds.granted_bytes_max > 1000:  # else a later batch may meet the demand
            assert (Unmet(NUMBER, subqueue) in answers) == (tell_unmet and self.model.demand[key] > 0)

    @precondition(
        lambda self: hasattr(self, "model") and any(self.model.available(each) for each in SUBQUEUES)
    )
    @rule(client=st.sampled_from(CLIENTS), count=st.integers(1, 6))
    def receive(self, client: int, count: int) -> None:
        """Ask where messages are available."""
        self.model.pass_time(self.harness.clock.monotonic_ms())
        for subqueue in SUBQUEUES:
            if self.model.available(subqueue):
                self.demand(client, subqueue, count, False)

    @rule(client=st.sampled_from(CLIENTS), subqueue=st.sampled_from(SUBQUEUES))
    def withdraw(self, client: int, subqueue: str) -> None:
        key = (client, subqueue)
        self.leaving.add(key)
        self.run_batch([(client, Withdraw(subqueue))])
        if key in self.leaving:
            assert any(each[1] == subqueue and each[0] != client for each in self.recalls), (
                "it waits for nothing"
            )
        else:
            self.model.demand[key] = 0

    @precondition(lambda self: self.someone_holds())
    @rule(data=st.data(), client=st.sampled_from(CLIENTS))
    def complete(self, data: st.DataObject, client: int) -> None:
        tokens = self.pick(data, client)
        failures = self.expected_failures(tokens)
        for token in tokens:
            message = self.model.find(token)
            if message is not None:
                self.lost_tokens.append(token)
                self.model.messages.remove(message)
        assert self.one(client, Complete(tokens, "done")) == Settled("done", failures)

    @precondition(lambda self: self.someone_holds())
    @rule(
        data=st.data(),
        client=st.sampled_from(CLIENTS),
        kept_ms=st.sampled_from([1, 500, 4_999, 5_000, 30_000]),
        renews=st.booleans(),
    )
    def settle_while_the_disk_is_slow(
        self, data: st.DataObject, client: int, kept_ms: int, renews: bool
    ) -> None:
        """A settlement that arrives in time counts, however long it is kept waiting; other due work happens
        after it."""
        self.catch_up(client)
        clock = self.harness.clock
        tokens = self.pick(data, client)
        failures = self.expected_failures(tokens)
        operation = RenewLocks(tokens, "late") if renews else Complete(tokens, "late")
        self.harness.post(client, operation)
        clock.advance(kept_ms)
        clock.advance(-clock.monotonic_ms() % Bounds().tick_ms)
        for token in tokens:
            message = self.model.find(token)
            if message is not None and message.lock is not None:
                if renews:
                    message.lock.until_ms = clock.monotonic_ms() + LOCK_MS
                else:
                    self.lost_tokens.append(token)
                    self.model.messages.remove(message)
        self.lost_tokens += [
            each.lock.token
            for each in self.model.messages
            if each.lock and each.lock.until_ms <= clock.monotonic_ms()
        ]
        answers = self.run_batch([]).get(client, [])
        assert (
            Renewed(clock.monotonic_ms() + LOCK_MS, "late", failures) if renews else Settled("late", failures)
        ) in answers

    @precondition(lambda self: self.someone_holds())
    @rule(data=st.data(), client=st.sampled_from(CLIENTS), changed=st.sampled_from(CHANGES))
    def abandon(self, data: st.DataObject, client: int, changed: bytes | None) -> None:
        tokens = self.pick(data, client)
        failures = self.expected_failures(tokens)
        for token in tokens:
            message = self.model.find(token)
            if message is not None:
                self.lost_tokens.append(token)
                self.model.failed_delivery(message, changed)
        assert self.one(client, Abandon(tokens, changed, 7)) == Settled(7, failures)

    @precondition(lambda self: self.someone_holds())
    @rule(data=st.data(), client=st.sampled_from(CLIENTS), changed=st.sampled_from(CHANGES))
    def defer(self, data: st.DataObject, client: int, changed: bytes | None) -> None:
        tokens = self.pick(data, client)
        failures = self.expected_failures(tokens)
        for token in tokens:
            message = self.model.find(token)
            if message is not None:
                self.give_up(message)
                message.deliveries += message.subqueue == MAIN
                message.deferred, message.changed = True, merge_changes(message.changed, changed)
        assert self.one(client, Defer(tokens, changed)) == Settled(None, failures)

    @precondition(lambda self: self.someone_holds())
    @rule(data=st.data(), client=st.sampled_from(CLIENTS), changed=st.sampled_from(CHANGES))
    def dead_letter(self, data: st.DataObject, client: int, changed: bytes | None) -> None:
        tokens = self.pick(data, client)
        failures = self.expected_failures(tokens)
        for place, token in enumerate(tokens):
            message = self.model.find(token)
            if message is not None and message.subqueue == MAIN:
                self.lost_tokens.append(token)
                self.model.to_dead_letter(message, None, changed)
            elif message is not None:
                failures[place] = Reason.NOT_ALLOWED
        assert self.one(client, DeadLetter(tokens, changed)) == Settled(None, failures)

    @rule(data=st.data(), client=st.sampled_from(CLIENTS))
    def release(self, data: st.DataObject, client: int) -> None:
        tokens = self.pick(data, client)
        self.expected_failures(tokens)
        self.give_back(tokens)
        self.run_batch([(client, Release(tokens))])

    def give_back(self, tokens: Sequence[LockToken]) -> None:
        for token in tokens:
            message = self.model.find(token)
            if message is not None:
                self.give_up(message)
        self.model.pass_time(self.harness.clock.monotonic_ms())  # expire what ran out while it was locked

    @precondition(lambda self: self.recalls)
    @rule(data=st.data())
    def answer_recall(self, data: st.DataObject) -> None:
        client, subqueue = self.recalls.pop(data.draw(st.integers(0, len(self.recalls) - 1)))
        held = [
            each.lock.token
            for each in self.held(client)
            if each.subqueue == subqueue and each.lock and not each.deferred
        ]
        tokens = data.draw(st.lists(st.sampled_from(held), unique=True)) if held else []
        self.expected_failures(tokens)
        self.give_back(tokens)
        self.run_batch([(client, Recalled(subqueue, tokens))])

    @rule(data=st.data(), client=st.sampled_from(CLIENTS))
    def renew(self, data: st.DataObject, client: int) -> None:
        tokens = self.pick(data, client)
        failures = self.expected_failures(tokens)
        until_ms = self.harness.clock.monotonic_ms() + LOCK_MS
        for token in tokens:
            message = self.model.find(token)
            if message is not None and message.lock is not None:
                message.lock.until_ms = until_ms
        assert self.one(client, RenewLocks(tokens)) == Renewed(until_ms, None, failures)

    @rule(data=st.data(), client=st.sampled_from(CLIENTS))
    def detach(self, data: st.DataObject, client: int) -> None:
        tokens = self.pick(data, client)
        self.expected_failures(tokens)
        self.give_back(tokens)
        for subqueue in SUBQUEUES:
            self.model.demand[client, subqueue] = 0
            self.leaving.discard((client, subqueue))
        self.recalls = [each for each in self.recalls if each[0] != client]
        self.run_batch([(client, Detach(tokens))])

    @rule(
        client=st.sampled_from(CLIENTS),
        subqueue=st.sampled_from(SUBQUEUES),
        start=st.integers(0, 30),
        count=st.integers(1, 10),
    )
    def peek(self, client: int, subqueue: str, start: int, count: int) -> None:
        self.catch_up(client)
        first = (NUMBER << 48) + start
        answer = self.one(client, Peek(subqueue, first, count))
        assert isinstance(answer, Peeked)
        expected = sorted(
            (each for each in self.model.messages if each.subqueue == subqueue and each.number >= first),
            key=lambda each: each.number,
        )[:count]
        assert answer.sequence_numbers == [each.number for each in expected]
        assert answer.messages == [each.body for each in expected]
        for message, enqueued_ms, expires_ms in zip(
            expected, answer.enqueued_at_ms, answer.expires_at_ms, strict=True
        ):
            message.saw_enqueued(enqueued_ms, expires_ms)
        assert answer.enqueued_at_ms == sorted(answer.enqueued_at_ms)
        assert answer.delivery_counts == [each.deliveries for each in expected]
        assert answer.states == [
            MessageState.DEFERRED if each.deferred else MessageState.ACTIVE for each in expected
        ]
        assert list(map(properties, answer.changed)) == [properties(each.changed) for each in expected]

    @rule(data=st.data(), client=st.sampled_from(CLIENTS), subqueue=st.sampled_from(SUBQUEUES))
    def receive_deferred(self, data: st.DataObject, client: int, subqueue: str) -> None:
        candidates = [
            each.number for each in self.model.messages if each.subqueue == subqueue and each.deferred
        ]
        candidates.append(self.model.next_number + 7)
        numbers = data.draw(st.lists(st.sampled_from(candidates), unique=True, min_size=1, max_size=3))
        self.model.pass_time(self.harness.clock.monotonic_ms())
        found = {
            each.number: each
            for each in self.model.messages
            if each.subqueue == subqueue and each.deferred and each.lock is None
        }
        answer = self.one(client, ReceiveDeferred(subqueue, numbers, "fetch"))
        if any(number not in found for number in numbers):
            assert (
                isinstance(answer, Failed)
                and answer.reason is Reason.MESSAGE_NOT_FOUND
                and answer.cookie == "fetch"
            )
            return
        assert (
            isinstance(answer, Locked)
            and answer.deferred
            and answer.cookie == "fetch"
            and answer.sequence_numbers
        )
        if self.harness.limits.bounds.granted_bytes_max > 100_000:
            assert answer.sequence_numbers == numbers
        numbers, left = numbers[: len(answer.tokens)], numbers[len(answer.tokens) :]
        assert answer.sequence_numbers == numbers and all(found[number].lock is None for number in left)
        self.check_columns(answer)
        for index, number in enumerate(numbers):
            self.lock(client, found[number], answer, index)

    @rule(
        client=st.sampled_from(CLIENTS),
        subqueue=st.sampled_from(SUBQUEUES),
        count=st.integers(1, 6),
        start=st.integers(0, 20),
        age_ms=st.sampled_from([-1, 0, 500, 30_000]),
    )
    def delete(self, client: int, subqueue: str, count: int, start: int, age_ms: int) -> None:
        self.catch_up(client)
        first, before_ms = (NUMBER << 48) + start, self.harness.clock.now_ms() - age_ms
        answer = self.one(client, Delete(subqueue, count, before_ms, first, "purge"))
        assert isinstance(answer, Deleted) and answer.cookie == "purge"
        self.model.pass_time(self.harness.clock.monotonic_ms())
        here = [each for each in self.model.messages if each.subqueue == subqueue and each.number >= first]
        assert all(each.enqueued_ms is not None for each in here)
        old = [each for each in here if (each.enqueued_ms or 0) < before_ms]
        chosen = sorted(
            (each for each in old if each.lock is None and not each.deferred), key=lambda each: each.number
        )[:count]
        for message in chosen:
            self.model.messages.remove(message)
        assert answer.count == len(chosen)
        left = [
            each.number
            for each in old
            if each not in chosen and each.number >= (chosen[-1].number if len(chosen) == count else 1 << 62)
        ]
        assert answer.next_sequence_number == min(left, default=None)

    @rule(milliseconds=st.sampled_from([1, 500, 4_999, 5_000, 30_000]))
    def advance(self, milliseconds: int) -> None:
        self.harness.clock.advance(milliseconds)
        for each in self.model.messages:
            if each.lock is not None and each.lock.until_ms <= self.harness.clock.monotonic_ms():
                self.lost_tokens.append(each.lock.token)
        # Timers fire up to a tick late; by then, what they have to do is due.
        tick_ms = Bounds().tick_ms
        self.harness.clock.advance(-self.harness.clock.monotonic_ms() % tick_ms)
        self.run_batch([])

    @rule(milliseconds=st.sampled_from([-3_600_000, -1_000, 1_000, 3_600_000]))
    def set_the_wall_clock(self, milliseconds: int) -> None:
        """A step of the wall clock neither ends nor freezes locks."""
        self.catch_up(1)
        self.harness.clock.step(milliseconds)
        self.stepped_back |= milliseconds < 0
        self.run_batch([])

    @rule()
    def evict_bodies(self) -> None:
        """Another partition needs the memory."""
        partition = self.harness.task._partition
        if partition is not None:
            for _ in partition.messages.subqueues:
                partition.messages.evict()
            self.harness.task.check()

    # --- restarts and faults --------------------------------------------------------------------------------

    @rule(clean=st.booleans())
    def restart(self, clean: bool) -> None:
        self.model.pass_time(self.harness.clock.monotonic_ms())
        self.loop.run_until_complete(self.harness.restart(clean=clean))
        self.the_wall_clock_decides()
        self.all_volatile_is_gone()

    @rule()
    def restart_without_checkpoint(self) -> None:
        self.harness.log.disk.checkpoint = None
        self.restart(False)

    def the_wall_clock_decides(self) -> None:
        """In a new process, the wall clock says how much of a time to live is left."""
        for each in self.model.messages:
            assert each.enqueued_ms is not None
            each.lives_until_ms = each.enqueued_ms + each.time_to_live_ms - wall_ahead_ms(self.harness.clock)

    def deadlines_stayed(self) -> None:
        """Within one process, recovery keeps every deadline within the tolerance, whatever the wall clock
        did."""
        partition = self.harness.task._partition
        assert partition is not None
        found = {
            number: reference
            for each in SUBQUEUES
            for number, reference in partition.messages.find(each).references.items()
        }
        for each in self.model.messages:
            reference = found.get(each.number)
            if reference is None:
                assert each.lives_until_ms < self.harness.clock.monotonic_ms() + TOLERANCE_MS, (
                    "expired too early"
                )
                each.lives_until_ms = min(each.lives_until_ms, self.harness.clock.monotonic_ms())
            else:
                assert (
                    reference.lives_until_ms is not None
                    and abs(reference.lives_until_ms - each.lives_until_ms) < TOLERANCE_MS
                )
                each.lives_until_ms = reference.lives_until_ms

    def all_volatile_is_gone(self) -> None:
        """The state was read back from the log: locks and demand are void."""
        self.lost_tokens += [each.lock.token for each in self.model.messages if each.lock is not None]
        self.model.forget_volatile()
        self.recalls.clear()
        self.leaving.clear()
        self.tokens_seen.clear()
        self.tokens_seen.update(self.lost_tokens)

    @rule(client=st.sampled_from(CLIENTS), count=st.integers(1, 3), first_retry=st.booleans())
    def fail_a_commit(self, client: int, count: int, first_retry: bool) -> None:
        """Nothing of the commit is ever seen, the operation is refused, and the partition comes back."""
        self.catch_up(client)
        send, _ = self.new_messages(count, 10, None)
        self.harness.log.fail_append(CommitFailed("no"))
        if not first_retry:
            refusals = [CommitFailed("still no")]
            self.harness.log.on_claim = lambda: refusals.pop() if refusals else None
        waiting = {each for (each, _), wanted in self.model.demand.items() if wanted}
        self.harness.post(client, send)
        self.loop.run_until_complete(self.harness.settle())
        if self.harness.task.health is Health.RECOVERING:
            self.harness.clock.advance(20_000 - self.harness.clock.monotonic_ms() % 20)
            self.loop.run_until_complete(self.harness.settle())
        assert self.harness.task.health is Health.HEALTHY
        answers = {each: self.harness.take(each) for each in CLIENTS}
        refused = [each for each in answers[client] if isinstance(each, Failed)]
        assert (
            len(refused) == 1
            and refused[0].reason is Reason.PARTITION_UNAVAILABLE
            and refused[0].cookie == "send"
        )
        for each in waiting:
            assert Unavailable(NUMBER) in answers[each]
        self.deadlines_stayed()
        self.all_volatile_is_gone()
        self.run_batch([])

    @rule(data=st.data(), client=st.sampled_from(CLIENTS), count=st.integers(1, 3))
    def fill_the_disk(self, data: st.DataObject, client: int, count: int) -> None:
        """Sends are refused, settlements go through, and no lock is lost."""
        self.catch_up(client)
        tokens = [each.lock.token for each in self.held(client) if each.lock is not None][:2]
        failures = self.expected_failures(tokens)
        send, _ = self.new_messages(count, 10, None)
        for token in tokens:
            message = self.model.find(token)
            assert message is not None
            self.lost_tokens.append(token)
            self.model.messages.remove(message)
        self.harness.log.fill_disk()
        operations: list[Operation] = [send, Peek(MAIN, 0, 1000), Complete(tokens, "done")]
        if data.draw(st.booleans()):
            operations.reverse()
        answers = self.run_batch([(client, each) for each in operations])[client]
        self.harness.log.empty_disk()
        assert Settled("done", failures) in answers
        shown = next(each for each in answers if isinstance(each, Peeked))
        assert all(number < self.model.next_number for number in shown.sequence_numbers), (
            "what is refused is not shown"
        )
        refused = next(each for each in answers if isinstance(each, Failed))
        assert refused.reason is Reason.DISK_FULL and refused.cookie == "send"

    # --- invariants -----------------------------------------------------------------------------------------

    @invariant()
    def nobody_waits_for_what_is_available(self) -> None:
        if hasattr(self, "model") and self.harness.task.health is Health.HEALTHY:
            for subqueue in SUBQUEUES:
                waiting = any(wanted for (_, each), wanted in self.model.demand.items() if each == subqueue)
                assert not (waiting and self.model.available(subqueue)), (
                    "a message lies here while somebody waits"
                )

    @invariant()
    def counts_agree(self) -> None:
        if hasattr(self, "model") and self.harness.task.health is Health.HEALTHY:
            counts = self.harness.task.counts()
            for subqueue in SUBQUEUES:
                mine = [each for each in self.model.messages if each.subqueue == subqueue]
                assert counts[subqueue].active == sum(1 for each in mine if not each.deferred)
                assert counts[subqueue].deferred == sum(1 for each in mine if each.deferred)
                assert counts[subqueue].locked == sum(1 for each in mine if each.lock is not None)
                # The partition's own check compares the changed properties with those of each message.
                changed_bytes = self.harness.subqueues[SUBQUEUES.index(subqueue)].changed_bytes
                assert (
                    counts[subqueue].bytes
                    == sum(len(each.body) + MESSAGE_OVERHEAD_BYTES for each in mine) + changed_bytes
                )


CLIENT_SET = frozenset(CLIENTS)

TestPartitionModel = hypothesis.seed(SEED)(PartitionMachine).TestCase
TestPartitionModel.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=STEPS,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
