"""The rules of the queue, one by one: what each operation does and what it refuses. Runs through the task, on
a log in memory."""

from __future__ import annotations

import gc

import pytest

from broker.base.errors import Reason
from broker.entities.descriptions import (
    DEAD_LETTER,
    MAIN,
    MESSAGE_OVERHEAD_BYTES,
    TRANSFER_DEAD_LETTER,
    QueueSettings,
)
from broker.message.changes import encode_changes
from broker.operations import (
    Abandon,
    Complete,
    DeadLetter,
    Defer,
    Demand,
    Detach,
    Failed,
    Locked,
    MessageState,
    Peek,
    Recalled,
    ReceiveDeferred,
    Release,
    Renewed,
    RenewLocks,
    Send,
    Sent,
    Settled,
    Unmet,
    Update,
    Updated,
    Withdraw,
    Withdrawn,
    partition_of,
    partition_of_token,
    sequence_of_token,
)
from broker.partition import records
from broker.partition.batch_bounds import Bounds
from broker.partition.records import Mark
from broker.partition.task import TaskLimits
from protocol.codec import decode
from tests.support.partition_harness import NUMBER, Harness, one

LOCK_MS = QueueSettings().lock_duration_ms


def properties(changed: bytes | None) -> dict[str, object]:
    return dict(decode(changed)[0]) if changed is not None else {}


# --- sending ------------------------------------------------------------------------------------------------


async def test_sequence_numbers_carry_the_partition_and_follow_each_other_without_a_gap() -> None:
    harness = Harness()
    assert await harness.send(b"a", b"b") == NUMBER << 48 | 1
    assert await harness.send(b"c") == NUMBER << 48 | 3
    assert partition_of(NUMBER << 48 | 3) == NUMBER


async def test_sequence_numbers_are_never_used_again_after_a_restart_or_when_all_messages_are_gone() -> None:
    harness = Harness()
    await harness.send(b"a", b"b")
    await harness.do(1, Complete((await harness.receive(1, 2)).tokens))
    await harness.restart()
    assert await harness.send(b"c") == NUMBER << 48 | 3


async def test_enqueued_times_do_not_run_backwards_when_the_clock_does() -> None:
    harness = Harness()
    await harness.send(b"a")
    before_ms = harness.clock.now_ms()
    await harness.restart()
    harness.clock.step(-10_000)
    await harness.send(b"b")
    assert (await harness.peek()).enqueued_at_ms == [before_ms, before_ms]


async def test_a_partition_holds_the_whole_of_max_size_and_a_send_beyond_it_is_refused_whole() -> None:
    harness = Harness(QueueSettings(max_size_mb=1))
    limit = 1 << 20
    assert harness.description.partitions == 16
    state = 2 * MESSAGE_OVERHEAD_BYTES
    await harness.send(b"x" * (limit - state - 10))
    refused = one(await harness.do(1, Send([b"1234567890", b"1"], None, "mine")), Failed)
    assert (
        refused.reason is Reason.QUOTA_EXCEEDED
        and refused.cookie == "mine"
        and str(limit) in refused.description
    )
    await harness.send(b"1234567890")
    assert harness.task.live_bytes == limit - state


async def test_each_message_counts_for_its_state_in_memory_so_that_the_smallest_ones_fill_a_queue_too() -> (
    None
):
    harness = Harness(QueueSettings(max_size_mb=1))
    most = (1 << 20) // (1 + MESSAGE_OVERHEAD_BYTES)
    await harness.send(*[b"x"] * most)
    assert one(await harness.do(1, Send([b"x"], None)), Failed).reason is Reason.QUOTA_EXCEEDED
    counts = harness.task.counts()[MAIN]
    assert (counts.active, counts.bytes) == (most, most * (1 + MESSAGE_OVERHEAD_BYTES))
    assert harness.budget.state_bytes == most * MESSAGE_OVERHEAD_BYTES
    lease = await harness.receive(2, most)
    await harness.do(2, Complete(lease.tokens))
    assert (harness.budget.state_bytes, harness.task.counts()[MAIN].bytes) == (0, 0)
    assert await harness.send(b"x")


async def test_changed_properties_count_until_their_message_is_gone() -> None:
    harness = Harness(QueueSettings(max_size_mb=1))
    await harness.send(b"x")
    changed = encode_changes({"note": "n" * 1_000})
    assert changed is not None
    lease = await harness.receive(2)
    await harness.do(2, Abandon(lease.tokens, changed))
    assert harness.budget.state_bytes == MESSAGE_OVERHEAD_BYTES + len(changed)
    await harness.restart()
    lease = await harness.receive(2)
    assert (
        harness.task.counts()[MAIN].bytes
        == 1 + harness.budget.state_bytes
        == 1 + MESSAGE_OVERHEAD_BYTES + len(changed)
    )
    await harness.do(2, Complete(lease.tokens))
    assert harness.budget.state_bytes == 0


async def test_an_empty_send_is_answered_and_changes_nothing() -> None:
    harness = Harness()
    assert isinstance(one(await harness.do(1, Send([], None)), Sent), Sent)
    assert await harness.send(b"a") == NUMBER << 48 | 1


# --- handing out --------------------------------------------------------------------------------------------


async def test_a_lock_names_the_message_its_partition_and_its_end() -> None:
    harness = Harness()
    number = await harness.send(b"body")
    locked = await harness.receive(1)
    assert (
        locked.messages == [b"body"] and locked.sequence_numbers == [number] and locked.delivery_counts == [0]
    )
    assert locked.partition == NUMBER and locked.subqueue == MAIN
    assert locked.locked_until_ms == harness.clock.monotonic_ms() + LOCK_MS
    (token,) = locked.tokens
    assert len(token) == 16 and sequence_of_token(token) == number and partition_of_token(token) == NUMBER


async def test_messages_go_out_in_the_order_in_which_they_came() -> None:
    harness = Harness()
    await harness.send(*[b"%d" % index for index in range(10)])
    first, second = await harness.receive(1, 4), await harness.receive(2, 4)
    assert first.messages + second.messages == [b"%d" % index for index in range(8)]


async def test_a_message_given_back_goes_out_again_before_later_ones() -> None:
    harness = Harness()
    await harness.send(b"a", b"b", b"c")
    locked = await harness.receive(1, 2)
    await harness.do(1, Release([locked.tokens[0]]))
    assert (await harness.receive(2, 2)).messages == [b"a", b"c"]


async def test_demand_waits_and_is_met_by_what_comes_in_the_commit_that_brings_it() -> None:
    harness = Harness()
    assert await harness.do(1, Demand(MAIN, 3)) == []
    await harness.send(b"a")
    assert one(harness.take(1), Locked).messages == [b"a"]
    await harness.send(b"b", b"c", b"d")
    assert one(harness.take(1), Locked).messages == [b"b", b"c"]


async def test_one_batch_gives_a_client_one_answer_for_all_its_messages() -> None:
    harness = Harness()
    harness.post(1, Demand(MAIN, 100))
    for _ in range(5):
        harness.post(2, Send([b"x", b"y"], None))
    await harness.settle()
    assert len(one(harness.take(1), Locked).tokens) == 10


async def test_clients_that_wait_are_served_in_turns() -> None:
    harness = Harness()
    for client in (1, 2, 3):
        await harness.do(client, Demand(MAIN, 2))
    order = []
    for _ in range(6):
        await harness.send(b"x")
        order += [
            client
            for client in (1, 2, 3)
            if any(isinstance(answer, Locked) for answer in harness.take(client))
        ]
    assert order == [1, 2, 3, 1, 2, 3]


async def test_a_demand_that_cannot_be_met_says_so_if_asked_to() -> None:
    harness = Harness()
    assert await harness.do(1, Demand(MAIN, 1, tell_unmet=True)) == [Unmet(NUMBER, MAIN)]
    await harness.do(1, Withdraw(MAIN))
    await harness.send(b"a")
    assert isinstance(one(await harness.do(1, Demand(MAIN, 1, tell_unmet=True)), Locked), Locked)


async def test_a_batch_hands_out_no_more_bytes_than_its_bound_and_the_next_one_goes_on() -> None:
    harness = Harness(limits=TaskLimits(bounds=Bounds(granted_bytes_max=1000)))
    await harness.send(*[b"x" * 400] * 10)
    answers = await harness.do(1, Demand(MAIN, 10))
    assert [len(answer.tokens) for answer in answers if isinstance(answer, Locked)] == [3, 3, 3, 1]


async def test_withdrawn_comes_after_the_last_message() -> None:
    harness = Harness()
    await harness.send(b"a")
    answers = await harness.do(1, Demand(MAIN, 5), Withdraw(MAIN))
    assert isinstance(answers[0], Locked) and answers[1:] == [Withdrawn(NUMBER, MAIN)]
    await harness.send(b"b")
    assert harness.take(1) == []


async def test_an_unknown_subqueue_is_refused() -> None:
    harness = Harness()
    refused = one(await harness.do(1, Peek("no such", 0, 1, "mine")), Failed)
    assert refused.reason is Reason.ENTITY_NOT_FOUND and refused.cookie == "mine"


# --- settling -----------------------------------------------------------------------------------------------


async def test_a_completed_message_is_gone_also_after_a_restart() -> None:
    harness = Harness()
    await harness.send(b"a", b"b")
    locked = await harness.receive(1, 2)
    assert await harness.do(1, Complete([locked.tokens[0]], "mine")) == [Settled("mine", {})]
    await harness.restart()
    assert (await harness.peek()).messages == [b"b"]


async def test_a_settlement_reaches_the_good_tokens_and_names_the_others_by_place() -> None:
    harness = Harness()
    await harness.send(b"a", b"b")
    good = (await harness.receive(1, 2)).tokens
    tokens = [bytes(16), good[0], b"short", good[0], good[1][:8] + bytes(8), good[1]]
    failures = dict.fromkeys((0, 2, 3, 4), Reason.LOCK_LOST)
    assert await harness.do(1, Complete(tokens)) == [Settled(None, failures)]
    assert (await harness.peek()).messages == []


async def test_a_token_of_an_earlier_life_opens_nothing() -> None:
    harness = Harness()
    await harness.send(b"a")
    old = await harness.receive(1)
    await harness.restart()
    new = await harness.receive(1)
    assert new.tokens != old.tokens
    assert await harness.do(1, Complete(old.tokens)) == [Settled(None, {0: Reason.LOCK_LOST})]
    assert await harness.do(1, Complete(new.tokens)) == [Settled(None, {})]


async def test_abandon_counts_a_delivery_and_release_does_not() -> None:
    harness = Harness()
    await harness.send(b"a")
    await harness.do(1, Release((await harness.receive(1)).tokens))
    locked = await harness.receive(1)
    assert locked.delivery_counts == [0]
    await harness.do(1, Abandon(locked.tokens))
    assert (await harness.receive(1)).delivery_counts == [1]
    await harness.restart()
    assert (await harness.receive(1)).delivery_counts == [1]


async def test_after_ten_failed_deliveries_a_message_is_dead_lettered_with_the_reason() -> None:
    harness = Harness()
    await harness.send(b"a")
    for count in range(10):
        locked = await harness.receive(1)
        assert locked.delivery_counts == [count]
        await harness.do(1, Abandon(locked.tokens))
    assert (await harness.peek()).messages == []
    dead = await harness.receive(1, subqueue=DEAD_LETTER)
    assert dead.messages == [b"a"] and dead.delivery_counts == [10]
    changed = properties(dead.changed[0])
    assert changed["DeadLetterReason"] == "MaxDeliveryCountExceeded" and isinstance(
        changed["DeadLetterErrorDescription"], str
    )


async def test_changes_of_an_abandon_and_of_a_dead_lettering_are_both_there() -> None:
    harness = Harness()
    await harness.send(b"a")
    await harness.do(
        1, Abandon((await harness.receive(1)).tokens, encode_changes({"colour": "red", "size": 1}))
    )
    await harness.do(
        1,
        DeadLetter((await harness.receive(1)).tokens, encode_changes({"size": 2, "DeadLetterReason": "bad"})),
    )
    for _ in range(2):
        dead = await harness.peek(DEAD_LETTER)
        assert properties(dead.changed[0]) == {"colour": "red", "size": 2, "DeadLetterReason": "bad"}
        await harness.restart()


async def test_the_dead_letter_subqueue_is_a_queue_that_leads_no_further() -> None:
    harness = Harness(QueueSettings(max_delivery_count=1, default_time_to_live_ms=LOCK_MS // 2))
    number = await harness.send(b"a")
    await harness.do(1, DeadLetter((await harness.receive(1)).tokens))
    await harness.advance(LOCK_MS)
    for _ in range(3):
        locked = await harness.receive(1, subqueue=DEAD_LETTER)
        assert locked.sequence_numbers == [number] and locked.delivery_counts == [0]
        await harness.do(1, Abandon(locked.tokens))
    assert harness.task.counts()[DEAD_LETTER].active == 1
    await harness.do(1, Complete((await harness.receive(1, subqueue=DEAD_LETTER)).tokens))
    assert harness.task.counts()[DEAD_LETTER].active == 0 and harness.task.live_bytes == 0


@pytest.mark.parametrize("subqueue", [DEAD_LETTER, TRANSFER_DEAD_LETTER])
async def test_a_dead_letter_subqueue_counts_no_delivery(subqueue: str) -> None:
    harness = Harness()
    number = await in_subqueue(harness, subqueue)
    for give_back in (Abandon, Defer):
        await harness.do(
            1,
            give_back(
                (await harness.receive(1, subqueue=subqueue)).tokens,
                encode_changes({"by": give_back.__name__}),
            ),
        )
        await harness.restart()
        (count,), (changed,) = (peeked := await harness.peek(subqueue)).delivery_counts, peeked.changed
        assert count == 1 and properties(changed) == {"by": give_back.__name__}, (
            "the one that the main subqueue counted"
        )
    locked = one(await harness.do(1, ReceiveDeferred(subqueue, [number])), Locked)
    await harness.advance(LOCK_MS)
    assert one(await harness.do(1, Complete(locked.tokens)), Settled).failures == {0: Reason.LOCK_LOST}
    assert (await harness.peek(subqueue)).delivery_counts == [1]


async def test_an_abandon_without_changes_in_a_dead_letter_subqueue_writes_nothing() -> None:
    harness = Harness()
    await in_subqueue(harness, DEAD_LETTER)
    locked = await harness.receive(1, subqueue=DEAD_LETTER)
    end = harness.log.end
    await harness.do(1, Abandon(locked.tokens))
    assert harness.log.end == end


@pytest.mark.parametrize("subqueue", [DEAD_LETTER, TRANSFER_DEAD_LETTER])
async def test_dead_lettering_in_a_dead_letter_subqueue_is_refused_and_the_lock_goes_on(
    subqueue: str,
) -> None:
    harness = Harness()
    await in_subqueue(harness, subqueue)
    before = await harness.peek(subqueue)
    locked = await harness.receive(1, subqueue=subqueue)
    await harness.send(b"main")
    in_main = (await harness.receive(1)).tokens[0]
    tokens = [bytes(16), locked.tokens[0], in_main, in_main]
    settled = one(
        await harness.do(1, DeadLetter(tokens, encode_changes({"DeadLetterReason": "again"}))), Settled
    )
    assert settled.failures == {0: Reason.LOCK_LOST, 1: Reason.NOT_ALLOWED, 3: Reason.LOCK_LOST}
    after = await harness.peek(subqueue)
    assert (after.changed[0], after.delivery_counts[0]) == (before.changed[0], before.delivery_counts[0])
    assert harness.task.counts()[subqueue].locked == 1
    assert one(await harness.do(1, Complete(locked.tokens)), Settled).failures == {}


async def test_a_record_of_an_earlier_release_that_deferred_without_counting_is_read_so() -> None:
    harness = Harness()
    number = await harness.send(b"a")
    commit = harness.log.begin()
    commit.add(records.DEFERRED, [records.encode_mark(Mark(records.DEFERRED, 0, [number]))], 1)
    await harness.log.append(commit)
    await harness.restart(clean=False)
    peeked = await harness.peek()
    assert (peeked.states, peeked.delivery_counts) == ([MessageState.DEFERRED], [0])


async def in_subqueue(harness: Harness, subqueue: str) -> int:
    """A message in a dead-letter subqueue, abandoned once before it got there."""
    number = await harness.send(b"a")
    await harness.do(1, Abandon((await harness.receive(1)).tokens))
    if subqueue == DEAD_LETTER:
        await harness.do(1, DeadLetter((await harness.receive(1)).tokens))
    else:  # no operation moves messages to the transfer dead-letter queue yet
        commit = harness.log.begin()
        commit.add(records.MOVED, [records.encode_mark(Mark(records.MOVED, 0, [number], None, 2))], 1)
        await harness.log.append(commit)
        await harness.restart(clean=False)
    return number


async def test_messages_dead_lettered_out_of_order_are_handed_out_and_shown_in_order() -> None:
    harness = Harness()
    await harness.send(*[b"%d" % index for index in range(6)])
    tokens = (await harness.receive(1, 6)).tokens
    for index in (4, 1, 3):
        await harness.do(1, DeadLetter([tokens[index]]))
    assert (await harness.peek(DEAD_LETTER)).messages == [b"1", b"3", b"4"]
    assert (await harness.receive(2, 2, DEAD_LETTER)).messages == [b"1", b"3"]
    await harness.do(1, DeadLetter([tokens[0]]))
    assert (await harness.receive(2, 2, DEAD_LETTER)).messages == [b"0", b"4"]


# --- deferring ----------------------------------------------------------------------------------------------


async def test_a_deferred_message_is_found_by_its_number_only() -> None:
    harness = Harness()
    number = await harness.send(b"a", b"b")
    await harness.do(1, Defer([(await harness.receive(1)).tokens[0]], encode_changes({"later": True})))
    assert (await harness.receive(2, 5)).messages == [b"b"]
    peeked = await harness.peek()
    assert peeked.states == [MessageState.DEFERRED, MessageState.ACTIVE]
    await harness.restart()
    locked = one(await harness.do(1, ReceiveDeferred(MAIN, [number], "mine")), Locked)
    assert (
        locked.deferred
        and locked.cookie == "mine"
        and locked.messages == [b"a"]
        and properties(locked.changed[0]) == {"later": True}
    )
    await harness.do(1, Complete(locked.tokens))
    assert (await harness.peek()).messages == [b"b"]


async def test_deferred_messages_are_fetched_all_or_none() -> None:
    harness = Harness()
    first = await harness.send(b"a", b"b", b"c")
    await harness.do(1, Defer((await harness.receive(1, 2)).tokens))
    for missing in (first + 2, first + 99):
        assert (
            one(await harness.do(1, ReceiveDeferred(MAIN, [first, missing])), Failed).reason
            is Reason.MESSAGE_NOT_FOUND
        )
    locked = one(await harness.do(1, ReceiveDeferred(MAIN, [first + 1, first])), Locked)
    assert locked.messages == [b"b", b"a"]
    assert one(await harness.do(2, ReceiveDeferred(MAIN, [first])), Failed).reason is Reason.MESSAGE_NOT_FOUND


@pytest.mark.parametrize(("give_back", "count"), [(Abandon, 2), (Release, 1), (Defer, 2)])
async def test_a_deferred_message_that_is_given_back_stays_deferred(
    give_back: type[Abandon | Release | Defer], count: int
) -> None:
    harness = Harness()
    number = await harness.send(b"a")
    await harness.do(1, Defer((await harness.receive(1)).tokens))
    await harness.do(1, give_back(one(await harness.do(1, ReceiveDeferred(MAIN, [number])), Locked).tokens))
    assert await harness.do(1, Demand(MAIN, 1)) == []
    assert one(await harness.do(1, ReceiveDeferred(MAIN, [number])), Locked).delivery_counts == [count]


async def test_a_deferred_message_does_not_expire() -> None:
    harness = Harness()
    await harness.send(b"a", ttl=[1000])
    await harness.do(1, Defer((await harness.receive(1)).tokens))
    await harness.advance(LOCK_MS * 2)
    assert (await harness.peek()).messages == [b"a"]


# --- locks and time -----------------------------------------------------------------------------------------


async def test_a_lock_that_runs_out_counts_a_delivery_and_the_message_goes_to_who_waits() -> None:
    harness = Harness()
    await harness.send(b"a")
    await harness.receive(1)
    await harness.do(2, Demand(MAIN, 1))
    await harness.advance(LOCK_MS - 1)
    assert not any(isinstance(answer, Locked) for answer in harness.take(2))
    await harness.advance(1 + Bounds().tick_ms)
    assert one(harness.take(2), Locked).delivery_counts == [1]
    await harness.restart()
    assert (await harness.receive(1)).delivery_counts == [1]


async def test_a_lock_is_lost_at_the_millisecond_it_ends_although_no_timer_has_fired() -> None:
    harness = Harness()
    harness.clock.advance(7)  # so that the timer is due some milliseconds after the end of the lock
    await harness.send(b"a")
    locked = await harness.receive(1)
    harness.clock.advance(LOCK_MS)
    answers = await harness.do(1, RenewLocks(locked.tokens), Complete(locked.tokens))
    assert answers == [
        Renewed(harness.clock.monotonic_ms() + LOCK_MS, None, {0: Reason.LOCK_LOST}),
        Settled(None, {0: Reason.LOCK_LOST}),
    ]


async def test_a_renewed_lock_keeps_its_token_and_lasts_longer() -> None:
    harness = Harness()
    await harness.send(b"a", b"b", b"c")
    tokens = (await harness.receive(1, 2)).tokens + (await harness.receive(1, 1)).tokens
    harness.clock.advance(LOCK_MS // 2)
    renewed = one(
        await harness.do(1, RenewLocks([tokens[0], bytes(16), tokens[2], tokens[0]], "mine")), Renewed
    )
    assert renewed == Renewed(harness.clock.monotonic_ms() + LOCK_MS, "mine", {1: Reason.LOCK_LOST})
    await harness.advance(LOCK_MS // 2 + 1000)
    assert await harness.do(1, Complete(tokens)) == [Settled(None, {1: Reason.LOCK_LOST})]


async def test_an_expired_message_is_dropped_or_dead_lettered_as_the_queue_says() -> None:
    for dead_lettering in (False, True):
        harness = Harness(QueueSettings(dead_lettering_on_expiration=dead_lettering))
        await harness.send(b"a", b"b", b"c", ttl=[1000, None, 3000])
        await harness.advance(1000 + Bounds().tick_ms)
        assert (await harness.peek()).messages == [b"b", b"c"]
        dead = await harness.peek(DEAD_LETTER)
        assert dead.messages == ([b"a"] if dead_lettering else [])
        if dead_lettering:
            assert properties(dead.changed[0])["DeadLetterReason"] == "TTLExpiredException"
        await harness.restart()
        assert (await harness.peek()).messages == [b"b", b"c"]
        await harness.advance(2000 + Bounds().tick_ms)
        assert (await harness.peek()).messages == [b"b"]


async def test_the_queues_time_to_live_caps_the_messages_own() -> None:
    harness = Harness(QueueSettings(default_time_to_live_ms=5000))
    await harness.send(b"a", b"b", b"c", ttl=[1000, 9000, None])
    now_ms = harness.clock.now_ms()
    assert (await harness.peek()).expires_at_ms == [now_ms + 1000, now_ms + 5000, now_ms + 5000]


async def test_an_expired_message_is_never_handed_out_although_no_timer_has_fired() -> None:
    harness = Harness()
    harness.clock.advance(3)
    await harness.send(b"a", b"b", ttl=[10, None])
    harness.clock.advance(10)
    assert (await harness.receive(1, 2)).messages == [b"b"]
    assert (await harness.peek()).messages == [b"b"]


async def test_a_locked_message_expires_when_its_lock_ends() -> None:
    for end in ("complete", "release", "abandon", "time"):
        harness = Harness(QueueSettings(dead_lettering_on_expiration=True))
        await harness.send(b"a", ttl=[1000])
        locked = await harness.receive(1)
        await harness.advance(2000)
        assert (await harness.peek()).messages == [b"a"]
        if end == "complete":
            assert await harness.do(1, Complete(locked.tokens)) == [Settled(None, {})]
        elif end == "time":
            await harness.advance(LOCK_MS)
        else:
            await harness.do(1, Release(locked.tokens) if end == "release" else Abandon(locked.tokens))
        assert harness.task.counts()[MAIN].active == 0
        assert harness.task.counts()[DEAD_LETTER].active == (0 if end == "complete" else 1)


async def test_many_messages_that_expire_at_once_go_in_bounded_batches() -> None:
    harness = Harness(limits=TaskLimits(bounds=Bounds(expired_max=10)))
    await harness.send(*[b"x"] * 35, ttl=[1000] * 35)
    before = harness.log.appends
    await harness.advance(2000)
    assert harness.task.counts()[MAIN].active == 0 and harness.log.appends == before + 4


# --- peeking, settings, leaving -----------------------------------------------------------------------------


async def test_peeking_pages_through_everything_once_in_any_state() -> None:
    harness = Harness()
    await harness.send(*[b"%d" % index for index in range(9)])
    tokens = (await harness.receive(1, 4)).tokens
    await harness.do(1, Defer([tokens[1]]))
    seen: list[bytes] = []
    start = 0
    while (page := await harness.peek(start=start, count=4)).messages:
        seen += page.messages
        start = page.sequence_numbers[-1] + 1
    assert seen == [b"%d" % index for index in range(9)]


async def test_a_peek_shows_no_more_bytes_than_its_bound_but_at_least_one_message() -> None:
    harness = Harness(limits=TaskLimits(bounds=Bounds(peeked_bytes_max=100)))
    await harness.send(b"x" * 500, b"y" * 60, b"z" * 60)
    first, rest = await harness.peek(), await harness.peek(start=NUMBER << 48 | 2)
    assert (len(first.messages), first.more, len(rest.messages), rest.more) == (1, True, 2, False)


async def test_a_message_is_not_shown_before_it_is_durable() -> None:
    harness = Harness()
    answers = await harness.do(1, Send([b"a"], None), Peek(MAIN, 0, 10))
    assert answers[1].messages == []  # type: ignore[union-attr]
    assert (await harness.peek()).messages == [b"a"]


async def test_an_update_makes_the_partition_work_with_the_new_settings() -> None:
    harness = Harness()
    await harness.send(b"a", b"b")
    harness.change(lock_duration_ms=5_000, max_delivery_count=1)
    assert (await harness.receive(1)).locked_until_ms == harness.clock.monotonic_ms() + LOCK_MS
    assert await harness.do(1, Update(harness.description, "mine")) == [Updated("mine")]
    locked = await harness.receive(1)
    assert locked.locked_until_ms == harness.clock.monotonic_ms() + 5_000
    await harness.do(1, Abandon(locked.tokens))
    assert harness.task.counts()[DEAD_LETTER].active == 1


async def test_a_client_that_leaves_gives_back_what_it_never_saw_and_keeps_the_rest_locked() -> None:
    harness = Harness()
    await harness.send(b"a", b"b")
    locked = await harness.receive(1, 2)
    await harness.do(1, Demand(MAIN, 5))
    await harness.do(1, Detach([locked.tokens[1]]))
    assert (await harness.receive(2, 2)).messages == [b"b"]
    counts = harness.task.counts()[MAIN]
    assert (counts.active, counts.locked) == (2, 2)
    await harness.advance(LOCK_MS + 100)
    locked = one(harness.take(2), Locked)
    assert locked.messages == [b"a"] and locked.delivery_counts == [1]
    await harness.send(b"c")
    assert harness.take(1) == []


async def test_counts_tell_states_and_bytes_of_each_subqueue() -> None:
    harness = Harness()
    await harness.send(b"12345", b"123", b"1", b"")
    tokens = (await harness.receive(1, 3)).tokens
    await harness.do(1, Defer([tokens[0]]))
    await harness.do(1, DeadLetter([tokens[1]]))
    counts = harness.task.counts()
    assert (counts[MAIN].active, counts[MAIN].locked, counts[MAIN].deferred, counts[MAIN].bytes) == (
        2,
        1,
        1,
        6 + 3 * MESSAGE_OVERHEAD_BYTES,
    )
    assert (counts[DEAD_LETTER].active, counts[DEAD_LETTER].bytes) == (1, 3 + MESSAGE_OVERHEAD_BYTES)
    assert counts[TRANSFER_DEAD_LETTER].active == 0
    await harness.do(1, Recalled(MAIN, [tokens[2]]))
    assert harness.task.counts()[MAIN].locked == 0


# --- message bodies in memory and on disk -------------------------------------------------------------------


async def test_bodies_beyond_the_budget_are_read_back_and_what_stands_beside_them_is_kept() -> None:
    harness = Harness(payload_bytes=4000)
    bodies = [b"%03d" % index + b"." * 97 for index in range(100)]
    for index in range(0, 100, 10):
        await harness.send(*bodies[index : index + 10])
    assert harness.budget.used <= 4000
    got: list[bytes] = []
    for _ in range(50):
        locked = await harness.receive(1, 2)
        got += locked.messages
        await harness.do(1, Complete(locked.tokens))
    assert got == bodies
    assert harness.log.fetches <= 10, "each frame is read once"
    assert harness.budget.used == 0


GONE: list[bytes] = []


class Body(bytes):
    """A message that reports when the last reference to it is gone. (Weak references to bytes are
    impossible.)"""

    def __del__(self) -> None:
        GONE.append(bytes(self[:1]))


async def test_the_body_of_a_settled_message_goes_at_once_while_others_of_its_lease_are_still_locked() -> (
    None
):
    GONE.clear()
    harness = Harness()
    await harness.send(*(Body(b"%d" % index * 1000) for index in range(3)))
    tokens = (await harness.receive(1, 3)).tokens
    await harness.do(1, Complete(tokens[:1]), DeadLetter(tokens[1:2]))
    await harness.do(2)
    gc.collect()
    assert GONE == [b"0"], "1 is in the dead-letter queue, 2 is locked"
    await harness.do(1, Complete(tokens[2:]))
    await harness.do(2)
    gc.collect()
    assert GONE == [b"0", b"2"]


async def test_without_any_budget_every_message_still_arrives() -> None:
    harness = Harness(payload_bytes=0)
    await harness.do(1, Demand(MAIN, 1))
    await harness.send(b"passes through")
    assert one(harness.take(1), Locked).messages == [b"passes through"] and harness.log.fetches == 0
    await harness.send(b"a", b"b", b"")
    await harness.restart()
    assert (await harness.peek()).messages == [b"passes through", b"a", b"b", b""]
    assert (await harness.receive(1, 4)).messages == [b"passes through", b"a", b"b", b""]
