"""Drives a partition and its model side by side, one cycle at a time.

The rules are in `test_partition_model.py`, which also says how to replay a failure, and in the other modules
here whose names begin with `partition_`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

import hypothesis
import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize

from broker.base.errors import Reason
from broker.entities.descriptions import MAIN, QueueSettings
from broker.identifiers import LockToken, partition_of
from broker.operations.browsing import Arrived, Peek
from broker.operations.general import Detach
from broker.operations.interface import Answer, Operation
from broker.operations.receiving import Locked, Recall, Recalled, Withdrawn
from broker.operations.sending import Send
from broker.operations.sessions import SessionLost
from broker.operations.settling import Release
from broker.partition.cycle_bounds import Bounds
from broker.partition.duplicates import IDENTITY_BYTES, SLOTS_PER_WINDOW
from broker.partition.health import Health
from broker.partition.state import Partition
from broker.partition.task_limits import TaskLimits
from broker.partition.upkeep import UpkeepLimits
from tests.property.partition_model import (
    CLIENT_SET,
    SESSIONS,
    TTL_DEFAULT_MS,
    Lock,
    Message,
    Model,
    properties,
)
from tests.property.partition_outcomes import EXAMPLES, UNASKED, had_effect, ran
from tests.support.partition_harness import NUMBER, Harness

STEPS = int(os.environ.get("MODEL_STEPS", "80"))
SEED = int(os.environ.get("MODEL_SEED", "12"))

WINDOW_MS = 64_000
"""Of duplicate detection."""
LATE_MS = WINDOW_MS // SLOTS_PER_WINDOW
"""A message-id may be forgotten this much later."""
TICK_MS = Bounds().tick_ms
LOOKER, SESSION_WATCHER, FORWARDER = 8, 9, 10
"""Clients that ask for things which need no link, that wait for a free session, and that pass messages on."""


@dataclass
class Plan:
    """What a client sends: up to five messages. Each list has an entry for each of them."""

    count: int
    size: int
    times_to_live_ms: list[int | None] | None
    sessions: list[bytes]
    """Used if the queue requires sessions."""
    ids: list[str | None]
    """Message-ids, used if the queue detects duplicates. None: one that was never used before."""
    later_ms: list[int | None] | None
    """How much later each becomes active."""


def five(values: Sequence[object]) -> st.SearchStrategy[list[object]]:
    return st.lists(st.sampled_from(values), min_size=5, max_size=5)


PLANS = st.builds(
    Plan,
    count=st.integers(1, 5),
    size=st.sampled_from([1, 20, 400]),
    times_to_live_ms=st.one_of(st.none(), five([None, 1, 3_000, 90_000])),
    sessions=five(SESSIONS),
    ids=five([*[None] * 6, *"abcdef"]),
    later_ms=st.one_of(
        st.none(), st.none(), st.none(), five([None, None, -1_000, 500, 5_000, 30_000, 3_600_000])
    ),
)


class PartitionDriver(RuleBasedStateMachine):
    """A partition, its model, and what the clients have seen so far."""

    @initialize(
        payload_bytes=st.sampled_from([0, 4_000, 1 << 20]),
        dead_letter_expired=st.booleans(),
        requires_session=st.booleans(),
        detects_duplicates=st.booleans(),
        small_log=st.booleans(),
        granted=st.sampled_from([600, 1 << 20]),
        clients=st.sampled_from([1, 2, 1_000]),
        activated=st.sampled_from([1, 1_000]),
        sets_clock=st.booleans(),
    )
    def start(
        self,
        payload_bytes: int,
        dead_letter_expired: bool,
        requires_session: bool,
        detects_duplicates: bool,
        small_log: bool,
        granted: int,
        clients: int,
        activated: int,
        sets_clock: bool,
    ) -> None:
        hypothesis.note(
            f"replay: MODEL_SEED={SEED} MODEL_EXAMPLES={EXAMPLES} MODEL_STEPS={STEPS} make test "
            "ARGS=tests/property/test_partition_model.py"
        )
        self.loop = asyncio.new_event_loop()
        upkeep = (
            UpkeepLimits(checkpoint_bytes=3_000, garbage_bytes_max=700, relocation_bytes=500)
            if small_log
            else UpkeepLimits()
        )
        self.model = Model(dead_letter_expired=dead_letter_expired, requires_session=requires_session)
        self.harness = Harness(
            QueueSettings(
                lock_duration_ms=self.model.lock_ms,
                max_delivery_count=self.model.max_deliveries,
                default_time_to_live_ms=TTL_DEFAULT_MS,
                dead_lettering_on_expiration=dead_letter_expired,
                requires_session=requires_session,
                requires_duplicate_detection=detects_duplicates,
                duplicate_detection_window_ms=WINDOW_MS,
            ),
            payload_bytes=payload_bytes,
            segment_bytes=1_000 if small_log else 1 << 30,
            limits=TaskLimits(
                bounds=Bounds(
                    granted_bytes_max=granted,
                    granted_leases_max=clients,
                    recalls_max=clients,
                    expired_max=3,
                    activated_max=activated,
                    ended_leases_max=min(activated, 256),
                ),
                upkeep=upkeep,
            ),
        )
        self.detects_duplicates = detects_duplicates
        self.sets_clock = sets_clock
        """Whether the wall clock is ever set in this example."""
        self.clock_was_set = self.stepped_back = False
        self.tokens_seen: set[LockToken] = set()
        self.lost_tokens: list[LockToken] = []
        self.bodies = 0
        self.recalls: list[tuple[int, str]] = []
        self.leaving: set[tuple[int, str]] = set()
        self.sent_ids: dict[str, int | None] = {}
        """When each message-id was last sent, in monotonic time; None if only the partition knows, because
        the wall clock was set before a restart."""
        self.dropped: list[int] = []
        """The duplicates among the messages made last, by place."""
        self.watched: dict[str, int] = {}
        """By subqueue: the sequence number from which on LOOKER waits for a message to look at."""
        self.awaits_session = False
        """Whether SESSION_WATCHER waits for a free session."""

    def teardown(self) -> None:
        if hasattr(self, "loop"):
            self.loop.close()

    # --- driving both ---------------------------------------------------------------------------------------

    @property
    def partition(self) -> Partition:
        partition = self.harness.task._partition
        assert partition is not None, "the partition is closed"
        return partition

    def pass_time(self) -> None:
        self.model.pass_time(self.harness.clock.monotonic_ms(), self.harness.clock.now_ms())

    def post(self, client: int, operation: Operation) -> None:
        """Put an operation into the mailbox, in the event loop."""
        self.loop.call_soon(self.harness.post, client, operation)
        self.loop.run_until_complete(asyncio.sleep(0))

    def run_cycle(self, operations: Sequence[tuple[int, Operation]]) -> dict[int, list[Answer]]:
        """Run one cycle of the partition. Take up answers to earlier operations; return the rest by
        client."""
        self.pass_time()
        for client, operation in operations:
            ran[type(operation).__name__] += 1
            if isinstance(operation, Release | Recalled | Detach):  # these have no answer
                tokens = operation.unseen if isinstance(operation, Detach) else operation.tokens
                ran[f"{type(operation).__name__} done"] += bool(tokens)
            self.post(client, operation)
        self.loop.run_until_complete(self.harness.until_quiet())
        self.harness.reported.check(self.harness.task)
        left: dict[int, list[Answer]] = {}
        losers: list[int] = []
        for client in list(self.harness.received):
            for answer in self.harness.take(client):
                if isinstance(answer, UNASKED):
                    ran[type(answer).__name__] += 1
                match answer:
                    case Locked() if not answer.deferred:
                        self.saw_locked(client, answer)
                    case Recall():
                        self.recalls.append((client, answer.subqueue))
                    case SessionLost():
                        losers.append(client)
                    case Arrived() if client == SESSION_WATCHER:
                        self.awaits_session = False
                    case Arrived():
                        assert client == LOOKER and answer.subqueue in self.watched
                        del self.watched[answer.subqueue]
                    case Withdrawn():
                        if (client, answer.subqueue) in self.leaving:
                            self.leaving.discard((client, answer.subqueue))
                            self.model.demand[client, answer.subqueue] = 0
                        left.setdefault(client, []).append(answer)
                    case _:
                        left.setdefault(client, []).append(answer)
        assert sorted(losers) == sorted(self.model.losers), "who loses a session is told, and nobody else"
        self.model.losers.clear()
        self.see_times()
        return left

    def see_times(self) -> None:
        """Note the enqueued times of new messages."""
        if self.harness.task._partition is None:
            return
        for each in self.model.messages:
            if each.enqueued_ms is None:
                reference = self.partition.messages.find(each.subqueue).references[each.number]
                each.saw_enqueued(reference.enqueued_at_ms, reference.expires_at_ms)

    def one(self, client: int, operation: Operation) -> Answer:
        answers = self.run_cycle([(client, operation)])
        assert answers.keys() <= CLIENT_SET | {LOOKER, FORWARDER} and len(answers.get(client, [])) >= 1, (
            answers
        )
        answer = answers[client][0]
        ran[f"{type(operation).__name__} done"] += had_effect(operation, answer)
        return answer

    def catch_up(self, client: int = LOOKER) -> None:
        """Have the log opened and overdue work done: each cycle enforces the time to live of a bounded number
        of messages."""
        self.one(client, Peek(MAIN, 0, 1))

    def open(self) -> None:
        """Open the partition without asking it for anything, as the namespace does when something is due."""
        self.harness.task._open_wanted = True
        self.run_cycle([])
        assert self.harness.task.health is Health.HEALTHY

    # --- what clients are given -----------------------------------------------------------------------------

    def saw_locked(self, client: int, locked: Locked) -> None:
        """Check a grant: the oldest available messages, to a client that wants them, complete and as the
        model knows them."""
        if self.model.requires_session and locked.subqueue == MAIN:
            self.saw_locked_in_session(client, locked)
            return
        count = len(locked.tokens)
        key = (client, locked.subqueue)
        wanted = self.model.demand.get(key, 0)
        assert 0 < count <= wanted, "more than was asked for"
        self.model.demand[key] = wanted - count
        self.check_columns(locked)
        for index, number in enumerate(locked.sequence_numbers):
            message = next(each for each in self.model.available(locked.subqueue) if each.number == number)
            self.lock(client, message, locked, index)

    def saw_locked_in_session(self, client: int, locked: Locked) -> None:
        """Only the holder of a session is given its messages, in their order."""
        held = self.model.held_by(client)
        assert held is not None, "messages of a session for a client that does not hold it"
        session, hold = held
        assert 0 < len(locked.tokens) <= hold.clients[client], "more than was asked for"
        hold.clients[client] -= len(locked.tokens)
        self.check_columns(locked)
        for index, number in enumerate(locked.sequence_numbers):
            available = self.model.available_in(session)
            message = next(each for each in available if each.number == number)
            assert message is available[0] or len(hold.clients) > 1, "out of order"
            self.lock(client, message, locked, index, hold.until_ms)

    def lock(
        self,
        client: int,
        message: Message,
        locked: Locked,
        index: int,
        until_ms: int | None = None,
        duration_ms: int | None = None,
    ) -> None:
        """`until_ms`: when the lock of its session ends, if it is locked with a session. `duration_ms`: how
        long it is locked, if not for as long as usual."""
        now_ms = self.harness.clock.monotonic_ms()
        token = locked.tokens[index]
        assert token not in self.tokens_seen and token[:8] == message.number.to_bytes(8, "big")
        self.tokens_seen.add(token)
        lock_ms = self.model.lock_ms if duration_ms is None else duration_ms
        assert locked.locked_until_ms == (now_ms + lock_ms if until_ms is None else until_ms)
        assert not message.expired(now_ms)
        assert locked.messages[index] == message.body
        message.saw_enqueued(locked.enqueued_at_ms[index], locked.expires_at_ms[index])
        assert self.stepped_back or message.enqueued_ms == message.sent_ms
        assert locked.delivery_counts[index] == message.deliveries
        assert properties(locked.changed[index]) == properties(message.changed)
        message.lock = Lock(client, locked.locked_until_ms, token, until_ms is not None)

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

    # --- schedules ------------------------------------------------------------------------------------------

    def time_of_its_own(self, later_ms: int, others: Sequence[Message] = ()) -> int:
        """A wall time that much later, or a little more: the order of messages that become active within one
        tick is the partition's choice, unless they were scheduled in that order. `others` are about to be
        sent."""
        wall_ms = self.harness.clock.now_ms()
        taken = {
            -(-each.scheduled_ms // TICK_MS) for each in (*self.model.messages, *others) if each.scheduled_ms
        }
        at_ms = max(wall_ms + later_ms, wall_ms + 1)
        while -(-at_ms // TICK_MS) in taken:
            at_ms += TICK_MS
        return at_ms

    def asked_time(self, at_ms: int) -> int:
        """What a client asks for to get that time: the earliest one stands for the past."""
        wall_ms = self.harness.clock.now_ms()
        return wall_ms - 1_000 if at_ms == wall_ms + 1 else at_ms

    # --- tokens ---------------------------------------------------------------------------------------------

    def has_messages(self) -> bool:
        return hasattr(self, "model") and bool(self.model.messages)

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
        self.pass_time()
        return {
            index: Reason.LOCK_LOST for index, token in enumerate(tokens) if self.model.find(token) is None
        }

    def give_up(self, message: Message) -> None:
        if message.lock is not None:
            self.lost_tokens.append(message.lock.token)
            message.lock = None

    def give_back(self, tokens: Sequence[LockToken]) -> None:
        for token in tokens:
            message = self.model.find(token)
            if message is not None:
                self.give_up(message)
        self.pass_time()  # expire what ran out while it was locked

    def note_lost_tokens(self) -> None:
        """Keep the tokens of the locks that have ended by now, to try them again."""
        now_ms = self.harness.clock.monotonic_ms()
        for each in self.model.messages:
            ends_ms = self.model.ends_ms(each)
            if each.lock is not None and ends_ms is not None and ends_ms <= now_ms:
                self.lost_tokens.append(each.lock.token)

    # --- sends ----------------------------------------------------------------------------------------------

    def new_messages(self, plan: Plan, *, surely_stores: bool = False) -> tuple[Send, list[Message]]:
        """A send, and what it stores. `surely_stores`: the first message is no duplicate."""
        if self.detects_duplicates:
            self.catch_up()
        now_ms, wall_ms = self.harness.clock.monotonic_ms(), self.harness.clock.now_ms()
        ids = self.ids_of(plan, surely_stores)
        self.dropped = self.duplicates_among(ids) if self.detects_duplicates else []
        bodies: list[bytes] = []
        made: list[Message] = []
        for index in range(plan.count):
            self.bodies += 1
            lives = plan.times_to_live_ms
            ttl = min(each for each in (TTL_DEFAULT_MS, lives[index] if lives else None) if each is not None)
            bodies.append(b"%d:" % self.bodies + b"." * plan.size)
            if index in self.dropped:
                continue
            later_ms = plan.later_ms[index] if plan.later_ms else None
            session = plan.sessions[index] if self.model.requires_session else None
            scheduled_ms = wall_ms + later_ms if later_ms is not None and later_ms > 0 else None
            number = self.model.next_number + len(made)
            made.append(Message(bodies[-1], number, None, wall_ms, ttl, now_ms + ttl, session, scheduled_ms))
        send = Send(
            bodies, plan.times_to_live_ms[: plan.count] if plan.times_to_live_ms else None, cookie="send"
        )
        if self.model.requires_session:
            send.columns = {"session_id": [*plan.sessions[: plan.count]]}
        if plan.later_ms is not None:
            later = plan.later_ms[: plan.count]
            send.scheduled_ms = [None if each is None else wall_ms + each for each in later]
        if self.detects_duplicates:
            send.identities = [identity_of(each) for each in ids]
            self.ids_made = [each for place, each in enumerate(ids) if place not in self.dropped]
        return send, made

    def stored(self, made: list[Message]) -> None:
        """The messages made last are going to be stored."""
        for message in made:
            self.model.add(message)
        if self.detects_duplicates:
            now_ms = self.harness.clock.monotonic_ms()
            self.sent_ids.update(dict.fromkeys(self.ids_made, now_ms))

    def ids_of(self, plan: Plan, surely_stores: bool) -> list[str]:
        ids = plan.ids[: plan.count]
        if surely_stores:
            ids[:1] = [None]
        return [f"unique {self.bodies + place}" if each is None else each for place, each in enumerate(ids)]

    def duplicates_among(self, ids: Sequence[str]) -> list[int]:
        """The places of the message-ids that the partition must know, or that come again here."""
        found: list[int] = []
        for place, each in enumerate(ids):
            known = True if each in ids[:place] else self.is_known(each)
            if known is None:
                ran["uncertain message-id"] += 1
                now_ms = self.harness.clock.monotonic_ms()
                duplicates = self.partition.messages.states.duplicates
                known = bool(duplicates.known([identity_of(each)], now_ms, WINDOW_MS))
            if known:
                ran["duplicate"] += 1
                found.append(place)
        return found

    def is_known(self, each: str) -> bool | None:
        """Whether a message-id must be known; None if both are right."""
        if each not in self.sent_ids:
            return False
        sent_ms = self.sent_ids[each]
        if sent_ms is None:
            return None
        age_ms = self.harness.clock.monotonic_ms() - sent_ms
        return True if age_ms < WINDOW_MS else False if age_ms >= WINDOW_MS + LATE_MS else None


def identity_of(message_id: str) -> bytes:
    return blake2b(message_id.encode(), digest_size=IDENTITY_BYTES).digest()
