"""Check the partition against a naive model: random operations of every kind (sends, receives, settlements,
sessions, schedules, duplicates, transactions, forwarding, operations of our own, streams), clock steps,
restarts, failed commits, full disks, compaction.

The partition runs through its task (`PartitionTask.step`) on a log in memory. The model is plain lists: each
message, and the client that holds it. Where the partition has a choice (which client it serves first), the
model checks that the choice was allowed: the oldest available messages go to a client that wants them, and no
message stays while a client waits for it. Each example draws which of the features its queue has.

`make test` runs the same examples each time; `make simulate` runs many more, from a seed that it draws. A
failure prints the line that replays it:

    MODEL_SEED=123 make test ARGS=tests/property/test_partition_model.py

MODEL_EXAMPLES and MODEL_STEPS make a run longer.
"""

from __future__ import annotations

from dataclasses import replace

import hypothesis
import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import invariant, precondition, rule

from broker.entities.descriptions import MAIN, MESSAGE_OVERHEAD_BYTES
from broker.operations.general import Update, Updated
from broker.operations.message_states import MessageState
from broker.partition.health import Health
from broker.partition.origins import Origins
from tests.property.partition_driver import LOOKER, PLANS, SEED, STEPS, Plan
from tests.property.partition_faults import PartitionFaults
from tests.property.partition_forwarding import SOURCES, PartitionForwarding
from tests.property.partition_model import ALL_SUBQUEUES, CHANGES, CLIENTS, SESSIONS, SUBQUEUES
from tests.property.partition_outcomes import EXAMPLES, OFTEN, ran, rare
from tests.property.partition_own_operations import PartitionOwnOperations
from tests.property.partition_receiving import PartitionReceiving
from tests.property.partition_streams import PartitionStreams
from tests.property.partition_transactions import DELAYS_MS


class PartitionMachine(
    PartitionFaults,
    PartitionReceiving,
    PartitionOwnOperations,
    PartitionForwarding,
    PartitionStreams,
):
    """All of these. Each rule applies the same operations to the partition and to the model; those here are
    what clients do in a row, so that it happens often."""

    @rule(
        data=st.data(),
        client=st.sampled_from(CLIENTS),
        plan=PLANS,
        end=st.sampled_from(["complete", "abandon", "defer", "dead-letter", "release", "renew"]),
        changed=st.sampled_from(CHANGES),
        delay_ms=st.sampled_from(DELAYS_MS),
    )
    def receive_and_settle(
        self,
        data: st.DataObject,
        client: int,
        plan: Plan,
        end: str,
        changed: bytes | None,
        delay_ms: int,
    ) -> None:
        """What becomes of messages that a client has just received."""
        self.send_and_receive(client, plan, 6)
        match end:
            case "complete":
                self.complete(data, client)
            case "abandon":
                self.abandon(data, client, changed, delay_ms)
            case "defer":
                self.defer(data, client, changed)
            case "dead-letter":
                self.dead_letter(data, client, changed)
            case "release":
                self.release(data, client)
            case "renew":
                self.renew(data, client, delay_ms or None)

    @rule(data=st.data(), client=st.sampled_from(CLIENTS), plan=PLANS, changed=st.sampled_from(CHANGES))
    def defer_and_fetch(self, data: st.DataObject, client: int, plan: Plan, changed: bytes | None) -> None:
        """Fetch messages that the client has deferred: those that are still there."""
        self.send_and_receive(client, plan, 6)
        self.defer(data, client, changed)
        self.catch_up()
        held = self.model.held_by(client)
        session = held[0] if held is not None else None
        numbers = [
            each.number
            for each in self.model.in_order(MAIN)
            if each.deferred and not each.is_locked and session in (None, each.session)
        ]
        if numbers:
            self.fetch(client, MAIN, numbers[-3:], session)

    @rule(data=st.data(), client=st.sampled_from(CLIENTS), plan=PLANS, is_full=st.booleans())
    def dead_letter_and_redrive(self, data: st.DataObject, client: int, plan: Plan, is_full: bool) -> None:
        """Send dead letters again that no receiver waits for."""
        self.send_and_receive(client, plan, 6)
        self.dead_letter(data, client, None)
        self.redrive(client, 5, None, is_full, None, 0)

    @rule(data=st.data(), client=st.sampled_from(CLIENTS), plan=PLANS)
    def transact_everything(self, data: st.DataObject, client: int, plan: Plan) -> None:
        """A transaction that settles, sends, cancels, schedules and transfers messages."""
        at_once = [None] * 5
        self.send_and_receive(client, replace(plan, later_ms=None), 6)
        self.send(client, replace(plan, count=1, ids=[*at_once], later_ms=[3_600_000] * 5))
        self.promise_numbers(2)
        self.carry_out(client, self.everything(data, client, plan))

    @rule(
        lock_ms=st.sampled_from([5_000, 10_000]),
        max_deliveries=st.sampled_from([2, 3]),
        dead_letter_expired=st.booleans(),
    )
    def update(self, lock_ms: int, max_deliveries: int, dead_letter_expired: bool) -> None:
        """Settings change while the partition runs."""
        self.catch_up()
        model = self.model
        model.lock_ms, model.max_deliveries = lock_ms, max_deliveries
        model.dead_letter_expired = dead_letter_expired
        self.harness.change(
            lock_duration_ms=lock_ms,
            max_delivery_count=max_deliveries,
            dead_lettering_on_expiration=dead_letter_expired,
        )
        assert self.one(LOOKER, Update(self.harness.description, "new")) == Updated("new")

    @precondition(lambda self: hasattr(self, "model") and self.model.requires_session)
    @rule(data=st.data(), client=st.sampled_from(CLIENTS), plan=PLANS, closes=st.booleans())
    def work_on_a_session(self, data: st.DataObject, client: int, plan: Plan, closes: bool) -> None:
        """What a client of sessions does: it holds messages of its session when it closes it, or renews it
        to hold them for longer."""
        self.send_and_receive(client, plan, 3)
        if closes:
            self.detach(data, client)
            return
        half_ms = self.model.lock_ms // 2
        self.advance(half_ms)
        self.renew_session(client, SESSIONS[0])
        self.advance(half_ms + 1_000)

    # --- invariants -----------------------------------------------------------------------------------------

    @invariant()
    def they_agree(self) -> None:
        ran["step"] += 1
        if hasattr(self, "model") and self.harness.task.health is Health.HEALTHY:
            self.the_same_messages_are_there()
            self.counts_agree()
            self.the_same_origins_are_kept()
            self.nobody_waits_for_what_is_available()

    def nobody_waits_for_what_is_available(self) -> None:
        for subqueue in SUBQUEUES:
            waiting = any(wanted for (_, each), wanted in self.model.demand.items() if each == subqueue)
            assert not (waiting and self.model.available(subqueue)), (
                "a message lies here while somebody waits"
            )
        for session, hold in self.model.holds.items():
            assert not (any(hold.clients.values()) and self.model.available_in(session)), (
                "a message lies here while the holder of its session waits"
            )
        assert not (self.awaits_session and self.model.free_sessions), "a session is free, and nobody is told"
        for subqueue, first in self.watched.items():
            seen = [each.number for each in self.model.in_order(subqueue) if each.number >= first]
            assert not seen, "a message is there to be seen, and nobody is told"

    def the_same_messages_are_there(self) -> None:
        for subqueue in ALL_SUBQUEUES:
            found = self.partition.messages.find(subqueue).references
            assert {
                number: (each.state, each.delivery_count, each.size, each.session_id, each.lease is not None)
                for number, each in found.items()
            } == {
                each.number: (each.state, each.deliveries, len(each.body), each.session, each.is_locked)
                for each in self.model.messages
                if each.subqueue == subqueue
            }

    def the_same_origins_are_kept(self) -> None:
        origins = self.partition.messages.states.of(Origins)
        for source in SOURCES:
            assert sorted(origins.of(source)) == sorted(self.model.origins.get(source, []))

    def counts_agree(self) -> None:
        counts = self.harness.task.counts()
        for subqueue in ALL_SUBQUEUES:
            mine = self.model.in_order(subqueue)
            states = [each.state for each in mine]
            assert counts[subqueue].active == states.count(MessageState.ACTIVE)
            assert counts[subqueue].deferred == states.count(MessageState.DEFERRED)
            assert counts[subqueue].scheduled == states.count(MessageState.SCHEDULED)
            assert counts[subqueue].locked == sum(each.is_locked for each in mine)
            # The partition's own check compares these with what each message has.
            state = self.partition.messages.find(subqueue)
            more_bytes = state.changed_bytes + state.column_bytes + state.session_bytes
            sizes = [len(each.body) + MESSAGE_OVERHEAD_BYTES for each in mine]
            assert counts[subqueue].bytes == sum(sizes) + more_bytes


LONG = settings(
    max_examples=EXAMPLES,
    stateful_step_count=STEPS,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
TestPartitionModel = hypothesis.seed(SEED)(PartitionMachine).TestCase
TestPartitionModel.settings = LONG


def test_every_operation_ran(capsys: pytest.CaptureFixture[str]) -> None:
    """Runs after the model, which would prove nothing about an operation that it never carries out."""
    assert ran, "run this test together with the model"
    with capsys.disabled():
        print(
            "\nthe partition's model ran", ", ".join(f"{each} {count}" for each, count in ran.most_common())
        )
    assert not rare(), f"each must have come {OFTEN} times"
