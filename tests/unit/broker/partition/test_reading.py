"""Reading by position: heads that never let a reader step over a message, and ranges that account for every
number."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from broker.base.errors import Reason
from broker.entities.descriptions import DEAD_LETTER, MAIN, TRANSFER_DEAD_LETTER, QueueSettings
from broker.identifiers import LockToken
from broker.message.changes import encode_changes
from broker.operations.general import Failed
from broker.operations.sending import Send
from broker.operations.settling import Abandon, Complete, DeadLetter, Defer
from broker.operations.streams import FindPositions, Positions, RangeRead, ReadRange
from broker.partition.changed_properties import MERGED_AT_ONCE, OWN_COST, PROPERTY_COST
from broker.partition.cycle_bounds import Bounds
from broker.partition.reading import LAID_COST
from broker.partition.task_limits import TaskLimits
from tests.support.partition_harness import NUMBER, Harness, one

FIRST = NUMBER << 48 | 1
MANY = 1 << 20


async def positions(
    harness: Harness, subqueue: str = MAIN, *, undecided: bool = False, **asked: int
) -> Positions:
    find = FindPositions(subqueue, cookie="mine", undecided=undecided, **asked)
    return one(await harness.do(5, find), Positions)


async def read(
    harness: Harness,
    start: int = FIRST,
    end: int | None = None,
    count: int = 100,
    bytes_max: int = MANY,
    subqueue: str = MAIN,
    undecided: bool = False,
) -> RangeRead:
    operation = ReadRange(subqueue, start, end, count, bytes_max, "mine", undecided)
    return one(await harness.do(6, operation), RangeRead)


async def test_an_empty_partition_begins_at_its_head() -> None:
    harness = Harness()
    assert await positions(harness) == Positions(FIRST, FIRST, 0, 0, "mine")


async def test_the_head_follows_what_is_sent_and_the_start_what_is_left() -> None:
    harness = Harness()
    await harness.send(b"a", b"bb", b"ccc")
    await harness.do(1, Complete((await harness.receive(1)).tokens))
    assert await positions(harness) == Positions(FIRST + 1, FIRST + 3, 2, 5, "mine")
    await harness.restart()
    assert await positions(harness) == Positions(FIRST + 1, FIRST + 3, 2, 5, "mine")


async def test_messages_of_the_same_commit_are_beyond_the_head() -> None:
    harness = Harness()
    await harness.send(b"a")
    answers = await harness.do(7, Send([b"b"], None), FindPositions(MAIN))
    assert [each.head for each in answers if isinstance(each, Positions)] == [FIRST + 1]


async def test_the_head_of_dead_letters_waits_for_the_oldest_message_that_may_still_become_one() -> None:
    harness = Harness()
    await harness.send(b"a", b"b", b"c")
    first, second, third = (await harness.receive(1, 3)).tokens
    await harness.do(1, DeadLetter([second]))
    assert (await positions(harness, DEAD_LETTER)).head == FIRST
    assert (await read(harness, subqueue=DEAD_LETTER)).messages == []
    await harness.do(1, DeadLetter([first]))
    assert (await positions(harness, DEAD_LETTER)).head == FIRST + 2
    assert (await read(harness, subqueue=DEAD_LETTER)).messages == [b"a", b"b"]
    await harness.do(1, Complete([third]))
    assert (await positions(harness, DEAD_LETTER)).head == FIRST + 3
    assert (await positions(harness, TRANSFER_DEAD_LETTER)).head == FIRST, "from any other subqueue"


async def test_dead_letters_that_older_ones_may_still_follow_are_read_if_the_client_wants_that() -> None:
    harness = Harness()
    await harness.send(b"a", b"b", b"c")
    first, second, _ = (await harness.receive(1, 3)).tokens
    await harness.do(1, DeadLetter([second]))
    found = await positions(harness, DEAD_LETTER, undecided=True, backlog_from=FIRST)
    assert (found.start, found.head, found.messages, found.backlog) == (FIRST + 1, FIRST + 3, 1, 1)
    part = await read(harness, end=found.head, subqueue=DEAD_LETTER, undecided=True)
    assert (part.messages, part.next, part.head) == ([b"b"], FIRST + 3, FIRST + 3)
    await harness.do(1, DeadLetter([first]))
    part = await read(harness, end=found.head, subqueue=DEAD_LETTER, undecided=True)
    assert part.messages == [b"a", b"b"]
    (failed,) = await harness.do(6, ReadRange(DEAD_LETTER, FIRST, FIRST + 4, 9, MANY, undecided=True))
    assert isinstance(failed, Failed) and failed.reason is Reason.ARGUMENT, "nothing is beyond the end"


async def test_deferred_messages_hold_up_the_head_of_dead_letters_and_scheduled_ones_do_not() -> None:
    harness = Harness(limits=TaskLimits(bounds=Bounds(looks_max=2)))
    later = harness.clock.now_ms() + 60_000
    await harness.do(1, Send([b"s"] * 5, None, scheduled_ms=[later] * 5))
    await harness.send(b"d")
    await harness.do(1, Defer((await harness.receive(1)).tokens))
    heads = [(await positions(harness, DEAD_LETTER)).head for _ in range(4)]
    assert heads == sorted(heads) and heads[-1] == FIRST + 5, "a few messages are looked at each time"
    await harness.advance(60_100)
    assert (await positions(harness, DEAD_LETTER)).head == FIRST + 5


async def test_the_head_of_dead_letters_is_not_lower_after_a_restart() -> None:
    harness = Harness(limits=TaskLimits(bounds=Bounds(looks_max=2)))
    later_ms = harness.clock.now_ms() + 3_600_000
    await harness.do(1, Send([b"x"] * 9, None, scheduled_ms=[later_ms] * 9))
    while (await positions(harness, DEAD_LETTER)).head < FIRST + 9:
        pass
    await harness.restart()
    # Symptom: it began again with the oldest scheduled messages, so ranges that had been read were refused.
    assert (await positions(harness, DEAD_LETTER)).head == FIRST + 9
    await harness.send(b"a")
    await harness.send(b"b")
    await harness.restart()
    assert (await positions(harness, DEAD_LETTER)).head == FIRST + 9


async def test_a_position_is_found_by_time() -> None:
    harness = Harness()
    times = []
    for body in (b"a", b"b", b"c"):
        times.append(harness.clock.now_ms())
        await harness.send(body)
        await harness.advance(1_000)
    assert [(await positions(harness, enqueued_from_ms=each)).by_time for each in times] == [
        FIRST,
        FIRST + 1,
        FIRST + 2,
    ]
    assert (await positions(harness, enqueued_from_ms=times[2] + 1)).by_time == FIRST + 3


async def test_the_backlog_is_counted_from_a_position_on() -> None:
    harness = Harness()
    await harness.send(b"a", b"b", b"c")
    for start, backlog in ((0, 3), (FIRST + 1, 2), (FIRST + 3, 0), (FIRST + 9, 0)):
        assert (await positions(harness, backlog_from=start)).backlog == backlog


async def test_a_range_is_read_in_parts_without_a_gap() -> None:
    harness = Harness()
    await harness.send(*(b"%d" % number for number in range(10)))
    part = await read(harness, count=4)
    assert part.messages == [b"0", b"1", b"2", b"3"] and (part.next, part.end) == (FIRST + 4, FIRST + 10)
    assert part.sequence_numbers == list(range(FIRST, FIRST + 4)) and part.delivery_counts == [0] * 4
    part = await read(harness, part.next, FIRST + 9, bytes_max=3)
    assert part.messages == [b"4", b"5", b"6"] and (part.next, part.end) == (FIRST + 7, FIRST + 9)
    part = await read(harness, part.next, FIRST + 9)
    assert part.messages == [b"7", b"8"] and part.next == part.end == FIRST + 9
    assert (part.start, part.head) == (FIRST, FIRST + 10)


async def test_a_message_that_is_larger_than_allowed_is_read_alone() -> None:
    harness = Harness()
    await harness.send(b"large", b"b")
    assert (await read(harness, bytes_max=2)).messages == [b"large"]


async def read_all(harness: Harness) -> list[RangeRead]:
    """Read from head to head as a client does: each part begins where the one before has ended."""
    parts = [await read(harness, count=4_096)]
    while parts[-1].next < parts[-1].end:
        parts.append(await read(harness, parts[-1].next, parts[0].end, count=4_096))
    return parts


def change(properties: Mapping[str, object]) -> bytes:
    changed = encode_changes(properties)
    assert changed is not None
    return changed


BIG = change({"a": "x" * 30_000, "b": "x" * 30_000})
MANY_SMALL = change({f"{number:05}": None for number in range(5_000)})
ONE = change({"a": 1})


@pytest.mark.parametrize(
    ("changed", "body", "most", "count"),
    [
        (BIG, b"x", MANY // len(BIG), 40),
        (MANY_SMALL, b"x", MERGED_AT_ONCE // (5_000 * PROPERTY_COST), 40),
        (ONE, b"x" * 60_000, MANY // 60_000, 40),
        (ONE, b"x" * 1_000, MERGED_AT_ONCE // (LAID_COST + 1_000 * OWN_COST), 800),
        (ONE, b"x", MERGED_AT_ONCE // LAID_COST, 1_100),
    ],
    ids=["bytes", "properties", "large bodies", "bodies", "messages"],
)
async def test_a_part_of_a_range_has_few_messages_if_many_properties_were_changed(
    changed: bytes, body: bytes, most: int, count: int
) -> None:
    """Symptom: one envelope of 4,000 small messages that share 60 KB of changed properties had 243 MB, and
    held the event loop for more than a second."""
    harness = Harness()
    await harness.send(*[body] * count)
    tokens: list[LockToken] = []
    while len(tokens) < count:
        tokens += (await harness.receive(1, count)).tokens
    await harness.do(1, Abandon(tokens[1:-1], changed))
    parts = await read_all(harness)
    assert all(0 < len([each for each in part.changed if each]) <= most for part in parts)
    assert len(parts[0].messages) > most // 2, "as many as fit"
    numbers = [number for part in parts for number in part.sequence_numbers]
    assert numbers == list(range(FIRST, FIRST + count)), "none is left out or comes twice"
    assert [each for part in parts for each in part.changed] == [None, *[changed] * (count - 2), None]
    assert not any(part.missing or sum(part.left_out) or part.dead_lettered for part in parts)


async def test_a_message_with_more_changed_properties_than_fit_is_read_alone() -> None:
    harness = Harness()
    await harness.send(b"a", b"b")
    await harness.do(1, Abandon((await harness.receive(1, 2)).tokens, BIG))
    found = await read(harness, bytes_max=1)
    assert (found.sequence_numbers, found.next) == ([FIRST], FIRST + 1)
    assert (await read(harness, found.next, bytes_max=1)).sequence_numbers == [FIRST + 1]


async def test_a_range_accounts_for_every_number() -> None:
    harness = Harness(QueueSettings(default_time_to_live_ms=None))
    await harness.send(b"active", b"locked", b"deferred", b"dead", b"completed")
    await harness.send(b"expired", ttl=[500])
    later = harness.clock.now_ms() + 60_000
    await harness.do(1, Send([b"scheduled"], None, scheduled_ms=[later]))
    tokens = (await harness.receive(1, 5)).tokens
    await harness.do(1, Defer([tokens[2]]), DeadLetter([tokens[3]]), Complete([tokens[4]]))
    await harness.do(1, Abandon([tokens[0]]))
    harness.clock.advance(500)  # it expires in the cycle that reads
    found = await read(harness)
    assert found.messages == [b"active", b"locked"] and found.delivery_counts == [1, 0]
    assert (found.locked, found.dead_lettered) == (1, 1)
    assert sum(found.left_out) + found.missing == 4 and found.left_out[:2] == [1, 1]
    assert found.next - FIRST == len(found.messages) + sum(found.left_out) + 1 + found.missing


async def test_numbers_that_no_message_has_are_missing() -> None:
    harness = Harness()
    await harness.send(b"a", b"b")
    await harness.do(1, Complete((await harness.receive(1, 2)).tokens))
    found = await read(harness)
    assert (found.messages, found.missing, found.next, found.start) == ([], 2, FIRST + 2, FIRST + 2)


async def test_one_answer_looks_at_a_bounded_number_of_messages() -> None:
    harness = Harness(limits=TaskLimits(bounds=Bounds(looks_max=3)))
    await harness.send(*(b"%d" % number for number in range(5)))
    await harness.do(1, Defer((await harness.receive(1, 4)).tokens))
    found = await read(harness)
    assert (found.messages, found.next, found.left_out) == ([], FIRST + 3, [3, 0, 0])
    found = await read(harness, found.next)
    assert (found.messages, found.next) == ([b"4"], FIRST + 5)


async def test_bodies_that_are_not_in_memory_are_read_from_the_log() -> None:
    harness = Harness(payload_bytes=0)
    await harness.send(b"a", b"b")
    assert (await read(harness)).messages == [b"a", b"b"]


@pytest.mark.parametrize(("start", "end"), [(FIRST, FIRST + 2), (FIRST + 2, None), (FIRST + 1, FIRST)])
async def test_a_range_beyond_the_head_is_refused(start: int, end: int | None) -> None:
    harness = Harness()
    await harness.send(b"a")
    refused = one(await harness.do(6, ReadRange(MAIN, start, end, 1, 1, "mine")), Failed)
    assert (refused.reason, refused.cookie) == (Reason.ARGUMENT, "mine")
