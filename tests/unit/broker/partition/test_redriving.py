"""Finding dead letters, and enqueueing them anew."""

from __future__ import annotations

import pytest

from broker.base.errors import Reason
from broker.entities.descriptions import DEAD_LETTER, MAIN, TRANSFER, TRANSFER_DEAD_LETTER, QueueSettings
from broker.message.changes import encode_changes
from broker.operations.columns import DESTINATION
from broker.operations.general import Failed, Update
from broker.operations.receiving import Demand, Locked, LockExactly, Recall, Recalled
from broker.operations.redriving import FindDeadLetters, Found, Redrive, Redriven
from broker.operations.sending import Send
from broker.operations.settling import Complete, DeadLetter, Release, Settled
from broker.operations.transactions import Transact, Transacted
from broker.operations.transfers import FailTransfer, LockNext
from broker.partition.changed_properties import MERGED_AT_ONCE, PROPERTY_COST
from broker.partition.cycle_bounds import Bounds
from broker.partition.task_limits import TaskLimits
from storage.errors import DiskFull
from tests.support.partition_harness import Harness, one
from tests.support.topics import BLUE, DEAD, ONLY_RED, RED, A, B, check_restart, topic, with_subscription

NEVER_MS = 1 << 60


async def bury(harness: Harness, *bodies: bytes, reason: str = "broken") -> list[int]:
    """Send messages and dead-letter them; gives their sequence numbers."""
    await harness.send(*bodies)
    locked = await harness.receive(1, len(bodies))
    changed = encode_changes({"DeadLetterReason": reason})
    assert one(await harness.do(1, DeadLetter(locked.tokens, changed)), Settled).failures == {}
    return locked.sequence_numbers


async def find(harness: Harness, reason: str | None = None, **given: int) -> Found:
    wanted = {"count": 100, "enqueued_before_ms": NEVER_MS, "from_sequence_number": 0, **given}
    return one(await harness.do(9, FindDeadLetters(DEAD_LETTER, reason=reason, **wanted)), Found)


async def lock(harness: Harness, numbers: list[int], subqueue: str = DEAD_LETTER) -> Locked:
    return one(await harness.do(9, LockExactly(subqueue, numbers)), Locked)


async def bodies(harness: Harness, subqueue: str = MAIN) -> list[bytes]:
    return (await harness.peek(subqueue)).messages


# --- finding and locking ------------------------------------------------------------------------------------


async def test_dead_letters_are_found_by_reason_and_age() -> None:
    harness = Harness()
    (first,) = await bury(harness, b"a", reason="broken")
    (second,) = await bury(harness, b"b", reason="late")
    await harness.advance(1_000)
    now_ms = harness.clock.now_ms()
    (third,) = await bury(harness, b"c", reason="broken")
    assert (await find(harness)).sequence_numbers == [first, second, third]
    assert (await find(harness, "broken")).sequence_numbers == [first, third]
    assert (await find(harness, "broke")).sequence_numbers == []
    assert (await find(harness, enqueued_before_ms=now_ms)).sequence_numbers == [first, second]
    assert await find(harness, count=1) == Found([first], second, None)
    assert await find(harness, from_sequence_number=second, count=1) == Found([second], third, None)


async def test_one_search_looks_at_a_bounded_number_of_messages() -> None:
    harness = Harness(limits=TaskLimits(bounds=Bounds(deleted_max=3)))
    numbers = await bury(harness, b"a", b"b", b"c", b"d", b"e")
    assert await find(harness, "none such") == Found([], numbers[3], None)
    assert await find(harness, from_sequence_number=numbers[3]) == Found(numbers[3:], None, None)


async def test_one_search_reads_a_bounded_number_of_changed_properties() -> None:
    """Symptom: to look for a reason among 4,096 messages with thousands of properties took over a second."""
    harness = Harness()
    await harness.send(*[b"x"] * 40)
    changed = {f"{number:05}": None for number in range(4_000)} | {"DeadLetterReason": "broken"}
    await harness.do(1, DeadLetter((await harness.receive(1, 40)).tokens, encode_changes(changed)))
    found = await find(harness, "broken")
    numbers, searches = found.sequence_numbers, 1
    assert len(numbers) <= MERGED_AT_ONCE // (4_000 * PROPERTY_COST) + 1
    while found.next_sequence_number is not None:
        found = await find(harness, "broken", from_sequence_number=found.next_sequence_number)
        numbers, searches = numbers + found.sequence_numbers, searches + 1
    assert len(numbers) == 40 and searches > 5
    assert len((await find(harness)).sequence_numbers) == 40, "nothing is read if any reason is wanted"


async def test_locked_dead_letters_are_not_found_and_not_locked_again() -> None:
    harness = Harness()
    numbers = await bury(harness, b"a", b"b")
    locked = await lock(harness, numbers[:1])
    assert locked.messages == [b"a"] and locked.changed[0] is not None
    assert (await find(harness)).sequence_numbers == numbers[1:]
    assert (await lock(harness, numbers)).sequence_numbers == numbers[1:]
    await harness.do(1, Release(locked.tokens))
    assert (await harness.receive(2, 1, DEAD_LETTER)).messages == [b"a"]


async def test_only_dead_letters_can_be_searched_and_redriven() -> None:
    harness = Harness()
    first = await harness.send(b"a")
    failed = one(await harness.do(1, FindDeadLetters(MAIN, 1, NEVER_MS)), Failed)
    assert failed.reason is Reason.NOT_ALLOWED
    locked = await lock(harness, [first], MAIN)
    failed = one(await harness.do(1, Redrive(locked.tokens, [b"a"], None)), Failed)
    assert failed.reason is Reason.NOT_ALLOWED
    assert one(await harness.do(1, Complete(locked.tokens)), Settled).failures == {}


# --- enqueueing anew ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("crashes", [False, True])
async def test_a_redriven_message_is_new_and_its_dead_letter_gone(crashes: bool) -> None:
    harness = Harness(QueueSettings(max_delivery_count=1))
    await harness.send(b"spent", b"other")
    numbers = (await harness.receive(1, 2)).sequence_numbers
    await harness.advance(60_000)  # both locks run out, which is the last allowed delivery
    await harness.do(1, Demand(MAIN, 1))
    await harness.advance(1_000)
    locked = await lock(harness, numbers[:1])
    now_ms = harness.clock.now_ms()
    answer = one(await harness.do(2, Redrive(locked.tokens, [b"as before"], [None])), Redriven)
    assert answer.sequence_numbers == [numbers[-1] + 1]
    assert one(harness.take(1), Locked).messages == [b"as before"]  # it goes to a waiting receiver
    if crashes:
        await harness.restart()
    shown = await harness.peek()
    assert (shown.sequence_numbers, shown.enqueued_at_ms, shown.delivery_counts, shown.changed) == (
        [numbers[-1] + 1],
        [now_ms],
        [0],
        [None],
    )
    assert await bodies(harness, DEAD_LETTER) == [b"other"]


async def test_a_message_whose_lock_is_gone_stays_a_dead_letter() -> None:
    harness = Harness()
    numbers = await bury(harness, b"a", b"b")
    locked = await lock(harness, numbers)
    await harness.do(1, Release(locked.tokens[:1]))
    answer = one(await harness.do(1, Redrive(locked.tokens, [b"a", b"b"], [None, 5_000])), Redriven)
    assert answer.sequence_numbers == [0, numbers[-1] + 1]
    assert await bodies(harness) == [b"b"] and await bodies(harness, DEAD_LETTER) == [b"a"]
    await harness.advance(5_000)
    assert await bodies(harness) == []


async def test_a_full_queue_can_be_redriven_because_its_size_does_not_grow() -> None:
    harness = Harness(QueueSettings(max_size_mb=1))
    size = 300 * 1024
    numbers = await bury(harness, bytes(size), bytes(size), bytes(size))
    assert one(await harness.do(1, Send([bytes(size)], None)), Failed).reason is Reason.QUOTA_EXCEEDED
    locked = await lock(harness, numbers)
    answer = one(await harness.do(1, Redrive(locked.tokens, locked.messages, None)), Redriven)
    assert len(answer.sequence_numbers) == 3 and len(await bodies(harness)) == 3


async def test_on_a_full_disk_the_dead_letters_stay_and_everything_else_is_done() -> None:
    """Durability rule 6: no message is lost, and none is in two places."""
    harness = Harness()
    first = await harness.send(b"plain")
    plain = await harness.receive(3, 1)
    numbers = await bury(harness, b"a", b"b")
    locked = await lock(harness, numbers)
    harness.post(1, Redrive(locked.tokens, [b"a", b"b"], None))
    harness.post(3, Complete(plain.tokens))
    harness.log.fail_append(DiskFull("no room"))
    await harness.until_quiet()
    assert one(harness.take(1), Failed).reason is Reason.DISK_FULL
    assert one(harness.take(3), Settled).failures == {}
    for _ in range(2):
        assert await bodies(harness, DEAD_LETTER) == [b"a", b"b"] and await bodies(harness) == []
        await harness.restart()
    locked = await lock(harness, numbers)
    answer = one(await harness.do(1, Redrive(locked.tokens, [b"a", b"b"], None)), Redriven)
    assert answer.sequence_numbers[0] > first
    assert await bodies(harness) == [b"a", b"b"] and await bodies(harness, DEAD_LETTER) == []


async def test_dead_letters_that_a_client_holds_unseen_are_recalled() -> None:
    harness = Harness()
    numbers = await bury(harness, b"seen", b"unseen")
    held = await harness.receive(1, 2, DEAD_LETTER)
    assert (await lock(harness, numbers)).tokens == []
    assert harness.take(1) == [Recall(harness.number, DEAD_LETTER)]
    await harness.do(1, Recalled(DEAD_LETTER, held.tokens[1:]))
    assert (await lock(harness, numbers)).sequence_numbers == held.sequence_numbers[1:]


# --- of a topic ---------------------------------------------------------------------------------------------


async def test_dead_letters_of_a_subscription_that_was_just_deleted_are_not_redriven() -> None:
    description = topic("a", "b")
    harness = Harness(description=description)
    await harness.send(b"m")
    one(await harness.do(1, DeadLetter((await harness.receive(1, 1, A)).tokens)), Settled)
    locked = await lock(harness, (await harness.peek(A + DEAD)).sequence_numbers, A + DEAD)
    answers = await harness.do(
        1, Update(description.without(1)), Redrive(locked.tokens, locked.messages, None)
    )
    # Symptom: the partition failed for good.
    assert isinstance(answers[1], Failed) and answers[1].reason is Reason.ENTITY_NOT_FOUND
    assert await bodies(harness, B) == [b"m"]


async def test_failed_transfers_of_a_topic_itself_go_to_its_subscriptions() -> None:
    harness = Harness(description=with_subscription(topic("a"), "b", ONLY_RED))
    failed = Send([RED, BLUE], None, columns={DESTINATION: [b"another"] * 2})
    one(await harness.do(1, Transact(Send([], None), [], transfers=failed)), Transacted)
    tokens = one(await harness.do(1, LockNext(TRANSFER, 2, 1 << 20, 60_000, None)), Locked).tokens
    await harness.do(1, FailTransfer(tokens))
    dead = await harness.peek(TRANSFER_DEAD_LETTER)
    locked = await lock(harness, dead.sequence_numbers, TRANSFER_DEAD_LETTER)
    one(await harness.do(1, Redrive(locked.tokens, locked.messages, None)), Redriven)
    # Symptom: they became active in the topic itself, from where nobody can receive them.
    assert await bodies(harness) == []
    assert (await bodies(harness, A), await bodies(harness, B)) == ([RED, BLUE], [RED])
    assert await bodies(harness, TRANSFER_DEAD_LETTER) == []
    await check_restart(harness, A, B, TRANSFER_DEAD_LETTER)
