"""The budget for bodies in memory: partitions that are read take memory from those that are not."""

from __future__ import annotations

import asyncio
from functools import partial

from broker.base.errors import Reason
from broker.entities.descriptions import MESSAGE_OVERHEAD_BYTES
from broker.operations.general import Failed
from broker.operations.sending import Send, Sent
from broker.operations.settling import Complete
from broker.operations.transfers import HandedOver, HandOver
from broker.partition.cycle_bounds import Bounds
from broker.partition.payloads import COLD_MS, PayloadBudget
from broker.partition.task_limits import TaskLimits
from tests.support.partition_harness import Harness, one
from tests.support.topics import BLUE, RED, A, bodies, topic

BUDGET, RESERVE = 200_000, 10_000


def two_partitions() -> tuple[Harness, Harness]:
    """Two partitions with one clock and one budget."""
    first, second = (Harness(number=number, payload_bytes=BUDGET, reserve_bytes=RESERVE) for number in (1, 2))
    second.share_with(first)
    return first, second


def body(number: int) -> bytes:
    return b"%06d" % number * 100


async def fill(harness: Harness, count: int) -> list[bytes]:
    bodies = [body(number) for number in range(count)]
    for start in range(0, count, 50):
        await harness.send(*bodies[start : start + 50])
    return bodies


def in_memory(harness: Harness) -> int:
    return sum(
        len(reference.payload) for subqueue in harness.subqueues for reference in subqueue.references.values()
    )


async def drain(harness: Harness, count: int) -> list[bytes]:
    """Receive and complete this many messages, ten at a time."""
    got: list[bytes] = []
    while len(got) < count:
        locked = await harness.receive(1, 10)
        got += locked.messages
        await harness.do(1, Complete(locked.tokens))
    return got


async def test_a_partition_that_is_read_takes_the_room_of_one_that_is_not() -> None:
    idle, busy = two_partitions()
    kept = await fill(idle, 1_000)
    expected = await fill(busy, 500)
    assert in_memory(idle) >= BUDGET - 2 * RESERVE and in_memory(busy) <= RESERVE
    await busy.advance(10 * COLD_MS)
    assert await drain(busy, 110) == expected[:110]
    assert in_memory(idle) <= RESERVE < in_memory(busy)
    assert idle.budget.used <= BUDGET
    reads = busy.log.fetches
    assert await drain(busy, 390) == expected[110:]
    assert busy.log.fetches - reads < 10, "most messages are handed out from memory"
    assert await drain(idle, 1_000) == kept, "what left the memory is read back"
    assert idle.budget.used == 0


async def test_partitions_that_nobody_reads_take_nothing_from_each_other() -> None:
    first, second = two_partitions()
    await fill(first, 1_000)
    before = in_memory(first)
    await first.advance(10 * COLD_MS)
    await fill(second, 1_000)
    assert in_memory(first) == before


async def test_partitions_that_are_both_read_take_nothing_from_each_other() -> None:
    first, second = two_partitions()
    await fill(first, 1_000)
    await fill(second, 1_000)
    for _ in range(5):
        await drain(first, 10)
        await drain(second, 10)
        await first.advance(COLD_MS // 2)
    assert in_memory(first) > BUDGET // 2


def test_the_partition_that_was_read_last_is_the_last_to_make_room() -> None:
    budget = PayloadBudget(300, reserve_bytes=10)
    evicted: list[str] = []
    shares = {
        name: budget.share(partial(evicted.append, name)) for name in ("old", "newer", "newest", "reader")
    }
    for name in ("newest", "old", "newer"):
        assert shares[name].take(100)
    for at_ms, name in enumerate(("old", "newer", "newest"), 1):
        shares[name].read(at_ms)
    shares["reader"].read(COLD_MS)
    assert not shares["reader"].take(100) and evicted == [], "nobody is cold yet"
    shares["reader"].read(COLD_MS + 1)
    assert not shares["reader"].take(100) and evicted == ["old"]
    shares["old"].give(100)
    assert shares["reader"].take(100)
    shares["reader"].read(COLD_MS + 5)
    assert not shares["reader"].take(100) and evicted == ["old", "newer"]


async def test_a_cycle_that_is_being_sent_gives_up_nothing_that_it_has_not_counted() -> None:
    limits = TaskLimits(bounds=Bounds(work_max=100))
    idle, busy = (
        Harness(number=number, limits=limits, payload_bytes=300_000, reserve_bytes=RESERVE)
        for number in (1, 2)
    )
    busy.share_with(idle)
    for _ in range(20):
        await idle.send(*[b"x" * 100] * 100)
    await busy.send(*[b"y" * 1_000] * 100)
    await busy.advance(10 * COLD_MS)
    await busy.receive(1)
    await busy.send(*[b"y" * 1_000] * 102)  # evicts half of the idle partition's bodies; the budget is full
    assert RESERVE < in_memory(idle) < 100_000
    idle.post(1, Send([b"z" * 100] * 2_000, None))
    sending = asyncio.create_task(idle.task.step())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    for _ in range(3):  # takes more between two steps of that cycle
        await busy.send(*[b"y" * 1_000] * 30)
    await sending
    await idle.until_quiet()
    assert one(idle.take(1), Sent)
    assert idle.task._partition is not None
    assert in_memory(idle) == idle.task._partition.messages.payloads.used
    assert idle.budget.used == in_memory(idle) + in_memory(busy)


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


def test_a_full_budget_still_leaves_each_partition_its_reserve() -> None:
    budget = PayloadBudget(1000, reserve_bytes=100)
    hog, other = budget.share(), budget.share()
    assert hog.take(1000) and not hog.take(1)
    assert other.take(60) and other.take(40) and not other.take(1)
    other.give(40)
    assert other.take(30)
    hog.close()
    other.close()
    assert budget.used == 0


def test_while_memory_is_scarce_what_a_partition_is_opened_with_is_no_growth() -> None:
    budget = PayloadBudget(0)
    budget.growth_bytes_min = 50
    growing, opened = budget.share(), budget.share()
    growing.count_state(100)
    assert growing.may_grow(1_000)
    budget.set_scarce(True)
    assert growing.may_grow(50) and not growing.may_grow(51)
    opened.opened_with(1_000)
    assert growing.may_grow(50) and not growing.may_grow(51)
    growing.count_state(140)
    opened.close()
    assert growing.may_grow(10) and not growing.may_grow(11)
    growing.count_state(90)
    assert growing.may_grow(60) and not growing.may_grow(61)
    budget.set_scarce(False)
    assert growing.may_grow(1_000)


def test_while_memory_is_scarce_state_may_grow_by_a_part_of_what_there_is() -> None:
    budget = PayloadBudget(0)
    share = budget.share()
    share.count_state(100 * budget.growth_bytes_min)
    budget.set_scarce(True)
    assert share.may_grow(10 * budget.growth_bytes_min) and not share.may_grow(20 * budget.growth_bytes_min)


def test_room_that_a_partition_has_taken_is_left_to_no_other_until_the_next_look() -> None:
    budget = PayloadBudget(0)
    budget.growth_bytes_min = 50
    first, second = budget.share(), budget.share()
    assert first.take_room(1_000_000)
    first.count_state(1_000_000)
    budget.set_room(100)
    assert not first.take_room(151) and first.take_room(120)
    assert second.take_room(0) and not second.has_room(31) and second.take_room(30)
    first.count_state(1_000_120)
    assert second.has_room(0) and not second.has_room(1)
    budget.set_room(100)
    assert second.has_room(120) and not second.has_room(121)
    second.close()
    assert budget.promised == 0


def with_room(harness: Harness, references: int) -> None:
    """The memory in use is so far from the mark that there is room for so many references."""
    harness.budget.growth_bytes_min = 0
    harness.budget.set_room(references * MESSAGE_OVERHEAD_BYTES)


async def test_messages_are_refused_that_memory_has_no_room_to_give_to_all_subscriptions() -> None:
    """Symptom: a batch of 2,000 messages for 2,000 subscriptions took a broker with a mark of 200 MiB to 857
    MiB, because each message was admitted as one."""
    harness = Harness(description=topic(*(f"s{number}" for number in range(10))))
    with_room(harness, 2 * 9)
    failed = one(await harness.do(9, Send([RED] * 3, None)), Failed)
    assert failed.reason is Reason.SERVER_BUSY and "3 messages" in failed.description
    one(await harness.do(9, Send([RED, BLUE], None)), Sent)
    assert one(await harness.do(9, Send([RED], None)), Failed).reason is Reason.SERVER_BUSY
    assert await bodies(harness, "subscriptions/s9") == [RED, BLUE]
    with_room(harness, 9)
    one(await harness.do(9, Send([RED], None)), Sent)
    assert harness.budget.promised == 0


async def test_a_message_for_one_subscription_needs_no_more_room_than_it_was_admitted_with() -> None:
    harness = Harness(description=topic("a"))
    with_room(harness, 0)
    one(await harness.do(9, Send([RED], None)), Sent)
    assert await bodies(harness, A) == [RED]


async def test_of_forwarded_messages_as_many_are_taken_as_memory_has_room_for() -> None:
    harness = Harness(description=topic(*(f"s{number}" for number in range(10))))
    with_room(harness, 2 * 9)
    handed = one(await harness.do(9, HandOver(b"s", [1, 2, 3], [RED] * 3)), HandedOver)
    assert handed.put_off == [2] and await bodies(harness, "subscriptions/s0") == [RED] * 2
    assert one(await harness.do(9, HandOver(b"s", [3], [RED])), Failed).reason is Reason.SERVER_BUSY
