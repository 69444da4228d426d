"""Rules for what happens around a partition: time, restarts, failed commits, a full disk."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis.stateful import rule

from broker.base.clock import wall_ahead_ms
from broker.base.errors import Reason
from broker.entities.descriptions import MAIN
from broker.operations import Complete, Failed, Operation, Peek, Peeked, Settled, Unavailable
from broker.partition.batch_bounds import Bounds
from broker.partition.clock_settings import TOLERANCE_MS
from broker.partition.task import Health
from storage.errors import CommitFailed
from tests.property.partition_driver import PartitionDriver
from tests.property.partition_model import CLIENTS, SUBQUEUES
from tests.support.partition_harness import NUMBER


class PartitionFaults(PartitionDriver):
    """A partition to which all this happens."""

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
            self.harness.log.on_acquire = lambda: refusals.pop() if refusals else None
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
