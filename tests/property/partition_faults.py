"""Rules for what happens around a partition: time, restarts, failed commits, a full disk."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis.stateful import precondition, rule

from broker.base.clock import wall_ahead_ms
from broker.base.errors import Reason
from broker.entities.descriptions import MAIN
from broker.operations.browsing import Peek, Peeked
from broker.operations.general import Failed, Unavailable
from broker.operations.interface import Operation
from broker.operations.sending import Sent
from broker.operations.settling import Complete, Settled
from broker.partition.clock_settings import TOLERANCE_MS
from broker.partition.health import Health
from storage.errors import CommitFailed
from tests.property.partition_driver import PLANS, TICK_MS, PartitionDriver, Plan
from tests.property.partition_model import ALL_SUBQUEUES, CLIENTS
from tests.property.partition_outcomes import ran
from tests.support.partition_harness import NUMBER


class PartitionFaults(PartitionDriver):
    """A partition to which all this happens."""

    @rule(milliseconds=st.sampled_from([1, 500, 4_999, 5_000, 30_000, 64_000]))
    def advance(self, milliseconds: int) -> None:
        ran["time passes"] += 1
        self.harness.clock.advance(milliseconds)
        # Timers fire up to a tick late; by then, what they have to do is due.
        self.harness.clock.advance(-self.harness.clock.monotonic_ms() % TICK_MS)
        self.note_lost_tokens()
        self.run_cycle([])

    @precondition(lambda self: getattr(self, "sets_clock", False))
    @rule(milliseconds=st.sampled_from([-3_600_000, -1_000, 1_000, 3_600_000]))
    def set_the_wall_clock(self, milliseconds: int) -> None:
        """A step of the wall clock neither ends nor freezes locks, times to live and the window of duplicate
        detection. Schedules follow it."""
        ran["the clock is set"] += 1
        self.catch_up()
        self.harness.clock.step(milliseconds)
        self.clock_was_set = True
        self.stepped_back |= milliseconds < 0
        self.catch_up()

    @rule()
    def evict_bodies(self) -> None:
        """Another partition needs the memory."""
        partition = self.harness.task._partition
        if partition is not None:
            for _ in partition.messages.subqueues:
                partition.messages.evict()
            self.harness.task.check()

    @rule(clean=st.booleans(), keeps_checkpoint=st.integers(0, 3), opens=st.booleans())
    def restart(self, clean: bool, keeps_checkpoint: int, opens: bool) -> None:
        ran["restart"] += 1
        self.pass_time()
        if not keeps_checkpoint and self.can_lose_checkpoints():
            ran["restart without a checkpoint"] += 1
            self.harness.log.disk.checkpoint = None
        self.loop.run_until_complete(self.harness.restart(clean=clean))
        self.the_wall_clock_decides()
        self.all_volatile_is_gone()
        delays = self.read_delays_back()
        is_scheduled = any(each.scheduled_ms is not None for each in self.model.messages)
        if opens or delays or is_scheduled:
            self.no_number_is_given_again()
            self.open()

    def can_lose_checkpoints(self) -> bool:
        """Whether the log alone holds everything. Trimming leaves the records of messages; what is kept
        beside the messages is then in checkpoints only."""
        is_trimmed = self.harness.log.disk.segments[0] > 0
        keeps_more = self.detects_duplicates or self.model.requires_session
        keeps_more = keeps_more or any(self.model.origins.values())
        keeps_more = keeps_more or any(each.delay_ends_ms is not None for each in self.model.messages)
        return not (is_trimmed and keeps_more)

    def no_number_is_given_again(self) -> None:
        """Neither those of messages that are gone nor those that were promised and never used."""
        self.harness.task._open_wanted = True
        self.loop.run_until_complete(self.harness.until_quiet())
        wall_ms = self.harness.clock.now_ms()
        due = [each for each in self.model.messages if 0 < (each.scheduled_ms or 0) <= wall_ms]
        assert self.partition.messages.next_number - len(due) == self.model.next_number

    def the_wall_clock_decides(self) -> None:
        """In a new process, the wall clock says how much of a time to live is left."""
        for each in self.model.messages:
            if each.scheduled_ms is None:
                assert each.enqueued_ms is not None
                ahead_ms = wall_ahead_ms(self.harness.clock)
                each.lives_until_ms = each.enqueued_ms + each.time_to_live_ms - ahead_ms

    def read_delays_back(self) -> bool:
        """Delays that have not ended by the wall clock begin again. Returns whether there are any."""
        delays = [each for each in self.model.messages if each.delay_ends_ms is not None]
        if any(each.delay_may_be_over for each in delays):
            self.harness.task._open_wanted = True
            self.loop.run_until_complete(self.harness.until_quiet())
        for each in delays:
            assert each.delay_ends_ms is not None
            until_ms = each.delay_ends_ms - wall_ahead_ms(self.harness.clock)
            if each.delay_may_be_over:  # the wall clock went back after the end: both are right
                found = self.partition.messages.find(each.subqueue).references.get(each.number)
                goes_on = found is not None and found.lease is not None and found.lease.is_delay
            else:
                goes_on = until_ms > self.harness.clock.monotonic_ms()
            if goes_on:
                each.delayed_until_ms = until_ms
        return bool(delays)

    def deadlines_stayed(self) -> None:
        """Within one process, recovery keeps every deadline within the tolerance, whatever the wall clock
        did."""
        found = {
            number: reference
            for each in ALL_SUBQUEUES
            for number, reference in self.partition.messages.find(each).references.items()
        }
        for each in self.model.messages:
            if each.scheduled_ms is not None:
                continue
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
        self.watched.clear()
        self.awaits_session = False
        self.tokens_seen.clear()
        self.tokens_seen.update(self.lost_tokens)
        if self.clock_was_set:  # the time that has passed since is known by the wall clock alone
            self.sent_ids = dict.fromkeys(self.sent_ids)

    @rule(client=st.sampled_from(CLIENTS), plan=PLANS, first_retry=st.booleans())
    def fail_a_commit(self, client: int, plan: Plan, first_retry: bool) -> None:
        """Nothing of the commit is ever seen, the operation is refused, and the partition comes back."""
        ran["a commit fails"] += 1
        self.catch_up(client)
        send, _ = self.new_messages(plan, surely_stores=True)
        self.harness.log.fail_append(CommitFailed("no"))
        if not first_retry:
            refusals = [CommitFailed("still no")]
            self.harness.log.on_acquire = lambda: refusals.pop() if refusals else None
        waiting = {each for (each, _), wanted in self.model.demand.items() if wanted}
        waiting |= {each for hold in self.model.holds.values() for each in hold.clients}
        self.post(client, send)
        self.loop.run_until_complete(self.harness.until_quiet())
        if self.harness.task.health is Health.RECOVERING:
            self.harness.clock.advance(20_000 - self.harness.clock.monotonic_ms() % TICK_MS)
            self.loop.run_until_complete(self.harness.until_quiet())
        assert self.harness.task.health is Health.HEALTHY
        answers = {each: self.harness.take(each) for each in list(self.harness.received)}
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
        self.no_number_is_given_again()
        self.read_delays_back()
        self.run_cycle([])

    @rule(data=st.data(), client=st.sampled_from(CLIENTS), plan=PLANS)
    def fill_the_disk(self, data: st.DataObject, client: int, plan: Plan) -> None:
        """Sends are refused, settlements go through, and no lock is lost."""
        ran["the disk is full"] += 1
        self.catch_up(client)
        tokens = [each.lock.token for each in self.held(client) if each.lock is not None][:2]
        failures = self.expected_failures(tokens)
        send, made = self.new_messages(plan)
        for token in tokens:
            message = self.model.find(token)
            assert message is not None
            self.lost_tokens.append(token)
            self.model.messages.remove(message)
        self.harness.log.fill_disk()
        operations: list[Operation] = [send, Peek(MAIN, 0, 1000), Complete(tokens, "done")]
        if data.draw(st.booleans()):
            operations.reverse()
        answers = self.run_cycle([(client, each) for each in operations])[client]
        self.harness.log.empty_disk()
        assert Settled("done", failures) in answers
        shown = next(each for each in answers if isinstance(each, Peeked))
        assert all(number < self.model.next_number for number in shown.sequence_numbers), (
            "what is refused is not shown"
        )
        if made:
            refused = next(each for each in answers if isinstance(each, Failed))
            assert refused.reason is Reason.DISK_FULL and refused.cookie == "send"
        else:
            sent = next(each for each in answers if isinstance(each, Sent))
            assert sent.duplicates == self.dropped, "duplicates need no room"
