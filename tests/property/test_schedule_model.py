"""Check scheduled messages and duplicate detection of a partition against a naive model: random sends,
cancellations, clock steps, restarts with time in between, failed commits, full disks, compaction.

The model is plain dictionaries. It says exactly what is scheduled, what is active and in which order; of a
message-id, it says that it must be known, that it must not be, or, for the part of the window by which an id
may be forgotten late, that both are right. `test_partition_model.py` says how to replay a failure.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from hashlib import blake2b

import hypothesis
import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from broker.base.errors import Reason
from broker.entities.descriptions import MAIN, QueueSettings
from broker.operations import CancelScheduled, Complete, Failed, MessageState, Send, Sent, Settled
from broker.partition.batch_bounds import Bounds
from broker.partition.duplicates import IDENTITY_BYTES, SLOTS_PER_WINDOW
from broker.partition.task import Health, TaskLimits
from broker.partition.upkeep import UpkeepLimits
from storage.errors import CommitFailed
from tests.property.partition_driver import EXAMPLES, SEED, STEPS
from tests.support.partition_harness import NUMBER, Harness, one

WINDOW_MS = 64_000
LATE_MS = WINDOW_MS // SLOTS_PER_WINDOW
IDS = "abcdefgh"
LATER_MS = [None, None, -1_000, 500, 5_000, 30_000, 3_600_000]
TICK_MS = Bounds().tick_ms

ran: Counter[str] = Counter()
"""How often each rule ran, printed at the end."""


class ScheduleMachine(RuleBasedStateMachine):
    """A partition of a queue that detects duplicates, and its model."""

    @initialize(small_log=st.booleans(), activated=st.sampled_from([1, 1_000]))
    def start(self, small_log: bool, activated: int) -> None:
        hypothesis.note(f"replay: MODEL_SEED={SEED} MODEL_EXAMPLES={EXAMPLES} MODEL_STEPS={STEPS}")
        self.loop = asyncio.new_event_loop()
        upkeep = UpkeepLimits(checkpoint_bytes=3_000, garbage_bytes_min=700, relocation_bytes=500)
        self.harness = Harness(
            QueueSettings(requires_duplicate_detection=True, duplicate_detection_window_ms=WINDOW_MS),
            segment_bytes=1_000 if small_log else 1 << 30,
            limits=TaskLimits(
                bounds=Bounds(activated_max=activated), upkeep=upkeep if small_log else UpkeepLimits()
            ),
        )
        self.scheduled: dict[int, tuple[int, bytes]] = {}
        """Time and body by sequence number."""
        self.active: list[tuple[int, bytes]] = []
        self.next_number = NUMBER << 48 | 1
        self.sent_ms: dict[str, int | None] = {}
        """Monotonic time of each id's latest message; None if the clock was set, so that it is uncertain."""
        self.clock_was_set = False
        self.bodies = 0
        self.open()

    def teardown(self) -> None:
        if hasattr(self, "loop"):
            self.loop.close()

    def open(self) -> None:
        self.harness.task._open_wanted = True
        self.settle()
        assert self.harness.task.health is Health.HEALTHY

    def settle(self) -> None:
        self.loop.run_until_complete(self.harness.settle())
        wall_ms = self.harness.clock.now_ms()
        for at_ms, number in sorted((at_ms, number) for number, (at_ms, _) in self.scheduled.items()):
            if at_ms <= wall_ms:
                self.active.append((self.next_number, self.scheduled.pop(number)[1]))
                self.next_number += 1

    # --- sends ----------------------------------------------------------------------------------------------

    def new_send(self, ids: list[str], later_ms: list[int | None]) -> Send:
        wall_ms = self.harness.clock.now_ms()
        bodies = []
        for each in ids:
            self.bodies += 1
            bodies.append(b"%d:%s" % (self.bodies, each.encode() * 40))
        return Send(
            bodies,
            None,
            "send",
            scheduled_ms=[None if each is None else wall_ms + each for each in later_ms[: len(ids)]],
            identities=[blake2b(each.encode(), digest_size=IDENTITY_BYTES).digest() for each in ids],
        )

    def is_known(self, each: str) -> bool | None:
        """Whether the id must be known; None if it may be or not."""
        if each not in self.sent_ms:
            return False
        sent_ms = self.sent_ms[each]
        if sent_ms is None:
            return None
        age_ms = self.harness.clock.monotonic_ms() - sent_ms
        return True if age_ms < WINDOW_MS else False if age_ms >= WINDOW_MS + LATE_MS else None

    @rule(
        ids=st.lists(st.sampled_from(IDS), min_size=1, max_size=5),
        later_ms=st.lists(st.sampled_from(LATER_MS), min_size=5, max_size=5),
    )
    def send(self, ids: list[str], later_ms: list[int | None]) -> None:
        ran["send"] += 1
        operation, now_ms = self.new_send(ids, later_ms), self.harness.clock.monotonic_ms()
        answer = one(self.loop.run_until_complete(self.harness.do(1, operation)), Sent)
        assert answer.cookie == "send"
        dropped, seen, number = set(answer.duplicates), set(), self.next_number
        for place, each in enumerate(ids):
            known = True if each in seen else self.is_known(each)
            assert known is None or known == (place in dropped), (each, known)
            seen.add(each)
            if place in dropped:
                ran["duplicate"] += 1
                continue
            assert number or answer.first == self.next_number
            self.sent_ms[each] = now_ms
            at_ms = operation.scheduled_ms[place] if operation.scheduled_ms is not None else None
            if at_ms is not None and at_ms > self.harness.clock.now_ms():
                self.scheduled[self.next_number] = at_ms, operation.messages[place]
            else:
                self.active.append((self.next_number, operation.messages[place]))
            self.next_number += 1
        if len(dropped) < len(ids):
            assert answer.first == number

    @rule(
        ids=st.lists(st.sampled_from(IDS), min_size=1, max_size=3),
        later_ms=st.lists(st.sampled_from(LATER_MS), min_size=5, max_size=5),
        is_full=st.booleans(),
    )
    def send_in_vain(self, ids: list[str], later_ms: list[int | None], is_full: bool) -> None:
        """Neither the messages nor their ids are kept, whatever was known of them."""
        ran["send in vain"] += 1
        operation, other = self.new_send(ids, later_ms), self.new_send([f"only {self.bodies}"], [None])
        if is_full:
            self.harness.log.fill_disk()
        else:
            self.harness.log.fail_append(CommitFailed("no"))
        answers = self.loop.run_until_complete(self.harness.do(1, operation, other))
        self.harness.log.empty_disk()
        if self.harness.task.health is Health.RECOVERING:
            self.harness.clock.advance(20_000 - self.harness.clock.monotonic_ms() % TICK_MS)
        self.settle()
        if not is_full:
            self.state_was_read_back()
        answers = [each for each in answers if isinstance(each, Sent | Failed)]
        refused = Reason.DISK_FULL if is_full else Reason.PARTITION_UNAVAILABLE
        assert [isinstance(each, Failed) and each.reason for each in answers] == [refused] * 2

    # --- the rest -------------------------------------------------------------------------------------------

    @rule(count=st.integers(1, 4))
    def receive(self, count: int) -> None:
        count = min(count, len(self.active))
        if not count:
            return
        ran["receive"] += 1
        locked = self.loop.run_until_complete(self.harness.receive(2, count))
        taken, self.active = self.active[:count], self.active[count:]
        assert list(zip(locked.sequence_numbers, locked.messages, strict=True)) == taken
        settled = one(self.loop.run_until_complete(self.harness.do(2, Complete(locked.tokens))), Settled)
        assert not settled.failures

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        candidates = [*self.scheduled, *(number for number, _ in self.active), self.next_number]
        numbers = data.draw(st.lists(st.sampled_from(candidates), unique=True, min_size=1, max_size=3))
        ran["cancel"] += 1
        answer = one(self.loop.run_until_complete(self.harness.do(1, CancelScheduled(numbers))), Settled)
        missing = {place for place, number in enumerate(numbers) if number not in self.scheduled}
        assert answer.failures == dict.fromkeys(missing, Reason.MESSAGE_NOT_FOUND)
        for number in numbers:
            self.scheduled.pop(number, None)

    @rule(milliseconds=st.sampled_from([20, 500, 5_000, 30_000, WINDOW_MS, 3_600_000]))
    def advance(self, milliseconds: int) -> None:
        ran["advance"] += 1
        self.harness.clock.advance(milliseconds)
        self.settle()

    @rule(milliseconds=st.sampled_from([-3_600_000, -1_000, 1_000, 3_600_000]))
    def set_the_wall_clock(self, milliseconds: int) -> None:
        """Schedules follow the wall clock; the window does not."""
        ran["set the clock"] += 1
        self.harness.clock.step(milliseconds)
        self.clock_was_set = True
        self.harness.task.wake()
        self.settle()

    @rule(clean=st.booleans(), keeps_checkpoint=st.booleans(), down_ms=st.sampled_from([0, 5_000, 70_000]))
    def restart(self, clean: bool, keeps_checkpoint: bool, down_ms: int) -> None:
        ran["restart"] += 1
        if not keeps_checkpoint:
            self.harness.log.disk.checkpoint = None
        self.loop.run_until_complete(self.harness.restart(clean=clean))
        self.harness.clock.advance(down_ms)
        self.state_was_read_back()
        self.open()

    def state_was_read_back(self) -> None:
        for client in (1, 2):
            self.harness.take(client)  # they are told that their demand is void
        if self.clock_was_set:  # the time that has passed since is known by the wall clock alone
            self.sent_ms = dict.fromkeys(self.sent_ms)

    @rule()
    def evict_bodies(self) -> None:
        partition = self.harness.task._partition
        assert partition is not None
        partition.messages.evict()

    @invariant()
    def everything_is_there(self) -> None:
        if not hasattr(self, "active"):
            return
        seen = self.loop.run_until_complete(self.harness.peek())
        expected = {number: (body, MessageState.ACTIVE, None) for number, body in self.active} | {
            number: (body, MessageState.SCHEDULED, at_ms) for number, (at_ms, body) in self.scheduled.items()
        }
        assert seen.sequence_numbers == sorted(expected)
        for number, body, state, enqueued_ms in zip(
            seen.sequence_numbers, seen.messages, seen.states, seen.enqueued_at_ms, strict=True
        ):
            assert (body, state) == expected[number][:2]
            assert expected[number][2] in (None, enqueued_ms)
        counts = self.harness.task.counts()[MAIN]
        assert (counts.active, counts.scheduled) == (len(self.active), len(self.scheduled))


TestScheduleModel = hypothesis.seed(SEED)(ScheduleMachine).TestCase
TestScheduleModel.settings = settings(
    max_examples=max(1, EXAMPLES // 5),
    stateful_step_count=STEPS // 2,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)


def test_every_rule_ran() -> None:
    """Runs after the model: a model that never meets a duplicate would prove nothing."""
    print(dict(ran))
    assert not ran or {"send", "duplicate", "send in vain", "receive", "cancel", "restart"} <= ran.keys()
