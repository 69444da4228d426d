"""Changed properties are bounded by the entity's quota, and more tightly while the broker is short of
memory."""

from __future__ import annotations

import pytest

from broker.base.errors import Reason, Refused
from broker.entities.descriptions import (
    DEAD_LETTER,
    MAIN,
    MESSAGE_OVERHEAD_BYTES,
    EntityDescription,
    QueueDescription,
    QueueSettings,
)
from broker.entities.topics import TopicDescription, TopicSettings
from broker.identifiers import ClientId
from broker.message.changes import encode_changes
from broker.operations.general import Failed, Updated
from broker.operations.receiving import Locked, ReceiveDeferred
from broker.operations.sending import Send
from broker.operations.sessions import AcceptSession, SessionAccepted, SetSessionState
from broker.operations.settling import Abandon, Complete, DeadLetter, Defer, RenewLocks, Settled
from broker.operations.streams import EARLIEST, CreateCursor, CursorState, SendSinkBatch, SinkBatchSent
from broker.operations.transactions import Transact, Transacted
from broker.operations.transfers import HandedOver, HandOver
from broker.partition.changed_properties import VALUE_BYTES
from broker.partition.dead_lettering import EXPIRED, MAX_DELIVERIES
from broker.partition.quotas import check_size, freed_by
from storage.errors import DiskFull
from tests.support.partition_harness import Harness, one
from tests.support.topics import A, topic, with_subscription

MIB = 1 << 20


def change(size: int, name: str = "note") -> bytes:
    changed = encode_changes({name: "n" * size})
    assert changed is not None
    return changed


@pytest.mark.parametrize("kind", [Abandon, Defer, DeadLetter])
async def test_changed_properties_beyond_the_whole_quota_are_refused_and_the_lock_goes_on(
    kind: type[Abandon] | type[Defer] | type[DeadLetter],
) -> None:
    harness = Harness(QueueSettings(max_size_mb=1))
    await harness.send(*[b"x"] * 40)
    tokens = (await harness.receive(1, 40)).tokens
    each = len(change(32_000))
    most = MIB // each
    await harness.do(1, kind(tokens[:most], change(32_000)))
    refused = one(await harness.do(1, kind(tokens[most : most + 1], change(32_000), "mine")), Failed)
    assert (refused.reason, refused.cookie) == (Reason.QUOTA_EXCEEDED, "mine") and str(
        MIB
    ) in refused.description
    assert sum(subqueue.changed_bytes for subqueue in harness.subqueues) == most * each
    await harness.do(1, RenewLocks(tokens[most:]))
    assert one(await harness.do(1, kind(tokens[most:], None)), Settled).failures == {}


async def test_a_full_queue_still_dead_letters_with_a_reason() -> None:
    harness = Harness(QueueSettings(max_size_mb=1))
    await harness.send(b"x" * (MIB - 300))
    token = (await harness.receive(1)).tokens
    assert (
        one(await harness.do(1, DeadLetter(token, change(4_000, "DeadLetterReason"))), Settled).failures == {}
    )
    assert (await harness.peek(DEAD_LETTER)).changed == [change(4_000, "DeadLetterReason")]


async def test_what_subscriptions_share_takes_room_once_for_sends_and_for_all_else() -> None:
    description = with_subscription(
        topic(*(f"s{number}" for number in range(9)), max_size_mb=1), "a", requires_session=True
    )
    harness = Harness(description=description)
    await harness.send(b"x" * (MIB // 4))
    batch = SendSinkBatch(Send([], None), b"sink", 1, sinks_max=9)
    one(await harness.do(1, batch), SinkBatchSent)
    cursor = CreateCursor(
        "subscriptions/s0", b"c", b"me", EARLIEST, takes_over=False, expires_after_ms=0, cursors_max=9
    )
    one(await harness.do(1, cursor), CursorState)
    over = HandOver(b"source", [1], [b"y" * (MIB // 2)])
    assert one(await harness.do(1, over), HandedOver).left_out == []
    again = HandOver(b"source", [2, 3], [b"y", b"y" * (MIB // 4)])
    assert one(await harness.do(1, again), HandedOver).left_out == [1], "it is full, but not for a small one"
    one(await harness.do(1, AcceptSession(A, b"mine")), SessionAccepted)
    state = SetSessionState(A, b"mine", ClientId(1), b"z" * 1_000, states_max=9)
    one(await harness.do(1, state), Updated)


async def test_abandoning_a_message_again_and_again_takes_no_more_than_one_message_may_have() -> None:
    harness = Harness(QueueSettings(max_delivery_count=1_000))
    await harness.send(b"x")
    for round_number in range(20):
        token = (await harness.receive(1)).tokens
        await harness.do(1, Abandon(token, change(16_000, f"note {round_number}")))
    assert harness.subqueues[0].changed_bytes <= 65_536 + 1_000


async def test_while_memory_is_scarce_a_settlement_changes_little_and_frees_as_ever() -> None:
    harness = Harness()
    await harness.send(*[b"x"] * 4)
    tokens = (await harness.receive(1, 4)).tokens
    harness.budget.set_scarce(True)
    refused = one(await harness.do(1, Abandon(tokens[:1], change(2_000))), Failed)
    assert refused.reason is Reason.SERVER_BUSY and "memory" in refused.description
    for operation in (
        DeadLetter(tokens[1:2], change(100, "DeadLetterReason")),
        Complete(tokens[2:3]),
        Abandon(tokens[3:]),
    ):
        assert one(await harness.do(1, operation), Settled).failures == {}
    harness.budget.set_scarce(False)
    assert one(await harness.do(1, Abandon(tokens[:1], change(2_000))), Settled).failures == {}
    assert harness.task.counts()[MAIN].active == 2


async def test_while_memory_is_scarce_all_settlements_together_change_little_until_some_memory_is_free() -> (
    None
):
    harness, other = Harness(QueueSettings(requires_session=True)), Harness()
    other.share_with(harness)
    harness.budget.growth_bytes_min = 3 * (VALUE_BYTES + len(change(300))) + 100
    await other.send(*[b"x"] * 8)
    tokens = (await other.receive(1, 8)).tokens
    one(await harness.do(1, AcceptSession(MAIN, b"mine")), SessionAccepted)
    harness.budget.set_scarce(True)
    for number in range(3):
        changed = change(300, f"n{number}00")
        defer = Defer(tokens[number : number + 1], changed)
        assert one(await other.do(1, defer), Settled).failures == {}
    for growing in (Defer(tokens[3:4], change(300)), Abandon(tokens[3:4], change(10))):
        refused = one(await other.do(1, growing), Failed)
        assert refused.reason is Reason.SERVER_BUSY and "memory" in refused.description
    state = SetSessionState(MAIN, b"mine", ClientId(1), b"z" * 300, states_max=9)
    assert one(await harness.do(1, state), Failed).reason is Reason.SERVER_BUSY
    assert one(await other.do(1, Defer(tokens[3:4])), Settled).failures == {}, "nothing is changed"
    assert one(await other.do(1, Complete(tokens[4:6])), Settled).failures == {}
    assert one(await other.do(1, DeadLetter(tokens[6:7], change(300))), Settled).failures == {}, (
        "as much is free"
    )
    harness.budget.set_scarce(False)
    one(await harness.do(1, state), Updated)
    assert one(await other.do(1, Defer(tokens[7:], change(2_000))), Settled).failures == {}


async def test_while_memory_is_scarce_a_transaction_may_change_what_fits_into_memory() -> None:
    """Symptom: what messages share counted once for each of them, and what they had before not at all."""
    harness = Harness()
    value_bytes = VALUE_BYTES + len(change(300))
    harness.budget.growth_bytes_min = 2 * value_bytes + 100
    await harness.send(*[b"x"] * 25)
    tokens = (await harness.receive(1, 20)).tokens
    numbers = (await harness.peek()).sequence_numbers[20:]
    for number in range(5):
        token = (await harness.receive(1)).tokens
        one(await harness.do(1, Defer(token, change(300, f"n{number}"))), Settled)
    deferred = one(await harness.do(1, ReceiveDeferred(MAIN, numbers)), Locked).tokens
    harness.budget.set_scarce(True)
    two: list[Abandon | Defer | DeadLetter] = [
        DeadLetter(tokens[:10], change(300)),
        Defer(tokens[10:], change(300, "other")),
    ]
    three = [*two, Abandon(deferred[:1], change(1))]
    for refused in (three, [Defer([token], change(1)) for token in deferred]):
        failed = one(await harness.do(1, Transact(Send([], None), refused)), Failed)
        assert failed.reason is Reason.SERVER_BUSY and "memory" in failed.description
    one(await harness.do(1, Transact(Send([], None), two)), Transacted)


async def test_on_a_full_disk_a_settlement_changes_little_and_only_while_there_is_room_for_it() -> None:
    harness = Harness()
    await harness.send(*[b"x"] * 5)
    tokens = (await harness.receive(1, 5)).tokens
    harness.log.full, harness.log.growth_left = True, len(change(100))
    refused = one(await harness.do(1, Abandon(tokens[:1], change(2_000), "mine")), Failed)
    assert (refused.reason, refused.cookie) == (Reason.DISK_FULL, "mine")
    assert one(await harness.do(1, DeadLetter(tokens[:1], change(100))), Settled).failures == {}
    for growing in (DeadLetter(tokens[1:2], change(100)), Defer(tokens[1:2], change(1))):
        assert one(await harness.do(1, growing), Failed).reason is Reason.DISK_FULL
    for operation in (Complete(tokens[1:2]), Abandon(tokens[2:3]), DeadLetter(tokens[3:4], None)):
        assert one(await harness.do(1, operation), Settled).failures == {}
    harness.log.full = False
    assert one(await harness.do(1, Defer(tokens[4:], change(2_000))), Settled).failures == {}


async def test_the_log_is_told_how_much_settlements_add_if_nobody_knew_that_the_disk_is_full() -> None:
    harness = Harness()
    await harness.send(*[b"x"] * 3)
    tokens = (await harness.receive(1, 3)).tokens
    grows_by: list[int] = []
    harness.log.on_append = lambda commit, urgent: grows_by.append(commit.grows_by)
    await harness.do(1, Abandon(tokens[:2], change(100)), Complete(tokens[2:]))
    assert grows_by == [2 * len(change(100))]
    harness.log.full, harness.log.growth_left = True, 1_000
    await harness.do(1, DeadLetter((await harness.receive(1)).tokens, change(100)))
    assert grows_by[1:] == [0], "it was counted at once"
    harness.log.full = False
    tokens = (await harness.receive(1)).tokens
    harness.log.on_append = lambda commit, urgent: (
        grows_by.append(commit.grows_by) if urgent else DiskFull("no room")
    )
    await harness.do(1, Send([b"y"], None), Abandon(tokens, change(100)))
    assert grows_by[2:] == [len(change(100))], "what is left of a cycle whose sends were refused adds as much"


async def test_on_a_full_disk_a_message_that_had_its_last_delivery_waits_for_room_for_the_reason() -> None:
    harness = Harness(QueueSettings(max_delivery_count=1))
    await harness.send(b"a", b"b", b"c")
    harness.log.full, harness.log.growth_left = True, len(MAX_DELIVERIES)
    await harness.do(1, Abandon((await harness.receive(1, 3)).tokens))
    assert (await harness.peek(DEAD_LETTER)).messages == [b"a"]
    await harness.restart()
    locked = await harness.receive(1, 3)
    assert locked.messages == [b"b", b"c"]
    await harness.do(1, Abandon(locked.tokens))
    dead = await harness.peek(DEAD_LETTER)
    assert (dead.messages, dead.changed) == ([b"a", b"b", b"c"], [MAX_DELIVERIES] * 3)


async def test_on_a_full_disk_messages_expire_without_a_reason_if_there_is_no_room_for_it() -> None:
    harness = Harness(QueueSettings(dead_lettering_on_expiration=True))
    await harness.send(b"a", b"b", ttl=[1_000, 1_000])
    harness.log.full, harness.log.growth_left = True, len(EXPIRED)
    await harness.advance(2_000)
    dead = await harness.peek(DEAD_LETTER)
    assert (dead.messages, dead.changed) == ([b"a", b"b"], [EXPIRED, None])


async def test_while_memory_is_scarce_bodies_are_kept_within_the_reserves_only() -> None:
    harness = Harness(reserve_bytes=100)
    harness.budget.set_scarce(True)
    await harness.send(*[b"x" * 60] * 4)
    assert harness.budget.used <= 100
    assert (await harness.receive(1, 4)).messages == [b"x" * 60] * 4


async def test_changed_properties_count_until_their_message_is_gone() -> None:
    harness = Harness(QueueSettings(max_size_mb=1))
    await harness.send(b"x")
    changed = encode_changes({"note": "n" * 1_000})
    assert changed is not None
    lease = await harness.receive(2)
    await harness.do(2, Abandon(lease.tokens, changed))
    assert harness.budget.state_bytes == MESSAGE_OVERHEAD_BYTES + VALUE_BYTES + len(changed)
    await harness.restart()
    lease = await harness.receive(2)
    assert harness.budget.state_bytes == MESSAGE_OVERHEAD_BYTES + VALUE_BYTES + len(changed)
    assert harness.task.counts()[MAIN].bytes == 1 + MESSAGE_OVERHEAD_BYTES + len(changed)
    await harness.do(2, Complete(lease.tokens))
    assert harness.budget.state_bytes == 0


@pytest.mark.parametrize(
    ("description", "name"),
    [
        (QueueDescription("q", "0" * 32, 1, QueueSettings(max_size_mb=1)), "Queue: 'q'"),
        (TopicDescription("t", "0" * 32, 1, TopicSettings(max_size_mb=1)), "Topic: 't'"),
    ],
)
def test_the_refusal_names_the_entity(description: EntityDescription, name: str) -> None:
    with pytest.raises(Refused, match=f"exceeded for {name}, partition 3"):
        check_size(description, 3, MIB, 1)


async def test_a_shared_message_gives_its_bytes_back_with_the_last_copy() -> None:
    harness = Harness(description=topic("a", "b"))
    await harness.send(b"x" * 5_000)
    partition = harness.task._partition
    assert partition is not None
    bodies = partition.messages.bodies
    (other,) = partition.messages.find("subscriptions/b").references.values()
    assert freed_by([other], bodies) == MESSAGE_OVERHEAD_BYTES
    tokens = (await harness.receive(1, 1, "subscriptions/a")).tokens
    assert one(await harness.do(1, Complete(tokens)), Settled).failures == {}
    assert freed_by([other], bodies) == MESSAGE_OVERHEAD_BYTES + 5_000


@pytest.mark.parametrize("kind", [Abandon, Defer, DeadLetter])
async def test_changed_properties_count_against_the_room_up_to_the_mark(
    kind: type[Abandon] | type[Defer] | type[DeadLetter],
) -> None:
    harness = Harness(QueueSettings(max_size_mb=1_024))
    budget = harness.budget
    budget.growth_bytes_min = 0
    await harness.send(*[b"x"] * 20)
    tokens = (await harness.receive(1, 20)).tokens
    budget.set_room(3 * (VALUE_BYTES + len(change(32_000))))
    for number in range(3):
        changed = change(32_000, f"n{number}00")
        assert one(await harness.do(1, kind(tokens[number : number + 1], changed)), Settled).failures == {}
    refused = one(await harness.do(1, kind(tokens[3:4], change(32_000))), Failed)
    assert refused.reason is Reason.SERVER_BUSY, "until the next look at the memory in use"
    assert one(await harness.do(1, kind(tokens[3:], None)), Settled).failures == {}


async def test_changed_properties_count_once_while_they_are_shared_and_in_full_from_then_on() -> None:
    harness = Harness(QueueSettings(max_size_mb=1_024, max_delivery_count=100))
    budget = harness.budget
    budget.growth_bytes_min = 0
    size = VALUE_BYTES + len(change(32_000))
    await harness.send(*[b"x"] * 20)
    budget.set_room(size)
    tokens = (await harness.receive(1, 20)).tokens
    assert one(await harness.do(1, Abandon(tokens, change(32_000))), Settled).failures == {}
    assert budget.state_bytes == 20 * MESSAGE_OVERHEAD_BYTES + size
    budget.set_room(4 * size)
    tokens = (await harness.receive(1, 20)).tokens
    for number in range(3):
        small = change(10, f"n{number}")
        assert one(await harness.do(1, Abandon(tokens[number : number + 1], small)), Settled).failures == {}
    refused = one(await harness.do(1, Abandon(tokens[3:4], change(10, "n3"))), Failed)
    assert refused.reason is Reason.SERVER_BUSY, "each gets 32,000 bytes of its own"
    assert budget.state_bytes >= 20 * MESSAGE_OVERHEAD_BYTES + 4 * size


async def test_receivers_that_alternate_share_changed_properties_before_a_restart_and_after_it() -> None:
    harness = Harness(QueueSettings(max_size_mb=1_024))
    await harness.send(*[b"x"] * 40)
    tokens = (await harness.receive(1, 40)).tokens
    for name in ("one", "two"):
        for begin in (0, 20):
            some = [
                tokens[place] for place in range(begin, begin + 20) if (place % 2 == 0) == (name == "one")
            ]
            await harness.do(1, Defer(some, change(10_000, name)))
    size = 40 * MESSAGE_OVERHEAD_BYTES + 2 * (VALUE_BYTES + len(change(10_000, "one")))
    assert harness.budget.state_bytes == size
    await harness.restart()
    await harness.peek()
    assert harness.budget.state_bytes == size
    changed = [reference.changed for reference in harness.subqueues[0].references.values()]
    assert len({id(each) for each in changed}) == 2


async def test_messages_that_shared_changes_share_those_that_are_merged_into_them() -> None:
    harness = Harness(QueueSettings(max_size_mb=1_024))
    await harness.send(*[b"x"] * 20)
    for name in ("one", "two"):
        await harness.do(1, Abandon((await harness.receive(1, 20)).tokens, change(1_000, name)))
    changed = [reference.changed for reference in harness.subqueues[0].references.values()]
    assert len({id(each) for each in changed}) == 1 and changed[0] is not None and b"two" in changed[0]
