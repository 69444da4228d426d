"""broker/partition/duplicates.py: duplicates are dropped within the window and only then, whatever happens to
the log."""

from __future__ import annotations

from collections import deque
from hashlib import blake2b

import pytest

from broker.base.errors import Reason
from broker.entities.descriptions import QUEUE_SUBQUEUES, QueueSettings
from broker.operations.general import Failed, Update
from broker.operations.sending import Send, Sent
from broker.operations.settling import Complete
from broker.operations.transactions import Transact, Transacted
from broker.partition.cycle_bounds import Bounds
from broker.partition.duplicates import IDENTITY_BYTES, MEMORY_BYTES, SLOT_MAX, SLOTS_PER_WINDOW, Duplicates
from broker.partition.durable_state import read_back
from broker.partition.health import Health
from broker.partition.salvage import Salvage
from broker.partition.task_limits import TaskLimits
from broker.partition.upkeep import UpkeepLimits
from storage.log import Position
from tests.support.partition_harness import Harness, one

WINDOW_MS = 64_000
LATE_MS = WINDOW_MS // SLOTS_PER_WINDOW
EAGER = UpkeepLimits(
    checkpoint_bytes=20_000, garbage_bytes_max=10_000, garbage_bytes_at_rest=10_000, relocation_bytes=4_000
)


def identity(text: str) -> bytes:
    return blake2b(text.encode(), digest_size=IDENTITY_BYTES).digest()


def harness_of(limits: TaskLimits | None = None, segment_bytes: int = 1 << 30) -> Harness:
    settings = QueueSettings(requires_duplicate_detection=True, duplicate_detection_window_ms=WINDOW_MS)
    return Harness(settings, limits=limits, segment_bytes=segment_bytes)


def send_of(texts: str) -> Send:
    """A send of one message for each letter, whose id is the letter."""
    return Send([each.encode() for each in texts], None, identities=list(map(identity, texts)))


async def send(harness: Harness, texts: str) -> str:
    """Send; gives the letters that were dropped."""
    sent = one(await harness.do(1, send_of(texts)), Sent)
    return "".join(texts[place] for place in sent.duplicates)


async def stored(harness: Harness) -> str:
    return b"".join((await harness.peek()).messages).decode()


def state(harness: Harness) -> Duplicates:
    partition = harness.task._partition
    assert partition is not None
    return partition.messages.states.duplicates


async def open_again(harness: Harness, clean: bool = False) -> None:
    await harness.restart(clean=clean)
    harness.task._open_wanted = True
    await harness.until_quiet()
    assert harness.task.health is Health.HEALTHY


@pytest.mark.parametrize("restarts", [None, "crash", "clean"])
async def test_a_duplicate_is_acknowledged_and_dropped_until_the_window_ends(restarts: str | None) -> None:
    harness = harness_of()

    async def again() -> None:
        if restarts:
            await open_again(harness, clean=restarts == "clean")

    assert await send(harness, "abca") == "a", "the same id twice in one send"
    await again()
    assert await send(harness, "xby") == "b"
    found = await harness.receive(2, 5)
    assert b"".join(found.messages) == b"abcxy"
    await harness.do(2, Complete(found.tokens))
    await harness.advance(WINDOW_MS - 1)
    await again()
    assert await send(harness, "abcxy") == "abcxy", "although they were received"
    await harness.advance(1 + LATE_MS)
    assert await send(harness, "a") == ""
    await again()
    assert await send(harness, "ab") == "a"
    assert await stored(harness) == "ab" and state(harness).count == 2


async def test_the_numbers_of_the_others_follow_each_other() -> None:
    harness = harness_of()
    first = one(await harness.do(1, send_of("ab")), Sent).first
    sent = one(await harness.do(1, send_of("xayb")), Sent)
    assert (sent.first, sent.duplicates) == (first + 2, [1, 3])
    assert (await harness.peek()).sequence_numbers == [first, first + 1, first + 2, first + 3]


async def test_a_duplicate_is_acknowledged_even_if_nothing_more_fits() -> None:
    harness = Harness(
        QueueSettings(
            max_size_mb=1, requires_duplicate_detection=True, duplicate_detection_window_ms=WINDOW_MS
        )
    )
    large = Send([bytes(1_000_000)], None, identities=[identity("a")])
    one(await harness.do(1, large), Sent)
    other = Send([bytes(1_000_000)], None, identities=[identity("b")])
    assert one(await harness.do(1, other), Failed).reason is Reason.QUOTA_EXCEEDED
    assert one(await harness.do(1, large), Sent).duplicates == [0]
    assert state(harness).count == 1, "what was refused is not remembered"


async def test_what_a_full_disk_refuses_is_not_remembered() -> None:
    harness = harness_of()
    await send(harness, "a")
    harness.log.fill_disk()
    failed = one(await harness.do(1, send_of("bcab")), Failed)
    assert failed.reason is Reason.DISK_FULL and state(harness).count == 1
    harness.log.empty_disk()
    assert await send(harness, "abc") == "a"
    await open_again(harness)
    assert await stored(harness) == "abc" and state(harness).count == 3


async def test_a_duplicate_of_what_the_same_cycle_sent_is_refused_with_it() -> None:
    harness = harness_of()
    harness.log.fill_disk()
    answers = await harness.do(1, send_of("a"), send_of("a"))
    assert [type(answer) for answer in answers] == [Failed, Failed]


async def test_the_messages_of_a_transaction_are_looked_at_too() -> None:
    harness = harness_of()
    await send(harness, "a")
    one(await harness.do(1, Transact(send_of("ab"), ())), Transacted)
    assert await stored(harness) == "ab"


async def test_a_step_of_the_wall_clock_neither_ends_nor_extends_the_window() -> None:
    harness = harness_of()
    await send(harness, "a")
    for step_ms in (3_600_000, -7_200_000):
        harness.clock.step(step_ms)
        assert await send(harness, "a") == "a"
    await harness.advance(WINDOW_MS + LATE_MS)
    assert await send(harness, "a") == ""


async def test_the_time_during_which_the_partition_was_closed_counts() -> None:
    harness = harness_of()
    for number in range(6):
        await send(harness, str(number))
        await harness.advance(LATE_MS)
    await harness.restart(clean=True)
    harness.clock.advance(WINDOW_MS)
    assert await send(harness, "05") == "", "at once, although slots are forgotten a few at a time"
    await harness.until_quiet()
    assert state(harness).count == 2


async def test_another_window_takes_effect_at_once() -> None:
    harness = harness_of()
    await send(harness, "a")
    await harness.advance(10_000)
    harness.change(duplicate_detection_window_ms=5_000)
    await harness.do(1, Update(harness.description))
    assert await send(harness, "a") == "" and state(harness).count == 1


async def test_ids_survive_trimming_and_their_memory_ends_with_the_window() -> None:
    harness = harness_of(TaskLimits(upkeep=EAGER), segment_bytes=4_000)
    await send(harness, "early")
    begun = harness.log.end
    for number in range(60):
        texts = [f"{number}.{place}" for place in range(5)]
        identities = list(map(identity, texts))
        one(await harness.do(1, Send([bytes(200)] * 5, None, identities=identities)), Sent)
        await harness.do(2, Complete((await harness.receive(2, 5)).tokens))
        await harness.advance(LATE_MS // 2)
    assert harness.log.start > begun, "the records were trimmed"
    for clean in (False, True):
        await open_again(harness, clean)
        assert await send(harness, "early") == "early"
        assert state(harness).count == 305 and state(harness).state_bytes == 305 * MEMORY_BYTES
    await harness.advance(WINDOW_MS + LATE_MS)
    assert state(harness).count == 0 and not state(harness).slots
    await open_again(harness, clean=True)
    assert await send(harness, "ea") == ""


async def test_a_replay_from_an_older_checkpoint_forgets_what_was_sent_again_only_after_its_own_window() -> (
    None
):
    harness = harness_of()
    await send(harness, "a")
    await open_again(harness, clean=True)
    await harness.advance(WINDOW_MS + LATE_MS)
    assert await send(harness, "a") == ""
    harness.log.disk.checkpoint = None
    await open_again(harness)
    await harness.advance(LATE_MS)
    assert await send(harness, "a") == "a"


async def test_beyond_the_limit_new_ids_are_refused_and_known_ones_are_not() -> None:
    harness = harness_of(TaskLimits(bounds=Bounds(message_ids_max=3)))
    await send(harness, "ab")
    failed = one(await harness.do(1, send_of("cd")), Failed)
    assert failed.reason is Reason.QUOTA_EXCEEDED and "3" in failed.description
    assert await send(harness, "abc") == "ab" and await send(harness, "abc") == "abc"


async def test_many_ids_are_kept_in_slots_of_bounded_size() -> None:
    harness = harness_of()
    count = 2 * SLOT_MAX + 1
    identities = [identity(str(number)) for number in range(count)]
    operation = Send([b"x"] * count, None, identities=identities)
    assert not one(await harness.do(1, operation), Sent).duplicates
    assert [len(slot.identities) for slot in state(harness).slots.values()] == [SLOT_MAX, SLOT_MAX, 1]
    await open_again(harness, clean=True)
    assert len(one(await harness.do(1, operation), Sent).duplicates) == count


async def test_salvage_keeps_the_ids() -> None:
    harness = harness_of()
    await send(harness, "abc")
    salvage = Salvage(harness.number, QUEUE_SUBQUEUES)
    salvage.begin((), Position(0), is_start_known=True)
    async for frame in harness.log.replay(Position(0)):
        salvage.frame(frame)
    rebuilt = Duplicates()
    for record in salvage.messages.states.duplicates.as_records():
        rebuilt.apply(read_back(record), Position(0))
    assert rebuilt.count == 3
    rebuilt.forget_old(1_000, harness.clock.now_ms(), WINDOW_MS, Position(0))
    assert rebuilt.known([identity("x"), identity("a")], 1_000, WINDOW_MS) == [1]
    deque(rebuilt.drop(), maxlen=0)
