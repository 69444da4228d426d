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

import hypothesis
import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import invariant, precondition, rule

from broker.base.errors import Reason
from broker.entities.descriptions import MAIN, MESSAGE_OVERHEAD_BYTES
from broker.message.changes import merge_changes
from broker.operations import (
    Abandon,
    Complete,
    DeadLetter,
    Defer,
    Delete,
    Deleted,
    Demand,
    Detach,
    Failed,
    Locked,
    MessageState,
    Peek,
    Peeked,
    Recalled,
    ReceiveDeferred,
    Release,
    Renewed,
    RenewLocks,
    Sent,
    Settled,
    Unmet,
    Withdraw,
)
from broker.partition.batch_bounds import Bounds
from broker.partition.task import Health
from tests.property.partition_driver import EXAMPLES, SEED, STEPS
from tests.property.partition_model import CHANGES, CLIENTS, LOCK_MS, SUBQUEUES, properties
from tests.property.partition_transactions import PartitionTransactions
from tests.support.partition_harness import NUMBER


class PartitionMachine(PartitionTransactions):
    """Each rule runs one batch of the partition and applies the same operations to the model."""

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


TestPartitionModel = hypothesis.seed(SEED)(PartitionMachine).TestCase
TestPartitionModel.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=STEPS,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
