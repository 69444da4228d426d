"""Drives a partition and its model side by side, one batch at a time.

The rules are in `test_partition_model.py` and `partition_faults.py`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence

import hypothesis
import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize

from broker.base.errors import Reason
from broker.entities.descriptions import MAIN, QueueSettings
from broker.operations import (
    Answer,
    Locked,
    LockToken,
    Operation,
    Peek,
    Recall,
    Send,
    Withdrawn,
    partition_of,
)
from broker.partition.batch_bounds import Bounds
from broker.partition.task import TaskLimits
from broker.partition.upkeep import UpkeepLimits
from tests.property.partition_model import (
    CLIENT_SET,
    LOCK_MS,
    MAX_DELIVERIES,
    TTL_DEFAULT_MS,
    Lock,
    Message,
    Model,
    properties,
)
from tests.support.partition_harness import NUMBER, Harness

EXAMPLES = int(os.environ.get("MODEL_EXAMPLES", "250"))
STEPS = int(os.environ.get("MODEL_STEPS", "80"))
SEED = int(os.environ.get("MODEL_SEED", "1"))


class PartitionDriver(RuleBasedStateMachine):
    """A partition, its model, and what the clients have seen so far."""

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

    def give_back(self, tokens: Sequence[LockToken]) -> None:
        for token in tokens:
            message = self.model.find(token)
            if message is not None:
                self.give_up(message)
        self.model.pass_time(self.harness.clock.monotonic_ms())  # expire what ran out while it was locked
