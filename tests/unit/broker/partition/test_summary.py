"""broker/partition/summary.py: when a partition at rest must be opened although no client asks for it."""

from __future__ import annotations

import pytest

from broker.entities.descriptions import QueueSettings
from broker.message.changes import encode_changes
from broker.operations.message_states import SubqueueCounts
from broker.operations.sending import Send
from broker.operations.settling import Abandon, Complete
from broker.partition.drain_need import Need, need_of_counts
from broker.partition.summary import SEGMENT_BYTES, Summary, Wake, decode, summary_of, survey
from tests.support.partition_harness import Harness

LOCK_MS = QueueSettings().lock_duration_ms
TICK_MS = 20


def wakes(harness: Harness) -> dict[int, int]:
    """When the partition would have to be woken, by reason, in milliseconds from now."""
    assert harness.task._partition is not None
    now_ms = harness.clock.now_ms()
    return {
        reason: at_ms - now_ms
        for reason, at_ms in summary_of(harness.task._partition, harness.clock).wakes.items()
    }


async def test_the_end_of_a_lock_is_no_appointment_for_locks_end_with_the_process() -> None:
    harness = Harness()
    await harness.send(b"one", b"two")
    await harness.receive(1)
    assert wakes(harness) == {}, (
        "it was opened at each start, because a receiver had not settled a message before"
    )


async def test_a_message_expires_on_time_whether_it_is_locked_or_not() -> None:
    harness = Harness()
    await harness.send(b"one", b"two", ttl=[LOCK_MS // 2, 10 * LOCK_MS])
    await harness.receive(1)
    assert wakes(harness) == {Wake.EXPIRY: pytest.approx(LOCK_MS // 2, abs=TICK_MS)}
    await harness.advance(LOCK_MS // 2 + TICK_MS)
    assert 0 <= wakes(harness)[Wake.EXPIRY] < LOCK_MS, (
        "the first one is overdue, and its lock keeps it until then"
    )
    await harness.advance(LOCK_MS)
    assert (await harness.peek()).messages == [b"two"]
    assert wakes(harness)[Wake.EXPIRY] > LOCK_MS, "the second one alone is left"
    await harness.receive(2)
    assert wakes(harness)[Wake.EXPIRY] > LOCK_MS


@pytest.mark.parametrize("kind", ["changed properties", "message-ids"])
async def test_a_summary_says_what_the_state_takes_in_memory_whatever_it_consists_of(kind: str) -> None:
    """Symptom: five queues whose messages had 60 KB of properties each were opened together although there
    was no room for more than one of them."""
    if kind == "message-ids":
        harness = Harness(QueueSettings(requires_duplicate_detection=True))
        for number in range(300):
            await harness.do(1, Send([b"x"], None, identities=[b"%015d" % number]))
        await harness.do(2, Complete((await harness.receive(2, 300)).tokens))
        least = 300 * 64
    else:
        harness = Harness()
        await harness.send(*[b"x"] * 10)
        for token in (await harness.receive(1, 10)).tokens:
            await harness.do(
                1, Abandon([token], encode_changes({"token": token.hex(), "note": "n" * 30_000}))
            )
        least = 10 * 30_000
    assert harness.task._partition is not None
    summary = summary_of(harness.task._partition, harness.clock)
    assert summary.state_bytes == harness.budget.state_bytes >= least
    again = decode(summary.encode(), 4)
    assert again is not None and again.state_bytes == summary.state_bytes


@pytest.mark.parametrize("number", [0, 300], ids=["one subqueue", "one of many"])
@pytest.mark.parametrize("need", [None, Need(7, 8)])
@pytest.mark.parametrize("held_bytes", [None, 1_000, 1 << 20])
@pytest.mark.parametrize("active", [0, 3])
def test_a_need_that_is_not_known_stays_so_whatever_else_is(
    number: int, need: Need | None, held_bytes: int | None, active: int
) -> None:
    counts = {number: SubqueueCounts(active=active, bytes=active * 100)}
    note = Summary(counts, {Wake.EXPIRY: 5}, need, held_bytes).encode()
    found = decode(note, 400)
    is_noted = (active > 0 and need is not None) or (held_bytes or 0) >= 1 << 20
    assert found is not None and found.wakes == {Wake.EXPIRY: 5}
    assert (found.need, found.held_bytes) == ((need, held_bytes) if is_noted else (None, None))
    estimated = need_of_counts([counts[number]], SEGMENT_BYTES) if active else None
    for notes in ([note], [note, note], [note, Summary({1: SubqueueCounts(active=1)}, {}).encode()]):
        seen = survey(notes, 400)
        assert not seen.unreadable
        first = seen.needs[0] if seen.needs else None
        assert first == (need if is_noted and need is not None else estimated)
