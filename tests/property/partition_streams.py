"""Rules for clients that read by position: ranges account for every number, and what is completed by position
is gone. A sink writes each batch once."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis.stateful import precondition, rule

from broker.base.errors import Reason
from broker.entities.descriptions import MAIN
from broker.operations.general import Failed
from broker.operations.message_states import MessageState
from broker.operations.sending import Send
from broker.operations.streams import (
    AdvanceCursor,
    CreateCursor,
    CursorAdvanced,
    CursorState,
    FindPositions,
    GetCursor,
    Positions,
    RangeRead,
    ReadRange,
    SendSinkBatch,
    SettledThrough,
    SettleThrough,
    SinkBatchSent,
)
from tests.property.partition_driver import LOOKER, PLANS, PartitionDriver, Plan
from tests.property.partition_model import CLIENTS, SUBQUEUES, Message
from tests.support.partition_harness import NUMBER

FIRST = NUMBER << 48 | 1
CURSOR, OWNER, SINK = b"cursor", b"owner", b"sink"


class PartitionStreams(PartitionDriver):
    """A partition whose clients read by position."""

    def __init__(self) -> None:
        super().__init__()
        self.cursors: dict[str, int] = {}
        """Where the cursor of each subqueue stands."""
        self.batch: int | None = None
        """The highest batch that the sink has committed."""

    def head_of(self, subqueue: str) -> int:
        """Where a reader of the subqueue may go: dead letters keep the numbers that they had."""
        if subqueue == MAIN:
            return self.model.next_number
        undecided = [each.number for each in self.model.in_order(MAIN) if each.scheduled_ms is None]
        return min([*undecided, self.model.next_number])

    def a_position(self, data: st.DataObject, subqueue: str) -> int:
        head = self.head_of(subqueue)
        numbers = [each.number for each in self.model.in_order(subqueue)]
        return data.draw(st.sampled_from([*numbers[-8:], head, head, head + 1, FIRST]))

    def complete_below(self, subqueue: str, position: int) -> tuple[int, int]:
        """Complete messages in the model; returns how many were completed, and how many were locked."""
        below = [
            each
            for each in self.model.in_order(subqueue)
            if each.number < position and each.state is MessageState.ACTIVE
        ]
        free = [each for each in below if not each.is_locked]
        for message in free:
            self.model.messages.remove(message)
        return len(free), len(below) - len(free)

    @precondition(lambda self: self.has_messages())
    @rule(data=st.data(), client=st.sampled_from(CLIENTS), subqueue=st.sampled_from(SUBQUEUES))
    def settle_through(self, data: st.DataObject, client: int, subqueue: str) -> None:
        self.catch_up(client)
        position = self.a_position(data, subqueue)
        if position > self.head_of(subqueue):
            answer = self.one(client, SettleThrough(subqueue, position, "settle"))
            assert isinstance(answer, Failed) and answer.reason is Reason.ARGUMENT
            return
        completed, locked = self.complete_below(subqueue, position)
        answer = self.one(client, SettleThrough(subqueue, position, "settle"))
        assert answer == SettledThrough(completed, locked, "settle")

    @precondition(lambda self: hasattr(self, "model"))
    @rule(data=st.data(), subqueue=st.sampled_from(SUBQUEUES), completes=st.booleans())
    def advance_cursor(self, data: st.DataObject, subqueue: str, completes: bool) -> None:
        """A cursor stands where it was left, over restarts and failures too."""
        self.catch_up()
        if subqueue not in self.cursors:
            create = CreateCursor(subqueue, CURSOR, OWNER, FIRST, False, 0, 5, cookie="create")
            made = self.one(LOOKER, create)
            assert isinstance(made, CursorState) and (made.position, made.is_new) == (FIRST, True)
            self.cursors[subqueue] = FIRST
        found = self.one(LOOKER, GetCursor(subqueue, CURSOR))
        assert isinstance(found, CursorState) and found.position == self.cursors[subqueue]
        position = min(self.a_position(data, subqueue), self.head_of(subqueue))
        self.cursors[subqueue] = stands = max(position, found.position)
        done = self.complete_below(subqueue, position) if completes else (0, 0)
        answer = self.one(LOOKER, AdvanceCursor(subqueue, CURSOR, OWNER, position, completes, "advance"))
        assert answer == CursorAdvanced(stands, *done, "advance")

    @rule(client=st.sampled_from(CLIENTS), plan=PLANS, step=st.integers(-1, 1))
    def send_sink_batch(self, client: int, plan: Plan, step: int) -> None:
        """A sink writes its next batch, or one that it has written before."""
        self.pass_time()
        number = 0 if self.batch is None else max(self.batch + step, 0)
        if self.batch is not None and number <= self.batch:
            again = SendSinkBatch(Send([], None), SINK, number, 5, "batch")
            assert self.one(client, again) == SinkBatchSent(0, [], False, self.batch, "batch")
            return
        self.batch = number
        send, made = self.new_messages(plan)
        first = self.model.next_number
        self.stored(made)
        answer = self.one(client, SendSinkBatch(send, SINK, number, 5, "batch"))
        assert isinstance(answer, SinkBatchSent) and (answer.first == first or not made)
        assert (answer.duplicates, answer.is_new, answer.batch) == (self.dropped, True, number)

    @precondition(lambda self: self.has_messages())
    @rule(data=st.data(), subqueue=st.sampled_from(SUBQUEUES), count=st.integers(1, 6))
    def read_range(self, data: st.DataObject, subqueue: str, count: int) -> None:
        self.catch_up()
        head = self.head_of(subqueue)
        start, end = sorted(min(self.a_position(data, subqueue), head) for _ in range(2))
        found = self.one(LOOKER, FindPositions(subqueue, cookie="find"))
        assert isinstance(found, Positions) and found.head == head
        answer = self.one(LOOKER, ReadRange(subqueue, start, end, count, 1 << 20, "read"))
        assert isinstance(answer, RangeRead) and (answer.end, answer.head) == (end, head)
        here = [each for each in self.model.in_order(subqueue) if start <= each.number < end]
        active: list[Message] = []
        for each in here:
            if len(active) == count:
                assert answer.next == each.number
                break
            if each.state is MessageState.ACTIVE:
                active.append(each)
        else:
            assert answer.next == end
        seen = [each for each in here if each.number < answer.next]
        assert answer.sequence_numbers == [each.number for each in active]
        assert answer.messages == [each.body for each in active]
        assert answer.locked == sum(each.is_locked for each in active)
        assert answer.left_out == [
            sum(each.state is MessageState.DEFERRED for each in seen),
            sum(each.state is MessageState.SCHEDULED for each in seen),
            0,
        ]
        assert answer.missing + answer.dead_lettered == answer.next - start - len(seen)
